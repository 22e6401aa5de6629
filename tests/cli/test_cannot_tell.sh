#!/usr/bin/env bash
# A file whose lookup fails (EIO, EACCES) is not a file that is missing: whichever call of whichever verb fails, the verb ends with exit
# code 74, or does what it does without the failure and says so, or needed not know. It never goes on as if the file were not there.
. "$(dirname "$0")/../shell.sh"
make_corpus
run 0 train r.yaml --run.dir=r --train.steps=6
strip() { sed -E 's/[0-9.]+(%| s| ms|s)?//g; s/ +/ /g' out; } # what differs from run to run: times
each() { # each CALLS ARGS...: with the k-th call failing
    local calls=$1 k error code reason='Input/output error|Permission denied'
    shift
    run 0 "$@"
    strip >whole
    for ((k = 1; k <= calls; k++)); do
        for error in EIO EACCES; do
            INGOT_IO_FAULT=$k:$error timeout 60 "$ingot" "$@" >out 2>err
            code=$?
            case $code in
            74) says "" ;;
            0) strip | cmp -s - whole || grep -qE "$reason" out err || fail "call $k of '$*' fails with $error: another result, and nobody says why" ;;
            *) fail "call $k of '$*' fails with $error: exit code $code" ;;
            esac
        done
    done
}
each 12 ckpt list r
each 12 ckpt verify r
each 12 ckpt verify r/ckpt/step-00000006
each 24 data verify data/c
each 24 data verify 'data/c_train_*.bin'
each 24 data inspect data/c
each 16 tokenizer encode tok "a b"
each 16 tokenizer encode tok/tokenizer.json corpus.txt
each 12 runs .
each 12 report r -o page.html
each 40 eval r
each 40 train r --resume
[ "$(id -u)" -ne 0 ] || exit $failed # root may look into every directory
mkdir closed && cp -r r closed/ && chmod 0 closed
run 74 ckpt list closed/r
run 74 train closed/r --resume
chmod 755 closed
exit $failed
