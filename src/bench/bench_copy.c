/* Bandwidth of a GPU's memory and of its bus with plain copies: the reference rates of the other
 * benchmarks. A copy on the device counts read and written bytes. Host memory is pinned; every sample is
 * one copy between two events. */
#include "base/flags.h"
#include "base/log.h"
#include "bench/bench.h"
#include "bench/lasting.h"

#include <stdio.h>
#include <stdlib.h>

enum { RUNS_MAX = 101 };
enum way { ON_DEVICE, TO_DEVICE, TO_HOST, BOTH_WAYS, WAYS };
static const char *const way_names[WAYS] = {"device to device", "host to device", "device to host",
                                            "both ways, each"};

struct copies {
    struct stream s, back; /* back: the other one of two directions */
    struct event begin, end, over;
    struct power_meter *meter;
    struct arena memory, host_memory;
    void *from, *to, *host, *host_back;
    size_t bytes;
};

static status copies_open(struct copies *c, const struct dev *d)
{
    TRY(dev_stream_open(d, &c->s));
    TRY(dev_stream_open(d, &c->back));
    TRY(dev_event_open(d, &c->begin));
    TRY(dev_event_open(d, &c->end));
    TRY(dev_event_open(d, &c->over));
    TRY(dev_arena_reserve(d, &c->memory, "bench copy", 2 * (c->bytes + ARENA_ALIGN)));
    c->from = arena_take(&c->memory, c->bytes, "source");
    c->to = arena_take(&c->memory, c->bytes, "destination");
    TRY(dev_pinned_arena(d, &c->host_memory, "bench copy", 2 * (c->bytes + ARENA_ALIGN)));
    c->host = arena_take(&c->host_memory, c->bytes, "source");
    c->host_back = arena_take(&c->host_memory, c->bytes, "destination");
    uint32_t x = 1, *words = c->host; /* zeros draw less power */
    for (size_t i = 0; i < c->bytes / sizeof *words; i++) words[i] = x = x * 1664525u + 1013904223u;
    TRY(dev_upload(&c->s, c->from, c->host, c->bytes));
    return dev_sync(&c->s);
}

static void copies_close(struct copies *c, const struct dev *d)
{
    if (c->s.queue == NULL) return;
    arena_free(&c->host_memory);
    arena_free(&c->memory);
    dev_event_close(d, &c->begin);
    dev_event_close(d, &c->end);
    dev_event_close(d, &c->over);
    dev_stream_close(&c->back);
    dev_stream_close(&c->s);
}

static status both_ways(struct copies *c)
{
    TRY(dev_stream_wait(&c->back, &c->begin));
    TRY(dev_download(&c->back, c->host_back, c->from, c->bytes));
    TRY(dev_event_record(&c->back, &c->over));
    TRY(dev_upload(&c->s, c->to, c->host, c->bytes));
    return dev_stream_wait(&c->s, &c->over);
}

static status timed(struct copies *c, enum way way, double *ms)
{
    TRY(dev_event_record(&c->s, &c->begin));
    if (way == ON_DEVICE) TRY(dev_copy(&c->s, c->to, c->from, c->bytes));
    if (way == TO_DEVICE) TRY(dev_upload(&c->s, c->to, c->host, c->bytes));
    if (way == TO_HOST) TRY(dev_download(&c->s, c->host_back, c->from, c->bytes));
    if (way == BOTH_WAYS) TRY(both_ways(c));
    TRY(dev_event_record(&c->s, &c->end));
    return dev_event_ms(c->s.dev, &c->begin, &c->end, ms);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status copy_on_device(void *context, int64_t i)
{
    struct copies *c = context;
    return i % 2 ? dev_copy(&c->s, c->from, c->to, c->bytes) : dev_copy(&c->s, c->to, c->from, c->bytes);
}

static status measure(struct copies *c, int64_t runs, int64_t seconds, bool json)
{
    double ms[RUNS_MAX];
    for (enum way way = 0; way < WAYS; way++) {
        TRY(timed(c, way, &ms[0]));
        for (int64_t i = 0; i < runs; i++) TRY(timed(c, way, &ms[i]));
        qsort(ms, (size_t)runs, sizeof *ms, ascending);
        const double moved = (way == ON_DEVICE ? 2 : 1) * (double)c->bytes * 1e-6;
        const double median = moved / ms[runs / 2], best = moved / ms[0];
        struct lasting lasting = {0};
        if (seconds > 0 && way == ON_DEVICE)
            TRY(lasting_measure(&c->s, c->meter, (double)seconds, &(struct lasting_work){copy_on_device, c},
                                &lasting));
        if (json)
            printf("{\"bench\":\"copy\",\"device\":\"%s\",\"way\":\"%s\",\"bytes\":%zu,\"gbs\":%.1f,"
                   "\"best_gbs\":%.1f",
                   c->s.dev->name, way_names[way], c->bytes, median, best);
        else
            printf("%-16s %8.1f GB/s, best %8.1f", way_names[way], median, best);
        lasting_print(&lasting, &(struct lasting_unit){"GB/s", "B", "gbs", 1e9}, 2 * (double)c->bytes, json);
        printf(json ? "}\n" : "\n");
        fflush(stdout);
    }
    return STATUS_OK;
}

status bench_copy(struct args *a)
{
    int64_t mib = 1024, runs = 11, seconds = 0;
    bool json = false;
    const struct flag flags[] = {FLAG("mib", &mib), FLAG("runs", &runs), FLAG("seconds", &seconds),
                                 FLAG("json", &json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    if (mib < 1 || mib > 65536) return FAIL(STATUS_CONFIG, "--mib=%lld: 1 to 65536", (long long)mib);
    if (runs < 1 || runs > RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)runs, RUNS_MAX);
    TRY(lasting_check(seconds));
    struct dev d;
    struct copies c = {.bytes = (size_t)mib << 20};
    TRY(dev_open(&d, DEV_CUDA));
    if (seconds > 0 && power_open(&c.meter, &d) != STATUS_OK) log_warn("%s", status_message());
    status st = copies_open(&c, &d);
    if (!json && st == STATUS_OK)
        printf("%s, %lld MiB, median of %lld\n", d.name, (long long)mib, (long long)runs);
    if (st == STATUS_OK) st = measure(&c, runs, seconds, json);
    power_close(c.meter);
    copies_close(&c, &d);
    dev_close(&d);
    return st;
}
