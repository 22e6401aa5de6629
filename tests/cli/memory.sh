# What test_memory.sh, test_memory_looks.sh and slow_memory_each.sh share; sourced with $1 = the ingot binary, $2 = how many refusals of each
# kind per verb (all: each); $3 ...: these verbs alone.
# Every refusal of memory ends in exit code 5 with one line of error, or the verb does its work with the same results as without.
ldd "$1" | grep -q 'lib[at]san' && { echo "a sanitizer brings its own malloc: skipped"; exit 77; }
command -v cc >/dev/null || { echo "no C compiler for the shim: skipped"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../shell.sh"
sample=$2
only=" ${*:3} "
make_corpus
cc -shared -fPIC -O1 -fno-builtin -o shim.so "$here/memory_shim.c" || exit 1
export GOMP_SPINCOUNT=5000 # set: ingot does not execute itself a second time
run 0 train r.yaml --run.dir=base --train.steps=9 --machine.threads=1
rm -rf base/ckpt/step-00000009

fresh() { # what a verb starts from, and where it writes
    rm -rf made
    case $1 in resume | report | compare) cp -r base made ;; esac
}
results() { # what must be as without a refusal; names and times of a build and of a report are not
    case $1 in
    train | resume) losses made && run 0 ckpt diff made good.$1 && tail -n 1 out ;;
    build) cat made/c_*.bin made/c_*.idx ;;
    report) grep -c . made/report.html ;;
    compare) grep -c . made/compare.html ;;
    plan) wc -l <out ;;
    *) cat out ;;
    esac
}
# refuse NAME ARGS...: the verb with refusals spread over all its requests
refuse() {
    local name=$1 count k step mode code
    shift
    [[ $only == "  " || $only == *" $name "* ]] || return 0
    fresh "$name"
    MEMORY_COUNT=$PWD/count LD_PRELOAD=$PWD/shim.so "$ingot" "$@" >out 2>err || fail "ingot $* does not work under the shim"
    rm -rf "good.$name"
    [ -d made ] && cp -r made "good.$name"
    results "$name" >want
    count=$(cat count)
    step=1
    [ "$sample" = all ] || step=$((count / sample > 0 ? count / sample : 1))
    for ((k = 1 + RANDOM % step; k <= count; k += step)); do
        for mode in "" :on; do
            fresh "$name"
            MEMORY_FAULT=$k$mode LD_PRELOAD=$PWD/shim.so timeout 300 "$ingot" "$@" >out 2>err
            code=$?
            grep -q 'error while loading shared libraries' err && continue # not ingot yet
            grep -q "skipping checkpoint" err && fail "$name, refusal $k$mode: a sound checkpoint is called damaged"
            case $code in
            0)
                results "$name" >got
                cmp -s want got || fail "$name, refusal $k$mode: exit 0 with other results"
                ;;
            5) [ "$(grep -c '^error:' err)" -eq 1 ] || fail "$name, refusal $k$mode: not one line of error" ;;
            *) fail "$name, refusal $k$mode: exit $code" ;;
            esac
        done
    done
    echo "$name: $count requests, one in $step refused"
}
refuse train train r.yaml --run.dir=made --train.steps=6 --machine.threads=1
refuse resume train r.yaml --run.dir=made --train.steps=9 --machine.threads=1 --resume
refuse build data build corpus.txt --tokenizer tok --separator blank --val-fraction 0.1 -o made/c
refuse report report made
refuse compare report made base -o made/compare.html
refuse runs runs . --json
refuse inspect data inspect data/c_train_000000.bin
refuse step data inspect base --step 3
refuse explain explain base
refuse plan plan r.yaml
refuse verify ckpt verify base
refuse data data verify data/c
refuse encode tokenizer encode tok corpus.txt --ids
exit $failed
