/* Units of the parameter table (FSDP units), in this order: the embedding, each block, the rows after the blocks (final
 * norm, head), each MTP module, with expert parallelism the experts of each block, and the n-gram table of each block.
 * The rows of a unit are contiguous in every array. Sharding, reductions and all-gathers work per unit. */
#ifndef INGOT_TENSOR_UNITS_H
#define INGOT_TENSOR_UNITS_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct param_unit {
    int first, last;            /* the unit's rows are [first, last) */
    int block_unit;             /* if it is an n-gram table or a block's experts: the unit of that block; else 0 */
    bool experts;               /* expert parallelism: it is a block's experts, of which each `ep` rank holds some */
    int shards, shard;          /* ZeRO: number of ranks that shard one copy, and this rank's index; params_layout sets
                                   them */
    int64_t shard_offset;       /* where this rank's shard begins in the sharded arrays; params_layout sets it */
    bool moves_codes;           /* ZeRO 3 with FP8: ranks keep codes of their shards, which are all-gathered instead of
                                   the values (parallel/zero_codes.h); fp8_claim sets it */
    int64_t codes_at;           /* where those of this rank begin in the copies DERIVED_F8; params_layout sets it */
    bool is_local;              /* this rank stores the unit */
    bool is_replica;            /* this rank holds a replica; the owner counts it in the gradient norm and saves it */
    int64_t begin, count, chunk_align; /* first element and number of elements in the flat arrays, with padding, and the
                                          alignment of its chunks; params_layout sets them */
    void *weight, *grad;        /* where the unit's arrays begin; NULL: not in memory now */
    int64_t chunk_first, chunk_count; /* the unit's range of params.chunks */
    int64_t chunk_place;        /* index of its first chunk among all chunks of the whole model */
};

/* Hooks that the passes call for units whose arrays are sharded. */
enum unit_use { UNIT_FORWARD, UNIT_BACKWARD };
struct unit_hooks {
    void *ctx;
    status (*unshard)(void *ctx, int unit, enum unit_use use);  /* before a pass: makes the weights available and, for
                                                                   BACKWARD, memory for gradients */
    status (*reshard)(void *ctx, int unit);                     /* after a pass: its gradients are complete for this
                                                                   micro-batch */
    status (*after_update)(void *ctx, int unit);                /* after the optimizer has updated the weights, or this
                                                                   rank's shard of them */
};
#endif
