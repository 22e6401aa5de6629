#!/usr/bin/env bash
# A mixture of experts in whole runs: it learns, says its loads, plans what it takes; threads, ranks and kills change no bit, those of the
# routers' biases included.
. "$(dirname "$0")/kill.sh"
qwen=(--model.layers=gqa/moe --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=24 --model.moe_aux=0.01)
deepseek=("--model.layers=gqa;gqa/moe" --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=24 --model.moe_shared_size=24
    --model.moe_router=sigmoid --model.moe_scale=2.5 --model.moe_groups=4 --model.moe_groups_kept=2 --model.moe_balance_rate=0.01
    --model.moe_aux=1e-3 --model.moe_aux_kind=sequence --model.moe_z=1e-4 --data.packing=documents)
number() { # number KEY FILE: the last number that stands behind a key
    grep -oE "\"$1\": ?[-+.eE0-9]+" "$2" | tail -n 1 | sed 's/.*: *//'
}

for name in qwen deepseek; do
    declare -n keys=$name
    for threads in 1 2 3; do
        run 0 train r.yaml --run.dir=runs/$name-$threads --machine.threads=$threads --train.precision=bf16 --ckpt.every=0 "${keys[@]}"
        [ $threads -eq 1 ] || same_run "$name, $threads threads" runs/$name-1 runs/$name-$threads
    done
    check "$name learns" awk -v a="$(grep -m 1 '"loss":' runs/$name-1/metrics.jsonl | grep -o '"loss":[0-9.]*' | cut -d: -f2)" \
        -v b="$(number loss runs/$name-1/metrics.jsonl)" 'BEGIN { exit !(b < 0.8 * a) }'
    check "$name: the busiest expert has more than its share, the idlest less" awk -v a="$(number load_max runs/$name-1/metrics.jsonl)" \
        -v b="$(number load_min runs/$name-1/metrics.jsonl)" 'BEGIN { exit !(a > 1 && a <= 8 && b >= 0 && b < 1) }'
    check "$name: auxiliary losses" awk -v a="$(number aux_loss runs/$name-1/metrics.jsonl)" 'BEGIN { exit !(a > 0 && a < 1) }'
    check "$name: planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/$name-1/log.txt
    run 0 generate runs/$name-1 --prompt "the king" --tokens 8 --seed 5
    run 0 eval runs/$name-1 --tokens 2000
    kill_and_resume $name 1 "${keys[@]}"
done
grep -q aux_loss runs/qwen-1/metrics.jsonl || fail "no auxiliary loss"

# The loads are those of all ranks, and so are the steps of the biases.
run 0 train r.yaml --run.dir=runs/one "${deepseek[@]}" --train.gradient_groups=2
run 0 launch -n 2 -- train r.yaml --run.dir=runs/two "${deepseek[@]}" --train.gradient_groups=2
same_state "two ranks" runs/one runs/two
for key in aux_loss load_max load_min; do
    check "two ranks: $key" [ "$(number $key runs/one/metrics.jsonl)" = "$(number $key runs/two/metrics.jsonl)" ]
done

# Experts that take less than their share drop tokens, and the run goes on; a plan counts what a token passes.
run 0 train r.yaml --run.dir=runs/full "${qwen[@]}" --model.moe_capacity=0.8 --train.steps=10 --ckpt.every=0
check "the share that was dropped" awk -v a="$(number moe_dropped runs/full/metrics.jsonl)" 'BEGIN { exit !(a >= 0.2 - 1e-2 && a < 1) }'
check "no capacity, no share" [ -z "$(number moe_dropped runs/qwen-1/metrics.jsonl)" ]
for ranks in 1 2; do
    run 0 launch --no-doctor -n $ranks -- train r.yaml --run.dir=runs/full-$ranks "${qwen[@]}" --model.moe_capacity=0.8 --train.steps=6 \
        --ckpt.every=0 --train.gradient_groups=2
done
check "two ranks: the share that was dropped" [ "$(number moe_dropped runs/full-1/metrics.jsonl)" = "$(number moe_dropped runs/full-2/metrics.jsonl)" ]
run 0 plan r.yaml --model.vocab_size=320 "${deepseek[@]}" --json
dense=$((320 * 32 + 32 + 2 * (4 * 32 * 32 + 64) + 3 * 32 * 64 + 8 * 32 + 3 * 32 * 24)) expert=$((3 * 32 * 24))
check "parameters" [ "$(grep -m 1 '"parameters"' out | tr -dc 0-9)" -eq $((dense + 8 * expert)) ]
check "parameters of a token" [ "$(number parameters_active out)" -eq $((dense + 2 * expert)) ]
exit $failed
