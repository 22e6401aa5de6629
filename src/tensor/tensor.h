/* A view of memory that an arena owns: shape in elements, row-major, last dimension contiguous. Passed by value. */
#ifndef INGOT_TENSOR_TENSOR_H
#define INGOT_TENSOR_TENSOR_H
#include "base/arena.h"
#include "tensor/dtype.h"

struct quantized; /* tensor/quantized.h */

enum { TENSOR_RANK_MAX = 4 };
struct tensor {
    void *data;                     /* NULL while counting */
    dtype dt;
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
    const struct quantized *q;      /* its FP8 form, made by whoever writes it; NULL: none */
};

/* Allocates a tensor from the arena; `what` is a literal. tensor_take(act, "qkv", DTYPE_BF16, 2, n, width) */
struct tensor tensor_take(struct arena *a, const char *what, dtype dt, int rank, ...);
int64_t tensor_count(struct tensor t);
/* Sets the first dimension; does nothing for a tensor that was not allocated. */
static inline void tensor_rows(struct tensor *t, int64_t rows)
{
    if (t->rank) t->shape[0] = rows;
}
/* The element `at` of the first row: where columns from `at` on begin. NULL while counting. */
static inline void *tensor_column(struct tensor t, int64_t at)
{
    return t.data ? (char *)t.data + (size_t)at * dtype_bytes(t.dt) : NULL;
}
#endif
