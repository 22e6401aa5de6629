/* Files, with the commit protocol. Every call that the kernel can refuse goes through this module, so that tests can make the k-th one fail. */
#ifndef INGOT_BASE_IO_H
#define INGOT_BASE_IO_H
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file being written under a temporary name beside its final place; nothing appears there until io_commit. */
struct io_file {
    int fd;
    char path[1024], temp[1040];
};
status io_create(struct io_file *f, const char *path) WARN_UNUSED;                        /* PATH.tmp-PID, exclusive */
status io_write(struct io_file *f, const void *data, size_t bytes) WARN_UNUSED;           /* loops over short writes */
status io_pwrite(struct io_file *f, const void *data, size_t bytes, int64_t at) WARN_UNUSED;
status io_commit(struct io_file *f) WARN_UNUSED;    /* fsync, close, rename, fsync of the directory; on failure the temporary is removed */
void io_abandon(struct io_file *f);                 /* closes and removes the temporary; safe after commit */

/* Whole small files. io_read_file: malloc'd, NUL-terminated beyond *bytes; a file above `bytes_max` is refused. */
status io_read_file(const char *path, size_t bytes_max, char **data, size_t *bytes) WARN_UNUSED;
status io_write_file(const char *path, const void *data, size_t bytes) WARN_UNUSED;       /* create, write, commit */

status io_make_dirs(const char *path) WARN_UNUSED;          /* mkdir -p */
status io_sync_dir(const char *path) WARN_UNUSED;
status io_rename_dir(const char *from, const char *to) WARN_UNUSED;  /* rename, then fsync of the parent */
status io_remove_tree(const char *path) WARN_UNUSED;        /* rm -r; a missing path is fine; does not follow links */
bool io_exists(const char *path);
/* Free bytes on the file system that holds `path`; -1 when unknown. */
int64_t io_free_bytes(const char *path);

/* Fault injection for tests: the k-th (from 1) system call of this module fails with `err`; 0 switches it off. The count of calls
 * so far is returned by io_fault_calls(). Also settable for a whole process by INGOT_IO_FAULT=k:errno (test builds and release alike; it costs one compare). */
void io_fault_set(int64_t k, int err);
int64_t io_fault_calls(void);
#endif
