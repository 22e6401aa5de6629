#!/usr/bin/env bash
# ingot demo: no option is ignored, each text has a run of its own, an interrupted demo goes on. Short runs of a small text.
. "$(dirname "$0")/../shell.sh"
make_corpus
head -c 30000 corpus.txt >mine.txt

run 0 demo --text mine.txt --minutes 0.01
check "a directory of its own" [ -s runs/demo-mine/report.html ]
check "a small vocabulary" grep -qE '^tokenizer (2[0-9][0-9]|3[01][0-9]|320) entries' err
check "its length is said" grep -qE '^length    10 steps: ' err
check "one evaluation, of all" [ "$(grep -c '"val_loss"' runs/demo-mine/metrics.jsonl)" -eq 1 ]
check "a result" grep -qE '^held-out text, bits per byte: .* this model  [0-9.]+$' out
check "three samples" [ "$(grep -c '^sample [123]: ' out)" -eq 3 ]
check "settings of a CPU" grep -q '^  name: muon' runs/demo-mine/config.yaml
check "nothing is left of the timing" [ ! -e runs/demo-mine/timing ]
losses runs/demo-mine >before

# Again: the same result, no step.
run 0 demo --text mine.txt --json
check "one JSON object" sh -c 'head -c 1 out | grep -q "{" && grep -q "\"xz_bits_per_byte\": [0-9]" out'
losses runs/demo-mine >after
check "a demo that is over does no step" cmp -s before after

# What is asked for, and cannot be, is refused; nothing changes.
run 2 demo --text mine.txt --minutes 5
says "runs/demo-mine was begun with --minutes 0.01: --fresh trains again; without --minutes it goes on"
run 74 demo --text missing.txt
says "missing.txt"
run 74 demo --text missing.txt --fresh
mkdir other
tail -c 20000 corpus.txt >other/mine.txt
run 2 demo --text other/mine.txt --minutes 0.01
says "runs/demo-mine is of another text than other/mine.txt is now: --fresh begins again, or rename the file"
check "nothing was lost" [ -s runs/demo-mine/report.html ]
head -c 1000 corpus.txt >tiny.txt
run 3 demo --text tiny.txt
says "tiny.txt has 1000 bytes: the demo needs a text of 16384 or more"
check "nothing was made" [ ! -e runs/demo-tiny ]
run 2 demo --minutes 0
says "--minutes is above 0"
run 2 demo mine.txt
says "'mine.txt' is one too many"

# --fresh takes the other text.
run 0 demo --text other/mine.txt --minutes 0.01 --fresh
check "the other text" grep -q '"other/mine.txt"' runs/demo-mine/demo.json

# Stopped, and again: the run is the same, bit for bit.
mv runs/demo-mine whole
"$ingot" demo --text other/mine.txt --minutes 0.01 >out 2>err &
pid=$!
wait_for_step runs/demo-mine 3 $pid || fail "no step 3"
kill -TERM $pid
wait $pid
code=$?
[ $code -eq 75 ] || fail "exit code $code, not 75"
says_again=$(grep -c '^SIGTERM: saved at step [0-9]* of 10; the same command resumes it$' err)
check "it says how to go on" [ "$says_again" -eq 1 ]
run 0 demo --text other/mine.txt --minutes 0.01
same_run "a demo that was stopped" whole runs/demo-mine
exit $failed
