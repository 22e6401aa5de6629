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

# --- the data of a run: what its checkpoints say, and what each verb finds ---
says_nothing() { # says_nothing VERB...: the last command had no words about data
    ! grep -qi 'accepted\|changed since' err || fail "$* speaks of a change"
}
identity() { grep '^"meta"' "$1/manifest.json"; } # identity CHECKPOINT
keys="--train.steps=12 --ckpt.every=3"
# shellcheck disable=SC2086 # several words
resume() { run "$1" train r.yaml --run.dir=runs/two --resume $keys "${@:2}"; }
cp -r runs/one runs/two
check "the manifest names the tokenizer" grep -q '"tokenizer": *"[0-9a-f]\{64\}"' runs/two/ckpt/step-00000006/manifest.json
check "env.json has the hash of the shards" grep -q '"sha256": *"[0-9a-f]\{64\}"' runs/two/env.json
cp -r data data.good
rebuild() { # rebuild DIR TEXT: the shards of another text in the place of data/c
    run 0 data build "$2" --tokenizer "$1" --separator blank --val-fraction 0.1 -o data/c --force
}
restore() { rm -rf data tok && cp -r data.good data && cp -r tok.good tok; }

# the same text built again, elsewhere, is the same data
rebuild tok corpus.txt
resume 0 --train.steps=8
says_nothing resume
rm -rf runs/two && cp -r runs/one runs/two

sed 's/king/kind/g' corpus.txt >changed.txt
rebuild tok changed.txt
resume 3
says "data/c_train_*.bin: these shards have changed since runs/two/ckpt/step-00000006"
refused "data/c_val_*.bin: these shards have changed since the checkpoint" eval runs/two
run 0 eval runs/two --accept-data-change
check "what was accepted is said" grep -q 'accepted: data/c_val' err
mkdir elsewhere && cp data/c_* elsewhere
sed -i 's|"\.\./tok"|"../tok"|' elsewhere/c_manifest.json
run 0 eval runs/two --data.val='elsewhere/c_val_*.bin'
run 0 generate runs/two --tokens 4
run 0 ckpt export runs/two -o hf1

resume 0 --train.steps=9 --accept-data-change
check "what was accepted is said" grep -q 'accepted: data/c_train' err
for file in runs/two/ckpt/step-00000009/manifest.json runs/two/env.json; do
    check "$file has the change" grep -q '"until_step": *6' "$file"
done
run 0 report runs/two
check "so does the report" grep -q 'data changed<td>after step 6' runs/two/report.html
resume 0
says_nothing "the next resume"
check "the change stays on record" grep -q '"until_step": *6' runs/two/ckpt/step-00000012/manifest.json
restore
rm -rf runs/two && cp -r runs/one runs/two

# shards of another tokenizer, which are sound in themselves
run 0 tokenizer train changed.txt --vocab-size 300 --special '<|endoftext|>' -o tok.new
rm -rf tok && cp -r tok.new tok
rebuild tok changed.txt
resume 3
says "is not that of runs/two/ckpt/step-00000006"
refused "made with another tokenizer" eval runs/two
refused "is not the one that the model was trained with" generate runs/two --tokens 4
refused "is not the one that the model was trained with" ckpt export runs/two -o hf2
check "nothing was exported" [ ! -e hf2 ]
run 0 generate runs/two --tokens 4 --accept-data-change
run 0 generate runs/two --tokens 4 --data.tokenizer=tok.good
run 0 ckpt export runs/two -o hf2 --accept-data-change
restore

# the tokenizer alone, below shards that are as they were
other_tokenizer tok
refused "it has changed; put that one back" train r.yaml --run.dir=runs/three
resume 3
says "it has changed; put that one back"
refused "it has changed; put that one back" eval runs/two
refused "is not the one that the model was trained with" generate runs/two --tokens 4
refused "is not the one that the model was trained with" ckpt export runs/two -o hf3
restore

# --- contents that are not what the manifest says ---
rm -rf runs/two && cp -r runs/one runs/two
flip() { printf '\11\1' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; } # flip FILE OFFSET
flip data/c_train_000000.bin 3000
resume 3
says "data/c_train_000000.bin: block 0 (tokens from 0 on) is not what its manifest says"
check "no step was made with it" [ ! -e runs/two/ckpt/step-00000009 ]
check "exit.json says so" grep -q 'block 0' runs/two/exit.json
resume 3 --data.verify=start
says "block 0 (tokens from 0 on) is not what its manifest says"
resume 0 --data.verify=off --train.steps=7
refused "shards are damaged" data verify data/c
restore
rm -rf runs/two && cp -r runs/one runs/two
flip data/c_val_000000.bin 1200
refused "data/c_val_000000.bin: block 0" eval runs/two
run 0 eval runs/two --data.verify=off
restore
run 0 train r.yaml --run.dir=runs/start --data.verify=start --train.steps=6
same_run "verified at the start" runs/one runs/start
# a manifest of an older ingot has no checksums of blocks
sed -i '/^"sha256"/d; /"block_/s/"block_xxh3"/"other"/' data/c_manifest.json
run 0 train r.yaml --run.dir=runs/older --train.steps=6
check "the log says once that contents are not verified" [ "$(grep -c 'contents are not verified: an older' err)" -eq 1 ]
same_run "without checksums" runs/one runs/older
restore

# shards without a manifest: by samples of their contents
rm data/c_manifest.json
bare="--data.eot=299 --data.eod=before --model.vocab_size=320"
# shellcheck disable=SC2086
run 0 train r.yaml --run.dir=runs/bare --train.steps=6 $bare
printf '\1\1' | dd of=data/c_train_000000.bin bs=1 seek=1024 conv=notrunc 2>/dev/null
# shellcheck disable=SC2086
run 3 train r.yaml --run.dir=runs/bare --train.steps=9 --resume $bare
says "these shards have changed since"
restore

# a checkpoint of an older ingot says nothing of data: it goes on, and the log says so once
cp -r runs/one runs/old
manifest=runs/old/ckpt/step-00000006/manifest.json
sed '/^"sha256"/,$d; s/"data": *{/"other": {/' $manifest >unsealed
cat unsealed - >$manifest <<JSON
"sha256": "$(sha256sum <unsealed | cut -d' ' -f1)"
}
JSON
run 0 ckpt verify runs/old
rebuild tok changed.txt
run 0 train r.yaml --run.dir=runs/old --train.steps=12 --ckpt.every=3 --resume
check "the log says once that nothing is known" [ "$(grep -c 'does not say what its data were' err)" -eq 1 ]
check "the next checkpoints know it" grep -q '"data": *{' runs/old/ckpt/step-00000009/manifest.json
run 0 eval runs/old
run 0 generate runs/old --tokens 4
exit $failed
