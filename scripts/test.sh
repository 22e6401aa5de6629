#!/usr/bin/env bash
# Everything that can be proven without a GPU: install, build with every warning an error (without CUDA, with CUDA where there is a
# toolkit, with sanitizers), tidy, all tests. scripts/test.sh slow adds the long ones.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh build test demo
jobs=$(nproc) tests=$((jobs + 1)) # tests wait for each other's ranks and for deadlines: one more fills the gaps

echo "== build, CPU"
cmake --preset cpu >/dev/null
cmake --build --preset cpu -j "$jobs"
if command -v nvcc >/dev/null; then
    echo "== build, CUDA"
    cmake --preset cuda >/dev/null
    cmake --build --preset cuda -j "$jobs"
else
    echo "== build, CUDA: skipped, there is no nvcc"
fi
echo "== build, address and undefined-behaviour sanitizers"
cmake --preset asan >/dev/null
cmake --build --preset asan -j "$jobs"

echo "== tests under sanitizers"
# Of train.meshes, whose eight ranks at a time take minutes with sanitizers, this has the pairs of axes (train.meshes_mpi) and each axis for itself.
labels=cpu but=(-E '^train\.meshes$')
[ "${1:-}" = slow ] && labels='cpu|slow' but=()
ctest --preset asan -j "$tests" "${but[@]}"
echo "== tests"
if command -v nvcc >/dev/null; then # what only that build has and no GPU is needed for: plans, caches
    ctest --test-dir build/cuda -L cpu -R 'cuda_' --output-on-failure -j "$tests"
fi
ctest --preset cpu -L "$labels" -j "$tests"
