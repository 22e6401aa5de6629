#!/usr/bin/env bash
# train.on_spike: two steps whose data are poisoned, and what warn, skip, rewind and stop do about them.
. "$(dirname "$0")/../shell.sh"
make_corpus
keys="--eval.every=0 --ckpt.keep=40 --train.spike_window=12 --data.verify=off"
never=--train.spike_z=1e6
run 0 train r.yaml --run.dir=runs/clean $keys
check "no spike in clean data" [ "$(grep -c 'spike  ' err)" -eq 0 ]
for step in 30 31; do run 0 data inspect runs/clean --step $step --json && cp out step$step; done
python3 - <<'PY' || fail "the data cannot be poisoned"
import json, random
random.seed(3)
for step in (30, 31):
    for row in json.load(open(f"step{step}")):
        for part in row["parts"]:
            with open(part["shard"], "r+b") as f:
                f.seek(1024 + 2 * part["shard_token"])
                for _ in range(part["rows"]): f.write(random.choice((2, 3, 250)).to_bytes(2, "little"))
PY

# --- warn changes nothing ---
run 0 train r.yaml --run.dir=runs/never $keys $never
run 0 train r.yaml --run.dir=runs/warn $keys
check "it names the step" grep -q 'spike     the loss of step 30 is .*, z .* among 12 before it' err
check "once for a spike" [ "$(grep -c 'warning: spike  ' err)" -eq 1 ]
same_run "warn" runs/never runs/warn

# --- skip: the update is left out ---
run 0 train r.yaml --run.dir=runs/skip $keys --train.on_spike=skip --ckpt.every=1
check "two updates are left out" [ "$(grep -c 'its update is left out' err)" -eq 2 ]
run 0 ckpt diff runs/skip/ckpt/step-00000029 runs/skip/ckpt/step-00000031
grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "the state has changed: $(tail -n 1 out)"
"$ingot" ckpt diff runs/skip/ckpt/step-00000031 runs/skip/ckpt/step-00000032 >out 2>err
grep -q ' 0 not$' out && fail "the step behind it changes nothing"
run 75 train r.yaml --run.dir=runs/skip2 $keys --train.on_spike=skip --train.max_minutes=1e-9
until [ -e runs/skip2/ckpt/step-00000040 ]; do "$ingot" train runs/skip2 --resume --train.max_minutes=0.001 >out 2>err || [ $? -eq 75 ] || break; done
same_run "skip, stopped and resumed" runs/skip runs/skip2
run 0 train r.yaml --run.dir=runs/groups $keys --train.on_spike=skip --train.gradient_groups=2
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/skip3 $keys --train.on_spike=skip --train.gradient_groups=2
same_run "skip, on two ranks" runs/groups runs/skip3
check "on two ranks" [ "$(grep -c 'its update is left out' runs/skip3/log.txt)" -eq 2 ]
run 0 train r.yaml --run.dir=runs/muon $keys --train.on_spike=skip --ckpt.every=1 --optim.name=muon --optim.lr=1e-3
grep -q 'its update is left out' err || fail "no update is left out with Muon"
step=$(sed -n 's/.* of step \([0-9]*\) is .*its update is left out/\1/p' err | head -n 1)
run 0 ckpt diff "$(printf 'runs/muon/ckpt/step-%08d' $((step - 1)))" "$(printf 'runs/muon/ckpt/step-%08d' "$step")"
# ZeRO: the same bits as without, in all stages; the checkpoint's weights and moments stay
for stage in 1 2 3; do
    run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/zero$stage $keys --train.on_spike=skip --train.gradient_groups=2 --parallel.zero=$stage
    check "ZeRO $stage leaves two out" [ "$(grep -c 'its update is left out' runs/zero$stage/log.txt)" -eq 2 ]
