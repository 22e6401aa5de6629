/* Running another program, without a shell. */
#ifndef INGOT_BASE_PROCESS_H
#define INGOT_BASE_PROCESS_H
#include "base/status.h"
/* Runs argv (found on PATH, NULL-terminated) with standard input from in_path (NULL: /dev/null) and standard output to out_path
 * (created or truncated), and waits. STATUS_CONFIG when the program is not there, STATUS_IO when it fails or a file cannot be opened. */
status process_run(const char *const argv[], const char *in_path, const char *out_path) WARN_UNUSED;
#endif
