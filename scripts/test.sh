#!/usr/bin/env bash
# Proves what can be proven without a GPU.
#
#   scripts/test.sh        the inner loop: installs, builds with every warning an error (device code for one architecture, where there is
#                          nvcc), then tidy rules, unit tests, runs, and the golden set. Minutes; two after a small change (ccache).
#   scripts/test.sh full   all of that; device code for all architectures, address and undefined-behaviour sanitizers, the program for
#                          64-bit ARM under qemu, and the long tests: meshes, kills, launchers. What CI runs.
#                          Its minutes: CONTRIBUTING.md.
#   scripts/test.sh slow   full, and the tests with label slow: every mesh of up to eight ranks, hours of kills.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-plain}
case $mode in
plain | full | slow) ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2 && exit 2 ;;
esac
jobs=$(nproc) tests=$((jobs + 1)) # tests wait for each other's ranks and for deadlines: one more fills the gaps
begin=$SECONDS
step() { printf '== %s (%d s)\n' "$1" $((SECONDS - begin)); }

# beside FUNCTION: runs it beside what follows, until `joined`, at the lowest priority: it has the cores while tests wait. Its output is in
# build/FUNCTION.log, and is printed where it fails.
aside='' aside_name=''
beside() {
    aside_name=$1
    mkdir -p build
    step "$1: beside what follows, build/$1.log"
    set -m # a process group of its own
    (
        set -e
        renice -n 19 "$BASHPID" >/dev/null
        "$1"
    ) >"build/$1.log" 2>&1 </dev/null &
    aside=$!
    set +m
}
joined() {
    local code=0
    wait "$aside" || code=$?
    aside=''
    [ $code -eq 0 ] || { cat "build/$aside_name.log" && echo "test.sh: $aside_name failed" && exit 1; } >&2
    step "$aside_name: done"
}
trap '[ -z "$aside" ] || kill -- "-$aside" 2>/dev/null || true' EXIT

parts=(build test demo)
[ "$mode" = plain ] || parts+=(bench)
[ "$mode" = plain ] || [ "$(uname -m)" != x86_64 ] || parts+=(arm) # on ARM all other tests run there
scripts/install.sh "${parts[@]}"
step "build, CPU"
cmake --preset cpu >/dev/null
cmake --build --preset cpu -j "$jobs"
if [ "$mode" = plain ]; then
    if command -v nvcc >/dev/null; then
        step "build, CUDA, one architecture"
        cmake --preset cuda -B build/cuda90 -DINGOT_CUDA_ARCHS=90a-real >/dev/null
        cmake --build build/cuda90 -j "$jobs" --target ingot
    else
        step "build, CUDA: skipped, there is no nvcc"
    fi
    step "tests"
    ctest --preset cpu -L cpu -LE long -j "$tests"
    step "done; scripts/test.sh full adds sanitizers, all architectures and the long tests"
    exit 0
fi

asan() {
    cmake --preset asan
    cmake --build --preset asan -j "$jobs"
}
other_targets() {
    if command -v nvcc >/dev/null; then
        cmake --preset cuda-check
        # The other tests are the objects of the build without CUDA: to link two hundred of them again proves nothing.
        cmake --build --preset cuda-check -j "$jobs"
        # What the other architectures cannot compile is found without optimisation, sooner. release.sh builds all with it.
        cmake --preset cuda-archs
        cmake --build --preset cuda-archs -j "$jobs"
        # What only that build has and no GPU is needed for: plans, caches.
        ctest --test-dir build/cuda-check -L cpu -R 'cuda_' --output-on-failure -j "$tests"
    fi
    [ "$(uname -m)" = x86_64 ] || return 0
    cmake --preset arm64
    cmake --build --preset arm64 -j "$jobs" --target ingot test_fast_ops test_fp8_ops test_hash_base test_utf8_base test_json_scan_base test_nfc_data
    bash tests/arm64/emulated.sh build/cpu/ingot build/arm64
}
command -v nvcc >/dev/null || step "build, CUDA: skipped, there is no nvcc"
beside asan
step "tests"
labels=cpu
[ "$mode" = full ] || labels='cpu|slow'
ctest --preset cpu -L "$labels" -j "$tests"
joined

beside other_targets
step "tests under sanitizers"
# Left out here, in `full`, because they take minutes with sanitizers; what they call is tested under them by:
#   train.meshes              train.meshes_mpi, which has the pairs of axes, and each axis for itself
#   train.context, .experts   model.context, model.experts, train.experts_mpi, train.expert_kills (`slow` has both)
#   cli.demo                  the tests of what it calls
#   plan.published            plan.plan, plan.mesh_plan, plan.mesh_axes, plan.machine, cli.plan
# The golden set is bits of the optimised build.
but='^golden\.|^train\.(meshes|context|experts)$|^cli\.demo$|^plan\.published$'
[ "$mode" = full ] || but='^golden\.'
ctest --preset asan -j "$tests" -E "$but"
joined
step "done"
