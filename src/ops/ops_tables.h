/* Ops on gradients of tables of which a step reads few rows (parallel/sparse_grad.h). Included by ops.h; its conventions hold. */
#ifndef INGOT_OPS_OPS_TABLES_H
#define INGOT_OPS_OPS_TABLES_H
#include <stdint.h>

enum { ROWS_UNIQUE_SCRATCH = 16 };  /* bytes for each id */
/* rows = ids in ascending order, each once, TOKEN_NONE behind them;  slots[i] = which of `rows` ids[i] is. Ids outside [0, table_rows) are
 * none: they have no row, and the slot TOKEN_NONE. */
struct rows_unique_args {
    const int32_t *ids;         /* [count] */
    int32_t *slots;             /* [count] =; may be ids */
    int32_t *rows;              /* [room] =; room >= min(count, table_rows) */
    void *scratch;              /* ROWS_UNIQUE_SCRATCH count bytes, of 16-byte alignment */
    int64_t count, room, table_rows; /* < 2^31 */
};
#endif
