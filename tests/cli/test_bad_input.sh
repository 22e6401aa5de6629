#!/usr/bin/env bash
# Wrong input of every kind: the documented exit code, one line that says what and where, nothing half written.
. "$(dirname "$0")/../shell.sh"
make_corpus
mkdir made
bad() { # bad CODE TEXT ARGS...: exits with CODE and says TEXT; no file may come to be in "made"
    local want=$1 text=$2 before=$failed
    shift 2
    failed=0
    run "$want" "$@"
    says "$text"
    [ -z "$(find made -type f 2>&1)" ] || fail "something was written: $(find made -type f)"
    [ ! -s out ] || [ "$1" = plan ] || [ "$1" = ckpt ] || fail "words on stdout"
    [ $failed -eq 0 ] || echo "  ingot $*"
    failed=$((failed | before))
}
train() { # train CODE TEXT KEYS...
    local want=$1 text=$2
    shift 2
    bad "$want" "$text" train r.yaml --run.dir=made "$@"
}

# --- the command line ---
# complete takes any words: they are what someone has typed so far
for verb in $("$ingot" --help | sed -nE '/^  complete /d; s/^  ([a-z]+) .*/\1/p') "tokenizer train" "tokenizer encode" "tokenizer decode" \
    "data build" "data inspect" "data verify"; do
    # shellcheck disable=SC2086 # a verb of two words
    run 0 $verb --help
    check "$verb --help is one text on stdout" [ -s out ] && check "$verb --help is silent on stderr" [ ! -s err ]
    # shellcheck disable=SC2086
    bad 2 "nonsense" $verb --nonsense
done
bad 2 "did you mean 'train'" trian r.yaml
bad 2 "'--resum'; did you mean '--resume'" train r.yaml --resum
bad 2 "one too many" train r.yaml r.yaml
bad 74 "none.yaml" train none.yaml

# --- keys, values, combinations ---
printf 'train:\n  steps: 10\n  stesp: 4\n' >key.yaml
bad 2 "key.yaml:3:3: unknown key 'train.stesp' (did you mean 'train.steps'?)" train key.yaml
printf 'train:\n  steps: many\n' >value.yaml
bad 2 "value.yaml:2:10: " train value.yaml
printf 'train:\n  steps: [1\n' >syntax.yaml
bad 2 "syntax.yaml:" train syntax.yaml
printf 'train:\n  steps: 1\n  steps: 2\n' >twice.yaml
bad 2 "twice.yaml:3:3: " train twice.yaml
train 2 "did you mean 'optim.lr'" --optim.lrr=1
train 2 "optim.lr: 1e+30 is outside (0, 100]" --optim.lr=1e30
train 2 "did you mean 'adamw'" --optim.name=adam
train 2 "hidden_size 32 is not a multiple of model.head_count 3" --model.head_count=3
train 2 "not a multiple of model.head_count_kv" --model.head_count_kv=3
train 2 "batch_tokens 100 is not a multiple" --train.batch_tokens=100
train 2 "longer than model.context_length" --train.sequence_length=64
train 2 "set train.steps or train.tokens" --train.steps=0
train 2 "longer than the run" --optim.warmup_steps=50
train 2 "set it to at least that" --model.vocab_size=100

train 2 "more than 2^31 tokens at once" --train.micro_batch=1000000 --model.context_length=100000 --train.sequence_length=100000
bad 2 "--tokens is 0 to 2^31" generate nowhere --tokens 9223372036854775807

# --- what does not fit ---
bad 5 "the machine has" plan --model.vocab_size=100000000 --model.layer_count=10000 --model.hidden_size=1000000 \
    --model.ffn_size=10000000 --model.head_count=10000 --model.head_count_kv=10000 --model.head_dim=10000 --train.steps=1 \
    --model.context_length=1000000 --train.micro_batch=2000
bad 5 "the machine has" plan --model.preset=70b --model.vocab_size=128256 --train.steps=1
bad 5 "the machine has" train --run.dir=made --model.preset=70b --model.vocab_size=128256 --train.steps=1 --data.train='data/c_train_*.bin'
train 5 "the machine has 102.40 KiB" --machine.memory_gib=0.00009765625

