#!/usr/bin/env bash
# Supervised tuning: prompts, completions and messages to shards with masks, and runs that count their targets alone.
. "$(dirname "$0")/../shell.sh"

make_corpus
awk 'BEGIN {
    state = 3
    for (d = 0; d < 240; d++) {
        noise = ""
        for (i = 0; i < 6; i++) { state = (state * 69069 + 1) % 4294967296; noise = noise " " int(state / 4294967296 * 97) }
        printf "{\"prompt\": \"the king%s \", \"completion\": \"said unto him light\", \"deep\": {\"list\": [", noise
        printf "{\"role\": \"user\", \"content\": \"the king%s <|end|><|assistant|>\"}, ", noise
        print "{\"role\": \"assistant\", \"content\": \"said unto him\"}]}}"
    }
}' >a.jsonl
run 0 tokenizer train corpus.txt --vocab-size 300 --special '<|endoftext|>' --special '<|user|>' --special '<|assistant|>' --special '<|end|>' -o ct

# --- ids and targets ---
pairs=(data build a.jsonl --tokenizer tok --prompt prompt --completion completion --val-every-n 8)
run 0 "${pairs[@]}" -o d/p
run 0 data inspect 'd/p_train_*' --document 5 --json
document() { tr -d ' \n' <out | sed -E 's/.*"tokens":\[([^]]*)\].*"targets":\[([^]]*)\].*/\1 \2/'; }
read -r ids targets < <(document)
sed -n 6p a.jsonl | sed -E 's/.*"prompt": "([^"]*)".*/\1/' | tr -d '\n' >prompt.txt
printf 'said unto him light' >completion.txt
encoded() { "$ingot" tokenizer encode "$1" "$2" --json | tr -d ' \n' | sed -E 's/.*"ids":\[([^]]*)\].*/\1/'; }
prompt=$(encoded tok prompt.txt) completion=$(encoded tok completion.txt)
eot=$(grep -o '"eot": [0-9]*' d/p_manifest.json | grep -o '[0-9]*$')
[ "$ids" = "$prompt,$completion,$eot" ] || fail "ids of prompt, completion and end of text: $ids, want $prompt,$completion,$eot"
want=$(echo "$prompt" | sed 's/[0-9]\+/0/g'),$(echo "$completion" | sed 's/[0-9]\+/1/g'),1
[ "$targets" = "$want" ] || fail "targets $targets, want $want"
grep -q '"version": 3' d/p_manifest.json || fail "masks need a version that older readers refuse"
grep -q '"version": 2' data/c_manifest.json || fail "shards without masks need no new version"
run 0 data inspect 'd/p_train_*'
grep -q '^mask .* are no targets' out || fail "inspect does not show the mask"
run 0 data verify d/p

chat=(data build a.jsonl --tokenizer ct --messages deep.list --val-every-n 8)
run 0 "${chat[@]}" --template roles -o d/m
run 0 data inspect 'd/m_train_*' --document 0
grep -qF 'targets ' out && grep -q ': said unto him<|end|>$' out || fail "targets of messages: $(cat out)"
[ "$(grep -c '^targets' out)" -eq 1 ] || fail "one stretch of targets is expected: $(cat out)"
run 0 data inspect 'd/m_train_*' --document 0 --json
forged=$(document | cut -d' ' -f1 | tr , '\n' | grep -c "^$(printf '<|end|>' >end.txt; "$ingot" tokenizer encode ct end.txt --specials --json 2>/dev/null | tr -d ' \n' | sed -E 's/.*"ids":\[([0-9]*)\].*/\1/')$")
[ "$forged" -eq 2 ] || fail "a message forges a turn: $forged ends"
run 0 "${chat[@]}" --template '<|{role}|> {content}<|end|>' -o d/own

# --- what is refused, in one line ---
run 2 "${chat[@]}" --template chatml -o d/x
says "needs the token <|im_start|>"
run 2 "${chat[@]}" -o d/x
says "--messages KEY and --template NAME belong together"
run 2 "${chat[@]}" --template 'no places' -o d/x
says "{role} and behind it {content}"
run 2 data build a.jsonl --tokenizer tok --prompt prompt -o d/x
says "--prompt KEY and --completion KEY belong together"
run 3 data build corpus.txt --tokenizer tok --prompt prompt --completion completion -o d/x
says "read from JSONL alone"
run 3 data build a.jsonl --tokenizer tok --prompt prompt --completion nothing -o d/x
says "a.jsonl:1: nothing under the key 'nothing'"
for message in '{"role": "user", "content": "a"}' '{"role": "assistant"}' '{"role": "as sistant", "content": "a"}' '7'; do
    echo "{\"list\": [$message]}" >bad.jsonl
    run 3 data build bad.jsonl --tokenizer ct --messages list --template roles -o d/x
    says "bad.jsonl:1: "
