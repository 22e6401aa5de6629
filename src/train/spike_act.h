/* spike_act: train.on_spike at work: around the step, and after it. */
#ifndef INGOT_TRAIN_SPIKE_ACT_H
#define INGOT_TRAIN_SPIKE_ACT_H
#include "train/trainer.h"

/* Whether updates may be left out. */
bool spike_host_judges(const struct trainer *t);
/* Between norm and update: judges the step, and leaves its update out. Waits for the device; not while a graph is
 * captured. */
status spike_judge_step(struct trainer *t) WARN_UNUSED;
/* Norm and clip factor of a step whose update was left out. */
void spike_restore(const struct trainer *t, struct step_scalars *s);
/* When the result is known, before the step counts: fills the fields of a spike. */
void spike_end(struct trainer *t, struct step_result *s);
/* STATUS_CONFIG: train.on_spike=skip where it cannot be. */
status spike_check(const struct trainer *t, bool gpu) WARN_UNUSED;

/* How the run goes on; order.rewinds false: as it was. */
struct spike_again {
    struct lineage_order order;
    char why[SPIKE_WHY + 32]; /* the order's */
};
/* After a step. `again` points into itself. STATUS_NUMERIC: the run ends. Collective. */
status spike_act(struct trainer *t, const struct step_result *s, struct spike_again *again) WARN_UNUSED;
#endif
