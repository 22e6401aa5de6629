#!/usr/bin/env bash
# A run on several ranks is the run on one, bit for bit; a rank that dies or stops ends the others, by name; and the run goes on.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >ranks.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 1, batch_tokens: 256, steps: 20, precision: fp32, gradient_groups: 4}
optim: {lr: 3e-3, warmup_steps: 5}
eval: {every: 10}
ckpt: {every: 5}
YAML

# steps RUN: what its steps said, without times and memory
steps() { grep '"kind":"step"' "$1/metrics.jsonl" | grep -oE '"(step|tokens|loss|lr|grad_norm|grad_norm_clipped|targets|padding)":[-+.eE0-9]+'; }
same_run() { # same_run NAME A B: equal losses and equal weights
    [ "$(steps "$2" | wc -l)" -ge 80 ] || fail "$1: $2 says too little"
    [ "$(steps "$2")" = "$(steps "$3")" ] || fail "$1: losses differ"
    same_state "$1" "$2" "$3"
}

variant() { # variant NAME KEYS...: one, two and four ranks
    local name=$1
    shift
    run 0 train ranks.yaml --run.dir="runs/$name-1" "$@"
    for ranks in 2 4; do
        run 0 launch -n $ranks -- train ranks.yaml --run.dir="runs/$name-$ranks" "$@"
        [ "$(wc -l <out)" -eq 1 ] || fail "$name on $ranks ranks prints $(wc -l <out) results"
        same_run "$name on $ranks ranks" "runs/$name-1" "runs/$name-$ranks"
    done
}
variant fp32 --data.packing=documents
variant bf16 --train.precision=bf16 --optim.name=lion --optim.lr=1e-3 --train.z_loss=1e-4 --train.clip=0.5
variant qwen --model.qk_norm=true --model.head_count_kv=1 --model.qkv_bias=true --data.packing=best_fit
variant gpt2 --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true

# One rank without groups sums in another order: equal up to rounding, and not in every bit (else the test above would show nothing).
run 0 train ranks.yaml --run.dir=runs/plain --train.gradient_groups=0 --data.packing=documents
[ "$(steps runs/plain)" != "$(steps runs/fp32-1)" ] || fail "groups change no bit"
paste <(steps runs/plain | grep '"loss"' | cut -d: -f2) <(steps runs/fp32-1 | grep '"loss"' | cut -d: -f2) |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 1e-5)) bad = 1 } END { exit bad || NR != 20 }' || fail "groups change the loss"

# From one number of ranks to another, at any checkpoint.
run 0 launch -n 4 -- train ranks.yaml --run.dir=runs/moved --data.packing=documents --train.steps=20 --train.max_minutes=0
rm -r runs/moved/ckpt/step-00000020 runs/moved/ckpt/step-00000015
run 0 launch -n 2 -- train ranks.yaml --run.dir=runs/moved --data.packing=documents --resume
same_state "four ranks, then two" runs/fp32-1 runs/moved

# begin NAME RANKS ARGS...: a long run in the background, already at work; $launcher, and victim N: the process of rank N
begin() {
    local name=$1 ranks=$2
    shift 2
    "$ingot" launch -n "$ranks" "$@" --run.dir="runs/$name" --data.packing=documents >"$name.out" 2>"$name.err" &
    launcher=$!
    for _ in $(seq 200); do
        [ -s "runs/$name/metrics.jsonl" ] && return
        sleep 0.05
    done
    fail "$name does not begin"
}
victim() { for p in $(pgrep -P $launcher); do tr '\0' '\n' <"/proc/$p/environ" | grep -qx "INGOT_RANK=$1" && echo "$p"; done; }
ended() { # ended NAME CODE TEXT: and nobody is left
    wait $launcher
    local code=$?
    cp "$1.err" err
    [ $code -eq "$2" ] || fail "$1 exits with $code, not $2"
    grep -qF -- "$3" err || fail "$1 does not say '$3'"
    pgrep -f "run.dir=runs/$1 " && fail "$1: somebody is left"
}
for rank in 0 2; do
    begin "kill$rank" 4 -- train ranks.yaml --train.steps=100000
    kill -9 "$(victim $rank)"
    ended "kill$rank" 10 "rank $rank was ended by signal 9"
    begin "stop$rank" 4 -- train ranks.yaml --train.steps=100000
    kill -STOP "$(victim $rank)"
    ended "stop$rank" 10 "rank $rank (process"
    grep -q "^rank=$rank comm=all call=.* seconds=" "runs/stop$rank/comm-flight.txt" || fail "nothing says what rank $rank called last"
    [ "$(grep -c 'seconds=unfinished$' "runs/stop$rank/comm-flight.txt")" -ge 3 ] || fail "three ranks waited, and the record does not say so"
done
begin gone 2 -- train ranks.yaml --train.steps=100000
ranks_of_it=$(pgrep -P $launcher)
kill -9 $launcher
wait $launcher 2>/dev/null
for _ in $(seq 100); do
    kill -0 $ranks_of_it 2>/dev/null || break
    sleep 0.1
done
for p in $ranks_of_it; do kill -0 "$p" 2>/dev/null && fail "the launcher is gone, rank process $p is not"; done

begin term 2 -- train ranks.yaml --train.steps=100000
kill -TERM $launcher
ended term 75 "SIGTERM: saved at step"

# With --restart, a killed run ends as the undisturbed one.
run 0 train ranks.yaml --run.dir=runs/whole --data.packing=documents --train.steps=300 --ckpt.every=20
begin again 2 --restart 3 -- train ranks.yaml --train.steps=300 --ckpt.every=20
kill -9 "$(victim 1)"
ended again 0 "restart 1 of 3"
same_state "killed and restarted" runs/whole runs/again

# Refused in one line, before anything is written.
refused() { # refused CODE TEXT ARGS...
    local code=$1 text=$2
    shift 2
    run "$code" "$@"
    grep '^error:' err | head -n 1 | grep -qF -- "$text" || fail "$*: the error does not say '$text'"
}
refused 2 "cannot be dealt to 3 ranks" launch -n 3 -- train ranks.yaml --run.dir=runs/none
refused 2 "cannot be dealt to 3 ranks" launch -n 3 -- train ranks.yaml --run.dir=runs/none --train.micro_batch=auto
refused 2 "does not divide" plan ranks.yaml --train.gradient_groups=3
refused 2 "must be the number of ranks (2) times a power of two" launch -n 2 -- train ranks.yaml --run.dir=runs/none --train.gradient_groups=3
refused 2 "does not divide" train ranks.yaml --run.dir=runs/none --train.gradient_groups=16
refused 2 "already holds a run" launch -n 2 -- train ranks.yaml --run.dir=runs/whole
refused 2 "-n N says how many ranks" launch -- train ranks.yaml
refused 2 "-n N says how many ranks" launch -n 100000 -- train ranks.yaml
refused 2 "what shall the ranks run" launch -n 2
refused 2 "'eval' does not run on several ranks" launch -n 2 -- eval runs/whole
[ -e runs/none ] && fail "a refused run left a directory"
exit $failed
