# Sourced by test_pairs.sh and slow_all_pairs.sh: every feature of a run with every axis of a mesh, and with every other feature. A pair either trains
# what one rank, or one of the two, trains, and resumes with the same bits; or it is refused, and `refused` below says so with its words.
. "$(dirname "$0")/../shell.sh"
make_corpus
head -n 60 corpus.txt | tr 'a-z' 'A-Z' >other.txt
run 0 data build other.txt --tokenizer tok --separator blank -o data/o
awk '{ printf "{\"p\": \"%s\", \"c\": \"said unto him light\"}\n", $0 }' corpus.txt >asked.jsonl
run 0 data build asked.jsonl --tokenizer tok --prompt p --completion c -o data/m
cat >pairs.yaml <<'YAML'
model: {layer_count: 4, hidden_size: 32, ffn_size: 64, head_count: 4, context_length: 32, vocab_size: 320, tied_embeddings: false}
data: {train: data/c_train_*.bin}
train: {micro_batch: 1, batch_tokens: 256, steps: 8, precision: fp32, gradient_groups: 8}
optim: {lr: 1e-3, warmup_steps: 2}
eval: {every: 0}
ckpt: {every: 4, keep: 30}
log: {alerts: false, host_every: 0}
machine: {threads: 1, device: cpu}
YAML

# feature NAME "MIXERS" "WORDS" KEYS...: MIXERS: of model.layers, to which those of other features are added. WORDS:
#   same      trains what a run without it trains, bit for bit
#   shows     adds lines to the metrics
#   ends      both ends of a pipeline read one table: bits differ from those of one rank
#   inexact   the order of sums is that of the ranks
#   rounds    what is rounded to 16 bits and less lets losses of another order of sums go further apart
declare -A mixers words keys_of ranks_of kind_of axis_keys
features=() axes=()
feature() {
    local name=$1
    features+=("$name")
    mixers[$name]=$2
    words[$name]=$3
    shift 3
    keys_of[$name]=$(printf '%s\n' "$@")
}
# axis NAME RANKS WORDS KEYS...: exact: the bits of one rank; close: its losses within 1e-5. experts: the model has some. pipeline
axis() {
    local name=$1
    axes+=("$name")
    ranks_of[$name]=$2
    kind_of[$name]=$3
    shift 3
    axis_keys[$name]=$*
}
axis data 2 exact
axis zero1 2 exact --parallel.zero=1
axis zero2 2 exact --parallel.zero=2
axis zero3 2 exact --parallel.zero=3
axis hsdp 4 exact --parallel.zero=3 --parallel.shard=2
axis tensor 2 close --parallel.tensor=2
axis context 2 close --parallel.context=2
axis ring 2 close --parallel.context=2 --parallel.context_kind=ring
axis ulysses 2 close --parallel.context=2 --parallel.context_kind=ulysses
axis gpipe 2 "exact pipeline" --parallel.pipeline=2 --parallel.schedule=gpipe
axis 1f1b 2 "exact pipeline" --parallel.pipeline=2
axis interleaved 2 "exact pipeline" --parallel.pipeline=2 --parallel.schedule=interleaved --parallel.chunks=2
axis zb_h1 2 "exact pipeline" --parallel.pipeline=2 --parallel.schedule=zb_h1
axis expert 2 "close experts" --parallel.expert=2
axis dp_pp 4 "exact pipeline" --parallel.pipeline=2 --parallel.zero=1
axis tp_pp 4 "close pipeline" --parallel.tensor=2 --parallel.pipeline=2
axis cp_zero3 4 close --parallel.context=2 --parallel.zero=3
axis ep_zero2 4 "close experts" --parallel.expert=2 --parallel.zero=2
expert_keys="--model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_aux=0.01"

