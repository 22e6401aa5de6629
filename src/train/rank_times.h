/* What the ranks' steps took: sums of what each says with the look at signals (stop.h), written every ten seconds. */
#ifndef INGOT_TRAIN_RANK_TIMES_H
#define INGOT_TRAIN_RANK_TIMES_H
#include "train/stop.h"

struct rank_times {
    int count; /* ranks; 0: nothing is recorded, as on GPUs, where waits are part of the queued work */
    struct rank_time sum[COMM_RANKS_MAX]; /* over `steps`, since begin_s */
    double begin_s;
    int64_t steps;
};
/* After stop_look: adds the step. */
void rank_times_step(struct rank_times *t, const struct stop *s, struct observe *o, int64_t step);
/* Writes what there is, and begins again. One rank alone: nothing. */
void rank_times_write(struct rank_times *t, struct observe *o, int64_t step);
#endif
