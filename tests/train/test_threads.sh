#!/usr/bin/env bash
# The number of threads changes no bit: losses and checkpoints with 1, 2 and 3 threads, in both precisions.
. "$(dirname "$0")/../shell.sh"
make_corpus
for precision in fp32 bf16; do
    for threads in 1 2 3; do
        run 0 train r.yaml --run.dir=runs/$precision.$threads --train.precision=$precision --machine.threads=$threads --train.steps=12 \
            --model.hidden_size=48 --model.ffn_size=104 --train.micro_batch=3 --train.batch_tokens=192 --ckpt.every=0
        check "$precision runs with $threads threads" grep -q "device .*, $threads threads, $precision" err
        [ $threads -eq 1 ] || same_run "$precision, $threads threads" runs/$precision.1 runs/$precision.$threads
    done
done
exit $failed
