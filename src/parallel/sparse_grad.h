/* sparse_grad: gradients of n-gram tables (nn/engram.h) as the rows that a step reads, instead of arrays as large as
 * the tables (params.sparse). Dense arrays would be almost all zeros.
 *
 *   backward of micro-batch i   stores ids[i], the rows that its tokens read, and grads[i], their gradients
 *   after the last backward     data-parallel ranks all-gather ids and grads; i counts micro-batches of the whole step
 *                               rows = the unique ids;  ids = positions in rows
 *                               sums[ids] += grads, in the order of the step's tokens
 *   optimizer                   updates `rows` by `sums`, and zeroes sums (ops.h: rows_update)
 *
 * Every data-parallel rank computes all sums, even under ZeRO, and updates the rows that it holds. So the bits depend
 * neither on the number of ranks nor on train.gradient_groups. Under tensor parallelism a rank has its own columns.
 * Memory for each read, with rows of width w: 4 (w + 1) bytes for the read and as much for the sum; 16 bytes for
 * sorting, shared by all layers. */
#ifndef INGOT_PARALLEL_SPARSE_GRAD_H
#define INGOT_PARALLEL_SPARSE_GRAD_H
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "tensor/params.h"

struct table {
    int row;                    /* index in params.rows */
    int64_t width;              /* number of elements of a table row on this rank */
    int64_t slots;              /* maximum number of table rows that a step reads */
    int32_t *ids;               /* [micros][reads] */
    float *grads;               /* [micros][reads][width] */
    int32_t *rows;              /* [slots], ascending; then TOKEN_NONE */
    float *sums;                /* [slots][width] */
    int64_t chunk_first, chunk_count, chunk_place; /* range in `chunks`; index of the first one in the whole model */
};
enum { TABLES_MAX = 64 };       /* the same limit as in spec/ngram.c */
struct sparse_grad {
    const struct mesh *mesh;    /* not owned; NULL: one rank */
    int count;                  /* number of tables on this rank */
    struct table list[TABLES_MAX];
    int64_t reads;              /* number of table rows that a micro-batch reads */
    int64_t micros, own;        /* number of micro-batches of a step: on all data-parallel ranks; on this rank */
    void *scratch;              /* for rows_unique */
    float *sums;                /* the sums of all tables, contiguous */
    struct update_chunk *chunks; /* the sums in the optimizer's chunks, for the gradient norm (UPDATE_CHUNK_NORMS) */
    int64_t chunk_count, chunks_model; /* number of chunks: on this rank; in the whole model */
};

/* Allocates the buffers, from counting or real arenas, after params_layout. Does nothing unless params.sparse. */
struct sparse_grad_layout {
    const struct mesh *mesh;
    const struct params *params;
    int64_t reads, micros;
    struct arena *grad, *optim;
};
void sparse_grad_layout(struct sparse_grad *t, const struct sparse_grad_layout *l);
/* Call before the first step: fills `chunks`, zeroes the sums. */
status sparse_grad_open(struct sparse_grad *t, dev_stream s) WARN_UNUSED;

/* Where a micro-batch of the step stores the ids and gradients of the table that is row `row` of params. */
struct table_reads { int32_t *ids; float *grads; };
struct table_reads sparse_grad_reads(const struct sparse_grad *t, int row, int64_t micro);
/* The index in the step of this rank's i-th micro-batch. */
int64_t sparse_grad_micro(const struct mesh *mesh, int64_t own, int64_t i);
/* Call after the last backward: all-gathers ids and gradients, then computes `rows` and `sums`. */
status sparse_grad_reduce(const struct sparse_grad *t, const struct params *p, const struct ops *ops,
                          dev_stream s) WARN_UNUSED;
#endif
