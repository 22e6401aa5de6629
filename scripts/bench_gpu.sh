#!/usr/bin/env bash
# Training steps on a GPU, ingot and torch.compile in turn on the same card: bench_gpu.sh [--rounds N] [--steps N] [--modes M,...] [SHAPE...]
# In FP8, beside ingot in bf16 and the peers' FP8: bench_gpu.sh --fp8 [--torchao DIR] [--llmq TRAIN] ...   --dry-run prints the commands.
# Medians, tokens/s, memory and cold start as a table; every run as a line of JSON in OUT/bench_gpu.jsonl (OUT: build/gpu_check).
# INGOT: the program (build/release/ingot, or a pack's). PYTHON: one that has torch (python3). tools/bench_gpu.py has the shapes.
set -eu
. "$(dirname "$0")/gpu_env.sh"
gpu_find
[ -n "$ingot" ] || { echo "bench_gpu.sh: there is no ingot: build it (cmake --preset release), or set INGOT" >&2; exit 2; }
exec "${PYTHON:-python3}" "$root/tools/bench_gpu.py" --ingot "$ingot" --out "${OUT:-$root/build/gpu_check}" "$@"
