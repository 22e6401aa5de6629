/* ledger: where a run's wall time went, from its first start to now, over all its processes: RUN/ledger.jsonl, which no
 * resume cuts (docs/FORMATS.md), and its sums. */
#ifndef INGOT_OBSERVE_LEDGER_H
#define INGOT_OBSERVE_LEDGER_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

/*    name, key in the file, words */
#define LEDGER_CLASSES(X)                                                                                    \
    X(COMPUTE, "compute", "steps that count: computing")                                                     \
    X(EXCHANGE, "exchange", "steps that count: waiting for other ranks")                                     \
    X(DATA, "data", "steps that count: waiting for data")                                                    \
    X(EVALUATION, "evaluation", "evaluations, samples")                                                      \
    X(CHECKPOINT, "checkpoint", "training stood still for checkpoints")                                      \
    X(START, "start", "starting and resuming, until the first step")                                         \
    X(LOST, "lost", "steps that were trained again, or left behind")                                         \
    X(STOPPED, "stopped", "no process ran")                                                                  \
    X(OTHER, "other", "the rest")
enum ledger_class {
#define X(name, key, text) LEDGER_##name,
    LEDGER_CLASSES(X)
#undef X
    LEDGER_COUNT
};

/* ---- writing: rank 0 of a run */
struct ledger;
/* A process that began at wall clock `began` goes on from `step`. NULL in *l and a warning when it cannot be written:
 * the run goes on. */
void ledger_open(struct ledger **l, const char *run_dir, double began, int64_t step);
/* Functions accept NULL. Seconds of the process's time, of one class. */
void ledger_add(struct ledger *l, enum ledger_class what, double seconds);
/* A step is done: `waited` for data, `exchange` for ranks, of its `seconds`. */
void ledger_step(struct ledger *l, int64_t step, double seconds, double waited, double exchange);
/* A checkpoint of this step is begun: a run that resumes from it loses nothing before it. */
void ledger_saved(struct ledger *l, int64_t step);
void ledger_back(struct ledger *l, int64_t step); /* the process goes back to this step */
void ledger_close(struct ledger *l, int64_t step, int code);

/* ---- reading */
struct ledger_sum {
    double seconds[LEDGER_COUNT]; /* they sum to `wall` */
    double wall, first;           /* seconds; wall clock of the first start */
    int64_t step;                 /* that count */
    int starts;
    bool ended;                   /* the last process has said that it ends */
};
/* `now`: wall clock of a run that runs; NaN: none does. STATUS_DATA: no ledger there. */
status ledger_read(const char *run_dir, double now, struct ledger_sum *out) WARN_UNUSED;
#endif
