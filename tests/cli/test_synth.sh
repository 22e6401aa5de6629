#!/usr/bin/env bash
# From made-up samples to an accuracy: data synth, train, eval. A small model learns copy and MQAR; scripts/recall.sh compares mixers.
. "$(dirname "$0")/../shell.sh"
mkdir d
run 0 data synth mqar -o d/m --items 2 --length 16 --vocab-size 16 --samples 64 --val-samples 8
grep -q '8 samples of 16 tokens, 16 answers' out || fail "the summary: $(cat out)"
run 2 data synth mqar -o d/m
says "is there already"
cp d/m_train_000000.bin first.bin
run 0 data synth mqar -o d/m --items 2 --length 16 --vocab-size 16 --samples 64 --val-samples 8 --force
cmp -s first.bin d/m_train_000000.bin || fail "the same seed gives other samples"
run 2 data synth mqarr -o d/x
says "did you mean 'mqar'"
run 2 data synth copy -o d/x --length 10
says "8 items need samples of 18 tokens at least"
run 0 train --data.train=d/m_train_000000.bin --data.val=d/m_val_000000.bin --run.dir=r --train.steps=3 --train.micro_batch=8 \
    --model.layer_count=1 --model.hidden_size=8 --model.ffn_size=8 --model.head_count=1 --model.context_length=16 --train.precision=fp32
run 0 eval r
grep -q ' accuracy=[01]\.[0-9]* tokens=16$' out || fail "eval says $(cat out)"
run 0 eval r --json
grep -q '"accuracy": [01]\.' out || fail "eval --json says $(cat out)"
grep -q '"val_accuracy":[01]' r/metrics.jsonl || fail "metrics.jsonl has no val_accuracy"

# --- parity and needle, also as texts for a task ---
run 0 data synth parity -o d/p --items 5 --length 12 --vocab-size 5 --samples 8 --val-samples 4
grep -q '4 samples of 12 tokens, 4 answers' out || fail "parity has an answer per sample: $(cat out)"
run 0 data synth needle -o d/n --items 1 --length 131072 --samples 1 --val-samples 1
grep -q 'd/n_val_000000.bin: 1 samples of 131072 tokens, 1 answers' out || fail "a long haystack: $(cat out)"
run 2 data synth needle -o d/x --items 8 --length 18
says "8 items need samples of 19 tokens"
run 2 data synth parity -o d/x --vocab-size 4
says "at least 2 are needed"
make_corpus
run 0 train r.yaml --run.dir=words --train.steps=2 --optim.warmup_steps=0 --model.context_length=512 --train.batch_tokens=1024
run 0 data synth needle -o d/t --items 1 --length 24 --vocab-size 20 --samples 4 --val-samples 6 --text d/needle.jsonl
[ "$(wc -l <d/needle.jsonl)" -eq 6 ] || fail "texts: $(cat d/needle.jsonl)"
awk '{ n = split($0, w, /[" ]+/); key = ""
       for (i = 1; i < n; i++) if (w[i] == "=" && key == "") key = w[i + 1]
       if (key == "" || w[n - 1] != key) exit 1 }' <(sed 's/"}$/ "}/' d/needle.jsonl) || fail "the last word is not the needle: $(head -n 2 d/needle.jsonl)"
run 0 eval words --tasks lambada=d/needle.jsonl
grep -q '^task=lambada items=6 acc=' out || fail "a needle as a task: $(cat out)"

# --- a small model learns what these are tests of ---
learner=(--train.micro_batch=64 --train.precision=fp32 --model.layer_count=2 --model.hidden_size=64 --model.ffn_size=64 --model.head_count=2
    --model.rope_fraction=0.5 --model.init_std=0.05 --model.qk_norm=true --model.tied_embeddings=false --optim.name=muon --optim.lr=8e-3 --optim.warmup_steps=20
    --optim.weight_decay=0.01 --optim.min_ratio=0 --machine.threads=1)
learns() { # learns TASK STEPS LENGTH OPTIONS...: from chance to nine answers of ten
    local task=$1 steps=$2 length=$3
    shift 3
    run 0 data synth "$task" -o "d/learn-$task" --length "$length" --samples 20000 --val-samples 200 "$@"
    run 0 train --data.train="d/learn-${task}_train_000000.bin" --data.val="d/learn-${task}_val_000000.bin" --run.dir="learn-$task" \
        --train.steps="$steps" --model.context_length="$length" "${learner[@]}"
    run 0 eval "learn-$task"
    awk -v a="$(grep -o 'accuracy=[0-9.]*' out | cut -d= -f2)" 'BEGIN { exit !(a > 0.9) }' || fail "$task after $steps steps: $(cat out)"
}
learns copy 120 10 --items 3 --vocab-size 11
learns mqar 150 16 --items 3 --vocab-size 14 --power 1
exit $failed
