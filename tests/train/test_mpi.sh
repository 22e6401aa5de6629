#!/usr/bin/env bash
# Ranks that mpirun starts give the bits of one rank; a rank that dies ends the others. Skipped without mpirun.
command -v mpirun >/dev/null || exit 77
. "$(dirname "$0")/../shell.sh"
make_corpus
export OMP_NUM_THREADS=1
cat >ranks.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin, packing: documents}
train: {micro_batch: 1, batch_tokens: 256, steps: 20, precision: fp32, gradient_groups: 4}
optim: {lr: 3e-3, warmup_steps: 5}
machine: {threads: 1}
YAML
ranks() { over_mpi "$1" "$ingot" train ranks.yaml "${@:2}"; } # ranks N ARGS...
run 0 train ranks.yaml --run.dir=runs/one
for n in 2 4; do
    ranks $n --run.dir=runs/mpi$n || fail "$n ranks: exit $?"
    [ "$(grep -c '^step=20 ' out)" -eq 1 ] || fail "$n ranks print $(grep -c '^step=20 ' out) results"
    same_state "$n ranks" runs/one runs/mpi$n
done
ranks 3 --run.dir=runs/none && fail "three ranks for eight micro-batches are not refused"
[ "$(grep -c 'cannot be dealt to 3 ranks' err)" -eq 1 ] || fail "three ranks for eight micro-batches: not one line"
[ -e runs/none ] && fail "a refused run left a directory"

# begin NAME: a long run of three ranks in the background, already at work; $job, and victim N: the process of rank N
begin() {
    ranks 3 --run.dir="runs/$1" --train.steps=1000000 --train.batch_tokens=384 --train.gradient_groups=3 &
    job=$!
    for _ in $(seq 200); do
        [ -s "runs/$1/metrics.jsonl" ] && return
        sleep 0.1
    done
    fail "$1 does not begin"
}
victim() { for p in $(pgrep -f "^$ingot train ranks.yaml --run.dir=runs/$1 "); do tr '\0' '\n' <"/proc/$p/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$2" && echo "$p"; done; }
begin killed
kill -9 "$(victim killed 2)"
wait $job && fail "a rank was killed, and the job ends well"
pgrep -f 'run.dir=runs/killed' && fail "a rank was killed, and others are left"
for rank in 0 1; do
    begin stopped$rank
    stopped=$(victim stopped$rank $rank)
    kill -STOP "$stopped"
    wait $job
    code=$?
    [ $code -eq 10 ] || fail "rank $rank was stopped, and the job exits with $code"
    grep -q "rank $rank (process $stopped[,)].*gives no sign of life" err || fail "rank $rank was stopped, and nobody says so"
    grep -q "^rank=$rank .*seconds=" runs/stopped$rank/comm-flight.txt || fail "nothing says what rank $rank called last"
    pgrep -f "run.dir=runs/stopped$rank" && fail "rank $rank was stopped, and somebody is left"
done
exit $failed
