/* What io.c and io_dir.c share: the gate of all system calls, and their messages. */
#ifndef INGOT_BASE_IO_INT_H
#define INGOT_BASE_IO_INT_H
#include "base/io.h"
#include <errno.h>
#include <limits.h>
#include <string.h>

/* True when this call is to fail; errno is set. A SHORT fault halves *bytes (NULL: has none) instead. */
bool io_int_fault(size_t *bytes);
/* close, as a call that can fail; EINTR means closed on Linux. */
int io_int_close(int fd);
/* The directory part of a path: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
void io_int_parent(const char *path, char out[PATH_MAX]);
/* What to do about an errno. */
const char *io_int_advice(int err);

/* The gate: SYS(call) is the call's result, made again after EINTR; -1 and errno when it or the injection
 * fails. */
#define SYS(call) \
    __extension__({ \
        long sys_; \
        do sys_ = io_int_fault(NULL) ? -1 : (long)(call); \
        while (sys_ < 0 && errno == EINTR); \
        sys_; \
    })

#define FAIL_ERRNO(verb, path) \
    FAIL(STATUS_IO, "cannot %s '%s': %s; %s", verb, path, \
         strerrordesc_np(errno) ? strerrordesc_np(errno) : "unknown error", io_int_advice(errno))
#endif
