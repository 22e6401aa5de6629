#!/usr/bin/env bash
# Training on a GPU, from outside: it follows the CPU, its runs are equal bit for bit however they are cut, captured or recomputed, and
# what it cannot do it says in one line. gpu_train.sh INGOT [PART]...   parts: follow nano bits offload schedules prompts
# kill errors   (default: all)
. "$(dirname "$0")/../shell.sh"
shift
parts=" ${*:-follow nano bits offload schedules prompts kill errors} "
part() { case $parts in *" $1 "*) echo "== $1" ;; *) return 1 ;; esac; }

export HOME=$work # the products' algorithms, timed once, are remembered below it
make_corpus
gpu=--machine.device=cuda
"$ingot" train r.yaml --run.dir=runs/first $gpu --train.steps=6 >out 2>err
code=$?
if [ $code -eq 11 ] && [ ! -e /dev/nvidia0 ]; then
    cat err
    exit 77
fi
[ $code -eq 0 ] || { fail "the first step exits with $code"; exit 1; }
grep '^device' err

# distance NAME BOUND A B [WINDOW]: the losses of two runs, averaged over WINDOW steps, differ by at most BOUND of the loss
distance() {
    for i in 1 2; do
        grep '"kind":"step"' "${@:2+i:1}/metrics.jsonl" | grep -oE '"loss":[-+.eE0-9]+' | cut -d: -f2 >losses.$i
    done
    [ -s losses.1 ] && [ "$(wc -l <losses.1)" -eq "$(wc -l <losses.2)" ] || { fail "$1: $(wc -l <losses.1) and $(wc -l <losses.2) losses"; return; }
    paste losses.1 losses.2 | awk -v name="$1" -v bound="$2" -v window="${5:-1}" '
        { a += $1; b += $2; n++ }
        n == window { d = a - b; if (d < 0) d = -d; d /= a; if (!(d <= worst)) { worst = d; at = NR } a = b = n = 0 }
        END { printf "%s %s: %.2e of %.0e, at step %d\n", worst <= bound ? "ok  " : "FAIL", name, worst, bound, at; exit !(worst <= bound) }' ||
        failed=1
}
# trained NAME KEYS...: runs/NAME, anew
trained() {
    local name=$1
    shift
    rm -rf "runs/$name"
    run 0 train r.yaml --run.dir="runs/$name" "$@"
}

if part follow; then
    # Families, packings, optimizers: the GPU in fp32 is the CPU in fp32 but for the order of sums, and bf16 is near.
    llama="--model.head_count=2 --model.head_count_kv=1"
    gpt2="--model.norm=layernorm --model.activation=gelu --model.position=learned --model.qkv_bias=true --model.out_bias=true --model.mlp_bias=true"
    qwen="--model.qk_norm=true --model.window=9 --model.window_layers=0 --model.tied_embeddings=false --data.packing=documents"
    wide="--model.hidden_size=128 --model.head_count=2 --model.head_dim=64 --optim.name=lion --optim.lr=1e-3 --train.z_loss=1e-4"
    packed="--data.packing=best_fit --data.threads=3" # batches go up from where three threads put them
    muon="--optim.name=muon --optim.lr=5e-3"
    int8="--optim.state=int8"
    capped="--model.logit_softcap=0.7 --train.z_loss=1e-4"
    mtp="--model.mtp_depth=1 --model.mtp_weight=0.3"
    engram="--model.engram_layers=0-1 --model.engram_dim=16 --model.engram_base=400 --model.engram_fold=true --optim.lr=1e-3"
    rows="${engram/400/700} --optim.table_gradients=sparse"
    halt="--model.layer_count=3 --model.hrm_low_layers=1 --model.hrm_cycles=2 --model.hrm_steps=2 --model.hrm_segments=2 --optim.lr=1e-3
        --model.hrm_halt=true --model.hrm_explore=0.5 --data.packing=documents"
    for family in llama gpt2 qwen wide packed muon int8 capped mtp engram rows halt; do
        keys="${!family} --train.steps=20 --ckpt.every=0 --eval.every=10"
        # shellcheck disable=SC2086
        trained $family.cpu $keys --machine.device=cpu
        for precision in fp32 tf32 bf16; do
            # shellcheck disable=SC2086
            trained $family.$precision $keys $gpu --train.precision=$precision
            check "$family: planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/$family.$precision/log.txt
        done
        bound=1e-4
        case $family in wide | int8) bound=1e-3 ;; esac # Lion takes signs, int8 rounds: what is near a border moves either way
        distance "$family, fp32 on the GPU and on the CPU" $bound runs/$family.cpu runs/$family.fp32
        distance "$family, tf32 and fp32" 1e-2 runs/$family.cpu runs/$family.tf32
        # a head that halts decides: what is near the border goes the other way in bf16, and a document's loss with it
        [ $family = halt ] || distance "$family, bf16 and fp32" 2e-2 runs/$family.cpu runs/$family.bf16
    done
    for backend in own reference; do
        # shellcheck disable=SC2086
        trained wide.$backend $wide --train.steps=20 --ckpt.every=0 $gpu --train.precision=bf16 --attention.backend=$backend
        distance "attention.backend=$backend" 2e-2 runs/wide.cpu runs/wide.$backend
    done
    run 0 eval runs/llama.fp32 --json
    check "eval repeats the run's last val_loss" awk -v a="$(grep -oE '"loss": ?[0-9.]+' out | tail -n 1 | sed 's/.*: *//')" \
        -v b="$(grep -oE '"val_loss":[0-9.]+' runs/llama.fp32/metrics.jsonl | tail -n 1 | cut -d: -f2)" 'BEGIN { exit !(a > 0 && a + 0 == b + 0) }'
    run 0 generate runs/llama.fp32 --prompt "the king" --tokens 20 --temperature 0
    check "the prompt is continued" grep -q '^the king.' out
