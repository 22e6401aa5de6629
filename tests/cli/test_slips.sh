#!/usr/bin/env bash
# Slips of real users: habits of argparse and of other trainers, wrong files, wrong units, wrong order. Each works, or is answered in one
# line that names the remedy. A row: slip CODE 'what the line says' ARGS...; code 0: it works as typed.
. "$(dirname "$0")/../shell.sh"
make_corpus
rows=0
slip() {
    local want=$1 text=$2 before=$failed
    shift 2
    failed=0
    rows=$((rows + 1))
    run "$want" "$@" </dev/null
    [ "$want" -eq 0 ] || says "$text"
    [ $failed -eq 0 ] || echo "  ingot $*"
    failed=$((failed | before))
}
for i in 1 2 3 4 5 6; do head -n $((40 + i)) corpus.txt >text$i.txt; done
mkdir -p docs/deep empty other bpe unigram wordpiece
cp text1.txt docs/a.txt && cp text2.txt docs/deep/b.md && cp text3.txt docs/c.py
: >nothing.txt
run 0 tokenizer train corpus.txt --vocab-size 290 -o other
run 0 train r.yaml --run.dir=runs/t1 --train.steps=2 --eval.every=0 --optim.warmup_steps=1
run 0 data synth mqar -o data/mqar --samples 50 --val-samples 10
before=$(cat runs/t1/exit.json)

# --- options as argparse takes them ---
slip 0 '' config r.yaml --train.steps 30
slip 0 '' config r.yaml train.steps=30
slip 0 '' config train.steps=30 r.yaml --optim.lr 1e-3
slip 2 "did you mean '--optim.lr=1e-3'" train r.yaml --lr=1e-3
slip 2 "did you mean '--optim.lr=1e-3'" train r.yaml --learning_rate 1e-3
slip 2 "did you mean '--optim.lr=1e-3'" train r.yaml --learning-rate 1e-3
slip 2 "did you mean '--train.batch_tokens=...'" train r.yaml --batch_size=32
slip 2 "tokens of a step" train r.yaml --bs 32
slip 2 "did you mean '--train.micro_batch=4'" train r.yaml --per_device_train_batch_size 4
slip 2 "did you mean '--train.batch_tokens=...'" train r.yaml --gradient_accumulation_steps=8
slip 2 "epochs times the tokens of the shards" train r.yaml --epochs 3
slip 2 "did you mean '--train.steps=10'" train r.yaml --max_steps 10
slip 2 "did you mean '--train.sequence_length=512'" train r.yaml --seq_len=512
slip 2 "did you mean '--model.layer_count=12'" train r.yaml --num_layers=12
slip 2 "did you mean '--model.hidden_size=768'" train r.yaml --n_embd=768
slip 2 "did you mean '--optim.weight_decay=0.1'" train r.yaml --wd 0.1
slip 2 "did you mean '--train.clip=1.0'" train r.yaml --max_grad_norm 1.0
slip 2 "bf16, fp8, fp32 or tf32" train r.yaml --bf16
slip 2 "did you mean '--train.precision=...' (fp8)" train r.yaml --fp8
slip 2 "did you mean '--optim.warmup_steps=100'" train r.yaml --warmup=100
slip 2 "none, selective or full" train r.yaml --gradient_checkpointing
slip 2 "did you mean '--parallel.tensor=2'" train r.yaml --tensor-model-parallel-size 2
slip 2 "tensorboard --logdir runs" train r.yaml --report_to wandb
slip 2 "ingot launch -n N" train r.yaml --nproc_per_node=2
slip 2 "ingot train RUN --resume" train r.yaml --resume_from_checkpoint runs/t1
slip 2 "did you mean 'optim.lr'" train r.yaml --train.learning_rate=1e-3
slip 2 "did you mean '--resume'" train r.yaml -resume
slip 2 "did you mean '--tokens'" generate runs/t1 --max_new_tokens 5
slip 2 "did you mean '--val-fraction'" data build corpus.txt -o data/z --tokenizer tok --val_split 0.1
slip 2 "--train.steps has no value; write --train.steps=VALUE" train r.yaml --train.steps
slip 2 "takes no keys" ckpt list runs/t1 --train.steps=3
printf 'train: {steps: 1}\noptimizer: {lr: 1}\n' >section.yaml
slip 2 "did you mean 'optim" train section.yaml

