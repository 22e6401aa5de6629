#!/usr/bin/env bash
# Does FP8 learn what bf16 learns? fp8_parity.sh [OPTION]... FILE... [-- --section.key=value...]
# Trains one model on the text of FILEs, with the same seed and the same order of batches, in four ways:
#   bf16      train.precision=bf16
#   fp8       train.precision=fp8
#   wgrad     fp8 with fp8.wgrad=bf16
#   control   fp8 with scales so small that most codes are 0 (fp8.margin): it must be worse, or this comparison could see nothing
# by `ingot bench learn`, which compares the losses of the last steps in pairs: mean of (way - bf16), and its standard error.
# Exit 0: fp8 and wgrad are above bf16 by at most --limit, and control by more. Exit 1: not so. Others: what ingot says.
#   --tokens N    of each run (300M)          --batch-tokens N   of a step (128Ki)       --last N     steps that are compared (200)
#   --limit X     nats (0.005)                --sequence N       tokens (1024)           --lr X       (6e-4)
#   --preset P    (gpt2-124m-llama: the shape of GPT-2 124M with RMSNorm, RoPE and SwiGLU, whose kernels write codes; or any of ingot's)
#   --ways LIST   with commas; bf16 is always needed (bf16,fp8,wgrad,control)            --vocab N    of the tokenizer (32768)
#   --margin N    fp8.margin of the control (16)                                         --dry-run    prints the commands
#   --seeds N     runs of each way (1)
#   --out DIR     corpus and runs (build/fp8_parity). A run that was finished there with the same keys is not repeated.
# What follows -- goes to every run: --machine.device=cpu. INGOT: the program (build/release/ingot, or a pack's). 300M tokens of 124M take about
# eight minutes for each way on an H200.
set -euo pipefail
. "$(dirname "$0")/gpu_env.sh"
gpu_find

die() { echo "fp8_parity.sh: $1" >&2; exit 2; }
tokens=300M batch=128Ki last=200 limit=0.005 sequence=1024 lr=6e-4 preset=gpt2-124m-llama ways=bf16,fp8,wgrad,control vocab=32768 margin=16 seeds=1 dry=
out=${OUT:-$root/build/fp8_parity} files=() keys=()
while [ $# -gt 0 ]; do
    case $1 in
    --tokens | --batch-tokens | --last | --limit | --sequence | --lr | --preset | --ways | --vocab | --margin | --seeds | --out) [ $# -gt 1 ] || die "$1 needs a value" ;;&
    --tokens) tokens=$2 ;;
    --batch-tokens) batch=$2 ;;
    --last) last=$2 ;;
    --limit) limit=$2 ;;
    --sequence) sequence=$2 ;;
    --lr) lr=$2 ;;
    --preset) preset=$2 ;;
    --ways) ways=$2 ;;
    --vocab) vocab=$2 ;;
    --margin) margin=$2 ;;
    --seeds) seeds=$2 ;;
    --out) out=$2 ;;
    --dry-run) dry=1 && set -- . "$@" ;;
    --) shift && keys=("$@") && break ;;
    -*) die "unknown option '$1'" ;;
    *) files+=("$1") && set -- . "$@" ;;
    esac
    shift 2
done
[ -n "$ingot" ] || die "there is no ingot: build it (cmake --preset release), or set INGOT"
[ ${#files[@]} -gt 0 ] || die "name the text to train on: files that ingot data build reads"
[[ $last =~ ^[1-9][0-9]*$ && $last -gt 1 ]] || die "--last $last: at least two steps"
[[ ,$ways, == *,bf16,* ]] || die "--ways $ways: the others are compared with bf16"
for way in ${ways//,/ }; do
    case $way in bf16 | fp8 | wgrad | control) ;; *) die "unknown way '$way': bf16 fp8 wgrad control" ;; esac
done
[ -n "$dry" ] || mkdir -p "$out"

model=(--model.preset="$preset")
[ "$preset" = gpt2-124m-llama ] && model=(--model.preset=small --model.layer_count=12 --model.ffn_size=2048 --model.head_count_kv=12)
learn=("$ingot" bench learn "${model[@]}" --data.train="$out/data/c_train_*.bin" --train.tokens="$tokens" --train.batch_tokens="$batch"
    --train.sequence_length="$sequence" --train.precision=bf16 --optim.lr="$lr" --train.micro_batch=auto --ckpt.every=0 --eval.every=0 "${keys[@]}" --out "$out/runs"
    --last "$last" --seeds "$seeds" --json)
others=,$ways,
others=${others//,bf16,/,}
others=${others//,/ }
for way in $others; do
    case $way in
    fp8) learn+=(--variant 'fp8: train.precision=fp8') ;;
    wgrad) learn+=(--variant 'wgrad: train.precision=fp8 fp8.wgrad=bf16') ;;
    control) learn+=(--variant "control: train.precision=fp8 fp8.margin=$margin") ;;
    esac
done
say_or_run() {
    if [ -n "$dry" ]; then echo "${@@Q}"; else "$@"; fi
}

corpus="${files[*]} $vocab"
if [ -z "$dry" ] && [ -f "$out/corpus.txt" ] && [ "$(cat "$out/corpus.txt")" != "$corpus" ]; then
    die "$out holds the corpus of other files: $(cat "$out/corpus.txt"); take another --out"
fi
if [ -n "$dry" ] || ! [ -f "$out/data/c_manifest.json" ]; then
    [ -n "$dry" ] || echo "$corpus" >"$out/corpus.txt"
    say_or_run "$ingot" tokenizer train "${files[@]}" --vocab-size "$vocab" -o "$out/tokenizer"
    say_or_run "$ingot" data build "${files[@]}" --tokenizer "$out/tokenizer" -o "$out/data/c"
fi
[ -n "$dry" ] && { say_or_run "${learn[@]}"; exit 0; }
"${learn[@]}" >"$out/rows.jsonl"

value() { # value WAY KEY: of its row
    sed -n "s/^{\"variant\": \"$1\",.*\"$2\": \"\{0,1\}\([^\",}]*\).*/\1/p" "$out/rows.jsonl"
}
# judge WAY: its row; the exit code says whether it is as it must be, or what its run says.
judge() {
    local minus state
    minus=$(value "$1" minus) state=$(value "$1" state)
    if [ "$(value "$1" same)" = true ]; then
        printf '%-8s has the losses of bf16 in all steps: nothing was computed in FP8\n' "$1"
        return 1
    elif [[ $state == *'exit 6'* ]]; then
        printf '%-8s not finite%s\n' "$1" "$([ "$1" = control ] && echo ': worse, as it must be')"
        [ "$1" = control ] || return 6
    elif [ -z "$minus" ] || [ "$minus" = null ]; then
        printf '%-8s %s\n' "$1" "${state:-has no row}"
        return 1
    else
        awk -v way="$1" -v loss="$(value "$1" loss)" -v minus="$minus" -v error="$(value "$1" std_err)" -v limit="$limit" 'BEGIN {
            good = way == "control" ? minus > limit : minus <= limit
            printf "%-8s %9.5f %+10.5f %9.5f   %s\n", way, loss, minus, error, good ? "as it must be" : "FAILED"
            exit !good
        }'
    fi
}
printf '\n%-8s %9s %10s %9s   the last %d steps; at most %s above bf16, control more\n' way loss "- bf16" "std err" "$last" "$limit"
printf '%-8s %9.5f\n' bf16 "$(value base loss)"
failed=0
for way in $others; do
    judge "$way" || { code=$?; [ $failed -ne 0 ] || failed=$code; }
done
exit $failed
