#!/usr/bin/env bash
# Ranks that shard the experts, along each other axis of the mesh; slow_all_experts.sh has all meshes. And what is refused, and how a rank's end
# is told.
. "$(dirname "$0")/experts.sh"
for model in moe deepseek capped muon modules cycles; do reference $model; done
experts moe 2 2 1 1 0
experts moe 2 2 1 1 1
experts moe 4 4 1 1 0
experts moe 2 4 1 1 0
experts moe 2 4 1 1 1
experts moe 2 4 1 1 1 --parallel.shard=2
experts moe 2 2 2 2 0
experts moe 2 2 2 2 1
experts deepseek 2 2 1 4 0 --parallel.schedule=zb_h1
experts deepseek 4 4 2 1 1
experts capped 4 8 1 1 1
experts capped 2 2 2 1 0
experts muon 2 4 2 1 0
experts muon 2 4 2 1 1
experts modules 4 4 1 1 0
# Shards of weights and gradients: of experts over the ranks with the same ones, of all others over the data axis.
experts moe 2 4 1 1 2
experts moe 2 4 1 1 3
experts moe 2 4 1 1 3 --parallel.shard=2
experts moe 2 2 2 2 2
experts moe 2 2 2 2 3
experts deepseek 2 4 1 2 3 --parallel.schedule=zb_h1
experts capped 2 4 1 1 3
experts muon 2 4 2 1 3
experts modules 2 4 1 1 3
# Ranks that share each sequence, too: they are among those that shard the experts, or beside them.
cp=2 experts moe 2 1 1 1 0
cp=2 experts moe 4 2 1 1 1
cp=4 experts moe 2 1 1 1 0
cp=2 experts deepseek 2 2 1 2 0
cp=2 experts deepseek 4 2 2 1 3 --parallel.context_kind=ring
cp=2 experts capped 4 2 1 1 0
cp=4 experts capped 2 2 1 1 2
cp=2 experts muon 2 2 1 1 3
cp=2 experts modules 2 2 1 1 2
# Extra predictions on the last of two stages; layers that are gone through several times.
experts modules 2 2 1 2 1
experts modules 2 2 1 2 3 --parallel.schedule=zb_h1
experts cycles 4 4 1 1 1
experts cycles 2 2 2 1 0
cp=2 experts cycles 4 2 1 1 0
# In FP8 linears and experts read codes by the amax of all ranks. Four ranks add in another order, so the last bit of a bf16 value differs, and by
# it a code: the bound is FP8's, as beside other axes (test_context.sh, gpu_multi.sh). 1e-5 held on one kind of CPU by luck.
run 0 train mesh.yaml --run.dir=runs/fp8 "${moe[@]}" --train.precision=fp8 --fp8.warmup=3
train 4 --run.dir=runs/fp8-4 "${moe[@]}" --train.precision=fp8 --fp8.warmup=3 --parallel.expert=4 --parallel.zero=1
close "fp8 on 4 ranks" loss runs/fp8 runs/fp8-4 2e-2
check "codes are read" grep -q 'from step 4 on GEMMs of .* read FP8 codes' runs/fp8-4/log.txt

# Two runs are equal, and so are those of any recompute policy.
mv runs/moe-e4-4-1-1-0 runs/first
experts moe 4 4 1 1 0
[ "$(told runs/first)" = "$(told runs/moe-e4-4-1-1-0)" ] || fail "two runs differ"
same_state "two runs" runs/first runs/moe-e4-4-1-1-0
for policy in selective full; do
    experts moe 4 4 1 1 0 --train.recompute=$policy
    same_state "recompute $policy" runs/first runs/moe-e4-4-1-1-0
done

moved moe "4 1 1 0 4" "1 1 1 0" "2 2 1 1 2" "4 1 2 1 2"
moved moe "4 1 1 3 2" "2 2 1 2 2" "1 1 1 0" "2 1 2 3 2 2"
reference int8
moved int8 "4 1 1 0 4" "1 1 1 0" "4 1 1 1 2" "2 1 1 1"
moved muon "4 1 1 1 2" "2 1 1 0" "4 2 1 0 4" "1 1 1 0"

# Without training on one mesh: evaluation is that of whole experts, from a checkpoint of ranks with parts.
run 0 train mesh.yaml --run.dir=runs/v1 "${moe[@]}" --data.val='data/c_val_*.bin'
train 4 --run.dir=runs/v4 "${moe[@]}" --data.val='data/c_val_*.bin' --parallel.expert=4
check "evaluation" awk -v a="$(grep -o '"val_loss":[0-9.]*' runs/v1/metrics.jsonl | tail -n 1 | cut -d: -f2)" \
    -v b="$(grep -o '"val_loss":[0-9.]*' runs/v4/metrics.jsonl | tail -n 1 | cut -d: -f2)" 'BEGIN { d = a / b - 1; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'
run 0 generate runs/v4 --prompt "the king" --tokens 8 --seed 5

refused() { # refused TEXT RANKS KEYS...
    local text=$1 n=$2
    shift 2
    run 2 launch -n "$n" -- train mesh.yaml --run.dir=runs/refused "$@"
    [ "$(grep -cF -- "$text" err)" -eq 1 ] || fail "not one line says '$text'"
}
refused "parallel.expert 2 does nothing: model.layers names no moe" 2 --parallel.expert=2
refused "parallel.expert 3 does not divide the 4 data-parallel ranks; use a divisor of 4" 4 "${moe[@]}" --parallel.expert=3
refused "parallel.expert 8 does not divide model.moe_experts 4; use a divisor of both 4 and the 8 data-parallel ranks" 8 "${moe[@]}" --parallel.expert=8
accepted() { # accepted KEYS...: GPUs could; none is in sight
    CUDA_VISIBLE_DEVICES='' run 11 launch -n 2 -- train mesh.yaml --run.dir=runs/refused "$@" --machine.device=cuda
}
accepted "${moe[@]}" --parallel.context=2
accepted "${moe[@]}" --parallel.context=2 --parallel.expert=2
accepted "${moe[@]}" --parallel.expert=2 --parallel.zero=2
accepted "${moe[@]}" --parallel.expert=2 --model.hrm_cycles=1
accepted "${moe[@]}" --parallel.expert=2 --train.precision=fp8
accepted "${moe[@]}" --parallel.expert=2 --train.precision=fp8 --fp8.recipe=tensor
accepted "${capped[@]}" --model.moe_aux=0 --parallel.context=2
refused "parallel.shard 2 is no multiple of parallel.expert 4" 4 "${moe[@]}" --parallel.expert=4 --parallel.zero=1 --parallel.shard=2
refused "parallel.expert 2 needs GPUs that reach each other's memory so far" 2 "${moe[@]}" --parallel.expert=2 --parallel.transport=nccl --machine.device=cuda
refused "no rank has all experts to continue log.sample_prompt" 2 "${moe[@]}" --parallel.expert=2 --log.sample_prompt=the
refused "are no whole blocks of 256 elements" 2 "${moe[@]}" --model.moe_size=30 --model.hidden_size=40 --optim.state=int8 --parallel.expert=2
run 2 train mesh.yaml --run.dir=runs/refused "${moe[@]}" --parallel.expert=2
says "parallel.expert 2 does not divide the 1 data-parallel ranks"
run 2 train mesh.yaml --run.dir=runs/refused "${moe[@]}" --parallel.expert=0
exit $failed
