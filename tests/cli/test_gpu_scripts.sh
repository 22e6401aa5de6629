#!/usr/bin/env bash
# scripts/gpu_check.sh from a pack: every part runs, a failure does not stop the next and is told last, a skip on a machine with a GPU is
# a failure. bench_gpu.py takes turns and compares medians. Program, tests, tools and card are stand-ins here.
set -u
top=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "failed: $*"; failed=1; }
stand_in() { # stand_in PATH: a script from standard input
    mkdir -p "$(dirname "$1")"
    { echo '#!/usr/bin/env bash'; cat; } >"$1"
    chmod +x "$1"
}
mkdir -p pack/tests/train
cp -r "$top/scripts" "$top/tools" pack/
stand_in pack/bin/ingot <<'E2'
case "$*" in
'bench --help') echo 'usage: ingot bench gemm' ;;
'bench train'*'--precision fp8'*--json*) echo '{"tokens_per_s": 480.0, "step_s": 0.05, "step_s_best": 0.05, "device_bytes": 536870912, "cold_start_s": 1.5, "watts": 690.0, "tokens_per_joule": 800.0, "loss_last": 9.25}' ;;
'bench train'*--json*) echo '{"tokens_per_s": 300.0, "step_s": 0.1, "step_s_best": 0.1, "device_bytes": 1073741824, "cold_start_s": 1.5}' ;;
*) echo "ingot $*" ;;
esac
E2
echo 'echo "ok"; exit 0' | stand_in pack/bin/gpu_one_ops
echo 'echo "FAIL two is off"; exit 1' | stand_in pack/bin/gpu_two_ops
echo 'exit 77' | stand_in pack/bin/gpu_three_model
echo 'echo "$1"; exit 0' | stand_in pack/tests/train/gpu_four.sh
echo 'case "$*" in -L) echo "GPU 0: none such" ;; *memory.total\ *|*memory.total) echo 81920 ;; *) echo "a card" ;; esac' | stand_in path/nvidia-smi
echo 'exit 0' | stand_in path/compute-sanitizer
PATH=$work/path:$PATH OUT=$work/out pack/scripts/gpu_check.sh info ops train sanitize bench >log 2>&1
[ $? -eq 1 ] || fail "exit code of failures"
for line in 'ops +gpu_one_ops +ok ' 'ops +gpu_two_ops +exit 1 ' 'train +gpu_three_model +skipped: no GPU ' 'train +gpu_four +ok ' 'sanitize +racecheck_rope +ok ' \
    'bench +bench_gemm +ok ' 'bench +bench_train +ok ' '2 failed'; do
    grep -qE "^$line" log || fail "no line '$line'"
done
grep -q '^FAIL two is off' log || fail "what failed is not told"
grep -q '^ingot bench train .*--batch 64' out/bench_train.log || fail "bench train: $(cat out/bench_train.log)"
[ "$(tail -n 1 log)" = '2 failed' ] || fail "the summary is not last"
PATH=$work/path:$PATH OUT=$work/out pack/scripts/gpu_check.sh nothing >log 2>&1
[ $? -eq 2 ] || fail "an unknown part"
printf 'exit 9' | stand_in path/nvidia-smi
PATH=$work/path:$PATH OUT=$work/out pack/scripts/gpu_check.sh ops >log 2>&1
[ $? -eq 11 ] || fail "no GPU"

cat >pack/tools/peer_torch_gpu.py <<'PY'
import json, sys
import os
facts = {"attention": "cudnn", "allocated_bytes": 2 << 30}
if "--fp8" in sys.argv:
    facts["attention"] = os.environ["PYTHONPATH"].split(":")[0] + " " + os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"]
print(json.dumps({"cold_start_s": 30.0, **facts}), flush=True)
for line in sys.stdin:
    print(json.dumps({"tokens_per_s": 200.0 + int(line), "step_s": 0.2, "step_s_best": 0.2, **facts}), flush=True)
PY
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    OUT=$work/out pack/scripts/bench_gpu.sh --rounds 2 --steps 40 medium >log 2>&1 || fail "bench_gpu.sh: $(cat log)"
    grep -qE '^medium +torch default \(cudnn\) +240 +200.0 +200.0 +2.0 +30.0 +1.250 +0.50$' log || fail "bench_gpu.sh's table: $(cat log)"
    [ "$(wc -l <out/bench_gpu.jsonl)" -eq 4 ] || fail "bench_gpu.jsonl has $(wc -l <out/bench_gpu.jsonl) lines"
    stand_in llmq/train <<'E2'
dtype=
while [ $# -gt 0 ]; do
    case $1 in --model) model=$2 ;; --train-file) tokens=$2 ;; --matmul-dtype) dtype=$2 ;; esac
    shift
done
grep -q '"num_key_value_heads": 8' "$model/config.json" || { echo "no config"; exit 2; }
[ "$(head -c 8 "$tokens")" = BIN.TOK ] || { echo "no tokens"; exit 2; }
[ "$dtype" = "${WANTED_DTYPE:-}" ] || { echo "GEMMs in '$dtype'"; exit 2; }
for i in $(seq 0 99); do
    printf '[T] step %5d [ 0.0%%] | time: %5d ms | norm 1.0 | loss 2.0 | tps 218k\n' "$i" $((i < 5 ? 5000 : 300)) || exit 0
