#!/usr/bin/env bash
# ingot train --lr-find: the rate rises by one factor per step, the test ends where the loss diverges, and nothing stays that a run would take up.
. "$(dirname "$0")/../shell.sh"
make_corpus
keys=(--run.dir=found --train.precision=fp32)
run 0 train r.yaml "${keys[@]}" --lr-find=1e-5:30:60
for word in loss diverged lowest steepest suggested page; do check "it prints $word" grep -q "^$word" out; done
check "a page" grep -q '<svg' found/lr-find/lr-find.html
check "a suggestion that a run takes" grep -qE -- '--optim.lr=[0-9.e-]+:' out
lines=$(wc -l <found/lr-find/lr-find.jsonl)
check "it ends before its last step" [ "$lines" -lt 60 ]
check "rates rise by one factor" awk -F'[ ,]' '
    NR > 1 { f = $2 / last; if (NR == 2) first = f; if (f / first > 1 + 1e-6 || f / first < 1 - 1e-6) bad = 1 } { last = $2 } END { exit bad || NR < 10 }' found/lr-find/lr-find.jsonl
check "the first rate" grep -q '^{"lr": 1e-05,' found/lr-find/lr-find.jsonl
# The tenth of the rate with the lowest average, from the file.
check "the suggestion is what the curve says" awk -F'[ ,]' -v said="$(sed -n 's/.*--optim.lr=\([0-9.e-]*\):.*/\1/p' out)" '
    !low || $8 < low { low = $8; lr = $2 } END { q = said / (lr / 10); exit !(q > 0.94 && q < 1.06) }' found/lr-find/lr-find.jsonl
check "nothing of a run" [ "$(ls found)" = lr-find ]
run 0 runs .
check "no run is listed" [ "$(grep -c found out)" -eq 0 ]
# The run itself begins there as in an empty directory, with the weights of a fresh one: the first losses are equal.
run 0 train r.yaml "${keys[@]}" --train.steps=3 --optim.warmup_steps=1
run 0 train r.yaml --run.dir=plain --train.precision=fp32 --train.steps=3 --optim.warmup_steps=1
same_state "the run beside a test" plain found
first=$(sed -n 's/.*"kind":"step","step":1,.*"loss":\([-+.eE0-9]*\).*/\1/p' found/metrics.jsonl)
check "the first loss is the run's" awk -F'[ ,]' -v want="$first" 'NR == 1 { d = $5 - want; exit !(d < 1e-5 && d > -1e-5) }' found/lr-find/lr-find.jsonl
# From a checkpoint, on two ranks: the state stays as it was.
cp -r found before
run 0 launch -n 2 -- train found --resume --lr-find=1e-4:1:12
check "it says so" grep -q '^suggested\|^lowest' out
same_state "after a test of its checkpoint" before found
check "its records" cmp before/metrics.jsonl found/metrics.jsonl
run 0 train r.yaml "${keys[@]}" --resume --lr-find=1e-6:1e-5:10 --json
check "JSON" grep -q '"diverged": false' out
check "its curve" [ "$(tr -d '\n ' <out | grep -o '\],\[' | wc -l)" -eq 9 ]
for bad in 1:1e-3 x:1 1e-3 1e-3:1:5 1e-3:1000 0:1; do
    run 2 train r.yaml --run.dir=bad --lr-find=$bad
    says "--lr-find=$bad"
done
run 2 train r.yaml --run.dir=nowhere --resume --lr-find
says "nowhere has no checkpoint"
run 2 train r.yaml --run.dir=bad --lr-find --trace
says "--lr-find leaves no run that --trace could be recorded in"
check "nothing is made by mistake" [ ! -e bad ]
exit $failed
