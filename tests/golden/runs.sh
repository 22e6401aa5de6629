# The golden set: `golden NAME RANKS KEYS...` trains a tiny model and prints what it computed, one line a step:
#
#   NAME  STEP  loss=... grad_norm=... [val_loss=... mtp_loss=... ...]        every number of metrics.jsonl but times and memory
#   NAME  state SHA256                                                        weights, moments and scales of the last checkpoint
#
# Runs are capped at AVX2, so every x86-64-v3 machine computes the same bits. Sourced by test_same_bits.sh and golden.sh.
golden_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
golden_model() {
    make_corpus
    cat >golden.yaml <<'YAML'
model: {layer_count: 4, hidden_size: 32, ffn_size: 64, head_count: 4, context_length: 32, vocab_size: 320, tied_embeddings: false}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 1, batch_tokens: 256, steps: 3, precision: fp32, gradient_groups: 8}
optim: {lr: 3e-3, warmup_steps: 1}
eval: {every: 0, tokens: 1024}
ckpt: {every: 0}
machine: {threads: 1}
YAML
}

golden() { # golden NAME RANKS KEYS...
    local name=$1 ranks=$2
    shift 2
    [[ $name =~ $golden_filter ]] || return 0
    local start=()
    [ "$ranks" -eq 1 ] || start=(launch -n "$ranks" --)
    run 0 "${start[@]}" train golden.yaml --isa avx2 --run.dir="runs/$name" "$@"
    golden_print "$name"
    rm -rf "runs/$name"
}

golden_print() { # golden_print NAME
    losses "runs/$1" | sed -E 's/"kind":"step",//; s/,"bubble":[^,}]*//; s/[{}"]//g; s/:/=/g; s/,/ /g' | while read -r line; do echo "$1 $line"; done
    ! grep -hE '"kind":"sample"' "runs/$1/metrics.jsonl" >samples || sed -E 's/"time":[^,}]*,?//' samples | sha256sum | sed "s/^/$1 samples /; s/ *-$//"
    # The files that hold tensors; the manifest has dates and paths.
    (cd "runs/$1"/ckpt/step-* && find . -type f ! -name '*.json' ! -name '*.yaml' | sort | xargs sha256sum) | sha256sum | sed "s/^/$1 state /; s/ *-$//"
}

golden_plan() { # golden_plan NAME ARGS...: every number of a plan, in order, but those of the whole run, which may depend on this host's rates
    local name=$1
    shift
    [[ $name =~ $golden_filter ]] || return 0
    run 0 plan "$@"
    echo "plan:$name $(sed '/^  "run": {$/,/^  }/d; /"predicted_only":/d' out | grep -oE '[-+]?[0-9][0-9.]*([eE][-+]?[0-9]+)?' | sha256sum | cut -d' ' -f1)"
}

