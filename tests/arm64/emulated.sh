#!/usr/bin/env bash
# The program for 64-bit ARM under qemu-user, on a processor with NEON alone and on one with all that qemu knows (bf16, SVE):
# emulated.sh INGOT BUILD: INGOT is the x86 program, BUILD the directory of the arm64 preset (ingot and the tests named here).
#   ops        a part of the cases against the oracle, by 1 to 4 threads: an emulator is 20 times slower
#   text       tokenizer and shards have the bytes that x86 makes
#   training   the same bits for 1, 2 and 4 threads, and the losses of x86 within roundoff
build=$(realpath "$2")
. "$(dirname "$0")/../shell.sh"
x86=$ingot
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || { echo "failed: no qemu-aarch64; scripts/install.sh arm"; exit 1; }

# as CPU: "$ingot" is from now on the ARM program on that CPU. GOMP_SPINCOUNT: the program need not start itself again to set it.
as() {
    printf '#!/bin/sh\nexec %s -cpu %s %s "$@"\n' "$qemu" "$1" "$build/ingot" >"arm-$1"
    chmod +x "arm-$1"
    ingot=$PWD/arm-$1
}
export GOMP_SPINCOUNT=0

unit_test() { # unit_test CPU NAME
    "$qemu" -cpu "$1" "$build/tests/$2" >"$2.out" 2>&1 || fail "$2 on $1: $(grep -v -e 'RUN  ' -e '  OK ' "$2.out" | head -n 5)"
}
for cpu in cortex-a72 max; do
    INGOT_TEST_EVERY=12 unit_test $cpu test_fast_ops
done
for name in test_fp8_ops test_hash_base test_utf8_base test_json_scan_base test_nfc_data; do unit_test max $name; done

make_corpus # by the x86 program
mkdir x86
mv tok data x86
as max
run 0 tokenizer train corpus.txt --vocab-size 300 --special '<|endoftext|>' -o tok
run 0 data build corpus.txt --tokenizer tok --separator blank --val-fraction 0.1 -o data/c
check "x86 and ARM train the same tokenizer" cmp x86/tok/tokenizer.json tok/tokenizer.json
for shard in x86/data/*.bin; do check "x86 and ARM build the same $shard" cmp "$shard" "data/${shard##*/}"; done

train() { # train NAME THREADS PRECISION
    run 0 train r.yaml --run.dir="runs/$1" --train.precision="$3" --machine.threads="$2" --train.steps=3 --optim.warmup_steps=1 --ckpt.every=0
}
loss() { losses "runs/$1" | grep -oE '"loss":[0-9.]+' | tail -n 1 | cut -d: -f2; }
near() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { d = a - b; exit !(a > 0 && d * d <= most * most) }'; }
for precision in fp32 bf16; do
    ingot=$x86
    train x86.$precision 1 $precision
    for cpu in cortex-a72 max; do
        as $cpu
        set=cpu-neon
        [ $cpu = max ] && set=cpu-neon-bf16
        for threads in 1 2 4; do
            name=$cpu.$precision.$threads
            [ $cpu = max ] || [ $threads -ne 4 ] || continue
            train "$name" $threads $precision
            check "$cpu has the set $set" grep -qE "device +$set," err
            [ $threads -eq 1 ] || same_run "$cpu, $precision, $threads threads" "runs/$cpu.$precision.1" "runs/$name"
        done
        most=0.0001
        [ $precision = bf16 ] && most=0.01
        check "$cpu, $precision: the loss of x86 within $most ($(loss x86.$precision), $(loss "$cpu.$precision.1"))" \
            near "$(loss x86.$precision)" "$(loss "$cpu.$precision.1")" $most
    done
done
run 2 train r.yaml --isa avx2 --run.dir=runs/isa
says "unknown isa 'avx2': use neon or bf16"
exit $failed
