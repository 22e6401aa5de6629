#!/usr/bin/env bash
# Whole runs in FP8: the same bits on one rank and on several, evaluations and samples that change nothing, what a run leaves behind, and
# what is refused in one line.
. "$(dirname "$0")/../shell.sh"
make_corpus
fp8=(--train.precision=fp8 --fp8.warmup=3 --fp8.monitor=4 --train.micro_batch=1 --train.steps=8 --train.gradient_groups=4
    --model.tied_embeddings=false --optim.warmup_steps=1 --eval.every=0 --eval.tokens=256 --ckpt.every=0)
# of a run, without what only a pipeline has
numbers() { losses "$1" | sed -E 's/"bubble":[^,}]*,?//; s/,}/}/'; }
at_work() { # at_work RUN: it has read codes, and has said so
    grep -qE 'fp8 +up to step 3 GEMMs of 8 linears are in bf16' "$1/log.txt" || fail "$1 says nothing of its warm-up"
    grep -qE 'fp8 +from step 4 on GEMMs of 8 of 8 linears read FP8 codes' "$1/log.txt" || fail "$1 says nothing of the switch"
}

run 0 train r.yaml --run.dir=runs/one "${fp8[@]}"
at_work runs/one
[ "$(losses runs/one | grep -cE '"fp8_saturated":0,"fp8_headroom_x":[0-9.]+,"fp8_headroom_dy":[0-9.]+')" -eq 2 ] || fail "metrics of the monitor"
variant() { # variant NAME RANKS KEYS...
    local name=$1 ranks=$2
    shift 2
    run 0 launch -n "$ranks" -- train r.yaml --run.dir="runs/$name" "${fp8[@]}" "$@"
    at_work "runs/$name"
    [ "$(numbers runs/one)" = "$(numbers "runs/$name")" ] || fail "$name: losses differ"
    same_state "$name" runs/one "runs/$name"
}
variant two 2
variant zero1 2 --parallel.zero=1
variant zero2 2 --parallel.zero=2
variant stages 2 --parallel.pipeline=2
variant halves 2 --parallel.pipeline=2 --parallel.schedule=gpipe

# Slices round sums otherwise.
run 0 launch -n 2 -- train r.yaml --run.dir=runs/slices "${fp8[@]}" --parallel.tensor=2
at_work runs/slices
paste <(losses runs/one | grep -oE '"loss":[^,]*') <(losses runs/slices | grep -oE '"loss":[^,]*') | tr -d '"los:' |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 2e-2)) bad = 1 } END { exit bad || NR != 8 }' || fail "slices change the loss"

# A checkpoint of one mesh goes on on another.
run 0 train r.yaml --run.dir=runs/moved "${fp8[@]}" --train.steps=4 --optim.schedule=constant
run 0 train r.yaml --run.dir=runs/stayed "${fp8[@]}" --optim.schedule=constant
run 0 launch -n 2 -- train runs/moved/config.yaml --run.dir=runs/moved --resume --train.steps=8 --parallel.pipeline=2
same_state "one rank, then two stages" runs/stayed runs/moved

# What happens between steps leaves no trace in them.
run 0 train r.yaml --run.dir=runs/watched "${fp8[@]}" --eval.every=1 --log.sample_prompt=the --log.sample_tokens=24
grep -q '"kind":"sample"' runs/watched/metrics.jsonl || fail "there is no sample"
same_state "evaluations and samples" runs/one runs/watched

# Everything but training computes in bf16, from the weights.
run 0 eval runs/one --data.val='data/c_val_*.bin'
cp out eval.fp8
run 0 eval runs/one --data.val='data/c_val_*.bin' --train.precision=bf16
[ -s out ] && [ "$(grep -oE 'loss[= ][0-9.]+' out)" = "$(grep -oE 'loss[= ][0-9.]+' eval.fp8)" ] || fail "eval of an FP8 run is not that in bf16"
run 0 generate runs/one --prompt the --tokens 5
run 0 ckpt export runs/one -o hf
run 0 ckpt verify runs/one
run 0 plan r.yaml "${fp8[@]}"

# Refused in one line, before a run directory is there.
refused() { # refused TEXT ARGS...
    local text=$1
    shift
    run 2 "$@" --run.dir=runs/none
    grep '^error:' err | head -n 1 | grep -qF -- "$text" || fail "$*: the error does not say '$text'"
}
refused "fp8.margin 2 does nothing without train.precision: fp8" train r.yaml --fp8.margin=2
refused "layers.0.mlp.down.weight is 32 x 40" train r.yaml "${fp8[@]}" --model.ffn_size=40
refused "fp8.exclude: 'mlp' matches no weight" train r.yaml "${fp8[@]}" --fp8.exclude=mlp
refused "24 tokens of a micro-batch" launch -n 2 -- train r.yaml "${fp8[@]}" --parallel.zero=3 --train.sequence_length=24 --train.batch_tokens=96
refused "layers.0.mlp.down.weight is 32 x 24 on each rank" launch -n 2 -- train r.yaml "${fp8[@]}" --parallel.tensor=2 --model.ffn_size=48
[ -e runs/none ] && fail "a refused run left a directory"
run 2 train r.yaml --run.dir=runs/one --resume --train.precision=fp32
says "train.precision fp8 -> fp32: a run may change between bf16, fp8, mxfp8 and nvfp4 alone"
exit $failed
