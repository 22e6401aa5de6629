/* Log lines. Everything for people goes to stderr and, once a run is open, to its log.txt; results go to stdout elsewhere. */
#ifndef INGOT_BASE_LOG_H
#define INGOT_BASE_LOG_H
#include "base/status.h"
#include <stdio.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Lines below `level` are dropped. Default LOG_INFO; the environment variable INGOT_LOG (debug|info|warn|error) sets it at start. */
void log_level_set(enum log_level level);
/* Also append every line, with a UTC time stamp, to `f` (not owned; NULL ends it). */
void log_file_set(FILE *f);
/* This process is rank `rank` of a job: above 0, only errors are shown, and with the rank in front (INGOT_LOG shows more). */
void log_rank_set(int rank);
/* While a progress line is on screen, log lines must clear it first: progress code sets this hook. NULL: none. */
void log_before_line_set(void (*hook)(void));

void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Only into that file: what the caller's caller will say on stderr, after the file is closed. */
void log_line_file(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#endif
