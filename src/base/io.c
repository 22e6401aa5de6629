/* Files and directories. The first part wraps every system call and injects faults there. The rest leaves
 * the file system unchanged when any call fails, except where io.h states otherwise. */
#include "base/io_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Process-wide by nature: the k-th call of the process fails, whichever thread makes it. */
static _Atomic int64_t fault_calls;
static _Atomic int64_t fault_at;
static _Atomic int fault_errno;

void io_fault_set(int64_t k, int err)
{
    fault_errno = err;
    fault_at = k;
    fault_calls = 0;
}

int64_t io_fault_calls(void)
{
    return fault_calls;
}

__attribute__((constructor)) static void fault_from_environment(void)
{
    const char *text = getenv("INGOT_IO_FAULT");
    if (!text) return;
    static const struct {
        const char *name;
        int err;
    } names[] = {{"ENOSPC", ENOSPC},       {"EDQUOT", EDQUOT},      {"EIO", EIO},
                 {"EINTR", EINTR},         {"EAGAIN", EAGAIN},      {"EMFILE", EMFILE},
                 {"EROFS", EROFS},         {"EACCES", EACCES},      {"ENOENT", ENOENT},
                 {"ENOMEM", ENOMEM},       {"KILL", IO_FAULT_KILL}, {"SHORT", IO_FAULT_SHORT},
                 {"CHECK", IO_FAULT_CHECK}};
    char *end, *stop;
    long long k = strtoll(text, &end, 10);
    if (*end == ':' && k > 0) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            if (strcmp(end + 1, names[i].name) == 0) return io_fault_set(k, names[i].err);
        long err = strtol(end + 1, &stop, 10);
        if (stop != end + 1 && *stop == 0 && err > 0 && err < 4096) return io_fault_set(k, (int)err);
    }
    fprintf(stderr, "ingot: INGOT_IO_FAULT='%s' is not k:ERROR, as in 12:ENOSPC or 12:KILL\n", text);
    _exit(STATUS_CONFIG);
}

bool io_int_fault(size_t *bytes)
{
    int64_t call = ++fault_calls;
    if (__builtin_expect(call != fault_at, 1)) return false;
    int err = fault_errno;
    if (err == IO_FAULT_KILL) raise(SIGKILL);
    CHECK(err != IO_FAULT_CHECK, "INGOT_IO_FAULT asks for it at call %lld", (long long)call);
    if (err == IO_FAULT_SHORT) {
        if (bytes) *bytes = (*bytes + 1) / 2;
        return false;
    }
    errno = err;
    return true;
}

/* The descriptor is gone whatever close says, so it is never called twice. */
int io_int_close(int fd)
{
    bool injected = io_int_fault(NULL);
    int err = errno, result = close(fd);
    if (injected) errno = err;
    return (injected || result != 0) && errno != EINTR ? -1 : 0;
}

const char *io_int_advice(int err)
{
    switch (err) {
    case ENOSPC:
    case EDQUOT: return "free space there or choose another directory";
    case EACCES:
    case EPERM: return "check owner and permissions";
    case EROFS: return "the file system is mounted read-only; choose another directory";
    case ENOENT: return "check the path";
    case ENOTDIR:
    case EISDIR: return "a file stands where a directory should be, or the other way round";
    case ELOOP: return "it is a symbolic link, which is not accepted here";
    case EMFILE:
    case ENFILE: return "too many open files; raise `ulimit -n`";
    case ENAMETOOLONG: return "choose a shorter path";
    case EIO: return "the device reports an error; see `dmesg` and check the disk";
    case ENOMEM: return "end other programs, or raise the limit of this one (ulimit -v, the container's)";
    case ENOTEMPTY:
    case EEXIST: return "something else is there already; remove it or choose another name";
    default: return "see the reason and try again";
    }
}

void io_int_parent(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(out, PATH_MAX, ".");
    else if (slash == path)
        snprintf(out, PATH_MAX, "/");
    else
        snprintf(out, PATH_MAX, "%.*s", (int)(slash - path), path);
}

