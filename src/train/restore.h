/* A finished (or running) model from its run directory or one of its checkpoints, for evaluation, generation and export. */
#ifndef INGOT_TRAIN_RESTORE_H
#define INGOT_TRAIN_RESTORE_H
#include "train/trainer.h"

enum { RESTORE_AS_RUN = -1 };
struct restore_options {
    /* Of sequence_length tokens at once; 0: only the master weights are wanted; RESTORE_AS_RUN: its micro_batch. */
    int64_t sequences;
    int override_count; /* "--data.val=..." on top of the checkpoint's config */
    char **overrides;
    const char *isa;
};
/* Opens the newest checkpoint of a run, or the given one, reads its config, lays out for forward only and reads the weights.
 * STATUS_CKPT when there is none. The step it was saved at is t->step. */
status restore_open(struct trainer *t, const char *path, const struct restore_options *o) WARN_UNUSED;
/* Whether a directory holds a run: metrics, or a checkpoint, sound or not. A directory that is not there holds none. */
status restore_holds_run(const char *dir, bool *held) WARN_UNUSED;
/* The directory of the tokenizer of a spec: data.tokenizer, or what the manifest of its training or validation shards names. STATUS_DATA when neither says. */
status restore_tokenizer_dir(const struct spec *s, char *out, size_t size) WARN_UNUSED;
#endif
