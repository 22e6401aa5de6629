#!/usr/bin/env bash
# ckpt.memory_every: after a failure the ranks of `ingot launch --restart` go on from the copy that the launcher holds, with the bits of an
# undisturbed run and without reading a checkpoint; a copy that is torn, damaged or of another mesh is left, and that is said.
. "$(dirname "$0")/../shell.sh"
make_corpus
RANDOM=${SEED:-$$}
echo "SEED=${SEED:-$$}"
keys=(--train.micro_batch=1 --train.batch_tokens=256 --train.steps=60 --train.gradient_groups=8 --ckpt.every=0 --eval.every=0 --machine.threads=1)
copies=(--ckpt.memory_every=3)
export INGOT_SAVE_DELAY_MS=20 # each copy: the runs must last until somebody has looked

begin() { # begin NAME RANKS LAUNCH_WORDS -- KEYS...: in the background
    local name=$1 ranks=$2 words=()
    shift 2
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    shift
    "$ingot" launch -n "$ranks" --restart 20 --no-doctor "${words[@]}" -- train r.yaml --run.dir="runs/$name" "${keys[@]}" "${copies[@]}" "$@" \
        >out 2>"$name.err" &
    launcher=$!
}
ends() { # ends NAME: with 0
    wait $launcher
    local code=$?
    cp "$1.err" err
    [ $code -eq 0 ] || fail "$1 ends with $code, not 0"
}
said() { # said NAME TIMES TEXT: until the job has said it so often
    for _ in $(seq 1200); do
        [ "$(grep -c -- "$3" "$1.err")" -ge "$2" ] && return 0
        kill -0 $launcher 2>/dev/null || break
        sleep 0.02
    done
    [ "$(grep -c -- "$3" "$1.err")" -ge "$2" ] && return 0
    cp "$1.err" err
    fail "$1 never says '$3' $2 times"
    return 1
}
pid_of() { # pid_of NUMBER: the process that is this one of all ranks
    local p
    for p in $(pgrep -P "$launcher"); do tr '\0' '\n' <"/proc/$p/environ" | grep -qx "INGOT_LOCAL_RANK=$1" && echo "$p" && return; done
} 2>/dev/null
fact() { grep "\"name\":\"$2\"" "runs/$1/metrics.jsonl" | tail -n 1 | grep -o '"value":[0-9.]*' | cut -d: -f2; }

# --- one rank at a random step, twice; the only checkpoint on disk is that of the end ---
for mesh in "4" "4 --parallel.zero=3 --train.precision=bf16 --optim.state=int8" "4 --parallel.tensor=2 --parallel.pipeline=2" "2 --parallel.zero=2"; do
    # shellcheck disable=SC2086 # several words
    set -- $mesh
    ranks=$1 name=$(echo "$mesh" | tr -dc 'a-z0-9')
    shift
    run 0 launch -n "$ranks" --no-doctor -- train r.yaml --run.dir="runs/whole$name" "${keys[@]}" "$@"
    begin "$name" "$ranks" -- "$@"
    for kill in 1 2; do
        wait_for_step "runs/$name" $((kill * 14 - 10)) $launcher || break
        victim=$(pid_of $((RANDOM % ranks)))
        wait_for_step "runs/$name" $((kill * 14 + RANDOM % 12)) $launcher || break
        kill -9 "$victim"
        said "$name" $kill 'from memory (ckpt.memory_every)' || break
    done
    ends "$name"
    check "$mesh: no checkpoint was read" [ "$(grep -c '^weights .*/ckpt/' err)" -eq 0 ]
    check "$mesh: the metrics say so" [ "$(fact "$name" resume_memory)" = 1.0 ]
    same_run "$mesh" "runs/whole$name" "runs/$name"
done

# --- all ranks at once: the memory is none of theirs ---
begin all 4 --
wait_for_step runs/all 20 $launcher
pkill -9 -P $launcher
said all 1 'from memory'
ends all
same_run "all ranks" runs/whole4 runs/all

# --- a kill during the copy of step 9: that of step 6 counts ---
INGOT_SAVE_DELAY_MS=800 begin torn 2 -- --parallel.zero=2 --train.steps=12
wait_for_step runs/torn 1 $launcher
victim=$(pid_of 1)
wait_for_step runs/torn 9 $launcher
sleep 0.1
kill -9 "$victim"
ends torn
check "torn: said" grep -q 'a copy was being written when the ranks ended; the one before it counts' err
check "torn: the copy of step 6" grep -q '^weights   of step 6 from memory' err
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/whole12 "${keys[@]}" --parallel.zero=2 --train.steps=12
same_run "torn" runs/whole12 runs/torn

