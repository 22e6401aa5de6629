#include "observe/observe_int.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status sink_open(struct sink *s, const char *path, enum sink_mode mode)
{
    *s = (struct sink){.file.fd = -1};
    if (snprintf(s->file.path, sizeof s->file.path, "%s", path) >= (int)sizeof s->file.path)
        return FAIL(STATUS_IO, "%.80s...: the path is too long", path);
    const int how = mode == SINK_NEW ? O_EXCL : mode == SINK_TRUNCATE ? O_TRUNC : 0;
    return io_open_own(path, O_WRONLY | O_APPEND | how, &s->file.fd, &s->good);
}

static void refused(struct sink *s, const char *doing)
{
    if (s->failures++ == 0)
        log_warn("%s while %s; training continues, this file may lack records", status_message(), doing);
}

status sink_begin(struct sink *s, const void *data, size_t bytes)
{
    const status st = io_write(&s->file, data, bytes);
    if (st == STATUS_OK) {
        s->good += (int64_t)bytes;
        return st;
    }
    /* Part of the record may be written; the next one would be appended to it. */
    struct stat info;
    bool regular = fstat(s->file.fd, &info) == 0 && S_ISREG(info.st_mode);
    if (regular && info.st_size != s->good && ftruncate(s->file.fd, s->good) != 0) sink_close(s);
    return st;
}

void sink_append(struct sink *s, const void *data, size_t bytes)
{
    if (s->file.fd < 0)
        s->failures++;
    else if (sink_begin(s, data, bytes) != STATUS_OK)
        refused(s, "a record was written");
}

void sink_sync(struct sink *s)
{
    if (s->file.fd < 0 || fsync(s->file.fd) == 0) return;
    if (errno == EINVAL || errno == EROFS) return; /* a pipe or a device: nothing to sync */
    (void)FAIL(status_of_errno(errno), "%s: %s", s->file.path, strerror(errno));
    refused(s, "it was flushed");
}

void sink_close(struct sink *s)
{
    if (s->file.fd >= 0) close(s->file.fd);
    s->file.fd = -1;
}
