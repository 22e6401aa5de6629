/* The meeting of ranks that nobody of ours started (torchrun, or whoever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT): over TCP, at
 * rank 0. There they learn where the memory lies that they share. */
#ifndef INGOT_COMM_LAUNCH_RENDEZVOUS_H
#define INGOT_COMM_LAUNCH_RENDEZVOUS_H
#include "comm/health/heartbeat.h"

/* What the ranks of a job know and nobody else does: INGOT_JOB_SECRET or the file INGOT_JOB_SECRET_FILE, 64 hexadecimal digits. */
struct meet_secret {
    uint8_t bytes[32];
    size_t count; /* 0: there is none */
};
status meet_secret_read(struct meet_secret *s) WARN_UNUSED;

/* *fd: the memory of the job, made by rank 0 and opened by the others, a minute at most. STATUS_CONFIG when the environment makes no sense,
 * when a rank has another secret, version, job or number of ranks, or runs on another machine. */
status meet_open(const struct comm_env *e, int *fd) WARN_UNUSED;
#endif
