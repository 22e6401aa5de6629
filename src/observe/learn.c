#include "observe/learn.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/host_lines.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct learn {
    const struct learn_variant *v;
    int count;
    int64_t last;
    struct learn_row *rows;
    struct report_data *runs; /* [count][LEARN_SEEDS] */
};

static struct report_data *run_of(const struct learn *l, int variant, int seed)
{
    return &l->runs[variant * LEARN_SEEDS + seed];
}

/* ---- sums */

struct moments {
    int64_t n;
    double mean, squares; /* squares: sum of squared distances to the mean (Welford, 1962) */
};
static void moments_add(struct moments *m, double x)
{
    const double before = x - m->mean;
    m->n++;
    m->mean += before / (double)m->n;
    m->squares += before * (x - m->mean);
}
static double moments_mean(const struct moments *m)
{
    return m->n > 0 ? m->mean : NAN;
}
static double moments_error(const struct moments *m)
{
    return m->n > 1 ? sqrt(m->squares / (double)(m->n - 1) / (double)m->n) : NAN;
}

/* ---- one run beside the first variant's of the same seed */

/* Index of a step in a series, from *at on; -1: not there. */
static int64_t index_of(const struct series *s, int64_t *at, double step)
{
    while (*at < s->count && s->x[*at] < step) ++*at;
    return *at < s->count && s->x[*at] == step ? *at : -1;
}

/* Fills `above` with the differences of all steps that both have. Returns whether all losses are equal. */
static bool pair_losses(const struct series *first, const struct series *loss, struct series *above)
{
    int64_t at = 0;
    bool same = first->count == loss->count;
    for (int64_t i = 0; i < first->count; i++) {
        const int64_t k = index_of(loss, &at, first->x[i]);
        if (k < 0) continue;
        series_add(above, first->x[i], loss->y[k] - first->y[i]);
        same = same && loss->y[k] == first->y[i];
    }
    return same;
}

/* Sum of the times of the steps up to `step`. */
static double seconds_until(const struct report_data *d, double step)
{
    double sum = d->step_s.count ? 0 : NAN;
    for (int64_t i = 0; i < d->step_s.count && d->step_s.x[i] <= step; i++) sum += d->step_s.y[i];
    return sum;
}

/* The step at which the held-out loss came to `target`; NaN: never. */
static double reach_step(const struct series *val, double target)
{
    for (int64_t i = 0; i < val->count; i++) {
        if (!(val->y[i] <= target)) continue;
        if (i == 0) return NAN;
        const double part = (val->y[i - 1] - target) / (val->y[i - 1] - val->y[i]);
        return val->x[i - 1] + part * (val->x[i] - val->x[i - 1]);
    }
    return NAN;
}

static double tokens_until(const struct report_data *d, double step)
{
    const struct series *s = &d->tokens_at;
    for (int64_t i = 1; i < s->count; i++)
        if (s->x[i] >= step)
            return s->y[i - 1] + (s->y[i] - s->y[i - 1]) * (step - s->x[i - 1]) / (s->x[i] - s->x[i - 1]);
    return NAN;
}

/* Sums over the seeds of a variant. */
struct sums {
    struct moments loss, steps, seeds, held_out, held_out_minus, speed, train_s, joules, reach_tokens,
        reach_s;
};
static void add_known(struct moments *m, double x)
{
    if (isfinite(x)) moments_add(m, x);
}

/* The last steps, all of which the run must have; else it adds nothing. */
static void add_last(const struct learn *l, const struct series *first, const struct report_data *d,
                     struct sums *s)
{
    const double from = first->x[first->count - l->last];
    struct moments own = {0};
    for (int64_t i = 0; i < d->above.count; i++)
        if (d->above.x[i] >= from) moments_add(&own, d->above.y[i]);
    if (own.n < l->last) return;
    moments_add(&s->seeds, own.mean);
    for (int64_t i = 0; i < d->above.count; i++)
        if (d->above.x[i] >= from) moments_add(&s->steps, d->above.y[i]);
    for (int64_t i = 0; i < d->loss.count; i++)
        if (d->loss.x[i] >= from) moments_add(&s->loss, d->loss.y[i]);
}

