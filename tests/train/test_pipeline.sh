#!/usr/bin/env bash
# A run on a pipeline is the run on one rank, bit for bit: schedules, depths, models, recompute policies, evaluation; and it goes on with another depth.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >pipe.yaml <<'YAML'
model: {layer_count: 5, hidden_size: 32, ffn_size: 48, head_count: 2, context_length: 32, tied_embeddings: false}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 1, batch_tokens: 256, steps: 6, precision: fp32}
optim: {lr: 3e-3, warmup_steps: 2}
eval: {every: 3, tokens: 512}
ckpt: {every: 3}
machine: {threads: 1}
YAML

# steps RUN: what its steps and evaluations said, without times and memory
steps() { grep '"kind":"step"' "$1/metrics.jsonl" | grep -oE '"(step|tokens|loss|lr|grad_norm|grad_norm_clipped|val_loss|val_accuracy|aux_loss|load_max|load_min|targets|padding)":[-+.eE0-9]+'; }
same() { # same NAME REFERENCE RUN: equal losses and equal weights
    [ "$(steps "$2" | wc -l)" -ge 40 ] || fail "$1: $2 says too little"
    [ "$(steps "$2")" = "$(steps "$3")" ] || fail "$1: losses differ: $(diff <(steps "$2") <(steps "$3") | head -n 4 | tr '\n' ' ')"
    same_state "$1" "$2" "$3"
}
# on RANKS REFERENCE KEYS...: a run on so many ranks is that of the reference
runs=0
on() {
    local ranks=$1 reference=$2 name
    shift 2
    runs=$((runs + 1))
    name="on$runs"
    run 0 launch -n "$ranks" -- train pipe.yaml --run.dir="runs/$name" "$@"
    [ "$(wc -l <out)" -eq 1 ] || fail "$ranks ranks $* print $(wc -l <out) results"
    grep -q '^pipeline ' err || fail "$ranks ranks $*: nothing says the bubble"
    cat "runs/$name/log.txt" >>said
    same "$ranks ranks $*" "runs/$reference" "runs/$name"
}
reference() {
    local name=$1
    shift
    run 0 train pipe.yaml --run.dir="runs/$name" "$@"
}
pp() { echo "--parallel.pipeline=$1 --parallel.schedule=$2"; }

# Models: every kind of layer, and what lies at the ends.
llama=""
qwen3="--model.qk_norm=true --model.head_count_kv=1 --train.precision=bf16 --train.recompute=selective"
experts="--model.layers=gqa/moe --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=16 --model.moe_balance_rate=0.01"
hybrid="--model.layers=2*gdn,1*gqa --model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=8 --model.gdn_value_dim=8 --train.recompute=full"
reference llama $llama
reference qwen3 $qwen3
reference experts $experts
reference hybrid $hybrid
on 2 llama $(pp 2 1f1b) $llama
on 4 llama $(pp 4 gpipe) $llama
on 2 llama $(pp 2 interleaved) --parallel.chunks=2 $llama
on 4 llama $(pp 4 zb_h1) $llama
on 4 qwen3 $(pp 4 1f1b) $qwen3
on 2 qwen3 $(pp 2 zb_h1) $qwen3
on 2 qwen3 $(pp 2 interleaved) --parallel.chunks=2 $qwen3
on 4 experts $(pp 4 1f1b) $experts
on 2 experts $(pp 2 zb_h1) $experts
on 3 hybrid $(pp 3 zb_h1) $hybrid
on 2 hybrid $(pp 2 gpipe) $hybrid

# A tied table has a copy at both ends: the bits are those of every depth of two or more, and of one rank but for rounding.
gpt2="--model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true --model.tied_embeddings=true"
reference gpt2-one $gpt2
run 0 launch -n 2 -- train pipe.yaml --run.dir=runs/gpt2 $(pp 2 1f1b) $gpt2
on 4 gpt2 $(pp 4 zb_h1) $gpt2
on 2 gpt2 $(pp 2 interleaved) --parallel.chunks=2 $gpt2
on 3 gpt2 $(pp 3 gpipe) $gpt2
paste <(steps runs/gpt2-one | grep '"loss"' | cut -d: -f2) <(steps runs/gpt2 | grep '"loss"' | cut -d: -f2) |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d < 1e-5)) bad = 1 } END { exit bad || NR != 6 }' || fail "a tied table on two ranks changes the loss"

# With data parallelism and groups of gradients: W of one group must not meet BI of the next.
groups="--train.gradient_groups=4 --train.clip=0.5"
reference groups $groups
on 4 groups $(pp 2 zb_h1) $groups
on 8 groups $(pp 4 1f1b) $groups
on 4 groups $(pp 2 interleaved) --parallel.chunks=2 $groups

# With ZeRO-1 and with tensor parallelism; the halves of a tied table are then those of a rank's share.
on 4 groups $(pp 2 1f1b) --parallel.zero=1 $groups
run 0 launch -n 2 -- train pipe.yaml --run.dir=runs/gpt2-groups $(pp 2 1f1b) $gpt2 $groups
on 4 gpt2-groups $(pp 2 zb_h1) --parallel.zero=1 $gpt2 $groups
on 8 gpt2-groups $(pp 4 1f1b) --parallel.zero=1 $gpt2 $groups
run 0 launch -n 2 -- train pipe.yaml --run.dir=runs/tensor --parallel.tensor=2
on 4 tensor $(pp 2 zb_h1) --parallel.tensor=2

