/* QK-norm and RoPE, one head after the other: a head (at most 512 bytes for the usual widths) stays in the L1 cache
 * between its norm and its rotation. */
#include "base/parallel.h"
#include "base/int_math.h"
#include "ops/cpu/partial.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include <math.h>

enum { CHUNK_ELEMENTS = 16384 };

static void check_shapes(int64_t heads, int64_t heads_kv, int64_t head_dim, int64_t half, int64_t stride_min)
{
    CHECK(heads > 0 && heads_kv > 0, "heads %lld heads_kv %lld", (long long)heads, (long long)heads_kv);
    CHECK(head_dim > 0, "head_dim %lld", (long long)head_dim);
    CHECK(half >= 0 && 2 * half <= head_dim, "rotates 2 x %lld of %lld dims", (long long)half,
          (long long)head_dim);
    CHECK(stride_min >= (heads + heads_kv) * head_dim, "row stride %lld is below its heads",
          (long long)stride_min);
}

static int64_t table_row(const int32_t *positions, int64_t t, int64_t half, int64_t pos_count)
{
    if (half == 0) return 0;
    CHECK(positions[t] >= 0 && positions[t] < pos_count, "position %d of row %lld is outside [0, %lld)",
          positions[t], (long long)t, (long long)pos_count);
    return positions[t] * half;
}

VEC_INLINE float head_rstd(const struct rope_fwd_args *a, int64_t at, dtype dt)
{
    vf acc = {0};
    for (int64_t i = 0; i < a->head_dim; i += VEC) {
        vf x = vec_load(a->in, at + i, vec_n(a->head_dim - i), dt);
        acc += x * x;
    }
    return (float)(1 / sqrt((double)vec_sum(acc) / (double)a->head_dim + a->eps));
}

/* Element i of a head at `at`, normalised if there is a weight. */
VEC_INLINE vf fwd_load(const struct rope_fwd_args *a, int64_t at, int64_t i, int n, const void *w, float rstd,
                       dtype dt)
{
    vf x = vec_load(a->in, at + i, n, dt);
    return w ? x * rstd * (vec_load(w, i, n, dt) + (float)a->shift) : x;
}

VEC_INLINE void fwd_head(const struct rope_fwd_args *a, int64_t t, int64_t h, int64_t angle, dtype dt)
{
    const int64_t half = a->half, in = t * a->in_stride + h * a->head_dim,
                  out = t * a->out_stride + h * a->head_dim;
    const void *w = h < a->heads ? a->qw : a->kw;
    float rstd = 1;
    if (w) {
        rstd = head_rstd(a, in, dt);
        if (a->rstd) ((float *)a->rstd)[t * (a->heads + a->heads_kv) + h] = rstd;
    }
    for (int64_t i = 0; i < half; i += VEC) {
        int n = vec_n(half - i);
        vf c = vec_load(a->cos, angle + i, n, DTYPE_F32), s = vec_load(a->sin, angle + i, n, DTYPE_F32);
        vf x = fwd_load(a, in, i, n, w, rstd, dt), y = fwd_load(a, in, half + i, n, w, rstd, dt);
        vec_store(a->out, out + i, n, dt, x * c - y * s);
        vec_store(a->out, out + half + i, n, dt, y * c + x * s);
    }
    if (w == NULL && a->in == a->out) return;
    for (int64_t i = 2 * half; i < a->head_dim; i += VEC) {
        int n = vec_n(a->head_dim - i);
        vec_store(a->out, out + i, n, dt, fwd_load(a, in, i, n, w, rstd, dt));
    }
}

static void fwd_row(const struct rope_fwd_args *a, int64_t t)
{
    int64_t angle = table_row(a->positions, t, a->half, a->pos_count);
    for (int64_t h = 0; h < a->heads + a->heads_kv; h++) {
        if (a->dt == DTYPE_F32)
            fwd_head(a, t, h, angle, DTYPE_F32);
        else
            fwd_head(a, t, h, angle, DTYPE_BF16);
    }
}

static status rope_fwd(const struct rope_fwd_args *a, dev_stream stream)
{
    (void)stream;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    check_shapes(a->heads, a->heads_kv, a->head_dim, a->half, int64_min(a->in_stride, a->out_stride));
    CHECK(!a->qw == !a->kw, "QK-norm takes both weights or none");
    CHECK(a->in != a->out || (!a->qw && a->in_stride == a->out_stride),
          "in place only without QK-norm and with one stride");
    const int64_t wide = (a->heads + a->heads_kv) * a->head_dim,
                  grain = CHUNK_ELEMENTS / int64_min(wide, CHUNK_ELEMENTS);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t t = rows.begin; t < rows.end; t++) fwd_row(a, t);
    }
    return STATUS_OK;
}

/* One head of the backward: offsets of its elements, and its statistics. */
struct bwd_head {
    int64_t out, in, din, angle; /* in dout, in, din, cos */
    const void *w;               /* NULL: no norm */
    float *dw;
    float rstd, mean; /* mean of g w xh */
};

