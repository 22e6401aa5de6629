/* rendezvous: how ranks that ingot did not start find each other (torchrun, or whoever sets RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT). They connect to rank 0 over TCP, which tells them where the job's shared memory is.
 * HMAC under the job's secret authenticates them. All ranks must be on one host. */
#ifndef INGOT_COMM_LAUNCH_RENDEZVOUS_H
#define INGOT_COMM_LAUNCH_RENDEZVOUS_H
#include "comm/health/heartbeat.h"

/* The job's secret: INGOT_JOB_SECRET, or the file INGOT_JOB_SECRET_FILE; 64 hexadecimal digits. */
struct rendezvous_secret {
    uint8_t bytes[32];
    size_t count; /* 0: there is none */
};
status rendezvous_secret_read(struct rendezvous_secret *s) WARN_UNUSED;

/* *fd: the job's shared memory, which rank 0 creates and the others open. Timeout: INGOT_RENDEZVOUS_S seconds (60).
 * STATUS_CONFIG if the environment is inconsistent, or a rank has another secret, version, job or world size, or is on
 * another host. */
status rendezvous_open(const struct comm_env *e, int *fd) WARN_UNUSED;
#endif
