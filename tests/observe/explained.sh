# Sourced by the tests of what `ingot explain` says of runs that really end.
make_corpus
unset INGOT_ROOT
because() { # because RUN CAUSE TEXT: the cause, and words of the sentence
    "$ingot" explain "$1" --json >why 2>err || fail "explain $1 fails"
    grep -q "\"cause\": \"$2\"" why || fail "$1: $(grep -E '"cause"|"sentence"' why), not $2"
    grep '"sentence"' why | grep -qF -- "$3" || fail "$1: $(grep '"sentence"' why) does not say '$3'"
}
long() { # long RUN KEYS...: a long run in the background, at step 5
    local dir=$1
    shift
    "$ingot" train r.yaml --run.dir="$dir" --train.steps=100000 --eval.every=0 "$@" >/dev/null 2>long.err &
    pid=$!
    wait_for_step "$dir" 5 $pid || fail "$dir does not come to step 5: $(tail -1 long.err)"
}
