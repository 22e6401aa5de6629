/* Running another program, without a shell. */
#ifndef INGOT_BASE_PROCESS_H
#define INGOT_BASE_PROCESS_H
#include "base/status.h"
#include <stddef.h>
/* Runs argv (found on PATH, NULL-terminated) and waits. Standard input is in_path (NULL: /dev/null), standard output
 * is out_path (created or truncated). STATUS_CONFIG when the program is not found, STATUS_IO when it fails or a file
 * cannot be opened. */
status process_run(const char *const argv[], const char *in_path, const char *out_path) WARN_UNUSED;
/* Runs argv and puts what it wrote to standard output into `out`, with a terminator; what does not fit is dropped.
 * Standard error is not shown. STATUS_IO when it fails, or runs longer than limit_s: then it is killed. */
status process_read(const char *const argv[], double limit_s, char *out, size_t size) WARN_UNUSED;
/* Runs argv and waits; what it prints, also to standard error, goes to the end of log_path. *code: its exit code, or 128
 * and the number of the signal that ended it. STATUS_IO when it cannot be started. */
status process_log(const char *const argv[], const char *log_path, int *code) WARN_UNUSED;
#endif
