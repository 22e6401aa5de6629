/* Ops on sparse gradients: a step reads only a few rows of a large table (parallel/sparse_grad.h). Included by ops.h,
 * whose conventions apply. */
#ifndef INGOT_OPS_OPS_TABLES_H
#define INGOT_OPS_OPS_TABLES_H
#include <stdint.h>

enum { ROWS_UNIQUE_SCRATCH = 16 };  /* bytes per id */
/* rows = the distinct ids in ascending order, then TOKEN_NONE; slots[i] = the index of ids[i] in `rows`. Ids outside
 * [0, table_rows) have no row; their slot is TOKEN_NONE. */
struct rows_unique_args {
    const int32_t *ids;         /* [count] */
    int32_t *slots;             /* [count] =; may be ids */
    int32_t *rows;              /* [room] =; room >= min(count, table_rows) */
    void *scratch;              /* ROWS_UNIQUE_SCRATCH count bytes, 16-byte aligned */
    int64_t count, room, table_rows; /* < 2^31 */
};
#endif
