#!/usr/bin/env bash
# Context parallelism: a run on ranks that share each sequence is the run on one, up to the rounding of sums in another order; twice the same bits;
# checkpoints go from any number of ranks to any other.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >context.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 4, context_length: 64, vocab_size: 320}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin, packing: documents}
train: {micro_batch: 2, batch_tokens: 512, steps: 20, precision: fp32, gradient_groups: 2}
optim: {lr: 3e-3, warmup_steps: 5}
eval: {every: 10}
ckpt: {every: 10}
machine: {threads: 1}
YAML

values() { # values RUN KEY: of its steps or evaluations
    grep -oE "\"$2\":[-+.eE0-9]+" "$1/metrics.jsonl" | cut -d: -f2
}
near() { # near NAME KEY TOLERANCE A B: as many values, relatively as near
    paste <(values "$4" "$2") <(values "$5" "$2") |
        awk -v tol="$3" -v steps="$([ "$2" = val_loss ] && echo 2 || echo 20)" \
            '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < tol)) bad = 1 } END { exit bad || NR != steps }' ||
        fail "$1: $2 is not that of one rank"
}
ranks() { # ranks RUN N KEYS...
    local name=$1 n=$2
    shift 2
    run 0 launch -n "$n" -- train context.yaml --run.dir="runs/$name" "$@"
    grep -oE 'planned [0-9]+ bytes, measured [0-9]+' "runs/$name/log.txt" | awk '{ if ($2 != $5) exit 1; n++ } END { exit n != 1 }' ||
        fail "$name: memory is not what was planned"
    planned_is_measured context.yaml "$n" --run.dir="runs/$name" "$@"
}
equal() { # equal NAME A B: the losses, norms and state of one
    local key
    same_state "$1" "runs/$2" "runs/$3"
    for key in loss val_loss grad_norm; do
        [ "$(values "runs/$2" $key)" = "$(values "runs/$3" $key)" ] || fail "$1: another $key"
    done
}

