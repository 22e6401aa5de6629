#!/usr/bin/env bash
# Checkpoints of ranks that share no memory, as on several hosts: each rank writes its part while training goes on, rank 0 commits. Compared with
# the saves that training waits for, with those of one host, and resumed on other meshes. Each copy is made late, as in test_async_ranks.sh.
# Skipped without mpirun.
command -v mpirun >/dev/null || exit 77
. "$(dirname "$0")/../shell.sh"
make_corpus
export INGOT_SAVE_DELAY_MS=40 OMP_NUM_THREADS=1
keys=(--model.hidden_size=128 --train.steps=9 --ckpt.keep=100 --train.batch_tokens=256 --machine.threads=1 --eval.every=0)
train() { # train RANKS RUN KEYS...: over MPI; for one rank without it
    local ranks=$1 dir=$2
    shift 2
    if [ "$ranks" -eq 1 ]; then
        run 0 train r.yaml --run.dir="$dir" "${keys[@]}" "$@"
    else
        over_mpi "$ranks" "$ingot" train r.yaml --run.dir="$dir" "${keys[@]}" "$@" || fail "$ranks ranks, $*: exit $?"
    fi
}
here() { # here RANKS RUN KEYS...: the ranks of one host, which share memory
    run 0 launch -n "$1" --no-doctor -- train r.yaml --run.dir="$2" "${keys[@]}" "${@:3}"
}
same_checkpoints() { # same_checkpoints NAME A B
    local step
    for step in "$2"/ckpt/step-*; do
        run 0 ckpt diff "$step" "$3/ckpt/${step##*/}"
        grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "$1: ${step##*/} differs: $(tail -n 1 out)"
    done
    check "$1: three checkpoints" [ "$(find "$3/ckpt" -name 'step-*' | wc -l)" -eq 3 ]
    check "$1: nothing is left" [ -z "$(find "$3/ckpt" -name '.*')$(find "$3/ckpt" -name 'part-*')" ]
    all_sound "$1" "$3"
}
files() { find "$1/ckpt/step-00000009" -name 'state-*' | wc -l; }
pieces() { grep -c '"piece":' "$1/ckpt/step-00000009/manifest.json"; }
compare() { # compare RANKS FILES KEYS...: the checkpoint of the last step is in so many files
    local ranks=$1 count=$2 name="$*"
    shift 2
    here "$ranks" one "$@"
    train "$ranks" waits "$@" --ckpt.async=false
    train "$ranks" goes_on "$@"
    check "$name: nothing is said" sh -c '! grep -q ckpt.async err'
    same_run "$name" one goes_on
    same_checkpoints "$name, one host" one goes_on
    same_checkpoints "$name, waiting" waits goes_on
    check "$name: $(files goes_on) files" [ "$(files goes_on)" -eq "$count" ]
    check "$name: waiting, too, each rank writes" [ "$(files waits)" -eq "$count" ]
    check "$name: one host writes one file of whole tensors" [ "$(files one) $(pieces one)" = "1 0" ]
}
continue_on() { # continue_on NAME RANKS KEYS...: from step 6 of goes_on, which many wrote
    rm -rf moved && cp -r goes_on moved && rm -rf moved/ckpt/step-00000009
    train "$2" moved "${@:3}" --resume
    same_state "$1" one moved
}
# Replicas: rank 0 has everything, and writes what one host writes, byte for byte.
compare 2 1 --train.gradient_groups=2
cmp -s one/ckpt/step-00000009/state-00000.safetensors goes_on/ckpt/step-00000009/state-00000.safetensors || fail "replicas: other bytes"
rm -rf one waits goes_on
compare 2 2 --parallel.zero=1 --train.precision=bf16 --optim.state=int8 --train.gradient_groups=2
check "ZeRO: some tensors are in pieces" [ "$(pieces goes_on)" -gt 0 ]
continue_on "ZeRO 1, on one rank" 1 --train.precision=bf16 --optim.state=int8 --train.gradient_groups=2
continue_on "ZeRO 1, on two without" 2 --train.precision=bf16 --optim.state=int8 --train.gradient_groups=2
# What reads checkpoints reads these.
run 0 eval goes_on
run 0 generate goes_on --prompt "the king" --tokens 4
run 0 ckpt list goes_on
run 0 ckpt export goes_on -o exported
run 0 ckpt export one -o exported_one
cmp -s exported/model.safetensors exported_one/model.safetensors || fail "the export differs"
run 0 ckpt average goes_on one -o averaged
rm -rf one waits goes_on
compare 4 4 --parallel.zero=3 --parallel.tensor=2 --train.gradient_groups=4
continue_on "ZeRO 3 and tensor ranks, as they were" 4 --parallel.zero=3 --parallel.tensor=2 --train.gradient_groups=4
rm -rf waits goes_on moved

