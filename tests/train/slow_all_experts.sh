#!/usr/bin/env bash
# All meshes of up to eight ranks with 2 or 4 ranks that shard the experts, with 1, 2 or 4 that share each sequence, every stage of ZeRO, schedules
# of both families and two copies of the state; also of models that test_experts.sh does not have. One in $stride of them, from number $from on, if
# these are set.
. "$(dirname "$0")/experts.sh"
number=0
one() { # one CP experts' WORDS...: unless another part of the meshes has it
    number=$((number + 1))
    [ $((number % ${stride:-1})) -eq $((${from:-0} % ${stride:-1})) ] || return 0
    cp=$1 experts "${@:2}"
}
for model in ${models:-moe deepseek capped muon modules cycles latent}; do
    reference $model
    for ep in 2 4; do for dp in 1 2 4 8; do for cp in 1 2 4; do for tp in 1 2 4; do for pp in 1 2 4; do
        all=$((dp * cp))
        [ $pp -eq 1 ] || [ $model != cycles ] || continue # which is refused
        [ $((all * tp * pp)) -le 8 ] && [ $((all % ep)) -eq 0 ] || continue
        for zero in 0 1 2 3; do
            [ $zero -lt 2 ] || [ $model != cycles ] || continue # several segments
            one $cp $model $ep $dp $tp $pp $zero
            [ $pp -eq 1 ] || one $cp $model $ep $dp $tp $pp $zero --parallel.schedule=zb_h1
            [ $zero -eq 0 ] || [ $all -eq $ep ] || one $cp $model $ep $dp $tp $pp $zero --parallel.shard=$ep
        done
    done; done; done; done; done
done
exit $failed
