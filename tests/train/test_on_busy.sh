#!/usr/bin/env bash
# ckpt.on_busy=skip: a save that is due while the one before is still being written is skipped, by all ranks, said and counted; the end of a
# run is saved, and losses and checkpoints are those of a run that waits. INGOT_SAVE_HOLD holds the first save until the skips are in the log.
. "$(dirname "$0")/../shell.sh"
make_corpus
export OMP_NUM_THREADS=1
keys=(--train.steps=12 --ckpt.keep=100 --ckpt.every=3 --eval.every=0 --machine.threads=1 --train.batch_tokens=256 --train.micro_batch=2)
wait_for_text() { # wait_for_text PID RUN TEXT
    until grep -q "$3" "$2/log.txt" 2>/dev/null; do
        kill -0 "$1" 2>/dev/null || return
        sleep 0.02
    done
}
steps() { (cd "$1/ckpt" && echo step-*); }
skipped() { grep -o '"ckpt_skipped":[0-9]*' "$1/metrics.jsonl" | cut -d: -f2 | awk '{ n += $1 } END { if (NR) print n }'; }
busy() { # busy NAME RUN COMMAND...: the save of step 3 is held until that of step 9 is skipped
    local name=$1 dir=$2 job
    : >hold
    INGOT_SAVE_HOLD=$work/hold "${@:3}" >out 2>err &
    job=$!
    wait_for_text $job "$dir" "save of step 9"
    rm -f hold
    wait $job || { fail "$name: exit $?"; cat err; }
    for k in 6 9; do
        check "$name: one line for step $k" [ "$(grep -c "skipped   the save of step $k: that of step 3 is still being written (ckpt.on_busy)$" "$dir/log.txt")" -eq 1 ]
    done
    check "$name: saved are $(steps "$dir")" [ "$(steps "$dir")" = "step-00000003 step-00000012" ]
    check "$name: counted are $(skipped "$dir")" [ "$(skipped "$dir")" -eq 2 ]
    all_sound "$name" "$dir"
}
train() { "$ingot" train r.yaml --run.dir="$1" "${keys[@]}" "${@:2}"; }
here() { "$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir="$1" "${keys[@]}" "${@:2}"; }

train waits >out 2>err || fail "a run that waits: exit $?"
check "a run that waits saves all" [ "$(steps waits)" = "step-00000003 step-00000006 step-00000009 step-00000012" ]
check "and skips nothing" [ -z "$(skipped waits)" ]
busy "one rank" one train one --ckpt.on_busy=skip
same_run "one rank" waits one
# Rank 1 is ready when its copy is made, rank 0 when the files are: both must skip.
busy "two ranks" two here two --ckpt.on_busy=skip --parallel.zero=1
here two_wait --parallel.zero=1 >out 2>err || fail "two ranks that wait: exit $?"
same_run "two ranks" two_wait two

# --- a run that a signal ends is saved, though a save is being written; it waits for that one ---
: >hold
INGOT_SAVE_HOLD=$work/hold "$ingot" train r.yaml --run.dir=signal "${keys[@]}" --train.steps=1000000 --ckpt.on_busy=skip >out 2>err &
job=$!
wait_for_text $job signal "save of step 6"
kill -TERM $job
rm -f hold
wait $job
last=$(steps signal | sed 's/.*step-0*//')
grep -q "saved at step $last of 1000000" err || fail "the last checkpoint is not of the step at which a signal ended the run: $(cat err)"
check "nothing was saved between" [ "$(steps signal | wc -w)" -eq 2 ]
all_sound "a signal" signal

run 2 train r.yaml --run.dir=never "${keys[@]}" --ckpt.on_busy=skip --ckpt.async=false
says "ckpt.on_busy"
exit $failed
