#!/usr/bin/env bash
# Tensor parallelism: a run on ranks that share each matrix and each sequence is the run on one, up to the rounding of sums in another order;
# twice the same bits; checkpoints go from any number of ranks to any other.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >tensor.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 4, context_length: 32, vocab_size: 320}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin, packing: documents}
train: {micro_batch: 2, batch_tokens: 256, steps: 20, precision: fp32, gradient_groups: 2}
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
    run 0 launch -n "$n" -- train tensor.yaml --run.dir="runs/$name" "$@"
    grep -oE 'planned [0-9]+ bytes, measured [0-9]+' "runs/$name/log.txt" | awk '{ if ($2 != $5) exit 1; n++ } END { exit n != 1 }' ||
        fail "$name: memory is not what was planned"
}

variant() { # variant NAME KEYS...: two and four ranks of one group; two groups of two: data-parallel ranks change no bit
    local name=$1
    shift
    run 0 train tensor.yaml --run.dir="runs/$name-1" "$@"
    ranks "$name-2" 2 --parallel.tensor=2 "$@"
    ranks "$name-4" 4 --parallel.tensor=4 "$@"
    ranks "$name-2x2" 4 --parallel.tensor=2 "$@"
    for n in 2 4; do
        near "$name on $n ranks" loss 1e-5 "runs/$name-$n" "runs/$name-1"
        near "$name on $n ranks" val_loss 1e-5 "runs/$name-$n" "runs/$name-1"
        near "$name on $n ranks" grad_norm "${norms:-1e-4}" "runs/$name-$n" "runs/$name-1" # after 20 steps of slightly other weights
    done
    same_state "$name: two groups of two" "runs/$name-2x2" "runs/$name-2"
    for key in loss val_loss grad_norm; do
        [ "$(values "runs/$name-2x2" $key)" = "$(values "runs/$name-2" $key)" ] || fail "$name: two groups have another $key"
    done
}
variant gpt2 --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true
variant llama --model.tied_embeddings=false --model.head_count_kv=4 --train.z_loss=1e-4 --train.recompute=full
variant qwen3 --model.qk_norm=true --model.qkv_bias=true --train.clip=0.5 --train.recompute=selective
latent="--model.layers=mla --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=8 --model.mla_value_dim=8"
variant mla $latent --train.recompute=selective
variant mamba2 --model.layers=mamba2,gqa --model.mamba_heads=8 --model.mamba_head_dim=8 --model.mamba_groups=4 --model.mamba_state=8
tables="--model.engram_layers=0-1 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.lr=1e-4 --optim.table_rate=1" # as in meshes.sh
norms=1e-3 variant engram $tables --train.recompute=full
variant mtp --model.mtp_depth=2 --model.logit_softcap=0.7 --train.recompute=full
near "extra predictions" mtp_loss 1e-5 runs/mtp-4 runs/mtp-1
mixture="--model.layers=gqa/moe --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=16 --model.moe_shared_gate=true --model.moe_aux=0.01"
variant moe $mixture --model.moe_balance_rate=0.001 --train.recompute=full
near "loads of experts" load_max 1e-9 runs/moe-2 runs/moe-1
near "costs of routers" aux_loss 1e-5 runs/moe-4 runs/moe-1
# Muon's matrices come together from rows, columns, experts and whole copies, and with ZeRO from parts of them.
muon="--optim.name=muon --optim.lr=1e-3 --train.gradient_groups=4 --model.layers=gqa/moe,mla/mlp --model.head_count_kv=4 --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=16 --model.tied_embeddings=false"
muon="$muon --model.mla_heads=4 --model.mla_q_rank=16 --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=4 --model.mla_value_dim=8"
variant muon $muon
for stage in 1 3; do
    ranks muon-zero$stage 4 --parallel.tensor=2 --parallel.zero=$stage $muon
    same_state "muon with tensor parallelism and ZeRO $stage" runs/muon-zero$stage runs/muon-2
done
[ "$(values runs/llama-2 loss)" != "$(values runs/llama-1 loss)" ] || fail "two ranks sum as one does: nothing was shared"

# The same run twice, and eight ranks.
ranks again 4 --parallel.tensor=4 --model.qk_norm=true --model.qkv_bias=true --train.clip=0.5 --train.recompute=selective
same_state "two runs" runs/again runs/qwen3-4
ranks wide 8 --parallel.tensor=4 --model.qk_norm=true --model.qkv_bias=true --train.clip=0.5 --train.recompute=selective
same_state "two groups of four" runs/wide runs/qwen3-4

