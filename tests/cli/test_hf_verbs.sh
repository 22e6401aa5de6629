#!/usr/bin/env bash
# `ingot ckpt import` and `export` from outside: models come back as they were, training goes on from an import, and what cannot be
# read or would be overwritten is refused in one line with nothing left behind.
set -u
ingot=$(realpath "$1")
fixtures=$(cd "$(dirname "$0")/../fixtures/hf" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0
fail() { echo "failed: $*"; cat out err; failed=1; }
run() { "$ingot" "$@" >out 2>err; }
good() { run "$@" || fail "$* exits with $?"; }
refused() { # refused CODE TEXT ARGS...: exit code, one line of words with TEXT in it, nothing on stdout
    local want=$1 text=$2
    shift 2
    INGOT_LOG=error run "$@"
    local got=$?
    [ $got -eq "$want" ] || fail "$* exits with $got, not $want"
    grep -qF -- "$text" err || fail "$* does not say '$text'"
    [ "$(wc -l <err)" -eq 1 ] || fail "$* does not say it in one line"
    [ -s out ] && fail "$* prints a result"
}
same() { # same A B: equal tensors in two runs
    good ckpt diff "$1" "$2"
    grep -q ' tensors equal, 0 not$' out || fail "$1 and $2 differ"
}

# Every family there and back: the same weights, and the same model in both configs.
for f in "$fixtures"/*/; do
    n=$(basename "$f")
    good ckpt import "$f" -o "$n"
    good ckpt verify "$n"
    good ckpt export "$n" -o "$n.hf"
    good ckpt import "$n.hf" -o "$n.again"
    same "$n" "$n.again"
    diff <(sed '/^run:/,$d' "$n/config.yaml") <(sed '/^run:/,$d' "$n.again/config.yaml") >out 2>err || fail "$n: other model"
done

# A model that transformers lacks says so when it goes out.
good ckpt export ingot_hybrid -o hybrid.hf
grep -q ' type=ingot ' out || fail "no type of a hybrid"
grep -q 'no family of transformers holds this model' err || fail "no warning of a hybrid"
good ckpt export qwen3_next_dense -o next.hf
grep -q ' type=qwen3_next ' out || fail "no type of Qwen3-Next"
[ -s err ] && grep -q 'no family' err && fail "a warning of Qwen3-Next"
good ckpt import --help
grep -q 'qwen3_next' out || fail "--help names no families"

# GGUF: one file, of a type; what has no counterpart is named, and nothing is left behind.
good ckpt export llama --format gguf --dtype q8_0 -o llama.gguf
grep -q '^model=llama.gguf type=llama step=0 parameters=[0-9]* dtype=q8_0$' out || fail "result of a GGUF export"
[ "$(head -c 4 llama.gguf)" = GGUF ] || fail "no GGUF file"
grep -q 'are f16: q8_0 needs rows' err || fail "no notice of rows that are no multiple of 32"
refused 4 'llama.gguf exists already' ckpt export llama --format gguf -o llama.gguf
refused 2 "--dtype of GGUF is f32, f16, bf16 or q8_0, not 'q4'" ckpt export llama --format gguf --dtype q4 -o no.gguf
refused 2 'layer 0 (gdn) has no counterpart' ckpt export ingot_hybrid --format gguf -o no.gguf
refused 2 '--format is hf or gguf' ckpt export llama --format onnx -o no.gguf
refused 2 'gguf has f16' ckpt export llama --dtype f16 -o no.hf
[ -e no.gguf ] && fail "a refused export left a file"

# In several files, and from one checkpoint instead of the run.
good ckpt export llama/ckpt/step-00000000 -o shards/ --shard-gib 0.00002
[ -f shards/model.safetensors.index.json ] || fail "no index of shards"
good ckpt import shards -o shards.run
same llama shards.run

# bf16 halves the file, is imported as a bf16 run, and loses nothing more at the next turn.
good ckpt export llama -o half --dtype bf16
[ "$(stat -c %s half/model.safetensors)" -lt "$(stat -c %s llama.hf/model.safetensors)" ] || fail "bf16 is not smaller"
good ckpt import half -o half.run
grep -q 'precision: bf16' half.run/config.yaml || fail "bf16 weights, but another precision"
good ckpt import half -o half.tf32 --train.precision=tf32
grep -q ' precision=tf32 ' out || fail "another precision is printed than the run has"
good ckpt export half.run -o half.2 --dtype bf16
cmp -s half/model.safetensors half.2/model.safetensors || fail "bf16 there and back differs"

# A tokenizer travels with the model.
cp -r "$fixtures/llama" words
for i in $(seq 40); do echo "in the beginning was the word $i"; done >text.txt
good tokenizer train text.txt --vocab-size 280 -o tok
cp tok/*.json words
good ckpt import words -o words.run
good ckpt export words.run -o words.hf
cmp -s tok/tokenizer.json words.hf/tokenizer.json || fail "another tokenizer.json"
grep -q '"eos_token_id": 279' words.hf/config.json || fail "no end of text in config.json"
echo '{"version": "1.0", "model": {"type": "Unigram"}}' >words/tokenizer.json
good ckpt import words -o words.none
grep -q 'imported without a tokenizer' err || fail "no notice of a foreign tokenizer"
[ -e words.none/tokenizer ] && fail "a foreign tokenizer was kept"

# A longer vocabulary: special tokens behind the tokenizer's, their rows in embedding and head.
good tokenizer train text.txt --vocab-size 272 -o short.tok
good ckpt import "$fixtures/llama" -o long --tokenizer short.tok
grep -q 'vocabulary 272 ids, 224 of them new' err || fail "no notice of new ids: $(cat err)"
grep -q 'vocab_size: 272' long/config.yaml || fail "the model did not grow"
good ckpt export long -o long.hf
good tokenizer extend short.tok --special '<|im_start|>' --special '<|im_end|>' -o longer.tok
good tokenizer encode longer.tok --text 'word<|im_end|>' --specials --ids
grep -qE '(^| )273$' out || fail "the new token has another id: $(cat out)"
good ckpt import long.hf -o longer --tokenizer longer.tok
grep -q 'vocabulary 274 ids, 2 of them new' err || fail "no notice of two ids: $(cat err)"
good generate longer --prompt word --tokens 2
cmp -s longer.tok/tokenizer.json longer/tokenizer/tokenizer.json || fail "the run has another tokenizer"
refused 2 'it is a special token already' tokenizer extend longer.tok --special '<|im_end|>' -o x.tok
refused 2 'exists already' tokenizer extend tok --special '<|a|>' -o longer.tok
sed 's/in the beginning/zz yy xx ww vv/' text.txt >other.txt
good tokenizer train other.txt --vocab-size 280 -o other.tok
refused 2 "is another one than in the model's tokenizer" ckpt import long.hf -o x --tokenizer other.tok
rm -rf x.tok

# Training goes on from an import, and from there.
le() { local v=$1; for ((i = 0; i < $2; i++)); do printf "\\x$(printf %02x $((v & 255)))"; v=$((v >> 8)); done; }
{ le 20240520 4; le 1 4; le 600 4; head -c 1012 /dev/zero; for ((t = 0; t < 600; t++)); do le $((t * 7 % 48)) 2; done; } >train_000000.bin
data=(--data.train=train_000000.bin --train.sequence_length=16 --train.batch_tokens=64 --optim.schedule=constant)
refused 2 "add --resume" train llama/config.yaml "${data[@]}" --train.steps=3
good train llama/config.yaml --resume "${data[@]}" --train.steps=3
grep -q '^step=3 ' out || fail "three steps from an import"
[ -d llama/ckpt/step-00000003 ] || fail "no checkpoint after three steps"
cp -r llama llama.hurt
printf '\132\245' | dd of=llama.hurt/ckpt/step-00000003/state-00000.safetensors bs=1 seek=6000 conv=notrunc 2>/dev/null
good train llama/config.yaml --resume --train.steps=5
grep -q '^step=5 ' out || fail "two more steps"
good train llama.hurt/config.yaml --resume --run.dir=llama.hurt --train.steps=5
grep -q 'skipping checkpoint 3' err || fail "the damaged checkpoint is not named"
grep -q 'weights   of step 0 ' err || fail "behind a damaged checkpoint lies the import"
same llama llama.hurt
good ckpt import llama.hf -o straight "${data[@]}" --train.steps=5
good train straight/config.yaml --resume
same llama straight
good ckpt export llama -o llama.trained
good ckpt import llama.trained -o llama.trained.run
good ckpt diff llama.again llama.trained.run
grep -q ' tensors equal, 0 not$' out && fail "training changed nothing"

# Refused.
refused 4 "already holds a run" ckpt import llama.hf -o llama
refused 4 "exists already" ckpt export llama -o llama.hf
refused 4 "no checkpoint there" ckpt export nowhere -o x
mkdir mamba && echo '{"model_type": "mamba"}' >mamba/config.json && cp llama.hf/model.safetensors mamba
refused 4 "mamba" ckpt import mamba -o x
cp -r llama.hf short && head -c 100 llama.hf/model.safetensors >short/model.safetensors
refused 4 "short/model.safetensors" ckpt import short -o x
cp -r llama.hf lacks && sed -i 's/model\.norm\.weight/model.nerm.weight/' lacks/model.safetensors
refused 4 "model.norm.weight is missing" ckpt import lacks -o x
cp -r llama.hf shape && sed -i 's/"vocab_size": 48/"vocab_size": 49/' shape/config.json
refused 4 "another shape" ckpt import shape -o x
cp -r llama.hf tall && sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 9999/' tall/config.json
refused 4 "9999 layers" ckpt import tall -o x
refused 2 "usage: ingot ckpt import" ckpt import llama.hf
refused 2 "usage: ingot ckpt export" ckpt export -o x
refused 2 "fp16" ckpt export llama -o x --dtype fp16
refused 2 "--model.norm_eps" ckpt import llama.hf -o x --model.norm_eps=1
INGOT_IO_FAULT=30:ENOSPC run ckpt import llama.hf -o x
[ $? -eq 74 ] || fail "a full disk at import"
INGOT_IO_FAULT=30:ENOSPC run ckpt export llama -o x
[ $? -eq 74 ] || fail "a full disk at export"
# transformers loads FP8, decodes what ingot coded, and computes with it.
if "${PYTHON:-python3}" -c 'import torch, transformers, accelerate' 2>/dev/null; then
    OMP_NUM_THREADS=1 "${PYTHON:-python3}" "$(dirname "$fixtures")/../../tools/check_fp8_export.py" llama --ingot "$ingot" >out 2>err ||
        fail "check_fp8_export.py"
else
    echo "skipped: no transformers for tools/check_fp8_export.py"
fi
ls -d x* >out 2>/dev/null && fail "something is left of what was refused"
exit $failed