/* A gradient is rotated by the negative angle: pair (x, y) at i and half + i. */
struct pair {
    vf x, y;
};
VEC_INLINE struct pair unrotated(const struct rope_bwd_args *a, const struct bwd_head *h, int64_t i, int n,
                                 dtype dt)
{
    vf c = vec_load(a->cos, h->angle + i, n, DTYPE_F32), s = vec_load(a->sin, h->angle + i, n, DTYPE_F32);
    vf x = vec_load(a->dout, h->out + i, n, dt), y = vec_load(a->dout, h->out + a->half + i, n, dt);
    return (struct pair){x * c + y * s, y * c - x * s};
}

/* dw += g xh; returns g w xh. */
VEC_INLINE vf weigh(const struct rope_bwd_args *a, const struct bwd_head *h, int64_t i, int n, vf g, dtype dt)
{
    vf g_xh = g * h->rstd * vec_load(a->in, h->in + i, n, dt);
    vec_store(h->dw, i, n, DTYPE_F32, vec_load(h->dw, i, n, DTYPE_F32) + g_xh);
    return g_xh * (vec_load(h->w, i, n, dt) + (float)a->shift);
}

VEC_INLINE float head_mean(const struct rope_bwd_args *a, const struct bwd_head *h, dtype dt)
{
    vf acc = {0};
    for (int64_t i = 0; i < a->half; i += VEC) {
        int n = vec_n(a->half - i);
        struct pair g = unrotated(a, h, i, n, dt);
        acc += weigh(a, h, i, n, g.x, dt);
        acc += weigh(a, h, a->half + i, n, g.y, dt);
    }
    for (int64_t i = 2 * a->half; i < a->head_dim; i += VEC) {
        int n = vec_n(a->head_dim - i);
        acc += weigh(a, h, i, n, vec_load(a->dout, h->out + i, n, dt), dt);
    }
    return vec_sum(acc) / (float)a->head_dim;
}

VEC_INLINE void bwd_store(const struct rope_bwd_args *a, const struct bwd_head *h, int64_t i, int n, vf g,
                          dtype dt)
{
    if (h->w) {
        vf xh = vec_load(a->in, h->in + i, n, dt) * h->rstd;
        g = (g * (vec_load(h->w, i, n, dt) + (float)a->shift) - xh * h->mean) * h->rstd;
    }
    vec_store(a->din, h->din + i, n, dt, g);
}

VEC_INLINE void bwd_head(const struct rope_bwd_args *a, struct bwd_head *h, dtype dt)
{
    if (h->w) h->mean = head_mean(a, h, dt);
    for (int64_t i = 0; i < a->half; i += VEC) {
        int n = vec_n(a->half - i);
        struct pair g = unrotated(a, h, i, n, dt);
        bwd_store(a, h, i, n, g.x, dt);
        bwd_store(a, h, a->half + i, n, g.y, dt);
    }
    if (h->w == NULL && a->din == a->dout) return;
    for (int64_t i = 2 * a->half; i < a->head_dim; i += VEC) {
        int n = vec_n(a->head_dim - i);
        bwd_store(a, h, i, n, vec_load(a->dout, h->out + i, n, dt), dt);
    }
}

static void bwd_row(const struct rope_bwd_args *a, int64_t t, float *dqw, float *dkw)
{
    const int64_t both = a->heads + a->heads_kv, angle = table_row(a->positions, t, a->half, a->pos_count);
    for (int64_t i = 0; i < both; i++) {
        struct bwd_head h = {.out = t * a->dout_stride + i * a->head_dim,
                             .din = t * a->din_stride + i * a->head_dim};
        h.angle = angle;
        if (a->qw) {
            h.in = t * a->in_stride + i * a->head_dim, h.rstd = ((const float *)a->rstd)[t * both + i];
            h.w = i < a->heads ? a->qw : a->kw, h.dw = i < a->heads ? dqw : dkw;
        }
        if (a->dt == DTYPE_F32)
            bwd_head(a, &h, DTYPE_F32);
        else
            bwd_head(a, &h, DTYPE_BF16);
    }
}

static status rope_bwd(const struct rope_bwd_args *a, dev_stream stream)
{
    (void)stream;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    check_shapes(a->heads, a->heads_kv, a->head_dim, a->half, int64_min(a->dout_stride, a->din_stride));
    CHECK(!a->qw == !a->kw, "QK-norm takes both weights or none");
    CHECK(a->din != a->dout || a->din_stride == a->dout_stride, "in place with two strides");
    if (a->qw) {
        CHECK(a->in && a->rstd && a->dqw && a->dkw, "QK-norm needs in, rstd, dqw and dkw");
        CHECK(a->in_stride >= (a->heads + a->heads_kv) * a->head_dim, "in_stride %lld",
              (long long)a->in_stride);
    }
    struct partial_buffer buffer;
    const int64_t wide = partial_pad(a->head_dim);
    const struct partial part = partial_init(&buffer, a->rows, 2 * wide);
    PARALLEL_CHUNKS(c, part.chunks)
    {
        struct span rows = chunk_span(c, a->rows, part.grain);
        float *line = partial_line(&part, c);
        for (int64_t t = rows.begin; t < rows.end; t++) bwd_row(a, t, line, line + wide);
    }
    if (a->qw == NULL) return STATUS_OK;
    partial_merge(&part, 0, a->dqw, a->head_dim);
    partial_merge(&part, wide, a->dkw, a->head_dim);
    return STATUS_OK;
}

void SIMD(simd_rope)(struct ops *o)
{
    o->rope_fwd = rope_fwd;
    o->rope_bwd = rope_bwd;
}
