#!/usr/bin/env bash
# The loss that is reported is the cross-entropy; the z-loss is a field of its own, on one rank, on slices of the vocabulary, in a pipeline.
. "$(dirname "$0")/../shell.sh"
make_corpus
value() { # value RUN STEP KEY
    sed -n "s/.*\"kind\":\"step\",\"step\":$2,.*\"$3\":\([-+.eE0-9]*\).*/\1/p" "$1/metrics.jsonl" | head -n 1
}
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < t && d > -t) }'; }
keys=(--train.steps=3 --optim.warmup_steps=1 --eval.every=0 --model.tied_embeddings=false --model.vocab_size=320)
run 0 train r.yaml "${keys[@]}" --run.dir=plain
run 0 train r.yaml "${keys[@]}" --train.z_loss=1e-2 --run.dir=z
check "without a z-loss there is no term" [ -z "$(value plain 1 z_loss)" ]
check "the first loss is the same" [ "$(value plain 1 loss)" = "$(value z 1 loss)" ]
check "the gradient is not" [ "$(value plain 1 grad_norm)" != "$(value z 1 grad_norm)" ]
# Fresh weights: logits are near 0, so log Z is near log 320, and the term near 0.01 (log 320)^2 = 0.33275.
check "the term" near "$(value z 1 z_loss)" 0.33275 0.005
check "it is trained" awk -v a="$(value z 1 z_loss)" -v b="$(value z 3 z_loss)" 'BEGIN { exit !(b < a) }'
run 0 train z --resume --train.steps=4 --optim.warmup_steps=1
for how in tensor pipeline; do
    run 0 launch -n 2 -- train r.yaml "${keys[@]}" --train.z_loss=1e-2 --parallel.$how=2 --run.dir=$how
    for step in 1 3; do # fp32 sums of a step in another order: 1e-6 of 6 nats
        check "$how: the loss of step $step" near "$(value $how $step loss)" "$(value z $step loss)" 1e-5
        check "$how: its term" near "$(value $how $step z_loss)" "$(value z $step z_loss)" 1e-5
    done
done
exit $failed
