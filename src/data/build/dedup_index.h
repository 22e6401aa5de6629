/* Which documents have a band of a sketch: a table from the hash of a band to the first and the last document that has
 * it. 16 bytes per band in slots that are 53 to 80 % full: 280 to 420 bytes per document. */
#ifndef INGOT_DATA_BUILD_DEDUP_INDEX_H
#define INGOT_DATA_BUILD_DEDUP_INDEX_H
#include "data/build/dedup.h"

struct dedup_index {
    struct dedup_index_slot {
        uint64_t key; /* 0: empty */
        uint32_t first, last;
    } *slots;
    size_t room, used;
};
/* The documents in band `band` of this sketch; NULL: none. Valid until the next put. */
const struct dedup_index_slot *dedup_index_find(const struct dedup_index *x, const uint32_t *sketch, int band);
/* Enters document `row`, larger than all before it, under each band. STATUS_OUT_OF_MEMORY: no memory. */
status dedup_index_put(struct dedup_index *x, const uint32_t *sketch, uint32_t row) WARN_UNUSED;
void dedup_index_free(struct dedup_index *x);
#endif
