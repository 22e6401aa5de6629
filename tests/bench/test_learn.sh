#!/usr/bin/env bash
# ingot bench learn from outside: pairs, their noise, what variants may change, what is not trained twice, what is refused.
peer=$(realpath "$(dirname "$0")/../../tools/peer_learn.py")
. "$(dirname "$0")/../shell.sh"
make_corpus
learn=(bench learn r.yaml --train.steps=20 --eval.every=5 --ckpt.every=0 -o learn)
value() { # value VARIANT KEY: of learn/learn.jsonl
    sed -n "s/^{\"variant\": \"$1\",.*\"$2\": \"\{0,1\}\([^\",}]*\).*/\1/p" learn/learn.jsonl
}
cat >ways.txt <<'E'
# what must not change a bit, and what must
full:   train.recompute=full   # a comment
lion:   optim.name=lion --optim.lr=1e-3
E
run 0 "${learn[@]}" --variants ways.txt --variant 'wild: optim.lr=100 optim.weight_decay=100' --seeds 2
for name in base full lion wild; do check "a row for $name" grep -q "^$name " out; done
check "recomputation changes no bit" [ "$(value full same) $(value full minus)" = 'true 0' ]
check "another optimizer does" [ "$(value lion same)" = false ]
check "two seeds have a noise" [ "$(value lion std_err_seeds)" != null ]
check "the same held-out text" [ "$(value full held_out_minus)" = 0 ]
check "the first batch is the same, and the weights that it meets" \
    [ "$(losses learn/seed-2/lion | head -n 1 | grep -o '"loss":[^,]*')" = "$(losses learn/seed-2/base | head -n 1 | grep -o '"loss":[^,]*')" ]
check "another seed is another run" \
    [ "$(losses learn/seed-2/base | head -n 1 | grep -o '"loss":[^,]*')" != "$(losses learn/seed-1/base | head -n 1 | grep -o '"loss":[^,]*')" ]
check "half of the run is compared" [ "$(value base last)" = 10 ]
check "base reaches its own loss with its last token" [ "$(value base reach_tokens)" = $((20 * 128)) ]
check "a page with curves of the differences" grep -q '"above":' learn/learn.html
check "and the settings that differ" grep -q '<td>optim.name<td>adamw<td>adamw<td>adamw<td>lion' learn/learn.html
check "a variant that is torn apart is a row" [ "$(value wild state)" = 'failed (exit 6) at step '"$(value wild steps)" -a "$(value wild minus)" = null ]

# The statistic, on losses that are known: base's plus 0.004 and a tenth of it up and down. Over 20 steps the mean is 0.004, the standard
# error 0.0004 * sqrt(20 / 19) / sqrt(20) = 0.0000918.
mkdir known
awk '/"kind":"step"/ {
    match($0, /"step":[0-9]+/); step = substr($0, RSTART + 7, RLENGTH - 7)
    if (!match($0, /"loss":[-+.eE0-9]+/)) next
    printf "{\"kind\":\"step\",\"step\":%d,\"tokens\":%d,\"loss\":%.9f,\"step_s\":0.5,\"tokens_per_s\":256}\n", step, 128 * step,
        substr($0, RSTART + 7, RLENGTH - 7) + 0.004 * (1 + 0.1 * (-1) ^ step) }' learn/seed-1/base/metrics.jsonl >known/metrics.jsonl
