/* RMSNorm and LayerNorm with the residual add. A row is read from memory once; later passes find it in the L1 cache.
 * RMSNorm is computed as LayerNorm with mean 0 and no bias. `kind` and `dt` are constants in every copy of the row
 * functions. */
#include "base/parallel.h"
#include "ops/cpu/partial.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include <math.h>

enum kind { RMS, LAYER };
enum { CHUNK_ELEMENTS = 16384 };

struct fwd {
    const void *x, *branch, *w, *b;
    void *sum, *y;
    float *mean, *rstd;
    int64_t rows, d, x_stride, y_stride; /* x_stride: d if there is a sum */
    double eps;
    float shift;
    dtype dt;
};

/* s = x + branch, stored and rounded; returns its sum (LAYER) or sum of squares (RMS). */
VEC_INLINE float residual(const struct fwd *a, int64_t r, dtype dt, enum kind kind)
{
    const int64_t at = r * a->d, from = r * a->x_stride;
    vf acc = {0};
    for (int64_t j = 0; j < a->d; j += VEC) {
        int n = vec_n(a->d - j);
        vf s = vec_load(a->x, from + j, n, dt);
        if (a->branch) s += vec_load(a->branch, at + j, n, dt);
        if (a->sum) s = vec_store(a->sum, at + j, n, dt, s);
        acc += kind == RMS ? s * s : s;
    }
    return vec_sum(acc);
}

VEC_INLINE void fwd_row(const struct fwd *a, int64_t r, dtype dt, enum kind kind)
{
    const int64_t d = a->d, at = r * a->y_stride, from = r * a->x_stride;
    float squares = residual(a, r, dt, kind), mean = 0;
    const void *s = a->sum ? a->sum : a->x;
    if (kind == LAYER) {
        mean = squares / (float)d;
        vf acc = {0};
        for (int64_t j = 0; j < d; j += VEC) {
            int n = vec_n(d - j);
            vf from_mean = vec_keep(vec_load(s, from + j, n, dt) - mean, n);
            acc += from_mean * from_mean;
        }
        squares = vec_sum(acc);
    }
    float rstd = (float)(1 / sqrt((double)squares / (double)d + a->eps));
    for (int64_t j = 0; j < d; j += VEC) {
        int n = vec_n(d - j);
        vf v = vec_load(s, from + j, n, dt), w = vec_load(a->w, j, n, dt);
        if (kind == RMS)
            v = v * rstd * (w + a->shift);
        else
            v = (v - mean) * rstd * w + vec_load(a->b, j, n, dt);
        vec_store(a->y, at + j, n, dt, v);
    }
    if (a->rstd) a->rstd[r] = rstd;
    if (kind == LAYER && a->mean) a->mean[r] = mean;
}

static void fwd_rows(const struct fwd *a, struct span rows, enum kind kind)
{
    for (int64_t r = rows.begin; r < rows.end; r++) {
        if (kind == RMS && a->dt == DTYPE_F32)
            fwd_row(a, r, DTYPE_F32, RMS);
        else if (kind == RMS)
            fwd_row(a, r, DTYPE_BF16, RMS);
        else if (a->dt == DTYPE_F32)
            fwd_row(a, r, DTYPE_F32, LAYER);
        else
            fwd_row(a, r, DTYPE_BF16, LAYER);
    }
}

static status fwd(const struct fwd *a, enum kind kind)
{
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    CHECK(a->sum || !a->branch, "a branch needs a place for its sum");
    CHECK(a->y != a->x && a->y != a->sum && a->y != a->branch, "y aliases an input");
    int64_t grain = a->d < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / a->d : 1;
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        fwd_rows(a, chunk_span(c, a->rows, grain), kind);
    }
    return STATUS_OK;
}

static status rmsnorm_fwd(const struct rmsnorm_fwd_args *a, dev_stream s)
{
    (void)s;
    struct fwd f = {.x = a->x, .branch = a->branch, .w = a->w, .sum = a->sum, .y = a->y, .rstd = a->rstd};
    CHECK(!a->x_stride || (a->x_stride >= a->d && !a->sum), "x_stride %lld", (long long)a->x_stride);
    CHECK(!a->y_stride || a->y_stride >= a->d, "y_stride %lld", (long long)a->y_stride);
    f.x_stride = a->x_stride ? a->x_stride : a->d;
    f.y_stride = a->y_stride ? a->y_stride : a->d;
    f.rows = a->rows, f.d = a->d, f.eps = a->eps, f.shift = (float)a->shift, f.dt = a->dt;
    CHECK(!quantized_asked(&a->q) || f.y_stride == a->d, "codes of y with y_stride %lld",
          (long long)f.y_stride);
    TRY(fwd(&f, RMS));
    return simd_quantized(&a->q, a->y, a->rows, a->d, a->dt);
}

static status layernorm_fwd(const struct layernorm_fwd_args *a, dev_stream s)
{
    (void)s;
    struct fwd f = {.x = a->x, .branch = a->branch, .w = a->w, .b = a->b, .sum = a->sum, .y = a->y};
    f.mean = a->mean, f.rstd = a->rstd, f.rows = a->rows, f.d = f.x_stride = f.y_stride = a->d,
    f.eps = a->eps, f.dt = a->dt;
    return fwd(&f, LAYER);
}

