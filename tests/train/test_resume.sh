#!/usr/bin/env bash
# A run that is killed at random moments and resumed is the uninterrupted one, bit for bit; no checkpoint is ever unreadable.
# slow_kill.sh does it fifty times. SEED=N repeats the moments.
. "$(dirname "$0")/kill.sh"
kill_and_resume fp32 4 --data.packing=documents --model.mtp_depth=2
grep -q '"mtp_loss":[0-9]' runs/fp32/metrics.jsonl || fail "no mtp_loss in metrics.jsonl"
kill_and_resume bf16 4 --train.precision=bf16 --optim.name=lion --optim.lr=1e-3 --train.z_loss=1e-4
kill_and_resume moments_bf16 2 --train.precision=bf16 --optim.state=bf16 --model.engram_layers=1 --model.engram_dim=16 --model.engram_base=200 --model.engram_fold=true
kill_and_resume moments_int8 3 --train.precision=bf16 --optim.state=int8
kill_and_resume masterless 3 --train.precision=bf16 --optim.master=none --model.engram_layers=1 --model.engram_dim=16 --model.engram_base=200 --model.engram_fold=true
kill_and_resume muon 3 --optim.name=muon --optim.state=bf16
exit $failed