# --- bytes of the held copies change. The memory, as memory_copy.c has it: 72 bytes, then for each buffer 512 parts of 40: number, at, bytes, ... ---
memory() { for f in /proc/$launcher/fd/*; do readlink "$f" | grep -q memfd:copies && echo "$f"; done; }
part() { od -v -An -td8 -w40 -j $((72 + $1 * 512 * 40)) -N 160 "$(memory)"; } # part BUFFER: those of four ranks, a line each
numbers() { { part 0 && part 1; } | awk '{ print $1 }' | uniq | tr '\n' ' '; }
damage() { # damage BUFFER: a byte in the middle of rank 0's part
    local at bytes
    read -r _ at bytes _ <<<"$(part "$1" | head -n 1)"
    printf '\377\376\375' | dd of="$(memory)" bs=1 seek=$((at + 4096 + bytes / 2)) conv=notrunc status=none
}
standstill() { # standstill NAME STEP: the launcher stands still, its ranks are gone, and were not in the middle of a copy
    wait_for_step "runs/$1" "$2" $launcher
    kill -STOP $launcher
    for _ in $(seq 100); do
        pkill -STOP -P $launcher
        read -r a b more <<<"$(numbers)"
        [ "$a" -gt 0 ] && [ "$b" -gt 0 ] && [ -z "$more" ] && break
        pkill -CONT -P $launcher
        sleep 0.01
    done
    pkill -9 -P $launcher
    sleep 0.2
}
slow=(--train.batch_tokens=4096 --train.steps=36 --train.gradient_groups=4 --ckpt.every=20) # steps long enough to look between them
INGOT_SAVE_DELAY_MS=0 begin hurt 4 -- "${slow[@]}"
standstill hurt 10
damage $((a > b ? 0 : 1))
kill -CONT $launcher
said hurt 1 'is damaged: what rank 0 reads of it fails its checksum'
said hurt 1 'from memory'
standstill hurt 24
damage 0
damage 1
kill -CONT $launcher
ends hurt
check "hurt: disk" grep -q '^warning: no copy in memory to go on from (ckpt.memory_every): the run goes on from disk, from its last checkpoint' err
check "hurt: the checkpoint" grep -q '^weights .*runs/hurt/ckpt/' err
check "hurt: the metrics say so" [ "$(fact hurt resume_memory)" = 0.0 ]
run 0 launch -n 4 --no-doctor -- train r.yaml --run.dir=runs/slow "${keys[@]}" "${slow[@]}"
same_run "hurt" runs/slow runs/hurt

# --- the launcher goes, too: its memory with it ---
begin gone 4 -- --ckpt.every=10
wait_for_step runs/gone 15 $launcher
pids=$(pgrep -P $launcher)
disown $launcher
kill -9 $launcher
# shellcheck disable=SC2086 # several words
while kill -0 $launcher $pids 2>/dev/null; do sleep 0.05; done
begin gone 4 -- --ckpt.every=10 --resume
ends gone
check "gone: disk" grep -q 'no copy in memory to go on from' err
same_run "gone" runs/whole4 runs/gone

# --- a smaller mesh: replicas have the same part; shards do not ---
take_away() { # take_away NAME NUMBER: kills it now, and at its next start
    local old p
    old=$(pid_of "$2")
    kill -9 "$old"
    for _ in $(seq 4000); do
        p=$(pid_of "$2")
        [ -n "$p" ] && [ "$p" != "$old" ] && kill -9 "$p" && break
        sleep 0.005
    done
    said "$1" 1 "rank $2 of 4 is left out"
}
begin fewer 4 --min-ranks 2 --
wait_for_step runs/fewer 15 $launcher
take_away fewer 3
ends fewer
check "fewer: two ranks go on from memory" [ "$(sed -n '/is left out/,$p' err | grep -c 'from memory')" -ge 1 ]
same_run "fewer" runs/whole4 runs/fewer
begin shards 4 --min-ranks 2 -- --parallel.zero=1 --ckpt.every=10
wait_for_step runs/shards 15 $launcher
take_away shards 2
ends shards
check "shards: said" grep -q 'is of another mesh: rank 0 finds no part like its own' err
check "shards: disk" [ "$(sed -n '/is left out/,$p' err | grep -c '^weights .*/ckpt/')" -ge 1 ]
same_run "shards" runs/whole4 runs/shards

# --- refusals, and the plan ---
run 2 train r.yaml --run.dir=runs/alone "${copies[@]}"
says "ckpt.memory_every 3: the copy outlives the ranks in the memory of \`ingot launch\`"
check "nothing is written" [ ! -e runs/alone ]
run 0 plan r.yaml "${copies[@]}"
check "plan: bytes" grep -q '^  copies .*in host memory.*(ckpt.memory_every)$' out
run 0 plan r.yaml --json
cut=$(awk '/"memory_bytes_sum"/ { gsub(/[^0-9]/, ""); print ($0 + 1000) / 1073741824 }' out)
run 5 plan r.yaml "${copies[@]}" --machine.memory_gib="$cut"
says "ckpt.memory_every: two copies of the state take"
small=(launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/small "${copies[@]}")
run 5 "${small[@]}" --machine.memory_gib=0.001
cut=$(sed -nE 's/^error: the run needs ([0-9.]+) MiB.*/\1/p' err | awk '{ print ($1 + 0.1) / 1024 }')
run 5 "${small[@]}" --machine.memory_gib="$cut"
grep -q '^error: ckpt.memory_every: two copies of the state take' err || fail "a run that does not fit does not say so"
exit $failed
