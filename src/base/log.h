/* Log lines. Messages go to stderr and, once a run is open, to its log.txt. Results go to stdout elsewhere. */
#ifndef INGOT_BASE_LOG_H
#define INGOT_BASE_LOG_H
#include "base/status.h"
#include <stdio.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Drops lines below `level`. The default is LOG_INFO; the environment variable INGOT_LOG (debug|info|warn|error) sets
 * it at start. */
void log_level_set(enum log_level level);
/* Also append every line, with a UTC time stamp, to `f` (not owned; NULL ends it). */
void log_file_set(FILE *f);
/* Sets the rank of this process in its job. Ranks above 0 print errors only, with the rank in front (INGOT_LOG shows
 * more). */
void log_rank_set(int rank);
int log_rank(void);
/* Sets a hook that clears the progress line on screen before a log line is printed. NULL: none. */
void log_before_line_set(void (*hook)(void));
/* Between the two no thread prints a log line: for who draws on the same terminal. The hook is called inside. */
void log_hold(void);
void log_release(void);

void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Writes to that file only. Use it for a message that a caller prints on stderr after the file is closed. */
void log_line_file(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Numbers for authors: to the log file, and to stderr only with INGOT_LOG=debug. */
void log_detail(const char *fmt, ...) PRINTF_LIKE(1, 2);
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#endif
