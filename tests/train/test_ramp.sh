#!/usr/bin/env bash
# Warm-up of the batch and of the sequence length: which samples a step reads, the learning rate by tokens, resume in the middle, ranks.
. "$(dirname "$0")/../shell.sh"
make_corpus
value() { # value RUN STEP KEY
    sed -n "s/.*\"kind\":\"step\",\"step\":$2,.*\"$3\":\([-+.eE0-9]*\).*/\1/p" "$1/metrics.jsonl" | head -n 1
}
samples() { # samples RUN STEP: of the step, in the order of its rows
    run 0 data inspect "$1" --step "$2" --json
    grep -o '"sample": [0-9]*' out | grep -o '[0-9]*$' | sort -n | tr '\n' ' '
}
# A micro-batch has 2 x 32 tokens: one in a step until 192 tokens are read, two until 704, then four.
batch=(--train.batch_tokens=256 --train.batch_schedule=64@192,128@700 --train.steps=14 --optim.warmup_steps=2 --eval.every=0)
run 0 train r.yaml "${batch[@]}" --run.dir=whole --ckpt.keep=20
check "tokens of the stages" [ "$(for s in 1 3 4 7 8 14; do value whole $s tokens; done | tr '\n' ' ')" = '64 192 320 704 960 2496 ' ]
check "tokens per second are those of the step" \
    awk -v t="$(value whole 2 tokens_per_s)" -v s="$(value whole 2 step_s)" 'BEGIN { exit !(t * s > 63.9 && t * s < 64.1) }'
check "steps read what follows" [ "$(samples whole 3)$(samples whole 4)$(samples whole 8)" = '4 5 6 7 8 9 22 23 24 25 26 27 28 29 ' ]
# lr: linear warm-up over 2 * 256 tokens: after step 1 64 of them are read, after step 5 448.
check "the learning rate follows tokens" awk -v a="$(value whole 1 lr)" -v b="$(value whole 5 lr)" -v c="$(value whole 6 lr)" \
    'BEGIN { exit !(a > 3.7499e-4 && a < 3.7501e-4 && b > 2.62499e-3 && b < 2.62501e-3 && c == 3e-3) }'
run 0 train r.yaml "${batch[@]}" --run.dir=part --ckpt.keep=20
for step in 6 9 12 14; do rm -r part/ckpt/step-000000*"$step"; done # the newest is that of step 3, whose stage ends with it
run 0 train part --resume
same_run "resumed where a stage ends" whole part
rm -rf part/ckpt/step-000000{09,12,14}
run 0 train part --resume
same_run "resumed inside a stage" whole part
run 0 launch -n 2 -- train r.yaml "${batch[@]}" --train.micro_batch=1 --train.gradient_groups=2 --run.dir=two
run 0 train r.yaml "${batch[@]}" --train.micro_batch=1 --train.gradient_groups=2 --run.dir=one
same_run "two ranks" one two
# A stage with more micro-batches has more collectives: the list of a step's calls is recorded and compared anew. Sums are of other order.
losses() { grep '"kind":"step"' "$1/metrics.jsonl" | grep -oE '"loss":[-+.eE0-9]+' | cut -d: -f2; }
for axis in tensor context; do
    run 0 launch -n 2 -- train r.yaml "${batch[@]}" --parallel.$axis=2 --run.dir=$axis --ckpt.keep=20
    paste <(losses whole) <(losses $axis) >both.losses
    check "$axis ranks" awk '{ d = ($1 - $2) / $1; if (d * d > 1e-10) bad = 1 } END { exit bad || NR != 14 }' both.losses
    cp -r $axis again.$axis
    rm -r again.$axis/ckpt/step-000000{09,12,14}
    run 0 launch -n 2 -- train again.$axis --resume
    same_run "$axis ranks, resumed inside a stage" $axis again.$axis
done
run 0 train r.yaml "${batch[@]}" --train.steps=0 --train.tokens=2300 --run.dir=tokens
check "a length in tokens" [ "$(value tokens 14 tokens)" = 2496 ]
run 0 plan r.yaml "${batch[@]}"
check "the plan counts them" grep -qE '^run +14 steps, 2.50k tokens' out
run 0 report whole

# Sequences of 8, then of 16, then whole: the same samples, in pieces.
length=(--train.sequence_schedule=8@256,16@512 --train.steps=6 --eval.every=0 --ckpt.every=1 --ckpt.keep=9)
run 0 train r.yaml "${length[@]}" --run.dir=short
check "the batch stays" [ "$(value short 1 tokens) $(value short 6 tokens)" = '128 768' ]
check "and its samples" [ "$(samples short 3)" = '8 9 10 11 ' ]
longest() { # longest RUN STEP: greatest position
    run 0 data inspect "$1" --step "$2" --json
    tr -d ' \n' <out | grep -o '"positions":\[[0-9,]*\]' | grep -o '[0-9]*' | sort -n | tail -n 1
}
check "positions of the pieces" [ "$(longest short 2) $(longest short 3) $(longest short 5)" = '7 15 31' ]
run 0 train r.yaml --train.steps=6 --eval.every=0 --run.dir=long
check "short sequences know less" [ "$(value short 1 loss)" != "$(value long 1 loss)" ]
columns() { # columns RUN: tokens and targets of its first step
    run 0 data inspect "$1" --step 1 --json
    tr -d ' \n' <out | grep -oE '"(tokens|targets)":\[[-0-9,]*\]'
}
check "every token is read, and is a target, as without a schedule" [ "$(columns short)" = "$(columns long)" ]
cp -r short again
rm -r again/ckpt/step-0000000{2,3,4,5,6}
run 0 train again --resume
same_run "resumed between lengths" short again
run 0 train r.yaml "${length[@]}" --train.batch_tokens=256 --train.batch_schedule=128@400 --data.packing=best_fit --optim.warmup_steps=1 --run.dir=both
check "both, with packed documents" [ "$(value both 6 tokens)" = $((4 * 128 + 2 * 256)) ]

run 2 train short --resume --train.sequence_schedule=
says 'model, data, batch or optimizer differ'
check "which key" grep -q '^train.sequence_schedule: .*fixed once a run has begun' err
bad() { # bad TEXT KEYS...
    run 2 train r.yaml --run.dir=bad "${@:2}"
    says "$1"
    check "nothing was made" [ ! -e bad ]
}
bad "'64' is no SIZE@TOKENS" --train.batch_schedule=64
bad 'ends must ascend' --train.batch_schedule=64@300,128@200
bad '96 tokens per step are no multiple of micro_batch x sequence_length = 64' --train.batch_schedule=96@300
bad 'or more than train.batch_tokens 128' --train.batch_schedule=256@300
bad '64 tokens are more than train.sequence_length 32' --train.sequence_schedule=64@300
bad 'does not go with parallel.zero 2 and 3' --train.batch_schedule=64@300 --parallel.zero=2
bad 'does not go with train.on_spike rewind' --train.batch_schedule=64@300 --train.on_spike=rewind
run 2 train whole --resume --rewind 3 --skip 5:6
says 'train.batch_schedule'
exit $failed