# Every optimizer and type of moments: rounding at random and whole matrices do not depend on who holds them.
reference muon --optim.name=muon
reference int8 --optim.state=int8
reference lion --optim.name=lion --optim.state=bf16 --optim.lr=1e-3 --train.precision=bf16
reference masterless --optim.master=none --optim.state=bf16 --train.precision=bf16
on 4 muon $(pp 4 zb_h1) --optim.name=muon
on 2 int8 $(pp 2 1f1b) --optim.state=int8
on 4 lion $(pp 4 1f1b) --optim.name=lion --optim.state=bf16 --optim.lr=1e-3 --train.precision=bf16
on 4 masterless $(pp 4 1f1b) --optim.master=none --optim.state=bf16 --train.precision=bf16

# Eight stages, stages of chosen lengths, a last group of another length.
deep="--model.layer_count=9"
reference deep $deep
on 8 deep $(pp 8 zb_h1) $deep
on 4 deep $(pp 4 1f1b) --parallel.stages=1,4,3,1 $deep
on 3 deep $(pp 3 interleaved) --parallel.chunks=3 $deep

# From one depth to another, at a checkpoint.
run 0 launch -n 2 -- train pipe.yaml --run.dir=runs/moved $(pp 2 1f1b)
rm -r runs/moved/ckpt/step-0000000[456]
run 0 launch -n 4 -- train pipe.yaml --run.dir=runs/moved $(pp 4 zb_h1) --resume
same "two ranks, then four" runs/llama runs/moved
rm -r runs/moved/ckpt/step-0000000[456]
run 0 train pipe.yaml --run.dir=runs/moved --resume
same "four ranks, then one" runs/llama runs/moved

# What was planned is what was reserved; and the bubble is in the metrics.
grep ' memory  *planned ' said | awk '{ if ($5 + 0 != $8 + 0 || $5 + 0 == 0) bad = 1 } END { exit bad || NR < 10 }' || fail "planned and measured bytes differ: $(grep ' memory  *planned ' said | head -n 1)"
grep '"kind":"step"' runs/moved/metrics.jsonl | head -n 3 | grep -q '"bubble":' || fail "metrics do not say the bubble"

# Stages need different memory: of what fits on one and not on the other, both take what fits on both.
uneven="$(pp 2 1f1b) --model.vocab_size=2048 --train.batch_tokens=16384 --train.steps=2 --optim.warmup_steps=1 --eval.every=0 --ckpt.every=0"
run 0 plan pipe.yaml --machine 2xcpu --json $uneven --train.micro_batch=16
between=$(grep '"memory_bytes_sum"' out | awk -F: '{ sum += $2 } END { printf "%.6f", sum / NR / 1073741824 }')
run 0 launch -n 2 -- train pipe.yaml --run.dir=runs/uneven $uneven --train.micro_batch=auto --machine.memory_gib="$between"
grep -q '= 64 x 8 sequences' err || fail "with $between GiB: $(grep '^step ' err)"

# A rank that dies in the middle of a pipeline ends the others, who wait for its messages; one that is asked to stop, stops all after the same step.
signal() { # signal NAME RANK SIGNAL CODE TEXT; rank -1: the launcher
    "$ingot" launch -n 4 -- train pipe.yaml --run.dir="runs/$1" $(pp 4 zb_h1) --train.steps=100000 >out 2>err &
    local launcher=$! victim code
    for _ in $(seq 200); do
        [ "$(steps "runs/$1" 2>/dev/null | wc -l)" -ge 9 ] && break
        sleep 0.05
    done
    victim=$launcher
    for p in $(pgrep -P $launcher); do tr '\0' '\n' <"/proc/$p/environ" | grep -qx "INGOT_RANK=$2" && victim=$p; done
    kill -"$3" "$victim"
    wait $launcher
    code=$?
    [ $code -eq "$4" ] || fail "$1: exit $code, not $4"
    grep -qF -- "$5" err || fail "$1 does not say '$5'"
}
signal killed 2 KILL 10 "rank 2 was ended by signal 9"
signal ended -1 TERM 75 "the same command with --resume resumes it"
run 75 launch -n 2 -- train pipe.yaml --run.dir=runs/ended $(pp 2 1f1b) --train.steps=100000 --train.max_minutes=0.01 --resume

refused() { # refused TEXT RANKS KEYS...
    local text=$1 ranks=$2
    shift 2
    run 2 launch -n "$ranks" -- train pipe.yaml --run.dir=runs/no "$@"
    grep -qF -- "$text" err || fail "$* does not say '$text'"
}
refused "has 6 layers, the model has 5" 2 --parallel.pipeline=2 --parallel.stages=3,3
refused "has fewer numbers than the 2 stages" 2 --parallel.pipeline=2 --parallel.stages=5
refused "has more numbers than the 2 stages" 2 --parallel.pipeline=2 --parallel.stages=2,2,1
refused "number 2 is no number of layers" 2 --parallel.pipeline=2 --parallel.stages=5,x
refused "does nothing without parallel.pipeline" 2 --parallel.stages=5
refused "parallel.schedule does nothing without parallel.pipeline" 2 --parallel.schedule=zb_h1
refused "no more than the 5 layers" 2 --parallel.pipeline=2 $(pp 2 interleaved) --parallel.chunks=3
CUDA_VISIBLE_DEVICES='' run 11 launch -n 2 -- train pipe.yaml --run.dir=runs/no --parallel.pipeline=2 --model.mtp_depth=1 --machine.device=cuda # GPUs could
refused "2 micro-batches for an interleaved pipeline of 4 ranks" 4 $(pp 4 interleaved) --parallel.chunks=2 --model.layer_count=8 --train.micro_batch=4
refused "log.sample_prompt" 2 --parallel.pipeline=2 --log.sample_prompt=the
exit $failed
