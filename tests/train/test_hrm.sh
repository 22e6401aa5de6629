#!/usr/bin/env bash
# Hierarchical reasoning in whole runs: it learns, plans what it takes, generates and evaluates; threads, ranks and kills change no bit.
. "$(dirname "$0")/kill.sh"
hrm=(--model.layer_count=3 --model.hrm_low_layers=1 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2)
short=(--train.steps=16) # where bits are compared
all_losses() { # all_losses FILE: of training, in order
    grep -o '"loss":[0-9.]*' "$1" | cut -d: -f2
}

for threads in 1 2 3; do
    run 0 train r.yaml --run.dir=runs/t$threads --machine.threads=$threads --train.precision=bf16 --train.recompute=full --ckpt.every=0 "${hrm[@]}"
    [ $threads -eq 1 ] || same_run "$threads threads" runs/t1 runs/t$threads
done
check "it learns" awk -v a="$(all_losses runs/t1/metrics.jsonl | head -n 1)" -v b="$(all_losses runs/t1/metrics.jsonl | tail -n 1)" \
    'BEGIN { exit !(b < 0.8 * a) }'
check "planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/t1/log.txt
run 0 generate runs/t1 --prompt "the king" --tokens 8 --seed 5
run 0 eval runs/t1 --tokens 2000
run 0 train r.yaml --run.dir=runs/one "${hrm[@]}" "${short[@]}" --train.gradient_groups=2
run 0 launch -n 2 -- train r.yaml --run.dir=runs/two "${hrm[@]}" "${short[@]}" --train.gradient_groups=2
same_state "two ranks" runs/one runs/two
run 0 launch -n 2 -- train r.yaml --run.dir=runs/shared "${hrm[@]}" "${short[@]}" --train.gradient_groups=2 --parallel.zero=1
same_state "two ranks that share the state out" runs/one runs/shared
once=("${hrm[@]}" "${short[@]}" --model.hrm_segments=1 --train.micro_batch=1)
run 0 train r.yaml --run.dir=runs/once "${once[@]}" --train.gradient_groups=4
for stage in 2 3; do
    run 0 launch -n 4 -- train r.yaml --run.dir=runs/once$stage "${once[@]}" --parallel.zero=$stage
    same_state "one segment with ZeRO $stage" runs/once runs/once$stage
done
once+=(--data.packing=documents --train.precision=bf16 --model.tied_embeddings=false --train.recompute=full)
run 0 train r.yaml --run.dir=runs/honce "${once[@]}" --train.gradient_groups=4
run 0 launch -n 2 -- train r.yaml --run.dir=runs/honce3 "${once[@]}" --parallel.zero=3
same_state "one segment and an untied table with ZeRO 3" runs/honce runs/honce3
run 2 launch -n 2 -- train r.yaml --run.dir=runs/none "${hrm[@]}" --parallel.zero=2
check "refused: segments" grep -q 'model.hrm_segments 2 add to one gradient' err
run 2 launch -n 2 -- train r.yaml --run.dir=runs/none "${hrm[@]}" --parallel.pipeline=2
check "refused: a pipeline" grep -q 'goes through the same layers many times, which no chain of stages does' err
kill_and_resume killed 1 "${hrm[@]}" "${short[@]}" --data.packing=documents

# A head that halts: it learns its own loss; threads, ranks and kills change no bit of what it decides.
halt=("${hrm[@]}" --model.hrm_halt=true --model.hrm_explore=0.5 --data.packing=documents)
for threads in 1 2; do
    run 0 train r.yaml --run.dir=runs/h$threads --machine.threads=$threads --ckpt.every=0 "${halt[@]}"
done
same_run "halting, 2 threads" runs/h1 runs/h2
check "the head has a loss" grep -q '"halt_loss":' runs/h1/metrics.jsonl
check "without a head there is none" [ "$(grep -c halt_loss runs/t1/metrics.jsonl)" = 0 ]
run 0 train r.yaml --run.dir=runs/hone "${halt[@]}" "${short[@]}" --train.gradient_groups=2
run 0 launch -n 2 -- train r.yaml --run.dir=runs/htwo "${halt[@]}" "${short[@]}" --train.gradient_groups=2
same_state "halting, two ranks" runs/hone runs/htwo
kill_and_resume halting 1 "${halt[@]}" "${short[@]}"

# Our own form of Hugging Face's files holds it, and gives it back.
run 0 ckpt export runs/one -o hf
run 0 ckpt import hf -o runs/back
run 0 ckpt export runs/back -o again
check "export, import, export" cmp hf/model.safetensors again/model.safetensors
check "no family of transformers" grep -q '"model_type": "ingot"' hf/config.json
exit $failed
