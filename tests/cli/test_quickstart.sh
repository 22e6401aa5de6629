#!/usr/bin/env bash
# scripts/quickstart.sh builds what the machine can run: device code for its GPU, or none. Program, compiler and card are stand-ins here.
set -u
top=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "failed: $*"; failed=1; }
stand_in() { # stand_in PATH: a script from standard input
    mkdir -p "$(dirname "$1")"
    { echo '#!/usr/bin/env bash'; cat; } >"$1"
    chmod +x "$1"
}
options() { # options CAPABILITIES WITH: what cmake is told; WITH: directories before the usual ones in PATH
    printf 'printf "%%b" "%s"\n' "$1" | stand_in gpu/nvidia-smi
    echo 'exit 0' | stand_in nvcc/nvcc
    PATH=$2:/usr/bin:/bin CUDA_HOME=$work/none bash -c 'set -euo pipefail; . "$1"; echo "$machine_options"' sh "$top/scripts/this_machine.sh"
}
expect() { # expect WANT GOT WHAT
    [ "$2" = "$1" ] || fail "$3: $2, not $1"
}
on="-DINGOT_CUDA=ON -DINGOT_CUDA_ARCHS=%s -DCMAKE_CUDA_COMPILER=$work/nvcc/nvcc"
both=$work/gpu:$work/nvcc
# shellcheck disable=SC2059 # the format is above
{
    expect "$(printf -- "$on" 90a-real)" "$(options '9.0\n9.0\n' "$both")" "two H200"
    expect "$(printf -- "$on" 80-real)" "$(options '8.6\n' "$both")" "RTX 3090"
    expect "$(printf -- "$on" 120-real)" "$(options '12.0\n' "$both")" "RTX 5090"
    expect "$(printf -- "$on" '80-real;90a-real')" "$(options '9.0\n8.0\n' "$both")" "two kinds"
}
expect -DINGOT_CUDA=OFF "$(options '9.0\n' "$work/gpu")" "no nvcc"
expect -DINGOT_CUDA=OFF "$(options '7.5\n' "$both")" "an old GPU"
expect -DINGOT_CUDA=OFF "$(options '' "$both")" "no GPU"
expect -DINGOT_CUDA=OFF "$(options '' "$work/nvcc")" "nvcc and no nvidia-smi"

# The script itself: a build of 40 files is eight lines or so in a pipe, and the demo gets the arguments.
mkdir -p copy/scripts
cp "$top/scripts/quickstart.sh" "$top/scripts/this_machine.sh" copy/scripts/
echo 'exit 0' | stand_in copy/scripts/install.sh
stand_in path/cmake <<'E2'
case "$*" in
--preset*) echo "$*" >>cmake.log ;;
--build*)
    for i in $(seq 40); do echo "[$i/40] Building C object $i"; done
    [ -z "${BREAK:-}" ] || { echo "broken: error 17"; exit 1; }
    mkdir -p build/release
    printf '#!/bin/sh\necho "ingot $*"\n' >build/release/ingot
    chmod +x build/release/ingot ;;
esac
E2
PATH=$work/path:/usr/bin:/bin CUDA_HOME=$work/none copy/scripts/quickstart.sh --minutes 3 >out 2>err || fail "quickstart.sh: exit code $?"
grep -qx 'ingot demo --minutes 3' out || fail "the demo is not started with the arguments: $(cat out)"
lines=$(grep -c '^\[[0-9]*/40\]' err)
[ "$lines" -ge 8 ] && [ "$lines" -le 14 ] || fail "$lines lines of progress"
grep -q '^building for this processor, without device code: build/release/ingot' err || fail "it does not say what it builds"
BREAK=1 PATH=$work/path:/usr/bin:/bin CUDA_HOME=$work/none copy/scripts/quickstart.sh >out 2>err
[ $? -eq 70 ] || fail "a broken build: exit code"
grep -q '^broken: error 17' err || fail "a broken build does not show the compiler's error"

# scripts/install.sh says how far apt is, in a pipe by a line for each tenth, and fails where apt does. dpkg-query and apt-get are stand-ins.
echo 'exit 1' | stand_in apt/dpkg-query
stand_in apt/sudo <<'E3'
[ "$(id -u)" -ne 0 ] || exit 1
exec 3>&- && exec "$@"
E3
stand_in apt/apt-get <<'E4'
fd=$(printf '%s\n' "$@" | sed -n 's/^APT::Status-Fd=//p')
[ -z "${BREAK:-}" ] || { echo "E: broken" >&2; exit 100; }
[ -n "$fd" ] || exit 0
for percent in $(seq 0 4 100); do
    echo "noise of apt"
    echo "dlstatus:1:$percent.25:Retrieving" >&"$fd"
done
case "$*" in *install*) for percent in $(seq 0 5 100); do echo "pmstatus:gcc:$percent.5:Unpacking" >&"$fd"; done ;; esac
E4
PATH=$work/apt:/usr/bin:/bin "$top/scripts/install.sh" build >out 2>err || fail "install.sh: exit code $?"
[ ! -s out ] || fail "install.sh: $(head -n 1 out)"
[ "$(grep -cE '^downloading [0-9]+ %$' err)" -eq 22 ] || fail "install.sh: $(grep -c '^downloading' err) lines of downloads"
[ "$(grep -cE '^installing [0-9]+ %$' err)" -eq 11 ] || fail "install.sh: $(grep -c '^installing [0-9]' err) lines of installation"
BREAK=1 PATH=$work/apt:/usr/bin:/bin "$top/scripts/install.sh" build >out 2>err && fail "install.sh: no error where apt fails"
grep -q '^E: broken' err || fail "install.sh: apt's error is not shown"
exit $failed
