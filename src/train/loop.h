/* loop: a run from start to end: data, weights or checkpoint, steps, evaluations, checkpoints, signals, report.
 *
 * RUN/ holds config.yaml (resolved), env.json, metrics.jsonl, events.out.tfevents.*, log.txt, ckpt/, trace/,
 * report.html, exit.json. */
#ifndef INGOT_TRAIN_LOOP_H
#define INGOT_TRAIN_LOOP_H
#include "observe/observe.h"
#include "train/data_sources.h"
#include "train/trainer.h"

/* Callbacks at certain points of a run. */
struct loop_hooks {
    void *ctx;
    /* After each evaluation: writes samples to `o`. A failure is logged; training continues. */
    status (*sample)(void *ctx, struct trainer *t, struct observe *o);
    /* Once, before the last records are written: facts for the report. */
    void (*finish)(void *ctx, struct observe *o, const struct eval_result *last);
};
struct loop_options {
    int64_t resume_step; /* with resume: from the checkpoint of this step, -1: the newest */
    bool resume;     /* from the newest checkpoint of the run directory; without one, start */
    bool accept_data; /* resume even if shards or tokenizer are not those of the checkpoint; it is recorded */
    struct lineage_order lineage; /* go back, leave out data */
    bool trace;      /* write RUN/trace/step-STEP.json; STEP is its first step */
    const char *isa; /* see ops_cpu; NULL: the best */
    struct comm *comm; /* NULL: one rank. Rank 0 writes and logs; all ranks train, evaluate and send what is saved */
    const char *again;          /* text: how the user resumes after a stop: "the same command resumes it" */
    /* Seconds of a step and of a batch of an evaluation, if they were measured; 0, NaN: they are predicted. */
    double step_s, eval_batch_s;
    struct loop_hooks hooks;
};
struct loop_result {
    int64_t step;
    double loss; /* of the last step; NaN without steps */
    struct eval_result eval;
    double tokens_per_s;
};

/* vocab_size 0 in the spec: the shards' manifest gives it, rounded up to 64. STATUS_STOPPED after a signal or
 * train.max_minutes: a checkpoint was saved. STATUS_CONFIG when the run directory has a run and `resume` is not set. */
status loop_run(const struct spec *spec, const struct loop_options *o,
                struct loop_result *result) WARN_UNUSED;

/* If model.vocab_size is 0, sets it to what the shards need. Checks that the vocabulary covers their ids. */
status loop_resolve_vocab(struct spec *spec, const struct data_sources *data) WARN_UNUSED;
#endif
