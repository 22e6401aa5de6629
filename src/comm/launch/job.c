/* The shared memory of a job, for whoever starts its ranks: `ingot launch`, rank 0 of torchrun's, tests. */
#include "comm/health/heartbeat.h"
#include "comm/transport.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

status comm_local_create(int ranks, int *fd)
{
    CHECK(ranks > 1 && ranks <= COMM_RANKS_MAX, "%d ranks", ranks);
    return board_create(ranks, transport_shm_bytes(ranks), fd);
}

/* The board of a job, for a process that is none of its ranks; NULL: it is not there. */
static struct board *visit(int fd, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return NULL;
    *bytes = (size_t)st.st_size;
    void *b = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return b == MAP_FAILED ? NULL : b;
}

void comm_local_abort(int fd, const char *fmt, ...)
{
    char text[COMM_TEXT];
    size_t bytes;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct board *b = visit(fd, &bytes);
    if (b == NULL) return;
    board_abort(b, text);
    munmap(b, bytes);
}

void comm_local_reason(int fd, char text[COMM_TEXT])
{
    size_t bytes;
    struct board *b = visit(fd, &bytes);
    text[0] = 0;
    if (b == NULL) return;
    board_reason(b, text);
    munmap(b, bytes);
}

void comm_local_flight(int fd, const char *reason)
{
    size_t bytes;
    struct board *b = visit(fd, &bytes);
    if (b == NULL) return;
    flight_write(board_flight(b), board_ranks(b), reason);
    munmap(b, bytes);
}
