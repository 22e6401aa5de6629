#!/usr/bin/env bash
# A stop inside a step or an evaluation that lasts: it is dropped, on one rank and on two, and nothing of it is in the checkpoint.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >slow.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 64, ffn_size: 128, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin}
train: {micro_batch: 1, batch_tokens: 192Ki, steps: 2, precision: fp32, gradient_groups: 2}
optim: {lr: 3e-3, warmup_steps: 1}
machine: {threads: 1}
YAML

# Of fewer tokens where a step of 192Ki takes more than three seconds of CPU, as with sanitizers.
TIMEFORMAT=%U
{ time run 0 train slow.yaml --run.dir=runs/pace --train.batch_tokens=8Ki; } 2>pace # two steps
eighths=$(awk 'END { n = int(1 / ($1 / 2) + 1); print (n < 8 ? n : 8) }' pace)
check "a pace" [ "${eighths:-0}" -ge 1 ]
sed -i "s/192Ki/$((24 * eighths))Ki/" slow.yaml

# cut RUN WAY...: one step, then SIGINT inside the second, which lasts because its processes are held up
cut() {
    local run=$1 pids n
    shift
    "$ingot" "$@" train slow.yaml --run.dir="$run" >out 2>err &
    local pid=$!
    wait_for_step "$run" 1 $pid || fail "$run: no step 1"
    pids=$pid
    [ $# -eq 0 ] || pids=$(cat "/proc/$pid/task/$pid/children")
    for n in 1 2 3 4; do # in turns: ranks that are silent for COMM_SILENCE_S are taken for dead
        # shellcheck disable=SC2086 # two ranks
        kill -STOP $pids
        sleep 2.5
        # shellcheck disable=SC2086
        kill -CONT $pids
        sleep 0.02
    done
    kill -INT $pid
    wait $pid
    local code=$?
    [ $code -eq 75 ] || fail "$run: exit code $code, not 75"
    check "$run: an answer" grep -q '^SIGINT: ' err
    check "$run: step 2 was dropped" grep -qE 'SIGINT: saved at step 1 of 2; step 2 was dropped after [0-9]+ of [0-9]+ micro-batches; ' err "$run/log.txt"
    check "$run: the checkpoint of step 1 alone" [ -d "$run/ckpt/step-00000001" -a ! -e "$run/ckpt/step-00000002" ]
}
run 0 train slow.yaml --run.dir=runs/whole
cut runs/one
run 0 train slow.yaml --run.dir=runs/one --resume
same_run "one rank" runs/whole runs/one
cut runs/two launch -n 2 --
run 0 launch -n 2 -- train slow.yaml --run.dir=runs/two --resume
same_run "two ranks" runs/whole runs/two

# train.max_minutes, too, and before the first step is over; what to do was said before it.
run 75 train r.yaml --run.dir=runs/minutes --train.batch_tokens=16Mi --train.max_minutes=0.02
check "the time of a step" grep -qE '^time      about .* per step, .* for 40 steps and evaluations: predicted$' err
check "the keys that change it" grep -qF 'warning: a step takes minutes: lower train.batch_tokens (16777216) or the model' err
check "the time is over" grep -qE '^train.max_minutes: saved at step 0 of 40; step 1 was dropped after [0-9]+ of 262144 micro-batches; ' err

# An evaluation of a minute. It is dropped, and made up for at the start of the next process.
for ((i = 0; i < 50 * eighths; i++)); do cat corpus.txt; done >long.txt
run 0 data build long.txt --tokenizer tok -o data/long
evaluation() { # evaluation RUN EVERY WAY...
    local run=$1 every=$2
    shift 2
    "$ingot" "$@" train r.yaml --run.dir="$run" --data.val='data/long_train_*.bin' --train.batch_tokens=256 --train.steps=20 --eval.every="$every" >out 2>err &
    local pid=$!
    wait_for_step "$run" 20 $pid || wait_for_step "$run" 10 $pid || fail "$run: no step"
    kill -INT $pid
    wait $pid
    local code=$?
    [ $code -eq 75 ] || fail "$run: exit code $code, not 75"
}
evaluation runs/last 0
says_late='saved at step 20 of 20; its evaluation is still to be made; '
check "the last evaluation was dropped" grep -qF "$says_late" err
run 0 train r.yaml --run.dir=runs/last --resume --train.batch_tokens=256 --train.steps=20 --eval.every=0
check "and made later" grep -q '"step":20,.*"val_loss"' runs/last/metrics.jsonl
evaluation runs/ranks 0 launch -n 2 --
check "two ranks dropped it, too" grep -qF "$says_late" err

# An evaluation in the middle that is missing is made before the next step: the run is the one that was never stopped.
run 0 train r.yaml --run.dir=runs/full
run 0 train r.yaml --run.dir=runs/gap --data.val= --ckpt.every=10 --ckpt.keep=4
rm -r runs/gap/ckpt/step-0000004* runs/gap/ckpt/step-0000003* runs/gap/ckpt/step-00000020
check "a checkpoint is left to resume from" [ -d runs/gap/ckpt/step-00000010 ]
run 0 train r.yaml --run.dir=runs/gap --resume --ckpt.keep=4
same_run "an evaluation that was missing" runs/full runs/gap
exit $failed
