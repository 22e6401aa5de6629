/* The heads of multi-head latent attention: copies, and RoPE on neighbouring pairs. The cosines and sines of a row
 * are expanded over its pairs once, (c0 c0 c1 c1 ...) and (-s0 s0 -s1 s1 ...). A vector of pairs then needs one
 * shuffle and two products, and all heads share the expanded values. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/cpu/workspace.h"

enum { CHUNK_ELEMENTS = 16384 };

struct shape {
    const int32_t *positions;
    const float *cos, *sin;
    int64_t rows, heads, nope, half, pos_count;
    dtype dt;
};
#define SHAPE(a)                                                                                             \
    {                                                                                                        \
        (a)->positions, (const float *)(a)->cos, (const float *)(a)->sin, (a)->rows, (a)->heads, (a)->nope,  \
            (a)->half, (a)->pos_count, (a)->dt                                                               \
    }

static void check_shape(const struct shape *a)
{
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->heads > 0 && a->nope >= 0 && a->half > 0, "%lld heads of %lld and 2 x %lld", (long long)a->heads,
          (long long)a->nope, (long long)a->half);
}

static int64_t rows_each(const struct shape *a)
{
    const int64_t wide = a->heads * (a->nope + 2 * a->half);
    return wide < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / wide : 1;
}

/* Factors of the rope columns of a row, [2 half] each, whole vectors. */
struct angles {
    float *c, *s;
};
static struct angles angles_layout(const struct shape *a)
{
    const size_t wide = (size_t)((2 * a->half + VEC - 1) / VEC * VEC);
    float *c = workspace_get(WORKSPACE_MINE, 2 * wide * sizeof *c);
    memset(c, 0, 2 * wide * sizeof *c);
    return (struct angles){c, c + wide};
}
/* `sign` 1: forward; -1: back. */
static void angles_of_row(const struct shape *a, const struct angles *g, int64_t t, float sign)
{
    const int32_t position = a->positions[t];
    CHECK(position >= 0 && position < a->pos_count, "position %d of row %lld is outside [0, %lld)", position,
          (long long)t, (long long)a->pos_count);
    const float *c = a->cos + position * a->half, *s = a->sin + position * a->half;
    for (int64_t i = 0; i < a->half; i++) {
        g->c[2 * i] = g->c[2 * i + 1] = c[i];
        g->s[2 * i] = -sign * s[i];
        g->s[2 * i + 1] = sign * s[i];
    }
}

VEC_INLINE vf rotated(vf x, const struct angles *g, int64_t i)
{
    return x * vec_load(g->c, i, VEC, DTYPE_F32) + vec_swap(x) * vec_load(g->s, i, VEC, DTYPE_F32);
}

/* Rope columns from `from` to `to`, which may alias. */
VEC_INLINE void rotate_columns(const struct angles *g, int64_t width, const void *src, int64_t from,
                               void *dst, int64_t to, dtype dt)
{
    for (int64_t i = 0; i < width; i += VEC) {
        const int n = vec_n(width - i);
        vec_store(dst, to + i, n, dt, rotated(vec_load(src, from + i, n, dt), g, i));
    }
}

static void copy(const void *src, int64_t from, void *dst, int64_t to, int64_t count, dtype dt)
{
    const size_t element = dtype_bytes(dt);
    memcpy((char *)dst + (size_t)to * element, (const char *)src + (size_t)from * element,
           (size_t)count * element);
}

VEC_INLINE void fwd_row(const struct mla_rope_fwd_args *a, const struct angles *g, int64_t t, dtype dt)
{
    const int64_t tail = 2 * a->half, head_dim = a->nope + tail, k = t * a->heads * head_dim;
    for (int64_t h = 0; a->q && h < a->heads; h++) {
        const int64_t at = t * a->q_stride + h * head_dim + a->nope;
        rotate_columns(g, tail, a->q, at, a->q, at, dt);
    }
    if (a->k == NULL) return;
    rotate_columns(g, tail, a->k_rope, t * a->k_rope_stride, a->k, k + a->nope, dt);
    for (int64_t h = 0; h < a->heads; h++) {
        if (a->nope) copy(a->k_nope, t * a->k_nope_stride + h * a->nope, a->k, k + h * head_dim, a->nope, dt);
        if (h) copy(a->k, k + a->nope, a->k, k + h * head_dim + a->nope, tail, dt);
    }
}

