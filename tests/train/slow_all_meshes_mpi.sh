#!/usr/bin/env bash
# slow_all_meshes.sh over Open MPI, with the models that differ in what ranks say to each other: tied ends of a pipeline, loads of experts. Skipped
# without mpirun.
by=mpirun models="llama gpt2 moe"
. "$(dirname "$0")/slow_all_meshes.sh"
