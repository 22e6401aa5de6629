#!/usr/bin/env bash
# Ranks in network namespaces of their own, as on hosts of their own, over TCP (Open MPI): a slow link, a short outage, and a link that delays
# each message by 50 to 200 ms change no bit and raise no alarm; a rank that is cut off is named, all ranks end with 10, and the run that goes on
# ends as an undisturbed one.
# RANKS=N: 2, 4 or 8, since sums of other numbers are not those of one rank. PARTITIONS=N: so many (scripts/faults.sh); SEED=N repeats them.
skip() { echo "$1: skipped" && exit 77; }
if [ -z "${PARTITION_INSIDE:-}" ]; then
    command -v mpirun >/dev/null || skip "no mpirun"
    command -v ip >/dev/null && command -v tc >/dev/null || skip "no ip and tc (iproute2)"
    unshare -n -m true 2>/dev/null || skip "no namespaces may be made here"
    PARTITION_INSIDE=1 exec unshare -n -m bash "$0" "$@"
fi
delays=$(realpath "$(dirname "$0")")/delay.py
mkdir -p /run/netns && mount -t tmpfs none /run/netns 2>/dev/null || skip "no tmpfs can be mounted here"
. "$(dirname "$0")/../shell.sh"
ip link set lo up
ip link add bridge type bridge 2>/dev/null || skip "no bridge between namespaces can be made"
ip addr add 10.77.0.1/24 dev bridge
ip link set bridge up
address() { # address N: eth0 of the namespace h$N is 10.77.0.1N
    ip -n "h$1" addr add "10.77.0.1$1/24" dev eth0
    ip -n "h$1" link set eth0 up
}
host() { # host N: a namespace h$N behind the link l$N
    ip netns add "h$1" && ip link add "l$1" type veth peer name eth0 netns "h$1" || return 1
    ip link set "l$1" master bridge up
    address "$1"
    ip -n "h$1" link set lo up
}
ranks=${RANKS:-2}
for ((r = 0; r < ranks; r++)); do host $r || skip "no pair of links between namespaces can be made"; done
make_corpus
RANDOM=$((${SEED:-$(date +%N | sed 's/^0*//')} % 32768))
echo "SEED=${SEED:-$RANDOM}"
cat >agent.sh <<'SH'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare -u sh -c "hostname $host; $*"
SH
cat >rank.sh <<SH
#!/bin/sh
"$ingot" "\$@"
code=\$?
echo \$code >code.\$OMPI_COMM_WORLD_RANK
exit \$code
SH
chmod +x agent.sh rank.sh
tcp=(--mca plm_rsh_agent "$work/agent.sh" --mca oob_tcp_if_include 10.77.0.0/24 --mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24)
keys=(--train.steps=24 --train.batch_tokens=$((64 * ranks)) --train.gradient_groups="$ranks" --eval.every=0 --ckpt.every=4 --machine.threads=1)
hosts=$(seq -s, -f 'h%g:1' 0 $((ranks - 1)))
begin() { # begin KEYS...: a job in the background, in $job
    rm -f code.*
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 \
        mpirun "${tcp[@]}" --wdir "$work" --host "$hosts" -n "$ranks" ./rank.sh train r.yaml \
        "${keys[@]}" "$@" >out 2>err &
    job=$!
}
codes() { cat code.* 2>/dev/null | tr '\n' ' '; } # of ranks that ended by themselves, before mpirun ended them
left() { # ranks that are there
    local r p
    for ((r = 0; r < ranks; r++)); do
        for p in $(ip netns pids "h$r"); do [ "$(readlink "/proc/$p/exe")" = "$ingot" ] && echo "$r"; done
    done
}
all_ended() { # within a minute
    for _ in $(seq 240); do
        [ -z "$(left)" ] && return 0
        sleep 0.25
    done
    return 1
}
sweep() { # mpirun and its daemons, which lose each other, too
    local r
    for ((r = 0; r < ranks; r++)); do ip netns pids "h$r" | xargs -r kill -9; done
    kill -9 $job
    wait $job
} 2>/dev/null
run 0 train r.yaml --run.dir=whole "${keys[@]}"

# --- 2 Mbit/s, and the link is down for a second ---
for ((r = 0; r < ranks; r++)); do tc qdisc add dev "l$r" root tbf rate 2mbit burst 16kb latency 400ms || fail "no slow link"; done
begin --run.dir=slow
wait_for_step slow 6 $job || fail "the slow job does not begin"
ip link set l1 down
sleep 1
ip link set l1 up
wait $job || fail "a slow link ends the job"
same_run "a slow link" whole slow
for ((r = 0; r < ranks; r++)); do tc qdisc del dev "l$r" root; done

# --- cut off ---
for i in $(seq "${PARTITIONS:-2}"); do
    dir=cut$i victim=$((RANDOM % ranks)) step=$((RANDOM % 14 + 5))
    begin --run.dir=$dir
    wait_for_step $dir $step $job || fail "$dir: the job does not come to step $step"
    ip link set "l$victim" down
    all_ended || fail "rank $victim was cut off: ranks are left after a minute: $(left)"
    check "rank $victim was cut off: ranks end with 10, not $(codes)" grep -qxE '(10 )+' <(codes; echo)
    if [ "$victim" -eq 0 ]; then # what the others say is behind the cut
        check "rank 0 was cut off: it names another one" grep -qE '"reason": "rank [1-9].* gives no sign of life' $dir/exit.json
    else
        check "rank $victim was cut off: it is named" grep -q "\"reason\": \"rank $victim .* gives no sign of life" $dir/exit.json
    fi
    ip link set "l$victim" up
    sweep
    begin --run.dir=$dir --resume
    wait $job || fail "rank $victim was cut off: the run does not go on"
    same_run "rank $victim was cut off" whole $dir
    all_sound "rank $victim was cut off" $dir
    rm -rf $dir
    [ $failed -eq 0 ] || break
    echo "rank $victim of $ranks cut off behind step $step: named, 10, resumed"
done

# --- each message to and from rank 1 takes 50 to 200 ms ---
short=(--train.steps=3 --optim.warmup_steps=1)
run 0 train r.yaml --run.dir=short "${keys[@]}" "${short[@]}"
ip link del l1
python3 "$delays" t1 e1 50 200 >delay.out 2>&1 &
delay=$!
until grep -qs ready delay.out; do
    kill -0 $delay 2>/dev/null || { fail "no link that delays: $(cat delay.out)"; exit 1; }
    sleep 0.05
done
ip link set t1 master bridge up
ip link set e1 netns h1 name eth0
address 1
begin --run.dir=late "${short[@]}"
wait $job || fail "a link that delays ends the job"
same_run "a link that delays" short late
check "alerts are looked for" grep -q '"kind":"start"' late/alerts.jsonl
check "no alarm" bash -c "! grep -vE '\"kind\":\"(schema|start|end)\"' late/alerts.jsonl"
check "no warning" bash -c "! grep -q '^warning' err"
kill $delay
wait $delay 2>/dev/null
exit $failed
