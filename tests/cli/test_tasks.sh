#!/usr/bin/env bash
# Benchmarks of a run from outside: results and samples agree, a limit and the batch change nothing, and bad input is one line.
# Equality with lm-evaluation-harness is tools/check_harness.py's matter.
. "$(dirname "$0")/../shell.sh"
make_corpus
run 0 train r.yaml --run.dir=r --train.steps=5
for i in 1 2 3 4 5 6; do
    echo "{\"goal\": \"the king said $i\", \"sol1\": \"unto him\", \"sol2\": \"fire and water and stone\", \"label\": $((i % 2))}"
done >piqa.jsonl
for i in 1 2 3; do echo "{\"text\": \"the land and the sea $i and the people\", \"domain\": \"d$((i % 2))\"}"; done >text.jsonl

run 0 eval r --tasks piqa=piqa.jsonl,perplexity=text.jsonl --tasks lambada=text.jsonl --samples samples.jsonl
[ "$(grep -c '^task=' out)" -eq 5 ] || fail "lines of results: $(cat out)"
grep -qE '^task=piqa items=6 acc=[01]\.[0-9]+ acc_stderr=[0-9.]+ acc_norm=[01]\.[0-9]+ acc_norm_stderr=[0-9.]+$' out || fail "piqa: $(cat out)"
grep -qE '^task=perplexity group=d1 items=2 word_perplexity=[0-9.]+ byte_perplexity=[0-9.]+ bits_per_byte=[0-9.]+$' out || fail "domains: $(cat out)"
grep -qE '^task=lambada items=3 acc=[01]\.[0-9]+ acc_stderr=[0-9.]+ perplexity=' out || fail "lambada: $(cat out)"
[ "$(wc -l <samples.jsonl)" -eq 12 ] || fail "samples of 12 rows"
cp out all.out

# The samples give the metrics.
run 0 eval r --tasks piqa=piqa.jsonl --samples piqa.samples --json --per-token
if python3 -c '' 2>/dev/null; then
    python3 - <<'PY' || fail "samples do not give the metrics"
import json, math
rows = [json.loads(line) for line in open("piqa.samples")]
result = json.load(open("out"))["tasks"][0]
acc = [int(r["loglikelihoods"][1] > r["loglikelihoods"][0]) == r["gold"] for r in rows]
assert abs(sum(acc) / 6 - result["acc"]) < 1e-9 and result["items"] == 6
for r in rows:
    for total, each in zip(r["loglikelihoods"], r["tokens"]):
        assert len(each["ids"]) == len(each["logprobs"]) > 0 and abs(sum(each["logprobs"]) - total) < 1e-6
PY
fi
run 0 eval r --tasks piqa=piqa.jsonl --limit 2 --samples two.samples
grep -q '^task=piqa items=2 ' out || fail "a limit of two: $(cat out)"
head -n 2 piqa.samples | sed 's/,"tokens":.*/}/' | cut -c-60 >a && cut -c-60 two.samples >b
cmp -s a b || fail "a limit changes the rows: $(cat a b)"
run 0 eval r --tasks=perplexity=text.jsonl,piqa=piqa.jsonl
grep '^task=piqa' out >a && grep '^task=piqa' all.out >b
cmp -s a b || fail "the order of tasks changes them"

# A text longer than the model's 32 positions is cut from the left, and that is said; a continuation cannot be.
long=$(for i in $(seq 60); do printf 'water '; done)
echo "{\"goal\": \"$long\", \"sol1\": \"fire\", \"sol2\": \"stone\", \"label\": 0}" >long.jsonl
run 0 eval r --tasks piqa=long.jsonl
grep -q "long.jsonl: 2 of 2 texts have more tokens than the model's 32 positions" err || fail "a cut is not said: $(cat err)"
echo "{\"goal\": \"fire\", \"sol1\": \"$long\", \"sol2\": \"stone\", \"label\": 0}" >long.jsonl
run 3 eval r --tasks piqa=long.jsonl
says "long.jsonl: piqa of row 1: its continuation has"
run 3 eval r --tasks hellaswag=piqa.jsonl
says "piqa.jsonl:1 is no row of hellaswag: there is no 'endings'"
run 2 eval r --tasks helaswag=piqa.jsonl
says "no task is named 'helaswag'"
run 2 eval r --tasks piqa.jsonl
says "is not NAME=FILE"
run 74 eval r --tasks piqa=nowhere.jsonl
says "nowhere.jsonl"
run 2 eval r --tasks piqa=piqa.jsonl --tokens 5
says "--limit shortens --tasks"
run 2 eval r --limit 3
says "go with --tasks"
run 2 eval r --tasks piqa=piqa.jsonl --per-token
says "--per-token needs --samples"
run 74 eval r --tasks piqa=piqa.jsonl --samples nowhere/x.jsonl
says "nowhere/x.jsonl"

# The log-probabilities of a generated text are those that an evaluation of prompt and text gives.
run 0 generate r --prompt '<|endoftext|>the king' --tokens 6 --temperature 0 --json
if python3 -c '' 2>/dev/null; then
    cp out generated
    python3 - <<'PY' || fail "no JSON of tokens"
import json
sample = json.load(open("generated"))["samples"][0]
assert "".join(t["text"] for t in sample["tokens"]) == sample["text"] and len(sample["tokens"]) == 6
json.dump({"text": "the king" + sample["text"]}, open("said.jsonl", "w"))
PY
    run 0 eval r --tasks perplexity=said.jsonl --samples said.samples --per-token
    python3 - <<'PY' || fail "an evaluation gives other log-probabilities than the generation: $(cat generated said.samples)"
import json
said = json.load(open("generated"))["samples"][0]["tokens"]
each = json.load(open("said.samples"))["tokens"][0]
assert each["ids"][-6:] == [t["id"] for t in said]
assert all(abs(a - t["logprob"]) < 1e-4 for a, t in zip(each["logprobs"][-6:], said))
PY
fi
exit $failed
