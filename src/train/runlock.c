/* The lock belongs to the open file, not to the process (F_OFD_SETLK): closing another descriptor of the
 * same file does not lose it, threads do not share it by accident, and the kernel drops it when its holder
 * dies, so that none is ever stale. The file stays: removing it would let two jobs lock two files of one
 * name. */
#include "train/runlock.h"
#include "base/io.h"
#include "base/log.h"
#include "spec/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static status taken(const char *run_dir, int fd)
{
    char holder[200];
    ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
    holder[n > 0 ? n : 0] = 0;
    holder[strcspn(holder, "\n")] = 0;
    return FAIL(STATUS_CONFIG,
                "another job uses '%s' (%s); wait for it, stop it, or choose another run directory", run_dir,
                holder[0] ? holder : "it has not yet said who it is");
}

/* Information for people; if it fails, the lock still holds. */
static void sign(int fd)
{
    char host[100] = "?", text[200];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %d on %s\n", (int)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        log_warn("cannot write the holder's name into the run lock");
}

status runlock_take(const char *run_dir, int *fd)
{
    char path[PATH_MAX];
    TRY(io_make_dirs(run_dir));
    snprintf(path, sizeof path, "%s/lock", run_dir);
    int64_t bytes;
    TRY(io_open_own(path, O_RDWR, fd, &bytes));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(*fd, F_OFD_SETLK, &lock) == 0) {
        sign(*fd);
        return STATUS_OK;
    }
    if (errno == EAGAIN || errno == EACCES) {
        status st = taken(run_dir, *fd);
        io_close(fd);
        return st;
    }
    log_warn("'%s' cannot be locked (%s): make sure yourself that no other job uses this run", path,
             strerrordesc_np(errno));
    io_close(fd);
    return STATUS_OK;
}

void runlock_release(int *fd)
{
    io_close(fd);
}

status runlock_directories(const char *dir)
{
    static const char *const names[] = {"ckpt", "trace"};
    char path[SPEC_TEXT + 32];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        enum io_kind kind;
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        TRY(io_kind(path, &kind));
        if (kind != IO_NONE && kind != IO_DIR)
            return FAIL(STATUS_IO,
                        "'%s' is no directory, and a run follows no link in its own; let the run's directory "
                        "(run.dir) be the link",
                        path);
    }
    return STATUS_OK;
}
