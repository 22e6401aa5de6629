#!/usr/bin/env bash
# `ingot generate --prompts`: every line of a file, or of standard input, gives what `--prompt` gives for it.
. "$(dirname "$0")/../shell.sh"

make_corpus
run 0 train r.yaml --run.dir=r --train.steps=6
with=(--tokens 6 --seed 5)
printf 'the king\n\nlord said unto\nlight\n' >p.txt
run 0 generate r --prompts p.txt "${with[@]}" --json
mv out all
[ "$(wc -l <all)" -eq 3 ] || fail "three prompts give $(wc -l <all) lines"
: >alone
while IFS= read -r prompt; do
    run 0 generate r --prompt "$prompt" "${with[@]}" --json
    tr -d '\n' <out >>alone
    echo >>alone
done < <(grep . p.txt)
diff <(tr -d ' ' <all) <(tr -d ' ' <alone) >/dev/null || fail "a file of prompts gives other texts than each prompt alone: $(head -c 300 all) / $(head -c 300 alone)"
"$ingot" generate r --prompts - "${with[@]}" --json <p.txt >out 2>err || fail "standard input: $?"
cmp -s out all || fail "standard input gives other texts than the file"
printf '{"prompt": "the king"}\n{"prompt": "lord said unto", "id": 3}\n{"prompt": "light"}\n' >p.jsonl
run 0 generate r --prompts p.jsonl "${with[@]}" --json
cmp -s out all || fail "JSONL gives other texts"
run 0 generate r --prompts p.txt "${with[@]}"
[ "$(grep -c '^the king\|^lord said unto\|^light' out)" -eq 3 ] || fail "texts: $(cat out)"
grep -c 'weights   of step' err | grep -qx 1 || fail "the model is loaded more than once"

# Side by side: prompts of all lengths, as many as a batch and more, samples that straddle batches.
awk 'BEGIN { n = split("the king and lord said unto light of day god came", w, " ")
    for (i = 1; i <= 21; i++) { for (k = 1; k <= 1 + i * 7 % 4; k++) printf "%s ", w[1 + (i * k) % n]; print "" } }' >many.txt
for more in "" "--samples 3" "--samples 11 --temperature 1.5" "--tokens 0"; do
    # shellcheck disable=SC2086 # several words
    run 0 generate r --prompts many.txt "${with[@]}" $more --json --batch 1
    mv out one
    grep -q 'tokens/s: .* up to 1 texts at once' err || fail "--batch 1: no rate"
    for batch in 2 8; do
        # shellcheck disable=SC2086
        run 0 generate r --prompts many.txt "${with[@]}" $more --json --batch $batch
        cmp -s out one || fail "--batch $batch $more gives other texts than one by one"
        grep -q "tokens/s: .* up to $batch texts at once" err || fail "--batch $batch: no rate"
    done
    # shellcheck disable=SC2086
    run 0 generate r --prompts many.txt "${with[@]}" $more
    mv out text
    # shellcheck disable=SC2086
    run 0 generate r --prompts many.txt "${with[@]}" $more --batch 1
    cmp -s out text || fail "$more: other texts side by side, as text"
done
run 2 generate r --prompts many.txt --batch 0
says "--batch is 1 to 256"
run 2 generate r --prompt the --batch 2
says "--batch needs --prompts FILE"

run 2 generate r --prompts p.txt --prompt the
says "--prompts FILE excludes --prompt TEXT"
run 74 generate r --prompts nowhere.txt
says "nowhere.txt"
printf '{"prompt": "a"}\n{"text": "a"}\n' >bad.jsonl
run 3 generate r --prompts bad.jsonl --tokens 1
says "bad.jsonl:2: no text under 'prompt'"
printf 'a\n%s\n' "$(printf 'word %.0s' $(seq 60))" >long.txt
run 2 generate r --prompts long.txt --tokens 1
says "long.txt:2: "
exit $failed
