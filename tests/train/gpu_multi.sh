#!/usr/bin/env bash
# Two ranks with a GPU each train what one GPU trains: bit for bit where ranks shard data, state or layers, near it where they shard
# matrices; their checkpoints resume on other meshes; a rank that dies or stands still ends the others. gpu_multi.sh INGOT [PART]...
#   parts: data zero offload tensor context mixers expert routers context_expert zero_expert pipe_mtp hrm context_engram fp8_axes fp8_zero3 spike pipe pipeline_nccl fp8 moved again kill kill_nccl refused      (default: all)   Exit 77: fewer than two GPUs.
. "$(dirname "$0")/../shell.sh"
shift
parts=" ${*:-data zero offload tensor context mixers expert routers context_expert zero_expert pipe_mtp hrm context_engram fp8_axes fp8_zero3 spike pipe pipeline_nccl fp8 moved again kill kill_nccl refused} "
part() { case $parts in *" $1 "*) echo "== $1" ;; *) return 1 ;; esac; }
if [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -lt 2 ]; then
    echo "fewer than two GPUs"
    exit 77
fi
export HOME=$work NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
make_corpus
cat >ranks.yaml <<'YAML'
model: {layer_count: 4, hidden_size: 256, ffn_size: 512, head_count: 4, head_count_kv: 2, context_length: 64, tied_embeddings: false}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 2, batch_tokens: 1024, steps: 10, precision: bf16, gradient_groups: 8}
optim: {lr: 3e-4, warmup_steps: 2}
eval: {every: 5, tokens: 2000}
ckpt: {every: 5}
machine: {threads: 2, device: cuda}
YAML
one() { # one NAME KEYS...: on one GPU
    local name=$1
    shift
    rm -rf "runs/$name"
    run 0 train ranks.yaml --run.dir="runs/$name" "$@"
}
two() { # two NAME KEYS...
    local name=$1 begin=$SECONDS
    shift
    rm -rf "runs/$name"
    run 0 launch -n 2 -- train ranks.yaml --run.dir="runs/$name" "$@"
    check "$name: planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' "runs/$name/log.txt"
    echo "     $name $((SECONDS - begin)) s"
}
# What a step says, of which a GPU forms the norm in another order where the gradients lie apart.
told() { grep '"kind":"step"' "$1/metrics.jsonl" | grep -oE '"(step|tokens|loss|lr|val_loss|val_accuracy)":[-+.eE0-9]+'; }
equal() { # equal NAME A B
    [ "$(told "$2" | wc -l)" -ge 30 ] || fail "$1: $2 says too little"
    local before=$failed
    failed=0
    [ "$(told "$2")" = "$(told "$3")" ] || { fail "$1: losses differ"; diff <(told "$2") <(told "$3") | head -n 4; }
    same_state "$1" "$2" "$3"
    [ $failed -eq 0 ] && echo "ok   $1: equal bits"
    [ $before -eq 0 ] || failed=$before
}
near() { # near NAME BOUND A B: every loss within BOUND of itself
    told "$3" | grep '"loss"' | cut -d: -f2 >losses.1
    told "$4" | grep '"loss"' | cut -d: -f2 >losses.2
    [ "$(wc -l <losses.1)" -ge 10 ] && [ "$(wc -l <losses.1)" -eq "$(wc -l <losses.2)" ] || { fail "$1: too few losses"; return; }
    paste losses.1 losses.2 | awk -v name="$1" -v bound="$2" '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= worst)) worst = d }
        END { printf "%s %s: %.2e of %.0e\n", worst <= bound ? "ok  " : "FAIL", name, worst, bound; exit !(worst <= bound) }' || failed=1
}
told_bubble() { # told_bubble NAME: every step of a pipeline says its bubble, and the run its whole one beside the formula
    [ "$(grep '"kind":"step"' "runs/$1/metrics.jsonl" | grep -cE '"bubble":0\.[0-9]+')" -ge 10 ] || fail "$1: steps without a bubble"
    grep -E 'pipeline .*bubble [0-9.]+ % \(formula' "runs/$1/log.txt" || fail "$1: no bubble of the run"
}

