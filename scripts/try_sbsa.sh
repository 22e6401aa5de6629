#!/usr/bin/env bash
# Proves on x86-64 that the CUDA build for ARM servers (CUDA's sbsa: GH200, GB200) configures, compiles, links and starts.
#
#   scripts/try_sbsa.sh [--libraries]       CUDA_ARCHS=90a-real: the architectures to compile for; a quarter of an hour on two cores for one
#
# 1. build/sbsa-linux gets the toolkit's part for ARM: the headers of this machine's toolkit (CUDA 13), and the CUDA runtime of its
#    version for aarch64 from PyPI. Not if the toolkit has targets/sbsa-linux (NVIDIA's packages cuda-cross-sbsa-*), or INGOT_SBSA names a directory.
# 2. The preset arm64-cuda builds build/arm64-cuda/ingot, from the same CMake files as everywhere.
# 3. It is a program for ARM with device code, which loads nothing unexpected; under qemu it says its version and its verbs, trains on the
#    CPU, and says in one line that there is no driver.
# --libraries also fetches cuBLAS, cuDNN, NCCL and CUPTI for ARM (1.4 GB), in the versions of this toolkit's headers: each function that
# ingot takes from them by its name must be in them.
set -euo pipefail
cd "$(dirname "$0")/.."
libraries= archs=${CUDA_ARCHS:-90a-real}
for word in "$@"; do
    case $word in
    --libraries) libraries=1 ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2 && exit 2 ;;
    esac