variant() { # variant NAME KEYS...: one rank; two and four that share each sequence
    local name=$1 n
    shift
    run 0 train context.yaml --run.dir="runs/$name-1" "$@"
    for n in 2 4; do
        ranks "$name-$n" $n --parallel.context=$n "$@"
        near "$name on $n ranks" loss 1e-5 "runs/$name-$n" "runs/$name-1"
        near "$name on $n ranks" val_loss 1e-5 "runs/$name-$n" "runs/$name-1"
        near "$name on $n ranks" grad_norm 1e-4 "runs/$name-$n" "runs/$name-1" # after 20 steps of slightly other weights
    done
}
variant gpt2 --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true --data.packing=stream
variant llama --model.tied_embeddings=false --model.head_count_kv=2 --train.z_loss=1e-4 --train.recompute=full
variant qwen3 --model.qk_norm=true --model.attention_gate=true --model.head_count_kv=1 --train.clip=0.5 --train.recompute=selective --data.packing=best_fit
# A window shorter than a chunk, as long as one, and over several.
for window in 5 8 21; do variant window$window --model.layers=swa,gqa --model.window=$window; done
# Recurrences, whose rows are exchanged against heads.
gdn="--model.layers=gdn,gqa --model.gdn_key_heads=4 --model.gdn_value_heads=8 --model.gdn_key_dim=8 --model.gdn_value_dim=8"
mamba="--model.layers=mamba2,gqa --model.mamba_heads=8 --model.mamba_head_dim=8 --model.mamba_groups=4 --model.mamba_state=8"
mla="--model.layers=mla,gqa --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=8 --model.mla_value_dim=8"
moe="--model.layers=gqa/moe --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_balance_rate=0.001 --model.moe_shared_size=16 --model.moe_aux=0"
variant mla $mla --model.mla_q_rank=16
variant moe $moe
near "loads of experts" load_max 1e-9 runs/moe-4 runs/moe-1
# What is counted over a micro-batch, or over a document of it, counts the tokens of all its ranks.
# (Seed 3: with others two experts are as good for a token at some step, and which of them is taken depends on the CPU's order of sums.)
variant aux $moe --model.moe_aux=0.01 --run.seed=3
near "auxiliary losses" aux_loss 1e-5 runs/aux-4 runs/aux-1
variant aux-documents $moe --model.moe_aux=0.01 --model.moe_aux_kind=sequence
near "auxiliary losses by document" aux_loss 1e-5 runs/aux-documents-4 runs/aux-documents-1
variant capacity $moe --model.moe_capacity=0.8 --train.recompute=full
near "loads under a capacity" load_max 1e-9 runs/capacity-4 runs/capacity-1
variant mtp --model.mtp_depth=2 --train.recompute=selective
near "extra predictions" mtp_loss 1e-5 runs/mtp-4 runs/mtp-1
# Memories of n-grams, dense and as the rows that are read. Their gate jumps (meshes.sh): a small rate keeps losses together; the norm of the steps
# where it jumps differs by 5e-4 (by 1e-3 between tensor-parallel ranks and one).
engram="--model.engram_layers=0-1 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.lr=1e-4 --optim.table_rate=1"
memory() { # memory NAME KEYS...
    local name=$1 n
    shift
    run 0 train context.yaml --run.dir="runs/$name-1" $engram "$@"
    for n in 2 4; do
        ranks "$name-$n" $n --parallel.context=$n $engram "$@"
        near "$name on $n ranks" loss 1e-5 "runs/$name-$n" "runs/$name-1"
        near "$name on $n ranks" val_loss 1e-5 "runs/$name-$n" "runs/$name-1"
        paste <(values "runs/$name-$n" grad_norm) <(values "runs/$name-1" grad_norm) | head -n 3 |
            awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 1e-6)) bad = 1 } END { exit bad || NR != 3 }' || fail "$name on $n ranks: the first norms"
    done
}
memory engram --optim.table_gradients=dense
memory rows --optim.table_gradients=sparse --train.recompute=selective
ranks rows-all 8 --parallel.context=2 --parallel.tensor=2 --parallel.zero=3 --train.gradient_groups=0 $engram --optim.table_gradients=sparse --train.recompute=full
near "rows beside the other axes" loss 1e-5 runs/rows-all runs/rows-1
variant hrm --model.hrm_low_layers=1 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2
ranks hrm-all 4 --parallel.context=2 --parallel.tensor=2 --model.hrm_low_layers=1 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2
near "hierarchical reasoning beside tensor parallelism" loss 1e-5 runs/hrm-all runs/hrm-1
ranks mla-all 8 --parallel.context=2 --parallel.tensor=2 --parallel.zero=3 --train.gradient_groups=0 $mla --model.mla_q_rank=16
near "mla beside the other axes" loss 1e-5 runs/mla-all runs/mla-1
ranks mla-stages 4 --parallel.context=2 --parallel.pipeline=2 $mla --model.mla_q_rank=16
for stage in 0 2; do # the GEMM of keys and values reads the rows of all ranks, and is deferred as they are
    ranks mla-defer$stage 4 --parallel.context=2 --parallel.pipeline=2 --parallel.schedule=zb_h1 --parallel.zero=$stage \
        --train.gradient_groups=$([ $stage -eq 0 ] && echo 2 || echo 0) $mla --model.mla_q_rank=16
    near "mla with deferred gradients" loss 1e-5 runs/mla-defer$stage runs/mla-1
done
equal "mla with deferred gradients" mla-defer0 mla-stages
variant gdn $gdn --train.recompute=selective
variant mamba2 $mamba
ranks gdn-all 8 --parallel.context=2 --parallel.tensor=2 --parallel.zero=3 --train.gradient_groups=0 $gdn --train.recompute=full
near "gdn beside the other axes" loss 1e-5 runs/gdn-all runs/gdn-1
ranks mamba2-all 8 --parallel.context=2 --parallel.tensor=2 --parallel.pipeline=2 --parallel.schedule=zb_h1 $mamba
near "mamba2 beside the other axes" loss 1e-5 runs/mamba2-all runs/mamba2-1
[ "$(values runs/llama-2 loss)" != "$(values runs/llama-1 loss)" ] || fail "two ranks sum as one does: nothing was shared"