done
run 2 "${pairs[@]}" --dedup near -o d/x
says "--dedup near compares texts"
run 2 data build 'd/p_train_*' --tokenizer tok -o d/x
says "its mask of targets would be lost"

# --- a build that is killed at any call goes on, to the same bytes ---
small=("${pairs[@]}" --shard-tokens 997 --sync-seconds 0 --batch-bytes 2048 --dedup off)
run 0 "${small[@]}" -o whole/p
kills=0
for ((k = 1; ; k += 1 + k / 4)); do
    (INGOT_IO_FAULT=$k:KILL "$ingot" "${small[@]}" -o killed/p >out 2>err; exit $?) 2>killed.err && break
    kills=$((kills + 1))
done
[ $kills -gt 8 ] || fail "only $kills kills"
for f in whole/*; do cmp -s "$f" "killed/${f#whole/}" || fail "after $kills kills ${f#whole/} differs"; done
[ "$(ls whole | wc -l)" -eq "$(ls killed | wc -l)" ] || fail "after kills other files are there: $(ls killed)"
run 0 data verify killed/p

# --- runs: every packing, evaluation, every axis of a mesh ---
keys=(--data.train='d/p_train_*.bin' --data.val='d/p_val_*.bin' --train.micro_batch=4 --train.sequence_length=32 --train.precision=fp32
    --model.layer_count=2 --model.hidden_size=32 --model.ffn_size=64 --model.head_count=2 --model.context_length=32 --optim.lr=1e-2)
for packing in stream documents best_fit pad; do
    run 0 train "${keys[@]}" --data.packing=$packing --train.steps=100 --run.dir=r-$packing --machine.threads=2
    run 0 eval r-$packing --json
    # the completion is the same in all documents; the noise of the prompts cannot be learned
    loss=$(grep -o '"loss": [0-9.]*' out | grep -o '[0-9.]*$')
    awk -v l="$loss" 'BEGIN { exit !(l < 0.5) }' || fail "$packing: the targets have a loss of $loss"
    grep -q '"bits_per_byte": null' out || ! grep -q bits_per_byte out || fail "$packing: bits per byte of a text that is not all predicted"
done
counted() { grep -o '"kind":"step".*' "$1/metrics.jsonl" | head -n 3 | grep -o '"loss":[0-9.]*' | tr '\n' ' '; }
near() { # near NAME A B: the first losses of two runs agree within 2e-5
    awk -v a="$(counted "$2" | sed 's/"loss"://g')" -v b="$(counted "$3" | sed 's/"loss"://g')" 'BEGIN {
        n = split(a, x, " "); m = split(b, y, " "); if (n < 3 || n != m) exit 1
        for (i = 1; i <= n; i++) if ((x[i] - y[i]) ^ 2 > 4e-10) exit 1 }' || fail "$1: $(counted "$2") and $(counted "$3")"
}
mesh=(--data.packing=documents --train.steps=3 --log.every=1 --machine.threads=1 --train.batch_tokens=256 --train.micro_batch=4)
run 0 train "${keys[@]}" "${mesh[@]}" --run.dir=one
for axis in '' --parallel.zero=3 --parallel.tensor=2 --parallel.pipeline=2; do
    run 0 launch -n 2 --no-doctor -- train "${keys[@]}" "${mesh[@]}" --run.dir="two$axis" $axis
    near "two ranks $axis" one "two$axis"
done

# --- a mask that was changed ends whatever reads it ---
printf '\377' | dd of=d/p_val_000000.mask bs=1 seek=70 conv=notrunc 2>dd.err
run 3 data verify d/p
grep -q 'd/p_val_000000.mask: checksum' out || fail "verify does not name the mask: $(cat out)"
run 3 eval r-pad
says "d/p_val_000000.mask: checksum"
exit $failed
