#!/usr/bin/env bash
# N-gram memory in whole runs: the map of tokens is made of the tokenizer, saved with the run and used by what goes on from it; seeds are
# fixed; threads and ranks change no bit.
. "$(dirname "$0")/../shell.sh"
make_corpus
engram=(--model.engram_layers=0-1 --model.engram_dim=16 --model.engram_base=400 --model.engram_fold=true --train.steps=20)
for threads in 1 2; do
    run 0 train r.yaml --run.dir=runs/t$threads --machine.threads=$threads "${engram[@]}"
done
same_run "2 threads" runs/t1 runs/t2
shared=$(grep -oE 'n-grams +of [0-9]+ ids' runs/t1/log.txt | tr -dc 0-9)
check "tokens share ids" [ "$shared" -gt 100 -a "$shared" -lt 310 ]
check "planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/t1/log.txt
run 0 train r.yaml --run.dir=runs/plain "${engram[@]}" --model.engram_fold=false
last_loss() { # last_loss RUN: of its last step
    grep -o '"loss":[0-9.]*' "$1/metrics.jsonl" | tail -n 1
}
check "the map changes the run" [ "$(last_loss runs/plain)" != "$(last_loss runs/t1)" ]

# The map comes from the checkpoint: no tokenizer is needed to go on or to evaluate.
run 0 ckpt verify runs/t1
run 0 eval runs/t1 --tokens 2000
cp out first
run 0 generate runs/t1 --prompt "the king" --tokens 8 --seed 5
run 2 train r.yaml --run.dir=runs/t1 --resume "${engram[@]}" --model.engram_seed=1
check "the seed is fixed" grep -q 'model.engram_seed' err
run 0 launch -n 2 -- train r.yaml --run.dir=runs/two "${engram[@]}" --train.gradient_groups=2
run 0 train r.yaml --run.dir=runs/one "${engram[@]}" --train.gradient_groups=2
same_state "two ranks" runs/one runs/two

# Gradients as the rows that a step reads: near those in arrays, smaller, and chosen where the tables are large beside a step; the same
# bits for every number of ranks and micro-batches of a group, and a resumed run may change the way.
big=(--model.engram_layers=0-1 --model.engram_dim=16 --model.engram_base=2100 --train.steps=20 --train.micro_batch=1 --optim.lr=1e-3)
for way in auto sparse dense; do
    run 0 train r.yaml --run.dir=runs/$way "${big[@]}" --optim.table_gradients=$way
    check "$way: planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/$way/log.txt
done
planned() { grep -oE 'planned [0-9]+ bytes' "runs/$1/log.txt" | tr -dc 0-9; }
check "rows take less memory than arrays" [ "$(planned sparse)" -lt "$(planned dense)" ]
same_run "auto is sparse where it is smaller" runs/auto runs/sparse
paste <(grep -oE '"loss":[0-9.]+' runs/sparse/metrics.jsonl) <(grep -oE '"loss":[0-9.]+' runs/dense/metrics.jsonl) | tr -d '":a-z' |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d <= 1e-4)) bad = 1 } END { exit bad || NR < 20 }' || fail "rows and arrays train something else"
for zero in 0 1 3; do # of four micro-batches; under ZeRO 2 and 3 each is a group
    groups=2
    [ $zero -eq 3 ] && groups=4
    [ -d runs/rows$groups ] || run 0 train r.yaml --run.dir=runs/rows$groups "${big[@]}" --train.gradient_groups=$groups
    run 0 launch -n 2 -- train r.yaml --run.dir=runs/zero$zero "${big[@]}" --train.gradient_groups=$groups --parallel.zero=$zero
    same_state "rows on two ranks, ZeRO $zero" runs/rows$groups runs/zero$zero
done
run 0 train r.yaml --run.dir=runs/auto "${big[@]}" --train.steps=24 --resume --optim.table_gradients=dense
check "the change is told" grep -q 'optim.table_gradients' err
run 2 train r.yaml --run.dir=runs/x --optim.table_gradients=sparse
says "does nothing without model.engram_layers"
run 2 train r.yaml --run.dir=runs/x "${big[@]}" --optim.table_gradients=sparse --model.hrm_cycles=2 --model.hrm_low_layers=1
says "does not go with model.hrm_cycles"

# Through our form of Hugging Face's files: the map is made again from the tokenizer beside the weights, and gives the same loss.
run 0 ckpt export runs/t1 -o hf
run 0 ckpt import hf -o runs/back
run 0 eval runs/back --tokens 2000 --data.val="data/c_val_*.bin" --train.sequence_length=32
check "the same loss after export and import" [ "$(grep -o 'val_loss=[0-9.]*' first)" = "$(grep -o 'val_loss=[0-9.]*' out)" ]
rm hf/tokenizer.json
run 4 ckpt import hf -o runs/bare
check "no tokenizer, no map" grep -q 'engram_fold needs the tokenizer' err
exit $failed
