#!/usr/bin/env bash
# Meshes over Open MPI: every pair of axes, and copies that neighbours shard. Skipped without mpirun; slow_all_meshes_mpi.sh has all of them.
by=mpirun
. "$(dirname "$0")/meshes.sh"
reference llama
mesh llama 2 1 2 2
mesh llama 1 2 2 0
mesh llama 2 2 1 0
mesh llama 4 1 1 3 --parallel.shard=2
# Ranks that share each sequence, beside the rest.
train 8 --run.dir=runs/context "${llama[@]}" --parallel.context=2 --parallel.tensor=2 --train.gradient_groups=2
paste <(step_losses runs/llama) <(step_losses runs/context) |
    awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!(d <= 1e-5)) bad = 1 } END { exit bad || NR != 20 }' || fail "context: losses differ by more than 1e-5"
exit $failed
