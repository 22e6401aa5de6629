/* What the display shows, as pure functions: times to go, the bar, lines that scroll, lines for a pipe.
 *
 *   step 120/2000 ━━━━━━───────────────  6%  micro 3/16 14s  loss 4.123  ETA 2m10s  12.3k tok/s  val 4.310 */
#include "observe/observe_int.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

enum { BAR_COLUMNS_MIN = 8, BAR_COLUMNS_MAX = 40, COLUMNS_FREE = 2, SCROLL_LINES = 20 };
#define WORK_SHOWN_S  1.0 /* from then on the bar names it */
#define LAYER_SHOWN_S 3.0 /* in one micro-batch */

/* ---- times */

/* Seconds of a step of the run; NaN: not known. The first step of a process warms up: it counts while it is alone. */
static double step_seconds(const struct progress_view *v)
{
    const int64_t n = v->count[WORK_STEP];
    if (n == 0 && v->working && v->kind == WORK_STEP && v->done > 0)
        return (v->part_s - v->begin_s) / (double)v->done * (double)v->total;
    if (n == 0) return v->run.step_s;
    return n == 1 ? v->first_step_s : v->seconds[WORK_STEP] / (double)(n - 1);
}

static double mean_seconds(const struct progress_view *v, enum progress_work kind)
{
    return v->count[kind] ? v->seconds[kind] / (double)v->count[kind] : 0;
}

static double eval_seconds(const struct progress_view *v, int64_t parts)
{
    const double each = v->parts[WORK_EVAL] ? v->seconds[WORK_EVAL] / (double)v->parts[WORK_EVAL]
                                            : step_seconds(v) * v->run.eval_part_steps;
    return parts ? (double)parts * each + mean_seconds(v, WORK_SAMPLE) : 0;
}

/* Of what happens after every `every`-th step but the last: how often it is to come. */
static int64_t times_left(int64_t every, int64_t step, int64_t total)
{
    return every > 0 && step < total ? (total - 1) / every - step / every : 0;
}

double progress_work_left(const struct progress_view *v, double now)
{
    const double elapsed = now - v->begin_s;
    double whole = NAN;
    if (!v->working) return NAN;
    if (v->done > 0)
        whole = (v->part_s - v->begin_s) / (double)v->done * (double)v->total;
    else if (v->kind == WORK_STEP)
        whole = step_seconds(v);
    else if (v->kind == WORK_EVAL)
        whole = eval_seconds(v, v->total);
    else if (v->count[v->kind])
        whole = mean_seconds(v, v->kind);
    return isnan(whole) ? NAN : fmax(0, whole - elapsed);
}

double progress_eta(const struct progress_view *v, int64_t step, double now)
{
    const struct progress_run *r = &v->run;
    if (r->steps_total <= 0) return NAN;
    const bool last_eval = v->eval_step < r->steps_total;
    const int64_t steps = r->steps_total - step;
    const double each = step_seconds(v);
    double left = steps > 0 ? (double)steps * each : 0;
    if (r->eval_parts > 0) {
        left += (double)times_left(r->eval_every, step, r->steps_total) * eval_seconds(v, r->eval_parts);
        if (last_eval && !(v->working && v->kind == WORK_EVAL && steps <= 0))
            left += eval_seconds(v, r->eval_parts_last);
    }
    left +=
        (double)(times_left(r->ckpt_every, step, r->steps_total) + (steps > 0)) * mean_seconds(v, WORK_SAVE);
    if (v->working && v->kind == WORK_STEP)
        left -= fmin(now - v->begin_s, each);
    else if (v->working && !isnan(progress_work_left(v, now)))
        left += progress_work_left(v, now);
    return left < 0 ? 0 : left;
}

/* ---- lines */

/* snprintf at the end of `out`; what does not fit is cut. */
PRINTF_LIKE(3, 4) static void add(char *out, size_t size, const char *fmt, ...)
{
    size_t at = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + at, size - at, fmt, ap);
    va_end(ap);
}