done
E2
    OUT=$work/out pack/scripts/bench_gpu.sh --rounds 1 --steps 10 --modes none --llmq llmq/train medium >log 2>&1 || fail "with LLMQ: $(cat log)"
    grep -qE '^medium +LLMQ +218,453 +300.0 +300.0 +[0-9.]+ +0.001$' log || fail "LLMQ's row: $(cat log)"
    grep -qE '^medium +ingot +300 +100.0 +100.0 +1.0 +1.5$' log || fail "ingot's row beside LLMQ: $(cat log)"
    mkdir -p tao/torchao
    WANTED_DTYPE=e4m3 OUT=$work/out pack/scripts/bench_gpu.sh --fp8 --torchao tao --recipes rowwise --rounds 1 --steps 10 --llmq llmq/train llama-1b deltanet-mla-1b \
        >log 2>&1 || fail "--fp8: $(cat log)"
    grep -qE '^llama-1b +torch rowwise \(tao 1\) +210 +200.0 +200.0 +2.0 +30.0 +2.286 +0.25$' log || fail "torchao's row: $(cat log)"
    grep -qE '^llama-1b +LLMQ +109,227 +300.0 +300.0 .* 2.0000 +0.004' log || fail "LLMQ's FP8 row: $(cat log)"
    grep -qE '^llama-1b +ingot bf16 +300 +100.0 +100.0 +1.0 +1.5 +1.600 +0.50$' log || fail "bf16's row beside FP8: $(cat log)"
    grep -qE '^deltanet-mla-1b +ingot fp8 +480 +50.0 +50.0 +0.5 +1.5 +690 +1.25 +9.2500$' log || fail "FP8's row: $(cat log)"
    grep -q '^deltanet-mla-1b.*\(torch\|LLMQ\)' log && fail "peers that have no such model: $(cat log)"
    pack/scripts/bench_gpu.sh --fp8 --torchao tao --dry-run 7b-8-layers >log 2>&1 || fail "--dry-run: $(cat log)"
    [ "$(grep -c '^7b-8-layers: ' log)" -eq 4 ] || fail "--dry-run: $(cat log)"
    pack/scripts/bench_gpu.sh --fp8 --torchao llmq medium >log 2>&1
    [ $? -eq 2 ] && grep -q 'no package torchao' log || fail "torchao that is not there: $(cat log)"
    echo 'echo "out of memory"; exit 1' | stand_in llmq/train
    OUT=$work/out pack/scripts/bench_gpu.sh --rounds 1 --steps 10 --modes none --llmq llmq/train medium >log 2>&1 || fail "ingot alone: $(cat log)"
    grep -q 'LLMQ: .*0 steps of 15; it said last: out of memory' log || fail "LLMQ's failure is not told: $(cat log)"
    OUT=$work/out pack/scripts/bench_gpu.sh --modes none --llmq llmq/none medium >log 2>&1
    [ $? -eq 2 ] && grep -q -- '--llmq llmq/none: no program is there' log || fail "LLMQ that is not there: $(cat log)"
fi

# fp8_parity.sh judges the rows of bench learn, whose arithmetic is tested in tests/bench/test_learn.sh.
stand_in parity <<'E2'
case "$1 $2" in 'tokenizer train') exit 0 ;; 'data build') mkdir -p "$OUT/data" && : >"$OUT/data/c_manifest.json" && exit 0 ;; esac
case "$*" in 'bench learn '*'--train.precision=bf16'*'--last 20'*'--variant fp8: train.precision=fp8 '*'fp8.wgrad=bf16'*'fp8.margin='*) ;; *) exit 2 ;; esac
row() { # row NAME MINUS
    state=finished minus=$2 same=false
    [ "$2" = NaN ] && state='failed (exit 6) at step 3' minus=null
    [ "$2" = 0 ] && [ "$1" != base ] && same=true
    echo "{\"variant\": \"$1\", \"seeds\": 1, \"state\": \"$state\", \"steps\": 30, \"last\": 20, \"same\": $same, \"loss\": 4.1, \"minus\": $minus, \"std_err\": 9e-05, \"held_out\": null}"
}
row base 0; row fp8 "$FP8"; row wgrad "$WGRAD"; row control "$CONTROL"
E2
parity() { # parity CODE FP8 WGRAD CONTROL
    rm -rf "$work/parity_out"
    OUT=$work/parity_out INGOT=$work/parity FP8=$2 WGRAD=$3 CONTROL=$4 pack/scripts/fp8_parity.sh --last 20 text >log 2>&1
    [ $? -eq "$1" ] || fail "fp8_parity.sh $*: $(cat log)"
}
parity 0 0.004 -0.002 0.1
grep -qE '^fp8 +[0-9.]+ +\+0.00400 +0.00009 +as it must be$' log || fail "fp8_parity.sh's row: $(cat log)"
parity 0 0.004 0.001 NaN
parity 1 0.006 0.001 0.1
grep -qE '^fp8 .* FAILED$' log || fail "fp8 that is worse: $(cat log)"
parity 1 0.004 0.006 0.1
parity 1 0.004 0.001 0.004
grep -qE '^control .* FAILED$' log || fail "a control that is as good: $(cat log)"
parity 1 0 0.001 0.1
grep -q 'nothing was computed in FP8' log || fail "a run that is bf16: $(cat log)"
parity 6 NaN 0.001 0.1
exit $failed
