#!/usr/bin/env bash
# NVIDIA's profilers around `ingot bench train` on a GPU.
#
#   scripts/profile_gpu.sh nsys [-o FILE] [bench train arguments]
#       a timeline of three replayed steps: kernels of the graph one by one, scopes as NVTX ranges; then the sums by kernel.
#   scripts/profile_gpu.sh ncu [-k REGEX] [-s SKIP] [-c COUNT] [-o FILE] [bench train arguments]
#       hardware counters of COUNT kernels (10) whose name fits REGEX (all), behind the first SKIP of those (0). Clocks are left as they
#       are. Each kernel runs several times, so steps run op by op (--eager), and their times are not those of a run.
#
#   scripts/profile_gpu.sh nsys --preset gpt2-124m --precision bf16 --batch 64
#   scripts/profile_gpu.sh ncu -k 'norm|turn' -s 40 -c 6 --preset gpt2-124m --precision bf16 --batch 64
#
# FILE: profile (.nsys-rep, .ncu-rep). INGOT: the program (build/cuda/ingot, or build/release/ingot).
set -euo pipefail
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set'; }
fail() { echo "profile_gpu.sh: $1" >&2; exit 2; }

tool=${1:-}
case $tool in
nsys) package='Nsight Systems (package cuda-nsight-systems-*)' ;;
ncu) package='Nsight Compute (package cuda-nsight-compute-*)' ;;
-h | --help) usage && exit 0 ;;
*) fail "say nsys or ncu first; --help tells more" ;;
esac
shift
name= skip=0 count=10 out=profile
while [[ ${1:-} == -[ksco] ]]; do
    [ $# -gt 1 ] || fail "$1 needs a value"
    case $1 in
    -k) name=$2 ;;
    -s) skip=$2 ;;
    -c) count=$2 ;;
    -o) out=$2 ;;
    esac
    shift 2
done
command -v "$tool" >/dev/null || fail "$tool is not on PATH: install $package, or add its directory to PATH"
here=$(dirname "$0")/..
ingot=${INGOT:-}
[ -n "$ingot" ] || for ingot in "$here/build/cuda/ingot" "$here/build/release/ingot"; do [ -x "$ingot" ] && break; done
[ -x "$ingot" ] || fail "$ingot is not there: build it (cmake --preset cuda && cmake --build --preset cuda), or set INGOT"

if [ "$tool" = nsys ]; then
    nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --sample=none --cpuctxsw=none --force-overwrite=true -o "$out" \
        "$ingot" bench train --device cuda --steps 3 "$@"
    nsys stats --force-export=true --report cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,nvtx_pushpop_sum "$out.nsys-rep"
else
    ncu --clock-control none --set detailed --import-source yes --force-overwrite --export "$out" \
        ${name:+--kernel-name "regex:$name"} --launch-skip "$skip" --launch-count "$count" \
        "$ingot" bench train --device cuda --eager --steps 1 "$@"
    ncu --import "$out.ncu-rep" --page details --print-details header
fi
