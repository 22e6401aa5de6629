#include "base/status.h"
#include "base/log.h"
#include "base/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct record {
    char message[2048];
    const char *file;
    int line;
    char path[384];  /* of scopes */
    char where[512]; /* formatted on request only: millions of failures must be cheap */
};
static _Thread_local struct record record;
static char check_file[1024]; /* set before threads start */

const char *status_text(status st)
{
    switch (st) {
#define X(name, code, text)                                                                                  \
    case STATUS_##name: return text;
        STATUS_LIST(X)
#undef X
    }
    return "unknown";
}

status status_of_errno(int err)
{
    return err == ENOMEM ? STATUS_OUT_OF_MEMORY : STATUS_IO;
}

static const char *file_stem(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

status status_fail(status st, const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    /* The arguments may point into the record itself (FAIL(..., status_message())): format to a copy first. */
    char text[sizeof record.message];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(record.message, text, strlen(text) + 1);
    record.file = file_stem(file);
    record.line = line;
    scope_path(record.path, sizeof record.path);
    return st;
}

status status_wrap(status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char front[512], text[sizeof record.message + 512];
    vsnprintf(front, sizeof front, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%s: %s", front, record.message);
    memcpy(record.message, text, sizeof record.message);
    record.message[sizeof record.message - 1] = 0;
    return st;
}

const char *status_message(void)
{
    return record.message;
}
const char *status_where(void)
{
    if (record.file)
        snprintf(record.where, sizeof record.where, "%s:%d%s%s", record.file, record.line,
                 record.path[0] ? " in " : "", record.path);
    return record.where;
}

void check_file_set(const char *path)
{
    snprintf(check_file, sizeof check_file, "%s", path);
}

/* Fields between tabs; one write(), so lines of several ranks do not mix. */
static void write_check(const char *where, const char *cond, const char *text)
{
    char line[2048], stamp[32];
    struct tm tm;
    const time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    snprintf(line, sizeof line - 1, "%s\trank %d\tprocess %lld\t%s\t%s\t%s", stamp, log_rank(),
             (long long)getpid(), where, cond, text);
    for (char *p = line; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
    const size_t n = strlen(line);
    line[n] = '\n';
    const int fd =
        check_file[0]
            ? open(check_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666)
            : -1;
    if (fd < 0) return;
    if (write(fd, line, n + 1) < 0) perror(check_file);
    close(fd);
}

void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char text[1024], path[384], where[512];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    scope_path(path, sizeof path);
    snprintf(where, sizeof where, "%s:%d%s%s", file_stem(file), line, path[0] ? " in " : "", path);
    fprintf(stderr,
            "ingot: bug: %s\n  check  %s\n  where  %s\n  please report this with the command that led here\n",
            text, cond, where);
    write_check(where, cond, text);
    abort();
}
