/* Private to src/observe: the sinks behind observe.h, and functions that their tests need. */
#ifndef INGOT_OBSERVE_OBSERVE_INT_H
#define INGOT_OBSERVE_OBSERVE_INT_H
#include "base/io.h"
#include "base/scope.h"
#include "base/utf8.h"
#include "observe/observe.h"
#include "observe/progress.h"
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

/* sink.c: an append-only file of records. When a record cannot be written completely (disk full), the partial record
 * is cut off, and the record is kept in memory: it is tried again before the next one, at each flush and at the end, so
 * records stay in order. The first failure is reported, all are counted, none is returned. */
enum { SINK_KEPT = 1 << 20 }; /* bytes; of records beyond them only the number is known */
struct sink {
    struct io_file file; /* fd -1: closed. Written in place, because records must survive a crash */
    int64_t good;        /* bytes up to the last whole record */
    int64_t failures;    /* writes and flushes that were refused */
    bool torn;           /* half a record is behind `good` */
    char *kept;          /* owned: records that were refused */
    size_t kept_bytes;
    int64_t kept_count, lost; /* lost: records that were not even kept */
    pthread_mutex_t lock;     /* records and flushes come from different threads */
};
enum sink_mode { SINK_APPEND, SINK_TRUNCATE, SINK_NEW /* fails when the file exists */ };
status sink_open(struct sink *s, const char *path, enum sink_mode mode) WARN_UNUSED;
/* A record without which no reader takes the file, such as its schema: losing it is an error. */
status sink_begin(struct sink *s, const void *data, size_t bytes) WARN_UNUSED;
/* A record that may be late: one warning per file. */
void sink_append(struct sink *s, const void *data, size_t bytes);
bool sink_catch_up(struct sink *s); /* tries the records that are kept; whether none is left */
void sink_sync(struct sink *s);
void sink_close(struct sink *s);

/* metrics.c: lines of metrics.jsonl. */
enum { METRICS_VERSION = 1 };
/* Removes the records after `step` (0: all) and torn lines from the file at `path`; a missing file is fine. */
struct metrics_kept {
    bool has_schema;   /* the file has a first line */
    int64_t eval_step; /* of the last evaluation that stays; -1: none */
    int64_t start, every; /* step and log.every of the last start that stays; every 0: not known */
    int64_t last;         /* step of the last record of a step, or of a gap */
};
struct metrics_gap {
    int64_t from, to; /* steps; 0: none */
};
/* Steps up to `step` whose records are missing at the end of what was kept. */
struct metrics_gap metrics_missing(const struct metrics_kept *kept, int64_t step);
status metrics_cut(const char *path, int64_t step, struct metrics_kept *kept) WARN_UNUSED;
status metrics_schema(struct sink *s) WARN_UNUSED;
/* STATUS_CONFIG: the file says that it has another version. A missing file, and one without a first line, are fine. */
status metrics_version_check(const char *path) WARN_UNUSED;
void metrics_start(struct sink *s, int64_t step, double wall_s, int64_t every);
void metrics_gap(struct sink *s, struct metrics_gap gap);
void metrics_write(struct sink *s, const struct metrics *m, double wall_s);
void metrics_sample(struct sink *s, int64_t step, const char *prompt, const char *text);
void metrics_named(struct sink *s, const char *kind, int64_t step, const char *name, double value);
void metrics_ranks(struct sink *s, int64_t step, double wall_s, const struct rank_time *ranks, int count,
                   int64_t steps);
/* Shortest decimal that reads back to the same double; "inf" and "-inf" are JSON strings. Returns buf. */
const char *metrics_number(char buf[32], double v);

/* tfevents.c: TensorBoard event files. */
struct tfevents {
    struct sink sink;
};
/* Creates a new file in `dir`. Its first records are the file version and SessionLog START at step first_step, which
 * makes TensorBoard discard earlier data for that step and later ones. */
status tfevents_open(struct tfevents *t, const char *dir, int64_t first_step) WARN_UNUSED;
void tfevents_write(struct tfevents *t, const struct metrics *m, double wall_s);
/* Encodes one event and its TFRecord frame, for tests. Returns the number of bytes written to `out`. */
enum { TFEVENTS_BYTES_MAX = 2048 };
struct tfevents_scalar {
    const char *tag;
    double value;
};
size_t tfevents_version(uint8_t out[TFEVENTS_BYTES_MAX], double wall_s);
size_t tfevents_scalars(uint8_t out[TFEVENTS_BYTES_MAX], double wall_s, int64_t step,
                        const struct tfevents_scalar *s, int count);

/* progress.c: the progress display. The lock of the log guards it: who draws holds it (log_hold). */
struct progress_view {
    struct progress_run run;
    struct metrics last;           /* the latest record, with the latest loss and validation loss */
    enum progress_work kind;       /* what the main thread does */
    bool working;
    char what[64];
    int64_t total, done;           /* its parts */
    int layer;                     /* of the current micro-batch: above 0 forward, below 0 backward, 0 not known */
    double begin_s, part_s;        /* when it began; when its latest part began */
    double seconds[WORK_COUNT];    /* of finished works, without the first step, which warms up */
    double first_step_s;
    int64_t eval_step;             /* of the last evaluation's record; -1: none */
    int64_t count[WORK_COUNT], parts[WORK_COUNT];
    bool color, unicode;
};
/* What the display's thread does at a time: draws, or says that a work lasts. */
void progress_tick(double now);
/* progress_text.c: pure functions. eta_s: NaN when not known. A bar has at most width - 1 columns, no newline and no
 * carriage return. */
double progress_eta(const struct progress_view *v, int64_t step, double now);
double progress_work_left(const struct progress_view *v, double now);
void progress_line(char *out, size_t size, const struct metrics *m, int64_t steps_total, double eta_s);
void progress_bar(char *out, size_t size, const struct progress_view *v, double eta_s, double now, int width);
void progress_scroll(char *out, size_t size, const struct progress_view *v, const struct metrics *m, int width);
void progress_said(char *out, size_t size, const struct progress_view *v, double now);
int64_t progress_scroll_every(int64_t steps_total);
/* A record: to the terminal, or as a line. */
void progress_record(const struct metrics *m);

/* percent.c: converts shares to percent of their sum, rounded to tenths that add to exactly 100.0 (all 0 when the sum
 * is 0). */
enum { PERCENTS_MAX = 128 };
void percent_list(double *percent, const double *share, int count);

/* trace.c: adds a device activity to the running trace; does nothing without one. One track per stream. Callable from
 * any thread. */
struct trace_device_event {
    const char *name;
    const char *part, *scope; /* part of the step; the scopes in which it was queued, "" when not known */
    int64_t start_ns, end_ns; /* clock_ns() */
    int64_t bytes;            /* size of a copy between host and device; else 0 */
    uint32_t stream;
};
void trace_device_event(const struct trace_device_event *e);

/* dispatch.c: distributes the single scope sink to several consumers. */
void dispatch_add(scope_sink_fn *fn, void *ctx);
void dispatch_remove(scope_sink_fn *fn);
#endif
