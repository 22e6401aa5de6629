/* loop: runs a training job from start to end: data, weights or checkpoint, steps, evaluations, checkpoints, signals,
 * report.
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
    /* Called after each evaluation: writes samples to `o`. A failure is logged; training continues. */
    status (*sample)(void *ctx, struct trainer *t, struct observe *o);
    /* Called once, before the last records are written: adds facts to the report. */
    void (*finish)(void *ctx, struct observe *o, const struct eval_result *last);
};
struct loop_options {
    int64_t resume_step; /* with `resume`: the step of the checkpoint to resume from; -1: the newest */
    bool resume;     /* resume from a checkpoint of the run directory; if it has none, start a new run */
    bool accept_data; /* resume even if shards or tokenizer differ from those of the checkpoint; this is recorded */
    struct lineage_order lineage; /* a rewind, or data to skip, that the user has ordered */
    bool trace;      /* write RUN/trace/step-STEP.json; STEP is the first step that it covers */
    const char *isa; /* see ops_cpu; NULL: the best */
    struct comm *comm; /* NULL: one rank. Rank 0 writes and logs; all ranks train, evaluate and send what is saved */
    const char *again;          /* tells the user how to resume after a stop: "the same command resumes it" */
    /* Measured seconds of a step, and of a batch of an evaluation; 0 or NaN: they are predicted. */
    double step_s, eval_batch_s;
    struct loop_hooks hooks;
};
struct loop_result {
    int64_t step;
    double loss; /* loss of the last step; NaN without steps */
    struct eval_result eval;
    double tokens_per_s;
};

/* If the spec's vocab_size is 0, it comes from the shards' manifest, rounded up to 64. STATUS_STOPPED after a signal or
 * train.max_minutes; a checkpoint was then saved. STATUS_CONFIG when the run directory has a run and `resume` is not
 * set. */
status loop_run(const struct spec *spec, const struct loop_options *o,
                struct loop_result *result) WARN_UNUSED;

/* If model.vocab_size is 0, sets it to what the shards need. Checks that the vocabulary covers their ids. */
status loop_resolve_vocab(struct spec *spec, const struct data_sources *data) WARN_UNUSED;
#endif