static status mla_rope_fwd(const struct mla_rope_fwd_args *a, dev_stream stream)
{
    (void)stream;
    const struct shape shape = SHAPE(a);
    check_shape(&shape);
    CHECK(!a->q || a->q_stride >= a->heads * (a->nope + 2 * a->half), "q_stride %lld",
          (long long)a->q_stride);
    const int64_t grain = rows_each(&shape);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        const struct span rows = chunk_span(c, a->rows, grain);
        const struct angles g = angles_layout(&shape);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            angles_of_row(&shape, &g, t, 1);
            if (a->dt == DTYPE_F32)
                fwd_row(a, &g, t, DTYPE_F32);
            else
                fwd_row(a, &g, t, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

VEC_INLINE void bwd_row(const struct mla_rope_bwd_args *a, const struct angles *g, int64_t t, dtype dt)
{
    const int64_t tail = 2 * a->half, head_dim = a->nope + tail, k = t * a->heads * head_dim;
    for (int64_t h = 0; a->dq && h < a->heads; h++) {
        const int64_t at = t * a->dq_stride + h * head_dim + a->nope;
        rotate_columns(g, tail, a->dq, at, a->dq, at, dt);
    }
    if (a->dk == NULL) return;
    for (int64_t h = 0; a->nope && h < a->heads; h++)
        copy(a->dk, k + h * head_dim, a->dk_nope, t * a->dk_nope_stride + h * a->nope, a->nope, dt);
    for (int64_t i = 0; i < tail; i += VEC) {
        const int n = vec_n(tail - i);
        vf sum = {0};
        for (int64_t h = 0; h < a->heads; h++) sum += vec_load(a->dk, k + h * head_dim + a->nope + i, n, dt);
        vec_store(a->dk_rope, t * a->dk_rope_stride + i, n, dt, rotated(sum, g, i));
    }
}

static status mla_rope_bwd(const struct mla_rope_bwd_args *a, dev_stream stream)
{
    (void)stream;
    const struct shape shape = SHAPE(a);
    check_shape(&shape);
    CHECK(!a->dq || a->dq_stride >= a->heads * (a->nope + 2 * a->half), "dq_stride %lld",
          (long long)a->dq_stride);
    const int64_t grain = rows_each(&shape);
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        const struct span rows = chunk_span(c, a->rows, grain);
        const struct angles g = angles_layout(&shape);
        for (int64_t t = rows.begin; t < rows.end; t++) {
            angles_of_row(&shape, &g, t, -1);
            if (a->dt == DTYPE_F32)
                bwd_row(a, &g, t, DTYPE_F32);
            else
                bwd_row(a, &g, t, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

/* ---- a matrix for each head: few rows, so each reads W in place */

enum { HEAD_COLUMNS = 4 * VEC };

/* Columns [cols.begin, cols.end) of c's head h in row r, at most HEAD_COLUMNS of them: the rows of W_h, weighted. */
VEC_INLINE void head_columns(const struct per_head_gemm_args *a, int64_t r, int64_t h, struct span cols,
                             dtype dt)
{
    vf sum[VEC_SIDE] = {0};
    const int64_t from = r * a->a_stride + h * a->a_head, to = r * a->c_stride + h * a->c_head + cols.begin,
                  count = cols.end - cols.begin;
    for (int64_t p = 0; p < a->k; p++) {
        const vf x = vec_set((float)dtype_load(a->a, from + p, dt));
        const int64_t w = (h * a->k + p) * a->n + cols.begin;
        for (int k = 0; k < VEC_SIDE; k++) {
            if (k * VEC >= count) break;
            sum[k] += x * vec_load(a->w, w + k * VEC, vec_n(count - k * VEC), dt);
        }
    }
    for (int k = 0; k < VEC_SIDE && k * VEC < count; k++)
        vec_store(a->c, to + k * VEC, vec_n(count - k * VEC), dt, sum[k]);
}

/* The same of W_h^T: dot products along the rows of W_h. */
VEC_INLINE void head_dots(const struct per_head_gemm_args *a, int64_t r, int64_t h, struct span cols,
                          dtype dt)
{
    const int64_t from = r * a->a_stride + h * a->a_head, to = r * a->c_stride + h * a->c_head;
    for (int64_t j = cols.begin; j < cols.end; j++) {
        const int64_t w = (h * a->n + j) * a->k;
        vf sum = {0};
        for (int64_t p = 0; p < a->k; p += VEC) {
            const int n = vec_n(a->k - p);
            sum += vec_load(a->a, from + p, n, dt) * vec_load(a->w, w + p, n, dt);
        }
        dtype_store(a->c, to + j, dt, (double)vec_sum(sum));
    }
}

VEC_INLINE void head_part(const struct per_head_gemm_args *a, int64_t h, struct span cols, dtype dt)
{
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->trans)
            head_dots(a, r, h, cols, dt);
        else
            head_columns(a, r, h, cols, dt);
        if (cols.end == a->n)
            copy(a->a, r * a->a_stride + h * a->a_head + a->k, a->c, r * a->c_stride + h * a->c_head + a->n,
                 a->tail, dt);
    }
}

static status per_head_gemm(const struct per_head_gemm_args *a, dev_stream stream)
{
    (void)stream;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->a_head >= a->k + a->tail && a->c_head >= a->n + a->tail,
          "heads of %lld and %lld, %lld and %lld apart", (long long)(a->k + a->tail),
          (long long)(a->n + a->tail), (long long)a->a_head, (long long)a->c_head);
    const int64_t parts = chunk_count(a->n, HEAD_COLUMNS);
    PARALLEL_CHUNKS(c, a->heads * parts)
    {
        const struct span cols = chunk_span(c % parts, a->n, HEAD_COLUMNS);
        if (a->dt == DTYPE_F32)
            head_part(a, c / parts, cols, DTYPE_F32);
        else
            head_part(a, c / parts, cols, DTYPE_BF16);
    }
    return STATUS_OK;
}

void SIMD(simd_mla)(struct ops *o)
{
    o->mla_rope_fwd = mla_rope_fwd;
    o->mla_rope_bwd = mla_rope_bwd;
    o->per_head_gemm = per_head_gemm;
}