# Attention by an exchange of rows against heads.
heads="--model.tied_embeddings=false --model.head_count_kv=4 --model.qk_norm=true --train.recompute=selective --model.layers=swa,gqa --model.window=9"
run 0 train context.yaml --run.dir=runs/ulysses-1 $heads
for n in 2 4; do
    ranks ulysses-$n $n --parallel.context=$n --parallel.context_kind=ulysses $heads
    near "ulysses on $n ranks" loss 1e-5 runs/ulysses-$n runs/ulysses-1
    near "ulysses on $n ranks" val_loss 1e-5 runs/ulysses-$n runs/ulysses-1
    near "ulysses on $n ranks" grad_norm 1e-4 runs/ulysses-$n runs/ulysses-1
done
ranks ulysses-all 8 --parallel.context=2 --parallel.context_kind=ulysses --parallel.tensor=2 --parallel.zero=3 --train.gradient_groups=0 $heads
near "ulysses beside the other axes" loss 1e-5 runs/ulysses-all runs/ulysses-1

# Keys and values of one rank after the other.
for n in 2 4; do
    ranks ring-$n $n --parallel.context=$n --parallel.context_kind=ring $heads
    near "ring of $n ranks" loss 1e-5 runs/ring-$n runs/ulysses-1
    near "ring of $n ranks" val_loss 1e-5 runs/ring-$n runs/ulysses-1
    near "ring of $n ranks" grad_norm 1e-4 runs/ring-$n runs/ulysses-1
done
ranks ring-again 4 --parallel.context=4 --parallel.context_kind=ring $heads
equal "two rings" ring-again ring-4
ranks ring-all 8 --parallel.context=2 --parallel.context_kind=ring --parallel.tensor=2 --parallel.pipeline=2 $heads
near "a ring beside the other axes" loss 1e-5 runs/ring-all runs/ulysses-1

# The same run twice; beside every other axis.
llama="--model.tied_embeddings=false --model.head_count_kv=2 --train.z_loss=1e-4 --train.recompute=full"
ranks again 4 --parallel.context=4 $llama
equal "two runs" again llama-4
ranks data 4 --parallel.context=2 $llama
near "data x context" loss 1e-5 runs/data runs/llama-1
for stage in 1 2 3; do
    groups=2
    [ $stage -lt 2 ] || groups=0
    ranks zero$stage 4 --parallel.context=2 --parallel.zero=$stage --train.gradient_groups=$groups $llama
    near "context x ZeRO $stage" loss 1e-5 runs/zero$stage runs/llama-1
done
equal "the first stage of ZeRO" zero1 data
ranks hybrid 8 --parallel.context=2 --parallel.zero=3 --parallel.shard=4 --train.micro_batch=1 --train.gradient_groups=0 $llama
near "copies of four ranks" loss 1e-5 runs/hybrid runs/llama-1
ranks deep 4 --parallel.context=2 --parallel.pipeline=2 $llama
equal "context x pipeline" deep llama-2
ranks wide 4 --parallel.context=2 --parallel.tensor=2 $llama
near "context x tensor" loss 1e-5 runs/wide runs/llama-1
ranks all 8 --parallel.context=2 --parallel.tensor=2 --parallel.pipeline=2 --parallel.schedule=zb_h1 $llama
equal "context x tensor x pipeline" all wide
muon="--optim.name=muon --optim.lr=1e-3"
run 0 train context.yaml --run.dir=runs/muon-1 $llama $muon
ranks muon 4 --parallel.context=2 --parallel.zero=1 $llama $muon
near "muon" loss 1e-5 runs/muon runs/muon-1

run 2 launch -n 2 -- train context.yaml --run.dir=runs/refused --parallel.context=2 --parallel.context_kind=ring --machine.device=cuda
check "a ring of GPUs is refused" grep -qF "parallel.context_kind ring is built for CPU ranks so far" err

