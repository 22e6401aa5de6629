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

# Through our form of Hugging Face's files: the map is made again from the tokenizer beside the weights, and gives the same loss.
run 0 ckpt export runs/t1 -o hf
run 0 ckpt import hf -o runs/back
run 0 eval runs/back --tokens 2000 --data.val="data/c_val_*.bin" --train.sequence_length=32
check "the same loss after export and import" [ "$(grep -o 'val_loss=[0-9.]*' first)" = "$(grep -o 'val_loss=[0-9.]*' out)" ]
rm hf/tokenizer.json
run 4 ckpt import hf -o runs/bare
check "no tokenizer, no map" grep -q 'engram_fold needs the tokenizer' err
exit $failed
