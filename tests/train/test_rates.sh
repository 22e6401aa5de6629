#!/usr/bin/env bash
# Rates and decay by group (optim.lr_scale, optim.decay_scale): factors are factors, to the bit where they are powers of two; the same bits on
# ranks, with ZeRO, after a resume; under AdamW, Lion and Muon.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >rates.yaml <<'YAML'
model: {layers: "gqa,gdn/moe", layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 2, context_length: 32, gdn_key_heads: 2, gdn_value_heads: 4,
  gdn_key_dim: 8, gdn_value_dim: 8, moe_experts: 4, moe_top_k: 2, moe_size: 16, tied_embeddings: false}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 1, batch_tokens: 128, steps: 4, precision: bf16, gradient_groups: 4}
optim: {lr: 4e-3, warmup_steps: 2, weight_decay: 0.25}
eval: {every: 0, tokens: 400}
ckpt: {every: 2}
machine: {threads: 1}
YAML
train() { # train RUN KEYS...
    local run=$1
    shift
    run 0 train rates.yaml --run.dir="$run" "$@"
}
groups=(--optim.lr_scale='embedding:0.5,norms:2,mixers:3,layers.1.moe.*:0.7,head:0.25' --optim.decay_scale='norms:1,ffn:0.5,embedding:0')
for name in adamw lion muon; do
    keys=(--optim.name=$name)
    train $name-plain "${keys[@]}"
    train $name-half "${keys[@]}" --optim.lr=2e-3 --optim.lr_scale='*:2'
    same_state "$name: half the rate, twice the factor" $name-plain $name-half
    train $name-decay "${keys[@]}" --optim.weight_decay=0.125 --optim.decay_scale='matrices:2,embedding:2,head:2'
    same_state "$name: half the decay, twice the factor" $name-plain $name-decay
    train $name "${keys[@]}" "${groups[@]}"
    run 0 ckpt diff $name-plain $name
    check "$name: groups are heard" grep -q '^[0-9]* tensors equal, [1-9][0-9]* not$' out
    train $name-again "${keys[@]}" "${groups[@]}" --train.steps=4 --train.max_minutes=0
    rm -r $name-again/ckpt/step-00000004
    run 0 train $name-again --resume
    same_state "$name: resumed" $name $name-again
    for shape in "2 0" "4 1" "2 2" "4 3"; do
        run 0 launch -n "${shape% *}" -- train rates.yaml --run.dir="$name-${shape/ /-}" --parallel.zero="${shape#* }" "${keys[@]}" "${groups[@]}"
        same_state "$name on ${shape% *} ranks with ZeRO ${shape#* }" $name "$name-${shape/ /-}"
    done
done
# A group by itself: what is not in it does not know of it, before its gradients do: after the first step.
train alone --train.steps=1 --optim.warmup_steps=0 --ckpt.every=0
train alone-head --train.steps=1 --optim.warmup_steps=0 --ckpt.every=0 --optim.lr_scale=head:0.5
run 0 ckpt diff alone alone-head
check "one weight differs" [ "$(grep -c 'head.weight' out)" -ge 1 ]
check "no other does" [ "$(grep -c 'layers\|embed' out)" -eq 0 ]
run 2 train rates.yaml --run.dir=bad --optim.lr_scale='layers.9.*:2'
says "optim.lr_scale: 'layers.9.*' matches no weight"
run 2 train rates.yaml --run.dir=bad --optim.decay_scale='norm:2'
says "optim.decay_scale: 'norm' is neither a group"
exit $failed
