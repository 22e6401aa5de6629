#!/usr/bin/env bash
# All meshes of up to eight ranks with 1, 2 or 4 along each axis, in every ZeRO stage, with schedules of both families and two copies of the state.
. "$(dirname "$0")/meshes.sh"
for model in ${models:-llama gpt2 qwen3 moe engram rows mtp mla mamba}; do
    reference $model
    for dp in 1 2 4; do for tp in 1 2 4; do for pp in 1 2 4; do
        ranks=$((dp * tp * pp))
        [ $ranks -gt 1 ] && [ $ranks -le 8 ] || continue
        for zero in 0 1 2 3; do
            [ $zero -eq 0 ] || [ $dp -gt 1 ] || continue
            mesh $model $dp $tp $pp $zero
            [ $pp -eq 1 ] || mesh $model $dp $tp $pp $zero --parallel.schedule=zb_h1
            [ $zero -eq 0 ] || [ $dp -lt 4 ] || mesh $model $dp $tp $pp $zero --parallel.shard=2
        done
    done; done; done
done
exit $failed
