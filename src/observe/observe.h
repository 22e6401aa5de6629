/* What a run shows: metrics.jsonl (the source of truth), TensorBoard events, log line, progress bar. */
#ifndef INGOT_OBSERVE_OBSERVE_H
#define INGOT_OBSERVE_OBSERVE_H
#include "base/status.h"
#include <stdint.h>

/*  field, TensorBoard tag.  NaN: absent in this record */
#define METRIC_LIST(X)                                                                                 \
    X(loss, "train/loss") /* mean over the step's valid tokens, nats */                                \
    X(mtp_loss, "train/mtp_loss") /* mean over the modules of multi-token prediction, nats */              \
    X(halt_loss, "train/halt_loss") /* of model.hrm_halt's head, nats per document and segment */        \
    X(lr, "train/lr")                                                                                  \
    X(grad_norm, "train/grad_norm") /* before clipping */                                              \
    X(grad_norm_clipped, "train/grad_norm_clipped")                                                    \
    X(aux_loss, "moe/aux_loss") /* of all routers, in the loss's units; not part of it */              \
    X(load_max, "moe/load_max") /* rows of the busiest expert of the step's, over its router's mean */ \
    X(load_min, "moe/load_min") /* of the idlest */                                                    \
    X(tokens_per_s, "perf/tokens_per_s") /* of the whole run: all ranks */                             \
    X(step_s, "perf/step_s")                                                                           \
    X(bubble, "perf/pipeline_bubble") /* part of the time of a pipeline's ranks without work */           \
    X(data_wait_s, "perf/data_wait_s") /* that the step waited for its batch */                        \
    X(targets, "data/targets") /* of the step that count (documents, best_fit, pad) */                   \
    X(padding, "data/padding") /* part of the step's tokens that is padding (best_fit, pad) */          \
    X(flops_per_s, "perf/model_flops_per_s")                                                           \
    X(mfu, "perf/mfu") /* of the GPU's peak, attention's causal half counted: plan/mfu.h */           \
    X(mfu_full, "perf/mfu_full") /* the full square counted */                                         \
    X(val_loss, "val/loss") /* nats per token */                                                       \
    X(val_accuracy, "val/accuracy") /* part of the targets that were the likeliest token */             \
    X(val_bpb, "val/bits_per_byte")                                                                    \
    X(rss_bytes, "perf/rss_bytes")

struct metrics {
    int64_t step;               /* steps done when this was written: the first step is 1 */
    int64_t tokens;             /* consumed since the start of the run */
#define X(name, tag) double name;
    METRIC_LIST(X)
#undef X
};
extern const struct metrics METRICS_NONE;       /* every value NaN */

struct observe;
/* Opens the sinks of a run directory (which exists): metrics.jsonl is cut back to the records with step <=
 * resume_step (0: a fresh start), and a new event file begins with SessionLog START, so that curves do not
 * zig-zag. steps_total for the progress bar and ETA; 0: not known. A progress bar is drawn when stderr is a
 * terminal (NO_COLOR, TERM=dumb respected), else one plain line per record (key=value). STATUS_IO when a
 * file cannot be opened or the old records cannot be read. All calls of one observe come from one thread. */
status observe_open(struct observe **o, const char *run_dir, int64_t resume_step,
                    int64_t steps_total) WARN_UNUSED;
/* Writes one record. A sink that cannot be written (disk full) is reported once and counted; training
 * goes on. */
void observe_metrics(struct observe *o, const struct metrics *m);
/* A sample of generated text at a step: metrics.jsonl and report. Need not be valid UTF-8. */
void observe_sample(struct observe *o, int64_t step, const char *prompt, const char *text);
/* A named number about the whole run, such as gzip_bpb: metrics.jsonl and report. The last value of a name
 * counts; NaN writes nothing. Names that the report knows: see report.c. */
void observe_fact(struct observe *o, const char *name, double value);
/* The step breakdown of stages_list as records, for the report. */
void observe_stages(struct observe *o, double total_s);
/* Records that a sink refused so far. */
int64_t observe_failures(const struct observe *o);
/* fsync of all sinks: at checkpoints. */
void observe_flush(struct observe *o);
void observe_close(struct observe *o);       /* NULL is fine */

/* Chrome trace (chrome://tracing, Perfetto) of all SCOPEs from now on to PATH, streamed: readable after a
 * crash. */
status trace_start(const char *path) WARN_UNUSED;
void trace_stop(void);

/* Step breakdown from the same scopes: seconds that each scope name took itself (without the scopes inside
 * it), on the thread that called stages_start; so nothing counts twice. stages_list fills `out`, longest
 * first, "other" (the rest of total_s) last, and returns the count; percents are tenths that add to exactly
 * 100. It works during and after the measurement. */
enum { STAGES_MAX = 64 };
struct stage {
    const char *name;
    double seconds, percent;
    int64_t calls;
};
void stages_start(void);
int stages_list(struct stage out[STAGES_MAX], double total_s);
void stages_stop(void);

/* report.html from a run directory: self-contained (inline SVG), made from config.yaml, env.json,
 * metrics.jsonl, exit.json. */
status report_write(const char *run_dir) WARN_UNUSED;
#endif