fi

# A text that is worth learning: sentences of a chain in which each word has four successors, one of them likely.
make_chain() {
    awk 'function random() { state = (state * 69069 + 1) % 4294967296; return state / 4294967296 }
    BEGIN {
        state = 11
        for (i = 0; i < 400; i++) {
            word[i] = ""
            for (k = 2 + int(random() * 3); k > 0; k--) word[i] = word[i] substr("bdfglmnprst", 1 + int(random() * 11), 1) substr("aeiou", 1 + int(random() * 5), 1)
            for (k = 0; k < 4; k++) after[i, k] = int(random() * 400)
        }
        for (line = 0; line < 12000; line++) {
            text = ""
            for (n = 6 + int(random() * 14); n > 0; n--) {
                text = text word[i] " "
                u = random()
                i = after[i % 400, u < 0.6 ? 0 : u < 0.8 ? 1 : u < 0.95 ? 2 : 3]
            }
            print text "."
        }
    }' >chain.txt
    run 0 tokenizer train chain.txt --vocab-size 1024 -o chain.tok
    run 0 data build chain.txt --tokenizer chain.tok --val-tail 0.02 -o data/chain
    cat >nano.yaml <<'YAML'
model: {preset: nano}
data: {train: data/chain_train_*.bin, val: data/chain_val_*.bin}
train: {micro_batch: 4, steps: 200}
optim: {lr: 5e-4, warmup_steps: 20}
eval: {every: 0, tokens: 8Ki}
ckpt: {every: 0}
YAML
}
if part nano; then
    make_chain
    run 0 train nano.yaml --run.dir=runs/nano.cpu --machine.device=cpu --train.precision=fp32
    for precision in fp32 bf16; do
        run 0 train nano.yaml --run.dir=runs/nano.$precision $gpu --train.precision=$precision
        grep '^step=' out
        distance "200 steps of 10M in $precision, every ten" 5e-3 runs/nano.cpu runs/nano.$precision 10
    done
    check "the text was learnt" awk -v a="$(head -n 1 losses.1)" -v b="$(tail -n 1 losses.1)" 'BEGIN { exit !(b < 0.6 * a) }'
fi

if part bits; then
    for precision in bf16 fp32 one; do
        keys="$gpu --train.precision=$precision --data.packing=documents --model.hidden_size=128 --model.ffn_size=192 --model.head_dim=64"
        # one micro-batch in a step: gradients lie where activations were
        [ $precision = one ] && keys="${keys/=one/=bf16} --train.micro_batch=4 --model.tied_embeddings=false"
        # shellcheck disable=SC2086
        trained $precision.a $keys --train.steps=16
        while IFS='|' read -r name more; do
            # shellcheck disable=SC2086
            trained $precision.b $keys --train.steps=16 $more
            same_run "$precision, $name" runs/$precision.a runs/$precision.b
            echo "     $precision, $name"
        done <<'WAYS'
