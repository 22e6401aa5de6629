/* The screen of a monitor: parts flow into lines, so that 40, 80 and 120 columns need one program. */
#include "base/text.h"
#include "dev/nvml.h"
#include "observe/monitor_int.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

/* ---- parts of a line: two blanks between them, and a new line where one does not fit */

struct flow {
    FILE *out;
    int columns, used;
};

static void part(struct flow *f, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void part(struct flow *f, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const int n = (int)strlen(text), room = f->columns - 1;
    if (f->used > 0 && f->used + 2 + n > room) {
        fputc('\n', f->out);
        f->used = 0;
    }
    if (f->used == 0)
        f->used = fprintf(f->out, " %.*s", room - 1, text);
    else
        f->used += fprintf(f->out, "  %s", text);
}
static void line_end(struct flow *f)
{
    if (f->used > 0) fputc('\n', f->out);
    f->used = 0;
}

/* "label 1.23" where the value is known. */
static void part_number(struct flow *f, const char *fmt, double value)
{
    if (isfinite(value)) part(f, fmt, value);
}

/* ---- the run */

static void draw_run(const struct monitor *m, struct flow *f)
{
    char a[32];
    part(f, "%.60s", m->name);
    if (m->planned > 0)
        part(f, "step %lld/%lld", (long long)m->step, (long long)m->planned);
    else
        part(f, "step %lld", (long long)m->step);
    if (m->planned > 0) part(f, "%.0f %%", 100.0 * (double)m->step / (double)m->planned);
    part(f, "%s", m->state);
    if (isfinite(m->eta_s)) part(f, "eta %s", text_time(a, m->eta_s));
    if (m->ranks > 1) part(f, "%d ranks", m->ranks);
    line_end(f);
    if (isfinite(m->loss_z))
        part(f, "loss %.4g (z %.1f)", m->loss, m->loss_z);
    else
        part_number(f, "loss %.4g", m->loss);
    part_number(f, "val %.4g", m->val_loss);
    part_number(f, "grad %.3g", m->grad_norm);
    part_number(f, "lr %.2e", m->lr);
    line_end(f);
}

static void draw_rates(const struct monitor *m, struct flow *f)
{
    char a[32], b[32];
    if (isfinite(m->tokens_per_s))
        part(f, "tok/s %s (median %s)", text_count(a, m->tokens_per_s),
             text_count(b, m->tokens_per_s_median));
    if (isfinite(m->mfu)) part(f, "mfu %.1f %%", 100 * m->mfu);
    if (isfinite(m->step_s)) part(f, "step %s", text_time(a, m->step_s));
    if (isfinite(m->data_wait)) part(f, "waits for data %.1f %%", 100 * m->data_wait);
    part_number(f, "%.0f W", m->watts);
    part_number(f, "%.3g mJ/token", m->mj_per_token);
    line_end(f);
    if (m->running && m->now - m->last_s > 30) {
        part(f, "no news for %s", text_time(a, m->now - m->last_s));
        line_end(f);
    }
}

/* The loss in one row of `width` marks between its lowest and highest. */
static void draw_spark(const struct monitor *m, FILE *out, int columns, bool ascii)
{
    static const char *const marks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char plain[] = "_.-=+*%#";
    double low = INFINITY, high = -INFINITY;
    char text[64];
    if (m->sparks < 2) return;
    for (int i = 0; i < m->sparks; i++) low = fmin(low, m->spark[i]), high = fmax(high, m->spark[i]);
    const int label = snprintf(text, sizeof text, " loss %.4g..%.4g ", high, low);
    const int room = columns - 1 - label, width = room < m->sparks ? room : m->sparks;
    fputs(text, out);
    for (int k = 0; k < width; k++) {
        const double v = m->spark[m->sparks * k / width];
        const int level = high > low ? (int)(7.999 * (v - low) / (high - low)) : 0;
        if (ascii)
            fputc(plain[level], out);
        else
            fputs(marks[level], out);
    }
    fputc('\n', out);
}

/* ---- ranks */

/* A dozen, and the slow one. */
static void draw_ranks(const struct monitor *m, FILE *out)
{
    enum { SHOWN = 12 };
    char work[32], wait[32];
    if (m->rank_count < 2) return;
    fprintf(out, " rank      work      wait\n");
    for (int i = 0; i < m->rank_count; i++) {
        if (i >= SHOWN && i != m->slow_rank) continue;
        fprintf(out, " %4d  %8s  %8s%s\n", m->rank[i], text_time(work, m->rank_time[i].work_s),
                text_time(wait, m->rank_time[i].wait_s), i == m->slow_rank ? "  <- slowest" : "");
    }
    if (m->rank_count > SHOWN) fprintf(out, " and %d more ranks\n", m->rank_count - SHOWN);
}

/* ---- GPUs and hosts */

static const char *cell(char text[32], const char *fmt, double value)
{
    if (isfinite(value))
        snprintf(text, 32, fmt, value);
    else
        snprintf(text, 32, "-");
    return text;
}

/* T: heat or power brake, *: power cap. */
static char cap_of(const struct gpu_lines *g)
{
    enum {
        HOT = NVML_REASON_HW_SLOWDOWN | NVML_REASON_SW_THERMAL | NVML_REASON_HW_THERMAL |
              NVML_REASON_POWER_BRAKE
    };
    const unsigned now = isfinite(g->reasons) ? (unsigned)g->reasons : 0;
    return now & HOT || g->throttled_s > 0.01 * HOST_LINES_WINDOW_S ? 'T'
           : now & NVML_REASON_POWER_CAP                            ? '*'
                                                                    : ' ';
}

/* The first alert of a GPU. */
static const char *why(const struct monitor *m, const struct host_lines *h, const struct gpu_lines *g)
{
    char at[160];
    snprintf(at, sizeof at, "%s gpu%d", h->host, g->index);
    for (int i = 0; i < m->alerts.count; i++)
        if (strcmp(m->alerts.list[i].where, at) == 0) return m->alerts.list[i].text;
    return NULL;
}

/* Are there columns of GPM? They are absent where no GPU of the host knows them. */
static bool has_activity(const struct host_lines *h, int columns)
{
    for (int i = 0; i < h->gpus && columns >= 80; i++)
        if (isfinite(h->gpu[i].tensor_percent) || isfinite(h->gpu[i].dram_percent)) return true;
    return false;
}

static void draw_gpu(const struct monitor *m, const struct host_lines *h, const struct gpu_lines *g,
                     FILE *out, int columns)
{
    char tensor[32], dram[32];
    char mhz[32], watts[32], heat[32], memory_heat[32], busy[32], memory[32], limit[32];
    const char *note = why(m, h, g);
    int used = fprintf(out, " %3d %5s %5s %c %3s", g->index, cell(mhz, "%.0f", g->sm_mhz),
                       cell(watts, "%.0f", g->watts), cap_of(g), cell(heat, "%.0f", g->celsius));
    if (columns >= 80)
        used += fprintf(out, " %3s %5s", cell(memory_heat, "%.0f", g->memory_celsius),
                        cell(limit, "%.0f", g->limit_watts));
    used += fprintf(out, " %4s", cell(busy, "%.0f", g->busy_percent));
    if (has_activity(h, columns))
        used += fprintf(out, " %4s %4s", cell(tensor, "%.0f", g->tensor_percent),
                        cell(dram, "%.0f", g->dram_percent));
    used += fprintf(out, " %4s", cell(memory, "%.0f", 100 * g->memory_used / g->memory_total));
    const int room = columns - 1 - used - 5;
    if (note && room > 14)
        fprintf(out, "  <- %.*s", room, note);
    else if (note)
        fputs("  <-", out);
    fputc('\n', out);
}

static void draw_host(const struct monitor *m, const struct host_lines *h, struct flow *f)
{
    char a[32];
    if (h->gpus > 0)
        fprintf(f->out, " gpu   MHz     W     C%s busy%s mem%%\n", f->columns >= 80 ? " mem limit" : "",
                has_activity(h, f->columns) ? " tens dram" : "");
    for (int i = 0; i < h->gpus; i++) draw_gpu(m, h, &h->gpu[i], f->out, f->columns);
    part(f, "host %.40s", h->host);
    if (isfinite(h->cpu_percent)) part(f, "cpu %.0f %%", h->cpu_percent);
    if (isfinite(h->memory_available)) part(f, "%s free", text_bytes(a, h->memory_available));
    if (isfinite(h->disk_free)) part(f, "disk %s free", text_bytes(a, h->disk_free));
    if (isfinite(h->disk_free) && m->checkpoint_bytes > 0 && h->disk_free < 1000 * m->checkpoint_bytes)
        part(f, "(%.0f checkpoints)", floor(h->disk_free / m->checkpoint_bytes));
    line_end(f);
}

/* ---- alerts */

static void draw_alert(const struct alert *a, FILE *out, int columns)
{
    char stamp[16] = "", text[800];
    const time_t seconds = (time_t)a->time;
    struct tm tm;
    if (isfinite(a->time) && gmtime_r(&seconds, &tm)) strftime(stamp, sizeof stamp, "%H:%MZ ", &tm);
    int n = snprintf(text, sizeof text, "%s%s", stamp, a->name);
    if (a->where[0]) n += snprintf(text + n, sizeof text - (size_t)n, " %s", a->where);
    if (a->step >= 0) n += snprintf(text + n, sizeof text - (size_t)n, " at step %lld", (long long)a->step);
    snprintf(text + n, sizeof text - (size_t)n, ": %s", a->text);
    const int at = fprintf(out, a->code == STATUS_OK ? " note  " : " ALERT ");
    text_wrap(out, at, 7, columns - 1, text);
}

void monitor_draw(const struct monitor *m, FILE *out, int columns, bool ascii)
{
    enum { ALERTS_SHOWN = 6 };
    struct flow f = {out, columns < 40 ? 40 : columns, 0};
    draw_run(m, &f);
    draw_rates(m, &f);
    draw_spark(m, out, f.columns, ascii);
    draw_ranks(m, out);
    for (int i = 0; i < m->host_count; i++) draw_host(m, &m->hosts[i], &f);
    const int first = m->alerts.count > ALERTS_SHOWN ? m->alerts.count - ALERTS_SHOWN : 0;
    if (first > 0) fprintf(out, " %d earlier alerts: ingot monitor --alerts\n", first);
    for (int i = first; i < m->alerts.count; i++) draw_alert(&m->alerts.list[i], out, f.columns);
}