static void add_run(const struct learn *l, int variant, int seed, struct sums *s)
{
    struct report_data *d = run_of(l, variant, seed);
    const struct report_data *first = run_of(l, 0, seed);
    struct learn_row *row = &l->rows[variant];
    const bool same = pair_losses(&first->loss, &d->loss, &d->above);
    row->same = row->same && variant > 0 && same;
    add_last(l, &first->loss, d, s);
    const double held_out = series_last(&d->val_loss), target = series_last(&first->val_loss);
    add_known(&s->held_out, held_out);
    add_known(&s->held_out_minus, held_out - target);
    add_known(&s->speed, series_median(&d->tokens_per_s));
    add_known(&s->train_s, seconds_until(d, INFINITY));
    add_known(&s->joules, host_lines_joules(l->v[variant].dirs[seed]));
    const double reached = reach_step(&d->val_loss, target);
    add_known(&s->reach_tokens, tokens_until(d, reached));
    add_known(&s->reach_s, isfinite(reached) ? seconds_until(d, reached) : NAN);
    if (seed == 0 || d->steps < row->steps) row->steps = d->steps;
}

/* The state of the run that is worst off. A program without exit.json is not judged by it. */
static void set_state(const struct learn *l, int variant)
{
    struct learn_row *row = &l->rows[variant];
    snprintf(row->state, sizeof row->state, "finished");
    for (int s = 0; s < l->v[variant].seeds; s++) {
        const struct report_data *d = run_of(l, variant, s);
        char word[32];
        int code;
        const enum report_state state = report_data_state(d, &code);
        if (d->exit == NULL || state == REPORT_FINISHED) continue;
        snprintf(row->state, sizeof row->state, "%s at step %lld", report_state_text(word, state, code),
                 (long long)d->steps);
    }
    if (strcmp(row->state, "finished") == 0 && row->steps < l->rows[0].steps)
        snprintf(row->state, sizeof row->state, "%lld of %lld steps", (long long)row->steps,
                 (long long)l->rows[0].steps);
}

static void compare(struct learn *l, int variant)
{
    struct sums s = {0};
    struct learn_row *row = &l->rows[variant];
    *row = (struct learn_row){.same = true};
    for (int seed = 0; seed < l->v[variant].seeds; seed++) add_run(l, variant, seed, &s);
    row->loss = moments_mean(&s.loss);
    row->minus = variant ? moments_mean(&s.steps) : NAN;
    row->error = variant ? moments_error(&s.steps) : NAN;
    row->error_seeds = variant ? moments_error(&s.seeds) : NAN;
    row->held_out = moments_mean(&s.held_out);
    row->held_out_minus = variant ? moments_mean(&s.held_out_minus) : NAN;
    row->held_out_error = variant ? moments_error(&s.held_out_minus) : NAN;
    row->tokens_per_s = moments_mean(&s.speed);
    row->train_s = moments_mean(&s.train_s);
    row->joules = moments_mean(&s.joules);
    if (s.reach_s.n < l->v[variant].seeds) s.reach_tokens.n = s.reach_s.n = 0;
    row->reach_tokens = moments_mean(&s.reach_tokens);
    row->reach_s = moments_mean(&s.reach_s);
    set_state(l, variant);
}

/* ---- the page */

static void put_number(FILE *out, const char *format, double v)
{
    fprintf(out, "<td class=n>");
    if (isfinite(v)) fprintf(out, format, v);
}

static void put_difference(FILE *out, double minus, double error)
{
    fprintf(out, "<td class=n>");
    if (isfinite(minus)) fprintf(out, "%+.5f", minus);
    if (isfinite(error)) fprintf(out, " &plusmn; %.5f", error);
}

