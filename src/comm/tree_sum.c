/* Sums over ranks in a fixed order: terms are sent to the rank that owns the result, which adds them. */
#include "comm/gpu/device_comm.h"

#include <string.h>

/* ---- the tree over vectors of `ranks`, `apart` elements from each other: even ranks plus odd ranks,
 * recursively. */

enum { BLOCK = 512 };
struct terms {
    const void *x;
    dtype dt;
    int64_t apart;
};

/* out [n] = sum over ranks first, first + step, ... (`ranks` of them), of elements at, at + 1, ... */
static void tree_f32(const struct terms *t, int64_t at, int n, int first, int step, int ranks, float *out)
{
    if (ranks == 1) {
        const int64_t begin = first * t->apart + at;
        if (t->dt == DTYPE_F32)
            memcpy(out, (const float *)t->x + begin, (size_t)n * sizeof *out);
        else
            for (int i = 0; i < n; i++) out[i] = bf16_to_f32(((const bf16 *)t->x)[begin + i]);
        return;
    }
    float odd[BLOCK];
    tree_f32(t, at, n, first, 2 * step, (ranks + 1) / 2, out);
    tree_f32(t, at, n, first + step, 2 * step, ranks / 2, odd);
    for (int i = 0; i < n; i++) out[i] += odd[i];
}

static void tree_f64(const struct terms *t, int64_t at, int n, int first, int step, int ranks, double *out)
{
    if (ranks == 1) {
        memcpy(out, (const double *)t->x + first * t->apart + at, (size_t)n * sizeof *out);
        return;
    }
    double odd[BLOCK];
    tree_f64(t, at, n, first, 2 * step, (ranks + 1) / 2, out);
    tree_f64(t, at, n, first + step, 2 * step, ranks / 2, odd);
    for (int i = 0; i < n; i++) out[i] += odd[i];
}

/* out [count] may be one of the vectors. */
static void add_up(const struct terms *t, int ranks, int64_t count, void *out)
{
    float sum[BLOCK];
    double sum64[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int n = count - at < BLOCK ? (int)(count - at) : BLOCK;
        if (t->dt == DTYPE_F64) {
            tree_f64(t, at, n, 0, 1, ranks, sum64);
            memcpy((double *)out + at, sum64, (size_t)n * sizeof *sum64);
            continue;
        }
        tree_f32(t, at, n, 0, 1, ranks, sum);
        if (t->dt == DTYPE_F32)
            memcpy((float *)out + at, sum, (size_t)n * sizeof *sum);
        else
            for (int i = 0; i < n; i++) ((bf16 *)out)[at + i] = bf16_from_f32(sum[i]);
    }
}

static size_t bytes_of(int64_t count, dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_F64 || dt == DTYPE_BF16, "ranks do not add up %s", dtype_name(dt));
    CHECK(count >= 0, "%lld elements", (long long)count);
    return (size_t)count * dtype_bytes(dt);
}

/* ---- collectives */

size_t comm_reduce_scatter_scratch(int ranks, int64_t count, dtype dt)
{
    return ranks > 1 ? bytes_of(count, dt) * (size_t)ranks : 0;
}

status comm_reduce_scatter_finish(struct comm *c, void *x, const void *own, void *out, int64_t count,
                                  dtype dt, struct stream *s)
{
    const size_t bytes = bytes_of(count, dt);
    if (s)
        return c->world->device_ops->sum(
            &(struct device_sum){
                .x = x, .own = own, .out = out, .count = count, .dt = dt, .ranks = c->ranks, .rank = c->rank},
            s);
    memcpy((char *)x + (size_t)c->rank * bytes, own, bytes);
    add_up(&(struct terms){.x = x, .dt = dt, .apart = count}, c->ranks, count, out);
    return STATUS_OK;
}

status comm_reduce_scatter(struct comm *c, const char *name, const void *x, void *out, int64_t count,
                           dtype dt, void *scratch, struct stream *s)
{
    const size_t bytes = bytes_of(count, dt);
    if (c == NULL) return out != x ? dev_copy(s, out, x, bytes) : STATUS_OK;
    TRY(comm_execute(c, (struct comm_call){.op = COMM_REDUCE_SCATTER,
                                           .name = name,
                                           .send = x,
                                           .recv = scratch,
                                           .bytes = bytes,
                                           .out = out,
                                           .dt = dt,
                                           .stream = s}));
    if (s) return STATUS_OK; /* GPUs have added already */
    add_up(&(struct terms){.x = scratch, .dt = dt, .apart = count}, c->ranks, count, out);
    return STATUS_OK;
}

/* Elements that each rank adds: the same on all; the last ranks may have fewer or none. */
static int64_t slice(int ranks, int64_t count)
{
    const int64_t unit = 16;
    return (count + ranks * unit - 1) / (ranks * unit) * unit;
}

size_t comm_all_reduce_scratch(int ranks, int64_t count, dtype dt)
{
    /* sent data, padded to a multiple of slices, and received data */
    return ranks > 1 ? 2 * bytes_of(slice(ranks, count), dt) * (size_t)ranks : 0;
}

status comm_all_reduce(struct comm *c, const char *name, void *x, int64_t count, dtype dt, void *scratch,
                       struct stream *s)
{
    if (c == NULL) return STATUS_OK;
    const int64_t part = slice(c->ranks, count);
    const size_t bytes = bytes_of(count, dt), padded = bytes_of(part * c->ranks, dt);
    const bool whole = bytes == padded; /* no padding needed: no copies */
    char *send = whole ? x : scratch, *recv = (char *)scratch + padded;
    char *own = send + (size_t)c->rank * bytes_of(part, dt);
    if (!whole) {
        TRY(dev_copy(s, send, x, bytes));
        TRY(dev_zero(s, send + bytes, padded - bytes));
    }
    if (s) {
        TRY(comm_execute(c, (struct comm_call){.op = COMM_ALL_REDUCE,
                                               .name = name,
                                               .send = send,
                                               .recv = recv,
                                               .bytes = bytes_of(part, dt),
                                               .out = send,
                                               .dt = dt,
                                               .stream = s}));
    } else {
        TRY(comm_reduce_scatter(c, name, send, own, part, dt, recv, NULL));
        TRY(comm_all_gather(c, name, own, send, bytes_of(part, dt), NULL));
    }
    return whole ? STATUS_OK : dev_copy(s, x, send, bytes);
}

/* The same for GPUs: their communicators have buffers for so few scalars. */
static status device_sum_f64(struct comm *c, const char *name, double *x, int count, struct stream *s)
{
    double *all = c->world->device_ops->scalars(c);
    TRY(comm_all_gather(c, name, x, all, (size_t)count * sizeof *x, s));
    return c->world->device_ops->sum(&(struct device_sum){.x = all,
                                                          .own = all + (ptrdiff_t)c->rank * count,
                                                          .out = x,
                                                          .count = count,
                                                          .dt = DTYPE_F64,
                                                          .ranks = c->ranks,
                                                          .rank = c->rank},
                                     s);
}

status comm_all_reduce_f64(struct comm *c, const char *name, double *x, int count, struct stream *s)
{
    double all[COMM_RANKS_MAX * COMM_SCALARS];
    CHECK(count > 0 && count <= COMM_SCALARS, "%d scalars", count);
    if (c == NULL) return STATUS_OK;
    if (s) return device_sum_f64(c, name, x, count, s);
    TRY(comm_all_gather(c, name, x, all, (size_t)count * sizeof *x, NULL));
    add_up(&(struct terms){.x = all, .dt = DTYPE_F64, .apart = count}, c->ranks, count, x);
    return STATUS_OK;
}
