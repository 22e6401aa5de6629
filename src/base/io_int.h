/* Shared by io.c and io_dir.c: the wrapper of all system calls, and their error messages. */
#ifndef INGOT_BASE_IO_INT_H
#define INGOT_BASE_IO_INT_H
#include "base/io.h"
#include <errno.h>
#include <limits.h>
#include <string.h>

/* True when fault injection makes this call fail; errno is set. A SHORT fault halves *bytes instead (NULL: the call
 * has no size). */
bool io_int_fault(size_t *bytes);
/* close, as a call that can fail; EINTR means closed on Linux. */
int io_int_close(int fd);
/* The directory part of a path: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
void io_int_parent(const char *path, char out[PATH_MAX]);
/* The remedy to print for an errno. */
const char *io_int_advice(int err);

/* Wrapper of system calls: SYS(call) is the call's result; EINTR repeats it. -1 and errno when the call or the
 * injection fails. */
#define SYS(call)                                                                                            \
    __extension__({                                                                                          \
        long sys_;                                                                                           \
        do sys_ = io_int_fault(NULL) ? -1 : (long)(call);                                                    \
        while (sys_ < 0 && errno == EINTR);                                                                  \
        sys_;                                                                                                \
    })

#define FAIL_ERRNO(verb, path)                                                                               \
    FAIL(status_of_errno(errno), "cannot %s '%s': %s; %s", verb, path,                                       \
         strerrordesc_np(errno) ? strerrordesc_np(errno) : "unknown error", io_int_advice(errno))
#endif
