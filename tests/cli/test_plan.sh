#!/usr/bin/env bash
# ingot plan --machine: what it prints, as text and as JSON, what it refuses; and a run that tells its own prediction beside what it took.
. "$(dirname "$0")/../shell.sh"
seventy=(plan --model.preset=70b --train.batch_tokens=4194304 --train.steps=1)
number() { # number KEY: the first number of that key in out
    grep -o "\"$1\": [-0-9.e+]*" out | head -n 1 | cut -d' ' -f2
}

run 0 "${seventy[@]}" --machine 64xB200
check "machine" grep -q '^machine .*64 x b200 in 8 nodes' out
check "at most ten meshes" [ "$(grep -cE '^ +[0-9]+ +[0-9]+ +[0-9]+ +[0-3](/[0-9]+)? ' out)" -eq 10 ]
check "limit" grep -q '^limit .*% of the step' out
run 0 plan --model.preset=gpt2-124m --train.batch_tokens=524288 --train.sequence_length=1024 --train.steps=1 --machine 64xH200
check "a copy in each node" grep -qE '^ +64 +1 +1 +3/8 ' out
check "a copy in each node, in words" grep -q '^dp 64 x tp 1 x pp 1, ZeRO 3 over 8,' out
run 0 plan --model.preset=13b --train.batch_tokens=524288 --train.steps=1 --machine 16xH200 --json
check "ten meshes in JSON" [ "$(grep -c '"step_seconds"' out)" -eq 12 ] # and the chosen one, and the one with the least memory
check "more variants than meshes" [ "$(number variants)" -gt 500 ]
check "the best first" python3 -c "
import json
steps = [m['step_seconds'] for m in json.load(open('out'))['meshes']]
raise SystemExit(not (len(steps) == 10 and steps == sorted(steps)))"
run 0 "${seventy[@]}" --machine 8x8xH100 --parallel.tensor=4 --parallel.pipeline=8 --parallel.zero=1 --train.micro_batch=auto
check "the given mesh" grep -q '^dp 2 x tp 4 x pp 8, 1f1b, ZeRO 1 over 2' out
check "each stage" grep -qE '^  7 +10 ' out
check "each axis" [ "$(grep -cE '^  (tp|dp|pp) +[0-9]+ ranks' out)" -eq 3 ]

run 0 "${seventy[@]}" --machine 64xB200 --train.micro_batch=2 --train.recompute=full
check "the search keeps the keys that are given" [ "$(grep -cE '^ +[0-9]+ .* full +2 x ' out)" -eq "$(grep -cE '^ +[0-9]+ +[0-9]+ +[0-9]+ +[0-3](/[0-9]+)? ' out)" ]
run 0 "${seventy[@]}" --machine 64xB200 --train.micro_batch=1
check "also the default" [ "$(grep -cE '^ +[0-9]+ .* 1 x ' out)" -eq 10 ]
run 2 plan --model.preset=gpt2-124m --train.batch_tokens=524288 --train.steps=1 --machine 64xB200 --train.micro_batch=512
says "its 512 sequences per step in micro-batches of 512; the first refused"
run 0 plan --model.preset=nano --model.vocab_size=512 --train.steps=1 --train.micro_batch=auto --train.batch_tokens=8192 --machine.device=cpu --json
check "the micro-batch that was chosen" [ "$(number micro_batch)" -gt 0 ]

