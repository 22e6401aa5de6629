#!/usr/bin/env bash
# Alerts of whole runs: RUN/alerts.jsonl, the command of log.alert_exec, what monitor and report show of them. A stopped rank, a stopped
# process, a nearly full disk, an Xid.
. "$(dirname "$0")/../shell.sh"
make_corpus
unset INGOT_ROOT
alerts() { # alerts RUN_DIR NAME: how many lines with the alert begin
    grep -c "\"alert\":\"$2\",\"state\":\"on\"" "$1/alerts.jsonl"
}

# --- a sound run: a head, and nothing else ---
run 0 train r.yaml --run.dir=a
check "the schema" [ "$(head -n 1 a/alerts.jsonl)" = '{"kind":"schema","format":"ingot alerts","version":1}' ]
check "a start, and no alert" [ "$(wc -l <a/alerts.jsonl)" -eq 2 ]
run 0 train r.yaml --run.dir=none --log.alerts=false
check "none wanted, none written" [ ! -e none/alerts.jsonl ]
same_run "alerts change nothing" a none
run 0 train a --resume --train.steps=44
check "a resume begins a part" [ "$(grep -c '"kind":"start","time":[0-9.]*,"step":40' a/alerts.jsonl)" -eq 1 ]

# --- an Xid, and a command that gets it; one that lasts delays nothing ---
printf 'cards=1\ncard 0 xid=79\n' >gpus
INGOT_NVML_SCRIPT=gpus run 0 train r.yaml --run.dir=b --log.alert_exec='cat >>told' --log.host_every=0.2
check "the Xid with what to do" grep -q '"alert":"xid".*gpu0.*Xid 79, the GPU has fallen off the bus: restart the host' b/alerts.jsonl
check "the command got it" grep -q '"run":"b","alert":"xid"' told
run 0 monitor b --once
check "monitor has it" grep -q 'ALERT .*xid' out
check "the report, too" grep -q '<h2>Alerts' b/report.html
run 11 monitor b --once --strict
begin=$(date +%s)
INGOT_NVML_SCRIPT=gpus run 0 train r.yaml --run.dir=c --log.alert_exec='sleep 1000 & sleep 1000' --log.host_every=0.2
check "a command that lasts is ended after 10 s" [ $(($(date +%s) - begin)) -lt 600 ]
check "and it is said" grep -q 'log.alert_exec: the command did not end within 10 s' err

# --- a rank that is stopped: the run ends with 10, and says which rank and what it costs ---
"$ingot" launch --no-doctor -n 2 -- train r.yaml --run.dir=d --train.steps=100000 --ckpt.every=50 >out 2>err &
pid=$!
wait_for_step d 120 $pid
rank=$(pgrep -P $pid -f 'train r.yaml' | tail -n 1)
kill -STOP "$rank"
wait $pid
check "exit 10" [ $? -eq 10 ]
kill -KILL "$rank" 2>/dev/null
check "the end has a sentence" [ "$(alerts d ended)" -eq 1 ]
check "it names rank and process" grep -q "\"alert\":\"ended\".*code 10 after step [0-9]*: rank [01] (process $rank).*a resume repeats [0-9]* step" d/alerts.jsonl
check "its price" grep -q '"alert":"ended".*"seconds":[0-9.]*,"share":0[.0-9]*' d/alerts.jsonl

# --- a process that is stopped and continued ---
"$ingot" train r.yaml --run.dir=e --train.steps=1000000 >out 2>err &
pid=$!
wait_for_step e 40 $pid
sleep 1.5
kill -STOP $pid
sleep 12
kill -CONT $pid
until grep -qs '"alert":"pause","state":"over"' e/alerts.jsonl || ! kill -0 $pid 2>/dev/null; do sleep 0.1; done
kill -INT $pid
wait $pid
check "stopped, continued, saved: 75" [ $? -eq 75 ]
check "the pause is named" grep -q '"alert":"pause","state":"over".*rank 0 on .*did not run for \(1[2-9]\|[2-9][0-9]\)' e/alerts.jsonl
check "with its price" grep -q '"alert":"pause".*"seconds":\(1[2-9]\|[2-9][0-9]\)' e/alerts.jsonl

# --- a disk with room for less than two checkpoints ---
mkdir disk
if mount -t tmpfs -o size=16m none disk 2>/dev/null; then
    trap 'umount "$work/disk"; rm -rf "$work"' EXIT
    bytes=$(du -sb a/ckpt/step-00000044 | cut -f1)
    fallocate -l $((16777216 - bytes * 5 / 2)) disk/ballast
    run 0 train r.yaml --run.dir=disk/run --train.steps=6 --eval.every=0 --ckpt.every=0 --ckpt.on_full=stop
    check "the disk is named" grep -q '"alert":"disk".*are free where the run is written, a checkpoint needs' disk/run/alerts.jsonl
    run 74 monitor disk/run --once --strict
fi
exit $failed