once more|
graph off|--train.graph=false
recompute selective|--train.recompute=selective
recompute full|--train.recompute=full
recompute full, graph off|--train.recompute=full --train.graph=false
WAYS
        # shellcheck disable=SC2086
        trained $precision.b $keys --train.steps=16 --eval.every=3
        run 0 ckpt diff runs/$precision.a runs/$precision.b
        check "$precision: evaluations between the steps change nothing" grep -q '^[1-9][0-9]* tensors equal, 0 not$' out
        # on another day, with nothing remembered but what the checkpoint holds
        # shellcheck disable=SC2086
        trained $precision.c $keys --train.steps=16 --ckpt.every=5
        rm -rf runs/$precision.c/ckpt/step-00000016 runs/$precision.c/ckpt/step-00000015
        # shellcheck disable=SC2086
        run 0 train r.yaml --run.dir=runs/$precision.c $keys --train.steps=16 --resume --machine.cache_dir=empty.$precision
        run 0 ckpt diff runs/$precision.a runs/$precision.c
        check "$precision: resumed without a cache of algorithms, the same bits" grep -q '^[1-9][0-9]* tensors equal, 0 not$' out
    done
fi

# The optimizer's state in host memory: the same bits, whatever it holds; on a graph or not, and from one day to the next.
if part offload; then
    shape="--data.packing=documents --model.hidden_size=128 --model.ffn_size=192 --model.head_dim=64 --train.steps=8 --eval.every=0 --ckpt.every=5"
    hybrid="--model.layers=gdn/moe,gqa/moe --model.gdn_key_heads=2 --model.gdn_value_heads=4 --model.gdn_key_dim=16 --model.gdn_value_dim=16
        --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=64 --model.moe_router=sigmoid --model.moe_balance_rate=0.01"
    while IFS='|' read -r name keys more; do
        keys=${keys/#hybrid/--train.precision=bf16 $hybrid}
        if [ "$keys" ]; then
            # shellcheck disable=SC2086
            trained off.a $gpu $shape $keys
            before=$keys
        fi
        # shellcheck disable=SC2086
        trained off.b $gpu $shape $before --memory.offload_optimizer=true $more
        same_run "offloaded, $name" runs/off.a runs/off.b
        check "offloaded, $name: planned is measured" grep -qE 'host +planned ([0-9]+) bytes, measured \1$' runs/off.b/log.txt
        check "offloaded, $name: nothing was refused a capture" bash -c '! grep -q "cannot be captured" runs/off.b/log.txt'
        echo "     offloaded, $name"
    done <<'WAYS'
adamw in bf16|--train.precision=bf16|
no graph||--train.graph=false
adamw in bf16, bf16 moments|--train.precision=bf16 --optim.state=bf16|
adamw in bf16, int8 moments|--train.precision=bf16 --optim.state=int8|
adamw in bf16 without masters, bf16 moments|--train.precision=bf16 --optim.master=none --optim.state=bf16|
lion in bf16, bf16 moments|--train.precision=bf16 --optim.name=lion --optim.state=bf16 --optim.lr=1e-3|
adamw in fp32, int8 moments|--train.precision=fp32 --optim.state=int8|
muon in bf16|--train.precision=bf16 --optim.name=muon|
no graph||--train.graph=false
muon in bf16, int8 moments|--train.precision=bf16 --optim.name=muon --optim.state=int8|
muon in fp32|--train.precision=fp32 --optim.name=muon|
muon, experts|--train.precision=bf16 --optim.name=muon --optim.state=bf16 --model.layers=gqa/moe --model.moe_experts=8 --model.moe_top_k=2 --model.moe_size=64|
one micro-batch|--train.precision=bf16 --train.micro_batch=4 --model.tied_embeddings=false|
rows of tables|--train.precision=bf16 --model.engram_layers=0 --model.engram_dim=16 --model.engram_base=400|
routers and decay rates|hybrid|
the same without masters|hybrid --optim.master=none|
WAYS
    # the last run of the list goes on from step 5 the other way: there and back
    for way in false true; do
        rm -rf runs/off.b/ckpt/step-00000008
        # shellcheck disable=SC2086
        run 0 train r.yaml --run.dir=runs/off.b --resume $gpu $shape $before --memory.offload_optimizer=$way
        same_state "resumed, offloaded: $way" runs/off.a runs/off.b
    done
fi

# Warm-up of the batch makes steps of other sizes, each captured anew; that of the sequence length changes what is in the captured feed. A capture
# that is not made again, or whose feed is not read again, trains on what an earlier step had.
if part schedules; then
    batch="--train.batch_tokens=256 --train.batch_schedule=64@192,128@700 --train.steps=14 --optim.warmup_steps=2"
    length="--train.sequence_schedule=8@256,16@512 --train.steps=10"
    down="--train.batch_tokens=256 --train.batch_schedule=256@512,64@768 --train.steps=12"
    both="$batch --train.sequence_schedule=8@256,16@1024"
    for precision in fp32 bf16 fp8; do
        keys="$gpu --train.precision=$precision --eval.every=0 --model.hidden_size=128 --model.ffn_size=256 --model.head_dim=64"
        [ $precision = fp8 ] && keys="$keys --fp8.warmup=3"
        ways="batch length down both"
        [ $precision = fp32 ] || ways=both
        for way in $ways; do
            # shellcheck disable=SC2086
            trained sched.graph $keys ${!way}
            check "$precision, $way: every step is captured" bash -c '! grep -q "cannot be captured" runs/sched.graph/log.txt'
            # shellcheck disable=SC2086
            trained sched.eager $keys ${!way} --train.graph=false
            same_run "$precision, $way: graphs and op by op" runs/sched.graph runs/sched.eager
            if [ $precision = fp32 ]; then
                # shellcheck disable=SC2086
                trained sched.cpu ${!way} --eval.every=0 --model.hidden_size=128 --model.ffn_size=256 --model.head_dim=64 --machine.device=cpu
                distance "$way, fp32 on the GPU and on the CPU" 1e-4 runs/sched.cpu runs/sched.graph
            fi
            echo "     $precision, $way"
        done
        # resumed where one stage ends and inside the next, the graph is captured for the stage it meets
        # shellcheck disable=SC2086
        trained sched.graph $keys $both --ckpt.every=3 --ckpt.keep=20
        # shellcheck disable=SC2086
        trained sched.part $keys $both --ckpt.every=3 --ckpt.keep=20
        for cut in 3 6; do
            for step in runs/sched.part/ckpt/step-*; do [ "$((10#${step##*-}))" -le $cut ] || rm -r "$step"; done
            run 0 train runs/sched.part --resume
            same_run "$precision, resumed at step $cut" runs/sched.graph runs/sched.part
        done
    done
fi

if part prompts; then
    # Prompts of all lengths side by side: in fp32 the most likely tokens are those of one by one, and of the CPU. bf16 may decide near ties otherwise.
    awk 'BEGIN { n = split("the king and lord said unto light of day god came", w, " ")
        for (i = 1; i <= 21; i++) { for (k = 1; k <= 1 + i * 7 % 4; k++) printf "%s ", w[1 + (i * k) % n]; print "" } }' >many.txt
    for layers in gqa gdn,gqa; do
        trained prompts --train.steps=40 $gpu --train.precision=fp32 --model.layers=$layers --model.gdn_key_heads=2 --model.gdn_value_heads=2 \
            --model.gdn_key_dim=16 --model.gdn_value_dim=16
        ids() { # ids NAME KEYS...: of all texts, a line each
            run 0 generate runs/prompts --prompts many.txt --tokens 12 --temperature 0 --json "${@:2}"
            grep 'tokens/s' err
            awk '{ ids = ""; while (match($0, /"id": *[0-9]+/)) { ids = ids " " substr($0, RSTART + 5, RLENGTH - 5); $0 = substr($0, RSTART + RLENGTH) }
                print ids }' out >"ids.$1"
        }
        ids cpu --machine.device=cpu --batch 1
        check "21 texts" [ "$(wc -l <ids.cpu)" -eq 21 ]
        for batch in 1 2 8 16; do
            ids $batch $gpu --batch $batch
            check "$layers: tokens of each text" [ "$(awk 'NF > 0' ids.$batch | wc -l)" -eq 21 ]
            check "$layers: the tokens of batch $batch" cmp -s ids.cpu ids.$batch
            ids eager $gpu --batch $batch --train.graph=false
            check "$layers: batch $batch op by op" cmp -s ids.$batch ids.eager
        done
        ids bf16 $gpu --train.precision=bf16
        check "$layers: bf16" [ "$(wc -l <ids.bf16)" -eq 21 ]
    done
