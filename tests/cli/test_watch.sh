#!/usr/bin/env bash
# A second process judges the checkpoints of a run while it trains; its records are what an evaluation of each checkpoint gives, and the run
# does not notice.
. "$(dirname "$0")/../shell.sh"
make_corpus
for i in 1 2 3 4; do echo "{\"text\": \"the land and the sea $i and the people\"}"; done >text.jsonl
keys=(--train.steps=120 --ckpt.every=20 --ckpt.keep=9 --log.sample_tokens=1)
run 0 train r.yaml "${keys[@]}" --run.dir=alone

"$ingot" train r.yaml "${keys[@]}" --run.dir=r >/dev/null 2>train.err &
trainer=$!
"$ingot" eval r --watch --tasks perplexity=text.jsonl,lambada=text.jsonl --machine.threads=1 >watch.out 2>err &
watcher=$!
wait $trainer || fail "the run fails beside a watcher: $(cat train.err)"
wait $watcher || fail "the watcher fails"
same_run "a watcher changes nothing" alone r
grep -q '^step=120 task=perplexity items=4 ' watch.out || fail "the last checkpoint is not judged: $(cat watch.out)"
[ "$(grep -c '"kind":"eval"' r/evals.jsonl)" -eq 12 ] || fail "not two records for each of six checkpoints: $(cat r/evals.jsonl)"
for step in 20 60 120; do
    run 0 eval "r/ckpt/step-$(printf %08d $step)" --tasks perplexity=text.jsonl
    grep -qxF "step=$step $(cat out)" watch.out || fail "step $step: $(cat out) is not in $(cat watch.out)"
done
grep -q '<h2>Benchmarks' r/report.html || fail "no benchmarks in the report"
grep -q '<th class=n>step 120' r/report.html || fail "no column of the last checkpoint"
grep -q '<tr><td>lambada<td>acc<td class=n>[01]' r/report.html || fail "no row of an accuracy"

# Again: nothing is judged twice. A new task is.
run 0 eval r --watch --tasks perplexity=text.jsonl
[ -s out ] && fail "judged twice: $(cat out)"
echo '{"goal": "g", "sol1": "a", "sol2": "b", "label": 1}' >piqa.jsonl
run 0 eval r --watch --every 2 --tasks piqa=piqa.jsonl
[ "$(grep -c '^step=[0-9]*0 task=piqa' out)" -eq 3 ] || fail "--every 2 of six checkpoints: $(cat out)"
grep -q '^step=40 ' out || fail "--every 2 begins elsewhere: $(cat out)"

run 2 eval r --watch
says "--watch needs --tasks"
run 2 eval r --watch --json --tasks perplexity=text.jsonl
says "without --json"
run 2 eval r --every 2 --tasks perplexity=text.jsonl
says "--every goes with --watch"
exit $failed
