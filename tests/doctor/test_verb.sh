#!/usr/bin/env bash
# ingot doctor as a program: a host without a GPU, made-up GPUs, a recorded tree, Nagios, the history between two looks, launch.
. "$(dirname "$0")/../shell.sh"
export XDG_STATE_HOME=$work/state
unset INGOT_ROOT INGOT_NVML_SCRIPT
verdict() { # verdict CHECK: of the JSON in out
    tr -d '\n' <out | grep -oE "\"id\": \"$1\"[^}]*" | grep -oE '"verdict": "[a-z]+"' | grep -oE '[a-z]+"$' | tr -d '"' | sort -u | tr '\n' ' '
}
expect() { # expect CHECK VERDICT
    [ "$(verdict "$1")" = "$2 " ] || fail "$1 says '$(verdict "$1")', not $2"
}

# ---- a laptop
mkdir disk
run 0 doctor --storage disk
check "a page without a GPU" grep -q 'passed' out
check "skips have a reason" grep -q 'SKIP  *no NVIDIA driver on this host: cards' out
run 0 doctor --json --storage disk
check "the schema" grep -q '"schema": "ingot.doctor/1"' out
expect cards skip
expect nofile pass
run 0 doctor --full --json --storage disk
check "rates are measured, and judged by their limits" python3 - <<'PY'
import json
checks = {c["id"]: c for c in json.load(open("out"))["checks"]}
for name in "disk_rate", "memory_rate":
    c = checks[name]
    assert c["measured"] > 0 and c["verdict"] == ("pass" if c["measured"] >= c["expected"] else "warn"), c
PY
check "nothing stays on the disk" [ -z "$(ls disk)" ]

# ---- GPUs that are made up
printf 'cards=8\ncard 4 links_active=17\n' >gpus
INGOT_NVML_SCRIPT=gpus run 11 doctor --storage disk
says 'not fit for a run'
check "the link" grep -q 'FAIL  nvlink       gpu4: 17 of 18 NVLinks are active' out
check "its remedy" grep -q 'nvidia-smi nvlink -s' out
printf 'cards=2\ncard 0 lost=1\n' >gpus
INGOT_NVML_SCRIPT=gpus run 11 doctor --storage disk
printf 'init=18\n' >gpus
INGOT_NVML_SCRIPT=gpus run 11 doctor --json --storage disk
expect driver fail
printf 'cards=2\ncard 0 wats=1\n' >gpus
INGOT_NVML_SCRIPT=gpus run 2 doctor --storage disk
says 'line 2'

# ---- two looks: only what grows in between counts
printf 'cards=1\ncard 0 link_errors=5\n' >gpus
mkdir -p root/proc
printf '100.0 1\n' >root/proc/uptime
export INGOT_ROOT=$work/root
INGOT_NVML_SCRIPT=gpus run 0 doctor --json --storage disk --state look.json
expect link_errors pass
sleep 0.1
INGOT_NVML_SCRIPT=gpus run 0 doctor --json --storage disk --state look.json
expect link_errors pass
printf 'cards=1\ncard 0 link_errors=9\n' >gpus
INGOT_NVML_SCRIPT=gpus run 0 doctor --json --storage disk --state look.json
expect link_errors warn
printf '0.0 1\n' >root/proc/uptime # the host was restarted: counters begin again
printf 'cards=1\ncard 0 link_errors=20\n' >gpus
INGOT_NVML_SCRIPT=gpus run 0 doctor --json --storage disk --state look.json
expect link_errors pass
echo '{}' >look.json
run 3 doctor --state look.json
says 'not a file of `ingot doctor`'

# ---- a recorded tree: bridges with and without ACS
printf '100.0 1\n' >root/proc/uptime
b=root/sys/bus/pci/devices/0000:17:00.0
mkdir -p "$b"
echo 0x060400 >"$b/class"
{ head -c 256 /dev/zero; printf '\x0d\x00\x01\x00\x00\x00\x1d\x00'; head -c 3832 /dev/zero; } >"$b/config"
printf 'cards=2\n' >gpus
two_gpus() { INGOT_NVML_SCRIPT=gpus "$ingot" doctor --json --storage disk >out 2>err; } # with NCCL or, exit code 10, without
two_gpus
expect acs warn
{ head -c 256 /dev/zero; printf '\x0d\x00\x01\x00\x00\x00\x00\x00'; head -c 3832 /dev/zero; } >"$b/config"
two_gpus
expect acs pass
head -c 64 /dev/zero >"$b/config"
two_gpus
expect acs skip

# ---- Nagios: its own codes, one line
mkdir -p root/proc
printf '0.1 0.1 0.1 1/1 1\n' >root/proc/loadavg
printf 'MemAvailable: 99000000 kB\n' >root/proc/meminfo
printf 'cards=8\ncard 4 rows_failed=1\n' >gpus
INGOT_NVML_SCRIPT=gpus run 2 doctor --nagios --storage disk
check "one line" [ "$(wc -l <out)" -eq 1 ]
check "its form" grep -qE '^INGOT CRITICAL - .*rows: gpu4.* \| pass=[0-9]+ skip=[0-9]+ warn=[0-9]+;0 fail=[0-9]+;;0 seconds=[0-9.]+s$' out
check "nothing else" [ ! -s err ]
unset INGOT_ROOT