fi

if part kill; then
    kills=3 killed=0
    for precision in bf16 fp32; do
        keys="$gpu --train.precision=$precision --train.steps=60"
        begin=$(date +%s%N)
        # shellcheck disable=SC2086
        trained whole.$precision $keys
        span=$((($(date +%s%N) - begin) / 1000000))
        rm -rf runs/cut.$precision
        for i in $(seq $kills) last; do
            # shellcheck disable=SC2086
            "$ingot" train r.yaml --resume --run.dir=runs/cut.$precision $keys >out 2>err &
            pid=$!
            [ $i = last ] || { sleep "$(awk -v s=$span -v i=$i -v n=$kills 'BEGIN { printf "%.3f", s * (0.35 + 0.6 * i / n) / 1000 }')"; kill -KILL $pid 2>/dev/null; }
            wait $pid 2>/dev/null
            code=$?
            [ $code -eq 137 ] && killed=$((killed + 1))
            [ $code -eq 0 ] || [ $code -eq 137 ] || fail "life $i exits with $code"
            all_sound "life $i" runs/cut.$precision
        done
        same_run "$precision, killed and resumed" runs/whole.$precision runs/cut.$precision
    done
    echo "     $killed kills"
    check "a kill hit" [ $killed -gt 0 ]
    # asked to stop, it saves
    "$ingot" train r.yaml --run.dir=runs/term $gpu --train.steps=100000 --ckpt.every=0 --eval.every=0 >out 2>err &
    pid=$!
    wait_for_step runs/term 5 $pid
    kill -TERM $pid
    wait $pid
    check "SIGTERM: saved, exit 75" [ $? -eq 75 ]
    all_sound "SIGTERM" runs/term
