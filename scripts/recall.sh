#!/usr/bin/env bash
# Does a hybrid recall what its linear layers alone forget? Associative recall (Arora et al., arXiv:2312.04927) of 24 pairs, for models that
# differ in one layer: docs/PERF.md holds what came out. Some minutes on a CPU.
#
#   scripts/recall.sh [INGOT] [DIR]        INGOT: build/cpu/ingot, DIR: /tmp/ingot-recall; STEPS=N changes the length of the runs
set -eu
ingot=$(realpath "${1:-build/cpu/ingot}")
dir=${2:-/tmp/ingot-recall}
steps=${STEPS:-1500}
mkdir -p "$dir" && cd "$dir"
"$ingot" data synth mqar -o mqar --items 24 --length 128 --vocab-size 256 --samples 60000 --val-samples 500 --power 0.1 --force
common=(--data.train=mqar_train_000000.bin --data.val=mqar_val_000000.bin --model.layer_count=4 --model.hidden_size=64
    --model.ffn_size=128 --model.head_count=4 --model.context_length=128 --model.gdn_key_heads=2 --model.gdn_value_heads=2
    --model.gdn_key_dim=8 --model.gdn_value_dim=16 --train.precision=fp32 --train.micro_batch=32 --train.steps="$steps"
    --optim.lr=3e-3 --optim.warmup_steps=100 --eval.every=250 --log.every=50 --machine.device=cpu)
for layers in gdn 3*gdn,1*gqa; do
    run=${layers//[^a-z0-9]/_}
    rm -rf "$run"
    "$ingot" train --run.dir="$run" --model.layers="$layers" "${common[@]}" 2>"$run.log"
    printf '%-16s %s\n' "$layers" "$("$ingot" eval "$run")"
done
