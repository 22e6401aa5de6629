/* step_stats: the host's numbers of a step: what it counts before, and what it reports and checks afterwards. */
#ifndef INGOT_TRAIN_STEP_STATS_H
#define INGOT_TRAIN_STEP_STATS_H
#include "train/trainer.h"

/* Of all data-parallel ranks. */
struct step_counts {
    double targets; /* that count in the loss */
    double padding; /* tokens of no document */
    double tokens, docs;
};
/* Collective over dp. STATUS_DATA when every target is masked. */
status step_count(const struct trainer *t, const struct step_batch *b, struct step_counts *out) WARN_UNUSED;
/* What the device reads: learning rate, scales of the losses and of the gradient, corrections of the optimizer. */
struct step_scalars step_scalars_of(const struct trainer *t, const struct step_counts *c);
/* Largest and smallest load of an expert, over the ranks whose routers differ. Collective. */
status step_gather_loads(const struct trainer *t, struct step_scalars *s) WARN_UNUSED;
/* STATUS_NUMERIC when the loss or the gradient norm is not finite; names the parameter. */
status step_check_finite(const struct trainer *t, const struct step_scalars *s) WARN_UNUSED;
struct step_result step_result_of(const struct trainer *t, const struct step_counts *c, const struct step_scalars *s);
#endif
