#include "cli/cmd_launch.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens RUN/log.txt; -1: none. */
static int open_log(const struct launch_output *o, struct stat *st)
{
    char path[SPEC_TEXT + 16];
    snprintf(path, sizeof path, "%s/log.txt", o->run_dir);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, st) != 0 || !S_ISREG(st->st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

status launch_output_open(struct launch_output *o, const char *run_dir)
{
    struct stat st;
    *o = (struct launch_output){.spool = memfd_create("ranks", MFD_CLOEXEC)};
    if (o->spool < 0 || fcntl(o->spool, F_SETFL, O_APPEND) != 0) /* ranks share it */
        return FAIL(STATUS_IO, "no memory for what the ranks print: %s", strerror(errno));
    snprintf(o->run_dir, sizeof o->run_dir, "%s", run_dir);
    const int fd = open_log(o, &st);
    if (fd >= 0) o->log_bytes = st.st_size;
    if (fd >= 0) close(fd);
    return STATUS_OK;
}

/* Rank 0 signs the lock of its run (train/runlock.h). */
static bool lead_has_lock(const struct launch_output *o)
{
    char path[SPEC_TEXT + 16], text[64] = "";
    static const char front[] = "process ";
    snprintf(path, sizeof path, "%s/lock", o->run_dir);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && strncmp(text, front, sizeof front - 1) == 0 &&
           strtol(text + sizeof front - 1, NULL, 10) == o->lead;
}

/* The log is this job's once rank 0 has the lock and has written: a job that is refused leaves that of another run alone. */
static void find_log(struct launch_output *o)
{
    struct stat st;
    if (o->logged || o->run_dir[0] == 0 || !lead_has_lock(o)) return;
    const int fd = open_log(o, &st);
    if (fd < 0) return;
    FILE *f = st.st_size > o->log_bytes ? fdopen(fd, "a") : NULL;
    if (f == NULL) close(fd);
    if (f == NULL) return;
    log_file_set(f); /* until the process ends: main says the last line */
    o->logged = true;
}

/* `text` is whole lines. */
static void say(char *text)
{
    log_hold();
    fputs(text, stderr);
    log_release();
    for (char *line = text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) *next++ = 0;
        log_line_file(LOG_ERROR, "%s", line);
    }
}

void launch_output_show(struct launch_output *o, bool all)
{
    char text[4096];
    ssize_t n;
    find_log(o);
    while ((n = pread(o->spool, text, sizeof text - 2, o->shown)) > 0) {
        const char *last = memrchr(text, '\n', (size_t)n);
        if (last == NULL && !all && n < (ssize_t)sizeof text - 2) break; /* the rest of it will come */
        size_t bytes = last ? (size_t)(last - text) + 1 : (size_t)n;
        o->shown += (off_t)bytes;
        if (last == NULL) text[bytes++] = '\n';
        text[bytes] = 0;
        say(text);
    }
    if (o->shown > 0) (void)fallocate(o->spool, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, o->shown);
}

void launch_output_close(struct launch_output *o)
{
    if (o->spool >= 0) close(o->spool);
    o->spool = -1;
}
