#!/usr/bin/env bash
# Groups, sums and messages over Open MPI. Skipped without mpirun.
command -v mpirun >/dev/null || exit 77
. "$(dirname "$0")/../shell.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Open MPI's plug-ins leave memory behind and are unloaded, so that a suppression finds no name.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
program=$(dirname "$ingot")/tests/test_groups_comm
ranks() { timeout 200 mpirun -n "$1" --oversubscribe "$program" "$2" >out 2>err; }
for n in 4 8; do ranks $n works || fail "$n ranks: exit $?"; done
ranks 3 message && fail "a message that is not what was asked for is taken"
grep -qF "rank 0 sends 'activations' of 8 bytes to the next rank (message 1), and there rank 1 asks for 'gradients'" err ||
    fail "the error does not say which message"
exit $failed
