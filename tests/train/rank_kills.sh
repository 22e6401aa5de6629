# Sourced by test_kills.sh, test_expert_kills.sh and slow_rank_kills.sh: jobs of four ranks under `ingot launch --restart`, of which a random one is killed or
# stopped at random moments. All others must end and name it, and the job must go on as if nothing had been.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >ranks.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin, packing: documents}
train: {micro_batch: 1, batch_tokens: 256, steps: 400, precision: fp32, gradient_groups: 4}
optim: {lr: 3e-3, warmup_steps: 5}
eval: {every: 50}
ckpt: {every: 10}
machine: {threads: 1}
YAML
RANDOM=${SEED:-$$}
echo "SEED=${SEED:-$$}"
now_ms() { echo $(($(date +%s%N) / 1000000)); }
alive() { # alive PIDS...: is one of them still there, and no zombie?
    for p in "$@"; do grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$p/status" && return 0; done
    return 1
}
# The four ranks that the launcher has started now, by number, in ranks; 1: it has ended.
find_ranks() {
    local p r
    while kill -0 "$launcher" 2>/dev/null; do
        ranks=()
        for p in $(pgrep -P "$launcher"); do
            r=$(tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | sed -n 's/^INGOT_RANK=//p')
            [ -n "$r" ] && [[ " ${old[*]} " != *" $p "* ]] && ranks[r]=$p
        done
        [ ${#ranks[@]} -eq 4 ] && return 0
        sleep 0.01
    done
    return 1
}
# One blow: a random rank, KILL or STOP, after 0 to 1500 ms. 1: the job ended before.
strike() {
    local ms=$((RANDOM % 1501)) victim=$((RANDOM % 4)) how=KILL begin others r
    [ $((RANDOM % 2)) -eq 0 ] && how=STOP
    find_ranks || return 1
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
    kill -$how "${ranks[victim]}" 2>/dev/null || return 1
    begin=$(now_ms)
    others=()
    for r in 0 1 2 3; do [ $r -ne $victim ] && others+=("${ranks[r]}"); done
    while alive "${others[@]}"; do
        if [ $(($(now_ms) - begin)) -gt 60000 ]; then
            fail "SIG$how of rank $victim after $ms ms: others are there a minute later"
            kill -9 "$launcher" "${ranks[@]}"
            return 1
        fi
        sleep 0.02
    done
    took=$(($(now_ms) - begin))
    [ $took -gt "$longest" ] && longest=$took
    old=("${ranks[@]}")
    blows=$((blows + 1))
    for r in $(seq 300); do # the launcher says which, and starts all again
        grep -q "restart $((restarts + 1)) of " kills.err && break
        kill -0 "$launcher" 2>/dev/null || break
        sleep 0.05
    done
    restarts=$((restarts + 1))
    grep "restart $restarts of " kills.err | grep -qE "rank $victim (was ended by signal 9|\(process ${ranks[victim]}[,)])" ||
        { cp kills.err err; fail "SIG$how of rank $victim after $ms ms is not what the launcher says: $(grep "restart $restarts of " kills.err)"; }
}
rank_kills() { # rank_kills KILLS [KEYS...]: with keys, the same job without kills is the reference, not one rank
    local round=0 kills=$1
    shift
    longest=0 blows=0
    if [ $# -eq 0 ]; then
        run 0 train ranks.yaml --run.dir=runs/whole
    else
        run 0 launch -n 4 -- train ranks.yaml --run.dir=runs/whole "$@"
    fi
    while [ $blows -lt "$kills" ] && [ $failed -eq 0 ]; do
        round=$((round + 1)) restarts=0 old=()
        "$ingot" launch -n 4 --restart 1000 -- train ranks.yaml --run.dir=runs/kills$round "$@" >kills.out 2>kills.err &
        launcher=$!
        while [ $blows -lt "$kills" ] && [ $failed -eq 0 ]; do strike || break; done
        wait $launcher
        local code=$?
        [ $code -eq 0 ] || { cp kills.err err; fail "after $restarts restarts the job ends with $code"; }
        same_run "round $round" runs/whole runs/kills$round
    done
    echo "$blows ranks killed or stopped in $round runs; the others had ended after $longest ms at most"
}
