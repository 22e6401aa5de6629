#!/usr/bin/env bash
# Training under Slurm, on GPUs or CPUs of one or several nodes: srun starts a rank per task, Open MPI connects them (openmpi-bin on every
# node, Slurm with PMIx). One task per GPU; on CPUs one per node with all of its cores unless said otherwise:
#
#   sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=12 scripts/slurm_train.sh RUN.yaml --parallel.zero=1 --parallel.shard=8
#   sbatch --nodes=4 scripts/slurm_train.sh RUN.yaml [--section.key=value ...]
#   sbatch --nodes=4 --ntasks-per-node=2 --cpus-per-task=32 scripts/slurm_train.sh RUN.yaml
#
# run.dir and the data lie where all nodes see them; rank 0 alone writes. train.batch_tokens must be a multiple of the data-parallel ranks x
# train.micro_batch x train.sequence_length. On GPUs of several nodes parallel.pipeline must be 1 and parallel.expert within a node
# (docs/PARALLELISM.md, What does not compose). Two minutes before the time limit all ranks are asked to save; the job then ends with 75 and
# queues itself again, to go on from there. After a failure of a node Slurm queues it again (--requeue). After any other end (a rank that dies,
# a loss that is not finite) it stays ended: submit it again with --resume.
#
# Run with CPU ranks on one node, stopped and queued again by its time limit (examples/slurm). Never run with ranks on GPUs, nor on several
# nodes.
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
cores=${SLURM_CPUS_PER_TASK:-$((${SLURM_CPUS_ON_NODE:-1} / ${SLURM_NTASKS_PER_NODE:-1}))}
[ "$cores" -ge 1 ] || cores=1
export OMP_NUM_THREADS=$cores SRUN_CPUS_PER_TASK=$cores # srun does not inherit the job's --cpus-per-task since Slurm 22.05
srun --mpi=pmix --cpu-bind=cores --kill-on-bad-exit=1 "$ingot" train "$@" "${resume[@]}"
code=$?
[ $code -eq 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
exit $code
