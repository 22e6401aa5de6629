#!/usr/bin/env bash
# From made-up samples to an accuracy: data synth, train, eval. What a model learns from them is scripts/recall.sh's matter.
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
exit $failed
