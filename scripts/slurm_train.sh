#!/usr/bin/env bash
# Data-parallel training on CPUs of several machines under SLURM: srun starts the ranks, Open MPI connects them (openmpi-bin on every node,
# SLURM with PMIx). One rank per node with all of its cores unless said otherwise:
#
#   sbatch --nodes=4 scripts/slurm_train.sh RUN.yaml [--section.key=value ...]
#   sbatch --nodes=4 --ntasks-per-node=2 --cpus-per-task=32 scripts/slurm_train.sh RUN.yaml
#
# run.dir and the data lie where all nodes see them; rank 0 alone writes. train.batch_tokens must be a multiple of ranks x micro-batch. Two
# minutes before the time limit all ranks are asked to save; the job then ends with 75 and queues itself again, to go on from there.
#
# Run with CPU ranks on one node, stopped and queued again by its time limit (examples/slurm); not with ranks on GPUs or on several nodes.
#SBATCH --job-name=ingot
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
[ $# -ge 1 ] || { echo "usage: sbatch --nodes=N $0 RUN.yaml [--section.key=value ...]" >&2; exit 2; }
ingot=${INGOT:-ingot}
resume=()
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && resume=(--resume)
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
srun --mpi=pmix --cpu-bind=cores --kill-on-bad-exit=1 "$ingot" train "$@" "${resume[@]}"
code=$?
[ $code -eq 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
exit $code
