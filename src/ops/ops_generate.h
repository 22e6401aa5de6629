/* Ops of generation alone: one new row for each sequence of a batch. With attn_decode (ops.h) they read positions from
 * device memory, so a captured step serves every position. Included by ops.h, whose conventions apply. */
#ifndef INGOT_OPS_OPS_GENERATE_H
#define INGOT_OPS_OPS_GENERATE_H
#include "tensor/dtype.h"
#include <stdbool.h>

/* Row lengths[b] - 1 of sequence b's cache = x[b], for one or two arrays. The other rows are not touched. */
struct cache_part {
    const void *x;              /* [batch, width] dt, x_stride */
    void *cache;                /* [batch, capacity] rows of width, `stride` elements apart; must not alias x */
    int64_t x_stride, stride;
    int64_t width;              /* 0: there is no second array */
};
struct kv_cache_append_args {
    struct cache_part part[2];
    const int32_t *lengths;     /* [batch], 1 to capacity */
    int64_t batch, capacity;
    dtype dt;
};

/* A matrix of its own for each head, in one launch: c[r, h] = a[r, h] W_h, for few rows. Multi-head latent attention
 * absorbs its key and value projections so (DeepSeek-V2, arXiv:2405.04434, section 2.1.2). Sums are in A and rounded
 * once. The `tail` elements of a behind its k are copied behind c's n. */
struct per_head_gemm_args {
    const void *a;              /* [rows] heads of k + tail elements; strides of rows and of heads: a_stride, a_head */
    const void *w;              /* [heads, k, n] dt, or [heads, n, k] with trans */
    void *c;                    /* [rows] heads of n + tail elements, c_stride, c_head; must not alias a */
    int64_t a_stride, a_head, c_stride, c_head;
    int64_t rows, heads, n, k, tail;
    bool trans;
    dtype dt;
};
#endif
