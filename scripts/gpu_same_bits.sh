#!/usr/bin/env bash
# The same bits and the same speed on a GPU, before and after a change: gpu_same_bits.sh OLD_INGOT NEW_INGOT [ROUNDS [STEPS]]
# Both programs run `ingot bench train` alternately (2 rounds of 20 steps) on the shapes of tools/bench_gpu.py, hybrids, a mixture of experts
# and optimizers, in bf16. The loss of the last step must be equal to the last bit: it depends on every weight of every step before. Both use
# one cache of GEMM algorithms, which the old program fills: another algorithm is another rounding. Tokens/s are printed, not judged.
# Skipped (77) without two programs: nothing is recorded for a GPU, whose bits depend on its model and libraries.
set -u -o pipefail
[ -x "${1:-}" ] && [ -x "${2:-}" ] || exit 77
old=$1 new=$2 rounds=${3:-2} steps=${4:-20} failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

field() { grep -oE "\"$1\": ?[-+.eE0-9]+" | sed 's/.*: *//'; }
shape() { # shape NAME ARGS...
    local name=$1 round who
    shift
    : >"$work/old" && : >"$work/new"
    for round in $(seq "$rounds"); do
        for who in old new; do
            "${!who}" bench train --device cuda --precision bf16 --steps "$steps" --json --machine.cache_dir="$work/cache" "$@" >"$work/out" 2>"$work/err" ||
                { echo "failed: $name, $who program, round $round: $(tail -n 1 "$work/err")"; failed=1; return; }
            echo "$(field loss_last <"$work/out") $(field tokens_per_s <"$work/out")" >>"$work/$who"
        done
    done
    if [ "$(cut -d' ' -f1 "$work/old" "$work/new" | sort -u | wc -l)" -ne 1 ] || ! grep -q '[0-9]' "$work/old"; then
        echo "failed: $name: losses differ: old $(cut -d' ' -f1 "$work/old" | paste -sd,), new $(cut -d' ' -f1 "$work/new" | paste -sd,)"
        failed=1
    fi
    paste "$work/old" "$work/new" | awk -v name="$name" '{ a += $2; b += $4; loss = $1 } END {
        printf "%-16s loss %s  old %.0f  new %.0f tokens/s  ratio %.4f\n", name, loss, a / NR, b / NR, b / a }'
}
shape gpt2-124m --preset small --model.layer_count=12 --model.ffn_size=2048 --model.head_count_kv=12 --batch 64 --seq 1024
shape medium --preset medium --model.layer_count=24 --model.ffn_size=2816 --model.head_count_kv=8 --batch 32 --seq 2048
shape llama-1b --preset llama-1b --batch 8 --seq 4096
shape 7b-8-layers --preset 7b-gqa --model.layer_count=8 --batch 4 --seq 4096
rounds=1
shape gpt2-biases --preset gpt2-124m --batch 16 --seq 1024
shape deltanet-mla --preset deltanet-mla-small --batch 8 --seq 2048
shape mamba2 --preset small --model.layers=gqa,mamba2 --model.mamba_heads=24 --model.mamba_head_dim=64 --model.mamba_groups=1 --batch 8 --seq 2048
shape moe --preset small "--model.layers=gqa;gqa/moe" --model.moe_experts=16 --model.moe_top_k=4 --model.moe_size=512 --model.moe_shared_size=512 --batch 8 --seq 2048
shape engram-moe --preset engram-moe-small --model.engram_base=10000 --batch 4 --seq 1024
shape muon-recompute --preset small --optim.name=muon --optim.state=int8 --train.recompute=full --batch 16 --seq 1024
shape offload --preset small --memory.offload_optimizer=true --batch 16 --seq 1024
exit $failed