# In BF16 as near as rounding leaves it: one rank in FP32 is no nearer.
for bf16 in "--train.precision=bf16" "--train.precision=bf16 --optim.state=bf16" "--train.precision=bf16 --optim.state=bf16 --optim.lr=3e-3 $latent" \
    "--train.precision=bf16 --optim.state=bf16 $tables"; do
    rm -rf runs/bf16-1 runs/bf16-2
    run 0 train tensor.yaml --run.dir=runs/bf16-1 $bf16
    ranks bf16-2 2 --parallel.tensor=2 $bf16
    near "$bf16" loss 2e-2 runs/bf16-2 runs/bf16-1
done

# From two ranks to one, to four, and to the end: near the undisturbed run. On the ranks that wrote a checkpoint: its bits.
forget() { for step in "$@"; do rm -r "runs/moved/ckpt/step-000000$step"; done; }
keep="--run.dir=runs/moved --ckpt.every=5 --ckpt.keep=9"
run 0 launch -n 2 -- train tensor.yaml $keep --parallel.tensor=2
forget 10 15 20
run 0 train tensor.yaml $keep --resume
forget 15 20
run 0 launch -n 4 -- train tensor.yaml $keep --parallel.tensor=4 --resume
run 0 train tensor.yaml --run.dir=runs/still
paste <(values runs/moved loss | tail -n 10) <(values runs/still loss | tail -n 10) |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 1e-5)) bad = 1 } END { exit bad || NR != 10 }' || fail "moved between ranks, the run ends elsewhere"
run 0 launch -n 2 -- train tensor.yaml --run.dir=runs/same --parallel.tensor=2
rm -r runs/same/ckpt/step-00000020
run 0 launch -n 2 -- train tensor.yaml --run.dir=runs/same --parallel.tensor=2 --resume
run 0 launch -n 2 -- train tensor.yaml --run.dir=runs/straight --parallel.tensor=2
same_state "resumed" runs/same runs/straight

# Beside a pipeline: its depth changes no bit of an untied model.
untied="--model.tied_embeddings=false --train.recompute=full --train.z_loss=1e-4 --model.head_count_kv=4"
ranks deep 4 --parallel.tensor=2 --parallel.pipeline=2 $untied
same_state "tensor x pipeline" runs/deep runs/llama-2
ranks deeper 4 --parallel.tensor=2 --parallel.pipeline=2 --parallel.schedule=zb_h1 $untied
same_state "tensor x pipeline, zb_h1" runs/deeper runs/llama-2

# Beside ZeRO, whose first stage changes no bit.
ranks shards 4 --parallel.tensor=2 --parallel.zero=1 $untied
same_state "tensor x zero" runs/shards runs/llama-2

# Refused in one line, before anything is written.
refused() { # refused TEXT KEYS...
    local text=$1
    shift
    run 2 launch -n 4 -- train tensor.yaml --run.dir=runs/none --parallel.tensor=4 "$@"
    grep '^error:' err | head -n 1 | grep -qF -- "$text" || fail "$*: the error does not say '$text'"
}
refused "does not divide model.head_count 6" --model.head_count=6 --model.hidden_size=48
refused "does not divide model.head_count_kv 2" --model.head_count_kv=2
refused "does not divide model.ffn_size 66" --model.ffn_size=66
refused "does not divide model.vocab_size 322" --model.vocab_size=322
refused "does not divide the 30 tokens of a micro-batch" --train.micro_batch=1 --train.sequence_length=30 --train.batch_tokens=240 --train.gradient_groups=0
refused "does not divide model.mamba_groups 2" --model.layers=mamba2 --model.mamba_heads=8 --model.mamba_groups=2
refused "model.engram_dim 32 is no multiple of 16 for each of the ranks" $tables --model.engram_dim=32
refused "does not divide model.moe_size 18" $mixture --model.moe_size=18
refused "does not divide model.moe_shared_size 6" $mixture --model.moe_shared_size=6
refused "no rank has the whole model to continue log.sample_prompt" --log.sample_prompt=the
[ -e runs/none ] && fail "a refused run left a directory"
exit $failed