static void put_row(FILE *out, const struct learn *l, int i)
{
    const struct learn_row *row = &l->rows[i];
    char buf[32];
    fprintf(out, "<tr><td><i class=key style='background:var(--r%d)'></i>", i % 8);
    report_put_text(out, l->v[i].name);
    fprintf(out, "<td>%s%s", row->state, row->same ? ", the same losses" : "");
    put_number(out, "%.5f", row->loss);
    put_difference(out, row->minus, row->error);
    put_number(out, "%.5f", row->error_seeds);
    put_number(out, "%.5f", row->held_out);
    put_difference(out, row->held_out_minus, row->held_out_error);
    fprintf(out, "<td class=n>%s", isfinite(row->tokens_per_s) ? text_count(buf, row->tokens_per_s) : "");
    put_number(out, "%.4g", row->train_s);
    put_number(out, "%.4g", row->joules);
    fprintf(out, "<td class=n>%s", isfinite(row->reach_tokens) ? text_count(buf, row->reach_tokens) : "");
    put_number(out, "%.4g", row->reach_s);
    fprintf(out, "\n");
}

static void put_page(FILE *out, const struct learn *l)
{
    const struct report_data *list[LEARN_VARIANTS];
    struct report_data *first = malloc((size_t)l->count * sizeof *first); /* borrows what the runs own */
    MEMORY_CHECK(first, "no memory for a page of %d variants", l->count);
    for (int i = 0; i < l->count; i++) {
        list[i] = run_of(l, i, 0);
        first[i] = *list[i];
    }
    report_put_head(out, "What the variants learn", "ingot bench learn", "compare");
    fprintf(out,
            "<p class=sub>Same initial weights, same order of data. Losses are means of the last %lld steps "
            "in nats per token; a difference is the paired mean to the first row, step by step, &plusmn; its "
            "standard error; seeds: the standard error of the means of %d seeds. Held-out: the last "
            "evaluation. Reached: when the held-out loss was the first row's last one. Seconds are of steps "
            "alone.</p>\n",
            (long long)l->last, l->v[0].seeds);
    fprintf(out, "<div class='card scroll'><table><tr><th>variant<th><th class=n>loss<th class=n>difference"
                 "<th class=n>seeds<th class=n>held-out<th class=n>difference<th class=n>tokens/s<th "
                 "class=n>seconds<th class=n>joules<th class=n>reached, tokens<th class=n>seconds\n");
    for (int i = 0; i < l->count; i++) put_row(out, l, i);
    fprintf(out, "</table></div>\n");
    report_put_charts(out, list, l->count);
    report_put_results(out, first, l->count);
    fprintf(out, "<footer>Made by ingot %s. The curves are those of the first seed.</footer>\n",
            INGOT_VERSION);
    report_put_foot(out);
    free(first);
}

static status write_page(const struct learn *l, const char *path)
{
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&page, &bytes);
    put_page(out, l);
    memory_stream_close(out);
    status st = io_write_file(path, page, bytes);
    free(page);
    return st;
}

/* ---- all of it */

static status read_runs(struct learn *l)
{
    for (int i = 0; i < l->count; i++)
        for (int s = 0; s < l->v[i].seeds; s++) {
            struct report_data *d = run_of(l, i, s);
            TRY(report_data_read(d, l->v[i].dirs[s], 0));
            snprintf(d->name, sizeof d->name, "%s", l->v[i].name);
        }
    for (int s = 0; s < l->v[0].seeds; s++)
        if (run_of(l, 0, s)->loss.count < l->last)
            return FAIL(STATUS_DATA, "%s: %lld steps with a loss, %lld are to be compared", l->v[0].dirs[s],
                        (long long)run_of(l, 0, s)->loss.count, (long long)l->last);
    return STATUS_OK;
}

status learn_compare(const struct learn_variant *v, int count, int64_t last, struct learn_row *rows,
                     const char *page)
{
    CHECK(count > 0 && count <= LEARN_VARIANTS && last > 1, "%d variants, %lld steps", count,
          (long long)last);
    struct learn l = {.v = v, .count = count, .last = last, .rows = rows};
    l.runs = calloc((size_t)count * LEARN_SEEDS, sizeof *l.runs);
    MEMORY_CHECK(l.runs, "no memory to compare %d variants", count);
    status st = read_runs(&l);
    for (int i = 0; i < count && st == STATUS_OK; i++) compare(&l, i);
    if (st == STATUS_OK && page) st = write_page(&l, page);
    for (int i = 0; i < count * LEARN_SEEDS; i++) report_data_free(&l.runs[i]);
    free(l.runs);
    return st;
}
