#!/usr/bin/env bash
# A write of a record that is refused: the run goes on, and metrics.jsonl has every step once all the same; what was lost with a killed
# process is named.
. "$(dirname "$0")/../shell.sh"
make_corpus
keys=(--train.steps=12 --eval.every=0 --machine.threads=1)
run 0 train r.yaml --run.dir=whole "${keys[@]}"
losses whole >whole.losses
refused=0
for k in $(seq 100 2 300); do # calls on files; some of them write records
    rm -rf r
    INGOT_IO_FAULT=$k:$([ $((k % 2)) -eq 0 ] && echo EIO || echo ENOSPC) "$ingot" train r.yaml --run.dir=r --ckpt.on_full=stop "${keys[@]}" >out 2>err
    grep -q 'metrics.jsonl.* while a record was written' err || continue
    refused=$((refused + 1))
    losses r >r.losses
    check "refused call $k: every step is there" cmp -s whole.losses r.losses
done
check "some records were refused" [ $refused -ge 3 ]

# --- a killed run whose last records were never written: the next life says so, and records it ---
gap=(--run.dir=gap --train.steps=40 --eval.every=0 --ckpt.every=4 --machine.threads=1)
run 0 train r.yaml "${gap[@]}"
rm -rf gap/ckpt/step-00000040
sed -i -E '/"step":(3[5-9]|40),/d' gap/metrics.jsonl
run 0 train r.yaml --resume "${gap[@]}"
check "the gap is said" grep -q 'metrics.jsonl lacks the records of steps 35 to 36' err
check "the gap is recorded" [ "$(grep -c '{"kind":"gap","step":36,"from":35}' gap/metrics.jsonl)" -eq 1 ]
exit $failed
