# Sourced by test_experts.sh and slow_all_experts.sh: a mixture whose experts ranks shard (parallel.expert) trains what one rank trains.
. "$(dirname "$0")/meshes.sh"
deepseek=(--model.tied_embeddings=false "--model.layers=gqa;gqa/moe" --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=16 --model.moe_shared_size=16
    --model.moe_router=sigmoid --model.moe_scale=2.5 --model.moe_groups=4 --model.moe_groups_kept=2 --model.moe_balance_rate=0.001
    --model.moe_aux=1e-3 --model.moe_aux_kind=sequence --model.moe_z=1e-4 --data.packing=documents)
capped=(--model.layers=gqa/moe --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_capacity=0.8 --model.moe_aux=0.01)
int8=("${moe[@]}" --optim.state=int8)
muon=("${moe[@]}" --optim.name=muon)
modules=("${moe[@]}" --model.mtp_depth=1)
cycles=("${moe[@]}" --model.hrm_low_layers=2 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2)
latent=("--model.layers=mla/moe;mla" --model.moe_experts=4 --model.moe_top_k=1 --model.moe_size=32 --model.tied_embeddings=true
    --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=8 --model.mla_value_dim=8)

numbers() { # numbers KEY DIR: of each step
    grep '"kind":"step"' "$2/metrics.jsonl" | grep -o "\"$1\":[-+.eE0-9]*" | sed 's/.*://'
}
close() { # close NAME KEY DIR DIR [BOUND]: 20 values each, within BOUND (1e-5: fp32)
    paste <(numbers "$2" "$3") <(numbers "$2" "$4") |
        awk -v bound="${5:-1e-5}" '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= bound * ($1 < 0 ? -$1 : $1))) bad = 1 } END { exit bad || NR != 20 }' ||
        fail "$1: $2 differs by more than ${5:-1e-5}"
}

# experts MODEL EP DP TP PP ZERO KEYS...: losses, norms and loads are those of one rank; ZeRO 1 changes no bit of the same mesh without it, nor ZeRO 3
# one of ZeRO 2, if that has been trained before. Copies of the state (parallel.shard), and ZeRO 2, have other micro-batches in a group of ep: its
# GEMMs add in another order. cp=N experts ...: N ranks share each sequence.
experts() {
    local model=$1 ep=$2 dp=$3 tp=$4 pp=$5 zero=$6 key context=${cp:-1}
    local -n keys=$model
    shift 6
    local name="$model, ep $ep, dp $dp, cp $context, tp $tp, pp $pp, ZeRO $zero $*" at="runs/$model-e$ep-$dp-$tp-$pp"
    [ "$context" -eq 1 ] || at=$at-c$context
    [[ $* != *parallel.shard* ]] || at=$at-copies
    local dir="$at-$zero" other="$at-$((zero / 2 * 2))"
    rm -rf "$dir"
    train $((dp * context * tp * pp)) --run.dir="$dir" "${keys[@]}" --parallel.expert="$ep" --parallel.tensor="$tp" \
        --parallel.pipeline="$pp" --parallel.zero="$zero" --parallel.context="$context" "$@"
    for key in loss grad_norm aux_loss; do close "$name" $key "runs/$model" "$dir"; done
    [ $pp -gt 1 ] || check "$name: loads" [ "$(numbers load_max "$dir")" = "$(numbers load_max "runs/$model")" ]
    check "$name: planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' "$dir/log.txt"
    [ $((zero % 2)) -eq 1 ] && [ -d "$other" ] || return 0
    [ "$(told "$other")" = "$(told "$dir")" ] || fail "$name: losses or norms have other bits than with ZeRO $((zero - 1))"
    same_state "$name" "$other" "$dir"
}