# Both signals, to a run with these keys: the other rank ends it in time, and says which it was.
killed() { # killed NAME KEYS...
    local name=$1 signal job victim begin code ms
    shift
    for signal in KILL STOP; do
        rm -rf runs/killed
        "$ingot" launch -n 2 -- train ranks.yaml --run.dir=runs/killed --train.steps=1000000 --eval.every=0 --ckpt.every=0 "$@" >out 2>err &
        job=$!
        wait_for_step runs/killed 200 $job || fail "no step 200 before SIG$signal"
        victim=$(pgrep -P $job | tail -n 1)
        begin=$(date +%s%N)
        kill -$signal "$victim"
        wait $job
        code=$?
        ms=$((($(date +%s%N) - begin) / 1000000))
        kill -CONT "$victim" 2>/dev/null
        echo "     $name, SIG$signal: exit $code after $ms ms: $(grep '^error:' err | head -n 1)"
        [ $ms -lt 10000 ] || fail "$name, SIG$signal: the others end after $ms ms"
        [ $signal = KILL ] || [ $code -eq 10 ] || fail "$name, SIG$signal: exit $code, not 10"
        grep -q "^error:.*rank [01]" err || fail "$name, SIG$signal: nobody is named"
    done
}

one bf16
one fp32 --train.precision=fp32
if part data; then
    two dp.bf16
    equal "two ranks, bf16" runs/bf16 runs/dp.bf16
    two dp.fp32 --train.precision=fp32
    equal "two ranks, fp32" runs/fp32 runs/dp.fp32
    two dp.nccl --parallel.transport=nccl
    equal "two ranks, by NCCL" runs/bf16 runs/dp.nccl
    two dp.eager --train.graph=false
    equal "two ranks, no graph" runs/bf16 runs/dp.eager
    one packed --data.packing=documents --model.tied_embeddings=true --optim.state=int8
    two dp.packed --data.packing=documents --model.tied_embeddings=true --optim.state=int8
    equal "two ranks, documents, int8 moments" runs/packed runs/dp.packed
    halt="--model.hrm_low_layers=2 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2 --model.hrm_halt=true --data.packing=documents"
    for stage in 0 1; do # segments add to one gradient, which nobody may sum before the last of them
        # shellcheck disable=SC2086
        { [ $stage = 1 ] || one halt $halt; two dp.halt$stage $halt --parallel.zero=$stage; }
        equal "two ranks, a head that halts, ZeRO $stage" runs/halt runs/dp.halt$stage
    done
fi
if part zero; then
    for stage in 1 2 3; do
        two zero$stage --parallel.zero=$stage
        equal "ZeRO $stage" runs/bf16 runs/zero$stage
    done
    two zero3.fp32 --parallel.zero=3 --train.precision=fp32 --train.graph=false
    equal "ZeRO 3, fp32, no graph" runs/fp32 runs/zero3.fp32
    routers=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_router=sigmoid --model.moe_balance_rate=0.01 --model.moe_aux=1e-3)
    one moe "${routers[@]}"
    for stage in 1 3; do
        two moe$stage --parallel.zero=$stage "${routers[@]}"
        equal "routers with ZeRO $stage" runs/moe runs/moe$stage
    done
    one muon --optim.name=muon
    two dp.muon --optim.name=muon
    equal "two ranks, Muon" runs/muon runs/dp.muon
    one mtp --model.mtp_depth=1
    for stage in 1 3; do
        two muon$stage --optim.name=muon --parallel.zero=$stage
        equal "Muon with ZeRO $stage" runs/muon runs/muon$stage
        two mtp$stage --model.mtp_depth=1 --parallel.zero=$stage
        equal "an extra prediction with ZeRO $stage" runs/mtp runs/mtp$stage
    done
    engram="--model.engram_layers=1,3 --model.engram_dim=16 --model.engram_base=400 --model.engram_fold=true"
    # shellcheck disable=SC2086
    one engram $engram
    for stage in 0 1 2 3; do
        # shellcheck disable=SC2086
        two engram$stage $engram --parallel.zero=$stage
        equal "tables of n-grams with ZeRO $stage" runs/engram runs/engram$stage
    done
    rows="${engram/400/5000}" # of a step of 1024 tokens: their gradients are rows
    # shellcheck disable=SC2086
    one rows $rows
    for stage in 0 1 2 3; do
        # shellcheck disable=SC2086
        two rows$stage $rows --parallel.zero=$stage
        equal "rows of tables of n-grams with ZeRO $stage" runs/rows runs/rows$stage
    done
fi
if part offload; then # the optimizer's state in host memory
    for stage in 0 1 2 3; do
        two off$stage --parallel.zero=$stage --memory.offload_optimizer=true
        equal "offloaded, ZeRO $stage" runs/bf16 runs/off$stage
    done
    one off.muon --optim.name=muon
    for stage in 0 1 2 3; do
        two off.muon$stage --optim.name=muon --parallel.zero=$stage --memory.offload_optimizer=true
        equal "Muon, offloaded, ZeRO $stage" runs/off.muon runs/off.muon$stage
    done
    two off.fp32 --parallel.zero=3 --train.precision=fp32 --memory.offload_optimizer=true
    equal "offloaded, ZeRO 3, fp32" runs/fp32 runs/off.fp32
