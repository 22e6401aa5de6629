/* Files, with the commit protocol. Every call that the kernel can refuse goes through this module, so that
 * tests can make the k-th one fail. Failures are STATUS_IO with path, reason and what to do; EINTR and short
 * reads and writes are handled here. */
#ifndef INGOT_BASE_IO_H
#define INGOT_BASE_IO_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file being written under a temporary name beside its final place; nothing appears there until io_commit.
 * */
struct io_file {
    int fd;     /* -1: closed */
    bool stays; /* of io_reopen: a failing io_commit leaves the temporary */
    char path[1024], temp[1056];
};
/* The temporary is PATH.tmp-PID-RANDOM, created exclusively and not through links. */
status io_create(struct io_file *f, const char *path) WARN_UNUSED;
status io_write(struct io_file *f, const void *data, size_t bytes) WARN_UNUSED;
status io_pwrite(struct io_file *f, const void *data, size_t bytes, int64_t at) WARN_UNUSED;
/* fsync, close, rename, fsync of the directory; on failure the temporary is removed. */
status io_commit(struct io_file *f) WARN_UNUSED;
/* Closes and removes the temporary; safe after commit. */
void io_abandon(struct io_file *f);

/* A temporary that outlives its process: made, in place of what has its name, when `keep` is 0; else cut to
 * its first `keep` bytes (STATUS_DATA: it has fewer, or is not there), after which writing goes on. io_commit renames it to
 * `path`, io_abandon removes it, io_leave closes it and lets it stay, io_sync makes what was written durable.
 */
status io_reopen(struct io_file *f, const char *path, const char *temp, int64_t keep) WARN_UNUSED;
status io_sync(struct io_file *f) WARN_UNUSED;
void io_begin_sync(struct io_file *f); /* the disk may begin, so that a later io_sync waits for little */
void io_leave(struct io_file *f);

/* Reading. io_open: a regular file, its size in *bytes; LINKS_REFUSE for files of a directory that we do not
 * trust. io_pread: all of it, or STATUS_IO. io_close sets -1; closed already is fine. */
enum io_links { LINKS_FOLLOW, LINKS_REFUSE };
status io_open(const char *path, enum io_links links, int *fd, int64_t *bytes) WARN_UNUSED;
status io_pread(int fd, const char *path, void *data, size_t bytes, int64_t at) WARN_UNUSED;
void io_close(int *fd);

/* Whole small files. io_read_file: malloc'd, NUL-terminated beyond *bytes; a file above `bytes_max` is
 * refused. io_write_file: create, write, commit. */
status io_read_file(const char *path, size_t bytes_max, char **data, size_t *bytes) WARN_UNUSED;
status io_write_file(const char *path, const void *data, size_t bytes) WARN_UNUSED;

status io_make_dirs(const char *path) WARN_UNUSED; /* mkdir -p, durable */
status io_make_dir(const char *path) WARN_UNUSED;  /* one, which must not exist */
status io_sync_dir(const char *path) WARN_UNUSED;
status io_rename_dir(const char *from, const char *to) WARN_UNUSED; /* rename, then fsync of the parent */
status io_remove_tree(const char *path) WARN_UNUSED; /* rm -r, links not followed; a missing path is fine */
/* Exchanges two names in one step, not yet durable; *swapped false and STATUS_OK where the file system
 * cannot. */
status io_swap_dir(const char *a, const char *b, bool *swapped) WARN_UNUSED;
/* Names in a directory, sorted, without "." and "..". A missing directory is an empty list. */
struct io_list {
    char **names;
    int count;
};
status io_list(const char *path, struct io_list *list) WARN_UNUSED;
void io_list_free(struct io_list *list);
/* What stands at a path, links not followed. io_exists: anything; false also when it cannot be looked up. */
enum io_kind { IO_NONE, IO_FILE, IO_DIR, IO_OTHER };
status io_kind(const char *path, enum io_kind *kind) WARN_UNUSED;
bool io_exists(const char *path);
int64_t io_free_bytes(const char *path); /* of the file system that holds `path`; -1 when unknown */

/* Removes what a killed process left of io_create in `dir`: every NAME.tmp-PID-RANDOM where no process PID
 * runs. With SWEEP_OWN also this process's: for a caller who writes nothing there now, as pids come back in
 * containers. */
enum io_sweep { SWEEP_DEAD, SWEEP_OWN };
status io_sweep(const char *dir, enum io_sweep which) WARN_UNUSED;

/* Fault injection for tests: the k-th (from 1) system call of this module fails with `err`; 0 switches it
 * off, and both start the count anew. io_fault_calls() is the count so far. Also for a whole process:
 * INGOT_IO_FAULT=k:ERROR in the environment, with ERROR a number, ENOSPC, EIO, EMFILE, ..., KILL (the
 * process dies by SIGKILL at that call) or SHORT (that read or write moves only half). It costs one compare
 * per call and is in every build. */
enum { IO_FAULT_KILL = -1, IO_FAULT_SHORT = -2 };
void io_fault_set(int64_t k, int err);
int64_t io_fault_calls(void);
#endif
