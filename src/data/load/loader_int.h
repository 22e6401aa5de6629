/* Private to the loader: slots (memory for one step) and how a micro-batch is filled. */
#ifndef INGOT_DATA_LOAD_LOADER_INT_H
#define INGOT_DATA_LOAD_LOADER_INT_H
#include "data/load/loader.h"

/* What a thread that fills needs for itself. */
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
    struct step_batch batch; /* first: step_batch_free gets the slot by it */
    struct batch *micro;
    void *memory;
    struct loader_memory owner;
};
status slot_open(struct slot *s, int64_t sequence_length, const struct loader_config *c) WARN_UNUSED;
void slot_close(struct slot *s);

struct fill_count {
    int64_t valid, padding;
};
/* Micro-batch m of `step` into its place of the slot. */
status filler_run(struct filler *f, struct slot *s, int64_t step, int64_t m, struct fill_count *count) WARN_UNUSED;
#endif
