/* skips: batches of a run's order that are left out. The order of samples is a pure function of seed and index, cut into
 * batches of one step; a step reads the next batch that is not left out. Steps and batches count from 0. */
#ifndef INGOT_DATA_LOAD_SKIPS_H
#define INGOT_DATA_LOAD_SKIPS_H
#include "base/status.h"
#include <stdint.h>

enum { SKIPS_MAX = 256 };
struct skips {
    int count;
    struct skip {
        int64_t from, to; /* batches [from, to), to > from */
    } list[SKIPS_MAX];    /* ascending; none touches the next */
};
/* The batch that a step reads. NULL: nothing is left out. */
int64_t skips_batch(const struct skips *s, int64_t step);
/* Leaves out the batches that steps [from, to) would read; `from` then reads what `to` read before. STATUS_CONFIG: more
 * than SKIPS_MAX. */
status skips_add(struct skips *s, int64_t from, int64_t to) WARN_UNUSED;
#endif