run 0 "${seventy[@]}" --machine 8x8xH100 --parallel.tensor=4 --parallel.pipeline=8 --parallel.zero=1 --train.micro_batch=auto --assume overlap_tp=0,network=0.5
check "what is assumed" grep -q '^assumed      overlap_tp=0,network=0.5$' out
run 0 "${seventy[@]}" --machine 64xB200 --parallel.tensor=4 --parallel.pipeline=8 --parallel.zero=1 --assume compute=0.5 --json
check "in JSON" grep -q '"assumed": "compute=0.5"' out
half=$(number step_seconds)
run 0 "${seventy[@]}" --machine 64xB200 --parallel.tensor=4 --parallel.pipeline=8 --parallel.zero=1 --json
check "slower by it" awk "BEGIN { exit !($half > 1.6 * $(number step_seconds)) }"
printf 'like: b200\nnet_rate: 1e9\n' >slow.machine
run 0 "${seventy[@]}" --machine 64xslow.machine --json
check "a machine of a file" grep -q '"machine": "slow.machine"' out
printf 'like: b200\nnet_rates: 1e9\n' >wrong.machine
run 2 "${seventy[@]}" --machine 64xwrong.machine
says "wrong.machine:2: a machine has no 'net_rates'"
run 0 "${seventy[@]}" --machine 64xH100 --parallel.tensor=8 --parallel.pipeline=4 --parallel.context=2 --parallel.zero=1
check "a mesh with context ranks" grep -q '^dp 1 x cp 2 x tp 8 x pp 4, 1f1b, ZeRO 1 over 2' out
check "what cp costs" grep -qE '^  cp +2 ranks' out
check "stages on several hosts" grep -qE '^start +srun --mpi=pmix --nodes=8 .*--parallel.pipeline=4' out
check "what train has is not noted" bash -c '! grep -q "alone so far" out'
run 0 "${seventy[@]}" --machine 64xH100 --parallel.tensor=8 --parallel.pipeline=4 --parallel.context=2 --parallel.zero=1 --parallel.context_kind=ring
check "what it lacks is" grep -q '^start  *predicted only: .* has parallel.context_kind: ring on CPU ranks alone so far$' out
run 0 "${seventy[@]}" --machine 64xH100 --parallel.tensor=8 --parallel.pipeline=4 --parallel.context=2 --parallel.zero=1 --parallel.context_kind=ring --json
check "a ring" awk '/"sent_cp"/ { getline; found = $2 + 0 > 1e9 } END { exit !found }' out
seven=(plan --model.preset=7b --train.batch_tokens=1048576 --train.sequence_length=4096 --train.steps=1)
run 0 "${seven[@]}" --machine 8xH100 --parallel.pipeline=2 --parallel.context=2 --parallel.zero=1
check "stages of one host: how to start them" grep -qE '^start +ingot launch -n 8 -- train .*--parallel.pipeline=2 --parallel.context=2' out
run 0 "${seven[@]}" --machine 4x2xH100 --parallel.tensor=2 --parallel.zero=1
check "tensor ranks on several hosts" grep -qE '^start +srun --mpi=pmix --nodes=4 --ntasks-per-node=2 --gpus-per-node=2 ingot train ' out
run 0 "${seven[@]}" --machine 8xGB200 --parallel.zero=1
check "a domain of several hosts" grep -qE '^start +srun --mpi=pmix --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 ingot train ' out
across=(plan --model.preset=small --model.layers=gqa/moe --model.moe_experts=64 --model.moe_top_k=4 --model.moe_size=2048 --train.batch_tokens=524288
    --train.micro_batch=8 --train.steps=1 --machine 64xGB200)
run 0 "${across[@]}" --predicted
check "the fastest mesh crosses hosts" grep -q '^start  *predicted only: the GPUs of parallel.expert' out
check "so the next one is said" grep -qE '^instead +dp [0-9]+ \(ep [24]\) .* x tp 1 .*: \+[0-9.]+ %$' out
check "with its command" grep -qE '^ +srun --mpi=pmix --nodes=16 --ntasks-per-node=4 --gpus-per-node=4 ingot train ' out
run 0 "${across[@]}"
check "without --predicted the plan is of a mesh that starts" grep -qE '^start +srun --mpi=pmix --nodes=16 ' out
check "its experts are in a host" grep -qE '^dp [0-9]+ \(ep 4\) .*x tp 1 ' out
check "the faster one is said" grep -qE '^faster +dp [0-9]+ \(ep 16\) .*: -[0-9.]+ %, predicted only \(--predicted plans it\)$' out
check "rows that start come first" awk '/^ +[0-9]+ .* x [0-9]+ / { if (/predicted only$/) behind++; else if (behind) exit 1; else ahead++ } END { exit !(ahead == 6 && behind == 4) }' out
check "why the others do not, once" [ "$(grep -c '^predicted only: no command starts these: the GPUs of parallel.expert must be in one host so far$' out)" -eq 1 ]
run 0 "${across[@]}" --json
check "JSON says of each mesh whether it starts" python3 -c "
import json
r = json.load(open('out'))
for m in r['meshes'] + [r['mesh']]:
    assert m['starts'] == (m['ep'] * m['tp'] <= 4 or m['ep'] == 1) and ('predicted_only' in m) == (not m['starts']), m
