#!/usr/bin/env bash
# Does a hybrid recall what its linear layers alone forget? Associative recall (Arora et al., arXiv:2312.04927) of 6 out of 16 keys, by models
# of four layers: Gated DeltaNet with a state of 4 x 16, the same with attention as the last layer, and with two heads of 32 x 32. docs/PERF.md
# holds what came out. Two or three minutes on a CPU.
#
#   scripts/recall.sh [INGOT] [DIR]        INGOT: build/cpu/ingot, DIR: /tmp/ingot-recall; STEPS=N changes the length of the runs
set -eu
ingot=$(realpath "${1:-build/cpu/ingot}")
dir=${2:-/tmp/ingot-recall}
mkdir -p "$dir" && cd "$dir"
"$ingot" data synth mqar -o mqar --items 6 --length 32 --vocab-size 34 --samples 60000 --val-samples 500 --power 1 --force
common=(--data.train=mqar_train_000000.bin --data.val=mqar_val_000000.bin --model.layer_count=4 --model.hidden_size=64
    --model.ffn_size=96 --model.head_count=2 --model.context_length=32 --model.gdn_dt_bias=-4
    --model.rope_fraction=0.5 --model.qk_norm=true --model.tied_embeddings=false
    --model.init_std=0.05 --train.precision=fp32 --train.micro_batch=64 --train.steps="${STEPS:-600}" --optim.lr=2e-3
    --optim.schedule=wsd --optim.decay_fraction=0.4 --optim.min_ratio=0 --optim.weight_decay=0.01 --optim.warmup_steps=50
    --eval.every=200 --log.every=50 --machine.device=cpu)
recall() { # recall NAME LAYERS HEADS KEY_DIM VALUE_DIM
    rm -rf "$1"
    "$ingot" train --run.dir="$1" --model.layers="$2" --model.gdn_key_heads="$3" --model.gdn_value_heads="$3" \
        --model.gdn_key_dim="$4" --model.gdn_value_dim="$5" "${common[@]}" 2>"$1.log"
    printf '%-8s %-12s state %s x %s x %s  %s\n' "$1" "$2" "$3" "$4" "$5" "$("$ingot" eval "$1" 2>/dev/null)"
}
recall small gdn 1 4 16
recall hybrid '3*gdn,1*gqa' 1 4 16
recall large gdn 2 32 32
