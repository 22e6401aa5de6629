#!/usr/bin/env bash
# Ranks with torchrun's variables meet over TCP and give the bits of one rank; a dead one is named by the others.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >ranks.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin, packing: documents}
train: {micro_batch: 1, batch_tokens: 256, steps: 20, precision: fp32, gradient_groups: 4}
optim: {lr: 3e-3, warmup_steps: 5}
machine: {threads: 1}
YAML
unset LOCAL_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE INGOT_JOB_SECRET INGOT_JOB_SECRET_FILE
port=$((20000 + $$ % 10000))
ranks() { # ranks NAME N ARGS...: in the background; processes in $pids, output of rank r in NAME.r.out and .err
    local name=$1 n=$2
    shift 2
    pids=()
    port=$((port + 1))
    for ((r = 0; r < n; r++)); do
        RANK=$r LOCAL_RANK=$r WORLD_SIZE=$n MASTER_ADDR=${address:-127.0.0.1} MASTER_PORT=$port \
            "$ingot" train ranks.yaml --run.dir="runs/$name" "$@" >"$name.$r.out" 2>"$name.$r.err" &
        pids+=($!)
    done
}
ended() { # ended NAME CODE [BUT]: every rank but one ends with CODE
    for r in "${!pids[@]}"; do
        [ "$r" = "${3:-}" ] && continue
        wait "${pids[$r]}"
        local code=$?
        [ $code -eq "$2" ] || { cp "$1.$r.err" err; fail "$1: rank $r exits with $code, not $2"; }
    done
}
run 0 train ranks.yaml --run.dir=runs/one
for n in 2 4; do
    ranks meet$n $n
    ended meet$n 0
    grep -q '^step=20 ' meet$n.0.out || fail "$n ranks: rank 0 prints no result"
    [ -s meet$n.1.out ] && fail "$n ranks: rank 1 prints, too"
    [ "$(cat meet$n.*.err | grep -c 'without a secret.*INGOT_JOB_SECRET')" -eq 1 ] || fail "$n ranks: not one warning of the secret"
    same_state "$n ranks" runs/one runs/meet$n
done

for how in KILL STOP; do
    ranks lost$how 3 --train.steps=1000000 --train.batch_tokens=384 --train.gradient_groups=3
    for _ in $(seq 200); do
        [ -s runs/lost$how/metrics.jsonl ] && break
        sleep 0.1
    done
    kill -$how "${pids[1]}"
    ended lost$how 10 1
    cat lost$how.0.err lost$how.2.err | grep -q "rank 1 (process ${pids[1]}[,)].*gives no sign of life" || fail "SIG$how: nobody names rank 1"
    grep -q '^rank=1 ' runs/lost$how/comm-flight.txt || fail "SIG$how: nothing says what rank 1 called last"
    kill -9 "${pids[1]}" 2>/dev/null
    wait "${pids[1]}" 2>/dev/null
done

# An address that others reach needs a secret; one line, and nothing is written.
address=192.0.2.1
ranks open 2
ended open 2
cp open.0.err err
says "can be reached by others: give all ranks the same INGOT_JOB_SECRET"
[ -e runs/open ] && fail "a refused run left a directory"
exit $failed
