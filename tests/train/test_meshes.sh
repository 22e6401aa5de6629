#!/usr/bin/env bash
# Every pair of sizes along two axes of a mesh, every ZeRO stage and every schedule at least once; slow_all_meshes.sh has all of them.
. "$(dirname "$0")/meshes.sh"
for model in llama gpt2 qwen3 moe engram rows mtp mla mamba newton; do reference $model; done
mesh llama 4 1 2 3
mesh llama 2 2 2 0
mesh llama 2 2 2 2 --parallel.schedule=interleaved --parallel.chunks=2
mesh llama 1 4 2 0 --parallel.schedule=gpipe
mesh gpt2 2 1 4 1
mesh gpt2 2 1 2 3
mesh gpt2 2 1 2 3 --parallel.schedule=zb_h1
mesh gpt2 2 4 1 3
mesh gpt2 4 1 1 3
mesh gpt2 1 2 4 0 --parallel.schedule=zb_h1
mesh qwen3 2 2 1 0
mesh qwen3 2 2 1 3
mesh qwen3 4 1 1 2
mesh qwen3 2 1 2 1 --parallel.schedule=zb_h1
mesh moe 2 2 2 0
mesh moe 2 2 2 3
mesh engram 2 2 2 0
mesh engram 2 2 2 3
mesh rows 2 2 2 0
mesh rows 2 2 2 3
mesh rows 4 1 1 1
mesh rows 2 1 2 2 --parallel.schedule=zb_h1
mesh mtp 2 4 1 0
mesh mtp 2 4 1 3
# Modules on the last stage, which has the table they read, too.
mesh mtp 2 1 2 0
mesh mtp 1 1 4 0 --parallel.schedule=zb_h1
mesh mtp 2 1 2 3 --parallel.schedule=zb_h1
mesh mtp 2 1 2 2 --parallel.schedule=interleaved --parallel.chunks=2
mesh mtp 2 2 2 0
mesh mtp 2 2 2 1
# Chunks of a pipeline beside sequence parallelism, and Muon, whose matrices are dealt to slices and shards.
mesh newton 1 2 2 0 --parallel.schedule=interleaved --parallel.chunks=2
mesh newton 2 2 2 0 --parallel.schedule=interleaved --parallel.chunks=2
mesh newton 2 2 2 3 --parallel.schedule=interleaved --parallel.chunks=2
mesh newton 2 1 4 1 --parallel.schedule=zb_h1
mesh mla 2 2 2 0
mesh mla 2 2 2 2
mesh mamba 1 4 2 0
mesh mamba 2 4 1 3
mesh qwen3 2 1 4 2 --parallel.schedule=zb_h1
mesh llama 2 2 2 3 --parallel.schedule=zb_h1
moved llama "4 1 1 3" "1 1 4 0" "2 1 2 2" "1 1 1 0"
moved qwen3 "1 4 1 0" "4 1 1 2" "2 2 2 1" "2 1 1 0"
moved moe "2 4 1 3" "1 1 2 0" "1 2 1 0" "2 1 1 1"
moved engram "1 2 2 0" "4 1 1 3" "2 4 1 1" "1 1 1 0"
moved rows "1 2 2 0" "4 1 1 3" "2 1 2 2" "1 1 1 0"
moved mtp "2 2 1 2" "1 1 1 0" "1 4 1 0" "4 1 1 1"
moved mtp "2 1 2 1" "1 1 1 0" "1 2 2 0" "2 1 2 3"
moved mla "1 2 2 0" "2 1 1 3" "2 4 1 2" "1 1 2 0"
moved mamba "2 2 1 1" "1 1 1 0" "1 4 2 0" "2 1 1 2"
exit $failed
