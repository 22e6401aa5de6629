/* tables: gradients of tables of n-grams (nn/engram.h) as the rows that a step reads, where arrays as large as the tables would hold
 * little but zeros (params.sparse).
 *
 *   backward of micro-batch i   ids[i], grads[i] = the rows that its tokens read, and what they add to them
 *   after the last one          data-parallel ranks bring in those of theirs: i counts the micro-batches of the step;
 *                               rows = the ids, each once; ids = which of them;  sums[ids] += grads, in the order of the step's tokens
 *   the optimizer               moves `rows` by `sums`, and leaves zeros there (ops.h: rows_update)
 *
 * Every data-parallel rank forms all sums, whatever ZeRO shares out, and moves the rows that are its own: their bits depend neither on the
 * number of ranks nor on train.gradient_groups. With tensor parallelism a rank has its columns. Bytes for each read of the step and
 * layer, with rows of width w: 4 (w + 1) as it was read and as much for the sum; 16 for the sorting, which all layers share. */
#ifndef INGOT_PARALLEL_SPARSE_GRAD_H
#define INGOT_PARALLEL_SPARSE_GRAD_H
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "tensor/params.h"

struct table {
    int row;                    /* of params */
    int64_t width;              /* elements of a row that are here */
    int64_t slots;              /* rows that a step may read, at most */
    int32_t *ids;               /* [micros][reads] */
    float *grads;               /* [micros][reads][width] */
    int32_t *rows;              /* [slots], ascending; then TOKEN_NONE */
    float *sums;                /* [slots][width] */
    int64_t chunk_first, chunk_count, chunk_place; /* its pieces in `chunks`, and the first one's place among those of the whole model */
};
enum { TABLES_MAX = 64 };       /* as spec/ngram.c has it */
struct sparse_grad {
    const struct mesh *mesh;    /* not owned; NULL: one rank */
    int count;                  /* of those that are here */
    struct table list[TABLES_MAX];
    int64_t reads;              /* of a micro-batch */
    int64_t micros, own;        /* of a step: of all data-parallel ranks, and of this one */
    void *scratch;              /* of rows_unique */
    float *sums;                /* of all tables */
    struct update_chunk *chunks; /* the same in pieces: for the norm (UPDATE_SQUARES) */
    int64_t chunk_count, chunks_model; /* here; in the whole model */
};

/* Takes the memory, counting or real, after params_lay: nothing unless params.sparse. */
struct sparse_grad_lay {
    const struct mesh *mesh;
    const struct params *params;
    int64_t reads, micros;
    struct arena *grad, *optim;
};
void sparse_grad_lay(struct sparse_grad *t, const struct sparse_grad_lay *l);
/* Before the first step: the table of pieces, and sums of zero. */
status sparse_grad_open(struct sparse_grad *t, dev_stream s) WARN_UNUSED;

/* Where a micro-batch of the step leaves what it reads of a row of params, and what it adds there. */
struct table_reads { int32_t *ids; float *grads; };
struct table_reads sparse_grad_reads(const struct sparse_grad *t, int row, int64_t micro);
/* The number in the step of this rank's i-th micro-batch. */
int64_t sparse_grad_micro(const struct mesh *mesh, int64_t own, int64_t i);
/* After the last backward: rows and sums. */
status sparse_grad_reduce(const struct sparse_grad *t, const struct params *p, const struct ops *ops, dev_stream s) WARN_UNUSED;
#endif
