/* restore: opens a model from a run directory or one of its checkpoints, for evaluation, generation and export. */
#ifndef INGOT_TRAIN_RESTORE_H
#define INGOT_TRAIN_RESTORE_H
#include "train/trainer.h"

struct tokenizer; /* data/tokenizer/tokenizer.h */
enum { RESTORE_AS_RUN = -1 };
struct restore_options {
    /* Sequences of a batch; 0: master weights alone, unless `rows` is set; RESTORE_AS_RUN: the run's micro_batch. */
    int64_t sequences;
    int64_t rows; /* with sequences 0: tokens of a batch of documents of any length; 0: no batch */
    int override_count; /* "--data.val=...", applied to the checkpoint's config */
    char **overrides;
    const char *isa;
    bool accept_data; /* other data than the checkpoint's are no error */
};
/* Opens the newest checkpoint of a run, or the given one; reads its config; lays out memory for forward only; reads the
 * weights. STATUS_CKPT when there is none. t->step is the step of the checkpoint. */
status restore_open(struct trainer *t, const char *path, const struct restore_options *o) WARN_UNUSED;
/* Only the config of that checkpoint, with the overrides. */
status restore_spec(struct spec *spec, const char *path, const struct restore_options *o) WARN_UNUSED;
/* Whether a directory contains a run: metrics, or a checkpoint, sound or not. A missing directory contains none. */
status restore_holds_run(const char *dir, bool *held) WARN_UNUSED;
/* After a divergence: adds to this thread's error which checkpoint to go back to, and how. Returns `st`. */
status restore_advise(const struct run_spec *r, status st);
/* Where the tokenizer of a spec is: data.tokenizer, or the directory that the manifest of its training or validation
 * shards names, with the hash that stands there ("": unknown). STATUS_DATA when none does. */
struct tokenizer_place {
    char dir[SPEC_TEXT], sha256[65];
};
status restore_tokenizer_place(const struct spec *s, struct tokenizer_place *out) WARN_UNUSED;
/* Loads the tokenizer of a restored model. STATUS_DATA when it is not the one that the model was trained with, unless
 * t->accept_data. */
status restore_tokenizer(const struct trainer *t, const struct tokenizer_place *place,
                         struct tokenizer **out) WARN_UNUSED;
/* model.engram_fold: makes the token map of fresh weights from the run's tokenizer; without that key nothing. */
status restore_fold(struct trainer *t) WARN_UNUSED;
#endif
