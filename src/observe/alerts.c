/* Alerts of a run, from its metrics and its hosts' records. Each counts once for as long as it lasts. */
#include "observe/monitor_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { Z_WINDOW = 128, Z_LIMIT = 6, Z_OVER = 3, Z_BEGIN = 200 };

static void add(struct monitor *m, const char *name, status code, double time, int64_t step,
                const char *where, const char *fmt, ...) PRINTF_LIKE(7, 8);
static void add(struct monitor *m, const char *name, status code, double time, int64_t step,
                const char *where, const char *fmt, ...)
{
    va_list args;
    if (m->alert_count == ALERTS_MAX) /* the newest count */
        memmove(m->alerts, m->alerts + 1, sizeof m->alerts[0] * (size_t)--m->alert_count);
    struct alert *a = &m->alerts[m->alert_count++];
    *a = (struct alert){.code = code, .time = time, .step = step};
    snprintf(a->name, sizeof a->name, "%s", name);
    snprintf(a->where, sizeof a->where, "%s", where);
    va_start(args, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, args);
    va_end(args);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *v, int count)
{
    qsort(v, (size_t)count, sizeof *v, ascending);
    return count ? v[count / 2] : (double)NAN;
}

double alerts_z(const struct series *s, int64_t at)
{
    double v[Z_WINDOW], d[Z_WINDOW];
    if (at < Z_WINDOW) return NAN;
    memcpy(v, s->y + at - Z_WINDOW, sizeof v);
    const double middle = median_of(v, Z_WINDOW);
    for (int i = 0; i < Z_WINDOW; i++) d[i] = fabs(v[i] - middle);
    /* A normal distribution's sigma; at least a thousandth of the value: a flat curve has no spikes in its rounding. */
    const double sigma = fmax(1.4826 * median_of(d, Z_WINDOW), 1e-3 * fabs(middle));
    return sigma > 0 ? (s->y[at] - middle) / sigma : 0;
}

/* Values far above those before them, until they are near again. */
static void spikes(struct monitor *m, const struct report_data *d, const struct series *s, const char *name,
                   const char *what, int64_t begin)
{
    double top = 0;
    int64_t from = -1;
    for (int64_t i = Z_WINDOW; i < s->count; i++) {
        if (s->x[i] <= (double)begin) continue;
        const double z = alerts_z(s, i);
        if (from < 0 && z > Z_LIMIT) from = i, top = z;
        if (from >= 0) top = fmax(top, z);
        if (from >= 0 && z < Z_OVER) {
            add(m, name, STATUS_OK, NAN, (int64_t)s->x[from], "", "%s z %.1f, over after %.0f steps", what,
                top, s->x[i] - s->x[from]);
            from = -1;
        }
    }
    if (from >= 0)
        add(m, name, STATUS_NUMERIC, d->last_s, (int64_t)s->x[from], "", "%s z %.1f, and it lasts", what,
            top);
}

/* The last steps are slow for a minute and more. */
static void slow_steps(struct monitor *m, const struct report_data *d)
{
    const struct series *s = &d->step_s;
    double seconds = 0;
    int64_t i = s->count;
    while (i > 0 && s->y[i - 1] > 1.1 * m->step_s_median) seconds += s->y[--i];
    if (seconds >= 60)
        add(m, "slow", STATUS_OK, d->last_s, (int64_t)s->x[i], "",
            "%.0f %% slower than the median for %.0f s", 100 * (m->step_s / m->step_s_median - 1), seconds);
}

static void run_state(struct monitor *m, const struct report_data *d)
{
    const double silent = m->now - m->last_s;
    if (m->running && silent > fmax(5 * m->step_s_median, 30))
        add(m, "stall", STATUS_COMM, m->last_s, m->step, "", "no step for %.0f s, the median is %.3g s",
            silent, m->step_s_median);
    if (strcmp(m->state, "killed") == 0)
        add(m, "killed", STATUS_COMM, m->last_s, m->step, "",
            "the process is gone and has not said why; ingot train RUN --resume goes on");
    const struct report_ranks *r = &d->ranks;
    char rank[32];
    if (r->count && r->slow >= 0 && r->at - r->since >= 60) {
        snprintf(rank, sizeof rank, "rank %d", r->rank[r->slow]);
        add(m, "slow_rank", STATUS_OK, r->since, -1, rank,
            "%.0f %% more work time than the median: all others wait", 100 * (r->slow_by - 1));
    }
    if (m->data_wait > 0.01)
        add(m, "data_wait", STATUS_OK, d->last_s, m->step, "",
            "%.1f %% of the last steps' time waits for data", 100 * m->data_wait);
}

