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

# --- ranks share the memory of their copies: the plan says how many bytes, and as many are allocated ---
for keys in "" "--parallel.zero=1" "--parallel.zero=3 --train.precision=bf16" "--parallel.tensor=2" "--parallel.pipeline=2 --optim.state=int8" "--optim.name=muon --parallel.zero=2"; do
    # shellcheck disable=SC2086 # several keys
    run 0 plan r.yaml --machine 2xcpu --train.micro_batch=1 $keys --json
    planned=$(sed -nE 's/.*"checkpoint_copies_bytes_per_host": ([0-9]+).*/\1/p' out)
    # shellcheck disable=SC2086
    run 0 launch -n 2 -- train r.yaml --run.dir=ranks --train.steps=6 --ckpt.every=3 --train.micro_batch=1 $keys
    allocated=$(sed -nE 's/.*memory for checkpoints: ([0-9]+) bytes that 2 ranks share.*/\1/p' ranks/log.txt | head -n 1)
    check "copies of two ranks, ${keys:-replicas}: $planned planned, $allocated allocated" [ "${planned:-none}" = "${allocated:-0}" ]
    rm -rf ranks
done
run 0 plan --model.preset=13b --train.batch_tokens=524288 --train.steps=2000 --machine 8xH100 --parallel.tensor=8 --parallel.zero=0 --train.micro_batch=1 --train.recompute=full
check "GPUs: pinned, of the host" grep -qE '^host memory +14[0-9]\.[0-9]+ GiB pinned, of the host: copies of the state .*; a host that does not hold them waits for its saves$' out
run 0 plan --model.preset=13b --train.batch_tokens=524288 --train.steps=2000 --machine 8xH100 --parallel.tensor=8 --train.micro_batch=1 --train.recompute=full --ckpt.async=false
check "none without ckpt.async" bash -c "! grep -q 'copies of the state' out"
run 0 plan --model.preset=13b --train.batch_tokens=524288 --train.steps=2000 --machine 2x8xH100 --parallel.tensor=8 --parallel.zero=1 --train.micro_batch=1 --train.recompute=full
check "several hosts: each rank's own, of the fullest host" grep -qE '^host memory +72\.[0-9]+ GiB pinned, of the host: copies of the state ' out
printf 'like: h100\nhost_bytes: 16e9\nhost_memory_rate: 100e9\n' >small.machine
run 0 plan --model.preset=13b --train.batch_tokens=524288 --train.steps=2000 --machine 8xsmall.machine --parallel.tensor=8 --train.micro_batch=1 --train.recompute=full
check "a host that does not hold them" grep -qE '^warning +the host has [0-9.]+ GiB too few for them: training waits while a checkpoint is written$' out
exit $failed