feature none "" same
feature batch_schedule "" "" --train.batch_schedule=64@256,128@768 --train.gradient_groups=2
feature sequence_schedule "" "" --train.sequence_schedule=8@512,16@1024
feature spike_warn "" "same" --train.on_spike=warn --train.spike_window=8 --train.spike_z=1
feature spike_skip "" "" --train.on_spike=skip --train.spike_window=8 --train.spike_z=1 --train.steps=14
feature z_loss "" "" --train.z_loss=1e-2
feature softcap "" "" --model.logit_softcap=0.7
feature mtp "" "ends" --model.mtp_depth=2
feature hrm "" "" --model.hrm_low_layers=2 --model.hrm_cycles=2 --model.hrm_steps=2
feature hrm_segments "" "" --model.hrm_low_layers=1 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2
feature hrm_halt "" "" --model.hrm_low_layers=1 --model.hrm_cycles=1 --model.hrm_segments=3 --model.hrm_halt=true --model.hrm_explore=0.5 --data.packing=documents
feature engram "" "" --model.engram_layers=1-2 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.table_rate=1 --optim.lr=1e-4 --optim.table_gradients=dense
feature engram_rows "" "" --model.engram_layers=0,3 --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.table_rate=1 --optim.lr=1e-4 --optim.table_gradients=sparse
feature engram_fold "" "" --model.engram_layers=1 --model.engram_fold=true --model.engram_heads=2 --model.engram_dim=64 --model.engram_base=100 --optim.table_rate=1 --optim.lr=1e-4
feature gdn gdn,gqa "" --model.gdn_key_heads=4 --model.gdn_value_heads=8 --model.gdn_key_dim=8 --model.gdn_value_dim=8
feature mamba2 mamba2,gqa "" --model.mamba_heads=16 --model.mamba_head_dim=4 --model.mamba_groups=4 --model.mamba_state=8
feature mla mla,gqa "" --model.mla_q_rank=16 --model.mla_kv_rank=16 --model.mla_nope_dim=8 --model.mla_rope_dim=16 --model.mla_value_dim=8
feature swa swa,gqa "" --model.window=7
feature window "" "" --model.window=5 --model.window_layers=0,2-3
feature gqa_groups "" "" --model.head_count_kv=2
feature qk_norm "" "" --model.qk_norm=true --model.head_dim=16
feature gate "" "" --model.attention_gate=true --model.norm_zero_centered=true
feature yarn "" "" --model.rope_scaling=yarn --model.rope_factor=4 --model.rope_original=16 --model.rope_fraction=0.5
feature tied "" "ends" --model.tied_embeddings=true
feature gpt2 "" "" --model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true
feature moe "gqa/moe" "" --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_aux=0.01
feature moe_bias "gqa/mlp,gqa/moe" "" --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_shared_size=16 --model.moe_shared_gate=true --model.moe_router=sigmoid --model.moe_balance_rate=0.01 --model.moe_aux=0 --model.moe_z=1e-3
feature moe_sequence "gqa/moe" "" --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=16 --model.moe_groups=4 --model.moe_groups_kept=2 --model.moe_aux=0.01 --model.moe_aux_kind=sequence
feature moe_capacity "gqa/moe" "" --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --model.moe_capacity=0.8 --model.moe_aux=0.01
feature documents "" "" --data.packing=documents
feature best_fit "" "" --data.packing=best_fit
feature pad "" "" --data.packing=pad
feature masks "" "" --data.train=data/m_train_*.bin --data.packing=best_fit
feature mixture "" "" "--data.train=[{path: data/c_train_*.bin, weights: [[0, 3], [0.5, 1]]}, {path: data/o_train_*.bin, weights: [[0, 1], [0.5, 1]]}]"
feature short "" "" --train.sequence_length=16 --train.gradient_groups=16
feature selective "" same --train.recompute=selective
feature full "" same --train.recompute=full
feature one_group "" "" --train.gradient_groups=2
feature no_groups "" "inexact" --train.gradient_groups=0
feature micro2 "" "" --train.micro_batch=2 --train.gradient_groups=4
feature muon "" "" --optim.name=muon --optim.adam_rate=0.5
feature lion "" "" --optim.name=lion --optim.lr=3e-4
feature moments_bf16 "" "" --optim.state=bf16
feature moments_int8 "" "" --optim.state=int8
feature bf16 "" rounds --train.precision=bf16
feature masterless "" rounds --train.precision=bf16 --optim.master=none --optim.state=bf16
feature fp8 "" rounds --train.precision=fp8 --fp8.warmup=2 --fp8.monitor=2
feature fp8_exclude "" rounds --train.precision=fp8 --fp8.warmup=2 --fp8.wgrad=bf16 --fp8.exclude=layers.1.*
feature fp8_tensor "" rounds --train.precision=fp8 --fp8.recipe=tensor
feature fp8_block "" rounds --train.precision=fp8 --fp8.recipe=block
feature mxfp8 "" rounds --train.precision=mxfp8
feature nvfp4 "" rounds --train.precision=nvfp4
feature lr_scale "" "" --optim.lr_scale=embedding:0.1,layers.0.*:0.5,norms:2 --optim.decay_scale=norms:1,head:0
feature clip "" "" --train.clip=0.1
feature wsd "" "" --optim.schedule=wsd --optim.decay_fraction=0.5 --optim.decay_embeddings=false
feature eval "" "same shows" "--data.val=data/c_val_*.bin" --eval.every=2 --eval.tokens=512
feature samples "" "same shows" "--data.val=data/c_val_*.bin" --eval.every=4 --eval.tokens=256 --log.sample_prompt=the --log.sample_tokens=5
feature waits "" same --ckpt.async=false --data.threads=3 --data.verify=start --log.every=1
feature often "" same --ckpt.every=1
feature verify "" same --train.verify=0.01
feature verified "" same --train.verify=0.05 --train.verify_state=verified
feature memory_every "" same --ckpt.memory_every=2
feature skip "" "" "--skip=3:4"