/* The median clock of a host's GPUs over the last minute. */
static double host_mhz(const struct host_lines *h)
{
    double v[HOST_LINES_GPUS];
    int count = 0;
    for (int i = 0; i < h->gpus; i++)
        if (isfinite(h->gpu[i].mhz_60)) v[count++] = h->gpu[i].mhz_60;
    return median_of(v, count);
}

static void gpu_alerts(struct monitor *m, const struct host_lines *h, const struct gpu_lines *g, double mhz)
{
    char at[160];
    snprintf(at, sizeof at, "%s gpu%d", h->host, g->index);
    if (g->nvml_error > 0)
        add(m, "lost", STATUS_DEVICE, g->time, -1, at, "does not answer (NVML error %.0f)", g->nvml_error);
    if (g->throttled_s > 0.01 * HOST_LINES_WINDOW_S)
        add(m, "throttle", STATUS_DEVICE, g->time, -1, at, "%.0f s of heat or power brake in the last %.0f",
            g->throttled_s, fmax(g->window_s, g->throttled_s));
    if (g->mhz_60 < 0.9 * mhz)
        add(m, "straggler", STATUS_DEVICE, g->time, -1, at, "%.0f MHz for a minute, the others %.0f",
            g->mhz_60, mhz);
    if (g->ecc_uncorrected > g->ecc_from)
        add(m, "ecc", STATUS_DEVICE, g->time, -1, at, "%.0f uncorrectable memory errors",
            g->ecc_uncorrected - g->ecc_from);
    if (g->rows_pending > 0 || g->rows_failed > 0)
        add(m, "rows", STATUS_DEVICE, g->time, -1, at,
            g->rows_failed > 0 ? "a row of memory could not be remapped"
                               : "a row of memory waits for a reset");
    if (g->links_active < g->links_most)
        add(m, "link", STATUS_DEVICE, g->time, -1, at, "%.0f of %.0f NVLinks are active", g->links_active,
            g->links_most);
    if (g->link_errors > g->errors_from)
        add(m, "link_errors", STATUS_OK, g->time, -1, at, "%.0f NVLink errors in ten minutes",
            g->link_errors - g->errors_from);
}

static void host_alerts(struct monitor *m, const struct host_lines *h)
{
    char at[160];
    const double mhz = host_mhz(h);
    for (int i = 0; i < h->gpus; i++) gpu_alerts(m, h, &h->gpu[i], mhz);
    for (int i = 0; i < h->xids; i++) {
        snprintf(at, sizeof at, "%s gpu%d", h->host, h->xid[i].gpu);
        add(m, "xid", STATUS_DEVICE, h->xid[i].time, -1, at, "Xid %d", h->xid[i].xid);
    }
    if (h->disk_free < 2 * m->checkpoint_bytes)
        add(m, "disk", STATUS_IO, h->time, -1, h->host, "room for less than two checkpoints");
}

static int by_time(const void *a, const void *b)
{
    const struct alert *x = a, *y = b;
    const double s = isfinite(x->time) ? x->time : 0, t = isfinite(y->time) ? y->time : 0;
    return (s > t) - (s < t);
}

void alerts_find(struct monitor *m, const struct report_data *d, int64_t warmup)
{
    const int64_t begin = warmup > Z_BEGIN ? warmup : Z_BEGIN;
    spikes(m, d, &d->loss, "loss_spike", "loss", begin);
    spikes(m, d, &d->grad_norm, "grad_spike", "gradient norm", begin);
    slow_steps(m, d);
    run_state(m, d);
    for (int i = 0; i < m->host_count; i++) host_alerts(m, &m->hosts[i]);
    qsort(m->alerts, (size_t)m->alert_count, sizeof m->alerts[0], by_time);
}
