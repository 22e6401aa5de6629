#!/usr/bin/env bash
# Experts that ranks shard, over Open MPI: groups of expert-parallel and expert-data-parallel ranks. Skipped without mpirun.
by=mpirun
. "$(dirname "$0")/experts.sh"
reference moe
experts moe 2 4 1 1 1
experts moe 2 2 2 1 0
experts moe 4 4 1 1 0
experts moe 2 4 1 1 3
cp=2 experts moe 4 2 1 1 2
exit $failed
