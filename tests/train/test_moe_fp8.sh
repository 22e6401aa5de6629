#!/usr/bin/env bash
# A mixture of experts in FP8: its matrices switch to codes and it learns as in bf16; the same bits on one rank and on several, with any
# recompute policy and ZeRO stage, and after a resume on both sides of the switch; what is planned is measured; what is refused.
. "$(dirname "$0")/../shell.sh"
make_corpus
moe=(--model.layers=gqa/moe --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=32 --model.moe_aux=0.01
    --train.steps=8 --train.micro_batch=1 --train.gradient_groups=4 --optim.warmup_steps=1 --eval.every=0 --eval.tokens=256 --ckpt.every=0)
bf16=("${moe[@]}" --train.precision=bf16)
moe+=(--train.precision=fp8 --fp8.warmup=3 --fp8.monitor=4)
at_work() { # at_work RUN COUNT: so many matrices have read codes: of each layer attention's two, the shared expert's two, the experts' two
    grep -qE "fp8 +from step 4 on GEMMs of $2 of $2 linears read FP8 codes" "$1/log.txt" || fail "$1: not $2 linears switch"
}
mean_loss() { grep -oE '"loss":[0-9.]+' "$1/metrics.jsonl" | tail -n 5 | cut -d: -f2 | awk '{ s += $1 } END { print s / NR }'; }

run 0 train r.yaml --run.dir=runs/one "${moe[@]}"
at_work runs/one 12
check "planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/one/log.txt
planned_is_measured r.yaml 1 "${moe[@]}" --parallel.zero=0 --run.dir=runs/one
[ "$(losses runs/one | grep -cE '"fp8_saturated":0,"fp8_headroom_x":[0-9.]+,"fp8_headroom_dy":[0-9.]+')" -eq 2 ] || fail "metrics of the monitor"

variant() { # variant NAME RANKS KEYS...
    local name=$1 ranks=$2
    shift 2
    run 0 launch -n "$ranks" -- train r.yaml --run.dir="runs/$name" "${moe[@]}" "$@"
    at_work "runs/$name" 12
    same_run "$name" runs/one "runs/$name"
}
variant two 2
variant zero2 2 --parallel.zero=2
variant full 1 --train.recompute=full

# Ranks that shard the experts have one scale for all of them; they differ from one rank as in bf16, in roundoff.
run 0 launch -n 2 -- train r.yaml --run.dir=runs/experts "${moe[@]}" --parallel.expert=2
at_work runs/experts 12
paste <(losses runs/one | grep -oE '"loss":[^,]*') <(losses runs/experts | grep -oE '"loss":[^,]*') | tr -d '"los:' |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 2e-2)) bad = 1 } END { exit bad || NR != 8 }' || fail "shared experts change the loss"

# Interrupted before the switch, and after it.
for at in 2 6; do
    run 0 train r.yaml --run.dir=runs/halted$at "${moe[@]}" --train.steps=$at --optim.schedule=constant
    [ $at -eq 2 ] && run 0 train r.yaml --run.dir=runs/whole "${moe[@]}" --optim.schedule=constant
    run 0 train r.yaml --run.dir=runs/halted$at --resume "${moe[@]}" --optim.schedule=constant
    same_state "resumed at step $at" runs/whole runs/halted$at
done

# What happens between steps leaves no trace in them; afterwards the weights are read in bf16.
run 0 train r.yaml --run.dir=runs/watched "${moe[@]}" --eval.every=2 --log.sample_prompt=the --log.sample_tokens=8
grep -q '"kind":"sample"' runs/watched/metrics.jsonl || fail "there is no sample"
same_state "evaluations and samples" runs/one runs/watched
run 0 generate runs/one --prompt the --tokens 5

# What stays in bf16 where it is asked to; each changes the bits, so that it does something.
run 0 train r.yaml --run.dir=runs/kept "${moe[@]}" '--fp8.exclude=*.experts.*'
at_work runs/kept 8
run 0 train r.yaml --run.dir=runs/half "${moe[@]}" --fp8.wgrad=bf16
at_work runs/half 12
[ "$(losses runs/one)" != "$(losses runs/kept)" ] || fail "fp8.exclude of the experts does nothing"
[ "$(losses runs/half)" != "$(losses runs/one)" ] || fail "fp8.wgrad does nothing"

# It learns as in bf16.
run 0 train r.yaml --run.dir=runs/learns "${moe[@]}" --train.steps=30
run 0 train r.yaml --run.dir=runs/plain "${bf16[@]}" --train.steps=30
check "it learns as in bf16: $(mean_loss runs/learns) and $(mean_loss runs/plain)" awk -v a="$(mean_loss runs/learns)" \
    -v b="$(mean_loss runs/plain)" 'BEGIN { d = a / b - 1; exit !(a > 0 && d < 0.02 && d > -0.02) }'

run 2 train r.yaml "${moe[@]}" --model.moe_size=24 --run.dir=runs/none
says "layers.0.moe.experts.down.weight is 256 x 24; FP8 GEMMs need multiples of 16"
[ -e runs/none ] && fail "a refused run left a directory"
exit $failed
