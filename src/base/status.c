#include "base/status.h"
#include "base/scope.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct record {
    char message[2048];
    const char *file;
    int line;
    char path[384];  /* of scopes */
    char where[512]; /* formatted on request only: millions of failures must be cheap */
};
static _Thread_local struct record record;

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
    return err == ENOMEM ? STATUS_FIT : STATUS_IO;
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

void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char text[1024], path[384];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    scope_path(path, sizeof path);
    fprintf(stderr,
            "ingot: bug: %s\n  check  %s\n  where  %s:%d%s%s\n  please report this with the command that led "
            "here\n",
            text, cond, file_stem(file), line, path[0] ? " in " : "", path);
    abort();
}
