#!/usr/bin/env bash
# FP8 with ZeRO 3: the bits of one rank, on any number of ranks and beside the other axes; over shared memory and Open MPI. Units move codes when all
# their linears read them, else bf16: in warm-ups, beside fp8.exclude, and after a linear has gone back to bf16. What is planned is measured.
. "$(dirname "$0")/../shell.sh"
make_corpus
fp8=(--train.precision=fp8 --fp8.warmup=3 --fp8.monitor=4 --train.micro_batch=1 --train.steps=8 --train.gradient_groups=4
    --model.tied_embeddings=false --optim.warmup_steps=1 --optim.schedule=constant --eval.every=0 --eval.tokens=256 --ckpt.every=0)
ranks() { # ranks NUMBER NAME KEYS...
    run 0 launch -n "$1" -- train r.yaml --run.dir="runs/$2" "${fp8[@]}" "${@:3}"
    planned_is_measured r.yaml "$1" "${fp8[@]}" "${@:3}" --run.dir="runs/$2"
}
moves() { # moves RUN CODES UNITS: so many units have moved codes last
    [ "$(grep -oE 'codes of [0-9]+ of [0-9]+ units' "$1/log.txt" | tail -n 1)" = "codes of $2 of $3 units" ] || fail "$1 does not move codes of $2 of $3 units"
}
run 0 train r.yaml --run.dir=runs/one "${fp8[@]}"
like_one() { # like_one NUMBER NAME KEYS...
    ranks "$1" "$2" --parallel.zero=3 "${@:3}"
    moves "runs/$2" 2 2
    same_run "$2" runs/one "runs/$2"
}
like_one 2 two
like_one 4 four --train.recompute=full
like_one 4 copies --parallel.shard=2 --train.recompute=selective
ranks 2 watched --parallel.zero=3 --eval.every=1
same_state "evaluations" runs/one runs/watched
if command -v mpirun >/dev/null; then
    over_mpi 2 "$ingot" train r.yaml --run.dir=runs/mpi "${fp8[@]}" --parallel.zero=3 || fail "over MPI: exit $?"
    moves runs/mpi 2 2
    same_run "over MPI" runs/one runs/mpi
fi

# Beside the other axes: the bits of that axis without ZeRO.
moe=(--model.layers=gqa/moe --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=32 --model.moe_aux=0.01)
like_axis() { # like_axis RANKS NAME "CODES UNITS" KEYS...
    ranks "$1" "$2" "${@:4}"
    ranks $((2 * $1)) "$2.zero" --parallel.zero=3 "${@:4}"
    moves "runs/$2.zero" ${3% *} ${3#* }
    same_run "$2" "runs/$2" "runs/$2.zero"
}
like_axis 2 tensor '2 2' --parallel.tensor=2
like_axis 2 stages '1 1' --parallel.pipeline=2
like_axis 1 experts '2 2' "${moe[@]}"
like_axis 2 shared '2 4' "${moe[@]}" --parallel.expert=2 # of the experts; beside them are too many routers and norms, in so small a block

# A checkpoint of one mesh goes on on another, before the switch and after it. A weight that was excluded before measures first: its block moves bf16,
# of which each rank makes the codes of the other weights.
went_on() { # went_on NAME STEP KEYS_BEFORE...
    local dir
    for dir in "$1.a" "$1.b"; do run 0 train r.yaml --run.dir="runs/$dir" "${fp8[@]}" --train.steps="$2" "${@:3}"; done
    run 0 train r.yaml --run.dir="runs/$1.a" --resume "${fp8[@]}" --train.steps=10
    run 0 launch -n 2 -- train r.yaml --run.dir="runs/$1.b" --resume "${fp8[@]}" --train.steps=10 --parallel.zero=3
    moves "runs/$1.b" 2 2
    same_state "$1" "runs/$1.a" "runs/$1.b"
}
went_on before 2
went_on after 5
went_on excluded 5 '--fp8.exclude=layers.1.mlp.down.weight'
grep -q 'codes of 1 of 2 units' runs/excluded.b/log.txt || fail "the block with a weight in bf16 moves codes"
run 0 launch -n 2 -- train runs/after.b/config.yaml --run.dir=runs/after.b --resume --train.steps=12 --parallel.zero=2
run 0 train r.yaml --run.dir=runs/after.a --resume "${fp8[@]}" --train.steps=12
same_state "back to ZeRO 2" runs/after.a runs/after.b

# Many weights in bf16: values move, and each rank makes codes of them.
run 0 train r.yaml --run.dir=runs/half "${fp8[@]}" '--fp8.exclude=*.mlp.*,layers.0.*'
ranks 2 half.zero --parallel.zero=3 '--fp8.exclude=*.mlp.*,layers.0.*'
moves runs/half.zero 0 1
same_run "half in bf16" runs/half runs/half.zero

# Linears that saturate go back to bf16, on all ranks alike.
wild=(--fp8.margin=0 --fp8.monitor=1 --fp8.warmup=1 --train.steps=14 --optim.lr=0.1)
run 0 train r.yaml --run.dir=runs/wild "${fp8[@]}" "${wild[@]}"
grep -q 'its GEMMs are in bf16 from step' runs/wild/log.txt || fail "no linear goes back to bf16"
ranks 2 wild.zero --parallel.zero=3 "${wild[@]}"
grep -E 'codes of [0-9]+ of 2 units' runs/wild.zero/log.txt | tail -n 1 | grep -q 'codes of [01] of' || fail "all units move codes to the end"
same_run "a linear goes back to bf16" runs/wild runs/wild.zero
exit $failed