fi
if part tensor; then
    two tp.fp32 --train.precision=fp32 --parallel.tensor=2
    near "two slices of each matrix, fp32" 1e-5 runs/fp32 runs/tp.fp32
    one muon.fp32 --train.precision=fp32 --optim.name=muon
    two tp.muon --train.precision=fp32 --optim.name=muon --parallel.tensor=2
    near "two slices of each matrix, Muon" 1e-4 runs/muon.fp32 runs/tp.muon
    two tp.bf16 --parallel.tensor=2
    near "two slices of each matrix, bf16" 1e-2 runs/bf16 runs/tp.bf16
    two tp.again --parallel.tensor=2 --train.graph=false
    equal "two slices, no graph" runs/tp.bf16 runs/tp.again
    two tp.nccl --parallel.tensor=2 --parallel.transport=nccl
    equal "two slices, by NCCL" runs/tp.bf16 runs/tp.nccl
    two tp.full --parallel.tensor=2 --train.recompute=full
    equal "two slices, everything computed twice" runs/tp.bf16 runs/tp.full
    mixers="--model.layers=gdn,mla,mamba2,gqa/moe --model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=32 --model.gdn_value_dim=32
        --model.mla_kv_rank=64 --model.mla_q_rank=96
        --model.mamba_heads=4 --model.mamba_head_dim=64 --model.mamba_groups=2 --model.mamba_state=48
        --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=64"
    # shellcheck disable=SC2086
    {
        one mixers $mixers --train.precision=fp32
        two tp.mixers $mixers --train.precision=fp32 --parallel.tensor=2
        near "two slices of every mixer" 1e-5 runs/mixers runs/tp.mixers
    }
fi
if part context; then # each sequence in two parts: other sums, of the same terms
    two cp.fp32 --train.precision=fp32 --parallel.context=2
    near "halves of each sequence, fp32" 1e-5 runs/fp32 runs/cp.fp32
    two cp.bf16 --parallel.context=2
    near "halves of each sequence, bf16" 1e-2 runs/bf16 runs/cp.bf16
    for way in train.graph=false parallel.transport=nccl train.recompute=full; do
        two cp.again --parallel.context=2 --$way
        equal "halves of each sequence, again with $way" runs/cp.bf16 runs/cp.again
    done
    for stage in 1 3; do
        two cp.zero$stage --train.precision=fp32 --parallel.context=2 --parallel.zero=$stage
        near "halves of each sequence, ZeRO $stage" 1e-5 runs/fp32 runs/cp.zero$stage
    done
    two heads.fp32 --train.precision=fp32 --parallel.context=2 --parallel.context_kind=ulysses
    near "halves of the heads, fp32" 1e-5 runs/fp32 runs/heads.fp32
    two heads.bf16 --parallel.context=2 --parallel.context_kind=ulysses
    near "halves of the heads, bf16" 1e-2 runs/bf16 runs/heads.bf16
    two heads.again --parallel.context=2 --parallel.context_kind=ulysses --train.graph=false
    equal "halves of the heads, no graph" runs/heads.bf16 runs/heads.again
    docs="--data.packing=documents --model.layers=swa,gqa --model.window=21 --model.mtp_depth=1"
    long="--model.context_length=2048 --train.sequence_length=2048 --train.micro_batch=1 --train.batch_tokens=4096 --train.gradient_groups=2 --eval.tokens=8000"
    # shellcheck disable=SC2086
    {
        one docs $docs --train.precision=fp32
        two cp.docs $docs --train.precision=fp32 --parallel.context=2
        near "documents, a window, an extra prediction, in halves" 1e-5 runs/docs runs/cp.docs
        two heads.docs $docs --train.precision=fp32 --parallel.context=2 --parallel.context_kind=ulysses
        near "documents, a window, an extra prediction, by heads" 1e-5 runs/docs runs/heads.docs
        one long $long --data.packing=documents
        two cp.long $long --data.packing=documents --parallel.context=2
        near "2048 tokens in halves, bf16" 1e-2 runs/long runs/cp.long
    }
    rm -rf runs/cp.fp32/ckpt/step-00000010
    "$ingot" train ranks.yaml --run.dir=runs/cp.fp32 --resume --train.precision=fp32 >out 2>err || fail "one GPU does not go on where two halves were"
    near "halves of each sequence, then one GPU" 1e-5 runs/fp32 runs/cp.fp32
