/* Private to the report: the data read from a run directory, and the charts. */
#ifndef INGOT_OBSERVE_REPORT_INT_H
#define INGOT_OBSERVE_REPORT_INT_H
#include "observe/observe.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct series {
    double *x, *y; /* step, value */
    int64_t count, room;
};
struct report_named {
    char *name;
    double value;
};
struct report_sample {
    int64_t step;
    char *prompt, *text;
};
struct report_data {
    char name[256]; /* name of the run: its directory */
#define X(field, tag) struct series field;
    METRIC_LIST(X)
#undef X
    struct series starts; /* step at which each part of the run began; y is unused */
    int64_t steps, tokens, unreadable;
    double
        wall_s; /* run time up to the last record: the parts of the run without the pauses between them */
    struct report_named *facts, *stages;
    int64_t fact_count, fact_room, stage_count, stage_room;
    struct report_sample *samples;
    int64_t sample_count, sample_room;
    json_t *env, *exit; /* NULL: missing or unreadable */
    char *config;       /* valid UTF-8; NULL: missing */
};
/* Reads a run directory. A missing file leaves its fields empty; a directory with none of the four files is
 * STATUS_DATA. */
status report_data_read(struct report_data *d, const char *run_dir) WARN_UNUSED;
void report_data_free(struct report_data *d);
/* Value of a fact; NAN when it does not exist. */
double report_data_fact(const struct report_data *d, const char *name);

/* series.c */
void series_add(struct series *s, double x, double y);
void series_free(struct series *s);
double series_last(const struct series *s);    /* NAN when empty */
double series_median(const struct series *s);  /* NAN when empty */
double *series_sorted(const struct series *s); /* the values in ascending order; malloc'd */
/* Smoothed value at `i`: least-squares line through the values around `i`. It neither lags behind a falling curve nor
 * oscillates at the ends. */
double series_smooth(const struct series *s, const double *sums, int64_t i);
/* Prefix sums of y and of index * y, interleaved; malloc'd. */
double *series_sums(const struct series *s);

enum chart_axis { AXIS_PLAIN, AXIS_COUNT, AXIS_POWER };
struct chart {
    const char *title, *unit;
    enum chart_axis axis;
    const struct series *raw;    /* drawn faintly, with a smooth line over it when `smooth` */
    const struct series *points; /* dots on a line; NULL: none */
    const struct series *starts; /* dashed lines where the run was resumed; NULL: none */
    bool smooth, from_zero;
    int width, height; /* in CSS pixels at natural size */
    int id;            /* unique on the page */
};
/* report_style.c: inserted into the page unchanged. */
extern const char report_style[], report_script[];

/* Writes <figure> with inline SVG; writes nothing when there are no values. */
void report_svg_chart(FILE *out, const struct chart *c);
#endif
