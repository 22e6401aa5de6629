/* Checks of where runs are written, and measurements of host and disk. */
#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIB 1073741824.0

void check_disk(struct doctor *d)
{
    char text[32];
    const double bytes = d->system.disk_bytes, inodes = d->system.disk_inodes;
    if (isnan(bytes)) {
        report(d, DOCTOR_FAIL, d->storage, "%s: its file system does not answer", d->storage);
        return;
    }
    if (bytes < 10 * GIB)
        report_number(d, bytes < GIB ? DOCTOR_FAIL : DOCTOR_WARN, d->storage, bytes, 10 * GIB,
                      "%s free in %s", text_bytes(text, bytes), d->storage);
    if (inodes < 10000)
        report_number(d, DOCTOR_WARN, d->storage, inodes, 10000, "%.0f inodes free in %s", inodes,
                      d->storage);
    if (!reported(d))
        report_number(d, DOCTOR_PASS, d->storage, bytes, 10 * GIB, "%s free in %s", text_bytes(text, bytes),
                      d->storage);
}

/* Of the lines of /proc/self/mounts the one with the longest directory above `path`. */
static bool mount_kind(const struct doctor *d, const char *path, char kind[32])
{
    enum { MOUNTS = 1 << 18 };
    char *text = malloc(MOUNTS), dir[512], type[32];
    size_t longest = 0;
    CHECK(text, "out of memory");
    if (!hostfs_read(&d->fs, text, MOUNTS, "/proc/self/mounts")) text[0] = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *at = line + strcspn(line, " \n");
        snprintf(dir, sizeof dir, "%.*s", *at == ' ' ? (int)strcspn(at + 1, " \n") : 0, at + 1);
        const char *next = *at == ' ' ? at + 1 + strlen(dir) : at;
        snprintf(type, sizeof type, "%.*s", *next == ' ' ? (int)strcspn(next + 1, " \n") : 0, next + 1);
        const size_t n = strlen(dir);
        const bool above =
            n == 1 || (n > 0 && strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == 0));
        if (!above || n < longest) continue;
        longest = n;
        memcpy(kind, type, sizeof type);
    }
    free(text);
    return longest > 0;
}

void check_disk_kind(struct doctor *d)
{
    char kind[32] = "", whole[4096];
    if (realpath(d->storage, whole) == NULL || d->fs.text) snprintf(whole, sizeof whole, "%s", d->storage);
    if (!mount_kind(d, whole, kind))
        report(d, DOCTOR_SKIP, d->storage, "/proc/self/mounts does not say it");
    else if (strcmp(kind, "tmpfs") == 0 || strcmp(kind, "ramfs") == 0)
        report(d, DOCTOR_WARN, d->storage, "%s is in memory (%s): checkpoints go with a restart", d->storage,
               kind);
    else if (strcmp(kind, "overlay") == 0)
        report(d, DOCTOR_WARN, d->storage,
               "%s is the container's own layer (overlay): checkpoints go with it", d->storage);
    else
        report(d, DOCTOR_PASS, d->storage, "%s", kind);
}

void check_cufile(struct doctor *d)
{
    if (no_cards(d)) return;
    report(d, DOCTOR_PASS, "", d->system.cufile == 1 ? "there, not used" : "not there, not needed");
}

/* ---- measured */

enum { TEST_BYTES = 256 << 20, TEST_CHUNK = 4 << 20 };

static status write_all(int fd, const char *chunk, double *seconds)
{
    const double begin = clock_s();
    for (int at = 0; at < TEST_BYTES; at += TEST_CHUNK)
        if (pwrite(fd, chunk, TEST_CHUNK, at) != TEST_CHUNK)
            return FAIL(STATUS_IO, "write: %s", strerror(errno));
    if (fsync(fd) != 0) return FAIL(STATUS_IO, "fsync: %s", strerror(errno));
    *seconds = clock_s() - begin;
    return STATUS_OK;
}

/* Past the page cache as far as the file system lets go of it. */
static status read_all(int fd, char *chunk, double *seconds)
{
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    const double begin = clock_s();
    for (int at = 0; at < TEST_BYTES; at += TEST_CHUNK)
        if (pread(fd, chunk, TEST_CHUNK, at) != TEST_CHUNK)
            return FAIL(STATUS_IO, "read: %s", strerror(errno));
    *seconds = clock_s() - begin;
    return STATUS_OK;
}

/* A file without a name: nothing stays behind when the program is killed. */
static int test_file(const struct doctor *d)
{
    return open(d->storage, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

void check_disk_rate(struct doctor *d)
{
    double out_s = 0, in_s = 0;
    if (d->system.disk_bytes < 2.0 * TEST_BYTES) {
        report(d, DOCTOR_SKIP, d->storage, "less than 512 MiB free");
        return;
    }
    const int fd = test_file(d);
    char *chunk = malloc(TEST_CHUNK);
    CHECK(chunk, "out of memory");
    for (int i = 0; i < TEST_CHUNK; i++)
        chunk[i] = (char)(i * 2654435761u >> 24); /* a disk may compress zeros */
    if (fd < 0)
        report(d, errno == EOPNOTSUPP || errno == EISDIR ? DOCTOR_SKIP : DOCTOR_FAIL, d->storage,
               "%s: a file without a name cannot be made: %s", d->storage, strerror(errno));
    else if (write_all(fd, chunk, &out_s) != STATUS_OK || read_all(fd, chunk, &in_s) != STATUS_OK)
        report(d, DOCTOR_FAIL, d->storage, "%s: %s", d->storage, status_message());
    else {
        const double out = 1e-6 * TEST_BYTES / out_s, in = 1e-6 * TEST_BYTES / in_s;
        rate_add(d, "disk_write", d->host, out, "MB/s");
        rate_add(d, "disk_read", d->host, in, "MB/s");
        report_number(d, out < 100 ? DOCTOR_WARN : DOCTOR_PASS, d->storage, out, 100,
                      "%s: write with fsync %.0f MB/s, read %.0f MB/s", d->storage, out, in);
    }
    if (fd >= 0) close(fd);
    free(chunk);
}

void check_disk_clock(struct doctor *d)
{
    struct stat st;
    const int fd = test_file(d);
    const double before = clock_wall_s();
    const bool made = fd >= 0 && write(fd, "x", 1) == 1 && fsync(fd) == 0 && fstat(fd, &st) == 0;
    const double after = clock_wall_s();
    if (fd >= 0) close(fd);
    if (!made) {
        report(d, DOCTOR_SKIP, d->storage, "no file could be written in %s", d->storage);
        return;
    }
    const double stamp = (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
    const double off = stamp < before ? stamp - before : stamp > after ? stamp - after : 0;
    report_number(d, fabs(off) > 2 ? DOCTOR_WARN : DOCTOR_PASS, d->storage, off, 2,
                  "%s is %.3g s off this host's clock", d->storage, off);
}
