#!/usr/bin/env bash
# Runs on a mixture of sources in packed sequences: threads and interruptions change no bit, what inspect shows is what the run saw, the
# log counts padding and epochs, and what cannot be gone on with is refused.
. "$(dirname "$0")/../shell.sh"
make_corpus
head -n 24 corpus.txt | tr 'a-z' 'A-Z' >other.txt
run 0 data build other.txt --tokenizer tok --separator blank -o data/o
sources='[{path: data/c_train_*.bin, name: c, weights: [[0, 3], [0.5, 1]]}, {path: data/o_train_*.bin, name: o, weights: [[0, 1], [0.5, 1]]}]'
sed "s|train: data/c_train_\*.bin,|train: $sources, packing: best_fit,|" r.yaml >m.yaml
grep -q 'path: data/o_train' m.yaml || fail "m.yaml has no mixture"

run 0 train m.yaml --run.name=whole
cp err whole.err
grep -q 'source    c: .* sequences per epoch, [0-9.]* % padding; .* % of the run, .* epochs' whole.err || fail "the banner does not count source c"
grep -q 'source    o: epoch 1 is over at step' whole.err || fail "the end of an epoch is not said"
grep -q '"name":"epochs.o"' runs/whole/metrics.jsonl || fail "the epochs of o are no fact"
check "padding in each step" [ "$(grep -c '"padding":' runs/whole/metrics.jsonl)" -eq 40 ]

run 0 train m.yaml --run.name=threads --data.threads=3
same_run "three loader threads" runs/whole runs/threads

# Interrupted at steps 3, 6, ...: begun with another number of threads each time.
"$ingot" train m.yaml --run.name=broken >out 2>err & pid=$!
wait_for_step runs/broken 7 $pid
kill -9 $pid 2>/dev/null
{ wait $pid; } 2>/dev/null
run 0 train m.yaml --run.name=broken --resume --data.threads=2
same_run "killed and resumed" runs/whole runs/broken

# Breakpoints that are parts of the run tie the order to its length; points in tokens do not.
run 2 train m.yaml --run.name=whole --resume --train.steps=60
says "another order of samples"
run 0 train m.yaml --run.name=tokens --train.steps=20 --data.train="[{path: data/c_train_*.bin, weights: [[0, 3], [2560, 1]]}, {path: data/o_train_*.bin, weight: 1}]"
run 0 train m.yaml --run.name=tokens --resume --data.train="[{path: data/c_train_*.bin, weights: [[0, 3], [2560, 1]]}, {path: data/o_train_*.bin, weight: 1}]"
run 0 train m.yaml --run.name=straight --data.train="[{path: data/c_train_*.bin, weights: [[0, 3], [2560, 1]]}, {path: data/o_train_*.bin, weight: 1}]"
grep '"kind":"step"' runs/straight/metrics.jsonl | grep -c . >n1
tail -n 1 <(grep -o '"loss":[^,]*' runs/straight/metrics.jsonl) >l1
tail -n 1 <(grep -o '"loss":[^,]*' runs/tokens/metrics.jsonl) >l2
[ -s l1 ] || fail "no loss"
# The rate follows the length, so the losses differ; the samples must not.
for r in straight tokens; do
    run 0 data inspect runs/$r --step 31 --json
    grep -v '"row"' out >seen.$r
done
cmp -s seen.straight seen.tokens || fail "another length changed the samples of step 31"

# Inspect: two ranks share the step, and together see what one sees.
run 0 data inspect runs/whole --step 5 --json
cp out all.json
run 0 data inspect runs/whole --step 5 --rank 0 --ranks 2 --json
cp out r0.json
run 0 data inspect runs/whole --step 5 --rank 1 --ranks 2 --json
for key in sample source; do
    cat r0.json out | grep "\"$key\"" | sort >two
    grep "\"$key\"" all.json | sort >one
    cmp -s one two || fail "two ranks see other ${key}s than one"
done
run 0 data inspect runs/whole --step 5
grep -q 'document [0-9]* from its token [0-9]*, token [0-9]* of data/[co]_train_000000.bin; positions 0-' out || fail "inspect names no document"
grep -q 'rows [0-9]*-[0-9]*  padding' out || grep -q ' 0 tokens are padding' out || fail "inspect shows no padding"
run 0 data inspect 'data/c_train_*.bin' --step 2 --train.sequence_length=16 --train.micro_batch=2 --json
run 2 data inspect 'data/c_train_*.bin' --step 2
says "train.sequence_length"

# A source that ends, and sources that end before the run does.
run 0 train m.yaml --run.name=ends --train.steps=10 --data.train='[{path: data/c_train_*.bin, weight: 1}, {path: data/o_train_*.bin, weight: 1, epochs_max: 0.1}]'
run 2 train m.yaml --run.name=over --data.train='[{path: data/c_train_*.bin, weight: 1, epochs_max: 0.1}, {path: data/o_train_*.bin, weight: 1, epochs_max: 0.1}]'
says "raise epochs_max, or shorten the run"
check "nothing is begun" [ ! -e runs/over/ckpt ]
run 2 train m.yaml --run.name=x --data.train='[{path: data/c_train_*.bin, weight: 1}, {path: data/o_train_*.bin}]'
says "give all sources a weight, or none"
# Bare ids tell nobody where documents end.
tail -c +1025 data/o_train_000000.bin >bare.bin
run 3 train m.yaml --run.name=x --data.dtype=uint16 --data.val=bare.bin
says "where documents end"
run 3 train m.yaml --run.name=x --data.dtype=uint16 --data.train='[{path: data/c_train_*.bin}, {path: bare.bin}]'
says "build the shards with --eod before or after"
check "nothing is begun" [ ! -e runs/x ]
run 3 train m.yaml --run.name=x --data.train='[{path: data/c_train_*.bin}, {path: data/none_*.bin}]'
says "data/none_*.bin"

# Every packing trains, and is evaluated on the same pairs.
for p in documents best_fit pad; do
    run 0 train m.yaml --run.name=$p --train.steps=6 --eval.every=0 --data.packing=$p
    run 0 eval runs/$p --json
    grep -o '"tokens": *[0-9]*' out >tokens.$p
    cmp -s tokens.documents tokens.$p || fail "$p is evaluated on other targets than documents: $(cat tokens.documents tokens.$p | tr '\n' ' ')"
done
# Whole documents, side by side or each alone in its sequence: the model must not see the difference.
for p in best_fit pad; do
    run 0 eval runs/best_fit --data.packing=$p --json
    grep -o '"loss": *[0-9.]*' out | grep -o '[0-9.]*$' >loss.$p
done
paste loss.best_fit loss.pad | awk '{ d = $1 - $2; if (d < 0) d = -d } END { exit !(NR == 1 && $1 > 0 && d < 1e-5 * $1) }' ||
    fail "the loss of documents side by side is $(cat loss.best_fit), of each alone $(cat loss.pad)"
exit $failed
