#!/usr/bin/env bash
# forebay observe, guidellm and inference-perf one after the other against the same trivial server: how well each holds
# its rate, how late it sends, what processor time it takes. For docs/observe.md.
#
#   examples/beside-peers.sh RATE SECONDS GUIDELLM INFERENCE_PERF TOKENIZER_FOLDER
#
# GUIDELLM and INFERENCE_PERF are the programs (`pip install guidellm==0.8.1`, `pip install inference-perf==0.7.0`, a
# virtual environment each); TOKENIZER_FOLDER has a tokenizer.json, since both count tokens themselves. Build before:
#   cargo build --release -p forebay && cargo build --release -p forebay-load --example schedule
set -euo pipefail
rate=$1 seconds=$2 guidellm=$3 inference_perf=$4 tokenizer=$5
port=18100
out=$(mktemp -d)
target=$(dirname "$0")/../target/release
"$target/examples/schedule" serve 127.0.0.1:$port >"$out/server" &
server=$!
trap 'kill $server' EXIT
until [ -s "$out/server" ]; do :; done
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
url=http://127.0.0.1:$port
count=$((rate * seconds))
TIMEFORMAT='wall %R s, CPU %U + %S s'

echo "forebay observe"
printf '%s\n' "{version: 1, name: t, mode: {kind: surge, window: ${seconds}s, drain: 10s}, classes: {a: {arrivals: {process: poisson, rate: $rate}, input: 20, output: 1}}}" >"$out/w.yaml"
time "$target/forebay" observe --target $url --workload "$out/w.yaml" --quiet --out "$out/forebay" | grep -E "schedule|INVALID" || true

echo "guidellm"
time "$guidellm" run --backend kind=openai_http,target=$url,model=trivial --profile kind=poisson,rate="$rate" \
    --data kind=synthetic_text,prompt_tokens=20,output_tokens=1 --tokenizer kind=huggingface_auto,model="$tokenizer" \
    --constraint kind=max_duration,seconds="$seconds" --disable-console --output kind=json,path="$out/guidellm.json" \
    >"$out/guidellm.log" 2>&1 || tail -5 "$out/guidellm.log"

echo "inference-perf"
cat >"$out/p.yaml" <<Y
api: {type: completion, streaming: true}
data: {type: random, input_distribution: {min: 20, max: 20, mean: 20, std_dev: 0, total_count: $count}, output_distribution: {min: 1, max: 1, mean: 1, std_dev: 0, total_count: $count}}
load: {type: poisson, stages: [{rate: $rate, duration: $seconds}], num_workers: 2}
server: {type: vllm, model_name: trivial, base_url: $url, ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: $tokenizer}
report: {request_lifecycle: {summary: true, per_stage: true, per_request: true}}
storage: {local_storage: {path: $out/p}}
Y
time "$inference_perf" --config_file "$out/p.yaml" >"$out/p.log" 2>&1 || tail -5 "$out/p.log"

python3 - "$out" "$rate" <<'P'
import glob, json, os, sys
out, rate = sys.argv[1], float(sys.argv[2])
rank = lambda v, q: sorted(v)[min(len(v) - 1, int(q * len(v)))] if v else float("nan")
def row(name, sent, lags):
    span = max(sent) - min(sent)
    held = (len(sent) - 1) / span
    lag = f"{1e3 * rank(lags, .5):.2f} / {1e3 * rank(lags, .99):.2f} ms" if lags else "not told"
    print(f"{name:16} {len(sent):7} sent, {held:8.1f}/s, lag p50 / p99 {lag}")
rows = [json.loads(l) for l in open(f"{out}/forebay/requests.jsonl")][1:]
row("forebay", [r["sent_ns"] / 1e9 for r in rows if "sent_ns" in r], [(r["sent_ns"] - r["arrived_ns"]) / 1e9 for r in rows if "sent_ns" in r])
if os.path.exists(f"{out}/guidellm.json"):
    for b in json.load(open(f"{out}/guidellm.json"))["benchmarks"]:
        t = [r["info"]["timings"] for g in b["requests"].values() if g for r in g]
        t = [x for x in t if x.get("request_start")]
        row("guidellm", [x["request_start"] for x in t], [x["request_start"] - x["targeted_start"] for x in t if x.get("targeted_start")])
for f in glob.glob(f"{out}/p/**/*per_request*.json", recursive=True) + glob.glob(f"{out}/p/*per_request*.json"):
    row("inference-perf", [r["start_time"] for r in json.load(open(f))], []); break
for f in sorted(glob.glob(f"{out}/p/**/*stage_0*.json", recursive=True))[:1]:
    print("inference-perf", json.dumps(json.load(open(f)).get("load_summary")))
P
echo "files: $out"
