#!/usr/bin/env bash
# What happens around a job of `ingot launch --restart`: signals, closed pipes and full disks neither end it nor end its restarts; what is
# said is in RUN/log.txt; a loss that is not finite is not tried again and again.
. "$(dirname "$0")/../shell.sh"
make_corpus
long=(--train.batch_tokens=128 --train.gradient_groups=2 --train.micro_batch=2 --train.steps=300 --ckpt.every=20)
run 0 train r.yaml --run.dir=runs/whole "${long[@]}"

victim() { for p in $(pgrep -P "$launcher"); do tr '\0' '\n' <"/proc/$p/environ" | grep -qx "INGOT_RANK=$1" && echo "$p"; done; }
step_now() { grep -c '"kind":"step"' "runs/$1/metrics.jsonl" 2>/dev/null || true; }
# disturb NAME SIGNALS...: the job $launcher gets them, one after another and at work, then rank 1 is killed; it ends as the whole run
disturb() {
    local name=$1 signal code
    shift
    wait_for_step "runs/$name" 5 "$launcher" || fail "$name does not begin"
    for signal in "$@"; do
        kill "-$signal" "$launcher" 2>/dev/null || fail "$name: has ended before SIG$signal"
        sleep 0.2
    done
    for _ in $(seq 100); do # a rank of now: after USR1 they start again
        kill -9 "$(victim 1)" 2>/dev/null && break
        sleep 0.05
    done
    for _ in $(seq 1200); do
        kill -0 "$launcher" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "$launcher" 2>/dev/null && fail "$name: stands still"
    wait "$launcher"
    code=$?
    [ $code -eq 0 ] || fail "$name: exit code $code"
    grep -q 'warning rank 1 was ended by signal 9 .*; restart 1 of 3$' "runs/$name/log.txt" || fail "$name: log.txt does not name the restart"
    same_state "$name" runs/whole "runs/$name"
}
begin() { # begin NAME: in the background, output where the caller has put it
    "$ingot" launch -n 2 --restart 3 -- train r.yaml --run.dir="runs/$1" "${long[@]}" &
    launcher=$!
}

begin hup >out 2>hup.err
disturb hup HUP PIPE TTOU
begin usr >out 2>usr.err
disturb usr USR1 USR2
check "the job goes on after SIGUSR1" grep -q 'info SIGUSR1: the ranks have saved and go on$' runs/usr/log.txt
check "SIGUSR1 counts as no restart" grep -q 'restart 1 of 3$' usr.err

# A reader that takes one line and goes away; a disk that is full.
mkfifo pipe
head -n 1 <pipe >first &
begin pipe >pipe 2>&1
: >err
disturb pipe
check "the reader got its line" [ "$(wc -l <first)" -eq 1 ]
begin full >/dev/full 2>&1
disturb full

# Without --restart SIGUSR1 ends the job, as SIGTERM does with it.
"$ingot" launch -n 2 -- train r.yaml --run.dir=runs/usr1 "${long[@]}" --train.steps=100000 >out 2>err &
launcher=$!
wait_for_step runs/usr1 5 $launcher
kill -USR1 $launcher
wait $launcher
code=$?
[ $code -eq 75 ] || fail "SIGUSR1 without --restart: exit code $code, not 75"
"$ingot" launch -n 2 --restart 3 -- train r.yaml --run.dir=runs/term "${long[@]}" --train.steps=100000 >out 2>err &
launcher=$!
wait_for_step runs/term 5 $launcher
kill -TERM $launcher
wait $launcher
code=$?
[ $code -eq 75 ] || fail "SIGTERM: exit code $code, not 75"
grep -q 'restart' err && fail "SIGTERM: started again"

# What ranks above 0 print is in the log, too: ids that the vocabulary does not have, for each rank.
le() { # le BYTES NUMBERS...: little endian
    local bytes=$1 number
    shift
    for number in "$@"; do
        for ((i = 0; i < bytes; i++)); do printf '%b' "\\0$(printf %o $((number >> (8 * i) & 255)))"; done
    done
}
{ le 4 20240520 1 800 && head -c 1012 /dev/zero && le 2 $(seq 1400 2199); } >large.bin
run 3 launch -n 2 -- train r.yaml --run.dir=runs/ranks "${long[@]}" --data.train=large.bin --model.vocab_size=320
check "rank 1 is heard" grep -q '^rank 1: error: large.bin' err
check "rank 1 is in log.txt" grep -q 'Z error rank 1: error: large.bin' runs/ranks/log.txt
# A run directory that another job has filled is not written to.
cp runs/whole/log.txt before
run 2 launch -n 2 -- train r.yaml --run.dir=runs/whole "${long[@]}"
check "a refused job leaves log.txt alone" cmp -s before runs/whole/log.txt

# Divergence is the same again.
run 6 launch -n 2 --restart 3 -- train r.yaml --run.dir=runs/diverged "${long[@]}" --optim.lr=100 --train.clip=0 --optim.warmup_steps=0 --ckpt.every=1
check "one restart" [ "$(grep -c 'restart [0-9] of 3' err)" -eq 1 ]
check "which is said" [ "$(tail -n 1 err | grep -c '^error: not started again, since a restart ended in the same way')" -eq 1 ]
exit $failed
