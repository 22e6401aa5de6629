#!/usr/bin/env bash
# ingot plan --table and --capacity: rows, what they are computed from, and what is refused.
. "$(dirname "$0")/../shell.sh"
small=(plan --model.preset=gpt2-124m --train.steps=1 --train.sequence_length=1024 --train.batch_tokens=524288)
value() { # value KEY MODEL-OR-NUMBER: of the row whose first key has that value, in out
    awk -v key="\"$1\":" -v row="$2" '$1 == "{" { hit = 0 } index($0, row) { hit = 1 } hit && $1 == key { gsub(/[",]/, ""); print $2; exit }' out
}

run 0 "${small[@]}" --machine 8xh100 --table batch --tokens 100B --json
check "eight sizes" [ "$(grep -c '"model":' out)" -eq 8 ]
# Step Law: 0.58 D^0.571, whatever the model
check "the law's batch" awk "BEGIN { b = 0.58 * exp(0.571 * log(1e11)); r = $(value law_batch_tokens '"7b"') / b; exit !(r > 0.999999 && r < 1.000001) }"
check "a batch that eight devices share" [ $(($(value batch_tokens '"7b"') % (8 * 1024))) -eq 0 ]

run 0 "${small[@]}" --machine h100 --table memory --json
check "five precisions of each size" [ "$(grep -c '"precision":' out)" -eq 40 ]
table=$(value full_bytes '"gpt2-124m"')
run 0 "${small[@]}" --machine h100 --train.precision=fp32 --train.micro_batch=1 --train.batch_tokens=2048 --train.recompute=full --json
check "the plan's bytes" awk "BEGIN { exit !($table == $(grep -o '"memory_bytes_max": [0-9.]*' out | head -n 1 | cut -d' ' -f2)) }"
run 0 "${small[@]}" --machine a100 --table memory
check "no row of a precision that the machine lacks" eval '! grep -q " fp8 " out'

run 0 "${small[@]}" --machine h100 --table speed --json
check "8 to 16384 devices" [ "$(grep -c '"devices": [0-9]*,$' out)" -eq 13 ]
check "a step of 512 sequences cannot occupy 8192" grep -q 'cannot occupy 8192 devices' out
check "the first row is the measure" awk '/"scaling"/ { exit !($2 + 0 == 1) }' out
run 0 "${small[@]}" --machine 8xh100 --table power --compare h100,b200 --json
check "a row of each" [ "$(grep -c '"watts":' out)" -eq 2 ]
check "joules of a token" awk "BEGIN { r = $(value joules_per_token '"machine": "b200"') * $(value tokens_per_s '"machine": "b200"') / (8 * 1788); exit !(r > 0.999999 && r < 1.000001) }"
check "device and system apart" awk "BEGIN { d = $(value device_watts '"machine": "b200"'); s = $(value system_watts '"machine": "b200"'); exit !(d == 1000 && s == 1788) }"
check "the energy of each" awk "BEGIN { r = $(value device_mwh '"machine": "b200"') / $(value system_mwh '"machine": "b200"') / (1000 / 1788); exit !(r > 0.999999 && r < 1.000001) }"
run 0 "${small[@]}" --machine 8xl40s --table power --compare l40s
check "a device whose system is not known" eval 'grep -qE "^l40s +8 +[a-z]+ +350 " out && ! grep -q "system W" out'
run 0 "${small[@]}" --machine 8xh100 --table power
check "aligned, no blanks at the end" eval '! grep -q " $" out'
check "every kind whose power is known" [ "$(grep -cE '^[a-z0-9-]+ +8 +yes ' out)" -eq 14 ]

run 0 "${small[@]}" --machine 2xh100 --capacity
check "what fits" grep -qE '^7b +6.74B +yes .* dp ' out
check "what does not" grep -qE '^70b +69.0B +no .* dp ' out
check "the largest" grep -qE '^the largest: [0-9]+ layers of [0-9]+ .* yes ' out
run 5 "${small[@]}" --machine 2xcpu --machine.memory_gib=0.01 --capacity
says "no preset fits 2 x cpu"

run 2 "${small[@]}" --machine 8xh100 --table heat
says "the tables are batch, memory, speed, power"
run 2 "${small[@]}" --table speed
says "plan: --table needs a machine"
run 2 "${small[@]}" --machine 8xh100 --table speed --capacity
says "are one question each"
run 2 "${small[@]}" --machine 8xh100 --table speed --compare h100,b200
says "plan: --compare goes with --table power"
exit $failed
