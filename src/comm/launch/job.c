/* The shared memory of a job, for whoever starts its ranks: `ingot launch`, rank 0 of torchrun's, tests. */
#include "comm/health/heartbeat.h"
#include "comm/transport.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

status comm_job_create(int ranks, int *fd)
{
    CHECK(ranks > 1 && ranks <= COMM_RANKS_MAX, "%d ranks", ranks);
    return heartbeat_create(ranks, transport_shm_bytes(ranks), fd);
}

/* The heartbeat memory of a job, for a process that is not one of its ranks; NULL: not found. */
static struct heartbeat *visit(int fd, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return NULL;
    *bytes = (size_t)st.st_size;
    void *b = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return b == MAP_FAILED ? NULL : b;
}

void comm_job_abort(int fd, const char *fmt, ...)
{
    char text[COMM_TEXT];
    size_t bytes;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct heartbeat *b = visit(fd, &bytes);
    if (b == NULL) return;
    heartbeat_abort(b, text);
    munmap(b, bytes);
}

void comm_job_abort_reason(int fd, char text[COMM_TEXT])
{
    size_t bytes;
    struct heartbeat *b = visit(fd, &bytes);
    text[0] = 0;
    if (b == NULL) return;
    heartbeat_abort_reason(b, text);
    munmap(b, bytes);
}

void comm_job_write_flight(int fd, const char *reason)
{
    size_t bytes;
    struct heartbeat *b = visit(fd, &bytes);
    if (b == NULL) return;
    flight_recorder_write(heartbeat_flight(b), heartbeat_ranks(b), reason);
    munmap(b, bytes);
}
