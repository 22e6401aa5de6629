#!/usr/bin/env bash
# ingot cost: the ledger of a run over kills, stops, rewinds and restarts; a plan's cost with and without prices.
. "$(dirname "$0")/../shell.sh"
make_corpus
export XDG_CONFIG_HOME=$work/config
unset INGOT_ROOT
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
check "what is shown adds up to 100 %" [ "$(grep ' % ' out | grep -v 'in all' | awk '{ s += $2 } END { printf "%.2f", s }')" = 100.00 ]
run 0 cost runs/a
check "a missing price is one clear line" grep -q 'money  *not known: give --price X, or write `cpu PRICE CURRENCY YYYY-MM-DD SOURCE` into .*/config/ingot/prices.conf$' out
check "what was predicted" grep -q '^plan  *a step took .* were predicted: [0-9.]* times as long$' out

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
    run 0 cost runs/k
    check "what is shown adds up to 100 %" [ "$(grep ' % ' out | grep -v 'in all' | awk '{ s += $2 } END { printf "%.2f", s }')" = 100.00 ]
done

# --- back to an earlier checkpoint: what was trained behind it is lost ---
run 0 train r.yaml --run.dir=runs/a --resume --rewind 12 --skip 15:17 --ckpt.keep=20
sums runs/a
check "what was left behind is lost" more "$(part lost)" 0

# --- a plan ---
plan="--model.preset=llama-1b --train.batch_tokens=524288 --train.micro_batch=4"
run 0 cost $plan --machine 8xH100 --tokens 20B
check "hours" grep -q '^hours .* device hours (' out
check "a checkpoint now and then, in whole steps" grep -qE '^checkpoints +every [0-9]+ h ([0-9]+ min )?of work \([0-9]{3,} steps\): [0-9]+ of 13.82 GiB; training goes on meanwhile$' out
check "few failures, in words" grep -qE '^failures +one in [0-9]+ such runs \(one in 50677 device hours\)' out
run 0 cost --model.preset=gpt2-124m --train.batch_tokens=8192 --train.sequence_length=1024 --machine 8xh100 --tokens 300M
check "minutes lose nothing to failures" grep -q 'goodput 100.00 %' out
check "minutes need no checkpoint but the last" grep -qE '^checkpoints +one at the end is enough: 1.39 GiB$' out
run 0 cost --model.preset=nano --model.vocab_size=512 --train.batch_tokens=8192 --machine cpu --tokens 1M --price 0.01
check "a hundredth of a cent is not 0.00" grep -qE '^money +0.000[0-9]+ +0.000[0-9]+ +0.000[0-9]+ ' out
run 0 cost --model.preset=70b --train.batch_tokens=16Mi --machine 2048xH100 --tokens 15T --price 2.5
check "millions have no exponents" bash -c "grep -qE '^hours +[0-9.]+M +[0-9.]+M +[0-9.]+M ' out && ! grep -qE '[0-9]e[+-]' out"
run 0 cost $plan --machine 8xH100 --tokens 20B
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

# --- prices of a file ---
mkdir -p config/ingot
cat >config/ingot/prices.conf <<'CONF'
# what we pay
H100	2.50 USD 2026-11-01  a quote of the provider, node of 8   # with support
energy 0.20 USD 2026-10-01 the contract
cpu 0.01 USD 2026-10-01 our own host
CONF
run 0 cost $plan --machine 8xH100 --tokens 20B
check "low, likely, high" grep -qE '^ +low +likely +high$' out
check "the price, its date and source" grep -qE '^money +[0-9.]+ +[0-9.]+ +[0-9.]+  USD = hours x 2.5 \(2026-11-01, a quote of the provider, node of 8\)$' out
check "energy's" grep -qE '^its price +[0-9.]+ +[0-9.]+ +[0-9.]+  USD = kWh x 0.2 \(2026-10-01, the contract\)$' out
check "both" grep -qE '^in all +[0-9.]+ +[0-9.]+ +[0-9.]+  USD$' out
check "what the range rests on" grep -q '^speed  *assumed: a plan for an H100 or H200 is within 5 %' out
run 0 cost $plan --machine 8xH100 --tokens 20B --json
python3 - <<'PY' || fail "the plan's ranges: $(cat out)"
import json
o = json.load(open("out"))
assert o["currency"] == "USD" and o["speed"]["low"] == 0.95 and o["speed"]["high"] == 1.05
for key in ("seconds", "device_hours", "kwh", "money", "energy_money", "money_in_all"):
    low, high = o[key + "_range"]
    assert low < o[key] < high, key
