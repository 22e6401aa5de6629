#!/usr/bin/env bash
# Failures that really happen on this machine, each with the sentence of `ingot explain`. docs/FAULTS.md counts them, with those of other tests.
. "$(dirname "$0")/../shell.sh"
. "$(dirname "$0")/explained.sh"
faulty() { # faulty CODE RUN ERROR: the k-th call on files meets it, after the run has begun; the first k that ends the run so
    local code=$1 dir=$2 error=$3
    for k in 60 80 100 120 140 160 180; do
        rm -rf "$dir"
        INGOT_IO_FAULT=$k:$error "$ingot" train r.yaml --run.dir="$dir" --train.steps=12 --ckpt.on_full=stop --eval.every=0 --ckpt.every=2 >out 2>err
        [ $? -eq "$code" ] && [ -e "$dir/metrics.jsonl" ] && grep -q "$4" "${5:-$dir/exit.json}" 2>/dev/null && return 0
    done
    fail "no call of $dir meets $error"
}

# --- files ---
faulty 74 runs/eio EIO 'Input/output error'
because runs/eio disk_error 'the disk reported an error'
faulty 74 runs/quota EDQUOT 'quota'
because runs/quota disk_full 'the disk, or the quota, was full'
# a byte of a shard has changed: found when its block is read
cp -r data sound
python3 - data/c_train_*.bin <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(1500)
    b = f.read(1)
    f.seek(1500)
    f.write(bytes([b[0] ^ 1]))
PY
"$ingot" train r.yaml --run.dir=runs/flip --train.steps=400 --eval.every=0 --ckpt.every=0 >out 2>err
check "a changed byte: exit 3" [ $? -eq 3 ]
because runs/flip data_damaged 'bytes have changed'
rm -r data && mv sound data
# all checkpoints are damaged
run 0 train r.yaml --run.dir=runs/torn --train.steps=6 --eval.every=0
for f in runs/torn/ckpt/step-*/*; do
    case $f in *.json) ;; *) truncate -s 100 "$f" ;; esac
done
run 4 train r.yaml --run.dir=runs/torn --train.steps=12 --resume
because runs/torn checkpoint 'a checkpoint could not be read'
# killed in a save
for k in $(seq 60 3 240); do
    rm -rf runs/saving
    INGOT_IO_FAULT=$k:KILL "$ingot" train r.yaml --run.dir=runs/saving --train.steps=12 --eval.every=0 --ckpt.every=2 >out 2>err & wait $! 2>/dev/null
    compgen -G 'runs/saving/ckpt/.tmp-*' >saved && [ -s runs/saving/metrics.jsonl ] && break
done
because runs/saving killed 'while a checkpoint was written'

# --- signals ---
export INGOT_SAVE_DELAY_MS=9000
long runs/grace --train.batch_tokens=65536
unset INGOT_SAVE_DELAY_MS
kill -TERM $pid
until grep -q 'SIGTERM' runs/grace/log.txt || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
kill -9 $pid
wait $pid 2>/dev/null
because runs/grace grace_over 'the time between SIGTERM and the kill was too short'
"$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/orphans --train.steps=100000 --eval.every=0 >/dev/null 2>&1 &
launcher=$!
wait_for_step runs/orphans 5 $launcher
ranks=$(pgrep -P $launcher)
kill -9 $launcher
wait $launcher 2>/dev/null
for p in $ranks; do while kill -0 "$p" 2>/dev/null; do sleep 0.1; done; done
because runs/orphans launcher_gone 'whoever started the ranks was gone'

# --- ranks ---
"$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/peernan --eval.every=0 --optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0 >out 2>err
check "NaN on two ranks: exit 6" [ $? -eq 6 ]
"$ingot" explain runs/peernan --json >why
check "and its cause: $(grep '"cause"' why)" grep -qE '"cause": "nan_(loss|gradient|state)"' why
port=$((20000 + $$ % 10000))
for r in 0 1; do
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        "$ingot" train r.yaml --run.dir=runs/differ --train.steps=$((20 + 10 * r)) --eval.every=0 >out.$r 2>err.$r &
    pids[r]=$!
done
wait "${pids[0]}"
code=$?
wait "${pids[1]}"
cat err.0 err.1 >err
check "ranks that differ: exit $code" [ $code -eq 10 ]
because runs/differ peer_differs 'the ranks did different things'

# --- before the first step ---
for k in $(seq 30 150); do
    rm -rf runs/early
    INGOT_IO_FAULT=$k:KILL "$ingot" train r.yaml --run.dir=runs/early --train.steps=12 --eval.every=0 >out 2>err &
    wait $! 2>/dev/null
    grep -qs '"kind":"start"' runs/early/metrics.jsonl && break
done
[ "$(grep -c '"kind":"step"' runs/early/metrics.jsonl)" -eq 0 ] || fail "runs/early has made steps"
because runs/early killed 'before its first step'

# --- file systems: a full one, a directory that others have taken ---
mkdir disk
if mount -t tmpfs -o size=32m none disk 2>/dev/null; then
    trap 'umount "$work/disk"; rm -rf "$work"' EXIT
    fallocate -l $(($(df --output=avail -B1 disk | tail -n 1) - (300 << 10))) disk/ballast # a checkpoint takes 362 KiB
    run 74 train r.yaml --run.dir=disk/full --train.steps=6 --eval.every=0 --ckpt.on_full=stop
    because disk/full disk_full 'the disk, or the quota, was full'
    "$ingot" doctor --storage disk --json --fresh >out 2>err
    check "doctor before a full disk: exit 74" [ $? -eq 74 ]
    check "its sentence" grep -q '"why": "[0-9.]* \([KM]i\)*B free in disk"' out
    rm -r disk/*
    umount disk
    trap 'rm -rf "$work"' EXIT
fi
if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --clear-groups true 2>/dev/null; then
    chmod 755 "$work"
    mkdir -m 777 theirs
    setpriv --reuid=65534 --clear-groups "$ingot" train r.yaml --run.dir=theirs/run --train.steps=100000 --eval.every=0 --ckpt.every=2000 >/dev/null 2>long.err &
    pid=$!
    wait_for_step theirs/run 5 $pid
    mkdir -p theirs/run/ckpt
    chown root theirs/run/ckpt
    chmod 755 theirs/run/ckpt
    wait $pid
    check "no permission to write: exit 74" [ $? -eq 74 ]
    because theirs/run permission 'it may not write there'
fi

exit $failed
