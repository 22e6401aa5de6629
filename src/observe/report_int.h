/* Private to the report: the data read from a run directory, and the parts of a page. */
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
    double part; /* of a stage: its value in the process that is being read; later added to `value` */
};
struct report_sample {
    int64_t step;
    char *prompt, *text;
};
/* Of the records of kind "ranks": the newest, and for how long its slowest rank has been the slowest by far. */
struct report_ranks {
    int count; /* 0: there is none */
    int rank[RANK_TIMES_MAX];
    struct rank_time time[RANK_TIMES_MAX];
    int slow;            /* index of the one that the others wait for: 5 % and more above the median; -1: none */
    double slow_by;      /* its work over the median's */
    double since, at;    /* wall clock of the first record with it, and of the newest */
};
struct report_data {
    char name[256];       /* name of the run: its directory */
    char path[1024];      /* the run directory as given */
    bool locked;          /* a process holds the run's lock */
    bool has_checkpoints;
#define X(field, tag) struct series field;
    METRIC_LIST(X)
#undef X
    struct series above; /* learn.c: the loss, less that of another run of the same order, step by step */
    struct report_ranks ranks;
    struct series tokens_at, seconds_at; /* tokens and seconds of training up to a step; steps ascend */
    struct series starts; /* step at which each process of the run began; y is unused */
    int64_t steps, tokens, unreadable;
    int64_t records; /* lines of kind "step" */
    double wall_s;   /* time up to the last record: all processes of the run, without the pauses between them */
    double last_s;   /* wall clock of the last record, seconds since 1970; NAN: none */
    struct report_named *facts, *stages;
    int64_t fact_count, fact_room, stage_count, stage_room;
    struct report_sample *samples;
    int64_t sample_count, sample_room;
    json_t *env, *exit; /* NULL: missing or unreadable */
    char *config;       /* valid UTF-8; NULL: missing */
    json_t *evals;      /* evals.h: an array */
    json_t *forks;      /* forks.h: an array */
};
/* Reads a run directory; of metrics.jsonl only the last tail_bytes (0: all). A missing file leaves its fields empty; a
 * directory with none of the four files is STATUS_DATA. */
status report_data_read(struct report_data *d, const char *run_dir, int64_t tail_bytes) WARN_UNUSED;
void report_data_free(struct report_data *d);
/* The end of a file of a run, `most` bytes, from a whole line on; zeros in it become blanks. malloc'd; NULL: not there. */
char *report_file_tail(const char *path, int64_t most);
/* Value of a fact; NAN when it does not exist. */
double report_data_fact(const struct report_data *d, const char *name);
/* A scalar of env.json as text; "" when there is none. */
const char *report_data_env(const struct report_data *d, char buf[32], const char *key);
/* The value of "section.key" in config.yaml, without quotes; "" when there is none. Returns `out`. */
const char *report_data_config(const struct report_data *d, const char *key, char *out, size_t size);
double report_data_parameters(const struct report_data *d); /* NAN: not known */
int64_t report_data_planned(const struct report_data *d);   /* steps of the whole run; 0: not known */
double report_data_loss(const struct report_data *d, int64_t *records); /* mean of the last records; NAN: none */
/* How a run ended. */
enum report_state { REPORT_FINISHED, REPORT_STOPPED, REPORT_FAILED, REPORT_RUNNING, REPORT_KILLED };
enum report_state report_data_state(const struct report_data *d, int *exit_code);
/* "running", "failed (exit 6)". Returns buf. */
const char *report_state_text(char buf[32], enum report_state state, int exit_code);

/* series.c */
void series_add(struct series *s, double x, double y);
void series_free(struct series *s);
double series_last(const struct series *s);    /* NAN when empty */
double series_median(const struct series *s);  /* NAN when empty */

/* report_html.c: text from a run is escaped here; all of it goes through report_put_text. */
void report_put_text(FILE *out, const char *text);
void report_put_word(FILE *out, const char *word); /* a word of a shell command, quoted where needed, then escaped */
void report_put_head(FILE *out, const char *title, const char *over, const char *body_class);
void report_put_foot(FILE *out);
/* "24 Nov 2026, 12:40 UTC" from "2026-11-24T12:40:04Z"; the text itself when it is no such time. Returns buf. */
const char *report_time_text(char buf[64], const char *iso);
/* The style sheet and the script: report.css and report.js of this directory, made C by the build. */
extern const unsigned char report_css[], report_js[];

/* report_chart.c: the controls, and the data that the script draws. */
void report_put_charts(FILE *out, const struct report_data *const *runs, int count);
void report_put_controls(FILE *out);
void report_put_curves(FILE *out, const struct report_data *const *runs, int count); /* the data alone */
/* report_compare.c: the tables of results and of settings that differ. */
void report_put_results(FILE *out, const struct report_data *runs, int count);
void report_name_apart(struct report_data *runs, int count); /* two runs of one name get their paths */
/* report.c: "Samples over time". */
void report_put_samples(FILE *out, const struct report_data *d);
/* report_time.c: "Where the time went". */
void report_put_stages(FILE *out, const struct report_data *d);
/* report_alerts.c: "Alerts". */
void report_put_alerts(FILE *out, const struct report_data *d);
/* report_evals.c: "Benchmarks". */
void report_put_evals(FILE *out, const struct report_data *d);
/* report_origin.c: "What it was made of" and "What next". */
void report_put_origin(FILE *out, const struct report_data *d);
void report_put_next(FILE *out, const struct report_data *d);
#endif
