# What the shell tests of whole runs share; sourced with $1 = the ingot binary. They work in a temporary directory, which goes away:
#   corpus.txt, tok/, data/c_{train,val}_*.bin   made-up verses in 300 documents, a tokenizer of 300 entries, shards
#   r.yaml                                       two layers of width 32; 40 steps of two micro-batches of two sequences
set -u
ingot=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
failed=0

fail() { # fail WORDS...: says so, with the end of what the last command wrote to stderr
    echo "failed: $*"
    [ -s err ] && tail -n 5 err | sed 's/^/    /'
    failed=1
}
check() { # check NAME CONDITION...
    local name=$1
    shift
    "$@" || fail "$name"
}
run() { # run CODE ARGS...: ingot exits with CODE; output in out and err
    local want=$1 got
    shift
    "$ingot" "$@" >out 2>err
    got=$?
    [ $got -eq "$want" ] || fail "ingot $* exits with $got, not $want"
}
over_mpi() { # over_mpi RANKS PROGRAM ARGS...: under mpirun; output in out and err
    # Open MPI's plug-ins leave memory behind and are unloaded, so that a suppression finds no name.
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 \
        timeout 1200 mpirun -n "$1" --oversubscribe "${@:2}" >out 2>err
}
says() { # says TEXT: the last error is one line, begins with "error:" and holds TEXT
    [ "$(grep -c '^error:' err)" -eq 1 ] || fail "not one line of error"
    tail -n 1 err | grep -q '^error:' || fail "the error is not the last line"
    grep '^error:' err | grep -qF -- "$1" || fail "the error does not say '$1'"
}

# planned_is_measured RUN.yaml RANKS KEYS... --run.dir=DIR: `ingot plan` says to the byte what the first rank of the run has taken. Without an axis or
# a ZeRO stage among the keys it would look for a mesh: nothing is compared then.
planned_is_measured() {
    local file=$1 n=$2 dir='' key keys=() planned measured
    local assumed=()
    [ "${by:-launch}" = launch ] || assumed=(--assume mpi=1) # the launcher's ranks share memory; MPI has buffers of its own
    shift 2
    for key in "$@"; do
        case $key in
        --run.dir=*) dir=${key#*=} ;;
        --resume*) ;;
        *) keys+=("$key") ;;
        esac
    done
    "$ingot" plan "$file" "${keys[@]}" --machine "${n}xcpu" "${assumed[@]}" --json >plan.out 2>plan.err || fail "no plan of $*: $(cat plan.err)"
    grep -q '"mesh":' plan.out || return 0
    planned=$(grep -o '"first_rank_bytes": [0-9]*' plan.out | head -n 1 | cut -d' ' -f2)
    measured=$(grep -oE '"name":"measured_bytes","value":[0-9.e+]+' "$dir/metrics.jsonl" | tail -n 1 | cut -d: -f3)
    awk -v a="$planned" -v b="$measured" 'BEGIN { exit !(a > 0 && a == b) }' || fail "$*: planned $planned bytes, measured $measured"
}

make_corpus() {
    # Numbers of its own: srand and rand differ between awks, and runs shall not. With lr 1e-2 some texts tear runs apart that differ in
    # roundoff alone: of 100 texts bf16 and fp32 on one CPU were up to 0.2 of the loss apart after 20 steps, with 3e-3 6e-4.
    awk 'function random() { state = (state * 69069 + 1) % 4294967296; return state / 4294967296 }
    BEGIN {
        state = 7
        n = split("the of and king lord said unto him house people came went day god land son water fire light stone", w, " ")
        for (d = 0; d < 300; d++) {
            for (s = 0; s < 4; s++) {
                for (i = 5 + int(random() * 8); i > 0; i--) printf "%s ", w[1 + int(random() * n)]
                print "."
            }
            print ""
        }
    }' >corpus.txt
    run 0 tokenizer train corpus.txt --vocab-size 300 --special '<|endoftext|>' -o tok
    run 0 data build corpus.txt --tokenizer tok --separator blank --val-fraction 0.1 -o data/c
    cat >r.yaml <<'YAML'
model: {layer_count: 2, hidden_size: 32, ffn_size: 64, head_count: 2, context_length: 32}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 2, batch_tokens: 128, steps: 40, precision: fp32}
optim: {lr: 3e-3, warmup_steps: 5}
eval: {every: 10}
ckpt: {every: 3}
machine: {threads: 2}
YAML
    [ $failed -eq 0 ] || exit 1
}

# What must not depend on the machine or on interruptions: every number of every step but times and memory. A run that was killed
# between its last save and its end evaluates again, hence uniq.
losses() { # losses RUN_DIR
    grep '"kind":"step"' "$1/metrics.jsonl" |
        sed -E 's/"(time|tokens_per_s|step_s|data_wait_s|ckpt_stall_ms|ckpt_skipped|bubble|flops_per_s|mfu|mfu_full|rss_bytes|gpu_[a-z]+|host_[a-z_]+)":[^,}]*,?//g; s/,}/}/' | uniq
}
same_state() { # same_state NAME A B: the last checkpoints of two run directories are equal, and hold something
    run 0 ckpt diff "$2" "$3"
    grep -q '^[1-9][0-9]* tensors equal, 0 not$' out || fail "$1: the last checkpoints differ: $(tail -n 1 out)"
}
same_run() { # same_run NAME A B: two run directories have equal losses and equal last checkpoints
    losses "$2" >losses.a
    losses "$3" >losses.b
    [ -s losses.a ] || fail "$1: no losses"
    cmp -s losses.a losses.b || { fail "$1: losses differ"; diff losses.a losses.b | head -n 6; }
    same_state "$1" "$2" "$3"
}
all_sound() { # all_sound NAME RUN_DIR: every checkpoint passes the full check
    ls "$2"/ckpt/step-* >/dev/null 2>&1 || return 0
    run 0 ckpt verify "$2"
}
wait_for_step() { # wait_for_step RUN_DIR STEP PID: until metrics.jsonl has it, or PID is gone
    until grep -qs "\"kind\":\"step\",\"step\":$2," "$1/metrics.jsonl"; do
        kill -0 "$3" 2>/dev/null || return 1
        sleep 0.005
    done
}
