/* Maps a rank's slice of a row of the parameter table to the full row. Tensor parallelism slices rows, expert
 * parallelism shards their experts; `place` numbers the combinations: slice + slices * expert rank. */
#ifndef INGOT_TENSOR_PARAM_PLACE_H
#define INGOT_TENSOR_PARAM_PLACE_H
#include "tensor/param_row.h"

struct params;

/* This rank's place, and another rank's. */
int params_place(const struct params *p);
int params_place_of(const struct params *p, int slice, int expert_rank);

/* The location of a shard in the full row, as blocks of `rows` x `width` elements: in the shard from `local` on with
 * row stride `pitch`, in the full row from `global` on with row stride `stride`. Returns the number of blocks. */
struct param_block { int64_t local, pitch, global, stride, rows, width; };
int params_blocks(const struct params *p, int row, int place, struct param_block blocks[PARAM_PARTS]);
/* The location of element `at` of a shard in the full row, and the number of elements from there on that are
 * contiguous in both. */
struct param_line { int64_t global, count; };
struct param_line params_line(const struct params *p, int row, int place, int64_t at);
#endif
