#!/usr/bin/env bash
# `ckpt export --format gguf --tokenizer`: a tokenizer.model of SentencePiece goes into the file; what GGUF cannot say is refused, nothing is left.
corpus=$(realpath "$(dirname "$0")/../fuzz/corpus/sentencepiece")
. "$(dirname "$0")/../shell.sh"
make_corpus
run 0 train r.yaml --run.dir=r --train.steps=1 --optim.warmup_steps=0 --eval.every=0
mkdir hf && cp "$corpus/bpe" hf/tokenizer.model
run 0 ckpt export r --format gguf --tokenizer hf -o a.gguf
run 0 ckpt export r --format gguf --tokenizer "$corpus/bpe" -o b.gguf
cmp -s <(tr -d 'ab' <a.gguf) <(tr -d 'ab' <b.gguf) || fail "a directory and its file give other exports"
for text in tokenizer.ggml.scores tokenizer.ggml.add_space_prefix '<0x0A>' '▁the' '[PAD3'; do
    grep -qaF -- "$text" a.gguf || fail "the file has no $text"
done
run 2 ckpt export r --format gguf --tokenizer "$corpus/unigram" -o no.gguf
says "of type unigram"
run 3 ckpt export r --format gguf --tokenizer "$corpus/cut" -o no.gguf
says "is no tokenizer.model of SentencePiece, or a damaged one"
run 74 ckpt export r --format gguf --tokenizer tok -o no.gguf
says "tok/tokenizer.model"
run 2 ckpt export r --tokenizer hf -o no
says "--tokenizer is for --format gguf"
[ ! -e no ] && [ ! -e no.gguf ] || fail "a refused export left something"
exit $failed
