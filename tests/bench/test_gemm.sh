#!/usr/bin/env bash
# ingot bench gemm on a CPU: a rate for every product of a layer, in both types, also where oneDNN has no products to show beside ours. test_gemm.sh INGOT
. "$(dirname "$0")/../shell.sh"
for dt in f32 bf16 fp8; do
    run 0 bench gemm --dtype $dt --layer out --tokens 64 --runs 1
    check "$dt: three products" test "$(grep -cE '^  out +(fwd|dgrad|wgrad) .* GFLOP/s, best +[0-9.e+-]*[1-9]' out)" -eq 3
    run 0 bench gemm --dtype $dt --layer out --tokens 64 --runs 1 --json
    check "$dt: three objects" test "$(grep -cE '"gflops":[0-9.e+-]*[1-9][0-9.e+-]*,.*"onednn_gflops":(null|[0-9.e+-]+),' out)" -eq 3
done
if "$ingot" bench gemm --dtype f32 --layer out --tokens 64 --runs 1 | grep -q "built without oneDNN"; then peers=3; else peers=0; fi
check "F32 has a peer everywhere, or nowhere without oneDNN" test "$("$ingot" bench gemm --dtype f32 --layer out --tokens 64 --runs 1 --json | grep -c '"onednn_gflops":null')" -eq $peers
run 0 bench gemm --dtype fp8 --tokens 16 --runs 1 --json
check "FP8: twelve products, without the head" test "$(grep -c '"layer":"[a-z]*"' out)" -eq 12
check "FP8 has no peer" test "$(grep -c '"onednn_gflops":null' out)" -eq 12
if command -v script >/dev/null; then # all products take minutes on a busy machine, and the table comes at the end
    TERM=xterm NO_COLOR=1 LC_ALL=C script -qec "stty cols 80 && '$ingot' bench gemm --dtype f32 --layer proj --tokens 1024 --runs 3 >out 2>/dev/tty" /dev/null \
        </dev/null >screen 2>err || fail "exit code $?"
    check "a terminal sees how far it is" grep -qE '^F32 GEMMs +[=-]*' <(tr '\r' '\n' <screen)
    check "and the rates" test "$(grep -c 'GFLOP/s, best' out)" -eq 3
fi
run 2 bench gemm --dtype fp8 --tokens 40
check "FP8 needs rows by 16" grep -q -- '--tokens=40: FP8 needs a multiple of 16' err
run 2 bench gemm --dtype tf32
check "a type of GPUs alone" grep -q -- '--dtype=tf32: f32, bf16 or fp8 on a CPU' err
for bench in gemm attention; do # what lasts is measured on a GPU
    run 2 bench $bench --seconds 1
    check "$bench --seconds needs a GPU" grep -q -- '--seconds.*--device=cuda' err
done
run 2 bench copy --seconds 61
check "seconds have a limit" grep -q -- '--seconds=61: 0 to 60' err
for wrong in --comm-sms=0 --comm-sms=8,,16 --tokens=40 --ranks=1 --runs=0 --seconds=61; do # of a GPU's bench: read without one
    run 2 bench overlap "$wrong"
    check "bench overlap $wrong" grep -q -- "${wrong%%=*}=" err
done
run 2 bench overlap --preset none
check "a preset that is not there" grep -q "none" err
exit "$failed"
