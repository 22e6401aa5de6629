#include "comm/shared.h"
#include "comm/comm_int.h"
#include "comm/health/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* How the others open the file of rank 0. */
struct place {
    int32_t pid, fd; /* fd < 0: it could not be made */
};

static int make(size_t bytes)
{
    int fd = memfd_create("ingot shared", MFD_CLOEXEC);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)bytes) == 0) return fd;
    close(fd);
    return -1;
}

static int open_of(const struct place *p)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", p->pid, p->fd);
    return p->fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
}

status comm_shared_open(struct comm *world, size_t bytes, void **base)
{
    CHECK(comm_job(world).shares_memory, "ranks on several hosts");
    const bool first = comm_rank(world) == 0;
    struct place p = {.pid = (int32_t)getpid(), .fd = first ? make(bytes) : -1};
    int32_t bad[COMM_RANKS_MAX];
    *base = NULL;
    TRY(comm_broadcast(world, "place of shared memory", &p, sizeof p, NULL));
    int fd = first ? p.fd : open_of(&p);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int32_t mine = at == MAP_FAILED ? errno : 0;
    const status st = comm_all_gather(world, "shared memory", &mine, bad, sizeof mine, NULL);
    if (fd >= 0) close(fd); /* all have mapped it */
    int worst = 0;
    while (st == STATUS_OK && worst < comm_ranks(world) && bad[worst] == 0) worst++;
    if (st == STATUS_OK && worst == comm_ranks(world)) {
        *base = at;
        return st;
    }
    if (at != MAP_FAILED) munmap(at, bytes);
    TRY(st);
    return FAIL(STATUS_OUT_OF_MEMORY, "rank %d gets no %zu bytes of memory that ranks share: %s", worst,
                bytes, strerror(bad[worst]));
}

void comm_shared_close(void *base, size_t bytes)
{
    if (base) munmap(base, bytes);
}

bool comm_aborted(const struct comm *world)
{
    return world && world->monitor && rank_monitor_aborted(world->monitor);
}