status io_create(struct io_file *f, const char *path)
{
    f->fd = -1;
    f->stays = false;
    f->temp[0] = 0;
    if (strlen(path) >= sizeof f->path)
        return FAIL(STATUS_IO, "path of %zu bytes is too long: '%.60s...'; %s", strlen(path), path,
                    io_int_advice(ENAMETOOLONG));
    snprintf(f->path, sizeof f->path, "%s", path);
    for (int attempt = 0; attempt < 16; attempt++) {
        uint32_t random;
        if (SYS(getrandom(&random, sizeof random, 0)) != sizeof random)
            return FAIL_ERRNO("draw a temporary name for", path);
        snprintf(f->temp, sizeof f->temp, "%s.tmp-%d-%08x", path, (int)getpid(), random);
        f->fd = (int)SYS(open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
        if (f->fd >= 0) return STATUS_OK;
        if (errno != EEXIST) break;
    }
    f->temp[0] = 0;
    return FAIL_ERRNO("create", path);
}

/* Cuts an open temporary to `keep` bytes and goes to its end. */
static status cut(struct io_file *f, int64_t keep)
{
    struct stat s;
    if (SYS(fstat(f->fd, &s)) != 0) return FAIL_ERRNO("stat", f->temp);
    if (!S_ISREG(s.st_mode) || s.st_size < keep)
        return FAIL(STATUS_DATA, "'%s' has %lld bytes, expected at least %lld", f->temp, (long long)s.st_size,
                    (long long)keep);
    if (SYS(ftruncate(f->fd, keep)) != 0) return FAIL_ERRNO("cut", f->temp);
    if (SYS(lseek(f->fd, keep, SEEK_SET)) < 0) return FAIL_ERRNO("seek in", f->temp);
    return STATUS_OK;
}

status io_reopen(struct io_file *f, const char *path, const char *temp, int64_t keep)
{
    f->fd = -1;
    f->temp[0] = 0;
    if (strlen(path) >= sizeof f->path || strlen(temp) >= sizeof f->temp)
        return FAIL(STATUS_IO, "path of %zu bytes is too long: '%.60s...'; %s", strlen(temp), temp,
                    io_int_advice(ENAMETOOLONG));
    snprintf(f->path, sizeof f->path, "%s", path);
    f->fd = (int)SYS(open(temp, O_RDWR | (keep ? 0 : O_CREAT) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (f->fd < 0 && errno == ENOENT && keep > 0) return FAIL(STATUS_DATA, "'%s' is not there", temp);
    if (f->fd < 0) return FAIL_ERRNO("open", temp);
    f->stays = true;
    snprintf(f->temp, sizeof f->temp, "%s", temp);
    status st = cut(f, keep);
    if (st != STATUS_OK) io_leave(f);
    return st;
}

status io_sync(struct io_file *f)
{
    CHECK(f->fd >= 0, "'%s' is not open for writing", f->path);
    return SYS(fsync(f->fd)) == 0 ? STATUS_OK : FAIL_ERRNO("sync", f->path);
}

void io_begin_sync(struct io_file *f)
{
    (void)sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* a hint; io_sync reports failures */
}

void io_leave(struct io_file *f)
{
    io_close(&f->fd);
    f->temp[0] = 0;
}

/* Writes at `at`, or at the file's position when at < 0. */
static status write_all(struct io_file *f, const char *data, size_t bytes, int64_t at)
{
    CHECK(f->fd >= 0, "'%s' is not open for writing", f->path);
    while (bytes > 0) {
        size_t ask = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        if (io_int_fault(&ask)) {
            if (errno == EINTR) continue;
            return FAIL_ERRNO("write", f->path);
        }
        ssize_t n = at < 0 ? write(f->fd, data, ask) : pwrite(f->fd, data, ask, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = ENOSPC;
            return FAIL_ERRNO("write", f->path);
        }
        data += n;
        bytes -= (size_t)n;
        if (at >= 0) at += n;
    }
    return STATUS_OK;
}

status io_write(struct io_file *f, const void *data, size_t bytes)
{
    return write_all(f, data, bytes, -1);
}

status io_pwrite(struct io_file *f, const void *data, size_t bytes, int64_t at)
{
    CHECK(at >= 0, "'%s' at %lld", f->path, (long long)at);
    return write_all(f, data, bytes, at);
}

void io_abandon(struct io_file *f)
{
    io_close(&f->fd);
    if (f->temp[0]) unlink(f->temp); /* if it fails, io_sweep finds the file later */
    f->temp[0] = 0;
}

status io_commit(struct io_file *f)
{
    status st = STATUS_OK;
    CHECK(f->fd >= 0, "'%s' is not open for writing", f->path);
    /* After a failed fsync the kernel has marked the pages clean. A second try would succeed without writing,
     * so the file is discarded. */
    if (SYS(fsync(f->fd)) != 0) st = FAIL_ERRNO("sync", f->path);
    int fd = f->fd;
    f->fd = -1;
    if (io_int_close(fd) != 0 && st == STATUS_OK) st = FAIL_ERRNO("close", f->path);
    if (st == STATUS_OK && SYS(rename(f->temp, f->path)) != 0)
        st = FAIL_ERRNO("rename a temporary to", f->path);
    if (st != STATUS_OK) {
        if (f->stays)
            io_leave(f);
        else
            io_abandon(f);
        return st;
    }
    f->temp[0] = 0;
    char parent[PATH_MAX];
    io_int_parent(f->path, parent);
    return io_sync_dir(parent);
}

status io_open(const char *path, enum io_links links, int *fd, int64_t *bytes)
{
    /* O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on a regular file. */
    *fd = (int)SYS(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == LINKS_REFUSE ? O_NOFOLLOW : 0)));
    if (*fd < 0) return FAIL_ERRNO("open", path);
    struct stat s;
    status st = STATUS_OK;
    if (SYS(fstat(*fd, &s)) != 0)
        st = FAIL_ERRNO("stat", path);
    else if (!S_ISREG(s.st_mode))
        st = FAIL(STATUS_IO, "'%s' is not a regular file", path);
    if (st == STATUS_OK)
        *bytes = s.st_size;
    else
        io_close(fd);
    return st;
}

status io_open_own(const char *path, int flags, int *fd, int64_t *bytes)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat s;
    *fd = -1;
    io_int_parent(path, parent);
    int dir = (int)SYS(open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (dir < 0) return FAIL_ERRNO("open", path);
    /* O_NONBLOCK: a pipe without a reader is refused at once. */
    *fd = (int)SYS(openat(dir, name, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    status st = STATUS_OK;
    if (*fd < 0)
        st = errno == ENXIO ? FAIL(STATUS_IO, "'%s' is not a regular file", path) : FAIL_ERRNO("open", path);
    else if (SYS(fstat(*fd, &s)) != 0)
        st = FAIL_ERRNO("stat", path);
    else if (!S_ISREG(s.st_mode))
        st = FAIL(STATUS_IO, "'%s' is not a regular file", path);
    io_close(&dir);
    if (st != STATUS_OK)
        io_close(fd);
    else
        *bytes = s.st_size;
    return st;
}

void io_close(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

status io_pread(int fd, const char *path, void *data, size_t bytes, int64_t at)
{
    char *out = data;
    while (bytes > 0) {
        size_t ask = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        bool injected = io_int_fault(&ask);
        ssize_t n = injected ? -1 : pread(fd, out, ask, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return FAIL_ERRNO("read", path);
        if (n == 0)
            return FAIL(STATUS_IO, "'%s' ends at byte %lld; %zu more were expected", path, (long long)at,
                        bytes);
        out += n;
        bytes -= (size_t)n;
        at += n;
    }
    return STATUS_OK;
}

status io_read_file(const char *path, size_t bytes_max, char **data, size_t *bytes)
{
    int fd;
    int64_t there;
    *data = NULL;
    *bytes = 0;
    TRY(io_open(path, LINKS_FOLLOW, &fd, &there));
    status st = STATUS_OK;
    size_t used = 0, size = 4096;
    if (there > 0 && (uint64_t)there <= bytes_max) size = (size_t)there + 1; /* + 1 to see the end */
    char *buffer = malloc(size + 1);
    while (buffer) {
        size_t ask = size - used;
        ssize_t n = io_int_fault(&ask) ? -1 : read(fd, buffer + used, ask);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = FAIL_ERRNO("read", path);
        if (n <= 0) break;
        used += (size_t)n;
        if (used > bytes_max) {
            st = FAIL(STATUS_IO, "'%s' is larger than the %zu bytes that such a file may have", path,
                      bytes_max);
            break;
        }
        if (used == size) { /* the file grew, or is one of /proc */
            size *= 2;
            char *larger = realloc(buffer, size + 1);
            if (!larger) free(buffer);
            buffer = larger;
        }
    }
    if (!buffer) st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the %zu bytes of '%s'", size, path);
    io_close(&fd);
    if (st != STATUS_OK) {
        free(buffer);
        return st;
    }
    buffer[used] = 0;
    *data = buffer;
    *bytes = used;
    return st;
}

status io_write_file(const char *path, const void *data, size_t bytes)
{
    struct io_file f;
    TRY(io_create(&f, path));
    status st = io_write(&f, data, bytes);
    if (st == STATUS_OK) return io_commit(&f);
    io_abandon(&f);
    return st;
}
