#include "observe/host_record.h"
#include "base/clock.h"
#include "base/log.h"
#include "dev/hostfs.h"
#include "dev/nvml.h"
#include "observe/observe_int.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CARDS_MAX = 32, LINE = 2048, HOST_RECORD_VERSION = 1 };

/* What an interval adds up. */
struct card_sum {
    struct nvml_card first, last; /* first: at the begin of the interval, the last of the one before */
    double mhz, watts, busy;      /* sums over samples */
    struct activity {
        double sm, occupancy, tensor, dram; /* the same of those that know them */
        int samples;
    } active;
    double hottest, hottest_memory;
    int samples;
};
struct host_sum {
    double busy, total; /* jiffies of all cores at the begin of the interval */
    double available, disk, load;
};

struct host_record {
    double every_s, sample_s;
    char run_dir[1024];
    struct hostfs fs;
    struct nvml *nvml; /* NULL: none */
    struct sink sink;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool stop;
    struct metrics recent;
    int64_t samples;
    double cpu_s;
    /* the thread's own */
    int cards;
    struct card_sum card[CARDS_MAX];
    struct host_sum host;
    double begin_s; /* of the interval, wall clock */
    int in_interval, intervals;
};

/* ---- lines */

struct line {
    char text[LINE];
    size_t used;
};
static void put(struct line *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(struct line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(l->text + l->used, sizeof l->text - l->used, fmt, args);
    va_end(args);
    l->used += n > 0 ? (size_t)n : 0;
    CHECK(l->used < sizeof l->text, "a record of the host of %zu bytes", l->used);
}
/* A number with six digits; one that is not known is left out. */
static void put_number(struct line *l, const char *name, double value)
{
    if (isfinite(value)) put(l, ",\"%s\":%.6g", name, value);
}
/* A counter or a size, to the last digit. */
static void put_count(struct line *l, const char *name, double value)
{
    if (isfinite(value)) put(l, ",\"%s\":%.0f", name, value);
}
static void put_end(struct host_record *h, struct line *l)
{
    put(l, "}\n");
    sink_append(&h->sink, l->text, l->used);
}

static void write_head(struct host_record *h)
{
    char host[128] = "", driver[96] = "";
    struct line l = {.used = 0};
    gethostname(host, sizeof host - 1);
    if (h->nvml) nvml_driver(h->nvml, driver);
    put(&l, "{\"kind\":\"schema\",\"format\":\"ingot host\",\"version\":%d", HOST_RECORD_VERSION);
    put_end(h, &l);
    l.used = 0;
    put(&l,
        "{\"kind\":\"start\",\"time\":%.3f,\"host\":\"%s\",\"gpus\":%d,\"driver\":\"%s\",\"every_s\":%.6g",
        clock_wall_s(), host, h->cards, driver, h->every_s);
    put_end(h, &l);
}

/* Growth of a counter in the interval; one that began again counts from zero, one that was not known then is not now. */
static double grown(double from, double to)
{
    return to < from ? to : to - from;
}

static void write_card(struct host_record *h, int i, double now)
{
    const struct card_sum *c = &h->card[i];
    const struct nvml_card *a = &c->first, *b = &c->last;
    const double seconds = now - h->begin_s, joules = grown(a->joules, b->joules);
    struct line l = {.used = 0};
    put(&l, "{\"kind\":\"gpu\",\"time\":%.3f,\"gpu\":%d,\"uuid\":\"%s\"", now, i, b->uuid);
    if (b->pci[0]) put(&l, ",\"pci\":\"%s\"", b->pci);
    if (b->code != NVML_SUCCESS || c->samples == 0) {
        put_number(&l, "nvml_error", b->code);
        put_end(h, &l);
        return;
    }
    put_number(&l, "watts", joules > 0 && seconds > 1 ? joules / seconds : c->watts / c->samples);
    put_number(&l, "limit_watts", b->limit_watts);
    if (h->intervals == 0) put_count(&l, "joules_begin", a->joules);
    put_count(&l, "joules", b->joules);
    put_number(&l, "sm_mhz", c->mhz / c->samples);
    put_number(&l, "memory_mhz", b->memory_mhz);
    put_number(&l, "busy_percent", c->busy / c->samples);
    put_number(&l, "sm_percent", c->active.sm / c->active.samples);
    put_number(&l, "occupancy_percent", c->active.occupancy / c->active.samples);
    put_number(&l, "tensor_percent", c->active.tensor / c->active.samples);
    put_number(&l, "dram_percent", c->active.dram / c->active.samples);
    put_number(&l, "celsius", c->hottest);
    put_number(&l, "memory_celsius", c->hottest_memory);
    put_count(&l, "memory_used", b->memory_used);
    put_count(&l, "memory_total", b->memory_total);
    put_count(&l, "reasons", b->reasons);
    put_number(&l, "power_cap_s", grown(a->power_cap_s, b->power_cap_s));
    put_number(&l, "sw_thermal_s", grown(a->sw_thermal_s, b->sw_thermal_s));
    put_number(&l, "hw_thermal_s", grown(a->hw_thermal_s, b->hw_thermal_s));
    put_number(&l, "power_brake_s", grown(a->power_brake_s, b->power_brake_s));
    put_count(&l, "ecc_uncorrected", b->ecc_uncorrected);
    put_count(&l, "ecc_corrected", b->ecc_corrected);
    put_count(&l, "rows_pending", b->rows_pending);
    put_count(&l, "rows_failed", b->rows_failed);
    put_count(&l, "rows_corrected", b->rows_corrected);
    put_count(&l, "rows_uncorrected", b->rows_uncorrected);
    put_count(&l, "pcie_gen", b->pcie_gen);
    put_count(&l, "pcie_width", b->pcie_width);
    put_count(&l, "pcie_replays", b->pcie_replays);
    put_count(&l, "links_active", b->links_active);
    put_count(&l, "link_errors", b->link_errors);
    put_number(&l, "link_tx_bytes_per_s", grown(a->link_tx, b->link_tx) / seconds);
    put_number(&l, "link_rx_bytes_per_s", grown(a->link_rx, b->link_rx) / seconds);
    put_end(h, &l);
}

static void write_xids(struct host_record *h)
{
    struct nvml_xid xid;
    while (h->nvml && nvml_events_next(h->nvml, &xid)) {
        struct line l = {.used = 0};
        put(&l, "{\"kind\":\"xid\",\"time\":%.3f,\"gpu\":%d,\"xid\":%d", clock_wall_s(), xid.gpu, xid.number);
        put_end(h, &l);
        log_warn("gpu%d reports Xid %d: `ingot doctor` says what to do", xid.gpu, xid.number);
    }
}

/* ---- samples */

/* Jiffies of all cores since boot: those that worked, and all. */
static void cpu_read(const struct host_record *h, double *busy, double *total)
{
    char text[256], *at, *end;
    double sum = 0, idle = 0;
    *busy = *total = NAN;
    if (!hostfs_read(&h->fs, text, sizeof text, "/proc/stat") || strncmp(text, "cpu ", 4) != 0) return;
    at = text + 4;
    for (int i = 0; i < 8; i++, at = end) { /* user nice system idle iowait irq softirq steal */
        const double v = strtod(at, &end);
        if (end == at) break;
        sum += v;
        if (i == 3 || i == 4) idle += v;
    }
    *busy = sum - idle;
    *total = sum;
}

static void host_read(struct host_record *h)
{
    char text[1024];
    struct host_sum *s = &h->host;
    const int64_t disk = io_free_bytes(h->run_dir);
    s->available = hostfs_read(&h->fs, text, sizeof text, "/proc/meminfo")
                       ? 1024 * hostfs_value(text, "MemAvailable")
                       : (double)NAN;
    if (!hostfs_number(&h->fs, &s->load, "/proc/loadavg")) s->load = NAN;
    s->disk = disk >= 0 ? (double)disk : (double)NAN;
}

static void write_host(struct host_record *h, double now)
{
    double busy, total;
    struct line l = {.used = 0};
    cpu_read(h, &busy, &total);
    put(&l, "{\"kind\":\"host\",\"time\":%.3f", now);
    put_number(&l, "cpu_percent", 100 * (busy - h->host.busy) / (total - h->host.total));
    put_number(&l, "load", h->host.load);
    put_count(&l, "memory_available", h->host.available);
    put_count(&l, "disk_free", h->host.disk);
    put_end(h, &l);
}

/* GPM's values come together, or one of them is not known of this GPU. */
static void add_activity(struct activity *a, const struct nvml_card *c)
{
    if (isnan(c->sm_percent) && isnan(c->tensor_percent)) return;
    a->sm += c->sm_percent;
    a->occupancy += c->occupancy_percent;
    a->tensor += c->tensor_percent;
    a->dram += c->dram_percent;
    a->samples++;
}

static void card_sample(struct host_record *h, int i)
{
    struct card_sum *c = &h->card[i];
    const struct nvml_card before = c->last;
    nvml_read(h->nvml, i, &c->last);
    nvml_activity(h->nvml, i, &c->last);
    if (h->in_interval == 0) {
        c->first = h->intervals > 0 && before.code == NVML_SUCCESS ? before : c->last;
        c->mhz = c->watts = c->busy = 0;
        c->active = (struct activity){0};
        c->hottest = c->hottest_memory = NAN;
        c->samples = 0;
    }
    if (c->last.code != NVML_SUCCESS) return;
    c->mhz += c->last.sm_mhz;
    c->watts += c->last.watts;
    c->busy += c->last.gpu_busy;
    add_activity(&c->active, &c->last);
    c->hottest = fmax(c->hottest, c->last.celsius);
    c->hottest_memory = fmax(c->hottest_memory, c->last.memory_celsius);
    c->samples++;
}

/* Mean over the GPUs that know it, as a share. */
static void add_share(double *sum, int *count, double percent)
{
    if (isnan(percent)) return;
    *sum = (*count ? *sum : 0) + 0.01 * percent;
    ++*count;
}

/* The last sample, for who asks. */
static void publish(struct host_record *h)
{
    enum {
        BAD = NVML_REASON_HW_SLOWDOWN | NVML_REASON_SW_THERMAL | NVML_REASON_HW_THERMAL |
              NVML_REASON_POWER_BRAKE
    };
    struct metrics m = METRICS_NONE;
    int tensors = 0, drams = 0;
    for (int i = 0; i < h->cards; i++) {
        const struct nvml_card *c = &h->card[i].last;
        if (c->code != NVML_SUCCESS) continue;
        if (isfinite(c->watts)) m.gpu_watts = (isfinite(m.gpu_watts) ? m.gpu_watts : 0) + c->watts;
        add_share(&m.gpu_tensor, &tensors, c->tensor_percent);
        add_share(&m.gpu_dram, &drams, c->dram_percent);
        m.gpu_mhz = fmin(m.gpu_mhz, c->sm_mhz);
        m.gpu_celsius = fmax(m.gpu_celsius, c->celsius);
        m.gpu_memory = fmax(m.gpu_memory, c->memory_used);
        if (isfinite(c->reasons))
            m.gpu_throttled =
                (isfinite(m.gpu_throttled) ? m.gpu_throttled : 0) + (((unsigned)c->reasons & BAD) != 0);
    }
    m.gpu_tensor /= tensors; /* of none: NaN */
    m.gpu_dram /= drams;
    m.host_available = h->host.available;
    m.host_disk_free = h->host.disk;
    pthread_mutex_lock(&h->lock);
    h->recent = m;
    h->samples++;
    h->cpu_s = clock_cpu_s();
    pthread_mutex_unlock(&h->lock);
}

static void interval_end(struct host_record *h)
{
    const double now = clock_wall_s();
    for (int i = 0; i < h->cards; i++) write_card(h, i, now);
    write_host(h, now);
    h->in_interval = 0;
    h->begin_s = now;
    h->intervals++;
}

static void sample(struct host_record *h)
{
    if (h->in_interval == 0) {
        if (h->intervals == 0) h->begin_s = clock_wall_s();
        cpu_read(h, &h->host.busy, &h->host.total);
    }
    for (int i = 0; i < h->cards; i++) card_sample(h, i);
    host_read(h);
    h->in_interval++;
    publish(h);
    write_xids(h);
}

/* False: it shall end. */
static bool rest(struct host_record *h, double until_s)
{
    const struct timespec t = {(time_t)until_s, (long)((until_s - floor(until_s)) * 1e9)};
    pthread_mutex_lock(&h->lock);
    while (!h->stop && pthread_cond_timedwait(&h->wake, &h->lock, &t) != ETIMEDOUT) {}
    const bool stop = h->stop;
    pthread_mutex_unlock(&h->lock);
    return !stop;
}

static void *watch(void *record)
{
    struct host_record *h = record;
    double next = clock_s(), line = next + h->every_s;
    do {
        sample(h);
        if (clock_s() >= line) {
            interval_end(h);
            line = fmax(line + h->every_s, clock_s());
        }
        next = fmax(next + h->sample_s, clock_s());
    } while (rest(h, next));
    sample(h); /* the counters at the end */
    interval_end(h);
    return NULL;
}

/* ---- begin and end */

static status thread_start(struct host_record *h)
{
    pthread_condattr_t how;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &how);
    pthread_condattr_destroy(&how);
    const int err = pthread_create(&h->thread, NULL, watch, h);
    return err ? FAIL(STATUS_IO, "no thread for the host's record: %s", strerror(err)) : STATUS_OK;
}