done
same_run "skip, ZeRO 1" runs/groups runs/zero1
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/zero2never $keys $never --train.gradient_groups=2 --parallel.zero=2
same_run "skip, ZeRO 2 and 3" runs/zero2 runs/zero3
run 75 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/zero3stop $keys --train.on_spike=skip --train.gradient_groups=2 --parallel.zero=3 --train.max_minutes=1e-9
run 0 launch -n 2 --no-doctor -- train runs/zero3stop --resume --train.max_minutes=0
same_run "skip, ZeRO 3, stopped and resumed" runs/zero3 runs/zero3stop
# Ranks that share sequences or experts: all of them leave it out, and the state stays
moe="--model.layers=gqa/moe --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_balance_rate=0.01 --model.moe_aux=0.01"
for share in "--parallel.context=2" "$moe --parallel.expert=2" "$moe --parallel.expert=2 --parallel.zero=3"; do
    rm -rf runs/share
    run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/share $keys --train.on_spike=skip --ckpt.every=1 $share
    step=$(sed -n 's/.* of step \([0-9]*\) is .*its update is left out/\1/p' runs/share/log.txt | head -n 1)
    [ -n "$step" ] || { fail "$share: no update is left out"; continue; }
    run 0 ckpt diff "$(printf 'runs/share/ckpt/step-%08d' $((step - 1)))" "$(printf 'runs/share/ckpt/step-%08d' "$step")"
    grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "$share: the state has changed: $(tail -n 1 out)"
done
# FP8: weights, moments and scales stay
fp8="--train.precision=fp8 --fp8.warmup=2 --model.hidden_size=64"
run 0 train r.yaml --run.dir=runs/fp8 $keys $fp8 --train.on_spike=skip --ckpt.every=1
check "FP8 leaves updates out" [ "$(grep -c 'its update is left out' err)" -ge 1 ]
step=$(sed -n 's/.* of step \([0-9]*\) is .*its update is left out/\1/p' err | head -n 1)
"$ingot" ckpt diff "$(printf 'runs/fp8/ckpt/step-%08d' $((step - 1)))" "$(printf 'runs/fp8/ckpt/step-%08d' "$step")" >out 2>err
grep 'elements differ' out | grep -qv '^fp8/history/' && fail "weights or moments have changed: $(grep 'elements differ' out | grep -v '^fp8/history/' | head -n 3)"
grep -q '^[1-9][0-9]* tensors equal' out || fail "no tensor is equal"
run 75 train r.yaml --run.dir=runs/fp8stop $keys $fp8 --train.on_spike=skip --train.max_minutes=1e-9
run 0 train runs/fp8stop --resume --train.max_minutes=0
same_run "skip in FP8, stopped and resumed" runs/fp8 runs/fp8stop

# --- rewind: back, without these data ---
rewind="--train.on_spike=rewind --train.spike_back=6 --train.spike_skip=8"
run 0 train r.yaml --run.dir=runs/rewind $keys $rewind
check "back to step 24" grep -q 'back to step 24, without the data of steps 25 to 32' err
run 0 train r.yaml --run.dir=runs/fresh $keys --skip 25:32
same_run "rewind" runs/fresh runs/rewind
check "recorded" grep -q '"why": *"train.on_spike=rewind: the loss of step 30' runs/rewind/ckpt/step-00000040/manifest.json
check "the fork is kept" grep -q '"kind":"fork","step":24,' runs/rewind/forks.jsonl
check "it is finished" grep -q '"code": 0' runs/rewind/exit.json
run 0 train r.yaml --run.dir=runs/fresh2 $keys --skip 25:32 --train.gradient_groups=2
run 0 launch -n 2 --no-doctor -- train r.yaml --run.dir=runs/rewind2 $keys $rewind --train.gradient_groups=2
same_run "rewind, on two ranks" runs/fresh2 runs/rewind2
run 6 train r.yaml --run.dir=runs/young $keys $rewind --train.spike_back=29
says 'no sound checkpoint is 29 steps older'

# --- stop ---
run 6 train r.yaml --run.dir=runs/stop $keys --train.on_spike=stop
says 'a spike (train.on_spike=stop)'
run 0 explain runs/stop
check "explained" grep -q 'train.on_spike ends it there' out

# --- slips ---
run 2 train r.yaml --run.dir=runs/x $keys --train.on_spike=skip --machine.device=cuda --memory.offload_optimizer=true
says 'does not work with memory.offload_optimizer on a GPU'
CUDA_VISIBLE_DEVICES='' run 11 train r.yaml --run.dir=runs/x $keys --train.on_spike=skip --machine.device=cuda
run 2 train r.yaml --run.dir=runs/x $keys --train.on_spike=skip --model.engram_layers=0 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.table_gradients=sparse
says 'does not work with sparse gradients'
exit $failed
