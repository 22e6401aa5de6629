#!/usr/bin/env bash
# ingot explain and ingot bundle on runs that really end, each in its own way; and a bundle without weights, texts and secrets.
. "$(dirname "$0")/../shell.sh"
. "$(dirname "$0")/explained.sh"

# --- by its own word ---
run 0 train r.yaml --run.dir=runs/done --train.steps=6
because runs/done finished 'ended at step 6 of 6'
run 75 train r.yaml --run.dir=runs/limit --train.steps=100000 --train.max_minutes=0.01
because runs/limit time_limit 'train.max_minutes'
for signal in INT:interrupt TERM:terminate USR1:user_signal; do
    long runs/"${signal%:*}"
    kill -"${signal%:*}" $pid
    wait $pid
    because runs/"${signal%:*}" "${signal#*:}" 'it is saved'
done
run 6 train r.yaml --run.dir=runs/nan --eval.every=0 --optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0
"$ingot" explain runs/nan --json >why
check "NaN: $(grep '"cause"' why)" grep -qE '"cause": "nan_(loss|gradient|state)"' why
run 0 train r.yaml --run.dir=runs/data --train.steps=6
cp -r data data.old
run 0 data build corpus.txt --tokenizer tok --separator blank --val-fraction 0.3 -o data/c --force
run 3 train r.yaml --run.dir=runs/data --resume --train.steps=12
because runs/data data_changed 'not those that it began with'
rm -r data && mv data.old data
exit_full() { # the k-th call that writes the checkpoint meets a full disk
    for k in 60 80 100 120 140 160; do
        rm -rf runs/full
        INGOT_IO_FAULT=$k:ENOSPC "$ingot" train r.yaml --run.dir=runs/full --train.steps=6 --ckpt.on_full=stop --eval.every=0 >out 2>err
        [ $? -eq 74 ] && grep -q '"code": 74' runs/full/exit.json && return 0
    done
    return 1
}
exit_full 2>/dev/null || fail "no call met the full disk"
because runs/full disk_full 'No space left'

# --- without a word ---
long runs/kill
kill -9 $pid
wait $pid 2>/dev/null
because runs/kill killed 'killed without a word'
export INGOT_SAVE_DELAY_MS=9000
long runs/twice --train.batch_tokens=65536
unset INGOT_SAVE_DELAY_MS
kill -INT $pid
until grep -q 'SIGINT' runs/twice/log.txt || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
kill -9 $pid
wait $pid 2>/dev/null
because runs/twice interrupt_twice 'second Ctrl-C'
mkdir -p root/proc/sys/kernel/random root/dev
hostname >root/proc/sys/kernel/hostname
echo another >root/proc/sys/kernel/random/boot_id
INGOT_ROOT=root because runs/kill host_restarted 'went down'
cp /proc/sys/kernel/random/boot_id root/proc/sys/kernel/random/boot_id
cut -d' ' -f1 /proc/uptime >root/proc/uptime
printf '3,1,%.0f,-;Out of memory: Killed process %d (ingot) total-vm:99kB\n' "$(cut -d' ' -f1 /proc/uptime | tr -d .)0000" \
    "$(sed -E 's/process ([0-9]+) on .*/\1/' runs/kill/lock)" >root/dev/kmsg
INGOT_ROOT=root because runs/kill oom_killer 'out-of-memory killer'

# --- a failed CHECK: text, file and line ---
"$ingot" train r.yaml --run.dir=runs/calls --train.steps=6 >/dev/null 2>&1
for k in 200 150 100; do # the call must come behind the begin of the run
    rm -rf runs/bug
    INGOT_IO_FAULT=$k:CHECK "$ingot" train r.yaml --run.dir=runs/bug --train.steps=20 --eval.every=0 >out 2>err
    code=$?
    [ -s runs/bug/bug.txt ] && break
done
check "it ends by SIGABRT, not $code" [ $code -eq 134 ]
check "where and what" grep -q '^ingot: bug: INGOT_IO_FAULT asks for it' err
check "a line in bug.txt" grep -qE "^20[0-9-]+T[0-9:]+Z	rank 0	process [0-9]+	io.c:[0-9]+.*	err != IO_FAULT_CHECK	INGOT_IO_FAULT asks for it at call $k\$" runs/bug/bug.txt
because runs/bug check "INGOT_IO_FAULT asks for it at call $k: check err != IO_FAULT_CHECK at io.c:"
run 0 explain runs/bug
check "what to do" grep -q 'please report it with the output of ingot bundle runs/bug' out
cp out live
run 0 bundle runs/bug -o bug.tar.zst
mv runs/bug gone
run 0 explain bug.tar.zst
check "the same from its bundle" cmp -s out live
mv gone runs/bug
run 0 train runs/bug --resume
because runs/bug finished 'is finished' # what came before does not count