done
fail() { echo "try_sbsa.sh: $1" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || fail "this is a cross build on x86-64; on an ARM server: cmake --preset cuda"
nvcc=$(realpath "${CUDACXX:-$(command -v nvcc)}") || fail "there is no nvcc on PATH"
cuda=$(dirname "$(dirname "$nvcc")")
version=$("$nvcc" --version | sed -nE 's/.* V([0-9]+\.[0-9]+\.[0-9]+)$/\1/p')
scripts/install.sh build arm arm-cuda

# wheel NAME VERSION DIR: a package of PyPI for ARM, unpacked into DIR
wheel() {
    local platforms=() p at
    [[ $version = 13.* ]] || fail "this toolkit is CUDA $version: the wheels of CUDA 13 alone are known here; install cuda-cross-sbsa-*"
    for p in manylinux2014 manylinux_2_17 manylinux_2_18 manylinux_2_25 manylinux_2_27 manylinux_2_28; do platforms+=(--platform "${p}_aarch64"); done
    at=$(mktemp -d)
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: "${platforms[@]}" -d "$at" "$1==$2"
    python3 -m zipfile -e "$at"/*.whl "$3"
    rm -r "$at"
}
# defined FILE NAME: the number behind #define NAME in a header of this toolkit
defined() { sed -nE "s/^#define $2 +([0-9]+).*/\1/p" "$cuda/include/$1" | head -n 1; }

sbsa=${INGOT_SBSA:-$cuda/targets/sbsa-linux}
if [ ! -f "$sbsa/lib/libcudart_static.a" ]; then
    [ -z "${INGOT_SBSA:-}" ] || fail "INGOT_SBSA=$INGOT_SBSA has no lib/libcudart_static.a"
    sbsa=$PWD/build/sbsa-linux
    if [ ! -e "$sbsa/lib/libcudart.so" ]; then
        rm -rf "$sbsa"
        mkdir -p "$sbsa"
        wheel nvidia-cuda-runtime "${version%.*}.*" "$sbsa/wheel"
        cp -rs "$(realpath "$cuda/include")" "$sbsa/include" # the same on each processor
        cp -r "$sbsa"/wheel/nvidia/*/lib "$sbsa/lib"
        (cd "$sbsa/lib" && ln -s libcudart.so.* libcudart.so) # the name that CMake asks for
    fi
fi
echo "CUDA $version for ARM: $sbsa"

cmake --preset arm64-cuda -DINGOT_SBSA="$sbsa" -DINGOT_CUDA_ARCHS="$archs"
cmake --build --preset arm64-cuda --target ingot -j "${JOBS:-$(nproc)}"

program=build/arm64-cuda/ingot
readelf -h "$program" | grep -q 'Machine: *AArch64' || fail "$program is not a program for ARM"
needed=$(readelf -d "$program" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p')
echo "needs:" $needed
other=$(grep -vE '^(lib(c|m|stdc\+\+|gcc_s|gomp|hwloc|microhttpd|yaml-0|jansson|xxhash|z|zstd|lz4|brotlidec)|ld-linux-aarch64)\.so' <<<"$needed") || [ $? -eq 1 ] # 1: no line
[ -z "$other" ] || fail "$program needs $other: unexpected"
code=$(readelf -SW "$program" | sed -nE 's/.* \.nv_fatbin +PROGBITS +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) .*/\1/p')
[ -n "$code" ] || fail "$program has no device code"
echo "device code: $((16#$code)) bytes for $archs"
if [ -x "$cuda/bin/cuobjdump" ]; then
    has=$("$cuda/bin/cuobjdump" --list-elf "$program" | sed -nE 's/.*\.(sm_[0-9]+[a-z]?)\.cubin.*/\1/p' | sort | uniq -c)
    for arch in ${archs//;/ }; do
        grep -q "sm_${arch%-real}$" <<<"$has" || fail "$program has no device code for $arch"
    done
fi

if [ -n "$libraries" ]; then
    at=build/sbsa-libraries
    [ -d $at/nvidia ] || {
        wheel nvidia-cublas "$(defined cublas_api.h CUBLAS_VER_MAJOR).$(defined cublas_api.h CUBLAS_VER_MINOR).$(defined cublas_api.h CUBLAS_VER_PATCH).*" $at
        wheel nvidia-cudnn-cu13 "$(defined cudnn_version.h CUDNN_MAJOR).$(defined cudnn_version.h CUDNN_MINOR).$(defined cudnn_version.h CUDNN_PATCHLEVEL).*" $at
        wheel nvidia-nccl-cu13 "$(defined nccl.h NCCL_MAJOR).$(defined nccl.h NCCL_MINOR).$(defined nccl.h NCCL_PATCH)" $at
        wheel nvidia-cuda-cupti "${version%.*}.*" $at
    }
    while read -r library prefix; do
        lib=$(find $at -name "$library.so.*" | head -n 1)
        [ -n "$lib" ] || fail "there is no $library in $at"
        readelf -h "$lib" | grep -q 'Machine: *AArch64' || fail "$lib is not for ARM"
        names=$(grep -rhoE "X\($prefix[A-Za-z0-9]+\)" src | tr -d 'X()' | sort -u)
        has=$(readelf -W --dyn-syms "$lib" | awk '$7 != "UND" { sub(/@.*/, "", $8); print $8 }' | sort -u)
        lacks=$(comm -23 <(echo "$names") <(echo "$has"))
        [ -z "$lacks" ] || fail "$lib lacks" $lacks
        echo "${lib##*/} for ARM: has all $(wc -l <<<"$names") functions that ingot loads"
    done <<'LIBRARIES'
libcublasLt cublasLt
libcudnn cudnn
libnccl nccl
libcupti cupti
LIBRARIES
fi

# Under qemu. GOMP_SPINCOUNT: the program need not start itself again to set it.
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
export GOMP_SPINCOUNT=0
program=$PWD/$program
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ingot() { "$qemu" -cpu max "$program" "$@"; }
ingot version
ingot help >help
[ "$(wc -l <help)" -ge 20 ] || fail "ingot help prints $(wc -l <help) lines"
for i in $(seq 400); do echo "In the beginning was the word, and the word number $i was with the $((i * 7919 % 1000)) others."; done >text.txt
train() {
    ingot train --model.layer_count=2 --model.hidden_size=64 --model.ffn_size=128 --model.head_count=2 --model.context_length=64 \
        --data.train='data/t_*.bin' --train.micro_batch=8 --train.steps=4 --optim.warmup_steps=1 "$@" >result 2>log
}
ingot tokenizer train text.txt --vocab-size 280 -o tok >log 2>&1 || { cat log; fail "tokenizer train"; }
ingot data build text.txt --tokenizer tok --separator line --val-fraction 0 -o data/t >log 2>&1 || { cat log; fail "data build"; }
train --machine.device=cpu --run.dir=cpu || { cat log; fail "training on the CPU"; }
tail -n 1 log
code=0
train --machine.device=cuda --run.dir=gpu || code=$?
tail -n 1 log
[ $code -eq 11 ] && [ "$(grep -c ^error: log)" -eq 1 ] || { cat log; fail "--machine.device=cuda without a driver: exit code $code, and not one line"; }
echo "try_sbsa.sh: ok"
