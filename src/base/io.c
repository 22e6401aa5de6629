/* Files and directories. The upper part is the gate that every system call passes, where faults are
 * injected; the rest is written so that a failure at any call leaves the file system as it was, but for what
 * io.h names. */
#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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
    } names[] = {{"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},      {"EIO", EIO},
                 {"EINTR", EINTR},   {"EAGAIN", EAGAIN},      {"EMFILE", EMFILE},
                 {"EROFS", EROFS},   {"EACCES", EACCES},      {"ENOENT", ENOENT},
                 {"ENOMEM", ENOMEM}, {"KILL", IO_FAULT_KILL}, {"SHORT", IO_FAULT_SHORT}};
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

/* True when this call is to fail; errno is set. A SHORT fault halves *bytes instead. */
static bool fault(size_t *bytes)
{
    int64_t call = ++fault_calls;
    if (__builtin_expect(call != fault_at, 1)) return false;
    int err = fault_errno;
    if (err == IO_FAULT_KILL) raise(SIGKILL);
    if (err == IO_FAULT_SHORT) {
        if (bytes) *bytes = (*bytes + 1) / 2;
        return false;
    }
    errno = err;
    return true;
}

/* The gate: SYS(call) is the call's result, made again after EINTR; -1 and errno when it or the injection
 * fails. */
#define SYS(call)                                                                                            \
    __extension__({                                                                                          \
        long sys_;                                                                                           \
        do sys_ = fault(NULL) ? -1 : (long)(call);                                                           \
        while (sys_ < 0 && errno == EINTR);                                                                  \
        sys_;                                                                                                \
    })

/* The descriptor is gone whatever close says, so it is never called twice; EINTR means closed on Linux. */
static int sys_close(int fd)
{
    bool injected = fault(NULL);
    int err = errno, result = close(fd);
    if (injected) errno = err;
    return (injected || result != 0) && errno != EINTR ? -1 : 0;
}

static const char *advice(int err)
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
    case ENOTEMPTY:
    case EEXIST: return "something else is there already; remove it or choose another name";
    default: return "see the reason and try again";
    }
}

#define FAIL_ERRNO(verb, path)                                                                               \
    FAIL(STATUS_IO, "cannot %s '%s': %s; %s", verb, path,                                                    \
         strerrordesc_np(errno) ? strerrordesc_np(errno) : "unknown error", advice(errno))

