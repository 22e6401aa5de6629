/* spike: a step whose loss or gradient norm is far above those before it, and what train.on_spike does about it.
 *
 * A value is a spike when its robust z (base/robust.h) among the train.spike_window steps before it is above
 * train.spike_z; so is each until one is below half of that. Nothing is judged in warm-up, nor before that many
 * steps.
 *
 *   warn    a line in the log
 *   skip    the update of the step is left out: weights and moments stay (llm.c's -sl and -sg; OLMo-core's
 *           SkipStepOptimizer, 128 steps and 6 sigma). Its values do not count among those before others
 *   rewind  back to the newest sound checkpoint train.spike_back steps before, without the data of train.spike_skip
 *           steps from there on, and at least those up to the spike (PaLM: about 100 steps before, 200 to 500 batches,
 *           arXiv:2204.02311, 5.1); three times from one checkpoint at most
 *   stop    ends the run with exit code 6
 *
 * All of it is a function of the steps, and checkpoints store it: a resumed run does the same. */
#ifndef INGOT_TRAIN_SPIKE_H
#define INGOT_TRAIN_SPIKE_H
#include "spec/spec.h"
#include "train/lineage.h"

enum { SPIKE_WINDOW_MAX = 1024, SPIKE_REWINDS = 3, SPIKE_WHY = 200 };
/* What a step is. NONE: as usual; LASTS: in a spike that was told. */
enum spike_kind { SPIKE_NONE, SPIKE_BEGINS, SPIKE_LASTS };
struct spike {
    double losses[SPIKE_WINDOW_MAX], norms[SPIKE_WINDOW_MAX]; /* the newest `count`, oldest first */
    int count;
    int64_t left_out;   /* updates so far */
    bool inside;        /* of a spike */
    /* of the step that is being made */
    enum spike_kind kind;
    bool leaves_out;
    double grad_squares; /* of a step whose update is left out */
    char why[SPIKE_WHY];
};
/* Judges step `step` (from 1); `why` gets what is wrong, in a few words. */
enum spike_kind spike_judge(const struct spike *s, const struct run_spec *r, int64_t step, double loss, double norm,
                            char why[SPIKE_WHY]);
/* Adds a step that was judged. */
void spike_add(struct spike *s, const struct run_spec *r, enum spike_kind kind, bool left_out, double loss,
               double norm);

/* "spikes" of a checkpoint's meta, and back; what is not there begins anew. NULL: no memory. */
json_t *spike_json(const struct spike *s);
void spike_read(struct spike *s, const json_t *meta);

/* The order of train.on_spike=rewind for a spike at `step`, from the sound checkpoint of step `from` on. `why` must
 * outlive it. */
struct lineage_order spike_order(const struct run_spec *r, int64_t step, int64_t from, const char *why);
/* Rewinds to the checkpoint of step `from` that the lineage knows. */
int spike_rewinds(const struct lineage *l, int64_t from);
#endif
