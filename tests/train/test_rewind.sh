#!/usr/bin/env bash
# --rewind and --skip: a run that goes back and leaves data out is, bit for bit, one that never saw them; its checkpoints record it.
. "$(dirname "$0")/../shell.sh"
make_corpus
keep="--ckpt.keep=20"
losses_of() { python3 -c '
import json, sys
for line in open(sys.argv[1]):
    o = json.loads(line)
    if o["kind"] == "step" and "loss" in o: print(o["step"], o["loss"])' "$1/metrics.jsonl"; }

run 0 train r.yaml --run.dir=runs/fresh --skip 15:17 $keep
check "the log says it" grep -q 'steps 15 to 17 are left out: step 15 reads batch 18' err
run 0 train r.yaml --run.dir=runs/r $keep
cp -r runs/r runs/plain
cmp -s <(losses runs/r) <(losses runs/fresh) && fail "leaving data out changes nothing"
check "the first 14 steps are the same" cmp -s <(losses_of runs/r | head -n 14) <(losses_of runs/fresh | head -n 14)

# --- back to step 12, the newest sound one that is old enough, without the data of three steps ---
cp -r runs/r runs/killed
run 0 train r.yaml --run.dir=runs/r --resume --rewind 14 --skip 15:17 $keep
check "from step 12" grep -q 'weights   of step 12 from' err
same_run "a rewind is the fresh run without these data" runs/fresh runs/r
grep -q '"lineage"' runs/r/ckpt/step-00000012/manifest.json || fail "the checkpoint it went back to does not know"
grep -q '"batches_left_out"' runs/r/ckpt/step-00000040/manifest.json || fail "the last checkpoint does not know"
check "the branch that was left is kept" [ "$(grep -c '"kind":"step"' runs/r/forks.jsonl)" -eq 28 ]
check "with its reason" grep -q '"kind":"fork","step":12,"why":"the command line".*"skip":\[15,17\]' runs/r/forks.jsonl
run 0 report runs/r
check "the report has it" grep -q '"forks":\[{"loss":\[\[13,14,' runs/r/report.html

# --- the same command again, as a batch system gives it, goes on ---
losses runs/r >before
run 0 train r.yaml --run.dir=runs/r --resume --rewind 14 --skip 15:17 $keep --train.steps=40
check "it says so" grep -q 'has gone back and left out what the command says' err
check "nothing was trained again" cmp -s before <(losses runs/r)

# --- killed right behind the fork, and resumed without a word ---
"$ingot" train r.yaml --run.dir=runs/killed --resume --rewind 14 --skip 15:17 $keep >/dev/null 2>err &
pid=$!
for _ in $(seq 2000); do
    grep -qs '"lineage"' runs/killed/ckpt/step-00000012/manifest.json && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.005
done
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
run 0 train runs/killed --resume $keep
same_run "a kill behind the fork loses nothing" runs/fresh runs/killed

# --- two ranks ---
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/two --skip 15:17 $keep --train.gradient_groups=2
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/ranks2 $keep --train.gradient_groups=2
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/ranks2 --resume --rewind 14 --skip 15:17 $keep --train.gradient_groups=2
same_run "on two ranks" runs/two runs/ranks2

# --- a second one counts in the steps of the run as it is now ---
run 0 train r.yaml --run.dir=runs/twice --skip 15:17 $keep
run 0 train r.yaml --run.dir=runs/twice --resume --rewind 30 --skip 31:32 $keep
check "batches" grep -q 'step 31 reads batch 36' err
run 0 data inspect runs/twice --step 33 --json
cp out step33
run 0 data inspect runs/plain --step 38 --json
check "inspect tells the data of a run that leaves some out" cmp -s <(sed 's/"step": [0-9]*//' step33) <(sed 's/"step": [0-9]*//' out)

# --- slips ---
run 2 train r.yaml --run.dir=runs/fresh --rewind 3
says 'add --resume'
run 2 train r.yaml --run.dir=runs/s --skip 17
says 'such as --skip 510:530'
run 2 train r.yaml --run.dir=runs/s --skip 17:15
says '--skip 17:15'
run 2 train r.yaml --run.dir=runs/s --skip 41:50
says 'the run has 40 steps'
run 2 train r.yaml --run.dir=runs/plain --resume --skip 15:17 $keep
says '--rewind STEP goes back'
check "a refused order changes nothing" [ ! -e runs/plain/ckpt/back ]
run 4 train r.yaml --run.dir=runs/plain --resume --rewind 1 --skip 15:17 $keep
says 'no sound checkpoint of that step or before'
exit $failed
