#!/usr/bin/env bash
# The long form of the fault tests, hours on two cores; their short forms are tests, which scripts/test.sh full runs.
#
#   scripts/faults.sh [BUILD]      BUILD: a build directory with tests (build/cpu)
#   SEED=N                         the seed of all; without it each test draws one and prints it
#   SCALE=N                        percent of the counts below (100)
#
# Prints what was injected, survived and lost; exit code 1 when a test fails. docs/FAULTS.md has the table of the last long run.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cpu} scale=${SCALE:-100} failed=0
ingot=$build/ingot
[ -x "$ingot" ] || { echo "no $ingot: cmake --preset cpu && cmake --build build/cpu" >&2 && exit 2; }
times() { echo $((($1 * scale + 99) / 100)); }
step() { # step NAME COMMAND...: its last lines are its counts
    local name=$1 begin=$SECONDS code=0
    shift
    printf '== %s\n' "$name"
    "$@" 2>&1 | tail -n 14
    code=${PIPESTATUS[0]}
    [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || { failed=1 && printf 'FAILED with %d\n' "$code"; }
    printf '   %d s\n' $((SECONDS - begin))
}
export KILLS FAULTS FLIPS CLEAN PARTITIONS FAULTS_STATES FAULTS_SEED=${SEED:-1}
KILLS=$(times 50) FAULTS=$(times 1200) FLIPS=$(times 12) CLEAN=$(times 10000) PARTITIONS=$(times 20) FAULTS_STATES=$(times 200000)
step "power loss, $FAULTS_STATES states of a save" "$build/tests/test_power_faults"
step "kill -9, four runs, $KILLS kills of each" bash tests/train/slow_kill.sh "$ingot"
step "ranks killed and stopped" bash tests/train/slow_rank_kills.sh "$ingot"
step "a rank that stays away" bash tests/cli/test_elastic.sh "$ingot"
step "flipped bits, $((18 * FLIPS)); $CLEAN clean micro-batches" bash tests/train/test_verify.sh "$ingot"
step "ranks cut off the network, $PARTITIONS" env RANKS=2 bash tests/train/test_partition.sh "$ingot"
step "the same, of four ranks" env RANKS=4 bash tests/train/test_partition.sh "$ingot"
step "soak, $FAULTS faults" bash tests/faults/test_soak.sh "$ingot"
step "each refusal of memory" bash tests/cli/slow_memory_each.sh "$ingot"
step "lookups that fail" bash tests/cli/test_cannot_tell.sh "$ingot"
step "full disk" bash tests/train/test_full_disk.sh "$ingot"
exit $failed