# What is refused: "ONE;OTHER;WORDS": one name of the pair matches ONE, another OTHER, and the error has WORDS. All else must train.
tensor='tensor|tp_pp' context='context|ring|ulysses|cp_zero3' pipeline='gpipe|1f1b|interleaved|zb_h1|dp_pp|tp_pp'
shards='zero2|zero3|hsdp|cp_zero3|ep_zero2' weights='zero3|hsdp|cp_zero3' experts='expert|ep_zero2' whole='fp8_tensor|fp8_block|mxfp8|nvfp4'
tables='engram|engram_rows|engram_fold' hrm='hrm|hrm_segments|hrm_halt' verify='verify|verified'
refusals=(
    "batch_schedule;$shards;train.batch_schedule does not go with parallel.zero 2 and 3"
    "batch_schedule;$pipeline;train.batch_schedule does not go with parallel.pipeline"
    "batch_schedule;$tables;train.batch_schedule does not go with model.engram_layers"
    "batch_schedule;skip;--skip leaves out batches, which train.batch_schedule makes of several sizes"
    "batch_schedule;wsd;optim.warmup_steps 2 reaches into the decay"
    "sequence_schedule;$context;train.sequence_schedule does not go with parallel.context"
    "$hrm;$pipeline;which no chain of stages does"
    "hrm_segments|hrm_halt;$shards;add to one gradient"
    "hrm_halt;$tensor|$context;model.hrm_halt: the halting head reads all rows of a document"
    "$hrm;mtp;MTP modules do not go with HRM"
    "$hrm;engram_rows;optim.table_gradients sparse does not go with model.hrm_cycles"
    "spike_skip;engram_rows;train.on_spike=skip does not work with sparse gradients"
    "$verify;engram_rows;train.verify does not work with sparse gradients"
    "$verify;fp8|fp8_exclude|$whole;train.verify does not work with a train.precision but fp32 and bf16"
    "$verify;$tensor|$context|$pipeline|$shards|$experts;train.verify does not work with parallel."
    "moments_int8;$tensor;optim.state int8 does not go with parallel.tensor"
    "moments_int8;$tables;optim.state int8 does not go with model.engram_layers"
    "masterless;muon;optim.master none goes with adamw and lion"
    "gpt2;moe|moe_bias|moe_sequence|moe_capacity|$experts;experts are swiglu"
    "fp8|fp8_exclude|$whole;zb_h1;parallel.schedule zb_h1 keeps the values"
    "$whole;$tensor|$context;takes scales from whole tensors"
    "one_group;$shards;set train.gradient_groups to their number"
    "samples;$tensor|$context|$pipeline|$weights|$experts;log.sample_prompt"
)
may_say() { # may_say NAMES...: the words of all refusals that fit them
    local rule one other words a b
    for rule in "${refusals[@]}"; do
        IFS=';' read -r one other words <<<"$rule"
        for a in "$@"; do
            [[ $a =~ ^($one)$ ]] || continue
            for b in "$@"; do [[ $b =~ ^($other)$ ]] && echo "$words" && break; done
        done
    done
}
as_told() { # as_told NAME DIR NAMES...: the run behind `code` and `err` is refused, if it must be, by its words; 1: it is to be looked at
    local name=$1 dir=$2 told text
    shift 2
    told=$(may_say "$@")
    [ -n "$told" ] || [ "$code" -ne 0 ] || return 1
    if [ -z "$told" ]; then
        fail "$name: exit $code"
    elif [ "$code" -ne 2 ]; then
        fail "$name: exit $code, and it is to be refused: $(head -n 1 <<<"$told")"
    else
        text=$(grep -m 1 '^error:' err)
        grep -qF -f <(echo "$told") <<<"$text" || fail "$name: refused by other words than '$(head -n 1 <<<"$told")'"
        [ ! -e "$dir" ] || fail "$name: refused, and $dir is there"
    fi
}

