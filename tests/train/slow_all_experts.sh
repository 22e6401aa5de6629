#!/usr/bin/env bash
# All meshes of up to eight ranks with 2 or 4 ranks that share out the experts, with ZeRO 0 and 1, schedules of both families and two copies of the
# state; also of models that test_experts.sh does not have.
. "$(dirname "$0")/experts.sh"
for model in ${models:-moe deepseek capped muon modules latent}; do
    reference $model
    for ep in 2 4; do for dp in 2 4 8; do for tp in 1 2 4; do for pp in 1 2 4; do
        [ $((dp * tp * pp)) -le 8 ] && [ $((dp % ep)) -eq 0 ] || continue
        [ $pp -eq 1 ] || [ $model != modules ] || continue # which is refused
        for zero in 0 1; do
            experts $model $ep $dp $tp $pp $zero
            [ $pp -eq 1 ] || experts $model $ep $dp $tp $pp $zero --parallel.schedule=zb_h1
            [ $zero -eq 0 ] || [ $dp -eq $ep ] || experts $model $ep $dp $tp $pp $zero --parallel.shard=$ep
        done
    done; done; done; done
done
exit $failed
