#!/usr/bin/env bash
# Signals: SIGTERM, SIGUSR1 and SIGINT finish a short step, save and exit with 75, and the same command with --resume resumes it as if nothing
# had been; a second SIGINT exits at once with 130. One run directory has one job.
. "$(dirname "$0")/../shell.sh"
make_corpus
long=(--train.steps=600 --eval.every=100 --ckpt.every=0)

run 0 train r.yaml --run.dir=runs/whole "${long[@]}"
at=0
for signal in TERM USR1 INT; do
    at=$((at + 20))
    "$ingot" train r.yaml --run.dir=runs/cut --resume "${long[@]}" >out 2>err &
    pid=$!
    wait_for_step runs/cut $at $pid || fail "no step $at"
    kill -$signal $pid
    wait $pid
    code=$?
    [ $code -eq 75 ] || fail "SIG$signal: exit code $code, not 75"
    check "SIG$signal: a stop is no error" [ "$(grep -c '^error:' err)" -eq 0 ]
    step=$(sed -n "s/^SIG$signal: saved at step \([0-9]*\) of 600; \`ingot train [^ ]* --resume\` resumes it$/\1/p" err)
    check "SIG$signal: the step that was saved" [ -d "runs/cut/ckpt/step-$(printf %08d "${step:-0}")" ]
    check "SIG$signal: exit.json" grep -q '"code": 75' runs/cut/exit.json
    check "SIG$signal: a report" [ -s runs/cut/report.html ]
    at=${step:-$at}
done
run 0 train r.yaml --run.dir=runs/cut --resume "${long[@]}"
same_run "after three signals" runs/whole runs/cut

# One micro-batch of this takes seconds.
"$ingot" train r.yaml --run.dir=runs/slow --train.micro_batch=4Ki --train.batch_tokens=128Ki >out 2>err.slow &
pid=$!
until grep -qs '"kind":"start"' runs/slow/metrics.jsonl; do
    kill -0 $pid 2>/dev/null || break
    sleep 0.005
done
run 2 train r.yaml --run.dir=runs/slow --resume
says "another job uses 'runs/slow' (process $pid on "
kill -INT $pid
until grep -q '^SIGINT: ' err.slow; do
    kill -0 $pid 2>/dev/null || break
    sleep 0.005
done
check "the first SIGINT is answered" grep -qE '^SIGINT: finishing (step 1|what is under way)(, about [0-9a-z]+)?, then saving; again to stop now without saving$' err.slow
kill -INT $pid
wait $pid
code=$?
[ $code -eq 130 ] || fail "second SIGINT: exit code $code, not 130"

run 2 train r.yaml --run.dir=runs/cut "${long[@]}"
says "--resume"
says "--run.name="
exit $failed
