/* What is wrong with a run, from its metrics and its hosts' records: each once for as long as it lasts. */
#include "base/robust.h"
#include "observe/monitor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double alerts_z(const struct series *s, int64_t at)
{
    double middle;
    return at < ALERTS_Z_WINDOW ? (double)NAN : alerts_z_of(s->y + at - ALERTS_Z_WINDOW, s->y[at], &middle);
}

static void spikes(struct monitor *m, const struct report_data *d, const struct series *s, const char *name,
                   const char *what, bool in_log, int64_t begin)
{
    struct alert_spike k = {.in_log = in_log, .from = -1};
    for (int64_t i = 0; i < s->count; i++)
        if (alert_spike_feed(&k, (int64_t)s->x[i], s->y[i], begin) == SPIKE_ENDS)
            alert_add(&m->alerts, name, STATUS_OK, NAN, (int64_t)s->x[i] - k.steps, "",
                      "%s z %.1f, over after %lld steps", what, k.top, (long long)k.steps);
    if (k.from >= 0)
        alert_add(&m->alerts, name, STATUS_NUMERIC, d->last_s, k.from, "", "%s z %.1f, and it lasts", what,
                  k.top);
}

/* The last steps are slow for a minute and more. */
static void slow_steps(struct monitor *m, const struct report_data *d)
{
    const struct series *s = &d->step_s;
    double seconds = 0;
    int64_t i = s->count;
    while (i > 0 && s->y[i - 1] > 1.1 * m->step_s_median) seconds += s->y[--i];
    if (seconds >= 60)
        alert_add(&m->alerts, "slow", STATUS_OK, d->last_s, (int64_t)s->x[i], "",
                  "%.0f %% slower than the median for %.0f s", 100 * (m->step_s / m->step_s_median - 1),
                  seconds);
}

void alerts_find_state(struct monitor *m)
{
    const double silent = m->now - m->last_s;
    bool known = false; /* the run has said it itself, with the cause */
    for (int i = 0; i < m->alerts.count; i++)
        known = known || (!m->alerts.list[i].over && strcmp(m->alerts.list[i].name, "stall") == 0);
    if (m->running && !known && silent > fmax(5 * m->step_s_median, 30))
        alert_add(&m->alerts, "stall", STATUS_COMM, m->last_s, m->step, "",
                  "no step for %.0f s, the median is %.3g s", silent, m->step_s_median);
    if (strcmp(m->state, "killed") == 0)
        alert_add(&m->alerts, "killed", STATUS_COMM, m->last_s, m->step, "",
                  "the process is gone and has not said why; ingot train RUN --resume goes on");
}

static void ranks_and_data(struct monitor *m, const struct report_data *d)
{
    const struct report_ranks *r = &d->ranks;
    char rank[32];
    if (r->count && r->slow >= 0 && r->at - r->since >= 60) {
        snprintf(rank, sizeof rank, "rank %d", r->rank[r->slow]);
        alert_add(&m->alerts, "slow_rank", STATUS_OK, r->since, -1, rank,
                  "%.0f %% more work time than the median: all others wait", 100 * (r->slow_by - 1));
    }
    if (m->data_wait > 0.01)
        alert_add(&m->alerts, "data_wait", STATUS_OK, d->last_s, m->step, "",
                  "%.1f %% of the last steps' time waits for data", 100 * m->data_wait);
}

double alerts_host_mhz(const struct host_lines *h)
{
    double v[HOST_LINES_GPUS];
    int count = 0;
    for (int i = 0; i < h->gpus; i++)
        if (isfinite(h->gpu[i].mhz_60)) v[count++] = h->gpu[i].mhz_60;
    return robust_median(v, count);
}

static void gpu_alerts(struct alert_list *l, const struct host_lines *h, const struct gpu_lines *g,
                       double mhz)
{
    char at[160];
    snprintf(at, sizeof at, "%s gpu%d", h->host, g->index);
    if (g->nvml_error > 0)
        alert_add(l, "lost", STATUS_DEVICE, g->time, -1, at, "does not answer (NVML error %.0f)",
                  g->nvml_error);
    if (g->throttled_s > 0.01 * HOST_LINES_WINDOW_S)
        alert_add(l, "throttle", STATUS_DEVICE, g->time, -1, at,
                  "%.0f s of heat or power brake in the last %.0f", g->throttled_s,
                  fmax(g->window_s, g->throttled_s));
    if (g->mhz_60 < 0.9 * mhz)
        alert_add(l, "straggler", STATUS_DEVICE, g->time, -1, at, "%.0f MHz for a minute, the others %.0f",
                  g->mhz_60, mhz);
    if (g->ecc_uncorrected > g->ecc_from)
        alert_add(l, "ecc", STATUS_DEVICE, g->time, -1, at, "%.0f uncorrectable memory errors",
                  g->ecc_uncorrected - g->ecc_from);
    if (g->rows_pending > 0 || g->rows_failed > 0)
        alert_add(l, "rows", STATUS_DEVICE, g->time, -1, at,
                  g->rows_failed > 0 ? "a row of memory could not be remapped"
                                     : "a row of memory waits for a reset");
    if (g->links_active < g->links_most)
        alert_add(l, "link", STATUS_DEVICE, g->time, -1, at, "%.0f of %.0f NVLinks are active",
                  g->links_active, g->links_most);
    if (g->link_errors > g->errors_from)
        alert_add(l, "link_errors", STATUS_OK, g->time, -1, at, "%.0f NVLink errors in ten minutes",
                  g->link_errors - g->errors_from);
}

void alerts_of_host(struct alert_list *l, const struct host_lines *h, double checkpoint_bytes)
{
    char at[160];
    const double mhz = alerts_host_mhz(h);
    for (int i = 0; i < h->gpus; i++) gpu_alerts(l, h, &h->gpu[i], mhz);
    for (int i = 0; i < h->xids; i++) {
        snprintf(at, sizeof at, "%s gpu%d", h->host, h->xid[i].gpu);
        alert_add(l, "xid", STATUS_DEVICE, h->xid[i].time, -1, at, "Xid %d", h->xid[i].xid);
    }
    if (h->disk_free < 2 * checkpoint_bytes)
        alert_add(l, "disk", STATUS_IO, h->time, -1, h->host, "room for less than two checkpoints");
}

static int by_time(const void *a, const void *b)
{
    const struct alert *x = a, *y = b;
    const double s = isfinite(x->time) ? x->time : 0, t = isfinite(y->time) ? y->time : 0;
    return (s > t) - (s < t);
}

void alerts_find(struct monitor *m, const struct report_data *d, int64_t warmup)
{
    const int64_t begin = warmup > ALERTS_Z_BEGIN ? warmup : ALERTS_Z_BEGIN;
    spikes(m, d, &d->loss, "loss_spike", "loss", false, begin);
    spikes(m, d, &d->grad_norm, "grad_spike", "gradient norm", true, begin);
    slow_steps(m, d);
    alerts_find_state(m);
    ranks_and_data(m, d);
    for (int i = 0; i < m->host_count; i++) alerts_of_host(&m->alerts, &m->hosts[i], m->checkpoint_bytes);
    qsort(m->alerts.list, (size_t)m->alerts.count, sizeof m->alerts.list[0], by_time);
}
