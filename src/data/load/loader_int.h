/* Private to the loader: slots (memory for one step) and the filling of a micro-batch. */
#ifndef INGOT_DATA_LOAD_LOADER_INT_H
#define INGOT_DATA_LOAD_LOADER_INT_H
#include "data/load/loader.h"

/* State of a filling thread. */
struct filler {
    const struct samples *samples;
    const struct loader_config *config;
    struct mixture_cursor cursor;
    struct pack_piece *pieces; /* [T] */
    int32_t *window;           /* [T+1] */
};
status filler_open(struct filler *f, const struct samples *samples, const struct loader_config *c) WARN_UNUSED;
void filler_close(struct filler *f);

struct slot {
    struct step_batch batch; /* must be first: step_batch_free casts it to the slot */
    struct batch *micro;
    void *memory;
    struct loader_memory owner;
};
status slot_open(struct slot *s, int64_t sequence_length, const struct loader_config *c) WARN_UNUSED;
void slot_close(struct slot *s);

struct fill_count {
    int64_t valid, padding;
};
/* Fills micro-batch m of `step` into its place in the slot. */
status filler_run(struct filler *f, struct slot *s, int64_t step, int64_t m, struct fill_count *count) WARN_UNUSED;
#endif
