/* File I/O with a commit protocol. Every call that the kernel can refuse goes through this module, and tests can make
 * the k-th one fail. A failure is STATUS_IO with path, reason and remedy. EINTR and short reads and writes are
 * handled here. */
#ifndef INGOT_BASE_IO_H
#define INGOT_BASE_IO_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file being written under a temporary name in the directory of its final path. The final path does not change
 * before io_commit. */
struct io_file {
    int fd;     /* -1: closed */
    bool stays; /* set by io_reopen: a failing io_commit keeps the temporary */
    char path[1024], temp[1056];
};
/* Creates the temporary PATH.tmp-PID-RANDOM exclusively, without following links. */
status io_create(struct io_file *f, const char *path) WARN_UNUSED;
status io_write(struct io_file *f, const void *data, size_t bytes) WARN_UNUSED;
status io_pwrite(struct io_file *f, const void *data, size_t bytes, int64_t at) WARN_UNUSED;
/* fsync, close, rename, then fsync of the directory. On failure the temporary is removed. */
status io_commit(struct io_file *f) WARN_UNUSED;
/* Closes and removes the temporary; safe after commit. */
void io_abandon(struct io_file *f);

/* Opens a temporary that outlives its process. With `keep` 0 it is created and replaces a file of that name; else it
 * is cut to its first `keep` bytes and writing continues there (STATUS_DATA when it is shorter or missing). io_commit
 * renames it to `path`, io_abandon removes it, io_leave closes and keeps it, io_sync makes the data written so far
 * durable. */
status io_reopen(struct io_file *f, const char *path, const char *temp, int64_t keep) WARN_UNUSED;
status io_sync(struct io_file *f) WARN_UNUSED;
void io_begin_sync(struct io_file *f); /* starts write-back, which shortens a later io_sync */
void io_leave(struct io_file *f);

/* Reading. io_open opens a regular file and returns its size in *bytes; use LINKS_REFUSE for files of an untrusted
 * directory. io_pread reads all bytes or fails with STATUS_IO. io_close sets the descriptor to -1 and accepts one
 * that is closed already. */
enum io_links { LINKS_FOLLOW, LINKS_REFUSE };
status io_open(const char *path, enum io_links links, int *fd, int64_t *bytes) WARN_UNUSED;
status io_pread(int fd, const char *path, void *data, size_t bytes, int64_t at) WARN_UNUSED;
void io_close(int *fd);
/* Opens, or creates, a file that grows in place, such as a log: from its directory, a regular file, no link. Links on
 * the way to the directory are followed. `flags`: O_WRONLY or O_RDWR, O_APPEND, O_TRUNC, O_EXCL. */
status io_open_own(const char *path, int flags, int *fd, int64_t *bytes) WARN_UNUSED;

/* Whole small regular files. io_read_file returns a malloc'd copy with a NUL after *bytes; a file above `bytes_max` is an
 * error. io_write_file creates, writes and commits. */
status io_read_file(const char *path, size_t bytes_max, char **data, size_t *bytes) WARN_UNUSED;
status io_write_file(const char *path, const void *data, size_t bytes) WARN_UNUSED;

status io_make_dirs(const char *path) WARN_UNUSED; /* mkdir -p, durable */
status io_make_dir(const char *path) WARN_UNUSED;  /* one directory, which must not exist */
status io_sync_dir(const char *path) WARN_UNUSED;
status io_rename_dir(const char *from, const char *to) WARN_UNUSED; /* rename, then fsync of the parent */
status io_remove_tree(const char *path) WARN_UNUSED; /* rm -r, links not followed; a missing path is fine */
/* Swaps two names atomically; not yet durable. When the file system cannot do it, *swapped is false and the status
 * STATUS_OK. */
status io_swap_dir(const char *a, const char *b, bool *swapped) WARN_UNUSED;
/* Names in a directory, sorted, without "." and "..". A missing directory is an empty list. */
struct io_list {
    char **names;
    int count;
};
status io_list(const char *path, struct io_list *list) WARN_UNUSED;
/* The same for the paths that match a pattern, as a shell has it; none is an empty list. A directory that cannot be
 * read is an error. */
status io_match(const char *pattern, struct io_list *found) WARN_UNUSED;
void io_list_free(struct io_list *list);
/* Kind of the file at a path; links are not followed. io_exists: whether there is a file of any kind. STATUS_IO when
 * that cannot be told, such as in a directory without permission or on a disk that fails. */
enum io_kind { IO_NONE, IO_FILE, IO_DIR, IO_OTHER };
status io_kind(const char *path, enum io_kind *kind) WARN_UNUSED;
status io_exists(const char *path, bool *there) WARN_UNUSED;
int64_t io_free_bytes(const char *path); /* free bytes of the file system of `path`; -1 when unknown */

/* Removes the temporaries of io_create that a killed process left in `dir`: every NAME.tmp-PID-RANDOM where no
 * process PID runs. SWEEP_OWN also removes those of this process's own PID, because containers reuse PIDs; the caller
 * must have no file open there. Adds to *removed (NULL: not asked) how many it removed. */
enum io_sweep { SWEEP_DEAD, SWEEP_OWN };
status io_sweep(const char *dir, enum io_sweep which, int *removed) WARN_UNUSED;

/* Fault injection for tests: the k-th system call of this module (from 1) fails with `err`; 0 switches injection off.
 * Both restart the count. io_fault_calls() returns the count. For a whole process, set INGOT_IO_FAULT=k:ERROR in the
 * environment; ERROR is a number, ENOSPC, EIO, EMFILE, ..., KILL (SIGKILL at that call), CHECK (a CHECK fails there) or
 * SHORT (that read or write transfers only half). It costs one compare per call and is in every build. */
enum { IO_FAULT_KILL = -1, IO_FAULT_SHORT = -2, IO_FAULT_CHECK = -3 };
void io_fault_set(int64_t k, int err);
int64_t io_fault_calls(void);
#endif