fi
if part mixers; then # rows against heads, latents of all ranks
    mixers="--model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=32 --model.gdn_value_dim=32
        --model.mla_kv_rank=64 --model.mla_q_rank=96
        --model.mamba_heads=4 --model.mamba_head_dim=64 --model.mamba_groups=2 --model.mamba_state=48"
    for layers in gdn mamba2 mla gdn,mla,mamba2,gqa/moe; do
        [[ $layers = */moe ]] && mixers="$mixers --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=64 --model.moe_aux=0"
        # shellcheck disable=SC2086
        {
            one "of.$layers" $mixers --model.layers=$layers --train.precision=fp32
            two "cp.$layers" $mixers --model.layers=$layers --train.precision=fp32 --parallel.context=2
            near "$layers in halves" 1e-5 "runs/of.$layers" "runs/cp.$layers"
        }
    done
    # shellcheck disable=SC2086
    {
        one cp.mixers.1 $mixers --model.layers=$layers
        two cp.mixers $mixers --model.layers=$layers --parallel.context=2
        near "every mixer in halves, bf16" 1e-2 runs/cp.mixers.1 runs/cp.mixers
        two cp.mixers.again $mixers --model.layers=$layers --parallel.context=2 --train.graph=false --train.recompute=full
        equal "every mixer in halves, no graph, everything computed twice" runs/cp.mixers runs/cp.mixers.again
    }
    one latents --model.layers=mla --model.mla_kv_rank=64 --train.precision=fp8 --fp8.warmup=4
    two cp.latents --model.layers=mla --model.mla_kv_rank=64 --train.precision=fp8 --fp8.warmup=4 --parallel.context=2
    near "mla in FP8, in halves" 2e-2 runs/latents runs/cp.latents
fi
if part expert; then # experts on both ranks: rows of other micro-batches in their sums
    experts=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_shared_size=64 --model.moe_router=sigmoid
        --model.moe_balance_rate=0.01 --model.moe_aux=1e-3)
    one ex.fp32 "${experts[@]}" --train.precision=fp32
    one ex.bf16 "${experts[@]}"
    for stage in 0 1; do
        two ep.fp32.$stage "${experts[@]}" --train.precision=fp32 --parallel.expert=2 --parallel.zero=$stage
        near "halves of the experts, fp32, ZeRO $stage" 1e-5 runs/ex.fp32 runs/ep.fp32.$stage
    done
    two ep.bf16 "${experts[@]}" --parallel.expert=2
    near "halves of the experts, bf16" 1e-2 runs/ex.bf16 runs/ep.bf16
    for way in train.graph=false train.recompute=full; do
        two ep.again "${experts[@]}" --parallel.expert=2 --$way
        equal "halves of the experts, again with $way" runs/ep.bf16 runs/ep.again
    done
    two ep.capped "${experts[@]}" --model.moe_capacity=1.25 --train.precision=fp32 --parallel.expert=2
    one ex.capped "${experts[@]}" --model.moe_capacity=1.25 --train.precision=fp32
    near "halves of the experts, with a capacity" 1e-5 runs/ex.capped runs/ep.capped
    rm -rf runs/ep.fp32.1/ckpt/step-00000010
    "$ingot" train ranks.yaml --run.dir=runs/ep.fp32.1 --resume "${experts[@]}" --train.precision=fp32 >out 2>err || fail "one GPU does not go on where two with experts were"
    near "halves of the experts, then one GPU" 1e-5 runs/ex.fp32 runs/ep.fp32.1
fi
if part routers; then # what they count, they count over both halves of each sequence
    routers=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_shared_size=64
        --data.packing=documents --train.precision=fp32)
    for kind in switch sequence; do
        one aux.$kind "${routers[@]}" --model.moe_aux=1e-2 --model.moe_aux_kind=$kind
        two cp.aux.$kind "${routers[@]}" --model.moe_aux=1e-2 --model.moe_aux_kind=$kind --parallel.context=2
        near "auxiliary losses, $kind, of halves of each sequence" 1e-5 runs/aux.$kind runs/cp.aux.$kind
    done
    one capped "${routers[@]}" --model.moe_capacity=1.1 --model.moe_router=sigmoid
    two cp.capped "${routers[@]}" --model.moe_capacity=1.1 --model.moe_router=sigmoid --parallel.context=2
    near "a capacity of halves of each sequence" 1e-5 runs/capped runs/cp.capped
    two cp.capped.again "${routers[@]}" --model.moe_capacity=1.1 --model.moe_router=sigmoid --parallel.context=2 --train.graph=false
    equal "a capacity of halves, no graph" runs/cp.capped runs/cp.capped.again
