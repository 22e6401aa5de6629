#include "observe/observe_int.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status sink_open(struct sink *s, const char *path, enum sink_mode mode)
{
    *s = (struct sink){.file.fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (snprintf(s->file.path, sizeof s->file.path, "%s", path) >= (int)sizeof s->file.path)
        return FAIL(STATUS_IO, "%.80s...: the path is too long", path);
    const int how = mode == SINK_NEW ? O_EXCL : mode == SINK_TRUNCATE ? O_TRUNC : 0;
    return io_open_own(path, O_WRONLY | O_APPEND | how, &s->file.fd, &s->good);
}

static void refused(struct sink *s, const char *doing)
{
    if (s->failures++ == 0)
        log_warn("%s while %s; training continues, records are kept until they can be written",
                 status_message(), doing);
}

/* Removes what was written of a record: the next one would be appended to it. */
static status cut(struct sink *s)
{
    struct stat info;
    const bool regular = fstat(s->file.fd, &info) == 0 && S_ISREG(info.st_mode);
    if (regular && info.st_size != s->good && ftruncate(s->file.fd, s->good) != 0)
        return FAIL(status_of_errno(errno), "%s: half a record cannot be cut off: %s", s->file.path,
                    strerror(errno));
    s->torn = false;
    return STATUS_OK;
}

static status put(struct sink *s, const void *data, size_t bytes)
{
    if (s->torn) TRY(cut(s));
    const status st = io_write(&s->file, data, bytes);
    if (st == STATUS_OK) {
        s->good += (int64_t)bytes;
        return st;
    }
    char why[1024];
    snprintf(why, sizeof why, "%s", status_message());
    s->torn = true;
    return cut(s) == STATUS_OK ? FAIL(st, "%s", why) : st;
}

/* Records that were refused, in their order. */
static status put_kept(struct sink *s)
{
    if (s->kept_bytes == 0) return STATUS_OK;
    TRY(put(s, s->kept, s->kept_bytes));
    free(s->kept);
    s->kept = NULL;
    s->kept_bytes = 0;
    s->kept_count = 0;
    return STATUS_OK;
}

static void keep(struct sink *s, const void *data, size_t bytes)
{
    char *more = s->kept_bytes + bytes <= SINK_KEPT ? realloc(s->kept, s->kept_bytes + bytes) : NULL;
    if (more == NULL) {
        s->lost++;
        return;
    }
    memcpy(more + s->kept_bytes, data, bytes);
    s->kept = more;
    s->kept_bytes += bytes;
    s->kept_count++;
}

status sink_begin(struct sink *s, const void *data, size_t bytes)
{
    return put(s, data, bytes);
}

void sink_append(struct sink *s, const void *data, size_t bytes)
{
    if (s->file.fd < 0) {
        s->failures++;
        return;
    }
    pthread_mutex_lock(&s->lock);
    status st = put_kept(s);
    if (st == STATUS_OK) st = put(s, data, bytes);
    if (st != STATUS_OK) {
        keep(s, data, bytes);
        refused(s, "a record was written");
    }
    pthread_mutex_unlock(&s->lock);
}

bool sink_catch_up(struct sink *s)
{
    pthread_mutex_lock(&s->lock);
    const bool all = s->file.fd >= 0 && put_kept(s) == STATUS_OK;
    pthread_mutex_unlock(&s->lock);
    return all;
}

void sink_sync(struct sink *s)
{
    if (s->file.fd < 0) return;
    (void)sink_catch_up(s);
    if (fsync(s->file.fd) == 0) return;
    if (errno == EINVAL || errno == EROFS) return; /* a pipe or a device: nothing to sync */
    (void)FAIL(status_of_errno(errno), "%s: %s", s->file.path, strerror(errno));
    pthread_mutex_lock(&s->lock);
    refused(s, "it was flushed");
    pthread_mutex_unlock(&s->lock);
}

void sink_close(struct sink *s)
{
    if (s->file.fd < 0) return;
    if (!sink_catch_up(s)) s->lost += s->kept_count;
    if (s->lost > 0)
        log_warn("%s lacks %lld records, which could not be written", s->file.path, (long long)s->lost);
    free(s->kept);
    s->kept = NULL;
    s->kept_bytes = 0;
    close(s->file.fd);
    s->file.fd = -1;
}
