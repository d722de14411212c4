#!/usr/bin/env bash
# Sends 200 sheddable requests of about 2000 tokens in and 200 out over ten seconds, with 20 critical ones
# spread among them, and prints how long each class waited in the router's queue and for its first token.
#
#   examples/mixed-traffic.sh [URL [MODEL]]        needs: bash 5, curl, awk, sort
set -euo pipefail
url=${1:-http://127.0.0.1:8080}
model=${2:-qwen3-14b}
run=$EPOCHREALTIME
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# 8000 bytes count as 2000 tokens; what stands in front keeps prefix caches out of the picture.
filler=$(printf 'lorem ipsum dolor sit amet %.0s' {1..296})

send() { # class number
  local out="$results/$1.$2" begin=$EPOCHREALTIME
  printf '{"model":"%s","prompt":"run %s %s %s %s","max_tokens":200,"ignore_eos":true,"stream":true}' \
    "$model" "$run" "$1" "$2" "$filler" |
    curl -sS -N -D "$out.head" --data-binary @- -H 'content-type: application/json' \
      -H "x-llm-d-inference-objective: $1" "$url/v1/completions" |
    {
      # The first line of the answer's body is the first token.
      IFS= read -r _ || true
      first=$EPOCHREALTIME
      cat > /dev/null
      echo "$begin $first $EPOCHREALTIME" > "$out.time"
    } || true
}

echo "sending 200 sheddable and 20 critical requests to $url over ten seconds ..."
start=$(date +%s%N)
for ((n = 0; n < 200; n++)); do
  send sheddable "$n" &
  if ((n % 10 == 5)); then send critical "$n" & fi
  # Keep the schedule whatever starting a process takes: 20 requests per second.
  due=$((start + (n + 1) * 50000000))
  now=$(date +%s%N)
  ((due > now)) && sleep "$(awk -v d=$((due - now)) 'BEGIN { printf "%.3f", d / 1e9 }')"
done
wait

quantiles() { # label unit < numbers
  sort -n | awk -v label="$1" -v unit="$2" '
    { x[NR] = $1 }
    function q(p,  i) { i = int(p * NR + 0.999999); if (i < 1) i = 1; return x[i] }
    END { if (NR) printf "  %-26s p50 %8.0f %s   p90 %8.0f %s   max %8.0f %s\n", label, q(.5), unit, q(.9), unit, x[NR], unit }'
}

for class in critical sheddable; do
  ok=$(grep -l '^HTTP/1.1 200' "$results"/$class.*.head | wc -l)
  echo "$class: $ok of $(find "$results" -name "$class.*.time" | wc -l) answered with 200"
  cat "$results"/$class.*.head | tr -d '\r' |
    awk -F': ' 'tolower($1) == "x-llm-d-flow-queue-duration-ms" { print $2 }' | quantiles 'wait in the queue' ms
  cat "$results"/$class.*.time | awk '{ print ($2 - $1) * 1000 }' | quantiles 'time to first token' ms
  cat "$results"/$class.*.time | awk '{ print ($3 - $1) * 1000 }' | quantiles 'total time' ms
done
