/* Output of a run: metrics.jsonl (the source of truth), TensorBoard events, log line, progress bar. */
#ifndef INGOT_OBSERVE_OBSERVE_H
#define INGOT_OBSERVE_OBSERVE_H
#include "base/status.h"
#include <stdint.h>

/*  field, TensorBoard tag.  NaN: absent in this record */
#define METRIC_LIST(X)                                                                                 \
    X(loss, "train/loss") /* mean over the step's valid tokens, nats */                                \
    X(mtp_loss, "train/mtp_loss") /* mean over the modules of multi-token prediction, nats */          \
    X(halt_loss, "train/halt_loss") /* head of model.hrm_halt, nats per document and segment */        \
    X(z_loss, "train/z_loss") /* term of train.z_loss, in units of the loss; not part of it */         \
    X(lr, "train/lr")                                                                                  \
    X(grad_norm, "train/grad_norm") /* before clipping */                                              \
    X(grad_norm_clipped, "train/grad_norm_clipped")                                                    \
    X(aux_loss, "moe/aux_loss") /* sum over all routers, in units of the loss; not part of it */       \
    X(load_max, "moe/load_max") /* rows of the step's busiest expert / mean of its router */           \
    X(load_min, "moe/load_min") /* the same for the least busy */                                      \
    X(moe_dropped, "moe/dropped") /* share of the step's slots that model.moe_capacity dropped */      \
    X(tokens_per_s, "perf/tokens_per_s") /* sum over all ranks */                                      \
    X(step_s, "perf/step_s")                                                                           \
    X(bubble, "perf/pipeline_bubble") /* idle fraction of the pipeline's ranks */                      \
    X(ckpt_stall_ms, "perf/ckpt_stall_ms") /* time that training waited for checkpoints since the last record */ \
    X(ckpt_skipped, "perf/ckpt_skipped") /* saves that were skipped since the last record: ckpt.on_busy */ \
    X(data_wait_s, "perf/data_wait_s") /* time the step waited for its batch */                        \
    X(targets, "data/targets") /* valid targets (documents, best_fit, pad) */                          \
    X(padding, "data/padding") /* fraction of padding tokens (best_fit, pad) */                        \
    X(flops_per_s, "perf/model_flops_per_s")                                                           \
    X(mfu, "perf/mfu") /* fraction of the GPU's peak, causal attention: plan/mfu.h */                  \
    X(mfu_full, "perf/mfu_full") /* the same with the full square of attention */                      \
    X(val_loss, "val/loss") /* nats per token */                                                       \
    X(val_accuracy, "val/accuracy") /* fraction of targets that were the top-1 token */                \
    X(val_bpb, "val/bits_per_byte")                                                                    \
    X(fp8_saturated, "fp8/saturated") /* inputs and gradients of GEMMs that saturate; fp8.monitor */   \
    X(fp8_headroom_x, "fp8/headroom_x") /* least binades below the largest code, of inputs */          \
    X(fp8_headroom_dy, "fp8/headroom_dy") /* the same of gradients */                                  \
    X(rss_bytes, "perf/rss_bytes")                                                                     \
    X(gpu_tensor, "host/gpu_tensor") /* share of the time that tensor cores worked, mean of the GPUs */ \
    X(gpu_dram, "host/gpu_dram") /* share of the memory's bandwidth, mean of the GPUs */               \
    X(gpu_watts, "host/gpu_watts") /* all GPUs of rank 0's host, also those of others' jobs */         \
    X(gpu_mhz, "host/gpu_sm_mhz") /* of the slowest */                                                 \
    X(gpu_celsius, "host/gpu_celsius") /* of the hottest */                                            \
    X(gpu_memory, "host/gpu_memory_used_bytes") /* of the fullest, by all programs */                  \
    X(gpu_throttled, "host/gpu_throttled") /* GPUs in thermal slowdown or power brake */               \
    X(host_available, "host/memory_available_bytes")                                                   \
    X(host_disk_free, "host/disk_free_bytes") /* where the run is written */

struct metrics {
    int64_t step;               /* steps done when this was written: the first step is 1 */
    int64_t tokens;             /* tokens consumed since the start of the run */
#define X(name, tag) double name;
    METRIC_LIST(X)
#undef X
};
extern const struct metrics METRICS_NONE;       /* every value NaN */

/* A rank's step: seconds of its own work, seconds in which it waited for other ranks; of the work, the wait for its
 * data; CPU time of the process. */
struct rank_time {
    double work_s, wait_s, data_s, cpu_s;
};
enum { RANK_TIMES_MAX = 64 }; /* ranks of a record; of more the slowest are written */

struct observe;
/* Opens the sinks of an existing run directory. metrics.jsonl is cut to the records with step <= resume_step (0: a
 * fresh start); records of steps before it that were never written are said, and named in a record of their own.
 * `every`: log.every. A new event file begins with SessionLog START, which makes TensorBoard discard repeated steps after a
 * resume. STATUS_IO when a file cannot be opened or the old records cannot be read. One thread makes all calls on an
 * observe. */
status observe_open(struct observe **o, const char *run_dir, int64_t resume_step, int64_t every) WARN_UNUSED;
/* The step of the last evaluation among the records that a resumed run kept; -1: none. */
int64_t observe_eval_step(const struct observe *o);
/* Writes one record, and shows it (progress.h). A sink that cannot be written (disk full) is reported once and counted;
 * training continues, and the record is written later. */
void observe_metrics(struct observe *o, const struct metrics *m);
/* Writes a sample of generated text at a step to metrics.jsonl and the report. The text may be invalid UTF-8. */
void observe_sample(struct observe *o, int64_t step, const char *prompt, const char *text);
/* Writes a named number about the whole run, such as gzip_bpb, to metrics.jsonl and the report. The last value of a
 * name counts; NaN is not written. report.c lists the names that the report uses. */
void observe_fact(struct observe *o, const char *name, double value);
/* Writes what the ranks' steps took, means of `steps` steps. */
void observe_ranks(struct observe *o, int64_t step, const struct rank_time *ranks, int count, int64_t steps);
/* Writes the step breakdown of stages_list as records for the report. */
void observe_stages(struct observe *o, double total_s);
/* Number of writes that were refused so far. */
int64_t observe_failures(const struct observe *o);
/* fsync of all sinks; call it at checkpoints, from any thread. */
void observe_flush(struct observe *o);
void observe_close(struct observe *o);       /* accepts NULL */

/* Writes a Chrome trace (chrome://tracing, Perfetto) of all SCOPEs from now on to PATH. It is streamed and readable
 * after a crash. */
status trace_start(const char *path) WARN_UNUSED;
void trace_stop(void);

/* Step breakdown from the same scopes: self time of each scope name (without inner scopes) in seconds, on the thread
 * that called stages_start. stages_list fills `out`, longest first, with "other" (the rest of total_s) last, and
 * returns the count; percents are tenths that add to exactly 100. It works during and after the measurement. */
enum { STAGES_MAX = 64 };
struct stage {
    const char *name;
    double seconds, percent;
    int64_t calls;
};
void stages_start(void);
int stages_list(struct stage out[STAGES_MAX], double total_s);
void stages_stop(void);

/* Writes the page about a run: self-contained, made from config.yaml, env.json, metrics.jsonl and exit.json of its
 * directory. `path` NULL: report.html there. */
status report_write(const char *run_dir, const char *path) WARN_UNUSED;
/* Writes one page that compares several runs. */
status report_compare(const char *const *run_dirs, int count, const char *path) WARN_UNUSED;
#endif