# --- an error of another rank's writer is the job's, with its code; what it began goes away ---
zero=(--parallel.zero=1 --train.gradient_groups=2)
train 2 whole "${zero[@]}"
cat >rank1 <<'SH'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export INGOT_IO_FAULT=$FAULT
exec "$@"
SH
chmod +x rank1
full() { # full ON_FULL CALL: that call of rank 1 finds the disk full, once
    rm -rf full
    FAULT=$2:ENOSPC over_mpi 2 ./rank1 "$ingot" train r.yaml --run.dir=full "${keys[@]}" "${zero[@]}" --ckpt.on_full="$1"
}
for k in 60 75; do
    full stop $k
    code=$?
    check "call $k fails: exit $code" [ $code -eq 74 ]
    grep -q "^rank 1: error: .*/ckpt/.tmp-[0-9]*-[0-9]*/.*No space left" err || fail "call $k is not of a save"
    all_sound "call $k" full
done
full pause 75 || fail "a disk that was full for a moment: exit $?"
grep -q '^warning: the disk is full: rank 1 (host .*) has no space for its part of checkpoint 3; it is saved when there is space ' err || fail "nobody says that rank 1 waits"
same_state "a disk that was full for a moment" whole full

# --- a rank that is killed while it copies, or writes: the job ends, and goes on from a sound checkpoint ---
cat >rank1 <<'SH'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || { export INGOT_SAVE_DELAY_MS=9000 && echo $$ >victim; }
exec "$@"
SH
over_mpi 2 ./rank1 "$ingot" train r.yaml --run.dir=killed "${keys[@]}" "${zero[@]}" &
job=$!
wait_for_step killed 3 $job
until [ -n "$(find killed/ckpt -name '.tmp-3-*' 2>/dev/null)" ]; do
    kill -0 $job 2>/dev/null || break
    sleep 0.01
done
kill -9 "$(cat victim)"
wait $job && fail "a rank was killed, and the job ends well"
check "what it began is not there" [ ! -e killed/ckpt/step-00000003 ]
mkdir -p killed/ckpt/.tmp-3-1 && : >killed/ckpt/.tmp-3-1/part-00001.json # as a kill of rank 0 leaves it
train 2 killed "${zero[@]}" --resume
grep -q '^removed   killed/ckpt/.tmp-3-1, left by a process that was killed while it wrote a checkpoint$' err || fail "nobody says what was removed"
same_run "killed" whole killed
check "nothing is left" [ -z "$(find killed/ckpt -name '.*')" ]

# --- a run that fails while a save is being written: the ranks end when it is committed, for the end of one ends the others ---
cat >rank1 <<'SH'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || { unset INGOT_SAVE_HOLD && echo $$ >victim; }
exec "$@"
SH
diverges=(--train.steps=200 --ckpt.on_busy=skip --optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0)
over_mpi 2 ./rank1 "$ingot" train r.yaml --run.dir=fails "${keys[@]}" "${zero[@]}" "${diverges[@]}"
code=$?
check "a run that diverges: exit $code" [ $code -eq 6 ]
last=$(grep -c '"kind":"step"' fails/metrics.jsonl) # the step before the one that fails
: >hold
INGOT_SAVE_HOLD=$work/hold over_mpi 2 ./rank1 "$ingot" train r.yaml --run.dir=fails_late "${keys[@]}" "${zero[@]}" "${diverges[@]}" &
job=$!
wait_for_step fails_late "$last" $job
sleep 1
check "rank 1 waits for rank 0, which writes" kill -0 "$(cat victim)"
check "which has not committed" [ ! -e fails_late/ckpt/step-00000003 ]
rm hold
wait $job
code=$?
check "a run that diverges while it saves: exit $code" [ $code -eq 6 ]
run 0 ckpt diff fails/ckpt/step-00000003 fails_late/ckpt/step-00000003
check "what was begun is committed, and nothing is left" [ -z "$(find fails_late/ckpt -name '.*')" ]
all_sound "a run that fails while it saves" fails_late

# --- a host that does not see the run directory ---
mkdir elsewhere && ln -s ../r.yaml ../tok ../data elsewhere
cat >rank1 <<'SH'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || cd elsewhere
exec "$@"
SH
over_mpi 2 "$work/rank1" "$ingot" train r.yaml --run.dir=apart "${keys[@]}" "${zero[@]}"
code=$?
check "a run directory that one host does not see: exit $code" [ $code -eq 74 ]
grep -q "^rank 1: error: host [^ ]* does not see 'apart', which rank 0 has made" err || fail "nobody says that rank 1 does not see it"
exit $failed
