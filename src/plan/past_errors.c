#include "plan/past_errors.h"
#include "base/io.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 24 };

static void add_line(struct past_errors *p, const char *line, size_t bytes)
{
    json_t *o = json_loadb(line, bytes, 0, NULL);
    const char *kind = json_string_value(json_object_get(o, "kind")),
               *machine = json_string_value(json_object_get(o, "machine")),
               *rates = json_string_value(json_object_get(o, "rates"));
    const double predicted = json_number_value(json_object_get(o, "predicted_step_s")),
                 measured = json_number_value(json_object_get(o, "measured_step_s")),
                 planned = json_number_value(json_object_get(o, "predicted_bytes")),
                 taken = json_number_value(json_object_get(o, "measured_bytes"));
    if (kind && strcmp(kind, "run") == 0 && machine && rates && predicted > 0 && measured > 0 &&
        planned > 0) {
        if (p->count == PAST_RUNS_MAX) memmove(p->runs, p->runs + 1, (size_t)--p->count * sizeof *p->runs);
        struct past_run *r = &p->runs[p->count++];
        snprintf(r->machine, sizeof r->machine, "%s", machine);
        r->row = strcmp(rates, "row") == 0;
        r->step = measured / predicted, r->bytes = taken / planned;
    }
    json_decref(o);
}

static status read_file(struct past_errors *p, const char *path)
{
    char *text;
    size_t bytes;
    TRY(io_read_file(path, FILE_BYTES_MAX, &text, &bytes));
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        add_line(p, line, (size_t)(end - line));
    free(text);
    return STATUS_OK;
}

/* A run directory's file, if it has one. */
static status read_run(struct past_errors *p, const char *dir)
{
    char path[1200];
    enum io_kind kind;
    snprintf(path, sizeof path, "%s/forecast.jsonl", dir);
    TRY(io_kind(path, &kind));
    return kind == IO_FILE ? read_file(p, path) : STATUS_OK;
}

static status read_dir(struct past_errors *p, const char *dir)
{
    struct io_list names;
    TRY(read_run(p, dir));
    TRY(io_list(dir, &names));
    status st = STATUS_OK;
    for (int i = 0; st == STATUS_OK && i < names.count; i++) {
        char path[1100];
        enum io_kind kind;
        snprintf(path, sizeof path, "%s/%s", dir, names.names[i]);
        st = io_kind(path, &kind);
        if (st == STATUS_OK && kind == IO_DIR) st = read_run(p, path);
    }
    io_list_free(&names);
    return st;
}

status past_errors_read(const char *path, struct past_errors *p)
{
    enum io_kind kind;
    *p = (struct past_errors){.asked = path != NULL};
    snprintf(p->from, sizeof p->from, "%s", path ? path : "runs");
    TRY(io_kind(p->from, &kind));
    if (kind != IO_FILE && kind != IO_DIR) {
        if (path == NULL) return STATUS_OK;
        return FAIL(STATUS_CONFIG, "plan: --past %s: there is no forecast.jsonl and no directory of runs",
                    path);
    }
    p->runs = calloc(PAST_RUNS_MAX, sizeof *p->runs);
    MEMORY_CHECK(p->runs != NULL, "no memory for forecasts of earlier runs");
    const status st = kind == IO_FILE ? read_file(p, p->from) : read_dir(p, p->from);
    if (st != STATUS_OK) past_errors_free(p);
    return st;
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

/* Of the runs on one machine that were predicted from the same rates. */
struct past_error {
    int runs, exact;          /* exact: those whose memory was planned to the byte */
    double low, median, high; /* measured over predicted step */
};
static struct past_error past_error_of(const struct past_errors *p, const char *machine, bool row)
{
    struct past_error e = {0};
    double *ratios = calloc((size_t)p->count + 1, sizeof *ratios);
    MEMORY_CHECK(ratios != NULL, "no memory for forecasts of earlier runs");
    for (int i = 0; i < p->count; i++) {
        const struct past_run *r = &p->runs[i];
        if (strcmp(r->machine, machine) != 0 || r->row != row) continue;
        ratios[e.runs++] = r->step;
        e.exact += r->bytes == 1;
    }
    qsort(ratios, (size_t)e.runs, sizeof *ratios, by_value);
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
