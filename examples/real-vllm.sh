#!/usr/bin/env bash
# Measures a running vLLM server at three rates, fits the engine's factors to two of the runs and predicts the third, each of
# the three in turn. Prints a table in Markdown. For docs/calibration.md.
#
#   examples/real-vllm.sh URL OUT [RATES]          such as  examples/real-vllm.sh http://127.0.0.1:8000 out 2,3,4
#
# HARDWARE (cpu) is the catalogue's name of what the server runs on, API (completions) the API that is used, and CAPTURE has
# further arguments of `forebay capture`, above all those that no server tells: CAPTURE="--max-num-seqs 64". FOREBAY is the
# binary; without it the release build of this tree (cargo build --release -p forebay). The server has to know
# prompts and answers of up to 1120 tokens together. Takes three times 160 s and what is left of the last requests;
# WINDOW (150) is the measured time of a run in seconds.
set -euo pipefail
url=$1 out=$2 rates=${3:-2,3,4}
here=$(cd "$(dirname "$0")" && pwd)
forebay=${FOREBAY:-$here/../target/release/forebay}
mkdir -p "$out"

# shellcheck disable=SC2086
"$forebay" capture --target "$url" --hardware "${HARDWARE:-cpu}" ${CAPTURE:-} --out "$out/cluster.yaml"
# The client talks to the server itself: no router, no network between them that would have been measured.
echo 'network: {toEngine: 0s, toClient: 0s}' >>"$out/cluster.yaml"

# Short requests of one class.
cat >"$out/workload.yaml" <<Y
version: 1
name: short requests
mode: {kind: steady, warmup: 10s, window: ${WINDOW:-150}s, drain: 60s}
classes:
  requests:
    arrivals: {process: poisson, rate: 1}
    input: {normal: [300, 200], clamp: [20, 1000]}
    output: {normal: [40, 20], clamp: [5, 120]}
Y

# A run that did not keep its schedule says so, and so does the fit; the others go on.
"$forebay" observe --target "$url" --workload "$out/workload.yaml" --rates "$rates" --api "${API:-completions}" \
    --plain --out "$out" || echo "some run is invalid: see above" >&2

IFS=, read -r -a list <<<"$rates"
for held in "${list[@]}"; do
    fitted=()
    for rate in "${list[@]}"; do [ "$rate" = "$held" ] || fitted+=("$out/rate-$rate"); done
    "$forebay" calibrate --observed "${fitted[@]}" --hold-back "$out/rate-$held" --cluster "$out/cluster.yaml" \
        ${FIT:+--fit "$FIT"} --out "$out/without-$held.yaml" --json >"$out/without-$held.json"
done
"$forebay" calibrate --observed "${list[@]/#/$out/rate-}" --cluster "$out/cluster.yaml" ${FIT:+--fit "$FIT"} \
    --out "$out/calibration.yaml" >"$out/calibration.txt"
cat "$out/calibration.txt"

python3 - "$out" "${list[@]}" <<'P'
import json, sys
out, rates = sys.argv[1], sys.argv[2:]
percent = lambda x: f"{100 * x:+.1f}"
print("\n| Predicted | Figure | Observed | Predicted | Error, % | 95 % interval |\n|---|---|---|---|---|---|")
errors = []
for rate in rates:
    answer = json.load(open(f"{out}/without-{rate}.json"))
    for run in (r for r in answer["runs"] if r["role"] == "held_back"):
        name = f"{run['requests_per_second']:.2f}/s, {run['requests']} requests" + (", near the knee" if run["near_the_knee"] else "")
        for f in run["figures"]:
            low, high = f["error_interval"]
            ms = lambda ns: f"{ns / 1e6:.3g} ms"
            print(f"| {name} | {f['label']} | {ms(f['observed_ns'])} | {ms(f['after_ns'])} | {percent(f['error'])} | {percent(low)} to {percent(high)} |")
            errors.append(abs(f["error"]))
            name = ""
errors.sort()
if errors:
    print(f"\nMedian absolute error {100 * errors[len(errors) // 2]:.1f} %, greatest {100 * errors[-1]:.1f} %, over {len(errors)} figures.")
print("\n| Factor | Before | " + " | ".join(f"without {r}/s" for r in rates) + " |\n|---" * 1 + "|---|" + "---|" * len(rates))
answers = [json.load(open(f"{out}/without-{r}.json")) for r in rates]
for i, f in enumerate(answers[0]["factors"]):
    def shown(f, x):
        return f"{x:.3g}" if f["unit"] == "share" else (f"{x / 1e6:.3g} ms" if x >= 1e6 else f"{x / 1e3:.3g} us")
    cells = [a["factors"][i] for a in answers]
    print(f"| `{f['name']}` | {shown(f, f['before'])} | " + " | ".join(shown(c, c["after"]) if c["outcome"] == "fitted" else c["outcome"].replace("_", " ") for c in cells) + " |")
P
