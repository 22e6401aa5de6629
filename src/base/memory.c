#include "base/memory.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The start of a file of /proc, without stdio, which would ask for memory. */
static const char *read_start(const char *path, char *text, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return text;
}

const char *memory_advice(char buf[256])
{
    char text[512], a[32], b[32];
    const char *held = strchr(read_start("/proc/self/statm", text, sizeof text), ' ');
    const double held_bytes = held ? strtod(held, NULL) * (double)sysconf(_SC_PAGESIZE) : 0;
    const char *left = strstr(read_start("/proc/meminfo", text, sizeof text), "MemAvailable:");
    const double left_bytes = left ? strtod(left + strlen("MemAvailable:"), NULL) * 1024 : 0;
    snprintf(
        buf, 256,
        "the process holds %s, the machine has %s left: end other programs, or raise the limit of this one "
        "(ulimit -v, the container's)",
        text_bytes(a, held_bytes), text_bytes(b, left_bytes));
    return buf;
}

void memory_refused(const char *fmt, ...)
{
    static atomic_flag said =
        ATOMIC_FLAG_INIT; /* of the process: another thread that is refused says nothing */
    while (atomic_flag_test_and_set(&said)) pause();
    char text[1024], advice[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_line(LOG_ERROR, "%s; %s", text, memory_advice(advice));
    fflush(stdout);
    _exit(STATUS_OUT_OF_MEMORY);
}

void *memory_get(size_t bytes)
{
    void *p = malloc(bytes);
    MEMORY_CHECK(p, "no memory for %zu bytes of JSON", bytes);
    return p;
}

char *memory_text(const char *text)
{
    char *copy = strdup(text);
    MEMORY_CHECK(copy, "no memory for %zu bytes of text", strlen(text) + 1);
    return copy;
}

/* Not open_memstream: glibc's loses what it could not get memory for, and sets no error. */
struct stream {
    char **text;
    size_t *bytes, room;
};

static void stream_room(struct stream *s, size_t room)
{
    if (room <= s->room) return;
    s->room = room > 2 * s->room ? room : 2 * s->room;
    char *larger = realloc(*s->text, s->room);
    MEMORY_CHECK(larger, "no memory for a text of %zu bytes", s->room);
    *s->text = larger;
}

static ssize_t stream_write(void *cookie, const char *data, size_t bytes)
{
    struct stream *s = cookie;
    stream_room(s, *s->bytes + bytes + 1);
    memcpy(*s->text + *s->bytes, data, bytes);
    *s->bytes += bytes;
    (*s->text)[*s->bytes] = 0;
    return (ssize_t)bytes;
}

/* For ftell alone. */
static int stream_seek(void *cookie, off64_t *at, int whence)
{
    const struct stream *s = cookie;
    if (whence != SEEK_CUR || *at != 0) return -1;
    *at = (off64_t)*s->bytes;
    return 0;
}

static int stream_close(void *cookie)
{
    free(cookie);
    return 0;
}

FILE *memory_stream(char **text, size_t *bytes)
{
    struct stream *s = calloc(1, sizeof *s);
    MEMORY_CHECK(s, "no memory to print a text");
    *s = (struct stream){.text = text, .bytes = bytes};
    *text = NULL;
    *bytes = 0;
    stream_room(s, 256);
    **text = 0;
    FILE *f = fopencookie(
        s, "w", (cookie_io_functions_t){.write = stream_write, .seek = stream_seek, .close = stream_close});
    MEMORY_CHECK(f, "no memory to print a text");
    return f;
}

void memory_stream_close(FILE *f)
{
    const bool failed = ferror(f) != 0;
    MEMORY_CHECK(fclose(f) == 0 && !failed, "no memory for a text");
}

static void end_as_documented(int code, void *unused)
{
    (void)unused;
    char advice[256];
    if (code != EXIT_FAILURE) return;
    log_line(LOG_ERROR, "OpenMP got no memory or no thread (its line is above); %s", memory_advice(advice));
    fflush(stdout);
    _exit(STATUS_OUT_OF_MEMORY);
}

void memory_guard_runtime(void)
{
    MEMORY_CHECK(on_exit(end_as_documented, NULL) == 0, "no memory to start");
}
