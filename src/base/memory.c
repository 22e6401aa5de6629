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
    _exit(STATUS_FIT);
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

FILE *memory_stream(char **text, size_t *bytes)
{
    FILE *f = open_memstream(text, bytes);
    MEMORY_CHECK(f, "no memory to print a text");
    return f;
}

void memory_stream_close(FILE *f, char *const *text)
{
    const long bytes = ftell(f);
    const bool failed = ferror(f) != 0;
    /* fclose of glibc reports no refusal: it leaves no text. */
    MEMORY_CHECK(fclose(f) == 0 && !failed && *text != NULL, "no memory for a text of %ld bytes", bytes);
}

static void end_as_documented(int code, void *unused)
{
    (void)unused;
    char advice[256];
    if (code != EXIT_FAILURE) return;
    log_line(LOG_ERROR, "OpenMP got no memory or no thread (its line is above); %s", memory_advice(advice));
    fflush(stdout);
    _exit(STATUS_FIT);
}

void memory_guard_runtime(void)
{
    MEMORY_CHECK(on_exit(end_as_documented, NULL) == 0, "no memory to start");
}
