#include "observe/monitor.h"
#include "base/text.h"
#include "observe/monitor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TAIL_BYTES = 4 << 20, WAIT_STEPS = 128 };

/* The share of the last steps' time that waits for data. */
static double data_wait(const struct report_data *d)
{
    double waited = 0, seconds = 0;
    const int64_t n = d->step_s.count < d->data_wait_s.count ? d->step_s.count : d->data_wait_s.count;
    for (int64_t i = 1; i <= n && i <= WAIT_STEPS; i++) {
        waited += d->data_wait_s.y[d->data_wait_s.count - i];
        seconds += d->step_s.y[d->step_s.count - i];
    }
    return n >= WAIT_STEPS && seconds > 0 ? waited / seconds : (double)NAN;
}

/* The loss in SPARK intervals at most: their means. */
static void spark_fill(struct monitor *m, const struct series *s)
{
    m->sparks = s->count < SPARK ? (int)s->count : SPARK;
    for (int k = 0; k < m->sparks; k++) {
        const int64_t from = s->count * k / m->sparks, to = s->count * (k + 1) / m->sparks;
        double sum = 0;
        for (int64_t i = from; i < to; i++) sum += s->y[i];
        m->spark[k] = sum / (double)(to - from);
    }
}

/* Power of the GPUs whose lines are fresh. */
static double watts_of(const struct monitor *m)
{
    double sum = NAN;
    for (int i = 0; i < m->host_count; i++)
        for (int k = 0; k < m->hosts[i].gpus; k++)
            if (isfinite(m->hosts[i].gpu[k].watts))
                sum = (isfinite(sum) ? sum : 0) + m->hosts[i].gpu[k].watts;
    return sum;
}

static void fill(struct monitor *m, const struct report_data *d)
{
    int code;
    const enum report_state state = report_data_state(d, &code);
    report_state_text(m->state, state, code);
    m->running = state == REPORT_RUNNING;
    snprintf(m->name, sizeof m->name, "%s", d->name);
    m->last_s = d->last_s;
    m->step = d->steps;
    m->planned = report_data_planned(d);
    m->tokens = d->tokens;
    const json_t *ranks = json_object_get(d->env, "ranks");
    m->ranks = json_is_integer(ranks) ? (int)json_integer_value(ranks) : 1;
    m->loss = series_last(&d->loss);
    m->loss_z = d->loss.count ? alerts_z(&d->loss, d->loss.count - 1) : (double)NAN;
    m->grad_norm = series_last(&d->grad_norm);
    m->lr = series_last(&d->lr);
    m->val_loss = series_last(&d->val_loss);
    m->tokens_per_s = series_last(&d->tokens_per_s);
    m->tokens_per_s_median = series_median(&d->tokens_per_s);
    m->mfu = series_last(&d->mfu);
    m->step_s = series_last(&d->step_s);
    m->step_s_median = series_median(&d->step_s);
    m->data_wait = data_wait(d);
    m->eta_s =
        m->running && m->planned > m->step ? (double)(m->planned - m->step) * m->step_s_median : (double)NAN;
    m->watts = watts_of(m);
    m->mj_per_token = 1e3 * m->watts / m->tokens_per_s;
    m->checkpoint_bytes = 12 * report_data_parameters(d); /* fp32: weights and two moments */
    spark_fill(m, &d->loss);
    m->rank_count = d->ranks.count;
    m->slow_rank = d->ranks.count ? d->ranks.slow : -1;
    memcpy(m->rank, d->ranks.rank, sizeof m->rank);
    memcpy(m->rank_time, d->ranks.time, sizeof m->rank_time);
}

status monitor_read(struct monitor *m, const char *run_dir, double now)
{
    struct report_data d;
    char text[64];
    int64_t warmup = 0;
    *m = (struct monitor){.now = now};
    TRY(report_data_read(&d, run_dir, TAIL_BYTES));
    m->host_count = host_lines_read(run_dir, &m->hosts);
    fill(m, &d);
    if (!text_to_int(report_data_config(&d, "optim.warmup_steps", text, sizeof text), &warmup)) warmup = 0;
    if (alert_lines_read(run_dir, &m->alerts))
        alerts_find_state(m);
    else
        alerts_find(m, &d, warmup);
    report_data_free(&d);
    return STATUS_OK;
}

