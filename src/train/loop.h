/* A run from start to end: data, weights or checkpoint, steps, evaluations, checkpoints, signals, report.
 *
 * RUN/ holds config.yaml (resolved), env.json, metrics.jsonl, events.out.tfevents.*, log.txt, ckpt/, trace/, report.html, exit.json. */
#ifndef INGOT_TRAIN_LOOP_H
#define INGOT_TRAIN_LOOP_H
#include "observe/observe.h"
#include "train/data_sources.h"
#include "train/trainer.h"

/* What the caller may do at certain points of a run. */
struct loop_hooks {
    void *ctx;
    /* After each evaluation: samples. `o` takes them. A failure is logged, training goes on. */
    status (*sample)(void *ctx, struct trainer *t, struct observe *o);
    /* Once, before the last records are written: facts for the report. */
    void (*finish)(void *ctx, struct observe *o, const struct eval_result *last);
};
struct loop_options {
    bool resume;     /* go on from the newest checkpoint of the run directory; without one, begin */
    bool trace;      /* write RUN/trace/step-STEP.json, STEP being where it begins */
    const char *isa; /* see ops_cpu; NULL: the best */
    struct comm *comm; /* the ranks of the run; NULL: one. Rank 0 writes and tells; all of them train, evaluate, and bring what is saved */
    const char *again;          /* what the user does to go on after a stop: "the same command goes on" */
    struct loop_hooks hooks;
};
struct loop_result {
    int64_t step;
    double loss; /* of the last step; NaN when there was none to do */
    struct eval_result eval;
    double tokens_per_s;
};

/* The spec may leave vocab_size at 0: it is then what the shards' manifest says, rounded up to 64. STATUS_STOPPED after a signal or
 * train.max_minutes: saved. STATUS_CONFIG when the run directory has a run and `resume` is not set. */
status loop_run(const struct spec *spec, const struct loop_options *o,
                struct loop_result *result) WARN_UNUSED;

/* Fills model.vocab_size of a spec from what its shards need when it is 0, and checks that the model can hold their ids. */
status loop_resolve_vocab(struct spec *spec, const struct data_sources *data) WARN_UNUSED;
#endif