assert r['mesh'] == next(m for m in r['meshes'] if m['starts']) and 'command' in r['run']
assert {m['starts'] for m in r['meshes']} == {True, False}"
run 2 plan --model.preset=small --model.vocab_size=32000 --train.steps=1 --predicted
says "plan: --predicted needs a machine"
mixture=(plan --model.preset=7b --model.layers=gqa/moe --model.moe_experts=64 --model.moe_top_k=4 --model.moe_size=4096 --train.batch_tokens=2097152 --train.steps=1)
run 0 "${mixture[@]}" --machine 64xH100 --parallel.tensor=2 --parallel.pipeline=4 --parallel.expert=8 --parallel.zero=1 --train.recompute=full
check "experts that ranks shard" grep -q '^dp 8 (ep 8) x tp 2 x pp 4, 1f1b, ZeRO 1 over 8' out
check "what ep costs" grep -qE '^  ep +8 ranks' out
run 0 "${mixture[@]}" --machine 64xH100 --model.moe_size=512 --parallel.tensor=2 --parallel.expert=8 --parallel.zero=1 --train.recompute=full --json
check "experts on several hosts: no command" grep -q '"predicted_only": "the GPUs of parallel.expert must be in one host so far: parallel.expert 8 x parallel.tensor 2 spans hosts of 8"' out
check "nor in JSON" [ "$(grep -c '"command"' out)" -eq 0 ]
run 0 "${mixture[@]}" --machine 64xH100 --model.moe_size=512 --parallel.tensor=2 --parallel.expert=4 --parallel.zero=1 --train.recompute=full
check "experts of one host" grep -qE '^start +srun .*--parallel.expert=4' out
run 0 "${mixture[@]}" --machine 64xH100 --model.moe_size=512 --parallel.tensor=2 --parallel.pipeline=2 --parallel.context=2 --parallel.expert=2 --parallel.zero=1 --parallel.shard=4
check "more groups than GPUs have are noted" grep -q '^start  *predicted only: .* is in 12 groups of ranks, and in at most 8 on GPUs' out
run 0 "${mixture[@]}" --machine 64xH100
check "the search has a column of them" grep -qE '^   dp  ep .* ep( +cp)?$' out
run 0 "${mixture[@]}" --machine 64xH100 --why tp2.pp4.ep8
check "why this one" grep -q '^mesh         dp 8 (ep 8) x tp 2 x pp 4' out
check "what half of them changes" grep -qE '^  expert 8 -> 4 ' out
bytes_with() { # bytes_with ASSUMPTIONS: of the fullest rank, 8 GPUs with ZeRO 2 in FP8
    run 0 "${seven[@]}" --machine 8xH100 --parallel.zero=2 --train.precision=fp8 --train.micro_batch=1 --assume "$1" --json
    number memory_bytes_max
}
four=$(bytes_with logits=4) eight=$(bytes_with logits=8) narrow=$(bytes_with logits=4,grad_memory=2) shared=$(bytes_with logits=4,fsdp_fp8=1)
check "logits of a micro-batch: $four, $eight" awk "BEGIN { exit !($eight - $four == 4 * 4096 * 32000) }"
check "bf16 gradients: $narrow" awk "BEGIN { exit !($narrow < $four) }"
check "weights and codes of FSDP: $shared" awk "BEGIN { exit !($four - $shared > 0.5 * 4 * 6.74e9) }"
run 2 "${seventy[@]}" --machine 64xB200 --assume imbalanced=2
says "the names are compute, attention"
run 2 "${seventy[@]}" --assume compute=2
says "plan: --assume needs a machine"

