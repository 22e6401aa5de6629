#!/usr/bin/env bash
# From a bare Debian 12 to a trained language model: installs what is needed, builds build/release/ingot for this machine, runs `ingot demo`.
# Arguments go to the demo (--minutes N, --text FILE). Ctrl-C saves; the same command resumes it.
#
# The program gets device code for the GPU of this machine where there are a GPU and nvcc, and none elsewhere: device code
# for all architectures takes ten times as long (cmake --preset release).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh build demo
. scripts/this_machine.sh
log=build/quickstart.log
mkdir -p build
echo "building for $machine_text: build/release/ingot" >&2
failed() {
    [ ! -s $log ] || tail -30 $log >&2
    echo "quickstart.sh: the build failed${1:+; the whole log is in $1}" >&2
    exit 70
}
# shellcheck disable=SC2086 # several options
cmake --preset release -DBUILD_TESTING=OFF $machine_options >$log 2>&1 || failed $log
if [ -t 1 ]; then # ninja redraws one line, and prints what fails
    : >$log
    cmake --build --preset release --target ingot || failed ""
else # a line for each tenth; all lines in the log
    cmake --build --preset release --target ingot 2>&1 | tee $log |
        awk -F'[][/]' '/^\[[0-9]+\/[0-9]+\]/ { if ($2 == 1 || $2 == $3 || int(10 * $2 / $3) > tenth) { print; fflush() } tenth = int(10 * $2 / $3) }' >&2 || failed $log
fi
exec build/release/ingot demo "$@"
