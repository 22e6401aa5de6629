#!/usr/bin/env bash
# What a person sees on a terminal of 80 columns, and what a pipe and the log file get.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/../shell.sh"
command -v script >/dev/null || exit 77
make_corpus
export TERM=xterm NO_COLOR=1 LC_ALL=C
script -qec "stty cols 80 && '$ingot' train r.yaml --run.dir=runs/t --log.sample_prompt='the king' --log.sample_tokens=4 >out 2>/dev/tty" /dev/null </dev/null >screen 2>err || fail "exit code $?"
tr '\r' '\n' <screen | sed 's/\x1b\[K//g' >lines

check "every second of 40 steps leaves a line" [ "$(tr -d '\r' <screen | grep -cE '(^|K)step [ 0-9]{2}/40  loss [0-9.]+  [0-9.]+[kM]? tok/s  lr ')" -eq 21 ]
check "every evaluation leaves a line" [ "$(grep -cE '^step [ 0-9]{2}/40  val loss [0-9.]+  [0-9.]+ bits per byte  accuracy [0-9.]+ %$' lines)" -eq 4 ]
check "a bar" grep -qE '^step [0-9]+/40 =*-* +[0-9]+%' lines
check "no line is wider than the terminal" awk 'length > 79 && !/^(sample|data|compute|step  )/ { bad = 1; print } END { exit bad }' lines
check "the time to come" grep -qE '^time      about .* per step, .* for 40 steps and evaluations: predicted$' lines
for word in 'step=' 'planned ' 'forecast ' ' eta='; do
    check "'$word' is not on the terminal" sh -c '! grep -qF -- "$1" lines' sh "$word"
done
check "the log file has the steps" [ "$(grep -c 'step=[0-9]*/40 loss=' runs/t/log.txt)" -eq 40 ]
check "and the numbers for authors" grep -qE 'forecast  step .* predicted, .* measured' runs/t/log.txt
check "the result is on standard output" grep -q '^step=40 loss=' out

# Other verbs that last: a search of meshes, made-up samples. What they print comes whole.
moves() { # moves WORD ARGS...: WORD is redrawn while it works
    local word=$1
    shift
    script -qec "stty cols 80 && '$ingot' $* >/dev/tty 2>/dev/tty" /dev/null </dev/null >screen 2>err || fail "$1: exit code $?"
    tr '\r' '\n' <screen | sed 's/\x1b\[K//g' >lines
    check "$1: '$word' is redrawn" grep -qE "^$word +[0-9]+s" lines
}
moves planning plan "$root/examples/llama-1b.yaml" --machine 1024xGB200
check "the plan is whole" sh -c 'grep -q "^machine " lines && grep -q "^start " lines'
moves 'writing samples' data synth mqar -o data/many --samples 30000 --val-samples 0
check "synth says what it wrote" grep -q '^data/many_train_000000.bin: 30000 samples' lines

# Between records (log.every) the bar moves, too. Some 3 s of steps: the bar is drawn twice a second.
script -qec "stty cols 80 && '$ingot' train r.yaml --run.dir=runs/e --log.every=400 --train.steps=400 --eval.every=0 --ckpt.every=0 --train.batch_tokens=512 >out 2>/dev/tty" /dev/null \
    </dev/null >screen 2>err || fail "exit code $?"
bars=$(tr '\r' '\n' <screen | grep -cE '^step [0-9]+/400 [=-]') moved=$(tr '\r' '\n' <screen | grep -cE '^step ([1-9][0-9]?|[123][0-9][0-9])/400 [=-]')
check "a bar moves between records: $moved of $bars" [ "$bars" -le 2 -o "$moved" -gt 0 ]

# In a pipe: a line for each step, nothing that is redrawn.
run 0 train r.yaml --run.dir=runs/p
check "a line for each step" [ "$(grep -c '^step=[0-9]*/40 loss=' err)" -eq 40 ]
check "nothing is redrawn" sh -c '! grep -q "$(printf "\r")" err'
check "no numbers for authors" sh -c '! grep -qE "planned|forecast" err'
exit $failed