void progress_line(char *out, size_t size, const struct metrics *m, int64_t steps_total, double eta_s)
{
    snprintf(out, size, "step=%lld", (long long)m->step);
    if (steps_total > 0) add(out, size, "/%lld", (long long)steps_total);
    if (!isnan(m->loss)) add(out, size, " loss=%.4f", m->loss);
    if (!isnan(m->val_loss)) add(out, size, " val_loss=%.4f", m->val_loss);
    if (!isnan(m->val_bpb)) add(out, size, " val_bpb=%.4f", m->val_bpb);
    if (!isnan(m->lr)) add(out, size, " lr=%.3e", m->lr);
    if (!isnan(m->grad_norm)) add(out, size, " grad_norm=%.4f", m->grad_norm);
    if (!isnan(m->tokens_per_s)) add(out, size, " tokens_per_s=%.0f", m->tokens_per_s);
    if (!isnan(m->mfu)) add(out, size, " mfu=%.3f", m->mfu);
    char buf[32];
    if (!isnan(eta_s)) add(out, size, " eta=%s", text_duration(buf, eta_s));
}

/* The n of "every n-th step leaves a line": 1, 2 or 5 times a power of ten, for some twenty lines in a run. */
int64_t progress_scroll_every(int64_t steps_total)
{
    int64_t n = 1;
    for (int i = 0; steps_total / n > SCROLL_LINES * 3 / 2; i++) n = i % 3 == 1 ? n / 2 * 5 : n * 2;
    return n;
}

/* Items that leave at least `keep` columns of `left`; how many. Those that do not fit end the list. */
static int items_that_fit(const char items[][48], int count, int *left, int needed, int keep)
{
    int shown = 0;
    for (; shown < count; shown++) {
        const int n = (int)strlen(items[shown]);
        if (*left - n < (shown < needed ? 0 : keep)) break;
        *left -= n;
    }
    return shown;
}

void progress_scroll(char *out, size_t size, const struct progress_view *v, const struct metrics *m,
                     int width)
{
    char items[6][48], total[24], buf[32];
    int count = 0;
    snprintf(total, sizeof total, "%lld", (long long)v->run.steps_total);
    snprintf(out, size, "step %*lld", (int)strlen(total), (long long)m->step);
    if (v->run.steps_total > 0) add(out, size, "/%s", total);
    if (!isnan(m->loss)) snprintf(items[count++], sizeof items[0], "  loss %.4f", m->loss);
    if (!isnan(m->val_loss)) snprintf(items[count++], sizeof items[0], "  val loss %.4f", m->val_loss);
    if (!isnan(m->val_bpb)) snprintf(items[count++], sizeof items[0], "  %.4f bits per byte", m->val_bpb);
    if (!isnan(m->val_accuracy))
        snprintf(items[count++], sizeof items[0], "  accuracy %.1f %%", 100 * m->val_accuracy);
    if (!isnan(m->tokens_per_s))
        snprintf(items[count++], sizeof items[0], "  %s tok/s", text_count(buf, m->tokens_per_s));
    if (!isnan(m->lr)) snprintf(items[count++], sizeof items[0], "  lr %.2e", m->lr);
    if (!isnan(m->grad_norm) && count < 6)
        snprintf(items[count++], sizeof items[0], "  grad norm %.3g", m->grad_norm);
    int left = width - 1 - (int)strlen(out);
    const int shown = items_that_fit(items, count, &left, 0, 0);
    if (left < 0 && width > 0 && (size_t)width < size) out[width - 1] = 0;
    for (int i = 0; i < shown; i++) add(out, size, "%s", items[i]);
}

/* The parts of the work that is done: "  micro 3/16 14s". */
static void work_item(char *out, size_t size, const struct progress_view *v, double now)
{
    static const char *const names[] = {[WORK_OTHER] = "",
                                        [WORK_STEP] = "micro",
                                        [WORK_EVAL] = "evaluating",
                                        [WORK_SAMPLE] = "sampling",
                                        [WORK_SAVE] = "saving"};
    char buf[32];
    const bool parts = v->total > 1;
    out[0] = 0;
    if (!v->working || now - v->begin_s < WORK_SHOWN_S) return;
    add(out, size, "  %s", v->kind == WORK_STEP && !parts ? "this step" : names[v->kind]);
    if (parts)
        add(out, size, " %lld/%lld", (long long)(v->done < v->total ? v->done + 1 : v->total),
            (long long)v->total);
    if (v->kind == WORK_STEP && v->layer && v->run.layers > 0 && now - v->part_s > LAYER_SHOWN_S)
        add(out, size, " layer %d/%lld%s", v->layer > 0 ? v->layer : -v->layer, (long long)v->run.layers,
            v->layer > 0 ? "" : " back");
    add(out, size, " %s", text_duration(buf, now - v->begin_s));
}