# --- verbs and their order ---
slip 2 "ingot train RUN --resume" resume runs/t1
slip 2 "ingot data build" tokenize corpus.txt
slip 2 "ingot ckpt import" finetune model
slip 2 "did you mean 'train'" trian r.yaml
slip 2 "did you mean 'data build'" data biuld corpus.txt
slip 0 '' help data build
slip 0 '' version
slip 0 '' -v
slip 0 '' train -h
slip 0 '' train runs/t1 --resume --eval.every=0
slip 0 '' train --run.dir=runs/t1 --resume --eval.every=0
slip 0 '' plan runs/t1
slip 2 "add --resume" train runs/t1
slip 2 "a directory without config.yaml" train docs --resume
slip 0 '' launch -n 2 train r.yaml --run.dir=runs/l2 --train.steps=1 --optim.warmup_steps=0
slip 2 "-n N says how many ranks" launch train r.yaml
slip 2 "does not run on several ranks" launch -n 2 eval runs/t1
slip 2 "model, data, batch or optimizer differ" train runs/t1 --resume --optim.name=lion
check "a refused resume leaves exit.json alone" [ "$before" = "$(cat runs/t1/exit.json)" ]

# --- files ---
slip 3 'not a token shard but text; `ingot data build text1.txt' train r.yaml --run.dir=runs/x --data.train=text1.txt
slip 3 "\`ingot data build\` makes shards" train r.yaml --run.dir=runs/x --data.train='none_*.bin'
slip 3 "is not the tokenizer that made data/c_train" train r.yaml --run.dir=runs/x --data.tokenizer=other
slip 3 "is not the tokenizer that made data/c_val" eval runs/t1 --data.tokenizer=other
slip 3 "name no tokenizer" train r.yaml --run.dir=runs/x --data.val='data/mqar_val_*.bin'
slip 3 "name no tokenizer" eval runs/t1 --data.val='data/mqar_val_*.bin'
slip 0 '' data build 'text*.txt' -o data/few --tokenizer tok --val-fraction 0.01
slip 0 '' data build docs -o data/docs --tokenizer tok --val-fraction 0.01
slip 74 "a directory without files that end in" data build empty -o data/z --tokenizer tok
slip 74 "no file matches" data build 'none/*.txt' -o data/z --tokenizer tok
slip 3 "the input is empty" data build nothing.txt -o data/z --tokenizer tok
slip 3 "the input is empty" tokenizer train nothing.txt -o made
slip 0 '' data inspect data/few
slip 0 '' data verify data/few
echo '{"version":"1.0","added_tokens":[],"model":{"type":"Unigram","unk_id":0,"vocab":[["a",-1]]}}' >unigram/tokenizer.json
echo '{"version":"1.0","added_tokens":[],"model":{"type":"WordPiece","unk_token":"[UNK]","vocab":{"a":0}}}' >wordpiece/tokenizer.json
slip 3 "of type Unigram" tokenizer import unigram made
slip 3 "of type WordPiece" tokenizer import wordpiece made
echo '{"a":0}' >bpe/vocab.json
slip 3 "merges.txt must stand beside it" tokenizer import bpe/vocab.json made
slip 0 '' tokenizer encode tok "the king said"
slip 74 "--text king encodes the word itself" tokenizer encode tok king

# --- sizes and units ---
slip 5 "weights, gradients and moments alone" plan --model.preset=70b --model.vocab_size=128256 --machine.memory_gib=16 --machine.device=cpu
slip 5 "one sequence at once is too much" plan --model.preset=small --train.sequence_length=2048 --machine.memory_gib=2.4 --machine.device=cpu
slip 2 "1e-3' is not a whole number" train r.yaml --train.steps=1e-3
slip 2 "is not a whole number" train r.yaml --train.tokens=3GB
slip 2 "; 128 is" train r.yaml --train.batch_tokens=130
slip 2 "did you mean 'adamw'" train r.yaml --optim.name=adam
slip 0 '' plan r.yaml --train.steps=0 --model.vocab_size=320
slip 0 '' presets nano
slip 2 "did you mean 'nano'" presets nanoo
slip 2 "names: " plan r.yaml --machine 8xA1000

[ $rows -ge 60 ] || fail "only $rows rows"

# A directory that may not be read is no empty one. As root, another user looks; not where that one cannot run the program.
mkdir -m 711 closed && cp data/c_train_*.bin closed/ && chmod 711 . && chmod 311 closed
other_user() {
    if [ "$(id -u)" -eq 0 ]; then setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; else "$@"; fi
}
if other_user "$ingot" version >/dev/null 2>&1; then
    other_user "$ingot" data inspect "$work/closed/c_*.bin" >out 2>err
    check "permission denied is no missing shard" [ $? -eq 74 ]
    says "Permission denied"
