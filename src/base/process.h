/* Running another program, without a shell. */
#ifndef INGOT_BASE_PROCESS_H
#define INGOT_BASE_PROCESS_H
#include "base/status.h"
/* Runs argv (found on PATH, NULL-terminated) and waits. Standard input is in_path (NULL: /dev/null), standard output
 * is out_path (created or truncated). STATUS_CONFIG when the program is not found, STATUS_IO when it fails or a file
 * cannot be opened. */
status process_run(const char *const argv[], const char *in_path, const char *out_path) WARN_UNUSED;
#endif