assert abs(o["money_in_all"] - o["money"] - o["energy_money"]) < 1e-6 * o["money"]
assert abs(o["device_hours_range"][0] / o["device_hours"] - 0.95) < 1e-3
assert abs(o["kwh_range"][1] / o["kwh"] - 1.05 * 1.11) < 2e-3
PY
run 0 cost runs/a
check "of a run" grep -qE '^money +[0-9.]+ USD = [0-9.e-]+ x 0.01 \(2026-10-01, our own host\); lost' out
run 0 cost $plan --machine 8xH200 --tokens 20B
check "a kind that the file lacks" grep -q '^money  *not known: give --price X, or write `h200 PRICE CURRENCY YYYY-MM-DD SOURCE` into ' out
run 0 cost $plan --machine 8xH200 --tokens 20B --price 3
check "an option counts before the file" grep -q 'hours x 3 (--price)' out
bad() { # bad LINE WORDS: the second line of a file of prices
    printf 'h100 2.5 USD 2026-11-01 a quote\n%s\n' "$1" >bad.conf
    run 2 cost $plan --machine 8xH100 --tokens 20B --prices bad.conf
    says 'cost: bad.conf: line 2: '
    says "$2"
}
bad 'h200 3.1 USD 2026-11-01' 'a line is NAME PRICE CURRENCY DATE SOURCE'
bad 'h200' 'a line is NAME PRICE CURRENCY DATE SOURCE'
bad 'h2000 3.1 USD 2026-11-01 x' "'h2000' is no kind of --machine"
bad '8xh200 3.1 USD 2026-11-01 x' "'8xh200' is no kind of --machine"
bad 'h200 much USD 2026-11-01 x' "'much' is no price"
bad 'h200 -1 USD 2026-11-01 x' "'-1' is no price"
bad 'h200 3.1 dollars 2026-11-01 x' "'dollars' is no currency"
bad 'h200 3.1 EUR 2026-11-01 x' 'EUR, and USD above'
bad 'h200 3.1 USD yesterday x' "'yesterday' is no date"
bad 'h100 3.1 USD 2026-11-01 x' 'h100 has a price already, in line 1'
run 74 cost $plan --machine 8xH100 --tokens 20B --prices none.conf
says 'none.conf'

# --- ranges by the past: twenty runs that took 0.9 to 1.28 times what was predicted; those of another device do not count ---
for i in $(seq 20); do
    mkdir -p past/h$i past/other$i
    echo '{"device": "NVIDIA H100 80GB HBM3", "ranks": 8}' >past/h$i/env.json
    echo '{"device": "NVIDIA B200", "ranks": 8}' >past/other$i/env.json
    for d in h other; do
        cp runs/a/config.yaml past/$d$i
        awk -v m="$(awk -v i=$i -v d=$d 'BEGIN { print 0.88 + 0.02 * i + (d == "other" ? 9 : 0) }')" 'BEGIN { print "{\"kind\":\"schema\",\"format\":\"ingot metrics\",\"version\":1}"
            print "{\"kind\":\"step\",\"step\":9,\"tokens\":9,\"time\":1.8e9,\"loss\":3}"
            print "{\"kind\":\"fact\",\"step\":9,\"name\":\"predicted_step_s\",\"value\":0.5}"
            print "{\"kind\":\"fact\",\"step\":9,\"name\":\"measured_step_s\",\"value\":" 0.5 * m "}" }' >past/$d$i/metrics.jsonl
    done
done
run 0 cost $plan --machine 8xH100 --tokens 20B --json
cp out plain
run 0 cost $plan --machine 8xH100 --tokens 20B --past past --json
python3 - <<'PY' || fail "the past: $(cat out)"
import json
o, plain = json.load(open("out")), json.load(open("plain"))
s = o["speed"]
assert abs(s["low"] - 0.92) < 1e-9 and abs(s["likely"] - 1.10) < 1e-9 and abs(s["high"] - 1.26) < 1e-9, s
assert s["from"].startswith("20 runs on h100 below past took 0.92 to 1.26 times what was predicted, the median 1.1"), s
assert abs(o["device_hours"] / plain["device_hours"] - 1.10) < 1e-3
PY
rm -r past/h[1-9] past/h1[0-6]
run 0 cost $plan --machine 8xH100 --tokens 20B --past past
check "four are too few" grep -q '^speed  *assumed: .*; 4 runs on h100 below past: from 5 on they say it' out
run 2 cost $plan --machine 8xH100 --tokens 20B --past nowhere
says 'cost: --past nowhere: there is no forecast.jsonl and no directory of runs'
# The newer runs keep them in forecast.jsonl, which plan reads, too: the same ratios by the same reader.
for i in 17 18; do
    printf '{"kind":"run","machine":"h100","rates":"row","predicted_step_s":2,"measured_step_s":%s}\n' 1 3 >past/h$i/forecast.jsonl
done
run 0 cost $plan --machine 8xH100 --tokens 20B --past past --json
python3 - <<'PY' || fail "old and new runs: $(cat out)"
import json
s = json.load(open("out"))["speed"]
assert s["low"] == 0.5 and abs(s["likely"] - 1.28) < 1e-9 and s["high"] == 1.5, s
assert s["from"].startswith("6 runs on h100"), s
PY
run 0 plan $plan --machine 8xH100 --past past
check "a plan has the same six" grep -qE '^past +6 runs on h100 took 0\.50 to 1\.50 of the predicted step, in the median 1\.27' out
rm config/ingot/prices.conf
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
run 2 cost runs/a --past runs
says 'add --machine'
mkdir empty
run 3 cost empty
says 'no ledger'
exit $failed