# --- ranks ---
INGOT_IO_FAULT=$k:CHECK run 10 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/bugs --train.steps=20 --eval.every=0
check "launch names the rank and the signal" grep -q '^error: rank [01] was ended by signal 6 (Aborted)' err
because runs/bugs check "INGOT_IO_FAULT asks for it"
ranks() { # ranks RUN SIGNAL: two ranks, of which the second gets it
    "$ingot" launch -n 2 --no-doctor -- train r.yaml --run.dir="$1" --train.steps=100000 --eval.every=0 >/dev/null 2>long.err &
    pid=$!
    wait_for_step "$1" 5 $pid || fail "$1 does not come to step 5: $(tail -1 long.err)"
    for p in $(pgrep -P $pid); do
        tr '\0' '\n' <"/proc/$p/environ" | grep -qx INGOT_RANK=1 && kill -"$2" "$p"
    done
    wait $pid 2>/dev/null
}
ranks runs/peer KILL
because runs/peer peer_killed 'rank 1'
# Built with ASan a process takes the signal itself and ends with an exit code.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0 ranks runs/crash SEGV
because runs/crash peer_crashed 'rank 1'
ranks runs/still STOP
"$ingot" explain runs/still --json >why
check "a stopped rank: $(grep '"cause"' why)" grep -qE '"cause": "peer_(stopped|silent)"' why

# --- now ---
long runs/now
because runs/now running 'runs, step'
kill -STOP $pid
sleep 1.5
because runs/now frozen 'stopped by a signal'
kill -CONT $pid
kill -9 $pid
wait $pid 2>/dev/null

# --- the text, and slips ---
run 0 explain runs/nan
check "a remedy" grep -q '^do: ' out
check "evidence" grep -q '^  exit.json  *code 6: ' out
run 2 explain nowhere
says 'nowhere: no such run'
run 3 explain corpus.txt
says 'not a bundle'

# --- a bundle: the same sentence elsewhere, no weights, no texts, no secrets ---
export HF_TOKEN=planted-in-env-1 MY_DB_PASSWORD=planted-in-env-2
run 0 train r.yaml --run.dir=runs/secret --train.steps=6 --log.sample_prompt="planted-in-text house of the king" \
    --data.val=data/c_val_*.bin --run.name=sk-planted0in0config0text0000
cat >>runs/secret/log.txt <<'TXT'
2027-01-15T08:02:30Z info cloning https://me:planted-in-url@git.example.org/x
2027-01-15T08:02:30Z info header Authorization: Bearer planted-in-header
2027-01-15T08:02:30Z info api_key = "planted in quotes" and planted-in-env-1
TXT
echo '{"kind":"sample","step":6,"prompt":"planted-in-sample","text":"planted-in-sample"}' >>runs/secret/metrics.jsonl
printf 'planted-stray' >runs/secret/notes.txt
printf '  api_token: planted-in-config\n' >>runs/secret/config.yaml
run 0 bundle runs/secret -o secret.tar.zst
check "small" [ "$(stat -c %s secret.tar.zst)" -lt 100000 ]
check "for the owner alone" [ "$(stat -c %a secret.tar.zst)" = 600 ]
mkdir open
check "tar reads it" tar --zstd -xf secret.tar.zst -C open
for name in explain.json exit.json env.json config.yaml log.txt metrics.jsonl checkpoints.json; do
    check "it holds $name" [ -s open/$name ]
done
grep -rn planted open >found && fail "planted secrets are in it: $(cat found)"
check "no weights" [ -z "$(find open -size +200k)" ]
check "numbers stay" grep -q '"kind":"step","step":6,"tokens":768' open/metrics.jsonl
check "keys stay" grep -q 'batch_tokens: 128' open/config.yaml
check "the tokenizer's place stays" grep -q 'tokenizer' open/config.yaml
unset HF_TOKEN MY_DB_PASSWORD
run 0 bundle runs/nan --json
check "its JSON" grep -q '"schema": "ingot.bundle/1"' out
run 0 explain runs/nan
cp out live
rm -r runs/nan
run 0 explain nan.tar.zst
check "the same sentence from a bundle" cmp -s out live
run 2 bundle nowhere
says 'bundle: nowhere: no such run'
run 74 bundle runs/done -o none/there.tar.zst
head -c 100 secret.tar.zst >torn.tar.zst
run 3 explain torn.tar.zst
exit $failed
