/* zero_codes: FP8 under ZeRO 3. The weights of a unit are all-gathered as codes, a byte per element, half of bf16.
 *
 *   after the update   each rank makes the codes of its shard (fp8_end), with the scale of the whole weight
 *   a unit's slot      has 2 bytes per element, as in bf16. Where a row's values would be:
 *
 *        | codes [out, in] | transposed [in, out] |     `room` bytes each; forward reads the first, dgrad the other
 *
 *   ZERO_CODES_MOVED   codes are all-gathered into `staging` and copied to their rows' places. The transposes are made
 *                      of them before a backward. To gather these, too, would move twice the bytes; and a shard, which
 *                      is rows of W, is no contiguous part of its transpose.
 *   ZERO_CODES_MADE    some rows compute in bf16 now (a warm-up, a linear that went back to bf16, many rows that
 *                      fp8.exclude names): values are all-gathered, and each rank makes the codes of the other rows
 *   ZERO_VALUES        no row reads codes
 *
 * Both ways give the same codes. The form depends on params.fp8.use, which is the same on all ranks, and changes between
 * steps, when all slots are empty. What else a unit of codes has (norms, biases, routers) is whole on every rank:
 * DERIVED_WHOLE. */
#ifndef INGOT_PARALLEL_ZERO_CODES_H
#define INGOT_PARALLEL_ZERO_CODES_H
#include "base/arena.h"
#include "comm/comm.h"
#include "ops/ops.h"
#include "tensor/params.h"

enum zero_form { ZERO_VALUES, ZERO_CODES_MADE, ZERO_CODES_MOVED };
struct zero_codes {
    void *staging;              /* a unit's codes; or of one row, its codes and their transpose */
    int32_t *order, *ends;      /* for the op that transposes: 0, 1, 2 ...; and of each linear 0 and its rows */
};
/* A unit in its slot, whose weights are all-gathered on `stream`. */
struct zero_codes_at {
    const struct params *params;
    const struct ops *ops;
    int unit;
    void *slot;
    dev_stream stream;
};

enum zero_form zero_codes_form(const struct params *p, int unit);
/* Of the units with FP8 linears: their number, how many move codes now, and bytes that one pass over them
 * all-gathers. */
struct zero_codes_sum { int units, moved; int64_t codes, values; };
struct zero_codes_sum zero_codes_sum(const struct params *p);
void zero_codes_layout(struct zero_codes *c, const struct params *p, struct arena *a);
status zero_codes_open(const struct zero_codes *c, const struct params *p, dev_stream s) WARN_UNUSED;
/* MOVED: all-gathers the codes over the ranks that shard a copy. */
status zero_codes_gather(const struct zero_codes *c, const struct zero_codes_at *at, struct comm *shards) WARN_UNUSED;
/* MOVED: makes the transposes of the codes in the slot. */
status zero_codes_transpose(const struct zero_codes *c, const struct zero_codes_at *at) WARN_UNUSED;
/* MADE: replaces the values in the slot by codes and transposes, of rows that read codes. */
status zero_codes_make(const struct zero_codes *c, const struct zero_codes_at *at) WARN_UNUSED;
#endif
