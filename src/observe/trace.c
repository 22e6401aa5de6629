/* Chrome trace events, for chrome://tracing and ui.perfetto.dev, streamed in the bare-array form. That form
 * may lack its closing bracket, so the file is readable after a crash. Complete events are collected in one
 * buffer, which is written when it is full or one second old.
 *
 *   {"name":"block.fwd","ph":"X","ts":12.345,"dur":6.789,"pid":0,"tid":0,"args":{"idx":3}}
 *
 * with times in microseconds since trace_start. Process 0 is the host, a track per thread; process 1 the
 * GPU, a track per stream, with device times (kernels.h) on the same clock.
 *
 * idx is the second argument of SCOPE: the step of "train.step", the layer of "block.fwd". */
#include "observe/observe_int.h"
#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 16, EVENT_BYTES_MAX = 1024, NAME_BYTES_MAX = 128, THREADS = 1024 };
static const int64_t FLUSH_NS = 1000000000;

/* One trace per process, as there is one scope sink. */
static struct {
    pthread_mutex_t lock;
    struct sink sink;
    int64_t start_ns, flushed_ns;
    size_t used;
    bool running;
    bool named[THREADS];   /* the thread's name has been written */
    bool streams[THREADS]; /* the stream's */
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER, .sink.file.fd = -1};
static char trace_buffer[BUFFER_BYTES];

static void flush(void)
{
    if (trace.used && trace.sink.failures == 0) sink_append(&trace.sink, trace_buffer, trace.used);
    trace.used = 0; /* after a failure the trace stops: a gap would look like idle time */
    trace.flushed_ns = clock_ns();
}

static void put(const char *text)
{
    size_t n = strlen(text);
    memcpy(trace_buffer + trace.used, text, n);
    trace.used += n;
}

static void put_name(const char *name)
{
    for (size_t i = 0; name[i] && i < NAME_BYTES_MAX; i++) {
        if (name[i] == '"' || name[i] == '\\') trace_buffer[trace.used++] = '\\';
        trace_buffer[trace.used++] = (unsigned char)name[i] < 0x20 ? ' ' : name[i];
    }
}

/* Digits without snprintf: this runs once per scope, a few hundred times per step. */
static void put_int(int64_t v, int digits_min)
{
    char digits[24];
    int n = 0;
    for (; v > 0 || n < digits_min; v /= 10) digits[n++] = (char)('0' + v % 10);
    while (n > 0) trace_buffer[trace.used++] = digits[--n];
}
static void put_us(int64_t ns)
{
    put_int(ns > 0 ? ns / 1000 : 0, 1);
    put(".");
    put_int(ns > 0 ? ns % 1000 : 0, 3);
}

static void put_thread(int thread)
{
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    put(",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":");
    put_int(thread, 1);
    put(",\"args\":{\"name\":\"");
    put_name(gettid() == getpid() ? "main" : name);
    put("\"}}");
    trace.named[thread] = true;
}

/* The beginning of an event, the same for host and device. */
static void put_event(const char *name, int64_t start_ns, int64_t end_ns)
{
    int64_t start = start_ns > trace.start_ns ? start_ns : trace.start_ns;
    put(",\n{\"name\":\"");
    put_name(name);
    put("\",\"ph\":\"X\",\"ts\":");
    put_us(start - trace.start_ns);
    put(",\"dur\":");
    put_us(end_ns - start);
}

static void on_scope(const struct scope_event *e, void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&trace.lock);
    if (!trace.running) { /* the trace stopped after this scope's close began */
        pthread_mutex_unlock(&trace.lock);
        return;
    }
    if (trace.used + 2 * EVENT_BYTES_MAX > BUFFER_BYTES || e->end_ns - trace.flushed_ns > FLUSH_NS) flush();
    if (e->thread < THREADS && !trace.named[e->thread]) put_thread(e->thread);
    put_event(e->name, e->start_ns, e->end_ns);
    put(",\"pid\":0,\"tid\":");
    put_int(e->thread, 1);
    if (e->idx >= 0) {
        put(",\"args\":{\"idx\":");
        put_int(e->idx, 1);
        put("}");
    }
    put("}");
    pthread_mutex_unlock(&trace.lock);
}

static void put_stream(uint32_t stream)
{
    bool first = true;
    for (int i = 0; i < THREADS && first; i++) first = !trace.streams[i];
    if (first) put(",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"GPU\"}}");
    put(",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":");
    put_int(stream, 1);
    put(",\"args\":{\"name\":\"stream ");
    put_int(stream, 1);
    put("\"}}");
    trace.streams[stream] = true;
}

/* Bytes of a copy, and its rate in MB/s: bytes over microseconds. */
static void put_copy(const struct trace_device_event *e)
{
    const int64_t ns = e->end_ns - e->start_ns;
    put(",\"bytes\":");
    put_int(e->bytes, 1);
    put(",\"mb_s\":");
    put_int(ns > 0 ? (int64_t)((double)e->bytes * 1e3 / (double)ns) : 0, 1);
}

void trace_device_event(const struct trace_device_event *e)
{
    pthread_mutex_lock(&trace.lock);
    if (trace.running && e->end_ns >= trace.start_ns) {
        if (trace.used + 3 * EVENT_BYTES_MAX > BUFFER_BYTES) flush();
        if (e->stream < THREADS && !trace.streams[e->stream]) put_stream(e->stream);
        put_event(e->name, e->start_ns, e->end_ns);
        put(",\"pid\":1,\"tid\":");
        put_int(e->stream, 1);
        put(",\"args\":{\"part\":\"");
        put_name(e->part);
        put("\",\"scope\":\"");
        put_name(e->scope);
        put("\"");
        if (e->bytes > 0) put_copy(e);
        put("}}");
    }
    pthread_mutex_unlock(&trace.lock);
}

status trace_start(const char *path)
{
    CHECK(!trace.running, "a trace is running already");
    TRY(sink_open(&trace.sink, path, SINK_TRUNCATE));
    trace.start_ns = trace.flushed_ns = clock_ns();
    trace.used = 0;
    memset(trace.named, 0, sizeof trace.named);
    memset(trace.streams, 0, sizeof trace.streams);
    put("[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"ingot\"}}");
    flush();
    trace.running = true;
    dispatch_add(on_scope, NULL);
    return STATUS_OK;
}

void trace_stop(void)
{
    if (!trace.running) return;
    dispatch_remove(on_scope);
    pthread_mutex_lock(&trace.lock);
    put("\n]\n");
    flush();
    sink_close(&trace.sink);
    trace.running = false;
    pthread_mutex_unlock(&trace.lock);
}