# ---- acceptance of a host without a GPU: a certificate, and its own past
run 0 doctor --accept --json --storage disk
check "a certificate" [ "$(ls disk/accept-*.json | wc -l)" -eq 1 ]
expect product pass
sed -i -E 's/("best": )[0-9.e+]+/\11e9/' state/ingot/accept.json
rm disk/*
"$ingot" doctor --accept --json --storage disk >out 2>err
check "the past was better" [ "$(verdict past)" = "fail " ]

# ---- launch looks first
printf 'cards=1\ncard 0 rows_failed=1\n' >gpus
INGOT_NVML_SCRIPT=gpus run 11 launch -n 1 -- bench collectives --max-bytes 4096 --runs 1
says 'not fit for a run'
check "what and what to do" grep -q 'could not be remapped' err
INGOT_NVML_SCRIPT=gpus run 0 launch --no-doctor -n 2 -- bench collectives --max-bytes 4096 --runs 1

# ---- ranks, each as if it were a host of its own: one says what is wrong with another, and what differs
printf 'cards=1\ndriver=580.1\n' >gpus0
printf 'cards=1\ndriver=590.2\ncard 0 rows_failed=1\n' >gpus1
port=$((20000 + $$ % 10000))
for r in 0 1; do
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port INGOT_NVML_SCRIPT=gpus$r \
        "$ingot" doctor --json --storage disk --fresh >out.$r 2>err.$r &
    pids[r]=$!
done
wait "${pids[0]}"
code=$?
wait "${pids[1]}"
cp out.0 out
check "rank 0 knows of rank 1's failure: $code" [ $code -eq 10 ]
check "and says it" grep -q '(rank 1): rows: gpu0: a row' out
check "what differs" grep -q 'driver of .*: 590.2; of .*: 580.1' out
expect skew pass
check "rank 1 is silent" [ ! -s out.1 ]

# ---- a run: what it needs here
make_corpus
run 0 doctor r.yaml --json --fresh
for c in run_device run_data run_memory run_disk run_dir; do expect $c pass; done
expect run_port skip
check "its numbers" grep -q '"why": "runs/default will be made"\|"why": "runs/[a-z0-9_-]* will be made"' out
check "nothing is made" [ ! -e runs ]
run 3 doctor r.yaml --json --fresh --data.train='nothing_*.bin'
expect run_data fail
check "which pattern" grep -q 'nothing_' out
run 3 doctor r.yaml --json --fresh --model.vocab_size=64
expect run_data fail
run 5 doctor r.yaml --json --fresh --machine.memory_gib=0.0001
expect run_memory fail
run 0 doctor r.yaml --json --fresh --ckpt.keep=1000000
expect run_disk warn
run 11 doctor r.yaml --json --fresh --machine.device=cuda
expect run_device fail
mkdir -p tight/proc
printf 'MemTotal: 99000000 kB\nMemAvailable: 300000 kB\n' >tight/proc/meminfo
INGOT_ROOT=$work/tight run 5 doctor r.yaml --json --fresh --model.layer_count=24 --model.hidden_size=512 --model.ffn_size=2048 --model.head_count=8
expect run_memory fail
check "free now" grep -q 'are free now' out
printf 'cards=8\n' >gpus
INGOT_NVML_SCRIPT=gpus "$ingot" doctor --json --fresh --model.preset=70b --model.layer_count=400 --train.batch_tokens=4Mi --train.steps=9 --machine.device=cuda >out 2>err
expect run_memory fail
INGOT_NVML_SCRIPT=gpus "$ingot" doctor --json --fresh --model.preset=7b --train.batch_tokens=4Mi --train.steps=9 --machine.device=cuda >out 2>err
expect run_memory pass
"$ingot" train r.yaml --run.dir=runs/now --train.steps=1000000 --eval.every=0 >/dev/null 2>&1 &
trainer=$!
wait_for_step runs/now 5 $trainer
run 74 doctor runs/now --json --fresh
expect run_dir fail
check "who trains there" grep -q 'a process trains runs/now now' out
kill -TERM $trainer
wait $trainer
run 0 doctor runs/now --json --fresh
check "a run that is there" grep -q 'runs/now holds a run: --resume goes on with it' out
touch plain # nobody can make a directory there
run 74 doctor r.yaml --json --fresh --run.dir=plain/x/y
expect run_dir fail
python3 -c 'import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1); print(s.getsockname()[1], flush=True); time.sleep(60)' >taken &
holder=$!
until [ -s taken ]; do sleep 0.05; done
MASTER_PORT=$(cat taken) run 10 doctor r.yaml --json --fresh
expect run_port fail
check "who has the port" grep -q "port $(cat taken) is taken by process $holder (python3" out
kill $holder
MASTER_PORT=many run 10 doctor r.yaml --json --fresh
expect run_port fail
MASTER_PORT=$((20000 + $$ % 10000)) run 0 doctor r.yaml --json --fresh
expect run_port pass
run 74 doctor none.yaml
run 2 doctor r.yaml --checks
says 'take no run'

# ---- messages: between two processes here, and from rank to rank
run 0 doctor --net --json --fresh --storage disk
check "a rate between two processes" jq -e '.rates[] | select(.what == "message_rate" and .entity == "two processes of this host") | .value > 0' out >/dev/null
check "judged" [ "$(jq '[.checks[] | select(.id == "messages" and (.verdict == "pass" or .verdict == "warn"))] | length' out)" -eq 1 ]
run 0 doctor --json --fresh --storage disk
check "only when it is asked" [ "$(jq '[.checks[] | select(.id == "messages")] | length' out)" -eq 0 ]
port=$((30000 + $$ % 10000))
for r in 0 1 2; do
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$ingot" doctor --net --json --storage disk --fresh >out.$r 2>err.$r &
    pids[r]=$!
done
wait "${pids[@]}"
check "each rank to the next" [ "$(jq -c '[.checks[] | select(.id == "messages") | .entity | sub(" \\(.*\\) to"; " to") | sub(" \\(.*\\)$"; "")] | sort' out.0)" = '["rank 0 to rank 1","rank 1 to rank 2","rank 2 to rank 0"]' ]

# ---- a stored look beside that of now
run 0 doctor --full --json --fresh --storage disk
cp out base
jq '.rates[].value *= 100' base >fast
jq '.rates[].value /= 100' base >slow
run 0 doctor --full --json --fresh --storage disk --baseline slow
expect baseline pass
run 0 doctor --full --json --fresh --storage disk --baseline fast
expect baseline warn
check "each rate" [ "$(jq '[.checks[] | select(.id == "baseline")] | length' out)" -eq "$(jq '.rates | length' base)" ]
check "with both numbers" grep -qE 'disk_write of .*: [0-9.e+]+ MB/s, it was [0-9.e+]+: 9[0-9] % less' out
jq '(.checks[] | select(.id | endswith("_rate"))).verdict = "pass"' base >sound # a busy machine's disk may be slow
run 2 doctor --replay sound --baseline fast --strict
run 0 doctor --full --json --fresh --storage disk --baseline fast --within 99.99
expect baseline pass
jq '.rates[].entity = "another"' fast >moved
run 0 doctor --full --json --fresh --storage disk --baseline moved
check "of its kind" grep -q 'the median of its kind was' out
run 0 doctor --json --fresh --storage disk --baseline base
expect baseline skip
run 3 doctor --json --fresh --storage disk --baseline r.yaml
says 'r.yaml: line'
echo '{}' >empty.json
run 3 doctor --json --fresh --storage disk --baseline empty.json
says 'empty.json: no output of `ingot doctor --json`'
run 74 doctor --json --fresh --storage disk --baseline none.json
run 2 doctor --within 0
says '--within is in percent'

# ---- what another host has told: the same verdict, page and code
printf 'cards=8\ncard 4 links_active=17\n' >gpus
INGOT_NVML_SCRIPT=gpus run 11 doctor --json --fresh --storage disk
cp out told
INGOT_NVML_SCRIPT=gpus "$ingot" doctor --fresh --storage disk >page 2>/dev/null
run 11 doctor --replay told --json
check "the same JSON" [ "$(jq -S . told)" = "$(jq -S . out)" ]
run 11 doctor --replay told
check "when it was" grep -q '^ingot doctor, quick, on .*, recorded 20[0-9-]* [0-9:]* UTC$' out
check "the link" grep -q 'FAIL  nvlink       gpu4: 17 of 18 NVLinks are active' out
check "what to do" grep -q 'nvidia-smi nvlink -s' out
run 2 doctor --replay told --nagios
check "for Nagios" grep -q '^INGOT CRITICAL - .*nvlink: gpu4' out
run 0 doctor --replay base --baseline fast
check "beside a baseline" [ "$(grep -c 'WARN  baseline' out)" -eq "$(jq '.rates | length' base)" ]
jq '.checks += [{"id": "new_check", "group": "gpu", "verdict": "fail", "entity": "", "why": "of a newer ingot\u0007\n", "source": "x", "limit": "y", "try": "read its manual"}]' base >newer
run 11 doctor --replay newer
check "a check that this ingot lacks" grep -q 'FAIL  new_check    of a newer ingot' out
check "without control characters" [ "$(grep -c $'\a' out)" -eq 0 ]
check "with its remedy" grep -q 'read its manual' out
jq '.checks[0].verdict = "well"' base >odd
run 3 doctor --replay odd
says 'odd: check 1 of it is none'
run 3 doctor --replay empty.json
run 2 doctor --replay told --full
says '--replay looks at no host'

# ---- slips
run 2 doctor --quick --full
says 'one of --quick'
run 2 doctor --storage /no/such/dir
says 'no such directory'
run 2 doctor --nagios --json
says 'one line'
run 74 doctor here
says "cannot open 'here'"
run 2 doctor r.yaml too many
exit $failed
