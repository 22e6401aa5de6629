#!/usr/bin/env bash
# ingot cost: the ledger of a run over kills, stops, rewinds and restarts; a plan's cost with and without prices.
. "$(dirname "$0")/../shell.sh"
make_corpus
sums() { # sums RUN: the classes are nine, none is negative, they add up to the wall time within 0.1 %
    run 0 cost "$1" --json
    python3 - <<'PY' || fail "$1: the ledger does not add up: $(cat out)"
import json
o = json.load(open("out"))
parts = o["ledger"]
assert len(parts) == 9, parts
assert all(v >= -1e-9 for v in parts.values()), parts
assert abs(sum(parts.values()) - o["wall_s"]) <= 1e-3 * o["wall_s"], (sum(parts.values()), o["wall_s"])
PY
}
part() { python3 -c 'import json, sys; o = json.load(open("out")); print(o["ledger"][sys.argv[1]])' "$1"; }
more() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }'; }

begin=$(date +%s.%N)
run 0 train r.yaml --run.dir=runs/a --ckpt.keep=20
end=$(date +%s.%N)
sums runs/a
check "no step is lost" [ "$(part lost)" = 0.0 ]
check "nothing stopped" [ "$(part stopped)" = 0.0 ]
check "it computed" more "$(part compute)" 0
check "it evaluated" more "$(part evaluation)" 0
check "not longer than the command" more "$(echo "$end $begin" | awk '{ print $1 - $2 }')" "$(python3 -c 'import json; print(json.load(open("out"))["wall_s"])')"
run 0 cost runs/a --price 2.5
check "a table of nine classes and their sum" [ "$(grep -c ' % ' out)" -eq 10 ]
check "money" grep -q '^money  *[0-9.]* = ' out
run 0 cost runs/a
check "a missing price is one clear line" grep -q 'money  *not known: give --price' out

# --- killed and resumed: the same steps again are lost, the pause is no process ---
"$ingot" train r.yaml --run.dir=runs/k --train.steps=100000 --ckpt.every=10 --eval.every=0 >/dev/null 2>&1 &
pid=$!
wait_for_step runs/k 30 $pid
kill -STOP $pid # a mark stands behind the checkpoint, once its process goes on
sleep 1.2
kill -CONT $pid
sleep 0.3
kill -9 $pid
wait $pid 2>/dev/null
sleep 1.2
run 0 train r.yaml --run.dir=runs/k --resume --train.steps=20 --ckpt.every=5 --eval.every=0
sums runs/k
check "two starts" grep -q '"starts": 2' out
check "the pause" more "$(part stopped)" 1.1
for i in 1 2 3 4; do
    "$ingot" train r.yaml --run.dir=runs/k --resume --train.steps=100000 --ckpt.every=7 --eval.every=0 >/dev/null 2>&1 &
    pid=$!
    sleep 0.4
    kill -"$([ $((i % 2)) = 0 ] && echo TERM || echo KILL)" $pid
    wait $pid 2>/dev/null
    sums runs/k
done

# --- back to an earlier checkpoint: what was trained behind it is lost ---
run 0 train r.yaml --run.dir=runs/a --resume --rewind 12 --skip 15:17 --ckpt.keep=20
sums runs/a
check "what was left behind is lost" more "$(part lost)" 0

# --- a plan ---
plan="--model.preset=llama-1b --train.batch_tokens=524288 --train.micro_batch=4"
run 0 cost $plan --machine 8xH100 --tokens 20B
check "hours" grep -q '^hours .* device hours (' out
check "no money without a price" grep -q '^money  *not known: give --price' out
check "energy" grep -q '^energy  *[0-9]' out
run 0 cost $plan --machine 8xH100 --tokens 20B --price 2.5 --energy-price 0.2 --json
python3 - <<'PY' || fail "the plan's numbers: $(cat out)"
import json
o = json.load(open("out"))
assert o["schema"] == "ingot.cost/1"
assert abs(o["device_hours"] - o["seconds"] * 8 / 3600) < 1e-6 * o["device_hours"]
assert abs(o["money"] - 2.5 * o["device_hours"]) < 1e-6 * o["money"]
assert abs(o["energy_money"] - 0.2 * o["kwh"]) < 1e-6 * o["energy_money"]
assert o["money_range"][0] < o["money"] < o["money_range"][1]
assert o["tokens"] >= 20e9
PY
run 0 cost $plan --machine 8xH100 --tokens 20B --table --price 2.5
check "a row for 1, 2, 4, 8" [ "$(grep -cE '^ +(1|2|4|8) ' out)" -eq 4 ]

# --- slips ---
run 2 cost nowhere
says 'nowhere: no such run'
run 2 cost r.yaml
says '--machine 8xH100'
run 2 cost $plan --machine 8xH101 --tokens 20B
run 2 cost $plan --machine 8xH100 --tokens some
says '--tokens some'
run 2 cost runs/a --price -1
says 'prices'
run 2 cost runs/a --table
says 'add --machine'
mkdir empty
run 3 cost empty
says 'no ledger'
exit $failed
