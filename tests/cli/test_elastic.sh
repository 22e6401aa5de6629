#!/usr/bin/env bash
# `ingot launch --restart --min-ranks`: a rank that stays away is left out, the mesh shrinks, and grows back at the start after the next
# checkpoint; losses and weights are those of an undisturbed run.
. "$(dirname "$0")/../shell.sh"
make_corpus
keys=(--train.micro_batch=1 --train.batch_tokens=256 --train.steps=120 --ckpt.every=10 --eval.every=0 --machine.threads=1)
run 0 launch -n 4 --no-doctor -- train r.yaml --run.dir=runs/whole "${keys[@]}"

pid_of() { # pid_of NUMBER: the process that is this one of all ranks
    local p
    for p in $(pgrep -P "$launcher"); do tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "INGOT_LOCAL_RANK=$1" && echo "$p" && return; done
}
begin() { # begin NAME LEAST RANKS KEYS...: in the background
    local name=$1 least=$2 ranks=$3
    shift 3
    "$ingot" launch -n "$ranks" --restart 20 --min-ranks "$least" --no-doctor -- train r.yaml --run.dir="runs/$name" "${keys[@]}" "$@" >out 2>"$name.err" &
    launcher=$!
}
said() { # said NAME TIMES TEXT: until the job has said it so often
    for _ in $(seq 600); do
        [ "$(grep -c -- "$3" "$1.err")" -ge "$2" ] && return 0
        kill -0 $launcher 2>/dev/null || break
        sleep 0.05
    done
    cp "$1.err" err
    fail "$1 never says '$3' $2 times"
    return 1
}
# Kills number N now, and at its next start before it has done anything: it stays away.
take_away() { # take_away NAME NUMBER
    local restarts old p
    restarts=$(grep -c 'restart [0-9]* of 20$' "$1.err")
    old=$(pid_of "$2")
    kill -9 "$old"
    said "$1" $((restarts + 1)) 'restart [0-9]* of 20$' || return
    for _ in $(seq 2000); do
        p=$(pid_of "$2")
        [ -n "$p" ] && [ "$p" != "$old" ] && kill -9 "$p" && break
        sleep 0.005
    done
    said "$1" $((restarts + 2)) 'restart [0-9]* of 20$'
}
newest() { ls -d "runs/$1"/ckpt/step-* 2>/dev/null | tail -n 1; }
saves_again() { # saves_again NAME: a checkpoint that is not there yet
    local now
    now=$(newest "$1")
    for _ in $(seq 600); do
        [ "$(newest "$1")" != "$now" ] && return 0
        kill -0 $launcher 2>/dev/null || break
        sleep 0.05
    done
    cp "$1.err" err
    fail "$1: no further checkpoint"
}
ends() { # ends NAME CODE
    wait $launcher
    local code=$?
    cp "$1.err" err
    [ $code -eq "$2" ] || fail "$1 ends with $code, not $2"
}

# --- three of four ranks are left: with 8 micro-batches two can work, and keep the bits; then all again ---
begin shrinks 2 4
wait_for_step runs/shrinks 12 $launcher
take_away shrinks 3
said shrinks 1 'warning: rank 3 of 4 is left out: 2 go on as 1 x 2 x 1 (parallel.pipeline x data x parallel.tensor), with the same bits$'
saves_again shrinks
check "two ranks work" [ "$(pgrep -c -P $launcher)" -eq 2 ]
kill -9 "$(pid_of 1)"
said shrinks 1 'all 4 ranks start again$'
ends shrinks 0
check "each is said once" [ "$(grep -c 'left out\|start again' err)" -eq 2 ]
check "log.txt has both" [ "$(grep -c 'left out\|start again' runs/shrinks/log.txt)" -eq 2 ]
same_run "shrinks and grows" runs/whole runs/shrinks

# --- SIGUSR1 lets it grow without a failure ---
begin asked 1 4
wait_for_step runs/asked 12 $launcher
take_away asked 0
said asked 1 'rank 0 of 4 is left out'
saves_again asked
kill -USR1 $launcher
said asked 1 'all 4 ranks start again$'
ends asked 0
same_run "SIGUSR1" runs/whole runs/asked

# --- tensor parallelism: the data axis has nothing to give ---
short=(--parallel.tensor=2 --train.steps=30 --ckpt.every=5)
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/tensor "${keys[@]}" "${short[@]}"
export INGOT_LOAD_DELAY_MS=30 # its last steps must not be done before the rank is taken away
begin tensor1 1 2 "${short[@]}"
unset INGOT_LOAD_DELAY_MS
wait_for_step runs/tensor1 12 $launcher
take_away tensor1 1
said tensor1 1 'rank 1 of 2 is left out: 1 go on as 1 x 1 x 1 .*, with another order of sums$'
ends tensor1 0
last_loss() { losses "$1" | grep '"loss":' | tail -n 1 | grep -o '"loss":[0-9.]*' | cut -d: -f2; }
check "losses within 1e-5: $(last_loss runs/tensor) $(last_loss runs/tensor1)" awk -v a="$(last_loss runs/tensor)" -v b="$(last_loss runs/tensor1)" \
    'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'

# --- fewer than the least ---
begin least 4 4
wait_for_step runs/least 12 $launcher
take_away least 2
ends least 10
tail -n 1 err | grep -qx 'error: of 4 ranks 2 stays away: fewer than --min-ranks 4 are left' || fail "the last line is not why: $(tail -n 1 err)"

# --- the words ---
for words in "-n 4 --min-ranks 2" "-n 4 --restart 2 --min-ranks 5" "-n 4 --restart 2 --min-ranks -1"; do
    # shellcheck disable=SC2086 # several words
    run 2 launch $words -- train r.yaml --run.dir=runs/words
    says "--min-ranks"
done
run 2 launch -n 2 --restart 2 --min-ranks 1 -- bench collectives
says "--min-ranks 1: from 1 to the 2 ranks, for \`train\` with --restart N"
exit $failed
