#!/usr/bin/env bash
# `ckpt export --dtype fp8`: codes and scales as DeepSeek-V3 publishes them, checked by a second reader; `ckpt import` reads them back. And the
# model card beside every export: front matter that YAML reads, what the run has recorded.
tests=$(cd "$(dirname "$0")" && pwd)
. "$tests/../shell.sh"
command -v python3 >/dev/null || exit 77
make_corpus
base=(--train.steps=2 --optim.warmup_steps=1 --eval.every=1 --ckpt.every=1 --train.precision=bf16)
models=("--model.hidden_size=160 --model.ffn_size=300 --model.head_count=4 --model.head_count_kv=2"
    "--model.layers=gqa/moe --model.qk_norm=true --model.tied_embeddings=false --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=48 --model.norm_eps=1e-6")
for i in 0 1; do
    # shellcheck disable=SC2086 # several keys
    run 0 train r.yaml "${base[@]}" ${models[$i]} --run.dir=m$i
    run 0 ckpt export m$i -o m$i-fp8 --dtype fp8
    grep -q ' dtype=fp8$' out || fail "the result does not say fp8"
    run 0 ckpt export m$i -o m$i-fp32
    run 0 ckpt import m$i-fp8 -o m$i-again
    run 0 ckpt export m$i-again -o m$i-back
    python3 "$tests/fp8_weights.py" m$i-fp8 m$i-fp32 m$i-back >out 2>err || fail "model $i: other weights than its codes say"
    grep -q '[1-9]' out || fail "model $i: no matrix"
done
grep -q '"model.layers.0.mlp.gate"' m1-fp8/config.json || fail "the router is announced as FP8"

# What cannot be read, or has no such form.
break_config() { # break_config FROM TO TEXT: sed of config.json
    cp -r m0-fp8 bad
    sed -i "$1" bad/config.json
    run 4 ckpt import bad -o bad-run
    says "$2"
    [ ! -e bad-run ] || fail "a run of what was refused"
    rm -r bad
}
break_config 's/"quant_method": "fp8"/"quant_method": "awq"/' "has method 'awq'; ingot reads models that are not quantized, and fp8"
break_config 's/"fmt": "e4m3"/"fmt": "e5m2"/' 'has fmt other than e4m3'
break_config 's/^      128,$/      64,/' 'without weight_block_size [128, 128]'
cp -r m0-fp8 bad
sed -i 's/weight_scale_inv/weight_scale_xxx/g' bad/model.safetensors
run 4 ckpt import bad -o bad-run
says 'scale_inv is missing, the scales of FP8 codes'
run 0 train r.yaml "${base[@]}" --run.dir=gpt2 --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true \
    --model.out_bias=true --model.mlp_bias=true
run 2 ckpt export gpt2 -o no --dtype fp8
says "is stored transposed, as gpt2's matrices are"
run 2 ckpt export m0 -o no --dtype int8
says "--dtype is bf16, fp32 or fp8, not 'int8'"
[ ! -e no ] || fail "a refused export left something"

# The card.
card=m0-fp8/README.md
loss=$(sed -n 's/.*"kind":"step","step":2,.*"val_loss":\([0-9.]*\).*/\1/p' m0/metrics.jsonl)
for line in 'library_name: transformers' '| trained on | 256 tokens in 2 steps |' '## Data' '| c_train |' 'train r.yaml --train.steps=2' '  hidden_size: 160'; do
    grep -qF -- "$line" $card || fail "the card does not say '$line'"
done
[ "$(sed -n 's/^      value: //p' $card | head -n 1 | cut -c1-6)" = "${loss:0:6}" ] || fail "the card has another loss than the run: $loss"
[ "$(head -n 1 $card)" = --- ] || fail "the card has no front matter"
if python3 -c 'import yaml' 2>/dev/null; then
    python3 - $card >out 2>err <<'PY' || fail "the front matter is not the YAML that it should be"
import sys, yaml
front = yaml.safe_load(open(sys.argv[1]).read().split("---\n")[1])
results = front["model-index"][0]["results"][0]
assert front["pipeline_tag"] == "text-generation" and results["metrics"][0]["type"] == "loss"
assert set(results) == {"task", "dataset", "metrics"} and set(results["dataset"]) == {"type", "name"}
PY
fi
run 0 ckpt export m0/ckpt/step-00000001 -o one
grep -qF '| trained on | 128 tokens in 1 steps |' one/README.md || fail "the card of an earlier checkpoint"
run 0 ckpt export m0-again -o imported
grep -q 'imported into ingot and not trained further' imported/README.md || fail "the card of an import"
exit $failed
