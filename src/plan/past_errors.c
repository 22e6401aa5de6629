#include "plan/past_errors.h"
#include "base/io.h"
#include "base/text.h"
#include "plan/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

status past_errors_read(const char *path, struct past_errors *p)
{
    enum io_kind kind;
    *p = (struct past_errors){.asked = path != NULL};
    snprintf(p->from, sizeof p->from, "%s", path ? path : "runs");
    TRY(io_kind(p->from, &kind));
    if (path == NULL && kind != IO_DIR) return STATUS_OK;
    TRY(past_find(p->from, &p->runs, &p->count));
    for (int i = 0; i < p->count; i++) { /* of a run that knows its device alone */
        struct past_forecast *r = &p->runs[i];
        const struct machine *m = machine_of_gpu(r->device);
        if (r->machine[0] == 0)
            snprintf(r->machine, sizeof r->machine, "%s", !r->row ? "cpu" : m ? m->name : "");
    }
    return STATUS_OK;
}

void past_errors_free(struct past_errors *p)
{
    free(p->runs);
    p->runs = NULL;
    p->count = 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool counts(const struct past_forecast *r, const char *machine, bool row)
{
    return strcmp(r->machine, machine) == 0 && r->row == row;
}

double *past_errors_ratios(const struct past_errors *p, const char *machine, bool row, int *count)
{
    double *ratios = calloc((size_t)p->count + 1, sizeof *ratios);
    MEMORY_CHECK(ratios != NULL, "no memory for forecasts of earlier runs");
    *count = 0;
    for (int i = 0; i < p->count; i++)
        if (counts(&p->runs[i], machine, row))
            ratios[(*count)++] = p->runs[i].measured / p->runs[i].predicted;
    qsort(ratios, (size_t)*count, sizeof *ratios, by_value);
    return ratios;
}

/* Of the runs on one machine that were predicted from the same rates. */
struct past_error {
    int runs, exact;          /* exact: those whose memory was planned to the byte */
    double low, median, high; /* measured over predicted step */
};
static struct past_error past_error_of(const struct past_errors *p, const char *machine, bool row)
{
    struct past_error e = {0};
    double *ratios = past_errors_ratios(p, machine, row, &e.runs);
    for (int i = 0; i < p->count; i++) e.exact += counts(&p->runs[i], machine, row) && p->runs[i].bytes == 1;
    if (e.runs > 0) {
        e.low = ratios[0], e.high = ratios[e.runs - 1];
        e.median = (ratios[(e.runs - 1) / 2] + ratios[e.runs / 2]) / 2;
    }
    free(ratios);
    return e;
}

void past_errors_print(const struct past_errors *p, const char *machine, bool row, double step)
{
    char a[32], b[32];
    if (p == NULL) return;
    const struct past_error e = past_error_of(p, machine, row);
    const char *rates = row ? "" : " (rates measured before each)";
    if (e.runs == 0) {
        if (p->asked) printf("past         %d runs in %s, none on %s%s\n", p->count, p->from, machine, rates);
        return;
    }
    printf("past         %d run%s on %s%s took %.2f to %.2f of the predicted step, in the median %.2f: here "
           "%s to %s; "
           "memory was as planned in %d\n",
           e.runs, e.runs > 1 ? "s" : "", machine, rates, e.low, e.high, e.median, text_time(a, e.low * step),
           text_time(b, e.high * step), e.exact);
}

json_t *past_errors_json(const struct past_errors *p, const char *machine, bool row, double step)
{
    if (p == NULL) return NULL;
    const struct past_error e = past_error_of(p, machine, row);
    if (e.runs == 0) return NULL;
    return json_pack("{s:i, s:f, s:f, s:f, s:i, s:f, s:f}", "runs", e.runs, "step_ratio_low", e.low,
                     "step_ratio_median", e.median, "step_ratio_high", e.high, "memory_exact", e.exact,
                     "step_seconds_low", e.low * step, "step_seconds_high", e.high * step);
}
