#!/usr/bin/env bash
# Every run leaves what was predicted of it and what came out in forecast.jsonl, also after a resume; a plan for the same machine says how far off those were.
. "$(dirname "$0")/../shell.sh"
make_corpus
keys=(--eval.every=0 --train.steps=8)
run 0 train r.yaml --run.dir=runs/a "${keys[@]}"
file=runs/a/forecast.jsonl
check "a schema and a run" [ "$(grep -c '"kind":"run"' $file)" -eq 1 -a "$(head -n 1 $file | grep -c '"format":"ingot forecast","version":1')" -eq 1 ]
value() { grep -oE "\"$1\":[0-9.e+-]+" "$2" | tail -n 1 | cut -d: -f2; } # value KEY FILE
check "its memory is what was planned" [ "$(value predicted_bytes $file)" = "$(value measured_bytes $file)" ]
fact() { grep -oE "\"name\":\"$1\",\"value\":[0-9.e+-]+" runs/a/metrics.jsonl | tail -n 1 | cut -d: -f3; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && a / b > 0.999 && a / b < 1.001) }'; }
check "the measured step is the report's" near "$(value measured_step_s $file)" "$(fact measured_step_s)"
check "the predicted step is the report's" near "$(value predicted_step_s $file)" "$(fact predicted_step_s)"
run 0 train runs/a --resume --train.steps=16
check "a resumed run adds a line" [ "$(grep -c '"kind":"run"' $file)" -eq 2 ]
check "and one schema" [ "$(grep -c '"kind":"schema"' $file)" -eq 1 ]

run 0 plan r.yaml
check "the runs directory is found" grep -qE '^past +2 runs on cpu .* in the median .*memory was as planned in 2$' out
# Ratios of known runs: their range, their median, and what they make of this step.
mkdir -p known/a known/b
line() { printf '{"kind":"run","machine":"%s","rates":"%s","predicted_step_s":%s,"measured_step_s":%s,"predicted_bytes":10,"measured_bytes":%s}\n' "$@"; }
{
    echo '{"kind":"schema","format":"ingot forecast","version":1}'
    line h200 row 1 0.9 10
    line h200 row 2 2.2 11
    line h100 row 1 7 10
} >known/a/forecast.jsonl
line h200 row 1 1.2 10 >known/b/forecast.jsonl
printf '{"kind":"run","machine":"h200","rates":"row","predicted_step_s":1,"meas' >>known/b/forecast.jsonl # torn by a kill
big=(--model.preset=llama-1b --train.batch_tokens=1Mi --train.steps=1)
run 0 plan "${big[@]}" --machine 8xh200 --past known
check "three runs on an h200" grep -qE '^past +3 runs on h200 took 0\.90 to 1\.20 of the predicted step, in the median 1\.10: here .*; memory was as planned in 2$' out
run 0 plan "${big[@]}" --machine 8xh200 --past known --json
step=$(grep -o '"step_seconds": [0-9.e-]*' out | head -n 1 | cut -d' ' -f2)
low=$(grep -o '"step_seconds_low": [0-9.e-]*' out | cut -d' ' -f2)
check "the range is of this step" near "$(awk "BEGIN { print $step * 0.9 }")" "$low"
run 0 plan "${big[@]}" --machine 8xh200 --parallel.zero=1 --past known --json
check "a given mesh has it, too" grep -q '"step_ratio_median": 1.1' out
run 0 plan "${big[@]}" --machine 8xh200 --past known/a/forecast.jsonl
check "one file" grep -qE '^past +2 runs on h200 took 0\.90 to 1\.10' out
run 0 plan "${big[@]}" --machine 8xb200 --past known
check "none on this machine" grep -qE '^past +4 runs in known, none on b200$' out
run 0 plan "${big[@]}" --machine 8xh200
check "without the option, nothing of other rates" eval '! grep -q ^past out'
run 2 plan "${big[@]}" --machine 8xh200 --past nowhere
says "plan: --past nowhere: there is no forecast.jsonl and no directory of runs"
exit $failed