# --- shards ---
le() { # le BYTES NUMBERS...: little endian
    local bytes=$1 number
    shift
    for number in "$@"; do
        for ((i = 0; i < bytes; i++)); do printf '%b' "\\0$(printf %o $((number >> (8 * i) & 255)))"; done
    done
}
shard() { # shard FILE MAGIC VERSION COUNT TOKENS...
    local file=$1
    { le 4 "$2" "$3" "$4" && head -c 1012 /dev/zero && le 2 "${@:5}"; } >"$file"
}
shard large.bin 20240520 1 80 $(seq 1 60) $(seq 1500 1519)
shard short.bin 20240520 1 500 $(seq 1 60)
shard version.bin 20240520 9 60 $(seq 1 60)
shard negative.bin 20240520 1 -1 $(seq 1 60)
shard tiny.bin 20240520 1 8 $(seq 1 8)
: >empty.bin
train 3 "not a token shard" --data.train=corpus.txt
train 3 "short.bin: 1144 bytes, expected 2024" --data.train=short.bin --model.vocab_size=320
train 3 "version 9" --data.train=version.bin --model.vocab_size=320
train 3 "negative.bin: token count -1" --data.train=negative.bin --model.vocab_size=320
train 3 "empty.bin" --data.train=empty.bin --model.vocab_size=320
train 3 "no shard matches 'none_*.bin'" --data.train='none_*.bin'
train 3 "no shard matches" --data.val='none_*.bin'
train 2 "set model.vocab_size" --data.train=tiny.bin
run 0 tokenizer train corpus.txt --vocab-size 290 --special '<|endoftext|>' -o tok2
run 0 data build corpus.txt --tokenizer tok2 --separator blank --val-fraction 0.1 -o data/other
train 3 "made with different tokenizers" --data.val='data/other_val_*.bin'
bad 3 "short.bin" data verify short.bin
bad 3 "short.bin" data inspect short.bin
# These are seen when the data are read: the run directory says how it ended, and holds no checkpoint.
run 3 train r.yaml --run.dir=runs/large --data.train=large.bin --model.vocab_size=320
says "large.bin: token 60 is id 1500, but the vocabulary has 320 ids"
check "exit.json says so" grep -q 'id 1500' runs/large/exit.json
check "so does the log" grep -q 'error large.bin: token 60 is id 1500' runs/large/log.txt
check "no checkpoint" [ ! -e runs/large/ckpt ]
run 3 train r.yaml --run.dir=runs/tiny --data.train=tiny.bin --model.vocab_size=320
says "tiny.bin: 8 tokens, fewer than the 33"

# --- text ---
mkdir -p torn foreign
printf 'a good line\nbad \377\376 line\n' >bad.txt
printf '{"text":"good"}\n{"text":"bad \303"}\n' >bad.jsonl
printf '{"text":"good"}\n{"text":"tor' >torn.jsonl
printf '{"text":"good"}\n{"txt":"a"}\n' >key.jsonl
printf '{"model": 3' >torn/tokenizer.json
printf '{"model": {"type":"WordPiece"}}' >foreign/tokenizer.json
: >empty.txt
for file in bad.txt:2:16 bad.jsonl:2:29; do
    bad 3 "${file%:*}: invalid UTF-8 (byte " tokenizer train "${file%%:*}" -o made
    bad 3 "${file%:*}: invalid UTF-8 (byte " data build "${file%%:*}" --tokenizer tok -o made/x
done
bad 3 "bad.txt:2: invalid UTF-8 (byte 16 of the file)" tokenizer encode tok bad.txt
bad 3 "torn.jsonl:2: not JSON" data build torn.jsonl --tokenizer tok -o made/x
bad 3 "key.jsonl:2: nothing under the key 'text'" data build key.jsonl --tokenizer tok -o made/x
bad 3 "no text for training" data build empty.txt --tokenizer tok -o made/x
bad 74 "none.txt" data build none.txt --tokenizer tok -o made/x
bad 74 "none" data build corpus.txt --tokenizer none -o made/x
bad 2 "--force replaces them" data build corpus.txt --tokenizer tok -o data/c
bad 3 "take more text" tokenizer train empty.txt -o made
bad 3 "torn: line 1" tokenizer encode torn corpus.txt
bad 3 "foreign: " tokenizer encode foreign corpus.txt

# --- checkpoints ---
run 0 train r.yaml --run.dir=runs/whole --train.steps=8
newest=ckpt/step-00000008
damage() { printf '\132\245' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; } # damage FILE OFFSET
for what in data header cut manifest; do
    rm -rf runs/hurt
    cp -r runs/whole runs/hurt
    case $what in
    data) damage runs/hurt/$newest/state-00000.safetensors 100000 ;;
    header) damage runs/hurt/$newest/state-00000.safetensors 3 ;;
    cut) truncate -s 5000 runs/hurt/$newest/state-00000.safetensors ;;
    manifest) truncate -s -10 runs/hurt/$newest/manifest.json ;;
    esac
    bad 4 "step-00000008/" ckpt verify runs/hurt
    run 0 train r.yaml --run.dir=runs/hurt --resume --train.steps=8
    check "$what: the damaged checkpoint is named" grep -q '^warning: skipping checkpoint 8: .*step-00000008/' err
    check "$what: the run goes on from the one before" grep -q 'weights   of step 6 from' err
    same_run "$what damaged" runs/whole runs/hurt
    run 0 ckpt verify runs/hurt
