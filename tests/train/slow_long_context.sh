#!/usr/bin/env bash
# A sequence of 131,072 tokens on four ranks that share it: losses and norms of one rank, a third of its memory, and that to the byte as planned.
. "$(dirname "$0")/../shell.sh"
make_corpus
for _ in $(seq 40); do cat corpus.txt; done >long.txt
run 0 data build long.txt --tokenizer tok --separator blank --val-fraction 0 -o data/long
cat >long.yaml <<'YAML'
model: {layer_count: 2, layers: "swa,gqa", window: 1000, hidden_size: 32, ffn_size: 64, head_count: 1, head_dim: 8, context_length: 131072, vocab_size: 320}
data: {train: data/long_train_*.bin}
train: {micro_batch: 1, batch_tokens: 131072, steps: 2, precision: fp32}
optim: {lr: 1e-3, warmup_steps: 0}
ckpt: {every: 0}
machine: {threads: 1}
YAML
run 0 train long.yaml --run.dir=runs/1
run 0 launch -n 4 -- train long.yaml --run.dir=runs/4 --parallel.context=4
for key in loss grad_norm; do
    paste <(grep -oE "\"$key\":[-+.eE0-9]+" runs/1/metrics.jsonl | cut -d: -f2) <(grep -oE "\"$key\":[-+.eE0-9]+" runs/4/metrics.jsonl | cut -d: -f2) |
        awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 1e-5)) bad = 1 } END { exit bad || NR != 2 }' || fail "another $key than one rank's"
done
bytes() { grep -oE 'planned [0-9]+ bytes, measured [0-9]+' "runs/$1/log.txt" | awk '{ if ($2 != $5) exit 1; print $5 }' || fail "memory is not what was planned"; }
awk -v one="$(bytes 1)" -v four="$(bytes 4)" 'BEGIN { printf "one rank %d bytes, each of four %d: %.3f\n", one, four, four / one; exit !(four > 0 && four < 0.4 * one) }' ||
    fail "four ranks need more than 0.4 of the memory of one"
exit $failed
