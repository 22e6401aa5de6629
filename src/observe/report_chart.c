/* The charts of a page: controls, and the data as JSON that report.js draws (its head says the form). A page stays
 * small whatever the run's length: a series of more than twice `shown` records becomes `shown` intervals, each with
 * mean, minimum and maximum, so that no spike is lost. */
#include "observe/report_int.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 1000, SHOWN_LEAST = 100 };

/* JSON that cannot end a script element. */
static void put_json(FILE *out, const json_t *o)
{
    char *dump =
        o ? json_dumps(o, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    MEMORY_CHECK(dump != NULL, "no memory to print a chart's data");
    for (const char *p = dump; *p; p++) *p == '<' ? fputs("\\u003c", out) : fputc(*p, out);
    free(dump);
}

static void put_string(FILE *out, const char *text)
{
    json_t *string = json_string(text);
    put_json(out, string);
    json_decref(string);
}

/* The first index of interval k of `parts`. */
static int64_t cut(int64_t count, int64_t parts, int64_t k)
{
    return (int64_t)((double)count * (double)k / (double)parts);
}

enum column { COLUMN_STEP, COLUMN_MEAN, COLUMN_LOW, COLUMN_HIGH };
static double of_interval(const struct series *s, int64_t from, int64_t to, enum column what)
{
    if (what == COLUMN_STEP) return s->x[from + (to - from) / 2];
    double sum = 0, low = s->y[from], high = s->y[from];
    for (int64_t i = from; i < to; i++) {
        sum += s->y[i];
        low = fmin(low, s->y[i]);
        high = fmax(high, s->y[i]);
    }
    return what == COLUMN_MEAN ? sum / (double)(to - from) : what == COLUMN_LOW ? low : high;
}

static void put_series(FILE *out, const struct series *s, int64_t shown)
{
    const bool thin = s->count > 2 * shown;
    const int64_t points = thin ? shown : s->count;
    for (int what = COLUMN_STEP; what <= (thin ? COLUMN_HIGH : COLUMN_MEAN); what++) {
        fputs(what ? ",[" : "[[", out);
        for (int64_t k = 0; k < points; k++)
            fprintf(out, what == COLUMN_STEP ? "%s%.0f" : "%s%.6g", k ? "," : "",
                    of_interval(s, cut(s->count, points, k), cut(s->count, points, k + 1), what));
        fputc(']', out);
    }
    fputc(']', out);
}

/* `at` between two of its steps, as report.js does it; beyond the ends it stays. */
static double value_at(const struct series *s, int64_t *i, double step)
{
    if (s->count == 0) return 0;
    while (*i + 1 < s->count && s->x[*i + 1] <= step) ++*i;
    if (*i + 1 == s->count || step <= s->x[*i]) return s->y[*i];
    return s->y[*i] + (s->y[*i + 1] - s->y[*i]) * (step - s->x[*i]) / (s->x[*i + 1] - s->x[*i]);
}

static void put_axis(FILE *out, const struct report_data *d, int64_t shown)
{
    const struct series *steps = d->tokens_at.count >= d->seconds_at.count ? &d->tokens_at : &d->seconds_at;
    const struct series *const columns[] = {steps, &d->tokens_at, &d->seconds_at};
    static const char *const names[] = {"step", "tokens", "time"};
    const int64_t points = steps->count < 2 * shown ? steps->count : 2 * shown;
    for (int c = 0; c < 3; c++) {
        int64_t at = 0;
        fprintf(out, "%s\"%s\":[", c ? "," : "{", names[c]);
        for (int64_t k = 0; k < points; k++) {
            const double step = steps->x[points > 1 ? k * (steps->count - 1) / (points - 1) : 0];
            fprintf(out, "%s%.10g", k ? "," : "", c ? value_at(columns[c], &at, step) : step);
        }
        fputc(']', out);
    }
    fputc('}', out);
}

static void put_run(FILE *out, const struct report_data *d, int64_t shown)
{
    fprintf(out, "{\"name\":");
    put_string(out, d->name);
    fprintf(out, ",\"starts\":[");
    const char *comma = "";
    for (int64_t i = 0; i < d->starts.count && i < 200; i++) {
        if (d->starts.x[i] <= 0) continue;
        fprintf(out, "%s%.0f", comma, d->starts.x[i]);
        comma = ",";
    }
    fprintf(out, "],\"forks\":");
    put_json(out, d->forks);
    fprintf(out, ",\n\"axis\":");
    put_axis(out, d, shown);
    fprintf(out, ",\n\"series\":{");
    comma = "";
#define X(field, tag)                                                                                        \
    if (d->field.count) {                                                                                    \
        fprintf(out, "%s\n\"" #field "\":", comma);                                                          \
        comma = ",";                                                                                         \
        put_series(out, &d->field, shown);                                                                   \
    }
    METRIC_LIST(X)
    X(above, "")
#undef X
    fprintf(out, "}}");
}

static const char controls[] =
    "<noscript><div class=card>The charts need JavaScript.</div></noscript>\n"
    "<section><div class=bar><label>x <select id=x autocomplete=off><option value=step>step<option "
    "value=tokens>tokens"
    "<option value=time>training time</select></label>\n"
    "<label><input type=checkbox id=logx autocomplete=off>log x</label>\n"
    "<label><input type=checkbox id=logy autocomplete=off>log y</label>\n"
    "<label>smoothing <input type=range id=smooth min=0 max=0.99 step=0.01 value=0.6 autocomplete=off>"
    "<output id=smoothed>0.60</output></label>\n"
    "<span class=hint>drag: zoom; double click: back</span><button id=reset hidden>reset "
    "zoom</button></div>\n"
    "<div class=legend id=legend></div><div class=charts id=charts></div></section>\n";

static int64_t shown_of(int count)
{
    const int64_t shown = SHOWN * 2 / (count + 1);
    return shown < SHOWN_LEAST ? SHOWN_LEAST : shown;
}

void report_put_controls(FILE *out)
{
    fputs(controls, out);
}

void report_put_curves(FILE *out, const struct report_data *const *runs, int count)
{
    fprintf(out, "{\"runs\":[");
    for (int i = 0; i < count; i++) {
        if (i) fputc(',', out);
        put_run(out, runs[i], shown_of(count));
    }
    fprintf(out, "]}");
}

void report_put_charts(FILE *out, const struct report_data *const *runs, int count)
{
    const int64_t shown = shown_of(count);
    int64_t most = 0;
    bool any = false;
    for (int i = 0; i < count; i++) {
        any = any || runs[i]->tokens_at.count > 0 || runs[i]->seconds_at.count > 0;
        if (runs[i]->records > most) most = runs[i]->records;
    }
    fprintf(out, "<h2>Curves</h2>\n");
    fprintf(out, any ? "%s" : "<div class='card sub'>No step has been recorded.</div>\n", controls);
    if (most > 2 * shown)
        fprintf(out,
                "<p class=sub>Of %lld records each chart shows %lld intervals: their mean, and faintly "
                "their minima and maxima.</p>\n",
                (long long)most, (long long)shown);
    fprintf(out, "<script type=application/json id=data>");
    report_put_curves(out, runs, count);
    fprintf(out, "</script>\n");
}