fi
if part context_expert; then # halves of each sequence, and of the experts
    both=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_shared_size=64 --model.moe_router=sigmoid
        --model.moe_balance_rate=0.01 --model.moe_aux=1e-3 --data.packing=documents)
    one both.fp32 "${both[@]}" --train.precision=fp32
    one both.bf16 "${both[@]}"
    for stage in 0 1; do
        two cpep.fp32.$stage "${both[@]}" --train.precision=fp32 --parallel.context=2 --parallel.expert=2 --parallel.zero=$stage
        near "halves of sequences and experts, fp32, ZeRO $stage" 1e-5 runs/both.fp32 runs/cpep.fp32.$stage
    done
    two cpep.bf16 "${both[@]}" --parallel.context=2 --parallel.expert=2
    near "halves of sequences and experts, bf16" 1e-2 runs/both.bf16 runs/cpep.bf16
    two cpep.again "${both[@]}" --parallel.context=2 --parallel.expert=2 --train.graph=false --train.recompute=full
    equal "halves of sequences and experts, no graph, everything computed twice" runs/cpep.bf16 runs/cpep.again
    one both.capped "${both[@]}" --train.precision=fp32 --model.moe_capacity=1.25
    two cpep.capped "${both[@]}" --train.precision=fp32 --model.moe_capacity=1.25 --parallel.context=2 --parallel.expert=2
    near "halves of sequences and experts, with a capacity" 1e-5 runs/both.capped runs/cpep.capped
fi
if part zero_expert; then # the experts of a block are a unit of their own
    shared=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_shared_size=64 --model.moe_router=sigmoid
        --model.moe_balance_rate=0.01 --model.moe_aux=1e-3)
    one zep.fp32 "${shared[@]}" --train.precision=fp32
    for stage in 2 3; do
        two zep.fp32.$stage "${shared[@]}" --train.precision=fp32 --parallel.expert=2 --parallel.zero=$stage
        near "halves of the experts, fp32, ZeRO $stage" 1e-5 runs/zep.fp32 runs/zep.fp32.$stage
    done
    equal "halves of the experts, ZeRO 2 and 3" runs/zep.fp32.2 runs/zep.fp32.3
    two zep.bf16 "${shared[@]}" --parallel.expert=2 --parallel.zero=3
    two zep.again "${shared[@]}" --parallel.expert=2 --parallel.zero=2 --train.graph=false --train.recompute=full
    equal "halves of the experts, bf16, ZeRO 3, and 2 without a graph" runs/zep.bf16 runs/zep.again
    two zep.cp "${shared[@]}" --train.precision=fp32 --parallel.context=2 --parallel.expert=2 --parallel.zero=3
    near "halves of sequences and experts, fp32, ZeRO 3" 1e-5 runs/zep.fp32 runs/zep.cp
fi
if part pipe_mtp; then # both ends embed: the parts of a gradient are added in another order
    ahead=(--model.mtp_depth=1 --data.packing=documents)
    one ahead.fp32 "${ahead[@]}" --train.precision=fp32
    one ahead.bf16 "${ahead[@]}"
    for schedule in 1f1b zb_h1 interleaved; do
        chunks=1
        [ $schedule = interleaved ] && chunks=2
        two ahead.$schedule "${ahead[@]}" --train.precision=fp32 --parallel.pipeline=2 --parallel.schedule=$schedule --parallel.chunks=$chunks
        near "an extra prediction, two stages, $schedule" 1e-5 runs/ahead.fp32 runs/ahead.$schedule
    done
    two ahead.pp "${ahead[@]}" --parallel.pipeline=2
    near "an extra prediction, two stages, bf16" 1e-2 runs/ahead.bf16 runs/ahead.pp
    two ahead.again "${ahead[@]}" --parallel.pipeline=2 --train.graph=false --train.recompute=full
    equal "an extra prediction, two stages, no graph, everything computed twice" runs/ahead.pp runs/ahead.again
    one ahead.tied "${ahead[@]}" --train.precision=fp32 --model.tied_embeddings=true --model.mtp_depth=2
    two ahead.both "${ahead[@]}" --train.precision=fp32 --model.tied_embeddings=true --model.mtp_depth=2 --parallel.pipeline=2
    near "two extra predictions, a tied embedding, two stages" 1e-5 runs/ahead.tied runs/ahead.both
