/* Units of the parameter table: the embedding, each block, what follows the blocks, each extra prediction, and behind all of them each
 * block's table of n-grams. A unit's rows lie together in every array; what ranks share out, sum or gather goes unit by unit. */
#ifndef INGOT_TENSOR_UNITS_H
#define INGOT_TENSOR_UNITS_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct param_unit {
    int first, last;            /* rows [first, last) */
    int of;                     /* of a table: the unit of the block that reads it; else 0 */
    bool here;                  /* this rank stores it */
    bool copy;                  /* so does another, which answers for it in norms and checkpoints */
    int64_t begin, count, grid; /* its elements of the flat arrays, padding included, and of a line of its grid: params_lay */
    void *weight, *grad;        /* where they begin */
    int64_t chunk_first, chunk_count; /* its part of `chunks` */
    int64_t chunk_place;        /* of the first of them among the pieces of the whole model */
};

/* What happens around the passes over units whose arrays are not whole. */
enum unit_use { UNIT_FORWARD, UNIT_BACKWARD };
struct unit_hooks {
    void *ctx;
    status (*enter)(void *ctx, int unit, enum unit_use use);    /* weights are there, and for BACKWARD a place for gradients */
    status (*leave)(void *ctx, int unit);                       /* its gradients are complete for this micro-batch */
    status (*moved)(void *ctx, int unit);                       /* the optimizer has made its weights, or this rank's part of them, new ones */
};
#endif
