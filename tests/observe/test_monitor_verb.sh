#!/usr/bin/env bash
# ingot monitor and top as programs: a run that has ended, one that runs, alerts, wrong input.
. "$(dirname "$0")/../shell.sh"
make_corpus
unset INGOT_ROOT
printf 'cards=1\ncard 0 xid=31\n' >gpus
INGOT_NVML_SCRIPT=gpus run 0 train r.yaml --run.dir=runs/a
run 0 monitor
cp out newest
run 0 monitor runs/a --once
check "the newest run" cmp -s out newest
check "its step" grep -q ' step 40/40  100 %  finished' out
check "its GPU" grep -qE '^   0 +345' out
check "80 columns" [ "$(awk '{ if (length($0) > n) n = length($0) } END { print n < 240 }' out)" = 1 ]
run 0 top runs/a --columns 40 --ascii
check "40 columns" [ "$(awk '{ if (length($0) > n) n = length($0) } END { print n < 40 }' out)" = 1 ]
run 0 monitor runs/a --json
check "its JSON" grep -q '"schema": "ingot.monitor/1"' out
run 11 monitor runs/a --once --strict
says 'needs a look'
run 0 monitor runs/a --alerts --alert-exec 'cat >>told'
check "one line per alert" [ "$(grep -c '"alert":"xid"' out)" -eq 1 ]
check "the command got it" [ "$(grep -c '"alert":"xid"' told)" -eq 1 ]
check "and nothing is on the screen" [ "$(grep -vc '^{' out)" -eq 0 ]

# a run that runs, and is killed
"$ingot" train r.yaml --run.dir=runs/b --train.steps=100000 >/dev/null 2>&1 &
pid=$!
wait_for_step runs/b 5 $pid
run 0 monitor runs/b
check "it runs" grep -q 'running  eta' out
kill -9 $pid
wait $pid 2>/dev/null
run 10 monitor runs/b --once --strict
check "it was killed" grep -q 'ALERT .*killed' out

# slips
run 2 monitor none
says 'no such run'
run 2 monitor runs/a --columns 20
says 'from 40'
run 2 monitor runs/a --interval 0
says '0.1'
run 2 monitor runs/a --strict
says '--once'
run 2 monitor runs/a runs/b
mkdir runs/other
echo '{"kind":"schema","format":"ingot metrics","version":9}' >runs/other/metrics.jsonl
for verb in monitor report explain; do
    run 2 $verb runs/other
    says 'runs/other/metrics.jsonl has version 9, and this ingot reads version 1'
done
run 0 runs runs
check "it is listed" grep -q 'other .*another version' out
cp -r runs/a runs/later
sed -i '1s/"version":1/"version":9/' runs/later/metrics.jsonl
cp runs/later/metrics.jsonl before
run 2 train r.yaml --run.dir=runs/later --train.steps=60 --resume
says 'metrics.jsonl has version 9'
check "it was not changed" cmp -s before runs/later/metrics.jsonl
mkdir empty
cd empty || exit 1
run 2 monitor
says 'ingot monitor RUN'
exit $failed
