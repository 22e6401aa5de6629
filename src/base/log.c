#include "base/log.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int level_min = -1; /* -1: not read from the environment yet */
static int rank_number;
static FILE *file;
static void (*before_line)(void);

static const char *const level_name[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warning", [LOG_ERROR] = "error"};

static int level_from_env(void)
{
    const char *e = getenv("INGOT_LOG");
    if (e == NULL) return LOG_INFO;
    for (int l = LOG_DEBUG; l <= LOG_ERROR; l++)
        if (strcasecmp(e, level_name[l]) == 0) return l;
    return strcasecmp(e, "warn") == 0 ? LOG_WARN : LOG_INFO;
}

void log_rank_set(int rank)
{
    rank_number = rank;
    if (rank > 0 && getenv("INGOT_LOG") == NULL) level_min = LOG_ERROR;
}
int log_rank(void)
{
    return rank_number;
}
void log_level_set(enum log_level level)
{
    level_min = (int)level;
}
void log_file_set(FILE *f)
{
    pthread_mutex_lock(&lock);
    file = f;
    pthread_mutex_unlock(&lock);
}
void log_before_line_set(void (*hook)(void))
{
    before_line = hook;
}

void log_hold(void)
{
    pthread_mutex_lock(&lock);
}
void log_release(void)
{
    pthread_mutex_unlock(&lock);
}

static void write_file(enum log_level level, const char *text)
{
    if (file == NULL) return;
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    gmtime_r(&now, &tm);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    fprintf(file, "%s %s %s\n", stamp, level_name[level], text);
    fflush(file); /* its failure (full disk) must not stop training */
}

void log_line_file(enum log_level level, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    write_file(level, text);
    pthread_mutex_unlock(&lock);
}

void log_detail(const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (level_min < 0) level_min = level_from_env();
    const bool shown = level_min == LOG_DEBUG;
    pthread_mutex_unlock(&lock);
    if (shown)
        log_line(LOG_INFO, "%s", text);
    else
        log_line_file(LOG_INFO, "%s", text);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    pthread_mutex_lock(&lock);
    if (level_min < 0) level_min = level_from_env();
    if ((int)level >= level_min) {
        char text[4096];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        if (before_line) before_line();
        const char *mark = level == LOG_INFO ? "" : level_name[level];
        char rank[32] = "";
        if (rank_number > 0) snprintf(rank, sizeof rank, "rank %d: ", rank_number);
        fprintf(stderr, "%s%s%s%s\n", rank, mark, mark[0] ? ": " : "", text);
        write_file(level, text);
    }
    pthread_mutex_unlock(&lock);
}
