#!/usr/bin/env bash
# Groups, sums and messages over Open MPI. Skipped without mpirun.
command -v mpirun >/dev/null || exit 77
. "$(dirname "$0")/../shell.sh"
program=$(dirname "$ingot")/tests/test_groups_comm
ranks() { over_mpi "$1" "$program" "$2"; }
for n in 4 8; do ranks $n works || fail "$n ranks: exit $?"; done
ranks 3 message && fail "a message that is not what was asked for is taken"
grep -qF "rank 0 sends 'activations' of 8 bytes to the next rank (message 1), and there rank 1 asks for 'gradients'" err ||
    fail "the error does not say which message"

# The last rank is alone on a machine of its own, as far as names go: the others hear over the network that it stands still.
if unshare --uts true 2>/dev/null; then
    cat >elsewhere.sh <<'SH'
exec unshare --uts bash -c 'hostname "m$((OMPI_COMM_WORLD_RANK == 3))" && exec "$@"' rank "$@"
SH
    elsewhere() { over_mpi 4 bash elsewhere.sh "$program" "$1"; }
    elsewhere works || fail "two machines: exit $?"
    elsewhere stop
    code=$?
    [ $code -eq 10 ] || fail "a rank of another machine stands still: exit $code"
    grep -q 'rank 3 (process [0-9]*) gives no sign of life' err || fail "a rank of another machine stands still, and nobody says so"
fi
exit $failed
