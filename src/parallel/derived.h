/* derived: copies of weights in other forms (enum derived), which equal the weights whenever blocks read them.
 *
 * Code that changes weights calls derived_refresh and says where the new values are; it remakes every copy from them.
 * Its switches have no default, so a new kind of copy does not compile until every event below handles it.
 *
 *   event    who                                  new values of
 *   DRAWN    init_weights                         a row, drawn on the device
 *   HOST     master_weights_put_row               this rank's part of a row, in host memory
 *   MASTER   master_weights_put                   all rows, in fp32 on the device; without ZeRO
 *   PIECE    offload_update                       elements [begin, end), in fp32 on the device; without ZeRO
 *   STEP     optim_step                           all rows, in this rank's arrays; without ZeRO
 *   GATHER   zero_all_gather_weights              all rows, sharded: after each of the others under ZeRO
 *
 * Router biases are updated in their fp32 copy, so STEP and GATHER write them from there to the master weights. */
#ifndef INGOT_PARALLEL_DERIVED_H
#define INGOT_PARALLEL_DERIVED_H
#include "parallel/exec.h"

enum derived_event { DERIVED_DRAWN, DERIVED_HOST, DERIVED_MASTER, DERIVED_PIECE, DERIVED_STEP, DERIVED_GATHER };
struct derived_refresh {
    enum derived_event event;
    const struct params *params;
    const struct ops *ops;
    dev_stream stream;
    int row;                    /* DRAWN, HOST */
    const float *values;        /* new values. HOST: of the part that params_local_range returns; MASTER: from element 0
                                   of the flat arrays on; PIECE: from element `begin` on */
    int64_t begin, end;         /* PIECE */
    struct comm *shards;        /* GATHER: the ranks that shard one copy */
    void *scratch;              /* GATHER: derived_scratch bytes */
};
status derived_refresh(const struct derived_refresh *a) WARN_UNUSED;
/* Bytes of scratch for GATHER; 0 without copies. */
size_t derived_scratch(const struct params *p);
/* True if this rank has copies. */
bool derived_any(const struct params *p);
#endif
