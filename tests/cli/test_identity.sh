#!/usr/bin/env bash
# Shards and tokenizers that are not those a run began with: each verb refuses them in one line.
. "$(dirname "$0")/../shell.sh"
make_corpus
refused() { # refused TEXT ARGS...: exit code 3, one line that says TEXT
    local text=$1
    shift
    run 3 "$@"
    says "$text"
}
other_tokenizer() { # other_tokenizer DIR: the ids of two letters are changed for each other
    sed -i 's/"a":64,"b":65/"b":64,"a":65/' "$1/tokenizer.json"
    ! cmp -s "$1/tokenizer.json" tok.good/tokenizer.json || fail "$1: nothing was changed"
}
cp -r tok tok.good
run 0 train r.yaml --run.dir=runs/one --train.steps=6

# --- another vocabulary in the header of a shard ---
run 0 data synth copy -o data/few --vocab-size 64 --samples 20 --val-samples 20 --length 32
run 0 data synth copy -o data/many --vocab-size 4096 --samples 20 --val-samples 20 --length 32
run 0 train r.yaml --run.dir=runs/few --data.train='data/few_train_*.bin' --data.val='data/few_val_*.bin' --train.steps=6
refused "its vocabulary has 4096 ids, the model's 64" eval runs/few --data.val='data/many_val_*.bin'
refused "has a vocabulary of 64 ids" train r.yaml --run.dir=runs/no --data.train='data/few_train_*.bin' \
    --data.val='data/many_val_*.bin' --model.vocab_size=4096

# --- another tokenizer in the place of the one that made the shards ---
other_tokenizer tok
refused "is not the one that made these shards" data verify data/c
run 3 data verify data/c --json
check "verify lists the manifest" grep -q '"data/c_manifest.json: the tokenizer in ' out
rm -r tok && cp -r tok.good tok
run 0 data verify data/c
exit $failed
