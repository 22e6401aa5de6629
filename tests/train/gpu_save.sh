#!/usr/bin/env bash
# Saves of a GPU's state: a checkpoint that is written while training goes on has the bytes of one that training waits for, and the losses
# of a run do not change; also where the copy takes longer than the step beside it, so that the optimizer has to wait for it.
# gpu_save.sh INGOT [PART]...   parts: bits wide memory ranks   (default: all)
. "$(dirname "$0")/../shell.sh"
shift
parts=" ${*:-bits wide memory ranks} "
part() { case $parts in *" $1 "*) echo "== $1" ;; *) return 1 ;; esac; }

export HOME=$work # the products' algorithms, timed once, are remembered below it
make_corpus
gpu="--machine.device=cuda --ckpt.keep=100"
# shellcheck disable=SC2086
"$ingot" train r.yaml --run.dir=first $gpu --train.steps=6 --ckpt.every=0 >out 2>err
code=$?
if [ $code -eq 11 ] && [ ! -e /dev/nvidia0 ]; then
    cat err
    exit 77
fi
[ $code -eq 0 ] || { fail "the first step exits with $code"; exit 1; }

same_bytes() { # same_bytes NAME COUNT A B: each of COUNT checkpoints of A is in B, with equal files of tensors
    local file n=0
    for file in "$3"/ckpt/step-*/state-*.safetensors; do
        cmp -s "$file" "$4/${file#"$3/"}" || fail "$1: ${file#"$3/"} differs"
        n=$((n + 1))
    done
    check "$1: $n files of $2 checkpoints" [ $n -ge "$2" ]
    all_sound "$1" "$4"
}
train() { # train RUN KEYS...
    local dir=$1
    shift
    # shellcheck disable=SC2086
    run 0 train r.yaml --run.dir="$dir" $gpu --train.steps=12 "$@"
}
overlaps() { # overlaps NAME RUN: the copies were made beside steps
    check "$1: memory was pinned for copies" grep -q 'memory for checkpoints: .* pinned' "$2/log.txt"
    check "$1: the stall is recorded" grep -q '"ckpt_stall_ms":' "$2/metrics.jsonl"
    check "$1: nothing is refused" sh -c "! grep -q 'ckpt.async' $2/log.txt"
}
compare() { # compare NAME KEYS...
    local name=$1
    shift
    train waits "$@" --ckpt.async=false
    train goes_on "$@"
    same_run "$name" waits goes_on
    same_bytes "$name" 4 waits goes_on
    overlaps "$name" goes_on
    rm -rf goes_on/ckpt/step-00000012 goes_on/ckpt/step-00000009
    train goes_on "$@" --resume
    same_run "$name, resumed" waits goes_on
    rm -rf waits goes_on
}

if part bits; then
    compare "fp32" --train.precision=fp32
    compare "bf16" --train.precision=bf16
    large=(--model.hidden_size=128 --model.head_count=2 --model.ffn_size=256)
    compare "fp8" "${large[@]}" --train.precision=fp8 --fp8.warmup=2
    compare "op by op" --train.precision=bf16 --train.graph=false
    compare "int8" --train.precision=bf16 --optim.state=int8
    compare "no masters" --train.precision=bf16 --optim.master=none --optim.state=bf16
    compare "muon" --train.precision=bf16 --optim.name=muon
    routers=(--model.layers=gqa/moe --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_router=sigmoid --model.moe_balance_rate=0.01)
    compare "experts" "${large[@]}" "${routers[@]}" --train.precision=bf16
    compare "experts, no masters" "${large[@]}" "${routers[@]}" --train.precision=bf16 --optim.master=none --optim.state=bf16
    compare "offload" --train.precision=bf16 --memory.offload_optimizer=true
    INGOT_SAVE_DELAY_MS=40 compare "copies that begin late" --train.precision=bf16
fi

if part wide; then # 84M parameters, 32 tokens a step
    wide=(--train.precision=bf16 --model.hidden_size=2048 --model.head_count=16 --model.ffn_size=8192 --model.vocab_size=4096 --model.layer_count=1
        --train.micro_batch=1 --train.batch_tokens=32 --eval.every=0 --train.steps=7 --ckpt.every=3)
    for graph in true false; do
        train waits "${wide[@]}" --ckpt.async=false --train.graph=$graph
        train goes_on "${wide[@]}" --train.graph=$graph
        same_run "wide, train.graph=$graph" waits goes_on
        same_bytes "wide, train.graph=$graph" 3 waits goes_on
        echo "stalls: $(grep -o '"ckpt_stall_ms":[0-9.]*' goes_on/metrics.jsonl | cut -d: -f2 | tr '\n' ' ')"
        rm -rf waits goes_on
    done
fi

if part memory; then
    keys=(--machine.device=cuda --train.precision=bf16 --train.steps=60 --ckpt.every=0 --eval.every=0)
    run 0 train r.yaml --run.dir=whole "${keys[@]}"
    INGOT_SAVE_DELAY_MS=20 "$ingot" launch -n 1 --restart 9 --no-doctor -- train r.yaml --run.dir=copies "${keys[@]}" --ckpt.memory_every=3 >out 2>err &
    launcher=$!
    for step in 20 40; do
        wait_for_step copies $step $launcher || break
        kill -9 "$(pgrep -P $launcher | head -n 1)"
        for _ in $(seq 600); do
            [ "$(grep -c 'from memory (ckpt.memory_every)' err)" -ge $((step / 20)) ] && break
            kill -0 $launcher 2>/dev/null || break
            sleep 0.1
        done
    done
    wait $launcher
    check "memory: exit code" [ $? -eq 0 ]
    check "memory: two starts go on from it" [ "$(grep -c 'from memory (ckpt.memory_every)' err)" -eq 2 ]
    check "memory: pinned" grep -q 'memory for copies pinned' copies/log.txt
    same_run "memory" whole copies
    rm -rf whole copies
fi

gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU'; }
if part ranks && [ "$(gpus)" -ge 2 ]; then
    ranks() { # ranks NAME KEYS...
        local name=$1 way
        shift
        for way in false true; do
            # shellcheck disable=SC2086
            run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=ranks.$way $gpu --train.steps=12 --train.precision=bf16 --ckpt.async=$way "$@"
        done
        same_run "$name" ranks.false ranks.true
        same_bytes "$name" 4 ranks.false ranks.true
        check "$name: nothing is refused" sh -c "! grep -q 'ckpt.async' ranks.true/log.txt"
        rm -rf ranks.false ranks.true
    }
    ranks "two replicas" --train.gradient_groups=2
    ranks "zero 1" --parallel.zero=1
    ranks "zero 3" --parallel.zero=3
    ranks "tensor" --parallel.tensor=2
    ranks "pipeline" --parallel.pipeline=2
fi
exit $failed
