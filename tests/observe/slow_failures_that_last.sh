#!/usr/bin/env bash
# Failures that take a minute to be one: a slow loader, cores that are taken, a rank that is slow, a disk that stays full. Each is named by
# the run itself (alerts.jsonl) or by `ingot explain` while it goes on.
. "$(dirname "$0")/../shell.sh"
make_corpus
unset INGOT_ROOT
alert() { # alert RUN NAME WORDS
    grep "\"alert\":\"$2\",\"state\":\"on\"" "$1/alerts.jsonl" | grep -qF -- "$3" || fail "$1: no $2 that says '$3': $(tail -n 3 "$1/alerts.jsonl")"
}
now() { # now RUN CAUSE WORDS: of a run that runs
    "$ingot" explain "$1" --json >why 2>err || fail "explain $1 fails"
    grep -q "\"cause\": \"$2\"" why || fail "$1: $(grep -E '"cause"|"sentence"' why), not $2"
    grep '"sentence"' why | grep -qF -- "$3" || fail "$1: $(grep '"sentence"' why) does not say '$3'"
}
begin() { # begin RUN KEYS...: in the background
    local dir=$1
    shift
    "$ingot" train r.yaml --run.dir="$dir" --train.steps=100000000 --eval.every=0 --ckpt.every=0 --machine.threads=1 "$@" >/dev/null 2>"$dir.err" &
    pid=$!
    wait_for_step "$dir" 5 $pid || fail "$dir does not come to step 5"
}

# a loader that takes 50 ms for each micro-batch, from the beginning
INGOT_LOAD_DELAY_MS=50 begin loader
loader=$pid
# one that gets a tenth of its time, after 70 s with all of it
begin taken
taken=$pid
# a rank that gets half of its time
"$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir=ranks --train.steps=100000000 --eval.every=0 --ckpt.every=0 --machine.threads=1 >/dev/null 2>ranks.err &
launcher=$!
wait_for_step ranks 5 $launcher
for p in $(pgrep -P $launcher); do
    tr '\0' '\n' <"/proc/$p/environ" | grep -qx INGOT_RANK=1 && slow=$p
done
sleep 70
end=$((SECONDS + 75))
while [ $SECONDS -lt $end ]; do
    kill -STOP $taken "$slow"
    sleep 0.15
    kill -CONT $taken "$slow"
    sleep 0.05
done
now loader slow_data 'steps wait for data'
alert loader data_wait 'waits for its data'
alert taken slow 'its process got'
grep -E '"alert":"slow(_rank)?","state":"on"' ranks/alerts.jsonl | grep -qE 'all wait for rank 1 on |rank 1 on .* works' || fail "nothing names rank 1: $(tail -n 3 ranks/alerts.jsonl)"
kill -TERM $loader $taken $launcher
wait

# a disk that stays full: after half a minute without a step it says what it waits for
mkdir disk
if mount -t tmpfs -o size=32m none disk 2>/dev/null; then
    trap 'umount "$work/disk"; rm -rf "$work"' EXIT
    fallocate -l $(($(df --output=avail -B1 disk | tail -n 1) - (300 << 10))) disk/ballast # a checkpoint takes 362 KiB
    "$ingot" train r.yaml --run.dir=disk/run --train.steps=12 --eval.every=0 >/dev/null 2>full.err &
    pid=$!
    for _ in $(seq 100); do
        grep -q 'the disk is full' full.err && break
        sleep 0.1
    done
    sleep 33
    now disk/run waits_space 'waits for space on the disk'
    rm disk/ballast
    wait $pid
    check "it goes on when there is space" [ $? -eq 0 ]
fi
exit $failed
