/* spike: detects a step whose loss or gradient norm is far above those of the steps before it, and does what
 * train.on_spike says.
 *
 * A spike begins when a value's robust z score (base/robust.h) against the train.spike_window steps before it is above
 * train.spike_z. The spike lasts until a value drops below half that threshold. No step is judged during warm-up, nor
 * before train.spike_window steps are done.
 *
 *   warn    logs a line
 *   skip    skips the update of the step: weights and moments stay (llm.c's -sl and -sg; OLMo-core's
 *           SkipStepOptimizer, 128 steps and 6 sigma). Later steps are not compared with this one
 *   rewind  goes back to the newest sound checkpoint at least train.spike_back steps before the spike, and skips the
 *           data of the next train.spike_skip steps, at least up to the spike (PaLM: about 100 steps back, 200 to 500
 *           batches, arXiv:2204.02311, 5.1). At most three times from one checkpoint
 *   stop    ends the run with exit code 6
 *
 * All of this depends only on the steps, and checkpoints store it: a resumed run does the same. */
#ifndef INGOT_TRAIN_SPIKE_H
#define INGOT_TRAIN_SPIKE_H
#include "spec/spec.h"
#include "train/lineage.h"

enum { SPIKE_WINDOW_MAX = 1024, SPIKE_REWINDS = 3, SPIKE_WHY = 200 };
/* Verdict on a step. NONE: no spike; BEGINS: the first step of a spike; LASTS: still inside a spike already
 * reported. */
enum spike_kind { SPIKE_NONE, SPIKE_BEGINS, SPIKE_LASTS };
struct spike {
    double losses[SPIKE_WINDOW_MAX], norms[SPIKE_WINDOW_MAX]; /* the newest `count`, oldest first */
    int count;
    int64_t skipped_updates; /* number of updates skipped so far */
    bool inside;        /* a spike lasts */
    /* the step in progress: */
    enum spike_kind kind;
    bool skips_update;   /* its update is skipped */
    double grad_squares; /* its sum of squared gradients, if its update is skipped */
    char why[SPIKE_WHY];
};
/* Returns the verdict on step `step` (from 1). `why` says what is wrong, in a few words. */
enum spike_kind spike_judge(const struct spike *s, const struct run_spec *r, int64_t step, double loss, double norm,
                            char why[SPIKE_WHY]);
/* Adds a judged step to the window. */
void spike_add(struct spike *s, const struct run_spec *r, enum spike_kind kind, bool update_skipped, double loss,
               double norm);

/* Writes and reads "spikes" of a checkpoint's metadata. What the metadata lack starts empty. NULL: out of memory. */
json_t *spike_json(const struct spike *s);
void spike_read(struct spike *s, const json_t *meta);

/* What train.on_spike=rewind orders for a spike at `step`: to resume from the sound checkpoint of step `from`. `why`
 * must outlive the result. */
struct lineage_order spike_order(const struct run_spec *r, int64_t step, int64_t from, const char *why);
/* Number of rewinds to the checkpoint of step `from` that the lineage records. */
int spike_rewinds(const struct lineage *l, int64_t from);
#endif
