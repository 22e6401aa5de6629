#!/usr/bin/env bash
# `ingot ckpt` from outside: exit codes, and words on the right stream. What it finds is tested in tests/train.
set -u
ingot=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0
expect() { # expect CODE TEXT ARGS...: exit code, and TEXT on stderr (or on stdout when the code is 0)
    local want=$1 text=$2
    shift 2
    "$ingot" ckpt "$@" >out 2>err
    local got=$?
    [ $got -eq "$want" ] || { echo "failed: ckpt $* exits with $got, not $want"; failed=1; }
    grep -qF -- "$text" "$([ "$want" -eq 0 ] && echo out || echo err)" || { echo "failed: ckpt $* does not say '$text'"; cat out err; failed=1; }
}
mkdir -p run/ckpt/step-00000007 empty/ckpt
echo '{}' > run/ckpt/step-00000007/manifest.json
expect 0 "usage: ingot ckpt" --help
expect 2 "usage: ingot ckpt"
expect 2 "did you mean 'ckpt verify'" verfy run
expect 2 "usage: ingot ckpt diff" diff run
expect 0 "step-00000007    unusable" list run
expect 0 '"sound": false' list run --json
expect 4 "manifest" verify run
expect 4 "manifest" verify run/ckpt/step-00000007
expect 4 "no checkpoints" verify empty
expect 4 "no run directory" list nowhere
expect 4 "none of the 1 checkpoints" diff run run
exit $failed
