#!/usr/bin/env bash
# ckpt.async of several ranks: they copy their parts while training goes on, rank 0 writes the files, and these are the ones of a save that
# training waits for. Each copy is made late: an optimizer that does not wait for it (save_wait_before_update) changes what is saved.
. "$(dirname "$0")/../shell.sh"
make_corpus
export INGOT_SAVE_DELAY_MS=40
train() { # train RANKS RUN KEYS...
    local ranks=$1 dir=$2
    shift 2
    run 0 launch -n "$ranks" --no-doctor -- train r.yaml --run.dir="$dir" --train.steps=9 --ckpt.keep=100 --train.batch_tokens=256 --model.hidden_size=128 \
        --machine.threads=1 --eval.every=0 "$@"
}
same_checkpoints() { # same_checkpoints NAME A B
    local step
    for step in "$2"/ckpt/step-*; do
        run 0 ckpt diff "$step" "$3/ckpt/${step##*/}"
        grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "$1: ${step##*/} differs: $(tail -n 1 out)"
    done
    check "$1: three checkpoints" [ "$(find "$3/ckpt" -name 'step-*' | wc -l)" -eq 3 ]
    all_sound "$1" "$3"
}
stall() { grep -o '"ckpt_stall_ms":[0-9.]*' "$1/metrics.jsonl" | head -n 1 | cut -d: -f2; }
compare() { # compare RANKS KEYS...
    local ranks=$1 name="$*"
    shift
    train "$ranks" waits "$@" --ckpt.async=false
    train "$ranks" goes_on "$@"
    same_run "$name" waits goes_on
    same_checkpoints "$name" waits goes_on
    check "$name: nothing is said" sh -c '! grep -q ckpt.async err'
    check "$name: the trainer waited for the late copy" awk -v ms="$(stall goes_on)" 'BEGIN { exit !(ms >= 40) }'
    rm -rf goes_on/ckpt/step-00000009
    train "$ranks" goes_on "$@" --resume
    same_state "$name, resumed" waits goes_on
    rm -rf waits goes_on
}
compare 2 --train.gradient_groups=2 # replicas: the second one has nothing to save
compare 2 --parallel.zero=1 --train.precision=bf16 --optim.state=int8
compare 4 --parallel.zero=3 --parallel.shard=2 --train.gradient_groups=4
compare 4 --parallel.tensor=2 --parallel.pipeline=2

# --- the error of the writer is the job's ---
mkdir full && : >full/ckpt
run 74 launch -n 2 --no-doctor -- train r.yaml --run.dir=full --train.steps=9 --parallel.zero=1
grep -q '^error: .*full/ckpt' err || fail "the error does not name full/ckpt"

# --- a rank that is killed while others copy: the job ends at once, and goes on from a sound checkpoint ---
train 2 whole --parallel.zero=1
INGOT_SAVE_DELAY_MS=3000 "$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir=killed --train.steps=9 --ckpt.keep=100 --train.batch_tokens=256 --model.hidden_size=128 \
    --machine.threads=1 --eval.every=0 --parallel.zero=1 >out 2>err &
launcher=$!
wait_for_step killed 3 $launcher
sleep 0.3
kill -9 "$(pgrep -P $launcher | tail -n 1)"
begin=$SECONDS
wait $launcher
code=$?
check "exit code 10 of a killed rank, not $code" [ $code -eq 10 ]
check "at once: $((SECONDS - begin)) s" [ $((SECONDS - begin)) -le 60 ]
all_sound "killed" killed
train 2 killed --parallel.zero=1 --resume
same_run "killed" whole killed
exit $failed