static void add_bar(char *out, size_t size, const struct progress_view *v, double part, int columns)
{
    const char *full = v->unicode ? "━" : "=", *empty = v->unicode ? "─" : "-";
    int done = (int)(part * columns);
    if (v->color) add(out, size, "\033[36m");
    for (int i = 0; i < done; i++) add(out, size, "%s", full);
    if (v->color) add(out, size, "\033[90m");
    for (int i = done; i < columns; i++) add(out, size, "%s", empty);
    if (v->color) add(out, size, "\033[0m");
}

/* Work outside a run: its name, a bar where its parts are known, its time. */
static int head_of_work(char *head, size_t size, char items[][48], const struct progress_view *v, double now,
                        double *part)
{
    char buf[32];
    snprintf(head, size, "%s ", v->what);
    snprintf(items[0], sizeof items[0], "  %s", text_duration(buf, now - v->begin_s));
    *part = v->total > 0 ? (double)v->done / (double)v->total : -1;
    return 1;
}

static int head_of_run(char *head, size_t size, char items[][48], const struct progress_view *v, double eta_s,
                       double now, double *part)
{
    const struct metrics *m = &v->last;
    char buf[32];
    int count = 0;
    *part = -1;
    if (v->run.steps_total > 0) {
        const double inside =
            v->working && v->kind == WORK_STEP && v->total > 0 ? (double)v->done / (double)v->total : 0;
        *part = fmin(1, fmax(0, ((double)v->run.step + inside) / (double)v->run.steps_total));
        snprintf(head, size, "step %lld/%lld ", (long long)v->run.step, (long long)v->run.steps_total);
        snprintf(items[count++], sizeof items[0], " %3d%%", (int)(*part * 100));
    } else {
        snprintf(head, size, "step %lld ", (long long)v->run.step);
    }
    work_item(items[count], sizeof items[0], v, now);
    if (items[count][0]) count++;
    if (!isnan(m->loss)) snprintf(items[count++], sizeof items[0], "  loss %.3f", m->loss);
    if (!isnan(eta_s)) snprintf(items[count++], sizeof items[0], "  ETA %s", text_duration(buf, eta_s));
    if (!isnan(m->tokens_per_s))
        snprintf(items[count++], sizeof items[0], "  %s tok/s", text_count(buf, m->tokens_per_s));
    if (!isnan(m->val_loss)) snprintf(items[count++], sizeof items[0], "  val %.3f", m->val_loss);
    return count;
}

void progress_bar(char *out, size_t size, const struct progress_view *v, double eta_s, double now, int width)
{
    char head[96], items[6][48];
    double part;
    const bool run = v->run.steps_total > 0 || v->run.step > 0;
    const int count = run ? head_of_run(head, sizeof head, items, v, eta_s, now, &part)
                          : head_of_work(head, sizeof head, items, v, now, &part);
    /* The last columns stay free: for the ^C that a terminal echoes, and because some terminals wrap when the last is
     * written. Items are in order of worth; those that leave no bar are dropped. */
    int left = width - 1 - COLUMNS_FREE - (int)strlen(head);
    const int shown = items_that_fit((const char(*)[48])items, count, &left, run ? 2 : 1, BAR_COLUMNS_MIN);
    out[0] = 0;
    if (left < 0) {
        snprintf(out, width > 0 && (size_t)width < size ? (size_t)width : size, "%s", head);
        return;
    }
    add(out, size, "%s", head);
    if (left >= BAR_COLUMNS_MIN && part >= 0)
        add_bar(out, size, v, part, left < BAR_COLUMNS_MAX ? left : BAR_COLUMNS_MAX);
    for (int i = 0; i < shown; i++) add(out, size, "%s", items[i]);
}

void progress_said(char *out, size_t size, const struct progress_view *v, double now)
{
    char buf[32];
    const double left = progress_work_left(v, now);
    out[0] = 0;
    if (v->kind == WORK_STEP)
        add(out, size, "step %lld/%lld:", (long long)v->run.step + 1, (long long)v->run.steps_total);
    else
        add(out, size, "%s:", v->what);
    if (v->total > 1)
        add(out, size, " %s %lld of %lld,", v->kind == WORK_STEP ? "micro-batch" : "part",
            (long long)(v->done < v->total ? v->done + 1 : v->total), (long long)v->total);
    if (v->kind == WORK_STEP && v->layer && v->run.layers > 0)
        add(out, size, " layer %d of %lld %s,", v->layer > 0 ? v->layer : -v->layer, (long long)v->run.layers,
            v->layer > 0 ? "forward" : "backward");
    add(out, size, " since %s", text_duration(buf, now - v->begin_s));
    if (!isnan(left)) add(out, size, ", about %s more", text_duration(buf, left));
}