golden_all() {
    local gpt2=(--model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true)
    local moe=("--model.layers=gqa;gqa/moe" --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=16
        --model.moe_shared_gate=true --model.moe_aux=0.01 --model.moe_balance_rate=0.001)
    local mla=(--model.layers=mla --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=8 --model.mla_value_dim=8)
    local gdn=("--model.layers=3*gdn,1*gqa" --model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=8 --model.gdn_value_dim=8)
    local mamba=(--model.layers=gqa,mamba2 --model.mamba_heads=8 --model.mamba_head_dim=8 --model.mamba_groups=4 --model.mamba_state=8)
    local engram=(--model.engram_layers=1-2 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100)
    local hrm=(--model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_low_layers=2)
    local bf16=--train.precision=bf16 precision

    # Models, in both precisions.
    for precision in fp32 bf16; do
        local p=--train.precision=$precision
        golden "dense-$precision" 1 $p --log.sample_prompt=the --log.sample_tokens=8
        golden "gpt2-$precision" 1 $p "${gpt2[@]}" --model.tied_embeddings=true
        golden "qwen3-$precision" 1 $p --model.qk_norm=true --model.head_dim=16 --model.head_count_kv=2
        golden "window-$precision" 1 $p "--model.layers=3*swa,1*gqa" --model.window=8 --data.packing=documents
        golden "mla-$precision" 1 $p "${mla[@]}"
        golden "gdn-$precision" 1 $p "${gdn[@]}" --data.packing=best_fit
        golden "mamba2-$precision" 1 $p "${mamba[@]}" --data.packing=documents
        golden "moe-$precision" 1 $p "${moe[@]}"
        golden "moe-sigmoid-$precision" 1 $p "${moe[@]}" --model.moe_router=sigmoid --model.moe_groups=2 --model.moe_groups_kept=1 --model.moe_z=0.001
        golden "engram-dense-$precision" 1 $p "${engram[@]}" --optim.table_gradients=dense
        golden "engram-sparse-$precision" 1 $p "${engram[@]}" --optim.table_gradients=sparse
        golden "hrm-$precision" 1 $p "${hrm[@]}"
        golden "hrm-halt-$precision" 1 $p "${hrm[@]}" --model.hrm_segments=2 --model.hrm_halt=true --data.packing=documents
        golden "mtp-$precision" 1 $p --model.mtp_depth=2
    done

    # Optimizers, their state, recomputation, accumulation.
    golden lion 1 --optim.name=lion
    golden muon 1 --optim.name=muon
    golden muon-int8 1 $bf16 --optim.name=muon --optim.state=int8
    golden state-bf16 1 $bf16 --optim.state=bf16
    golden state-int8 1 $bf16 --optim.state=int8
    golden masterless 1 $bf16 --optim.state=bf16 --optim.master=none
    golden recompute-selective 1 $bf16 --train.recompute=selective
    golden recompute-full 1 $bf16 --train.recompute=full
    golden recompute-full-moe 1 $bf16 --train.recompute=full "${moe[@]}"
    golden overlay 1 $bf16 --train.micro_batch=8 --train.gradient_groups=0
    golden z-loss-clip 1 --train.z_loss=1e-4 --train.clip=0.5 --optim.schedule=wsd

    # Meshes of CPU ranks.
    golden dp2 2
    golden dp2-bf16 2 $bf16
    golden dp4-shard2-zero1 4 --parallel.zero=1 --parallel.shard=2
    golden zero1 2 $bf16 --parallel.zero=1
    golden zero2 2 $bf16 --parallel.zero=2
    golden zero3 2 $bf16 --parallel.zero=3
    golden zero3-gdn 2 $bf16 --parallel.zero=3 "${gdn[@]}"
    golden zero3-moe 2 --parallel.zero=3 "${moe[@]}"
    golden zero3-engram 2 --parallel.zero=3 "${engram[@]}"
    golden lion-bf16 1 $bf16 --optim.name=lion
    golden threads 1 $bf16 --machine.threads=2
    golden zero3-muon 2 --parallel.zero=3 --optim.name=muon
    golden zero2-muon 2 --parallel.zero=2 --optim.name=muon
    golden tp2 2 --parallel.tensor=2
    golden tp2-bf16 2 $bf16 --parallel.tensor=2
    golden tp2-gpt2 2 "${gpt2[@]}" --parallel.tensor=2
    golden tp2-moe 2 "${moe[@]}" --parallel.tensor=2
    golden tp2-mla 2 "${mla[@]}" --parallel.tensor=2
    golden tp2-mamba2 2 "${mamba[@]}" --parallel.tensor=2
    golden tp2-gdn 2 "${gdn[@]}" --parallel.tensor=2
    golden tp2-engram 2 "${engram[@]}" --parallel.tensor=2 --optim.table_gradients=sparse
    golden tp2-mtp 2 --model.mtp_depth=1 --parallel.tensor=2
    golden tp2-muon 2 --optim.name=muon --parallel.tensor=2
    golden pp2-gpipe 2 --parallel.pipeline=2 --parallel.schedule=gpipe
    golden pp2-1f1b 2 $bf16 --parallel.pipeline=2 --parallel.schedule=1f1b
    golden pp2-interleaved 2 --parallel.pipeline=2 --parallel.schedule=interleaved --parallel.chunks=2
    golden pp2-zb-h1 2 $bf16 --parallel.pipeline=2 --parallel.schedule=zb_h1
    golden pp2-tied 2 "${gpt2[@]}" --model.tied_embeddings=true --parallel.pipeline=2
    golden dp2-tp2 4 --parallel.tensor=2
    golden dp2-pp2 4 --parallel.pipeline=2 --parallel.zero=2
    golden tp2-pp2 4 --parallel.tensor=2 --parallel.pipeline=2 --parallel.schedule=zb_h1
    golden dp2-tp2-pp2 8 --parallel.tensor=2 --parallel.pipeline=2 --parallel.zero=3

    # Resumed in the middle, on another mesh.
    if [[ resume =~ $golden_filter ]]; then
        run 0 train golden.yaml --isa avx2 --run.dir=runs/resume --train.max_minutes=0 --ckpt.every=2 --ckpt.keep=9
        rm -r runs/resume/ckpt/step-00000003
        run 0 launch -n 2 -- train golden.yaml --isa avx2 --run.dir=runs/resume --resume --parallel.zero=2
        rm -r runs/resume/ckpt/step-00000002
        golden_print resume
        rm -rf hf
        run 0 ckpt export runs/resume -o hf
        echo "export $(cd hf && sha256sum ./*.safetensors | sha256sum | cut -d' ' -f1)"
        rm -rf runs/resume
    fi

    # Plans, of presets and of the examples.
    local preset
    for preset in gpt2-124m llama-1b 7b-gqa 70b deltanet-mla-small swa-mla-medium engram-moe-small; do
        golden_plan "$preset" --model.preset=$preset --train.batch_tokens=1048576 --train.steps=1 --model.context_length=4096 --model.vocab_size=32000 --machine.memory_gib=4000 --machine.device=cpu --json
        golden_plan "$preset-64xB200" --model.preset=$preset --train.batch_tokens=1048576 --train.steps=1 --model.context_length=4096 --model.vocab_size=32000 --machine 64xB200 --json
    done
    for preset in qwen3-next-tiny deepseek-v3-tiny hrm-tiny; do
        golden_plan "$preset-2xH100" --model.preset=$preset --train.batch_tokens=65536 --train.steps=1 --model.vocab_size=4096 --machine 2xH100 --json
    done
    local example
    for example in gpt2-124m llama-1b small nano-kjv; do
        golden_plan "example-$example" "$golden_root/examples/$example.yaml" --model.vocab_size=32000 --machine 8xH100 --json
    done
    golden_plan 70b-mesh --model.preset=70b --train.batch_tokens=4194304 --train.steps=1 --machine 64xH100 --json --parallel.tensor=8 --parallel.pipeline=4 --parallel.schedule=interleaved --parallel.chunks=4
}
