#!/usr/bin/env bash
# Everything that is claimed about the GPU, shown on this machine: gpu_check.sh [BUILD_DIR] [PART]...   (default parts: all but peers)
#   info       card, clocks, driver, versions
#   ops        the CUDA op set against the oracle, and the other GPU tests of single parts
#   train      whole models and whole runs: against Hugging Face, against the CPU, bit for bit
#   sanitize   compute-sanitizer on the small op cases: stray accesses, races, memory that nobody wrote, barriers
#   bench      copy, products, ops, attention, training steps
#   peers      our step beside torch.compile (bench_gpu.sh): needs a Python with torch
# Builds (preset release) when no BUILD_DIR is named and there is none yet. A part that fails does not stop the next. Each command's
# output is below OUT (build/gpu_check); the summary comes last. Exit 0: nothing failed. Runs from an unpacked pack as well (pack_gpu.sh).
set -u -o pipefail
. "$(dirname "$0")/gpu_env.sh"

build=
if [ -d "${1:-}" ]; then
    build=$(realpath "$1")
    shift
fi
parts=" ${*:-info ops train sanitize bench} "
for part in $parts; do
    case $part in
    info | ops | train | sanitize | bench | peers) ;;
    *) echo "gpu_check.sh: unknown part '$part' (info ops train sanitize bench peers)" >&2 && exit 2 ;;
    esac
done
wanted() { [[ $parts == *" $1 "* ]]; }

gpu_find "$build"
if [ -z "$ingot" ] && [ -z "$build" ]; then
    echo "== build"
    (cd "$root" && cmake --preset release >/dev/null && cmake --build --preset release -j "$(nproc)") || exit 70
    gpu_find
fi
[ -n "$ingot" ] || { echo "gpu_check.sh: there is no ingot in ${build:-$root/build/release}" >&2; exit 2; }
out=${OUT:-$root/build/gpu_check}
mkdir -p "$out" || exit 74
summary=$out/summary.txt
: >"$summary"
failed=0

# step PART NAME SECONDS COMMAND...: runs it, keeps its output, notes how it went. A test that skips on a machine with a GPU has failed.
step() {
    local part=$1 name=$2 limit=$3 begin=$SECONDS code verdict=ok
    shift 3
    echo "== $part: $name"
    timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    case $code in
    0) ;;
    77) verdict="skipped: no GPU" ;;
    124 | 137) verdict="no end in $limit s" ;;
    *) verdict="exit $code" ;;
    esac
    if [ $code -ne 0 ]; then
        failed=$((failed + 1))
        grep -E '^(FAIL|failed|error|ERROR|=========.*(Error|ERROR|hazard))|^\[  FAILED' "$out/$name.log" | head -n 40
    fi
    printf '%-9s %-26s %-20s %4d s\n' "$part" "$name" "$verdict" $((SECONDS - begin)) | tee -a "$summary"
}
has_gpu() { nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

info() {
    date -u +%FT%TZ
    "$ingot" --version
    nvidia-smi --query-gpu=name,driver_version,vbios_version,memory.total,memory.used,power.limit,power.draw,temperature.gpu,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,pstate,ecc.mode.current --format=csv
    nvidia-smi | sed -n 1,6p
    nvcc --version 2>/dev/null | tail -n 2
    echo "libraries:"
    ldd "$ingot" | grep -E 'cublas|cudnn|dnnl|not found' | sed 's/ (0x.*//'
    local lib
    for lib in $(gpu_library_dirs libcudnn.so.9 libcublasLt.so.13); do ls -l "$lib"/libcudnn.so.9* "$lib"/libcublasLt.so.13* 2>/dev/null | sed 's/.* \//\//'; done
    LD_LIBRARY_PATH=$LIBRARY_PATH_BEFORE python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())' 2>/dev/null
    uname -srm
    nproc
}

# Test programs and scripts of the named directories of tests/, or of all others with '!'.
tests_of() {
    local file dir
    for file in "$bin"/gpu_*_* "$root"/tests/*/gpu_*.sh; do
        [ -x "$file" ] || [[ -f $file && $file == *.sh ]] || continue
        dir=${file##*_}
        [[ $file == *.sh ]] && dir=$(basename "$(dirname "$file")")
        case " $* " in
        *" ! "*) [[ " $* " == *" $dir "* ]] || echo "$file" ;;
        *) [[ " $* " == *" $dir "* ]] && echo "$file" ;;
        esac
    done
}
run_tests() { # run_tests PART DIRS...
    local part=$1 file name
    shift
    for file in $(tests_of "$@"); do
        name=$(basename "$file" .sh)
        if [[ $file == *.sh ]]; then
            step "$part" "$name" 1200 bash "$file" "$ingot"
        else
            step "$part" "$name" 900 "$file"
        fi
    done
}

# What the libraries bring is theirs to check; it also takes hours.
libraries='regex=cublas|cudnn|cutlass|nvjet|xmma|gemvx|splitK'
sanitize() { # sanitize TOOL SECONDS [OP]
    local tool=$1 limit=$2 name=$1${3:+_$3}
    step sanitize "$name" "$limit" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 --kernel-name-exclude "$libraries" \
        "$bin/gpu_ops_ops" --small --exact --no-fork ${3:+--filter "$3"}
    grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$name.log" | tail -n 1
}

bench() { # bench NAME ARGUMENTS...
    local name=$1
    shift
    step bench "bench_$name" 600 "$ingot" bench "$name" "$@"
    tail -n 40 "$out/bench_$name.log"
}

if wanted info; then
    info >"$out/info.log" 2>&1
    cat "$out/info.log"
fi
export OMP_WAIT_POLICY=passive
if ! has_gpu; then
    echo "no GPU here: nvidia-smi lists none" | tee -a "$summary"
    exit 11
fi
wanted ops && run_tests ops ! model train
wanted train && run_tests train model train
if wanted sanitize; then
    if command -v compute-sanitizer >/dev/null; then
        sanitize memcheck 600
        # racecheck cannot follow the library's products ("failed to handle a hardware exception"): our own kernels, op by op
        for op in rmsnorm layernorm bias_bwd rope swiglu quantize fp8 gelu xent sum embed update split_master normal conv ngram top1_correct halt accumulate_tree attn kv_cache_append per_head_gemm; do
            sanitize racecheck 300 "$op"
        done
        sanitize initcheck 600
        sanitize synccheck 600
    else
        echo "sanitize  compute-sanitizer is not installed" | tee -a "$summary"
    fi
fi
if wanted bench; then
    has_bench() { "$ingot" bench --help 2>/dev/null | grep -q "ingot bench $1"; }
    has_bench copy && bench copy --seconds 1
    for name in p2p ops; do
        has_bench $name && bench $name --device cuda
    done
    for name in gemm attention; do
        has_bench $name && bench $name --device cuda --seconds 1
    done
    gib=$(($(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1) / 1024))
    bench train --device cuda --precision bf16 --preset gpt2-124m --batch $((gib >= 60 ? 64 : gib >= 20 ? 16 : 4)) --seq 1024 --steps 20 --breakdown
fi
if wanted peers; then
    step peers bench_gpu 3000 env OUT="$out" INGOT="$ingot" "$root/scripts/bench_gpu.sh"
    grep -A 40 '^shape ' "$out/bench_gpu.log"
fi

echo
echo "== summary ($out)"
cat "$summary"
if [ $failed -eq 0 ]; then echo "nothing failed"; else echo "$failed failed"; fi
exit $((failed > 0))