status host_record_start(struct host_record **out, const char *run_dir, double every_s)
{
    char host[128] = "", path[1200];
    struct host_record *h = *out = calloc(1, sizeof *h);
    if (h == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the host's record");
    gethostname(host, sizeof host - 1);
    snprintf(h->run_dir, sizeof h->run_dir, "%s", run_dir);
    snprintf(path, sizeof path, "%s/gpu-%s.jsonl", run_dir, host);
    h->every_s = every_s;
    h->sample_s = fmin(every_s, 1);
    h->fs = hostfs_here();
    h->recent = METRICS_NONE;
    status st = sink_open(&h->sink, path, SINK_APPEND);
    if (st == STATUS_OK && nvml_open(&h->nvml, NULL) != STATUS_OK) log_debug("%s", status_message());
    if (h->nvml) {
        h->cards = nvml_count(h->nvml);
        h->cards = h->cards < 0 ? 0 : h->cards > CARDS_MAX ? CARDS_MAX : h->cards;
        nvml_events_open(h->nvml);
    }
    if (st == STATUS_OK) write_head(h);
    if (st == STATUS_OK) st = thread_start(h);
    if (st == STATUS_OK) return STATUS_OK;
    nvml_close(h->nvml);
    sink_close(&h->sink);
    free(h);
    *out = NULL;
    return st;
}

void host_record_metrics(struct host_record *h, struct metrics *m)
{
    if (h == NULL) return;
    pthread_mutex_lock(&h->lock);
    m->gpu_tensor = h->recent.gpu_tensor;
    m->gpu_dram = h->recent.gpu_dram;
    m->gpu_watts = h->recent.gpu_watts;
    m->gpu_mhz = h->recent.gpu_mhz;
    m->gpu_celsius = h->recent.gpu_celsius;
    m->gpu_memory = h->recent.gpu_memory;
    m->gpu_throttled = h->recent.gpu_throttled;
    m->host_available = h->recent.host_available;
    m->host_disk_free = h->recent.host_disk_free;
    pthread_mutex_unlock(&h->lock);
}

void host_record_cost(struct host_record *h, int64_t *samples, double *cpu_s)
{
    pthread_mutex_lock(&h->lock);
    *samples = h->samples;
    *cpu_s = h->cpu_s;
    pthread_mutex_unlock(&h->lock);
}

void host_record_stop(struct host_record *h)
{
    struct timespec until;
    if (h == NULL) return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    if (pthread_timedjoin_np(h->thread, NULL, &until) != 0) {
        log_warn("NVML does not answer: the host's record ends without its last line");
        pthread_detach(h->thread); /* it owns the memory now */
        return;
    }
    struct line l = {.used = 0};
    put(&l, "{\"kind\":\"end\",\"time\":%.3f,\"samples\":%lld,\"cpu_s\":%.6f", clock_wall_s(),
        (long long)h->samples, h->cpu_s);
    put_end(h, &l);
    nvml_close(h->nvml);
    sink_close(&h->sink);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
