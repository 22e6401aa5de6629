/* Inputs of every mixer besides its own tensors. */
#ifndef INGOT_NN_MIX_H
#define INGOT_NN_MIX_H
#include "data/load/loader.h"
#include "nn/rope.h"

struct mix {
    const struct rope *rope;
    const struct batch *batch;
};

/* Generation: the cache of one sequence of at most `capacity` tokens. */
struct cache_lay {
    int64_t capacity;
    dtype dt;
    struct arena *memory;
};
struct cache_at {
    int64_t at, rows, capacity;  /* tokens [at, at + rows) are new */
    const struct batch *batch;   /* the new tokens */
    const int32_t *length;       /* in the op set's memory: at + rows */
};
#endif
