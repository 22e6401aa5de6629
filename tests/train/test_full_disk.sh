#!/usr/bin/env bash
# A small disk that is really full: old checkpoints go first, then the save waits; ckpt.on_full=stop ends the run.
. "$(dirname "$0")/../shell.sh"
mkdir disk
mount -t tmpfs -o size=64m none disk 2>/dev/null || { echo "no tmpfs can be mounted here: skipped"; exit 77; }
trap 'umount "$work/disk"; rm -rf "$work"' EXIT
make_corpus
train() { # train CODE KEYS...: 12 steps on the small disk, a checkpoint every 3
    local code=$1
    shift
    timeout 120 "$ingot" train r.yaml --run.dir=disk/run --train.steps=12 --eval.every=0 "$@" >out 2>err
    check "exit $code, not more than 120 s" [ $? -eq "$code" ]
}
ballast() { # ballast CHECKPOINTS.TENTHS: leaves room for so many
    rm -f disk/ballast
    local free
    free=$(df --output=avail -B1 disk | tail -n 1)
    fallocate -l $((free - $1 * bytes / 10)) disk/ballast
}
waits_for() { # waits_for TEXT: until the run says so
    for _ in $(seq 600); do
        grep -qF "$1" err && return 0
        kill -0 $pid || break
        sleep 0.1
    done
    kill -KILL $pid
    fail "the run never says '$1'"
}
run 0 train r.yaml --run.dir=whole --train.steps=12 --eval.every=0
bytes=$(du -sb whole/ckpt/step-00000012 | cut -f1)

# --- room for three and a half, three are kept: the oldest goes before the fourth is written ---
ballast 36
train 0
check "old checkpoints are deleted" grep -q "the disk is full: 1 old checkpoint deleted before step" err
same_run "deleted first" whole disk/run
all_sound "deleted first" disk/run
rm -rf disk/run

# --- the same with parts of tensors on two ranks: what was copied while training goes on can be written once more ---
ballast 36
timeout 120 "$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir=disk/run --train.steps=12 --eval.every=0 --parallel.zero=1 \
    --train.gradient_groups=2 >out 2>err
check "two ranks: exit 0, not more than 120 s" [ $? -eq 0 ]
check "two ranks: old checkpoints are deleted" grep -q "the disk is full: 1 old checkpoint deleted before step" err
all_sound "two ranks" disk/run
rm -rf disk/run

# --- room for one: the last sound one stays, the save waits until there is space ---
ballast 20
"$ingot" train r.yaml --run.dir=disk/run --train.steps=12 --eval.every=0 >out 2>err &
pid=$!
waits_for "the disk is full: checkpoint 6 needs"
check "sizes are readable" grep -qE 'needs [0-9.]+ [KM]iB, [0-9.]+ ([KM]i)?B are free' err
check "the last sound checkpoint is there" [ -d disk/run/ckpt/step-00000003 ]
rm disk/ballast
wait $pid
check "it goes on when there is space" [ $? -eq 0 ]
same_run "waited" whole disk/run
rm -rf disk/run

# --- a signal ends the wait; the same with stop ---
ballast 20
"$ingot" train r.yaml --run.dir=disk/run --train.steps=12 --eval.every=0 >out 2>err &
pid=$!
waits_for "the disk is full: checkpoint 6 needs"
kill -TERM $pid
wait $pid
check "a signal ends the wait with 74" [ $? -eq 74 ]
says "are free"
all_sound "signal" disk/run
rm -rf disk/run
ballast 20
train 74 --ckpt.on_full=stop
says "are free"
check "stop deletes nothing" [ -d disk/run/ckpt/step-00000003 ]
rm disk/ballast
train 0 --resume
same_run "stop, then resume" whole disk/run
exit $failed