struct bwd {
    const void *dy, *s, *w, *dres;
    const float *mean, *rstd;
    void *dx;
    int64_t d, dy_stride, s_stride, dx_stride;
    float shift;
    dtype dt;
};

/* The weight times dy, rounded: not contracted into an FMA, so every use has the same bits. */
VEC_INLINE vf weighted(const struct bwd *a, vf dy, int64_t j, int n, dtype dt, enum kind kind)
{
    vf w = vec_load(a->w, j, n, dt);
    return vec_rounded(dy * (kind == RMS ? w + a->shift : w));
}

/* One row of dx; dw and db are this chunk's sums, padded to whole vectors. */
VEC_INLINE void bwd_row(const struct bwd *a, int64_t r, float *dw, float *db, dtype dt, enum kind kind)
{
    const int64_t d = a->d, at_dy = r * a->dy_stride, at_s = r * a->s_stride, at_dx = r * a->dx_stride;
    const float rstd = a->rstd[r], mean = kind == LAYER ? a->mean[r] : 0;
    vf g_acc = {0}, gx_acc = {0};
    for (int64_t j = 0; j < d; j += VEC) {
        int n = vec_n(d - j);
        vf dy = vec_load(a->dy, at_dy + j, n, dt), xh = (vec_load(a->s, at_s + j, n, dt) - mean) * rstd;
        vf g = weighted(a, dy, j, n, dt, kind);
        gx_acc += g * xh;
        vec_store(dw, j, VEC, DTYPE_F32, vec_load(dw, j, VEC, DTYPE_F32) + dy * xh);
        if (kind == RMS) continue;
        g_acc += g;
        vec_store(db, j, VEC, DTYPE_F32, vec_load(db, j, VEC, DTYPE_F32) + dy);
    }
    const float gx_mean = vec_sum(gx_acc) / (float)d, g_mean = kind == LAYER ? vec_sum(g_acc) / (float)d : 0;
    for (int64_t j = 0; j < d; j += VEC) {
        int n = vec_n(d - j);
        vf g = weighted(a, vec_load(a->dy, at_dy + j, n, dt), j, n, dt, kind); /* as in g_mean */
        vf xh = (vec_load(a->s, at_s + j, n, dt) - mean) * rstd;
        vf dx = (g - g_mean - xh * gx_mean) * rstd;
        if (a->dres) dx += vec_load(a->dres, r * d + j, n, dt);
        vec_store(a->dx, at_dx + j, n, dt, dx);
    }
}

static void bwd_rows(const struct bwd *a, struct span rows, float *dw, float *db)
{
    for (int64_t r = rows.begin; r < rows.end; r++) {
        if (!db && a->dt == DTYPE_F32)
            bwd_row(a, r, dw, db, DTYPE_F32, RMS);
        else if (!db)
            bwd_row(a, r, dw, db, DTYPE_BF16, RMS);
        else if (a->dt == DTYPE_F32)
            bwd_row(a, r, dw, db, DTYPE_F32, LAYER);
        else
            bwd_row(a, r, dw, db, DTYPE_BF16, LAYER);
    }
}

/* db NULL: RMSNorm. */
static status bwd(const struct bwd *a, int64_t rows, float *dw, float *db)
{
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    struct partial_buffer buffer;
    const int64_t wide = partial_pad(a->d);
    const struct partial part = partial_init(&buffer, rows, db ? 2 * wide : wide);
    PARALLEL_CHUNKS(c, part.chunks)
    {
        float *line = partial_line(&part, c);
        bwd_rows(a, chunk_span(c, rows, part.grain), line, db ? line + wide : NULL);
    }
    partial_merge(&part, 0, dw, a->d);
    if (db) partial_merge(&part, wide, db, a->d);
    return STATUS_OK;
}

static status rmsnorm_bwd(const struct rmsnorm_bwd_args *a, dev_stream s)
{
    (void)s;
    struct bwd b = {.dy = a->dy, .s = a->s, .w = a->w, .dres = a->dres, .rstd = a->rstd, .dx = a->dx};
    b.dy_stride = a->dy_stride ? a->dy_stride : a->d;
    b.s_stride = a->s_stride ? a->s_stride : a->d;
    b.dx_stride = a->dx_stride ? a->dx_stride : a->d;
    b.d = a->d, b.shift = (float)a->shift, b.dt = a->dt;
    CHECK(!quantized_asked(&a->q) || b.dx_stride == a->d, "codes of dx with dx_stride %lld",
          (long long)b.dx_stride);
    TRY(bwd(&b, a->rows, a->dw, NULL));
    return simd_quantized(&a->q, a->dx, a->rows, a->d, a->dt);
}

static status layernorm_bwd(const struct layernorm_bwd_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->mean && a->db, "layernorm_bwd needs mean and db");
    struct bwd b = {.dy = a->dy, .s = a->s, .w = a->w, .dres = a->dres, .mean = a->mean, .rstd = a->rstd};
    b.dx = a->dx, b.d = b.dy_stride = b.s_stride = b.dx_stride = a->d, b.dt = a->dt;
    return bwd(&b, a->rows, a->dw, a->db);
}

void SIMD(simd_norm)(struct ops *o)
{
    o->rmsnorm_fwd = rmsnorm_fwd;
    o->rmsnorm_bwd = rmsnorm_bwd;
    o->layernorm_fwd = layernorm_fwd;
    o->layernorm_bwd = layernorm_bwd;
}
