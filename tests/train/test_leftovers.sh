#!/usr/bin/env bash
# What a run directory tells at the next start: saves that were killed leave files, which go away and are named; a run that had checkpoints
# and has none is not begun again by --resume.
. "$(dirname "$0")/../shell.sh"
make_corpus
keys=(--run.dir=r --train.steps=12)
removed() { grep -c "removed   $1.*, left by a process that was killed" err; }

# --- a kill inside a save, and inside the deletion of an old one ---
killed_at() { # killed_at NAME: kills runs at later and later calls until one leaves ckpt/NAME-*
    local k
    for ((k = 60; k < 400; k += 3)); do
        rm -rf r
        (INGOT_IO_FAULT=$k:KILL "$ingot" train r.yaml "${keys[@]}" --ckpt.async=false --ckpt.keep=1 >out 2>err || exit) 2>/dev/null
        ls -d r/ckpt/"$1"-* >/dev/null 2>&1 && return 0
    done
    fail "no kill leaves $1"
}
run 0 train r.yaml --run.dir=whole --train.steps=12
for name in .tmp .trash; do
    killed_at $name
    : >"r/env.json.tmp-$((2 ** 22 + 5))-0123abcd" # of a process that cannot exist
    # The number of the process that was killed is another one's now: the lock of the run tells that it is not the writer.
    sleep 1000 &
    other=$!
    for left in r/ckpt/$name-*; do mv "$left" "${left%-*}-$other"; done
    run 0 train r.yaml "${keys[@]}" --resume
    kill $other
    check "$name: it is named" [ "$(removed "r/ckpt/$name-[0-9]*-$other")" -eq 1 ]
    check "$name: so is the temporary file" [ "$(removed "1 temporary file in r")" -eq 1 ]
    check "$name: both are gone" [ -z "$(find r -name '.t*' -o -name '*.tmp-*')" ]
    check "$name: log.txt has it" grep -q 'removed   .*left by a process that was killed' r/log.txt
    same_run "$name" whole r
done
run 0 train r.yaml "${keys[@]}" --resume
check "nothing left, nothing said" [ "$(removed "")" -eq 0 ]

# --- a run that had checkpoints ---
mv r/ckpt elsewhere
run 4 train r.yaml "${keys[@]}" --resume
says "r has saved checkpoints, and r/ckpt has none now: put them back, or delete r/saved to begin at step 0"
mkdir r/ckpt # an empty one is none
run 4 train r.yaml "${keys[@]}" --resume
says "r has saved checkpoints"
run 4 launch -n 2 -- train r.yaml "${keys[@]}" --resume --train.gradient_groups=2 --train.batch_tokens=128
grep -q "^error: .*r has saved checkpoints" err || fail "several ranks are not told"
rmdir r/ckpt && mv elsewhere r/ckpt
run 0 train r.yaml "${keys[@]}" --resume
same_run "put back" whole r
rm -r r/ckpt r/saved
run 0 train r.yaml "${keys[@]}" --resume
check "without the mark it begins again" grep -q 'r has no checkpoint: the run begins at step 0' err
# A directory of which everything but the mark was deleted is free; the mark was of the old run.
rm -r r/ckpt r/metrics.jsonl
echo old >r/saved
run 0 train r.yaml "${keys[@]}"
check "the mark is this run's" sh -c '! grep -q old r/saved'
# Killed before its first checkpoint a run has none to miss.
rm -rf r
"$ingot" train r.yaml "${keys[@]}" --train.steps=100000 --ckpt.every=0 >out 2>err &
pid=$!
wait_for_step r 3 $pid
kill -9 $pid
wait $pid 2>/dev/null
run 0 train r.yaml "${keys[@]}" --resume
same_run "no checkpoint yet" whole r
exit $failed