run 5 "${seventy[@]}" --machine 8xH100
says "no mesh fits; the nearest: dp 1 x tp 8"
says "take more devices"
run 5 "${seventy[@]}" --machine 8xH100 --parallel.tensor=8
says "the mesh of parallel.* does not fit"
run 2 "${seventy[@]}" --machine 8xH101
says "names: gh200-144"
run 2 "${seventy[@]}" --machine 64xB200 --parallel.tensor=3
says "parallel.tensor x parallel.pipeline = 3 x 1 cannot be made of 64 ranks"
run 2 plan --model.preset=nano --model.vocab_size=512 --train.steps=1 --parallel.pipeline=2
says "needs --machine, such as --machine 2xcpu"
run 2 "${seventy[@]}" --machine 60xB200 --parallel.tensor=6
says "does not divide model.head_count 64"
run 2 plan --model.preset=nano --model.vocab_size=512 --train.steps=1 --machine 64xB200
says "raise train.batch_tokens"

eight=(plan --model.preset=llama-1b --train.precision=fp8 --train.micro_batch=8 --train.sequence_length=4096 --train.batch_tokens=32768 --train.steps=1)
run 0 "${eight[@]}" --machine h200
check "codes of weights" grep -q '^  weights hold up to 1.81 GiB of FP8 codes' out
check "MFU of bf16's peak" grep -qE '^step .* MFU 7[0-9.]+ % of the bf16 peak$' out
check "rates that were measured" [ "$(grep -c 'not measured' out)" -eq 0 ]
run 0 "${eight[@]}" --machine b200
check "rates that were not" grep -q '^note .*FP8 GEMMs are not measured on this GPU' out
run 0 "${eight[@]}" --machine h200 --json
check "codes in JSON" awk '/"fp8_codes_in_weights"/ { found = $2 + 0 == 2 * 973078528 } END { exit !found }' out
run 2 "${eight[@]}" --machine a100
says "a100 has no FP8"
run 0 "${eight[@]}" --machine 2xh200 --parallel.zero=3 --train.batch_tokens=65536
check "codes of shards" grep -q '^  weights hold up to [0-9.]* MiB of FP8 codes of this rank' out
check "FP8 with ZeRO 3 can start" grep -qE '^start +ingot launch -n 2 ' out
nano=(plan --model.preset=nano --model.vocab_size=512 --train.steps=1 --train.precision=fp8 --machine.device=cpu)
run 0 "${nano[@]}"
check "codes of weights on one device" grep -qE '^  [0-9.]+ MiB of parameters are FP8 codes of 24 weights, and their transposes$' out
run 2 "${nano[@]}" --fp8.exclude='*.nothing.weight'
says "matches no weight"

make_corpus
run 0 train r.yaml --run.dir=runs/a --eval.every=0 --ckpt.every=0
check "predicted beside measured" grep -qE 'forecast +step [0-9.e-]+ s predicted, [0-9.e-]+ s measured' runs/a/log.txt
for fact in predicted_step_s measured_step_s predicted_bytes; do
    check "fact $fact" grep -q "\"name\":\"$fact\",\"value\":[0-9]" runs/a/metrics.jsonl
done
check "one device is planned as it is laid out" awk '
    match($0, /"name":"(predicted|planned)_bytes","value":[0-9.e+]+/) { split(substr($0, RSTART, RLENGTH), w, ":"); v[++n] = w[3] + 0 }
    END { exit !(n == 2 && v[1] == v[2] && v[1] > 0) }' runs/a/metrics.jsonl
check "in the report" grep -q '<h2>Step</h2>' runs/a/report.html
run 0 train r.yaml --run.dir=runs/b --train.steps=3 --optim.warmup_steps=1 --eval.every=0 --ckpt.every=0
check "three steps say nothing" grep -q 'forecast +none' -E runs/b/log.txt
run 0 launch -n 2 -- train r.yaml --run.dir=runs/c --eval.every=0 --ckpt.every=0
check "two ranks" grep -qE 'forecast +step [0-9.e-]+ s predicted' runs/c/log.txt
exit $failed
