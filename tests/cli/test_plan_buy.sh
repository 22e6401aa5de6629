#!/usr/bin/env bash
# ingot plan for those who buy or book: --deadline, --compare, --price: how many devices, how long, what it costs; one line for what is wrong.
. "$(dirname "$0")/../shell.sh"
small=(plan --model.preset=gpt2-124m --train.batch_tokens=524288 --train.sequence_length=1024)
# value FILTER: of the JSON in out, by python's dictionaries; "true" when it holds
holds() { # holds WORDS EXPRESSION: of k, the first kind, and r, the whole
    check "$1" python3 -c "
import json
r = json.load(open('out')); k = r['kinds'][0]; b = k.get('best'); t = k['tried']
raise SystemExit(not ($2))"
}
# hosts of four in a domain of 72: experts on more than four GPUs are fastest, and no command starts them
mixture=(plan --model.preset=small --model.layers=gqa/moe --model.moe_experts=64 --model.moe_top_k=4 --model.moe_size=2048 --train.batch_tokens=524288
    --train.sequence_length=2048 --machine gb200 --tokens 300B --deadline 10h --price 2.5)
run 0 "${mixture[@]}" --predicted --json
holds "fewer are not in time" "len(t) > 1 and all(x['seconds'] > 10 * 3600 for x in t if x['devices'] < b['devices'])"
holds "the answer may have a mesh that no command starts" "b['devices'] == 32 and not b['starts'] and 'expert 16' in b['predicted_only']"
run 0 "${mixture[@]}" --json
holds "fewer are not in time, or no command starts them" "len(t) > 1 and b['starts'] and b['seconds'] <= 10 * 3600 and all(x['seconds'] > 10 * 3600 or not x['starts'] for x in t if x['devices'] < b['devices'])"
run 0 "${mixture[@]}"
check "by default a mesh that starts" grep -qE '^  start +srun --mpi=pmix ' out
check "a smaller number has its mesh that starts, and is late" grep -qE '^ +32 .* \(ep 4\) [^;]*$' out
run 0 "${mixture[@]}" --predicted
check "rows that no command starts are marked" grep -qE '^\* +32 .* \(ep 16\) .*; predicted only$' out
check "experts on several hosts have no command" grep -q '^  start  *predicted only: the GPUs of parallel.expert must be in one host so far' out
run 0 "${small[@]}" --machine h100 --tokens 300B --deadline 8h --price 2.5 --json
holds "in time" "b['seconds'] <= 8 * 3600"
holds "fewer are not" "len(t) > 1 and all(x['seconds'] > 8 * 3600 for x in t if x['devices'] < b['devices'])"
holds "money is hours times price" "abs(b['money'] - 2.5 * b['device_hours']) < 1e-6 * b['money']"
holds "hours are devices times time" "abs(b['device_hours'] * 3600 - b['devices'] * b['seconds']) < 1"
holds "energy is 1275 W of each" "abs(b['joules'] - 1275 * 3600 * b['device_hours']) < 1e-6 * b['joules']"
holds "the mesh has all devices" "b['mesh']['dp'] * b['mesh']['tp'] * b['mesh']['pp'] == b['devices']"
holds "failures: one in 50677 hours" "0.9 < b['failures'] / (b['device_hours'] / 50677) <= 1.001"
holds "masters and two moments are saved" "abs(b['checkpoint_bytes'] / (12 * 124439808) - 1) < 1e-3"
run 0 "${small[@]}" --machine h100 --tokens 300B --deadline 8h --price 2.5
check "the answer" grep -qE '^[0-9]+ x h100 in [0-9]+ node' out
check "each line of it" [ "$(grep -cE '^  (time|memory|cost|failures|checkpoint|storage|start) ' out)" -eq 7 ]
check "stages on several hosts have a command" grep -qE '^  start +srun --mpi=pmix --nodes=[0-9]+ .* --parallel.pipeline=[2-9]' out
run 0 "${small[@]}" --machine h100 --tokens 300B --deadline 14h
check "two nodes have one" grep -q '^  start  *srun --mpi=pmix --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 ingot train ' out
start=$(sed -n 's/^  start .*ingot \(launch.*-- \)\?train //p' out)
# shellcheck disable=SC2086 # its keys
run 0 plan $start --machine "$(sed -nE 's/^([0-9]+) x (h100) in .*/\1x\2/p' out)"
check "the command's mesh fits" grep -q '^start' out
run 0 "${small[@]}" --machine h100 --tokens 300B --json
holds "time against money" "len(t) > 3 and min(x['device_hours'] for x in t) == b['device_hours']"
run 0 "${small[@]}" --compare h100,8xb200,a100 --price h100=2,a100=1 --train.tokens=10B --deadline 30d
check "a row of each kind" [ "$(grep -cE '^(h100|b200|a100) +[0-9]+ ' out)" -eq 3 ]
check "one without a price" grep -q 'price X says' out
run 0 plan --model.preset=nano --model.vocab_size=512 --train.batch_tokens=8192 --machine 2xcpu --tokens 1M --price 0.1
check "a small run: hours and money that are not 0" grep -qE '^  cost +0\.0[0-9]+ device hours: 0\.00[0-9]+' out
check "its failures and checkpoints in words" grep -qE '^  failures +one in [0-9.]+[kM] such runs, ' out
check "none but the last" grep -qE '^  checkpoint +one at the end is enough: ' out
check "no exponents" bash -c "! grep -qE '[0-9]e[+-]' out"
run 0 plan --model.preset=70b --train.batch_tokens=16Mi --train.sequence_length=4096 --tokens 15T --machine 2560xh100
check "a large one: whole steps" grep -qE '^  checkpoint +every [0-9]+ min ([0-9.]+ s )?of work \([0-9]+ steps\): [0-9]+ of ' out
check "several hosts save beside training" grep -qE '^  checkpoint .* of [0-9.]+ GiB; training goes on meanwhile$' out
run 0 plan --model.preset=70b --train.batch_tokens=16Mi --train.sequence_length=4096 --tokens 15T --machine 2560xh100 --ckpt.async=false
check "saves that training waits for" grep -qE '^  checkpoint .*; training stands still for [0-9.]+ m?s each$' out
check "rates in units" grep -qE '; 320 GB/s are assumed; [0-9]+ GB/s would keep' out
run 2 "${small[@]}" --machine h100 --tokens 300B --deadline 1min
says "1 min of 300.0B tokens is not met; the nearest is 6144 x h100 in "
run 5 plan --model.preset=70b --train.batch_tokens=4194304 --train.steps=1 --machine 8xH100 --deadline 100d
says "8xH100: no mesh fits; the nearest: dp 1 x tp 8"
run 2 "${small[@]}" --deadline 8h
says "--deadline needs --machine KIND"
run 2 "${small[@]}" --machine h100 --tokens 300B --deadline 60
says "--deadline 60: a time with its unit"
run 2 "${small[@]}" --machine h100 --deadline 8h
says "the run has no length: give --tokens"
run 2 "${small[@]}" --machine h100 --tokens 1B --price free
says "--price free: money per device hour"
run 2 "${small[@]}" --machine h100 --compare h200 --tokens 1B
says "without --machine"
run 2 "${small[@]}" --machine h100 --tokens 99999999T
says "--tokens 99999999T: a number of tokens up to 1e18"
run 2 "${small[@]}" --machine h100 --tokens -5
says "--tokens -5: a number of tokens"
run 2 "${small[@]}" --machine "" --tokens 1B
says "plan: --machine names no machine"
for count in 0 8x0 99999999; do
    run 2 "${small[@]}" --machine ${count}xh100 --tokens 1B
    says "--machine ${count}xh100: a plan is for 1 to 1048576 devices: write COUNTxNAME"
