#!/usr/bin/env bash
# GPT-2 124M training steps on the CPU, ingot and PyTorch in turn on the same machine: bench_cpu.sh [ROUNDS] [BATCH] [SEQ] [STEPS]
# needs: build/release/ingot (or INGOT=...), and a Python with torch (PYTHON=...). Prints every run, then medians and ratios.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3} batch=${2:-4} seq=${3:-1024} steps=${4:-3}
ingot=${INGOT:-build/release/ingot} python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for _ in $(seq "$rounds"); do
    for precision in fp32 bf16; do
        "$python" tools/peer_torch_cpu.py --precision $precision --batch "$batch" --seq "$seq" --steps "$steps" 2>/dev/null | tee -a "$log"
        "$ingot" bench train --precision $precision --batch "$batch" --seq "$seq" --steps "$steps" >"$log.one"
        head -1 "$log.one" | tee -a "$log"
        rm -f "$log.one"
    done
done
awk '
function field(name,   i, part) { for (i = 1; i <= NF; i++) { split($i, part, "="); if (part[1] == name) return part[2] } }
function median(list,   n, v, i, j, t) {
    n = split(list, v, " ")
    for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}
{ who = $1 ~ /^peer/ ? "torch" : "ingot"; key = who field("precision"); rate[key] = rate[key] " " field("tokens_per_s"); rss[key] = field("peak_rss_gib") }
END {
    for (p = 1; p <= 2; p++) {
        name = p == 1 ? "fp32" : "bf16"; a = median(rate["ingot" name]); b = median(rate["torch" name])
        printf "%s  ingot %.1f tokens/s, %s GiB   torch %.1f tokens/s, %s GiB   ratio %.2f\n", name, a, rss["ingot" name], b, rss["torch" name], a / b
    }
}' "$log"