# In BF16 as near as rounding leaves it.
run 0 train context.yaml --run.dir=runs/bf16-1 --train.precision=bf16
ranks bf16-2 2 --parallel.context=2 --train.precision=bf16
near "bf16" loss 2e-2 runs/bf16-2 runs/bf16-1
# In FP8, too: the amax of a tensor is that of all ranks' rows.
run 0 train context.yaml --run.dir=runs/fp8-1 --train.precision=fp8 --fp8.warmup=3
ranks fp8-2 2 --parallel.context=2 --train.precision=fp8 --fp8.warmup=3
near "fp8" loss 2e-2 runs/fp8-2 runs/fp8-1
check "codes are read" grep -q 'from step 4 on GEMMs of .* read FP8 codes' runs/fp8-2/log.txt
# Those of mla's keys and values, too, which are computed from the rows of all ranks.
codes="$mla --model.mla_rope_dim=16 --train.precision=fp8 --fp8.warmup=3"
run 0 train context.yaml --run.dir=runs/fp8-mla-1 $codes
ranks fp8-mla-2 2 --parallel.context=2 $codes
near "mla in fp8" loss 2e-2 runs/fp8-mla-2 runs/fp8-mla-1
near "mla in fp8" grad_norm 2e-2 runs/fp8-mla-2 runs/fp8-mla-1

# From two ranks to one, to four, and to the end. On the ranks that wrote a checkpoint: its bits.
forget() { for step in "$@"; do rm -r "runs/moved/ckpt/step-000000$step"; done; }
keep="--run.dir=runs/moved --ckpt.every=5 --ckpt.keep=9"
run 0 launch -n 2 -- train context.yaml $keep --parallel.context=2
forget 10 15 20
run 0 train context.yaml $keep --resume
forget 15 20
run 0 launch -n 4 -- train context.yaml $keep --parallel.context=4 --resume
run 0 train context.yaml --run.dir=runs/still
paste <(values runs/moved loss | tail -n 10) <(values runs/still loss | tail -n 10) |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 1e-5)) bad = 1 } END { exit bad || NR != 10 }' || fail "moved between ranks, the run ends elsewhere"
run 0 launch -n 2 -- train context.yaml --run.dir=runs/same --parallel.context=2
rm -r runs/same/ckpt/step-00000020
run 0 launch -n 2 -- train context.yaml --run.dir=runs/same --parallel.context=2 --resume
run 0 launch -n 2 -- train context.yaml --run.dir=runs/straight --parallel.context=2
same_state "resumed" runs/same runs/straight

# Refused in one line, before anything is written.
refused() { # refused TEXT KEYS...
    local text=$1
    shift
    run 2 launch -n 4 -- train context.yaml --run.dir=runs/none --parallel.context=4 "$@"
    grep '^error:' err | head -n 1 | grep -qF -- "$text" || fail "$*: the error does not say '$text'"
}
refused "train.sequence_length 60 is no multiple of 8" --train.sequence_length=60 --train.batch_tokens=480
refused "parallel.context = 1 x 1 x 3 cannot be made of 4 ranks" --parallel.context=3
refused "does not divide model.head_count_kv 2" --parallel.context_kind=ulysses --model.head_count_kv=2
refused "does nothing without parallel.context" --parallel.context=1 --parallel.context_kind=ulysses
refused "does not divide model.mamba_groups 2" --model.layers=mamba2 --model.mamba_heads=8 --model.mamba_groups=2
refused "parallel.context 2 x parallel.tensor 2 does not divide model.gdn_key_heads 2" --model.layers=gdn --model.gdn_key_heads=2 --model.gdn_value_heads=4 \
    --parallel.context=2 --parallel.tensor=2
refused "parallel.expert 3 does not divide the 4 data-parallel ranks (data x parallel.context)" $moe --parallel.context=4 --parallel.expert=3
refused "parallel.context 4 does not divide model.hidden_size 34" --model.engram_layers=0-1 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 \
    --model.hidden_size=34 --model.head_dim=8
refused "model.hrm_halt: the halting head reads all rows of a document" --model.hrm_cycles=1 --model.hrm_segments=2 --model.hrm_halt=true
refused "parallel.context 4: train.precision mxfp8 takes scales from whole tensors" --train.precision=mxfp8
refused "log.sample_prompt" --log.sample_prompt=the
[ -e runs/none ] && fail "a refused run left a directory"
exit $failed
