#!/usr/bin/env bash
# A run that diverges: its checkpoints say so, the last sound one stays, and one can go back to it.
. "$(dirname "$0")/../shell.sh"
make_corpus
huge="--optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0"
kept() { (cd "$1/ckpt" && echo step-*); } # kept RUN_DIR

run 0 train r.yaml --run.dir=runs/r --train.steps=24 --ckpt.keep=1 --eval.every=0
check "one checkpoint is kept" [ "$(kept runs/r)" = step-00000024 ]
cp -r runs/r runs/good
# shellcheck disable=SC2086 # several words
run 6 train r.yaml --run.dir=runs/r --resume --train.steps=60 --ckpt.keep=1 --ckpt.every=2 --eval.every=0 $huge
says "not finite"
says "step 24 is the last sound checkpoint"
says "\`ingot train runs/r --resume=24 --optim.lr=...\`"
check "the log names it before the end" grep -q 'that of step 24 is, and stays' err
set -- runs/r/ckpt/step-* none none
check "the newest and the newest sound one are kept: $(kept runs/r)" [ $# -eq 4 ]
check "the older one is of before" [ "$1" = runs/r/ckpt/step-00000024 ]
run 0 ckpt list runs/r
check "the list tells them apart" [ "$(grep -c 'not sound: the loss is' out)" -eq 1 ]
run 0 ckpt list runs/r --json
check "so does its JSON" grep -q '"learned": false' out

# --- going back ---
run 4 train r.yaml --run.dir=runs/r --resume=23
says "has no checkpoint of step 23; it has "
run 2 train r.yaml --run.dir=runs/r --resume=soon
says "whole number"
late=$2
# A process that is killed before it has saved leaves the decision.
run 0 train r.yaml --run.dir=runs/r --resume=24 --train.steps=24 --eval.every=0
check "the later one is still there" [ -e "$late" ]
run 0 eval runs/r
check "but nobody sees it" grep -q '^step=24 ' out
run 0 train r.yaml --run.dir=runs/r --resume --train.steps=40 --ckpt.keep=1 --ckpt.every=8 --eval.every=0
check "the later one went with the first save" [ ! -e "$late" ]
run 0 train r.yaml --run.dir=runs/good --resume --train.steps=40 --ckpt.keep=1 --ckpt.every=8 --eval.every=0
same_run "a run that has gone back is the one that never went wrong" runs/r runs/good

# --- from the start: there is nothing to go back to ---
# shellcheck disable=SC2086
run 6 train r.yaml --run.dir=runs/none --ckpt.every=0 --eval.every=0 $huge
says "there is no sound checkpoint to go back to"

# --- a launcher's restart after it goes on from the newest sound checkpoint ---
cp -r runs/good runs/l
# shellcheck disable=SC2086
run 6 launch -n 1 --restart 2 -- train r.yaml --run.dir=runs/l --resume --train.steps=80 --ckpt.every=2 --eval.every=0 $huge
check "twice from step 40" [ "$(grep -c 'weights   of step 40 from' runs/l/log.txt)" -eq 2 ]

# --- a launcher's restart goes on from the newest checkpoint, not back again ---
"$ingot" launch -n 1 --restart 1 -- train r.yaml --run.dir=runs/good --resume=40 --train.steps=600 --ckpt.every=2 --eval.every=0 >out 2>err &
job=$!
wait_for_step runs/good 60 $job || fail "no step 60"
kill -9 "$(sed -E 's/process ([0-9]+) on .*/\1/' runs/good/lock)"
wait $job || fail "the job ends with $?"
check "it was restarted" grep -q 'restart 1 of 1' err
check "it went back once" [ "$(grep -c 'weights   of step 40 from' runs/good/log.txt)" -eq 1 ]
exit $failed