fi
chmod 711 closed

# What works does what it should.
run 0 data build 'text*.txt' -o data/few --tokenizer tok --val-fraction 0.01 --force
check "the choice of a validation part is said" grep -q 'a hash of the text puts none of 6 documents into a part of 0.01' err
check "a validation part" grep -q '^val ' out
run 0 data build docs -o data/docs --tokenizer tok --val-fraction 0.01 --force --json
check "known endings of a directory" [ "$(grep -c '"path": "docs/' data/docs_manifest.json)" -eq 2 ]
run 0 data build text1.txt text2.txt text3.txt text4.txt text5.txt text6.txt -o data/six --tokenizer tok --val-tail 0.01
check "a pattern is its files" cmp -s data/six_train_000000.bin data/few_train_000000.bin
run 0 data build - -o data/in --tokenizer tok --val-tail 0.1 <corpus.txt
cat corpus.txt | "$ingot" data build - -o data/pipe --tokenizer tok --val-tail 0.1 >out 2>err || fail "data build from a pipe"
run 0 data build corpus.txt -o data/file --tokenizer tok --val-tail 0.1
for from in in pipe; do check "standard input, $from" cmp -s data/file_train_000000.bin data/${from}_train_000000.bin; done
{ printf '{"text":"one"}\n{"text":"' && head -c 300000 /dev/zero | tr '\0' x && printf '"}\n{"text":"two"}\n{"text":"three"}\n'; } | gzip >long.jsonl.gz
run 3 data build long.jsonl.gz -o data/long --tokenizer tok --val-every-n 2 --max-document-bytes 1000
says 'long.jsonl.gz:2: a document of 300011 bytes; --max-document-bytes is 1000'
run 0 data build long.jsonl.gz -o data/long --tokenizer tok --val-every-n 2 --max-document-bytes 1000 --on-error skip --json
check "a document above the bound is counted" grep -q '"skipped": 1' out
run 2 data build long.jsonl.gz -o data/long --tokenizer tok --val-every-n 2 --max-document-bytes 0
for form in '' --ids --json; do
    # shellcheck disable=SC2086 # none, or one option
    "$ingot" tokenizer encode tok $form <corpus.txt 2>err | "$ingot" tokenizer decode tok >back 2>err
    check "encode $form | decode" cmp -s corpus.txt back
done
run 0 plan runs/t1
for word in '^time .* per step' '^run .*2 steps' '^start .*ingot train runs/t1$'; do check "plan: $word" grep -qE "$word" out; done
run 0 plan --model.preset=13b --train.batch_tokens=524288 --train.tokens=260B --machine 2x8xH100
for word in '^run .* d .* GPU hours' '^start +srun --mpi=pmix --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 ingot train --model.preset=13b .*--parallel.zero='; do
    check "plan: $word" grep -qE "$word" out
done
run 0 plan r.yaml --data.train='none_*.bin' --model.vocab_size=320
check "plan: no data" grep -q "^warning: data.train: no shard matches 'none_\*.bin'" err
run 0 presets nano
check "presets NAME: what differs" sh -c 'grep -q "layer_count: 6 " out && ! grep -q norm_eps out'
run 0 presets nano --all
check "presets NAME --all" grep -q 'norm_eps: 1e-05' out

# --json is one JSON object, of every verb that prints a result.
json() { # json KEY ARGS...
    local key=$1
    shift
    run 0 "$@" </dev/null
    check "$*: an object" sh -c 'head -c 1 out | grep -q "{" && tail -n 1 out | grep -q "}$"'
    check "$*: $key" grep -q "\"$key\": " out
}
json step train runs/t1 --resume --train.steps=3 --json
json result launch --json -n 2 train r.yaml --run.dir=runs/l3 --train.steps=1 --optim.warmup_steps=0
json samples generate runs/t1 --prompt the --tokens 3 --json
json vocab_size tokenizer train corpus.txt --vocab-size 280 -o t2 --json
json sha256 tokenizer import tok t3 --json
json shards data synth copy -o data/copy --samples 10 --val-samples 2 --json
json model ckpt export runs/t1 -o hf --json
json parameters ckpt import hf -o runs/hf --json
json keys config --keys --json
json keys config --keys ckpt --json
check "config --keys SECTION: its keys alone" [ "$(grep -c '"key": "ckpt\.' out) $(grep -c '"key"' out)" = "6 6" ]
json presets presets --json
json run plan runs/t1 --json
json git version --json
exit $failed