fi
if part hrm; then # the same layers many times
    levels=(--model.hrm_low_layers=2 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2 --data.packing=documents)
    one hrm.fp32 "${levels[@]}" --train.precision=fp32
    for way in tensor=2 context=2; do
        two hrm.$way "${levels[@]}" --train.precision=fp32 --parallel.$way
        near "hierarchical reasoning, $way, fp32" 1e-5 runs/hrm.fp32 runs/hrm.$way
        two hrm.bf16.$way "${levels[@]}" --parallel.$way
        two hrm.again "${levels[@]}" --parallel.$way --train.graph=false
        equal "hierarchical reasoning, $way, no graph" runs/hrm.bf16.$way runs/hrm.again
    done
    mixed=("${levels[@]}" --train.precision=fp32 --model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128)
    one hrm.moe "${mixed[@]}"
    two hrm.ep "${mixed[@]}" --parallel.expert=2
    near "hierarchical reasoning, halves of the experts" 1e-5 runs/hrm.moe runs/hrm.ep
fi
if part context_engram; then # tables of n-grams: each half reads its own rows; a rate at which their gate's jumps keep losses together (meshes.sh)
    grams=(--model.engram_layers=1,3 --model.engram_dim=16 --model.engram_base=400 --model.engram_fold=true --data.packing=documents
        --optim.lr=1e-4 --optim.table_rate=1)
    one grams "${grams[@]}" --train.precision=fp32
    two cp.grams "${grams[@]}" --train.precision=fp32 --parallel.context=2
    near "tables of n-grams in halves" 1e-5 runs/grams runs/cp.grams
    two cp.grams.2 "${grams[@]}" --train.precision=fp32 --parallel.context=2 --train.graph=false --train.recompute=full
    equal "tables of n-grams in halves, no graph, everything computed twice" runs/cp.grams runs/cp.grams.2
    one grams.rows "${grams[@]/base=400/base=5000}" --train.precision=fp32
    two cp.rows "${grams[@]/base=400/base=5000}" --train.precision=fp32 --parallel.context=2 --parallel.zero=1
    near "rows of tables of n-grams in halves, ZeRO 1" 1e-5 runs/grams.rows runs/cp.rows
fi
if part fp8_axes; then # the amax of a tensor is that of both halves
    narrow=(--train.precision=fp8 --fp8.warmup=4 --fp8.monitor=5)
    one narrow "${narrow[@]}"
    two narrow.cp "${narrow[@]}" --parallel.context=2
    near "FP8, halves of each sequence" 2e-2 runs/narrow runs/narrow.cp
    two narrow.again "${narrow[@]}" --parallel.context=2 --train.graph=false
    equal "FP8, halves of each sequence, no graph" runs/narrow.cp runs/narrow.again
    few=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_shared_size=64)
    for recipe in bound tensor; do
        codes=("${narrow[0]}")
        [ $recipe = bound ] && codes=("${narrow[@]}")
        one few.$recipe "${codes[@]}" "${few[@]}" --fp8.recipe=$recipe
        two few.ep.$recipe "${codes[@]}" "${few[@]}" --fp8.recipe=$recipe --parallel.expert=2
        near "FP8, $recipe, halves of the experts" 2e-2 runs/few.$recipe runs/few.ep.$recipe
    done
    two few.again "${narrow[@]}" "${few[@]}" --parallel.expert=2 --train.graph=false --train.recompute=full
    equal "FP8, halves of the experts, no graph, everything computed twice" runs/few.ep.bound runs/few.again
    two few.cp "${narrow[@]}" "${few[@]}" --parallel.context=2
    near "FP8 experts, halves of each sequence" 2e-2 runs/few.bound runs/few.cp
fi
if part fp8_zero3; then # codes move, and bf16 where a linear computes in bf16; the bits of whole weights
    sharded=(--train.precision=fp8 --fp8.warmup=3 --fp8.monitor=5)
    one codes "${sharded[@]}"
    two codes.zero2 "${sharded[@]}" --parallel.zero=2
    equal "FP8, ZeRO 2" runs/codes runs/codes.zero2
    two codes.zero3 "${sharded[@]}" --parallel.zero=3
    check "codes move" grep -q 'codes of 4 of 4 units' runs/codes.zero3/log.txt
    equal "FP8, ZeRO 3" runs/codes runs/codes.zero3
    two codes.eager "${sharded[@]}" --parallel.zero=3 --train.graph=false --train.recompute=full
    equal "FP8, ZeRO 3, no graph, everything computed twice" runs/codes runs/codes.eager
    two codes.nccl "${sharded[@]}" --parallel.zero=3 --parallel.transport=nccl
    equal "FP8, ZeRO 3, by NCCL" runs/codes runs/codes.nccl
    one codes.kept "${sharded[@]}" --fp8.exclude='*.mlp.down.weight'
    two codes.made "${sharded[@]}" --fp8.exclude='*.mlp.down.weight' --parallel.zero=3
    equal "FP8, ZeRO 3, codes made of gathered values" runs/codes.kept runs/codes.made
    few=(--model.layers=gqa/moe,gqa/mlp --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=128 --model.moe_shared_size=64)
    one codes.few "${sharded[@]}" "${few[@]}"
    two codes.few.zero3 "${sharded[@]}" "${few[@]}" --parallel.zero=3
    equal "FP8 experts, ZeRO 3" runs/codes.few runs/codes.few.zero3
