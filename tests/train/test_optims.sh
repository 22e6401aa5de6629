#!/usr/bin/env bash
# A small model with each optimizer: Muon, moments in 8 bits, and weights without masters end where AdamW with moments in fp32 does; Muon gives the same bits on
# one rank and on several, which share its matrices out, and its checkpoints hold no second moment of matrices.
. "$(dirname "$0")/../shell.sh"
make_corpus

val_loss() { # val_loss RUN_DIR: the last evaluation's
    grep '"val_loss":' "$1/metrics.jsonl" | tail -n 1 | sed -E 's/.*"val_loss":([0-9.]+).*/\1/'
}
train() { # train NAME KEYS...
    local name=$1
    shift
    run 0 train r.yaml --run.dir="runs/$name" --train.steps=200 --eval.every=0 --ckpt.every=0 --optim.lr=1e-2 "$@"
    echo "$name: $(val_loss "runs/$name")"
}
near() { # near NAME OTHER: its validation loss is at most 0.03 above that of OTHER
    awk -v a="$(val_loss "runs/$2")" -v b="$(val_loss "runs/$1")" 'BEGIN { exit !(a > 0 && b > 0 && b - a < 0.03) }' ||
        fail "$1 ends at $(val_loss "runs/$1")"
}
holds() { # holds RUN TENSOR: in its last checkpoint
    grep -q "\"name\": \"$2\"" "runs/$1"/ckpt/step-*/manifest.json
}

train adamw
train int8 --optim.state=int8
train muon --optim.name=muon
train muon_int8 --optim.name=muon --optim.state=int8 --train.precision=bf16
train masterless --train.precision=bf16 --optim.master=none --optim.state=bf16
train masterless_int8 --train.precision=bf16 --optim.master=none --optim.state=int8
train lion --optim.name=lion --optim.lr=3e-3
train lion_int8 --optim.name=lion --optim.lr=3e-3 --optim.state=int8
for name in int8 masterless masterless_int8 muon muon_int8; do near $name adamw; done
near lion_int8 lion
# A run that learns nothing stays at log 300.
awk -v a="$(val_loss runs/adamw)" -v b="$(val_loss runs/lion)" 'BEGIN { exit !(a < 2 && b < 2) }' || fail "nothing was learned"

# From step 100 a run may go on the other way, which it says.
for masters in "fp32 none" "none fp32"; do
    keys="--train.precision=bf16 --optim.state=bf16 --ckpt.every=100"
    # shellcheck disable=SC2086
    train switched $keys --optim.master="${masters% *}"
    rm -r runs/switched/ckpt/step-00000200
    # shellcheck disable=SC2086
    run 0 train r.yaml --run.dir=runs/switched --resume --train.steps=200 --eval.every=0 --optim.lr=1e-2 $keys --optim.master="${masters#* }"
    grep -q "optim.master: ${masters/ / -> }" out err || fail "it is not said that masters change: $masters"
    near switched adamw
    rm -r runs/switched
done

check "momentum of a matrix" holds muon m/layers.0.attn.qkv.weight
check "second moment of the embedding" holds muon v/embed.weight
check "no second moment of a matrix" eval '! holds muon v/layers.0.attn.qkv.weight'
check "scales" holds int8 v_scale/layers.0.attn.qkv.weight

# Fourteen matrices: two ranks have seven each, of four two have one less.
ranks() { # ranks NAME N KEYS...
    local name=$1 n=$2
    shift 2
    run 0 launch -n "$n" -- train r.yaml --run.dir="runs/$name" --optim.name=muon --optim.state=int8 --train.gradient_groups=4 \
        --train.micro_batch=1 --train.steps=10 --machine.threads=1 --model.tied_embeddings=false "$@"
}
for n in 1 2 4; do ranks ranks$n $n; done
ranks stages 4 --parallel.pipeline=2
same_run "muon on two ranks" runs/ranks1 runs/ranks2
same_run "muon on four ranks" runs/ranks1 runs/ranks4
same_state "muon on two stages" runs/ranks1 runs/stages
run 2 train r.yaml --optim.state=int9
says "optim.state: 'int9' is none of fp32, bf16, int8"
exit $failed