/* The directory part of a path: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
static void parent_of(const char *path, char out[PATH_MAX])
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
    f->temp[0] = 0;
    if (strlen(path) >= sizeof f->path)
        return FAIL(STATUS_IO, "path of %zu bytes is too long: '%.60s...'; %s", strlen(path), path,
                    advice(ENAMETOOLONG));
    snprintf(f->path, sizeof f->path, "%s", path);
    for (int attempt = 0; attempt < 16; attempt++) {
        uint32_t random;
        if (SYS(getrandom(&random, sizeof random, 0)) != sizeof random)
            return FAIL_ERRNO("draw a temporary name for", path);
        snprintf(f->temp, sizeof f->temp, "%s.tmp-%d-%08x", path, (int)getpid(), random);
        f->fd = (int)SYS(open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
        if (f->fd >= 0) return STATUS_OK;
        if (errno != EEXIST) break;
    }
    f->temp[0] = 0;
    return FAIL_ERRNO("create", path);
}

/* Writes at `at`, or at the file's position when at < 0. */
static status write_all(struct io_file *f, const char *data, size_t bytes, int64_t at)
{
    CHECK(f->fd >= 0, "'%s' is not open for writing", f->path);
    while (bytes > 0) {
        size_t ask = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        if (fault(&ask)) {
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
    if (f->temp[0]) unlink(f->temp); /* nothing to be done when it fails: io_sweep finds it later */
    f->temp[0] = 0;
}

status io_commit(struct io_file *f)
{
    status st = STATUS_OK;
    CHECK(f->fd >= 0, "'%s' is not open for writing", f->path);
    /* After a failed fsync the kernel has marked the pages clean: a second try would lie, so the file is
     * given up. */
    if (SYS(fsync(f->fd)) != 0) st = FAIL_ERRNO("sync", f->path);
    int fd = f->fd;
    f->fd = -1;
    if (sys_close(fd) != 0 && st == STATUS_OK) st = FAIL_ERRNO("close", f->path);
    if (st == STATUS_OK && SYS(rename(f->temp, f->path)) != 0)
        st = FAIL_ERRNO("rename a temporary to", f->path);
    if (st != STATUS_OK) {
        io_abandon(f);
        return st;
    }
    f->temp[0] = 0;
    char parent[PATH_MAX];
    parent_of(f->path, parent);
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
        bool injected = fault(&ask);
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
    *data = NULL;
    *bytes = 0;
    int fd = (int)SYS(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return FAIL_ERRNO("open", path);
    status st = STATUS_OK;
    struct stat s;
    size_t used = 0, size = 4096;
    char *buffer = NULL;
    if (SYS(fstat(fd, &s)) != 0) {
        st = FAIL_ERRNO("stat", path);
        goto out;
    }
    if (s.st_size > 0 && (uint64_t)s.st_size <= bytes_max)
        size = (size_t)s.st_size + 1; /* + 1 to see the end */
    buffer = malloc(size + 1);
    while (buffer) {
        size_t ask = size - used;
        ssize_t n = fault(&ask) ? -1 : read(fd, buffer + used, ask);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = FAIL_ERRNO("read", path);
        if (n <= 0) break;
        used += (size_t)n;
        if (used > bytes_max) {
            st = FAIL(STATUS_IO, "'%s' is larger than the %zu bytes that such a file may have", path,
                      bytes_max);
            break;
        }
        if (used == size) { /* a pipe, or a file that grew */
            size *= 2;
            char *larger = realloc(buffer, size + 1);
            if (!larger) free(buffer);
            buffer = larger;
        }
    }
    if (!buffer) st = FAIL(STATUS_FIT, "no memory for the %zu bytes of '%s'", size, path);
out:
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

status io_make_dirs(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return FAIL(STATUS_IO, "cannot create directory '%.60s': bad length of its name", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (SYS(mkdir(part, 0755)) != 0 && errno != EEXIST) return FAIL_ERRNO("create directory", part);
    }
    struct stat s;
    if (SYS(stat(path, &s)) != 0) return FAIL_ERRNO("stat", path);
    if (!S_ISDIR(s.st_mode)) {
        errno = ENOTDIR;
        return FAIL_ERRNO("create directory", path);
    }
    return STATUS_OK;
}

status io_sync_dir(const char *path)
{
    int fd = (int)SYS(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return FAIL_ERRNO("open directory", path);
    status st = STATUS_OK;
    /* EINVAL: a file system without this notion, such as some network ones. */
    if (SYS(fsync(fd)) != 0 && errno != EINVAL) st = FAIL_ERRNO("sync directory", path);
    if (sys_close(fd) != 0 && st == STATUS_OK) st = FAIL_ERRNO("close directory", path);
    return st;
}

status io_rename_dir(const char *from, const char *to)
{
    if (SYS(rename(from, to)) != 0) return FAIL_ERRNO("rename a directory to", to);
    char parent[PATH_MAX];
    parent_of(to, parent);
    return io_sync_dir(parent);
}

/* Removes `name` in directory `at`, a tree or not; never through a link. */
static status remove_at(int at, const char *name, const char *path)
{
    if (SYS(unlinkat(at, name, 0)) == 0 || errno == ENOENT) return STATUS_OK;
    if (errno != EISDIR) return FAIL_ERRNO("remove", path);
    int fd = (int)SYS(openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0) return FAIL_ERRNO("open directory", path);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        io_close(&fd);
        return FAIL_ERRNO("list directory", path);
    }
    status st = STATUS_OK;
    for (struct dirent *e; st == STATUS_OK && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) st = remove_at(fd, e->d_name, path);
    closedir(dir);
    if (st == STATUS_OK && SYS(unlinkat(at, name, AT_REMOVEDIR)) != 0 && errno != ENOENT)
        st = FAIL_ERRNO("remove directory", path);
    return st;
}

status io_remove_tree(const char *path)
{
    return remove_at(AT_FDCWD, path, path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

status io_list(const char *path, struct io_list *list)
{
    *list = (struct io_list){0};
    int fd = (int)SYS(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0 && errno == ENOENT) return STATUS_OK;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        status st = FAIL_ERRNO("list directory", path);
        io_close(&fd);
        return st;
    }
    status st = STATUS_OK;
    int room = 0;
    for (struct dirent *e; st == STATUS_OK && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (list->count == room) {
            room = room ? 2 * room : 64;
            char **larger = realloc(list->names, (size_t)room * sizeof *larger);
            if (larger)
                list->names = larger;
            else
                st = FAIL(STATUS_FIT, "no memory for the names in '%s'", path);
        }
        if (st == STATUS_OK && !(list->names[list->count++] = strdup(e->d_name)))
            st = FAIL(STATUS_FIT, "no memory for the names in '%s'", path);
    }
    closedir(dir);
    if (st != STATUS_OK)
        io_list_free(list);
    else if (list->count)
        qsort(list->names, (size_t)list->count, sizeof *list->names, by_name);
    return st;
}

void io_list_free(struct io_list *list)
{
    for (int i = 0; i < list->count; i++) free(list->names[i]);
    free(list->names);
    *list = (struct io_list){0};
}

bool io_exists(const char *path)
{
    struct stat s;
    return SYS(lstat(path, &s)) == 0;
}

int64_t io_free_bytes(const char *path)
{
    struct statvfs s;
    if (SYS(statvfs(path, &s)) != 0) return -1;
    return (int64_t)(s.f_bavail * s.f_frsize);
}

status io_sweep(const char *dir, enum io_sweep which)
{
    struct io_list list;
    TRY(io_list(dir, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        const char *mark = strstr(list.names[i], ".tmp-");
        if (!mark) continue;
        char *end;
        long pid = strtol(mark + 5, &end, 10);
        if (*end != '-' || pid <= 0 || pid > INT_MAX || strlen(end) != 9) continue;
        bool runs = pid == getpid() ? which == SWEEP_DEAD : kill((pid_t)pid, 0) == 0 || errno != ESRCH;
        if (runs) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", dir, list.names[i]);
        st = io_remove_tree(path);
    }
    io_list_free(&list);
    return st;
}