void monitor_free(struct monitor *m)
{
    free(m->hosts);
    m->hosts = NULL;
}

status monitor_exit(const struct monitor *m)
{
    static const status order[] = {STATUS_DEVICE, STATUS_COMM, STATUS_IO, STATUS_NUMERIC};
    for (size_t k = 0; k < sizeof order / sizeof order[0]; k++)
        for (int i = 0; i < m->alerts.count; i++)
            if (m->alerts.list[i].code == order[k]) return order[k];
    return STATUS_OK;
}

/* ---- JSON */

static void set(json_t *o, const char *key, double v)
{
    if (isfinite(v)) json_object_set_new(o, key, json_real(v));
}

static json_t *gpu_json(const struct host_lines *h, const struct gpu_lines *g)
{
    json_t *o = json_pack("{s:s, s:i, s:s}", "host", h->host, "gpu", g->index, "uuid", g->uuid);
    set(o, "time", g->time);
#define X(name) set(o, #name, g->name);
    GPU_LINE_VALUES(X)
#undef X
    set(o, "throttled_s", g->throttled_s);
    set(o, "power_cap_s", g->capped_s);
    return o;
}

static json_t *rates_json(const struct monitor *m)
{
    json_t *o = json_object();
    set(o, "tokens_per_s", m->tokens_per_s);
    set(o, "tokens_per_s_median", m->tokens_per_s_median);
    set(o, "mfu", m->mfu);
    set(o, "step_s", m->step_s);
    set(o, "step_s_median", m->step_s_median);
    set(o, "data_wait", m->data_wait);
    return o;
}

static json_t *ranks_json(const struct monitor *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->rank_count; i++)
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:b}", "rank", m->rank[i], "work_s",
                                              m->rank_time[i].work_s, "wait_s", m->rank_time[i].wait_s,
                                              "slow", i == m->slow_rank));
    return list;
}

json_t *monitor_json(const struct monitor *m)
{
    json_t *gpus = json_array(), *hosts = json_array(), *alerts = json_array(), *energy = json_object();
    set(energy, "watts", m->watts);
    set(energy, "mJ_per_token", m->mj_per_token);
    for (int i = 0; i < m->host_count; i++) {
        const struct host_lines *h = &m->hosts[i];
        json_t *one = json_pack("{s:s}", "host", h->host);
        set(one, "time", h->time);
        set(one, "cpu_percent", h->cpu_percent);
        set(one, "load", h->load);
        set(one, "memory_available", h->memory_available);
        set(one, "disk_free", h->disk_free);
        json_array_append_new(hosts, one);
        for (int k = 0; k < h->gpus; k++) json_array_append_new(gpus, gpu_json(h, &h->gpu[k]));
    }
    for (int i = 0; i < m->alerts.count; i++)
        json_array_append_new(alerts, alert_json(m->name, &m->alerts.list[i]));
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:o, s:o}", "schema", "ingot.monitor/1",
                  "run", m->name, "state", m->state, "step", (json_int_t)m->step, "planned",
                  (json_int_t)m->planned, "tokens", (json_int_t)m->tokens, "ranks", m->ranks, "rates",
                  rates_json(m), "energy", energy, "hosts", hosts, "gpus", gpus, "alerts", alerts);
    json_object_set_new(o, "rank_times", ranks_json(m));
    set(o, "time", m->now);
    set(o, "last_record", m->last_s);
    set(o, "eta_s", m->eta_s);
    set(o, "loss", m->loss);
    set(o, "loss_z", m->loss_z);
    set(o, "grad_norm", m->grad_norm);
    set(o, "lr", m->lr);
    set(o, "val_loss", m->val_loss);
    return o;
}
