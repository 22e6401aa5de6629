#!/usr/bin/env bash
# ingot plan about whole runs: --simulate and its options; the seed decides; a timeline opens as a Chrome trace; one line for each wrong value.
. "$(dirname "$0")/../shell.sh"
seventy=(plan --model.preset=70b --train.batch_tokens=4194304 --train.sequence_length=4096)
mesh=(--parallel.tensor=4 --parallel.pipeline=8 --parallel.zero=1 --train.micro_batch=1)

run 0 "${seventy[@]}" --machine 64xB200 --simulate "${mesh[@]}" --tokens 300B --mtbf 5000 --timeline step.json
check "goodput with an interval" grep -qE '^goodput +9[0-9.]+ % of the time trains \(5 %: 9[0-9.]+, 95 %: ' out
check "as long as asked" grep -q '300.0*B tokens' out
check "a timeline" grep -q '"name":"pipeline ' step.json
cp out first
run 0 "${seventy[@]}" --machine 64xB200 --simulate "${mesh[@]}" --tokens 300B --mtbf 5000 --timeline step.json
check "the same again" cmp out first
run 0 "${seventy[@]}" --machine 64xB200 --simulate "${mesh[@]}" --tokens 300B --mtbf 5000 --seed 2
check "another seed, other failures" [ "$(grep ^goodput out)" != "$(grep ^goodput first)" ]
run 0 "${seventy[@]}" --machine 64xB200 --simulate "${mesh[@]}" --tokens 300B --jitter 0 --mtbf 0 --json
check "nothing fails, nothing waits" awk '/"planned_step_seconds"/ { p = $2 } /"p95"/ && !n++ { s = $2 } END { exit !(p + 0 > 0 && (s - p) ^ 2 < 1e-16) }' out
check "all of it trains" grep -q '"goodput_closed_form": 1.0' out
run 0 plan --model.preset=nano --model.vocab_size=512 --train.batch_tokens=8192 --machine cpu --tokens 1M --simulate
check "a run of minutes: one checkpoint, at its end" grep -qE '^checkpoint +one at the end is enough: ' out
check "no list of failures that do not happen" bash -c "! grep -q 'GPU or NVLink' out"
run 5 "${seventy[@]}" --machine 8xH100 --simulate
says "no mesh fits"
run 2 "${seventy[@]}" --simulate
says "--simulate needs a machine"
run 2 "${seventy[@]}" --machine 64xB200 --timeline x.json
says "--timeline goes with --simulate"
run 2 "${seventy[@]}" --machine 64xB200 --simulate --jitter -1
says "--jitter -1: from 0 to 100 percent"
run 2 "${seventy[@]}" --machine 64xB200 --simulate --jitter nan
says "--jitter"
run 2 "${seventy[@]}" --machine 64xB200 --simulate --stragglers 5
says "--stragglers 5: percent of the devices"
run 2 "${seventy[@]}" --machine 64xB200 --simulate --stragglers 5:0.9
says "such as 0.1:1.15"
run 2 "${seventy[@]}" --machine 64xB200 --simulate --tokens many
says "--tokens many: a number of tokens"
run 2 "${seventy[@]}" --machine 64xB200 --simulate "${mesh[@]}" --mtbf 0.5 --restart 1000
says "of the time to train"
run 74 "${seventy[@]}" --machine 64xB200 --simulate "${mesh[@]}" --timeline none/x.json
says "none/x.json"
exit $failed
