#!/usr/bin/env bash
# Whole runs with operands of current scaling: fp8.recipe block and tensor, mxfp8, nvfp4. They learn beside bf16; the same bits on one rank
# and on several, in other recompute policies, after a resume; what is refused in one line.
. "$(dirname "$0")/../shell.sh"
make_corpus
base=(--train.micro_batch=1 --train.steps=12 --train.gradient_groups=4 --model.tied_embeddings=false --optim.warmup_steps=1 --eval.every=0
    --eval.tokens=256 --ckpt.every=0)
block=(--train.precision=fp8 --fp8.recipe=block)
tensor=(--train.precision=fp8 --fp8.recipe=tensor)
mxfp8=(--train.precision=mxfp8)
nvfp4=(--train.precision=nvfp4 --nvfp4.keep_bf16=0)
last() { losses "$1" | tail -n 1 | grep -oE '"loss":[0-9.]+' | cut -d: -f2; }

run 0 train r.yaml --run.dir=runs/bf16 "${base[@]}" --train.precision=bf16
for name in block tensor mxfp8 nvfp4; do
    declare -n keys=$name
    run 0 train r.yaml --run.dir="runs/$name" "${base[@]}" "${keys[@]}"
    # Codes change every loss, by little: within the distance that bf16 has gone in these steps.
    [ "$(losses "runs/$name")" != "$(losses runs/bf16)" ] || fail "$name computes in bf16"
    awk -v a="$(last runs/bf16)" -v b="$(last "runs/$name")" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d < 0.05) }' ||
        fail "$name ends at $(last "runs/$name"), bf16 at $(last runs/bf16)"
    run 0 launch -n 2 -- train r.yaml --run.dir="runs/$name.two" "${base[@]}" "${keys[@]}" --train.recompute=full
    [ "$(losses "runs/$name")" = "$(losses "runs/$name.two")" ] || fail "$name: losses of two ranks differ"
    same_state "$name on two ranks" "runs/$name" "runs/$name.two"
    run 0 train r.yaml --run.dir="runs/$name.half" "${base[@]}" "${keys[@]}" --train.steps=6 --optim.schedule=constant
    run 0 train r.yaml --run.dir="runs/$name.whole" "${base[@]}" "${keys[@]}" --optim.schedule=constant
    run 0 train "runs/$name.half" --resume --train.steps=12
    same_state "$name resumed" "runs/$name.whole" "runs/$name.half"
done
run 0 launch -n 2 -- train r.yaml --run.dir=runs/stages "${base[@]}" "${nvfp4[@]}" --parallel.pipeline=2
same_state "two stages" runs/nvfp4 runs/stages

# The search of `ingot plan --machine` has the operands of a GEMM, too: planned bytes are measured ones.
planned() { # planned RUN KEYS...
    run 0 launch -n 2 -- train r.yaml --run.dir="runs/$1" "${base[@]}" "${@:2}"
    planned_is_measured r.yaml 2 --run.dir="runs/$1" "${base[@]}" "${@:2}"
    grep -q '"mesh":' plan.out || fail "$1: no mesh was planned"
}
planned_is_measured r.yaml 2 --run.dir=runs/stages "${base[@]}" "${nvfp4[@]}" --parallel.pipeline=2
planned block.zero "${block[@]}" --parallel.zero=2
planned tensor.zero "${tensor[@]}" --parallel.zero=3
planned mxfp8.zero "${mxfp8[@]}" --parallel.zero=1 --train.recompute=selective

# From bf16 and back; what is rounded is not stored.
run 0 train runs/bf16 --resume --train.steps=14 --train.precision=mxfp8
run 0 train runs/bf16 --resume --train.steps=16 --train.precision=bf16
run 0 plan r.yaml "${nvfp4[@]}"

refused() { # refused TEXT ARGS...
    local text=$1
    shift
    run 2 "$@" --run.dir=runs/none
    grep '^error:' err | head -n 1 | grep -qF -- "$text" || fail "$*: the error does not say '$text'"
}
refused "fp8.warmup 3 does nothing without fp8.recipe: bound" train r.yaml "${block[@]}" --fp8.warmup=3
refused "fp8.recipe block does nothing without train.precision: fp8" train r.yaml --train.precision=mxfp8 --fp8.recipe=block
refused "nvfp4.hadamard false does nothing without train.precision: nvfp4" train r.yaml "${mxfp8[@]}" --nvfp4.hadamard=false
refused "parallel.tensor 2: fp8.recipe block takes scales" launch -n 2 -- train r.yaml "${block[@]}" --parallel.tensor=2
refused "train.precision: layers.0.mlp.down.weight is 32 x 40; GEMMs of codes need multiples of 16" train r.yaml "${mxfp8[@]}" --model.ffn_size=40
refused "no linear is left that computes with codes" train r.yaml --train.precision=nvfp4 --nvfp4.keep_bf16=0.9
[ -e runs/none ] && fail "a refused run left a directory"
exit $failed
