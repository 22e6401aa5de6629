#!/usr/bin/env bash
# Fuzzes with libFuzzer under ASan and UBSan: fuzz.sh [SECONDS | Nx] [TARGET...]
#   fuzz.sh 600                       every target of tests/fuzz, 600 seconds each (default: 60)
#   fuzz.sh 10000000x snappy thrift   these two until each has run ten million inputs
# Builds the fuzz preset (or takes FUZZ_BUILD=DIR as it is), runs as many targets at once as there are cores (JOBS=N: as N), and when there are more
# cores than targets, several processes of each on one corpus. New inputs stay in fuzz-out/TARGET/corpus and are used by the next run; findings
# in fuzz-out/TARGET/. Prints the executions of each target; exits 1 when there is a finding.
# The preset does not trace comparisons: UBSan's own would be most of them, at half of the speed; seeds hold the magic numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=60 build=${FUZZ_BUILD:-}
if [[ ${1:-} =~ ^[0-9]+x?$ ]]; then limit=$1 && shift; fi
if [ -z "$build" ]; then
    build=build/fuzz
    [ -f $build/build.ninja ] || cmake --preset fuzz >/dev/null
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in tests/fuzz/fuzz_*.c; do name=${file##*/fuzz_} && targets+=("${name%.c}"); done
fi
for target in "${targets[@]}"; do
    [ -f "tests/fuzz/fuzz_$target.c" ] || { echo "fuzz.sh: there is no tests/fuzz/fuzz_$target.c" >&2 && exit 2; }
done
[ -n "${FUZZ_BUILD:-}" ] || ninja -C $build "${targets[@]/#/fuzz_}"
jobs=${JOBS:-$(nproc)}
each=$((jobs / ${#targets[@]}))
[ $each -ge 1 ] || each=1
export UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1
# What is freed stays unused for 8 MB, more than an execution takes: 256 MB, the default, do not fit in caches. Where a block was allocated is not
# kept: a finding's input tells, run again without ASAN_OPTIONS.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=8:malloc_context_size=1}

# Inputs longer than what a format needs for all that it has cost time alone.
max_len() {
    case $1 in
    jsonl | nfc | split) echo 128 ;;
    corpus_index | tiktoken) echo 256 ;;
    manifest | safetensors | thrift) echo 1024 ;;
    parquet_page) echo 1536 ;;
    build_journal | ckpt_manifest | hf_config | stream | tokenizer_json | yaml) echo 2048 ;;
    *) echo 5120 ;;
    esac
}

# One process of a target: number, and its share of the executions.
fuzz_one() {
    local target=$1 number=$2 dir=fuzz-out/$1 bound=(-max_total_time="$limit")
    [[ $limit != *x ]] || bound=(-runs=$((${limit%x} / each + 1)))
    mkdir -p "$dir/corpus"
    "$build/tests/fuzz_$target" "${bound[@]}" -max_len="$(max_len "$target")" -entropic=0 -timeout=20 -rss_limit_mb=4096 \
        -reload=1 -print_final_stats=1 -artifact_prefix="$dir/" "$dir/corpus" "tests/fuzz/corpus/$target" >"$dir/log-$number" 2>&1 && return 0
    echo "FINDING in $target: $dir/log-$number" && return 1
}
export -f fuzz_one max_len
export build limit each
status=0
for target in "${targets[@]}"; do rm -f fuzz-out/"$target"/log-*; done
for target in "${targets[@]}"; do
    for number in $(seq "$each"); do echo "$target $number"; done
done | xargs -P "$jobs" -L 1 bash -c 'fuzz_one "$0" "$1"' || status=1
for target in "${targets[@]}"; do
    awk -v target="$target" '/number_of_executed_units/ { n += $2 } END { printf "%-18s %12d executions\n", target, n }' fuzz-out/"$target"/log-*
done
[ $status -eq 0 ] && echo "no finding"
exit $status
