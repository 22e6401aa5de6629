/* Directories: create, list, rename, remove, sweep. */
#include "base/io_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The new entry is durable only after its parent is synced. */
static status sync_parent(const char *path)
{
    char parent[PATH_MAX];
    io_int_parent(path, parent);
    return io_sync_dir(parent);
}

status io_make_dir(const char *path)
{
    if (SYS(mkdir(path, 0777)) != 0) return FAIL_ERRNO("create directory", path);
    return STATUS_OK;
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
        if (SYS(mkdir(part, 0777)) == 0)
            TRY(sync_parent(part));
        else if (errno != EEXIST)
            return FAIL_ERRNO("create directory", part);
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
    /* EINVAL: a file system without directory sync, such as some network ones. */
    if (SYS(fsync(fd)) != 0 && errno != EINVAL) st = FAIL_ERRNO("sync directory", path);
    if (io_int_close(fd) != 0 && st == STATUS_OK) st = FAIL_ERRNO("close directory", path);
    return st;
}

status io_rename_dir(const char *from, const char *to)
{
    if (SYS(rename(from, to)) != 0) return FAIL_ERRNO("rename a directory to", to);
    return sync_parent(to);
}

status io_swap_dir(const char *a, const char *b, bool *swapped)
{
    *swapped = SYS(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)) == 0;
    if (*swapped || errno == EINVAL || errno == ENOSYS) return STATUS_OK;
    return FAIL_ERRNO("exchange a directory with", b);
}

/* Removes `name` in directory `at`, a tree or not; never follows a link. */
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
                st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the names in '%s'", path);
        }
        if (st == STATUS_OK && !(list->names[list->count++] = strdup(e->d_name)))
            st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the names in '%s'", path);
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

status io_kind(const char *path, enum io_kind *kind)
{
    struct stat s;
    *kind = IO_NONE;
    if (SYS(lstat(path, &s)) != 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG ? STATUS_OK
                                                                            : FAIL_ERRNO("stat", path);
    *kind = S_ISREG(s.st_mode) ? IO_FILE : S_ISDIR(s.st_mode) ? IO_DIR : IO_OTHER;
    return STATUS_OK;
}

status io_exists(const char *path, bool *there)
{
    enum io_kind kind;
    *there = false;
    TRY(io_kind(path, &kind));
    *there = kind != IO_NONE;
    return STATUS_OK;
}

int64_t io_free_bytes(const char *path)
{
    struct statvfs s;
    /* Not SYS: faults are for calls whose failure loses something or must be said. Here -1 is an answer. */
    if (statvfs(path, &s) != 0) return -1;
    return (int64_t)(s.f_bavail * s.f_frsize);
}

status io_sweep(const char *dir, enum io_sweep which, int *removed)
{
    struct io_list list;
    TRY(io_list(dir, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        const char *mark = strstr(list.names[i], ".tmp-");
        if (!mark || mark == list.names[i]) continue;
        char *end;
        long pid = strtol(mark + 5, &end, 10);
        if (*end != '-' || pid <= 0 || pid > INT_MAX || strlen(end) != 9) continue;
        bool runs = pid == getpid() ? which == SWEEP_DEAD : kill((pid_t)pid, 0) == 0 || errno != ESRCH;
        if (runs) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", dir, list.names[i]);
        st = io_remove_tree(path);
        if (removed) *removed += st == STATUS_OK;
    }
    io_list_free(&list);
    return st;
}