touch -d '2001-01-01' learn/seed-*/*/metrics.jsonl
run 0 "${learn[@]}" --variant 'lion: optim.name=lion optim.lr=1e-3' --peer known/ --last 20 --json
check "JSON is what the file says" cmp -s out learn/learn.jsonl
check "the paired mean" awk -v x="$(value known minus)" 'BEGIN { exit !(x > 0.0039999 && x < 0.0040001) }'
check "its standard error" awk -v x="$(value known std_err)" 'BEGIN { exit !(x > 0.0000917 && x < 0.0000919) }'
check "seconds of another program" [ "$(value known train_s)" = 10 ]
check "one seed has no noise of seeds" [ "$(value lion std_err_seeds)" = null ]
check "nothing was trained again" [ -z "$(find learn -name metrics.jsonl -newermt 2001-01-02)" ]
head -n 12 known/metrics.jsonl >short && mkdir part && mv short part/metrics.jsonl
run 0 "${learn[@]}" --peer part
check "losses that end early are not compared" grep -qE '^part +- +- .*12 of 20 steps' out

run 0 "${learn[@]}" --initial
run 0 ckpt list learn/initial
check "the weights before the first step" grep -q 'step-00000000' out
run 2 "${learn[@]}" --initial
says 'learn/initial is there'

# PyTorch in fp32 from the same weights: the sums of a step in another order, 20 steps long. Losses of about 4 are rounded to 5e-7, and
# training spreads a rounding a little.
if "${PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
    OMP_NUM_THREADS=1 "${PYTHON:-python3}" "$peer" learn/seed-1/base --initial learn/initial -o learn/torch --ingot "$ingot" >out 2>err || fail "peer_learn.py"
    run 0 "${learn[@]}" --peer learn/torch --last 20
    uncapped=$(value base loss)
    check "PyTorch's losses" awk -v x="$(value torch minus)" -v e="$(value torch std_err)" 'BEGIN { exit !(x < 1e-5 && x > -1e-5 && e < 1e-5) }'
    check "PyTorch's held-out loss" awk -v x="$(value torch held_out_minus)" 'BEGIN { exit !(x != "null" && x < 1e-5 && x > -1e-5) }'
    # The soft-cap of the logits, at a height where it matters from the first step on.
    capped=(bench learn r.yaml --model.logit_softcap=0.7 --train.steps=20 --eval.every=0 --ckpt.every=0 -o capped)
    run 0 "${capped[@]}"
    run 0 "${capped[@]}" --initial
    OMP_NUM_THREADS=1 "${PYTHON:-python3}" "$peer" capped/seed-1/base --initial capped/initial -o capped/torch --ingot "$ingot" --preload >out 2>err ||
        fail "peer_learn.py with a soft-cap"
    run 0 "${capped[@]}" --peer capped/torch --last 20
    mv capped/learn.jsonl learn/learn.jsonl
    check "PyTorch's losses with a soft-cap" awk -v x="$(value torch minus)" -v e="$(value torch std_err)" 'BEGIN { exit !(x < 1e-5 && x > -1e-5 && e < 1e-5) }'
    check "which is not what it was without" [ "$(value base loss)" != "$uncapped" ]
else
    echo "skipped: no torch for tools/peer_learn.py"
fi

run 2 "${learn[@]}" --variant 'lion: optim.name=lion optim.lr=2e-3'
says 'is a run of other keys'
run 0 "${learn[@]}" --variant 'lion: optim.name=lion optim.lr=2e-3' --fresh
run 2 "${learn[@]}" --variant 'wide: model.hidden_size=64'
says 'variant wide changes model.'
run 2 "${learn[@]}" --variant 'other: run.seed=7'
says 'variant other changes run.seed'
run 2 "${learn[@]}" --variant 'muon optim.name=muon'
says "variant 'muon optim.name=muon'"
run 2 "${learn[@]}" --variant 'base: optim.lr=1'
says 'another one has this name'
run 2 "${learn[@]}" --variant 'x: optim.nam=muon'
says 'variant x: '
run 2 "${learn[@]}" --last 21
says "--last 21: 2 to the run's 20 steps"
run 2 "${learn[@]}" --seeds 0
says '--seeds 0'
run 3 "${learn[@]}" --peer nowhere
says '--peer nowhere: it has no metrics.jsonl'
run 3 "${learn[@]}" --data.train=none.bin -o gone
says 'none.bin'
check "what its log says" grep -q none.bin gone/seed-1/base.log
exit $failed
