#!/usr/bin/env bash
# scripts/profile_gpu.sh hands its arguments to the right program, and a missing profiler is one line. The profilers are stand-ins here.
set -u
script=$(realpath "$(dirname "$0")/../../scripts/profile_gpu.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "failed: $*"; failed=1; }
printf '#!/bin/sh\nexit 0\n' >ingot
chmod +x ingot
export INGOT=$work/ingot

# Only what the script itself needs.
mkdir bare
for tool in bash dirname sed grep env; do ln -s "$(command -v $tool)" bare/; done
for tool in nsys ncu; do
    PATH=$work/bare "$script" $tool >out 2>err && fail "$tool: exit 0 without the tool"
    [ "$(wc -l <err)" -eq 1 ] || fail "$tool: not one line"
    grep -q "$tool is not on PATH: install Nsight" err || fail "$tool: $(cat err)"
done
"$script" >out 2>err && fail "no tool: exit 0"
grep -q 'nsys or ncu' err || fail "no tool: $(cat err)"
"$script" ncu -k >out 2>err && fail "-k: exit 0"
grep -q -- '-k needs a value' err || fail "-k: $(cat err)"
"$script" --help | grep -q 'scripts/profile_gpu.sh nsys' || fail "--help"

for tool in nsys ncu; do
    printf '#!/bin/sh\nfor a in "$@"; do printf "<%%s>" "$a"; done; echo\n' >bare/$tool
    chmod +x bare/$tool
done
PATH=$work/bare "$script" nsys -o t --preset nano --batch 2 >out 2>err || fail "nsys: exit $?"
head -1 out | grep -q "<-o><t><$INGOT><bench><train><--device><cuda><--steps><3><--preset><nano><--batch><2>$" || fail "nsys: $(cat out)"
tail -1 out | grep -q '<t.nsys-rep>$' || fail "nsys stats: $(cat out)"
PATH=$work/bare "$script" ncu -k 'norm|rope' -s 4 -c 2 --preset nano >out 2>err || fail "ncu: exit $?"
head -1 out | grep -q '<--clock-control><none>' || fail "ncu touches the clocks: $(cat out)"
head -1 out | grep -q '<--kernel-name><regex:norm|rope><--launch-skip><4><--launch-count><2>' || fail "ncu: $(cat out)"
head -1 out | grep -q '<--eager><--steps><1><--preset><nano>$' || fail "ncu: $(cat out)"
PATH=$work/bare "$script" ncu --preset nano >out 2>err || fail "ncu, all kernels: exit $?"
grep -q -- '--kernel-name' out && fail "ncu, all kernels: $(cat out)"
INGOT=$work/nothing PATH=$work/bare "$script" ncu >out 2>err && fail "no program: exit 0"
grep -q 'build it' err || fail "no program: $(cat err)"
exit $failed
