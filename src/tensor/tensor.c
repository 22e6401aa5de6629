#include "tensor/tensor.h"

struct tensor tensor_take(struct arena *a, const char *what, dtype dt, int rank, ...)
{
    CHECK(rank >= 1 && rank <= TENSOR_RANK_MAX, "%s: rank %d", what, rank);
    struct tensor t = {.dt = dt, .rank = rank};
    va_list ap;
    va_start(ap, rank);
    for (int i = 0; i < rank; i++) {
        t.shape[i] = va_arg(ap, int64_t);
        CHECK(t.shape[i] >= 0, "%s: dimension %d is %lld", what, i, (long long)t.shape[i]);
    }
    va_end(ap);
    t.data = arena_take(a, (size_t)tensor_count(t) * dtype_bytes(dt), what);
    return t;
}

int64_t tensor_count(struct tensor t)
{
    int64_t n = 1;
    for (int i = 0; i < t.rank; i++) n *= t.shape[i];
    return n;
}