fi
if part spike; then # with such a limit noise is a spike, too: some updates are left out
    nervous=(--train.on_spike=skip --train.spike_window=8 --train.spike_z=1 --train.steps=24 --eval.every=0)
    left_out() { grep -c 'its update is left out' "runs/$1/log.txt"; }
    one left "${nervous[@]}"
    check "some updates are left out, not all" [ "$(left_out left)" -ge 2 -a "$(left_out left)" -le 16 ]
    echo "     $(left_out left) of 24 updates are left out"
    one left.eager "${nervous[@]}" --train.graph=false
    equal "updates left out, no graph" runs/left runs/left.eager
    for way in zero=0 zero=1 zero=3 pipeline=2; do
        two left.$way "${nervous[@]}" --parallel.$way
        equal "updates left out, $way" runs/left runs/left.$way
    done
    check "the step is two graphs" [ "$(cat runs/left*/log.txt | grep -c 'cannot be captured')" -eq 0 ]
    one left.fp8 "${nervous[@]}" --train.precision=fp8 --fp8.warmup=4
    two left.fp8.2 "${nervous[@]}" --train.precision=fp8 --fp8.warmup=4
    equal "updates left out, FP8" runs/left.fp8 runs/left.fp8.2
    rm -rf runs/left.zero=1/ckpt/step-00000024
    "$ingot" train ranks.yaml --run.dir=runs/left.zero=1 --resume "${nervous[@]}" >out 2>err || fail "one GPU does not go on where two with updates left out were"
    equal "updates left out, ZeRO 1, then one GPU" runs/left runs/left.zero=1
fi
if part pipe; then
    for schedule in gpipe 1f1b zb_h1; do
        two pp.$schedule --parallel.pipeline=2 --parallel.schedule=$schedule
        equal "two stages, $schedule" runs/bf16 runs/pp.$schedule
        told_bubble pp.$schedule
    done
    two pp.interleaved --parallel.pipeline=2 --parallel.schedule=interleaved --parallel.chunks=2
    equal "two stages, interleaved" runs/bf16 runs/pp.interleaved
    told_bubble pp.interleaved
fi
if part pipeline_nccl; then # messages as between hosts: the first step's through the host's memory, then by NCCL
    nccl="--parallel.pipeline=2 --parallel.transport=nccl"
    for keys in gpipe 1f1b zb_h1 "interleaved --parallel.chunks=2" "1f1b --train.graph=false" "interleaved --parallel.chunks=2 --train.graph=false"; do
        # shellcheck disable=SC2086
        two ppn $nccl --parallel.schedule=$keys
        check "$keys: by NCCL, and as a graph if it may be one" [ "$(cat out err | grep -c "messages  of 'pp' go by NCCL") $(grep -c 'cannot be captured' runs/ppn/log.txt)" = "1 0" ]
        equal "two stages by NCCL, $keys" runs/bf16 runs/ppn
        told_bubble ppn
    done
    rm -rf runs/ppn/ckpt/step-00000010
    # shellcheck disable=SC2086
    run 0 launch -n 2 -- train ranks.yaml --run.dir=runs/ppn --resume $nccl
    equal "two stages by NCCL, resumed with another schedule" runs/bf16 runs/ppn
    for keys in --model.tied_embeddings=true "--train.precision=fp8 --fp8.warmup=4" "--train.on_spike=skip --train.spike_window=8 --train.spike_z=1 --train.steps=24"; do
        # shellcheck disable=SC2086
        { two ppn.peer $keys --parallel.pipeline=2; two ppn.nccl $keys $nccl; }
        equal "two stages, by peer access and by NCCL, $keys" runs/ppn.peer runs/ppn.nccl
    done