done
run 2 "${small[@]}" --machine h100 --tokens 1B --deadline -3d
says "--deadline -3d: a time with its unit"
flat=(plan --model.preset=gpt2-124m --model.layer_count=1 --model.vocab_size=300 --train.batch_tokens=65536 --train.sequence_length=1024)
run 2 "${flat[@]}" --machine 3xh100 --tokens 1B
says "; 3 data-parallel ranks need train.batch_tokens of a multiple of 3072"
run 2 "${flat[@]}" --machine 8xh100 --why pp8
says "no more than the 1 layers"
run 0 "${flat[@]}" --compare h100,b200 --tokens 1 --price 2
check "next to nothing is no exponent" grep -qE '^  cost +<0.0001 device hours: <0.0001;' out
run 2 "${small[@]}" --compare h100,h101 --tokens 1B
says "names: gh200-144"
run 2 "${small[@]}" --machine 8xh100 --simulate --price 2
says "--simulate is one question"
run 2 "${small[@]}" --machine h100 --tokens 1B --pue 0.5
says "--pue 0.5: from 1 to 100 times"

# --- a page ---
run 0 "${small[@]}" --compare h100,b200 --tokens 10B --price 3 --html page.html
check "a curve of each kind" [ "$(grep -o '<polyline' page.html | wc -l)" -eq 2 ]
check "a bar of each kind" [ "$(grep -oE '<title>weights: ' page.html | wc -l)" -eq 2 ]
check "a row of each offer" [ "$(grep -o '<tr><td>' page.html | wc -l)" -eq "$(grep -o '<circle' page.html | wc -l)" ]
check "nothing from the network" [ "$(grep -c 'http' page.html)" -eq 0 ]
run 74 "${small[@]}" --machine 8xh100 --tokens 10B --html none/page.html
says "none/page.html"
run 2 "${small[@]}" --machine 8xh100 --html page.html
says "--html goes with"

# --- why this mesh, why not that one ---
seventy=(plan --model.preset=70b --train.batch_tokens=4194304 --train.sequence_length=4096 --machine 64xB200)
run 0 "${seventy[@]}" --why tp8.pp1 --json
python3 - <<'WHY' || fail "neighbours of tp8.pp1"
import json
w = json.load(open('out'))
m, best, near = w['mesh'], w['best'], w['neighbours']
assert (m['dp'], m['tp'], m['pp']) == (8, 8, 1) and not w['chosen'] and m['step_seconds'] > best['step_seconds']
assert near == sorted(near, key=lambda n: n['step_seconds']) and len(near) > 5
for n in near:  # what fits and is faster is of another mesh, or the search has missed it
    assert not n['fits'] or n['step_seconds'] > 0.99 * m['step_seconds'] or n['tp'] != 8 or n['pp'] != 1, n
WHY
run 0 "${seventy[@]/64xB200/64xH100}" --why dp64
check "what does not fit unless recomputed" grep -qE '^  recompute full -> none +-[0-9.]+ % \+ [0-9. GiTB]+does not fit' out
run 0 "${seventy[@]}" --why best
check "the chosen one" grep -q '^chosen       it is the fastest that fits' out
run 2 "${seventy[@]}" --why tp3
says "--why tp3: its axes do not multiply to the 64 devices"
run 2 "${seventy[@]}" --why tp8.
says "a mesh such as tp4.pp2.dp8"
run 2 "${small[@]}" --why best
says "--why needs a machine"
run 2 "${seventy[@]}" --why best --tokens 1T
says "--why is one question"
exit $failed
