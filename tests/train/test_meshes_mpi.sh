#!/usr/bin/env bash
# Meshes over Open MPI: every pair of axes, and copies that neighbours share out. Skipped without mpirun; slow_all_meshes_mpi.sh has all of them.
by=mpirun
. "$(dirname "$0")/meshes.sh"
reference llama
mesh llama 2 1 2 2
mesh llama 1 2 2 0
mesh llama 2 2 1 0
mesh llama 4 1 1 3 --parallel.shard=2
exit $failed