fi

if part errors; then
    one_line() { # one_line CODE TEXT ARGS...: one line of error that holds TEXT
        local text=$2
        run "$1" "${@:3}"
        says "$text"
    }
    one_line 5 "weights, gradients and moments alone" train r.yaml $gpu --run.dir=runs/e1 --model.preset=70b --model.head_dim=128 --model.hidden_size=8192 --model.ffn_size=28672 \
        --model.layer_count=80 --model.head_count=64 --train.steps=6
    one_line 5 "no memory on" train r.yaml $gpu --run.dir=runs/e2 --machine.memory_gib=900000 --model.hidden_size=16384 --model.ffn_size=65536 \
        --model.layer_count=200 --model.head_count=128 --train.steps=6
    # Sixteen micro-batches of one sequence take longer than one of sixteen: a warning says so. Nothing is said of what the plan chose itself.
    slow="train r.yaml $gpu --model.layer_count=8 --model.hidden_size=512 --model.ffn_size=1536 --model.head_count=8 --model.head_count_kv=8
        --model.head_dim=64 --model.context_length=1024 --train.sequence_length=1024 --train.batch_tokens=16Ki --train.steps=1 --optim.warmup_steps=0"
    # shellcheck disable=SC2086
    run 0 $slow --run.dir=runs/slow-1 --train.micro_batch=1
    grep -q 'train.micro_batch 1: .* ms per step; [0-9]* would take .* --train.micro_batch=auto' err || fail "no word of a slow micro-batch: $(cat err)"
    # shellcheck disable=SC2086
    run 0 $slow --run.dir=runs/slow-auto --train.micro_batch=auto
    ! grep -q "would take" err || fail "the plan's own micro-batch is warned about: $(cat err)"
    for hidden in '' -1; do
        export CUDA_VISIBLE_DEVICES=$hidden
        one_line 11 "GPU is visible" train r.yaml $gpu --run.dir=runs/e3 --train.steps=6
        trained auto --train.steps=6
        check "auto falls back to the CPU" grep -q 'device .*cpu' runs/auto/log.txt
        unset CUDA_VISIBLE_DEVICES
    done
    one_line 2 "isa is for the CPU" train r.yaml $gpu --run.dir=runs/e4 --isa avx2 --train.steps=6
    one_line 6 "not finite" train r.yaml $gpu --run.dir=runs/e5 --optim.lr=100 --optim.weight_decay=100 --optim.warmup_steps=0 --ckpt.every=1 --eval.every=0
    run 0 ckpt verify runs/e5
fi
[ $failed -eq 0 ] && echo "all well"
exit $failed
