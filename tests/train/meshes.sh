# Sourced by test_meshes.sh and slow_all_meshes.sh: a model on a mesh of ranks trains what one rank trains. With by=mpirun, the ranks of Open MPI.
[ "${by:-launch}" = launch ] || command -v mpirun >/dev/null || exit 77
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >mesh.yaml <<'YAML'
model: {layer_count: 4, hidden_size: 32, ffn_size: 64, head_count: 4, context_length: 32, vocab_size: 320}
data: {train: data/c_train_*.bin}
train: {micro_batch: 1, batch_tokens: 256, steps: 20, precision: fp32, gradient_groups: 8}
optim: {lr: 1e-3, warmup_steps: 5}
ckpt: {every: 0}
machine: {threads: 1}
YAML
llama=(--model.tied_embeddings=false)
gpt2=(--model.tied_embeddings=true --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true)
qwen3=(--model.tied_embeddings=false --model.qk_norm=true --model.head_dim=16)
moe=(--model.tied_embeddings=false "--model.layers=gqa;gqa/moe" --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=16
    --model.moe_shared_gate=true --model.moe_aux=0.01 --model.moe_balance_rate=0.001)
# The gate of n-grams jumps where key and stream have nothing in common: two ranks' sums, in another order than one's, drift apart by up to 4e-5
# at a rate of 3e-4 or 1e-3, by 1e-6 at 1e-4 (eight texts; without n-grams by 1e-8).
engram=(--model.tied_embeddings=false --model.engram_layers=1-2 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.table_rate=1 --optim.lr=1e-4)
rows=("${engram[@]}" --optim.table_gradients=sparse) # as the rows that a step reads
newton=("${llama[@]}" --optim.name=muon)
mtp=(--model.tied_embeddings=false --model.mtp_depth=2)
mla=(--model.tied_embeddings=false --model.layers=mla --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=8 --model.mla_value_dim=8)
mamba=(--model.tied_embeddings=false --model.layers=gqa,mamba2 --model.mamba_heads=8 --model.mamba_head_dim=8 --model.mamba_groups=4 --model.mamba_state=8)

train() { # train RANKS KEYS...
    local n=$1
    shift
    if [ "${by:-launch}" = launch ]; then
        run 0 launch -n "$n" -- train mesh.yaml "$@"
    else
        over_mpi "$n" "$ingot" train mesh.yaml "$@" || fail "$n ranks of mpirun, $*: exit $?"
    fi
    planned_is_measured mesh.yaml "$n" "$@"
}

# A table that is tied, or that MTP modules read, is at both ends of a pipeline, which add up its gradient in another order than one rank: two stages
# are their reference.
reference() { # reference MODEL
    local -n keys=$1
    run 0 train mesh.yaml --run.dir="runs/$1" "${keys[@]}"
    ! at_ends "$1" || train 2 --run.dir="runs/$1-ends" "${keys[@]}" --parallel.pipeline=2
}
at_ends() { [ "$1" = gpt2 ] || [ "$1" = mtp ]; }
told() { grep '"kind":"step"' "$1/metrics.jsonl" | grep -oE '"(step|tokens|loss|lr|grad_norm|grad_norm_clipped)":[-+.eE0-9]+'; }
step_losses() { grep '"kind":"step"' "$1/metrics.jsonl" | sed 's/.*"loss":\([-+.eE0-9]*\).*/\1/'; }

# mesh MODEL DP TP PP ZERO KEYS...: losses within 1e-5; without tensor parallelism the same bits, those of weights and moments too; with it those
# of the same mesh without ZeRO, if that has been trained before
mesh() {
    local model=$1 dp=$2 tp=$3 pp=$4 zero=$5 other=runs/$1
    local -n keys=$model
    shift 5
    local name="$model, dp $dp, tp $tp, pp $pp, ZeRO $zero $*" dir="runs/$model-$dp-$tp-$pp-$zero"
    rm -rf "$dir"
    train $((dp * tp * pp)) --run.dir="$dir" "${keys[@]}" --parallel.tensor="$tp" \
        --parallel.pipeline="$pp" --parallel.zero="$zero" "$@"
    paste <(step_losses "runs/$model") <(step_losses "$dir") |
        awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d <= 1e-5)) bad = 1 } END { exit bad || NR != 20 }' || fail "$name: losses differ by more than 1e-5"
    [ "$tp" -eq 1 ] || other="runs/$model-$dp-$tp-$pp-0"
    [ -d "$other" ] || return 0
    [ "$tp" -gt 1 ] || [ "$pp" -eq 1 ] || ! at_ends "$model" || other="runs/$model-ends"
    [ "$(told "$other" | wc -l)" -eq 120 ] || fail "$other says too little"
    [ "$(told "$other")" = "$(told "$dir")" ] || fail "$name: losses or norms have other bits"
    same_state "$name" "$other" "$dir"
}

# moved MODEL "DP TP PP ZERO [EP [CP]]"...: five steps on each of four meshes, each from the last one's checkpoint; without tensor or expert parallelism
# the weights and moments of one rank that was never interrupted
moved() {
    local model=$1 steps=0 dir="runs/$1-moved" shape step sliced=0
    local -n keys=$model
    shift
    rm -rf "$dir"
    for shape in "$@"; do
        # shellcheck disable=SC2086 # four numbers
        set -- $shape
        [ "$2" -eq 1 ] && [ "${5:-1}" -eq 1 ] && { [ "$3" -eq 1 ] || ! at_ends "$model"; } || sliced=1
        train $(($1 * $2 * $3 * ${6:-1})) --resume --run.dir="$dir" "${keys[@]}" --ckpt.every=5 --ckpt.keep=9 \
            --parallel.tensor="$2" --parallel.pipeline="$3" --parallel.zero="$4" --parallel.expert="${5:-1}" --parallel.context="${6:-1}"
        steps=$((steps + 5))
        for step in 5 10 15 20; do
            [ $step -le $steps ] || rm -r "$dir/ckpt/step-$(printf %08d $step)"
        done
    done
    [ $steps -eq 20 ] || fail "$model moved through $steps steps"
    if [ $sliced -eq 1 ]; then
        awk -v a="$(step_losses "runs/$model" | tail -n 1)" -v b="$(step_losses "$dir" | tail -n 1)" 'BEGIN { d = a / b - 1; exit !(d < 1e-5 && d > -1e-5) }' ||
            fail "$model moved: another loss than one rank's"
        return
    fi
    same_state "$model moved" "runs/$model" "$dir"
}
