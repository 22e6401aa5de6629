/* Units of the parameter table (FSDP units): the embedding, each block, the rows after the blocks (final norm, head),
 * each MTP module, with expert parallelism the experts of each block, and last
 * the n-gram table of each block. The rows of a unit are contiguous in every array.
 * Sharding, reductions and all-gathers work per unit. */
#ifndef INGOT_TENSOR_UNITS_H
#define INGOT_TENSOR_UNITS_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct param_unit {
    int first, last;            /* rows [first, last) */
    int of;                     /* for a table, or experts: the unit of the block that reads it; else 0 */
    bool experts;               /* with expert parallelism: experts, which the ranks of `ep` hold disjointly */
    int shards, shard;          /* ZeRO: ranks that shard a copy of it, and this rank's index; params_lay sets them */
    int64_t own;                /* where its shard begins in the sharded arrays; params_lay sets it */
    bool here;                  /* this rank stores it */
    bool copy;                  /* another rank stores it too, and counts it in norms and checkpoints */
    int64_t begin, count, grid; /* its elements in the flat arrays, with padding, and its chunk alignment; params_lay
                                   sets them */
    void *weight, *grad;        /* where its arrays begin */
    int64_t chunk_first, chunk_count; /* its range of `chunks` */
    int64_t chunk_place;        /* index of its first chunk among the chunks of the whole model */
};

/* Hooks around the passes over units whose arrays are sharded. */
enum unit_use { UNIT_FORWARD, UNIT_BACKWARD };
struct unit_hooks {
    void *ctx;
    status (*enter)(void *ctx, int unit, enum unit_use use);    /* makes weights available and, for BACKWARD, memory
                                                                   for gradients */
    status (*leave)(void *ctx, int unit);                       /* gradients are complete for this micro-batch */
    status (*moved)(void *ctx, int unit);                       /* the optimizer has updated the weights, or this
                                                                   rank's shard of them */
};
#endif