done
rm -rf runs/hurt
cp -r runs/whole runs/hurt
for dir in runs/hurt/ckpt/step-*; do damage "$dir/state-00000.safetensors" 20; done
for verb in "train r.yaml --resume --train.steps=8 --run.dir=runs/hurt" "eval runs/hurt" "generate runs/hurt --prompt the --tokens 5"; do
    # shellcheck disable=SC2086
    bad 4 "sound" $verb
done
check "exit.json is not that of a better day" grep -q '"code": 4' runs/hurt/exit.json
check "the checkpoints are still there" [ "$(ls -d runs/hurt/ckpt/step-* | wc -l)" -eq 3 ]
bad 4 "no checkpoint there" eval nowhere
bad 2 "model, data, batch or optimizer differ" train r.yaml --resume --run.dir=runs/whole --train.batch_tokens=64
bad 2 "model, data, batch or optimizer differ" train r.yaml --resume --run.dir=runs/whole --optim.name=lion
bad 2 "add --resume" train r.yaml --run.dir=runs/whole

# --- numbers that leave the range: weights grow by a factor of 10^4 a step ---
run 6 train r.yaml --run.dir=runs/nan --optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0 --ckpt.every=1 --eval.every=0
says "not finite"
check "exit.json says so" grep -q '"code": 6' runs/nan/exit.json
run 0 ckpt verify runs/nan
for dir in runs/nan/ckpt/step-*; do
    od -An -v -tf4 -j4096 "$dir/state-00000.safetensors" | grep -qE 'nan|inf' && fail "$dir holds numbers that are not finite"
done
run 6 train r.yaml --run.dir=runs/nan2 --optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0 --eval.every=1
says "the validation loss after step"

# --- a full disk: what is printed, then the k-th call on files fails ---
"$ingot" presets >/dev/full 2>err
check "results that nobody got are a failure" [ $? -eq 74 ]
says "No space left on device"
for k in 15 25 40 80 130 190 260; do
    INGOT_IO_FAULT=$k:ENOSPC "$ingot" data build corpus.txt --tokenizer tok --separator blank -o full/x >out 2>err
    code=$?
    [ $code -eq 0 ] || { [ $code -eq 74 ] && says "No space left on device"; } || fail "data build, full disk at call $k: exit code $code"
    # Nothing is visible; either nothing is there at all, or what the same command resumes it from.
    [ $code -eq 0 ] || check "data build, full disk at call $k: $(ls full 2>&1)" [ -z "$(find full -name '*.bin' -o -name '*.json' -o -name '*.tmp-*' 2>/dev/null)" ]
    if [ -e full/x_build.journal ]; then
        run 0 data build corpus.txt --tokenizer tok --separator blank -o full/x
    elif [ $code -ne 0 ]; then
        check "data build, full disk at call $k: $(ls full 2>&1)" sh -c '! ls full/* >/dev/null 2>&1'
    fi
    rm -rf full
done
for k in 60 75 92 112 140 170 200; do
    dir=runs/full.$k
    INGOT_IO_FAULT=$k:ENOSPC "$ingot" train r.yaml --run.dir=$dir --train.steps=8 --ckpt.on_full=stop >out 2>err
    code=$?
    [ $code -eq 0 ] || { [ $code -eq 74 ] && says "No space left on device"; } || fail "training, full disk at call $k: exit code $code"
    # When the run came to its end, one record of metrics or log was lost, which a warning says.
    [ $code -ne 0 ] || check "full disk at call $k: a warning" grep -q '^warning: .*No space left on device' err
    check "training, full disk at call $k: leftovers" sh -c '! find "$0" -name "*tmp*" -o -name "*trash*" | grep -q .' $dir
    all_sound "full disk at call $k" $dir
    run 0 train r.yaml --run.dir=$dir --train.steps=8 --resume
    [ $code -eq 0 ] || same_run "full disk at call $k" runs/whole $dir
    run 0 ckpt diff runs/whole $dir
    grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "full disk at call $k: the last checkpoints differ"
done
exit $failed
