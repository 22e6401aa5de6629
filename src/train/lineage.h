/* lineage: how a run came to be where it is. A run may go back to an earlier checkpoint and leave out the data that it
 * met behind it; its checkpoints record that ("lineage" in their `meta`, docs/FORMATS.md), and a run that goes on from
 * them leaves the same data out. */
#ifndef INGOT_TRAIN_LINEAGE_H
#define INGOT_TRAIN_LINEAGE_H
#include "data/load/skips.h"
#include <jansson.h>
#include <stdbool.h>

/* What somebody asks for: --rewind, --skip, or train.on_spike. Steps count from 1, as the log counts them. */
struct lineage_order {
    bool rewinds;
    int64_t rewind;    /* go back to the newest sound checkpoint of this step or before */
    int64_t skip_from, skip_to; /* leave out the data of these steps, both ends too; 0: none */
    const char *why;   /* recorded */
};
struct lineage {
    struct skips skips;
    json_t *events;    /* an array, oldest first; NULL: nothing ever happened. Owned */
};
void lineage_free(struct lineage *l);

/* Which checkpoint the order goes back to: *step, -1: the newest. *done: the newest checkpoint says that the order was
 * obeyed already, as after a restart with the same command. STATUS_CKPT: no sound one is as old. */
status lineage_target(const char *run_dir, const struct lineage_order *o, int64_t *step, bool *done) WARN_UNUSED;
/* Obeys the order for a run at `step` of `steps_total`, which was at step `was` (-1: not known): skips and a new event.
 * STATUS_CONFIG: the steps to leave out are trained already, or beyond the end. */
status lineage_apply(struct lineage *l, const struct lineage_order *o, int64_t step, int64_t steps_total,
                     int64_t was) WARN_UNUSED;

/* As a checkpoint stores it (NULL: nothing to store), and back. STATUS_CKPT: `meta` of `path` has another form. */
json_t *lineage_json(const struct lineage *l);
status lineage_read(struct lineage *l, const json_t *meta, const char *path) WARN_UNUSED;
/* That of a run's newest checkpoint; empty without one. */
status lineage_of_run(struct lineage *l, const char *run_dir) WARN_UNUSED;
#endif