# The array `made`: the keys of features; with experts=yes of a model whose layers have some.
make_keys() { # make_keys EXPERTS FEATURES...
    local experts=$1 name part parts all='' some=no more
    shift
    made=()
    for name in "$@"; do
        mapfile -t more <<<"${keys_of[$name]}"
        [ -z "${more[0]}" ] || made+=("${more[@]}")
        [[ $name != moe* ]] || some=yes
        IFS=, read -ra parts <<<"${mixers[$name]}"
        for part in "${parts[@]}"; do
            [ "$experts" = no ] || [[ $part == */* ]] || part=$part/moe
            all=$all,$part
        done
    done
    [ "$experts" = no ] || [ -n "$all" ] || all=,gqa/moe
    [ -z "$all" ] || made+=("--model.layers=${all#,}")
    # shellcheck disable=SC2206 # several keys
    [ "$experts" = no ] || [ $some = yes ] || made+=($expert_keys)
}
begin() { # begin DIR RANKS KEYS...: its exit code in `code`, its output in out and err
    local dir=$1 n=$2
    shift 2
    code=0
    if [ "$n" -eq 1 ] && [[ "$*" != *memory_every* ]]; then
        "$ingot" train pairs.yaml --run.dir="$dir" "$@" >out 2>err || code=$?
    else
        "$ingot" launch -n "$n" --no-doctor -- train pairs.yaml --run.dir="$dir" "$@" >out 2>err || code=$?
    fi
}
one_rank() { # one_rank EXPERTS FEATURES...: trains them, once; `one` is the directory
    local experts=$1
    shift
    one=runs/$experts-$(IFS=+; echo "$*")
    if [ -e "$one.code" ]; then
        code=$(cat "$one.code")
        cp "$one.err" err
        return
    fi
    make_keys "$experts" "$@"
    begin "$one" 1 "${made[@]}"
    cp err "$one.err"
    echo $code >"$one.code"
}
# What steps say, but for times, memory, and what only a pipeline has.
numbers() { losses "$1" | sed -E 's/"bubble":[^,}]*,?//; s/,}/}/'; }
within() { # within BOUND NORMS A B: the numbers of two runs; NORMS: the bound of the gradient's norm
    awk -v bound="$1" -v norms="$2" '
        function value(key,    at) {
            at = index($0, "\"" key "\":")
            return at ? substr($0, at + length(key) + 3) + 0 : "none"
        }
        BEGIN { count = split("step loss mtp_loss aux_loss z_loss halt_loss val_loss grad_norm targets padding", keys, " ") }
        { file = FILENAME == ARGV[1] ? 1 : 2; n[file]++
          for (k = 1; k <= count; k++) seen[file, n[file], keys[k]] = value(keys[k]) }
        END {
            if (n[1] != n[2] || n[1] < 1) { print n[1] " lines and " n[2]; exit 1 }
            for (i = 1; i <= n[1]; i++) for (k = 1; k <= count; k++) {
                a = seen[1, i, keys[k]]; b = seen[2, i, keys[k]]
                if (a == "none" && b == "none") continue
                d = a < b ? b - a : a - b
                size = a < 0 ? -a : a
                most = (keys[k] == "grad_norm" ? norms : bound) * size + (size < 1e-6 ? 1e-9 : 0)
                if (a == "none" || b == "none" || !(d <= most)) { print keys[k] " of line " i ": " a " and " b; exit 1 }
            }
        }' <(numbers "$3") <(numbers "$4")
}
near() { # near NAME "FEATURES" AXIS A B: a run on the axis is that of one rank
    local w='' name bound=1e-5 norms=1e-3 why
    for name in $2; do w="$w ${words[$name]}"; done
    [[ $w != *rounds* ]] || bound=2e-2 norms=0.3
    if [[ ${kind_of[$3]} == exact* && $w != *inexact* ]] && ! [[ $w == *ends* && ${kind_of[$3]} == *pipeline* ]]; then
        cmp -s <(numbers "$4") <(numbers "$5") || fail "$1: other numbers: $(diff <(numbers "$4") <(numbers "$5") | head -n 2 | cut -c1-200 | tr '\n' ' ')"
        same_state "$1" "$4" "$5"
    else
        why=$(within $bound $norms "$4" "$5") || fail "$1: $why"
    fi
}
resumed() { # resumed NAME DIR RANKS KEYS...: from step 4 to the same bits
    local name=$1 dir=$2
    shift 2
    cp -r "$dir" "$dir.again"
    find "$dir.again/ckpt" -maxdepth 1 -name 'step-*' | grep -v 'step-0000000[1-4]$' | xargs rm -r
    begin "$dir.again" "$@" --resume
    [ $code -eq 0 ] || { fail "$name, resumed: exit $code"; return; }
    cmp -s <(numbers "$dir") <(numbers "$dir.again") || fail "$name, resumed: other numbers"
    same_state "$name, resumed" "$dir" "$dir.again"
}
planned() { # planned NAME DIR
    grep -oE 'planned [0-9]+ bytes, measured [0-9]+' "$2/log.txt" | awk '{ if ($2 != $5) bad = 1 } END { exit bad || NR < 1 }' ||
        fail "$1: memory is not what was planned"
}

on_axis() { # on_axis "FEATURES" AXIS
    local axis=$2 name="$1 x $2" dir=runs/on_axis experts=no n=${ranks_of[$2]} names
    read -ra names <<<"$1"
    [[ ${kind_of[$axis]} != *experts* ]] || experts=yes
    make_keys $experts "${names[@]}"
    # shellcheck disable=SC2206 # several keys
    local keys=("${made[@]}" ${axis_keys[$axis]})
    rm -rf $dir $dir.again
    begin $dir "$n" "${keys[@]}"
    ! as_told "$name" $dir "${names[@]}" "$axis" || return 0
    planned "$name" $dir
    one_rank $experts "${names[@]}"
    [ "$code" -eq 0 ] || { fail "$name, on one rank: exit $code"; return; }
    near "$name" "$1" "$axis" "$one" $dir
    resumed "$name" $dir "$n" "${keys[@]}"
}
shares_key() { # whether two features set a key in common
    [ -n "$(comm -12 <(sed 's/=.*//' <<<"${keys_of[$1]}" | sort -u) <(sed 's/=.*//' <<<"${keys_of[$2]}" | sort -u))" ]
}
# pair A B: on one rank. What is `same` changes no bit of the other; else the two train neither what the one trains nor what the other trains.
pair() {
    local a=$1 b=$2 name="$1 + $2" both alone other
    one_rank no "$a" "$b"
    both=$one
    ! as_told "$name" "$both" "$a" "$b" || return 0
    planned "$name" "$both"
    for other in "$a $b" "$b $a"; do
        one_rank no "${other% *}"
        alone=$one
        other=${other#* }
        [ "$code" -eq 0 ] || fail "$name: one alone exits with $code"
        if [[ ${words[$other]} == *same* ]]; then
            [[ ${words[$other]} == *shows* ]] || cmp -s <(numbers "$alone") <(numbers "$both") || fail "$name: $other changes numbers"
            same_state "$name: $other" "$alone" "$both"
        elif cmp -s <(numbers "$alone") <(numbers "$both"); then
            fail "$name: $other changes nothing"
        fi
    done
    make_keys no "$a" "$b"
    resumed "$name" "$both" 1 "${made[@]}"
    rm -rf "$both" "$both.again"
}
