#!/usr/bin/env bash
# A run of tiny steps under random faults, one in each of its lives: it is killed, stopped, refused memory, finds the disk full or failing,
# its newest checkpoint damaged, or loses a rank. It ends with the losses and weights of an undisturbed run, bit for bit; every life ends
# with a documented exit code; every checkpoint that was not damaged on purpose verifies.
# FAULTS=N: so many faults (scripts/faults.sh). SEED=N repeats them, as far as the machine does. The last lines are a table.
tests=$(cd "$(dirname "$0")/.." && pwd)
. "$tests/shell.sh"
make_corpus
kinds=(kill kill call call stop full io damage rank)
if command -v cc >/dev/null && ! ldd "$ingot" | grep -q 'lib[at]san'; then
    cc -shared -fPIC -O1 -fno-builtin -o shim.so "$tests/cli/memory_shim.c" && kinds+=(memory)
fi
RANDOM=$((${SEED:-$(date +%N | sed 's/^0*//')} % 32768))
echo "SEED=${SEED:-$RANDOM}"
faults=${FAULTS:-24}
keys=(--train.gradient_groups=2 --train.steps=60 --ckpt.every=4 --ckpt.on_full=stop --eval.every=20 --machine.threads=1)
declare -A injected survived
count=0 lost=0 rounds=0
begin=$(date +%s%N)
run 0 train r.yaml --run.dir=whole "${keys[@]}"
span=$((($(date +%s%N) - begin) / 1000000))
at_random() { sleep "$(awk -v n=$RANDOM -v ms=$span 'BEGIN { printf "%.3f", n / 32768 * ms / 1000 }')"; }
background() { # background WORDS...: a life; its process in $pid
    "$@" >out 2>err &
    pid=$!
}
train=(train r.yaml --resume "${keys[@]}")

# Each life_KIND DIR sets `code`, and `ok` to the exit codes that it may end with besides 0.
life_kill() { ok=137 && background "$ingot" "${train[@]}" --run.dir="$1" && at_random && { kill -9 $pid || true; }; } 2>/dev/null
life_call() { ok=137 && INGOT_IO_FAULT=$((RANDOM % 500 + 1)):KILL background "$ingot" "${train[@]}" --run.dir="$1"; }
life_stop() { # stands still for a while, and is killed if it was in the middle of something
    ok=137 && background "$ingot" "${train[@]}" --run.dir="$1" && at_random
    kill -STOP $pid && sleep 0.1 && kill -$((RANDOM % 2 ? 18 : 9)) $pid
} 2>/dev/null
life_memory() { # a request is refused, or all from there on
    ok=5 && background env MEMORY_FAULT=$((RANDOM % 4000 + 1))$([ $((RANDOM % 2)) -eq 0 ] && echo :on) LD_PRELOAD="$PWD/shim.so" GOMP_SPINCOUNT=5000 \
        "$ingot" "${train[@]}" --run.dir="$1"
}
life_full() { ok=74 && INGOT_IO_FAULT=$((RANDOM % 500 + 1)):ENOSPC background "$ingot" "${train[@]}" --run.dir="$1"; }
life_io() { ok=74 && INGOT_IO_FAULT=$((RANDOM % 500 + 1)):EIO background "$ingot" "${train[@]}" --run.dir="$1"; }
life_damage() { # a byte of the newest checkpoint, or its end; then it is killed at random
    local newest file bytes
    newest=$(find "$1/ckpt" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1)
    if [ -n "$newest" ] && [ "$(find "$1/ckpt" -maxdepth 1 -name 'step-*' | wc -l)" -gt 1 ]; then
        file=$newest/$([ $((RANDOM % 2)) -eq 0 ] && echo manifest.json || echo state-00000.safetensors)
        bytes=$(stat -c %s "$file")
        if [ $((RANDOM % 2)) -eq 0 ]; then
            truncate -s $((RANDOM * RANDOM % bytes)) "$file"
        else
            local at=$((RANDOM * RANDOM % bytes)) byte
            byte=$(od -An -tu1 -j$at -N1 "$file")
            printf '%b' "\\0$(printf %o $((byte ^ 1 << RANDOM % 8)))" | dd of="$file" bs=1 seek=$at conv=notrunc status=none
        fi
        hurt+=" ${newest##*/} "
    fi
    life_kill "$1"
}
life_rank() { # one of two ranks; the job starts again
    ok=10 && background "$ingot" launch -n 2 --restart 2 --no-doctor -- "${train[@]}" --run.dir="$1" && at_random
    local ranks
    mapfile -t ranks < <(pgrep -P $pid)
    [ ${#ranks[@]} -eq 0 ] || kill -9 "${ranks[RANDOM % ${#ranks[@]}]}"
} 2>/dev/null

# What is not damaged on purpose verifies; what verifies again was saved again.
checkpoints_verify() { # checkpoints_verify DIR
    local dir name
    for dir in "$1"/ckpt/step-*; do
        [ -d "$dir" ] || continue
        name=${dir##*/}
        if "$ingot" ckpt verify "$dir" >/dev/null 2>verify.err; then
            hurt=${hurt// $name /}
        elif [[ $hurt != *" $name "* ]]; then
            echo "$dir: $(tail -n 1 verify.err)"
            return 1
        fi
    done
}
one_life() { # one_life KIND DIR: 0 when the run is over
    local code=0 wrong=""
    "life_$1" "$2"
    { timeout 120 tail --pid=$pid -f /dev/null || { wrong="hangs" && kill -9 $pid; }; } 2>/dev/null
    wait $pid 2>/dev/null || code=$?
    [ $code -eq 0 ] || [ $code -eq "$ok" ] || wrong="exit code $code"
    [ $code -eq 0 ] || [ $code -eq 137 ] || grep -q '^error: ' err || wrong="exit code $code without a line"
    [ -n "$wrong" ] || wrong=$(checkpoints_verify "$2")
    injected[$1]=$((${injected[$1]:-0} + 1)) count=$((count + 1))
    if [ -n "$wrong" ]; then
        lost=$((lost + 1))
        fail "$1: $wrong"
    else
        survived[$1]=$((${survived[$1]:-0} + 1))
    fi
    return $code
}
while [ $count -lt "$faults" ] && [ $lost -eq 0 ]; do
    rounds=$((rounds + 1)) dir=run$rounds hurt="" lives=0
    until [ $count -ge "$faults" ] || [ $lives -ge 20 ] || [ $lost -gt 0 ]; do
        lives=$((lives + 1))
        one_life "${kinds[RANDOM % ${#kinds[@]}]}" $dir && break
    done
    [ $lost -gt 0 ] && break
    run 0 train r.yaml --resume "${keys[@]}" --run.dir=$dir
    same_run "round $rounds" whole $dir
    check "round $rounds leaves nothing behind" [ -z "$(find $dir -name '.t*' -o -name '*.tmp-*')" ]
    rm -rf $dir
    [ $failed -eq 0 ] || break
done
printf '%-8s %9s %9s\n' fault injected survived
for kind in "${!injected[@]}"; do printf '%-8s %9d %9d\n' "$kind" "${injected[$kind]}" "${survived[$kind]:-0}"; done | sort
echo "$rounds runs to their end, $lost lost, $failed failed"
exit $failed