fi
if part fp8; then # six of ten steps read codes: eager, captured, replayed
    codes=(--train.precision=fp8 --fp8.warmup=4 --fp8.monitor=5)
    one fp8 "${codes[@]}"
    grep -qE 'fp8 +from step 5 on GEMMs of 16 of 16 linears read FP8 codes' runs/fp8/log.txt || fail "no GEMM reads codes"
    for way in zero=0 zero=1 zero=2 transport=nccl pipeline=2; do
        two fp8.$way "${codes[@]}" --parallel.$way
        equal "FP8, $way" runs/fp8 runs/fp8.$way
    done
    two fp8.eager "${codes[@]}" --train.graph=false
    equal "FP8, no graph" runs/fp8 runs/fp8.eager
    two fp8.off "${codes[@]}" --parallel.zero=1 --memory.offload_optimizer=true
    equal "FP8, offloaded" runs/fp8 runs/fp8.off
    two fp8.tp "${codes[@]}" --parallel.tensor=2
    near "FP8, two slices of each matrix" 2e-2 runs/fp8 runs/fp8.tp
    two fp8.tp.eager "${codes[@]}" --parallel.tensor=2 --train.graph=false
    equal "FP8, two slices, no graph" runs/fp8.tp runs/fp8.tp.eager
    rm -rf runs/fp8.zero=1/ckpt/step-00000010
    run 0 launch -n 2 -- train ranks.yaml --run.dir=runs/fp8.zero=1 --resume "${codes[@]}" --parallel.pipeline=2
    equal "FP8, ZeRO 1, then two stages" runs/fp8 runs/fp8.zero=1
fi
if part moved; then
    two moved --train.steps=10 --parallel.zero=3 --ckpt.every=5
    rm -rf runs/moved/ckpt/step-00000010
    "$ingot" train ranks.yaml --run.dir=runs/moved --resume >out 2>err || fail "one GPU does not go on where two with ZeRO 3 were"
    equal "ZeRO 3, then one GPU" runs/bf16 runs/moved
    rm -rf runs/moved/ckpt/step-00000010
    run 0 launch -n 2 -- train ranks.yaml --run.dir=runs/moved --resume --parallel.pipeline=2
    equal "then two stages" runs/bf16 runs/moved
fi
if part again; then # both ranks time products at once: one choice for both, the same tomorrow, and without the file that remembers it
    wide="--model.hidden_size=1024 --model.ffn_size=3072 --model.head_count=16 --model.head_count_kv=8"
    for mesh in tensor=2 pipeline=2 zero=1; do
        keys="$wide --parallel.$mesh" name=again.${mesh%=*}
        # shellcheck disable=SC2086
        two $name $keys --machine.cache_dir=$name
        [ "$(wc -l <$name/gemm.txt)" -ge 10 ] || fail "$mesh: no products in the cache"
        [ -z "$(sed 's/ way=.*//' $name/gemm.txt | sort | uniq -d)" ] || fail "$mesh: a product with two choices"
        # shellcheck disable=SC2086
        two $name.2 $keys --machine.cache_dir=$name
        equal "$mesh, with an empty cache and with a full one" runs/$name runs/$name.2
        rm -rf runs/$name.2/ckpt/step-00000010
        # shellcheck disable=SC2086
        run 0 launch -n 2 -- train ranks.yaml --run.dir=runs/$name.2 $keys --resume --machine.cache_dir=$name.empty
        equal "$mesh, resumed without a cache" runs/$name runs/$name.2
    done
fi
if part kill; then
    for mesh in zero=0 zero=3 tensor=2 context=2 pipeline=2; do
        killed $mesh --parallel.$mesh
    done
fi
if part kill_nccl; then # a kernel of NCCL waits for the rank that is gone
    killed "two stages by NCCL" --parallel.pipeline=2 --parallel.transport=nccl
    killed "two stages by NCCL, no graph" --parallel.pipeline=2 --parallel.transport=nccl --train.graph=false
fi
if part refused; then
    ranks=$(($(nvidia-smi -L | grep -c '^GPU') + 1))
    "$ingot" launch -n $ranks -- train ranks.yaml --run.dir=runs/many --train.batch_tokens=$((ranks * 1024)) --train.gradient_groups=0 >out 2>err
    code=$?
    [ $code -eq 11 ] || fail "more ranks than GPUs: exit $code"
    grep -q 'has no GPU' err || fail "more ranks than GPUs: $(cat err)"
    CUDA_VISIBLE_DEVICES=0 "$ingot" launch -n 2 -- train ranks.yaml --run.dir=runs/same >out 2>err
    [ $? -eq 2 ] || fail "two ranks on one GPU: another exit code"
    grep -q 'have the same GPU' err || fail "two ranks on one GPU: $(cat err)"
fi
[ $failed -eq 0 ] && echo "all passed"
exit $failed
