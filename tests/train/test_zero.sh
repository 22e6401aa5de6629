#!/usr/bin/env bash
# Ranks that shard one copy of a model's state (ZeRO) train what one rank trains, bit for bit, and go on from each other's checkpoints.
. "$(dirname "$0")/../shell.sh"
make_corpus
cat >zero.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 64, ffn_size: 256, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 1, batch_tokens: 128, steps: 6, precision: fp32, gradient_groups: 4}
optim: {lr: 3e-3, warmup_steps: 2}
eval: {every: 3, tokens: 400}
ckpt: {every: 3}
machine: {threads: 1}
YAML

# told RUN: what its steps and evaluations said, without times and memory
told() { grep '"kind":"step"' "$1/metrics.jsonl" | grep -oE '"(step|tokens|loss|mtp_loss|lr|grad_norm|grad_norm_clipped|val_loss|val_accuracy|aux_loss|load_max|load_min)":[-+.eE0-9]+'; }
same() { # same NAME A B: equal losses and equal weights and moments
    [ "$(told "$2" | wc -l)" -ge 30 ] || fail "$1: $2 says too little"
    [ "$(told "$2")" = "$(told "$3")" ] || { fail "$1: losses differ"; diff <(told "$2") <(told "$3") | head -n 4; }
    same_state "$1" "$2" "$3"
}
zero() { # zero NAME RANKS STAGE ARGS...: into runs/NAME-RANKS-STAGE
    local name=$1 ranks=$2 stage=$3
    shift 3
    run 0 launch -n "$ranks" -- train zero.yaml --run.dir="runs/$name-$ranks-$stage" --parallel.zero="$stage" "$@"
}
shapes=("2 1" "4 1" "2 2" "4 2" "2 3" "4 3")
variant() { # variant NAME KEYS...
    local name=$1
    shift
    run 0 train zero.yaml --run.dir="runs/$name" "$@"
    for shape in "${shapes[@]}"; do
        zero "$name" $shape "$@"
        same "$name on ${shape% *} ranks with ZeRO ${shape#* }" "runs/$name" "runs/$name-${shape/ /-}"
    done
}
variant llama --model.tied_embeddings=false --data.packing=documents
variant gpt2 --train.precision=bf16 --optim.state=bf16 --model.tied_embeddings=true --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true --train.recompute=full
variant qwen --train.precision=bf16 --optim.name=lion --optim.lr=1e-3 --model.qk_norm=true --model.head_count_kv=1 --train.clip=0.5 --train.z_loss=1e-4
# Decay rates, step sizes, skips and the biases of routers are read in fp32, of which ranks hold parts: whole copies go round. A router moves on
# the rank that has its biases, by the loads of all.
experts="--model.layers=swa/moe,gqa/moe --model.window=16 --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=24 --model.moe_router=sigmoid --model.moe_balance_rate=0.01 --model.moe_aux=1e-3"
for hybrid in "--model.layers=gdn,gqa --model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=8 --model.gdn_value_dim=8" \
    "--model.layers=mamba2,gqa --model.mamba_heads=4 --model.mamba_head_dim=16 --model.mamba_state=8" \
    "$experts"; do
    mixer=${hybrid#*layers=}
    mixer=${mixer%%[,/]*}
    # shellcheck disable=SC2086 # several keys
    run 0 train zero.yaml --run.dir="runs/$mixer" --train.precision=bf16 $hybrid
    for stage in 1 3; do
        # shellcheck disable=SC2086
        zero "$mixer" 4 $stage --train.precision=bf16 $hybrid
        [ "$mixer" != swa ] || grep -q '"load_max":[1-7]' runs/swa-4-$stage/metrics.jsonl || fail "no loads"
        same "$mixer on 4 ranks with ZeRO $stage" "runs/$mixer" "runs/$mixer-4-$stage"
    done
done
shapes=("4 1" "2 2" "4 3")
# Biases of routers have a master then, too: where blocks read them.
# shellcheck disable=SC2086
variant masterless --train.precision=bf16 --optim.master=none --optim.state=bf16 $experts
# Muon's matrices lie across parts: they come together for their steps, and go back.
variant muon --optim.name=muon --model.tied_embeddings=false
muon=(--optim.name=muon --train.precision=bf16 --model.layers=gqa/moe,gdn/mlp --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=96
    --model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=16 --model.gdn_value_dim=16)
run 0 train zero.yaml --run.dir=runs/muons "${muon[@]}" --optim.state=int8
zero muons 4 1 "${muon[@]}" --optim.state=int8
same "muon of experts, with momentum in 8 bits" runs/muons runs/muons-4-1
zero muons 4 3 "${muon[@]}" --optim.state=int8 --parallel.shard=2
same "muon in two copies with ZeRO 3" runs/muons runs/muons-4-3
zero muon-stages 4 1 --optim.name=muon --model.tied_embeddings=false --parallel.pipeline=2
same "muon on two stages of two ranks" runs/muon runs/muon-stages-4-1
rm -r runs/muon-4-3/ckpt/step-00000006
run 0 launch -n 2 -- train zero.yaml --run.dir=runs/muon-4-3 --optim.name=muon --model.tied_embeddings=false --parallel.zero=1 --resume
same_state "muon goes on with fewer ranks and less sharded" runs/muon runs/muon-4-3
# Extra predictions read the embedding again at the end, and add to its gradient.
variant mtp --model.mtp_depth=2 --model.tied_embeddings=false --data.packing=documents
run 0 train zero.yaml --run.dir=runs/tied-mtp --model.mtp_depth=1 --train.precision=bf16 --train.recompute=full
for stage in 2 3; do
    zero tied-mtp 4 $stage --model.mtp_depth=1 --train.precision=bf16 --train.recompute=full
    same "an extra prediction with a tied table and ZeRO $stage" runs/tied-mtp runs/tied-mtp-4-$stage
done
# Tables move row by row, and no part ends within a row: also where rows are no power of two.
variant engram --model.engram_layers=1 --model.engram_dim=48 --model.engram_base=500 --model.engram_heads=2 --model.tied_embeddings=false
engram=(--model.engram_layers=0-1 --model.engram_dim=16 --model.engram_base=700 --model.engram_heads=4 --model.engram_ngram=2 --train.precision=bf16 --optim.state=bf16)
run 0 train zero.yaml --run.dir=runs/tables "${engram[@]}"
zero tables 4 3 "${engram[@]}" --parallel.shard=2
same "tables in bf16 in two copies" runs/tables runs/tables-4-3
zero int8 4 1 --optim.state=int8
run 0 train zero.yaml --run.dir=runs/int8 --optim.state=int8
same "moments in 8 bits" runs/int8 runs/int8-4-1

# Two copies, each sharded over two ranks.
for stage in 1 2 3; do
    zero hsdp 4 $stage --parallel.shard=2 --model.tied_embeddings=false --data.packing=documents
    same "two copies with ZeRO $stage" runs/llama runs/hsdp-4-$stage
done

# What inspect shows of a rank is what it reads: where its row begins, an id beyond the vocabulary ends that rank, and no other.
for place in "1 1" "2 1" "1 2" "2 3"; do
    rank=${place% *} keys="--parallel.zero=${place#* } --parallel.shard=2 --train.steps=2 --eval.every=0"
    rm -rf bad runs/bad
    cp -r data bad
    # shellcheck disable=SC2086 # several keys
    run 0 data inspect zero.yaml --step 1 --rank "$rank" --ranks 4 $keys --json
    [ "$(grep -c '"sample"' out)" -eq 1 ] || fail "rank $rank has not one sequence"
    at=$(grep -m 1 '"shard_token"' out | tr -dc 0-9)
    printf '\377\377' | dd of=bad/c_train_000000.bin bs=1 seek=$((1024 + 2 * (${at:-0} + 9))) conv=notrunc 2>dd.err
    # shellcheck disable=SC2086
    run 3 launch -n 4 -- train zero.yaml --run.dir=runs/bad "--data.train=bad/c_train_*.bin" --data.verify=off $keys
    grep -q "^error: rank $rank ended with exit code 3" err || fail "rank $rank with $keys did not read what inspect says"
done

# Several micro-batches of a group: the sums of the same ranks without ZeRO; one of each rank needs no groups.
run 0 launch -n 2 -- train zero.yaml --run.dir=runs/plain --train.gradient_groups=0
zero plain 2 1 --train.gradient_groups=0
same "accumulation with ZeRO 1" runs/plain runs/plain-2-1
zero one 4 3 --train.gradient_groups=0 --model.tied_embeddings=false --data.packing=documents
same "a micro-batch of each rank" runs/llama runs/one-4-3

# Numbers of micro-batches that are no power of two: three of each of four ranks, six of each of two, all twelve of one.
run 0 train zero.yaml --run.dir=runs/twelve --train.batch_tokens=384 --train.gradient_groups=12
for shape in "4 2" "2 3"; do
    zero twelve $shape --train.batch_tokens=384 --train.gradient_groups=0
    same "twelve micro-batches on ${shape% *} ranks" runs/twelve "runs/twelve-${shape/ /-}"
done
zero twelve-stages 4 2 --train.batch_tokens=384 --train.gradient_groups=0 --parallel.pipeline=2 --model.tied_embeddings=false
run 0 train zero.yaml --run.dir=runs/twelve-untied --train.batch_tokens=384 --train.gradient_groups=12 --model.tied_embeddings=false
same "twelve micro-batches on two stages" runs/twelve-untied runs/twelve-stages-4-2

# Together with slices of layers, and with stages: the run of the same mesh without ZeRO, bit for bit, and its checkpoints.
composed() { # composed NAME KEYS...
    local name=$1
    shift
    run 0 launch -n 4 -- train zero.yaml --run.dir="runs/$name-plain" "$@"
    zero "$name" 4 1 "$@"
    same "$name with ZeRO 1" "runs/$name-plain" "runs/$name-4-1"
}
composed tensor --parallel.tensor=2 --train.gradient_groups=2
composed tensor-bf16 --parallel.tensor=2 --train.precision=bf16 --optim.state=bf16
composed tensor-masterless --parallel.tensor=2 --train.precision=bf16 --optim.master=none
composed pipeline --parallel.pipeline=2 --model.tied_embeddings=false --data.packing=documents
same "two stages of two ranks with ZeRO 1" runs/llama runs/pipeline-4-1
rm -r runs/tensor-4-1/ckpt/step-00000006
run 0 launch -n 4 -- train zero.yaml --run.dir=runs/tensor-4-1 --parallel.tensor=2 --train.gradient_groups=2 --resume
same_state "slices go on without ZeRO" runs/tensor-plain runs/tensor-4-1

# A tensor that came together from slices is the tensor: weights that no step moves are one rank's, and a model that slices are cut from
# has one rank's loss.
run 0 train zero.yaml --run.dir=runs/still --optim.lr=1e-30
zero still 4 1 --parallel.tensor=2 --train.gradient_groups=2 --optim.lr=1e-30
"$ingot" ckpt diff runs/still runs/still-4-1 >out
grep -q 'master/' out && fail "slices are not put together: $(grep -m1 master/ out)"
tail -n 1 out | grep -qE '^[1-9][0-9]* tensors equal' || fail "slices: $(tail -n 1 out)"
cp -r runs/llama runs/cut
run 0 launch -n 2 -- train zero.yaml --run.dir=runs/cut --parallel.tensor=2 --model.tied_embeddings=false --data.packing=documents --resume
grep -ho '"val_loss":[0-9.]*' runs/llama/metrics.jsonl runs/cut/metrics.jsonl | tail -n 1 | cut -d: -f2 >got
grep -ho '"val_loss":[0-9.]*' runs/llama/metrics.jsonl | tail -n 1 | cut -d: -f2 >want
paste got want | awk '{ d = $1 / $2 - 1; exit !(d < 1e-6 && d > -1e-6 && $1 != $2) }' || fail "slices of a checkpoint: loss $(cat got), not $(cat want)"

# Ranks read the chunks that hold their parts: of rows and of columns, of tensors of several chunks, all of it is back where it was.
big=(--model.vocab_size=6144 --model.hidden_size=128 --model.ffn_size=4096 --parallel.tensor=2 --train.gradient_groups=2)
zero big 4 1 "${big[@]}"
grep -q '"crc32c": \["[0-9a-f]*", "' runs/big-4-1/ckpt/step-00000003/manifest.json || fail "no tensor has two chunks"
cp -r runs/big-4-1 runs/again
rm -r runs/again/ckpt/step-00000006
run 0 launch -n 4 -- train zero.yaml --run.dir=runs/again "${big[@]}" --parallel.zero=1 --resume
same_state "parts of large tensors" runs/big-4-1 runs/again

# What is sharded is not there: bytes of the optimizer, gradients and weights of a rank, by stage.
bytes() { grep "\"planned_bytes.$2\"" "runs/$1/metrics.jsonl" | grep -oE '"value":[-+.e0-9]+' | tail -n 1 | cut -d: -f2; }
less() { # less A B WHAT: run A holds less than B (by how much: plan.zero; here padding and what is under way are as large as a part)
    awk -v a="$(bytes "$1" "$3")" -v b="$(bytes "$2" "$3")" 'BEGIN { exit !(a > 0 && a < 0.95 * b) }' ||
        fail "$3: $(bytes "$1" "$3") bytes in $1, $(bytes "$2" "$3") in $2"
}
less llama-4-1 llama optimizer
zero deep 4 1 --model.layer_count=8 --train.steps=2
zero deep 4 3 --model.layer_count=8 --train.steps=2
less deep-4-3 deep-4-1 gradients # but for two of its layers
half=(--train.precision=bf16 --model.hidden_size=128 --model.ffn_size=1024 --train.steps=2)
run 0 train zero.yaml --run.dir=runs/half "${half[@]}"
zero half 2 1 "${half[@]}"
less half-2-1 half parameters # units that are large beside their padding: 3 bytes of 4, of each parameter

# From any mesh to any other.
go_on() { # go_on RANKS STAGE: the run in runs/moved, without its last checkpoint
    rm -r runs/moved/ckpt/step-00000006
    run 0 launch -n "$1" -- train zero.yaml --run.dir=runs/moved --parallel.zero="$2" --model.tied_embeddings=false --data.packing=documents --resume
    same_state "goes on with $1 ranks and ZeRO $2" runs/llama runs/moved
}
run 0 launch -n 4 -- train zero.yaml --run.dir=runs/moved --parallel.zero=3 --model.tied_embeddings=false --data.packing=documents
go_on 1 0
go_on 2 1
go_on 4 2
go_on 2 3

# Data that one rank finds damaged are damaged for all: they go on from the checkpoint before.
cp -r runs/llama runs/damaged
state=$(ls runs/damaged/ckpt/step-00000006/state-*)
printf 'damage' | dd of="$state" bs=1 seek=$(($(stat -c %s "$state") * 9 / 10)) conv=notrunc 2>dd.err
run 0 launch -n 2 -- train zero.yaml --run.dir=runs/damaged --parallel.zero=1 --model.tied_embeddings=false --data.packing=documents --resume
grep -q 'skipping checkpoint 6' err || fail "the damage is not said"
same_state "from before the damage" runs/llama runs/damaged

# What is not finite ends all ranks alike, and is not saved.
run 6 launch -n 2 -- train zero.yaml --run.dir=runs/burst --parallel.zero=3 --optim.lr=100 --train.clip=0 --optim.warmup_steps=0 --train.steps=60
[ "$(grep -c '^error:' err)" -eq 2 ] || fail "not one line of error, and the launcher's: $(grep -c '^error:' err)"

# The disk fills up while rank 0 fetches and writes: one line, all ranks end, and what is there is sound.
hit=0
for k in $(seq 40 12 160) $(seq 46 12 160); do # the second row only if threads took their calls in another order, and the first met too few
    [ "$k" -ne 46 ] || [ $hit -lt 3 ] || break
    rm -rf runs/full
    INGOT_IO_FAULT=$k:ENOSPC "$ingot" launch -n 2 -- train zero.yaml --run.dir=runs/full --parallel.zero=3 >out 2>err
    code=$?
    [ $code -eq 0 ] && continue
    [ $code -eq 74 ] || fail "fault $k exits with $code"
    [ "$(grep -c '^error:' err)" -eq 2 ] || fail "fault $k: not one line of error and the launcher's"
    grep -q '^error: rank 0 ended with exit code 74' err || fail "fault $k: the launcher does not say who"
    grep -q "No space left" err && hit=$((hit + 1))
    all_sound "fault $k" runs/full
done
[ $hit -ge 3 ] || fail "only $hit faults hit something"

refused() { # refused TEXT ARGS...
    local text=$1
    shift
    run 2 launch -n 2 -- train zero.yaml --run.dir=runs/none "$@"
    grep '^error:' err | head -n 1 | grep -qF -- "$text" || fail "$*: the error does not say '$text'"
}
refused "set train.gradient_groups to their number, 4" --parallel.zero=2 --train.gradient_groups=2
refused "(2) times a power of two" --parallel.zero=1 --train.batch_tokens=384 --train.gradient_groups=12
refused "does nothing without parallel.zero" --parallel.shard=2
refused "has the model to continue it" --parallel.zero=3 --log.sample_prompt=the
[ -e runs/none ] && fail "a refused run left a directory"
exit $failed
