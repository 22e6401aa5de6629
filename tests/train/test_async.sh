#!/usr/bin/env bash
# ckpt.async: a checkpoint that is written while training goes on has the bits of one that training waits for.
. "$(dirname "$0")/../shell.sh"
make_corpus
train() { # train RUN KEYS...
    local dir=$1
    shift
    run 0 train r.yaml --run.dir="$dir" --train.steps=12 --ckpt.keep=100 "$@"
}
same_checkpoints() { # same_checkpoints NAME A B: each step of A is in B, with equal tensors
    local step
    for step in "$2"/ckpt/step-*; do
        run 0 ckpt diff "$step" "$3/ckpt/${step##*/}"
        grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "$1: ${step##*/} differs"
    done
    check "$1: four checkpoints" [ "$(find "$3/ckpt" -name 'step-*' | wc -l)" -eq 4 ]
    all_sound "$1" "$3"
}
for keys in "--train.precision=fp32" "--train.precision=bf16" "--optim.state=int8" "--optim.name=muon" "--train.precision=fp8 --fp8.warmup=2"; do
    # shellcheck disable=SC2086 # several keys
    train waits $keys --ckpt.async=false
    # shellcheck disable=SC2086
    train goes_on $keys
    same_run "$keys" waits goes_on
    same_checkpoints "$keys" waits goes_on
    check "$keys: the stall is recorded" grep -q '"ckpt_stall_ms":' goes_on/metrics.jsonl
    rm -rf goes_on/ckpt/step-00000012 goes_on/ckpt/step-00000009
    # shellcheck disable=SC2086
    run 0 train r.yaml --run.dir=goes_on --train.steps=12 --ckpt.keep=100 $keys --resume
    same_run "$keys, resumed" waits goes_on
    rm -rf waits goes_on
done

# --- an error of the writer ends the run with its own code; a run that fails has saved what it began to save ---
train waits --ckpt.async=false
mkdir full && : >full/ckpt # no directory
run 74 train r.yaml --run.dir=full --train.steps=12
says "full/ckpt"
# --- the plan counts the copy ---
run 0 plan r.yaml
check "the plan names the copy" grep -q '^  checkpoint .*ckpt.async' out
run 0 plan r.yaml --json
planned=$(sed -nE 's/.*"snapshot_bytes": ([0-9]+).*/\1/p' out)
check "and its bytes are those of a checkpoint, nearly" [ "$planned" -ge "$(($(stat -c %s waits/ckpt/step-00000012/state-00000.safetensors) * 9 / 10))" ]
run 0 plan r.yaml --ckpt.async=false
check "without it there is none" sh -c '! grep -q "^  checkpoint" out'
exit $failed
