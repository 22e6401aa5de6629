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
expect disk_rate pass
expect memory_rate pass
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

# ---- slips
run 2 doctor --quick --full
says 'one of --quick'
run 2 doctor --storage /no/such/dir
says 'no such directory'
run 2 doctor --nagios --json
says 'one line'
run 2 doctor here
exit $failed
