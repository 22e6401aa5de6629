#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"
#include <math.h>

/* sum[r] = x[r] + branch[r], rounded to dt; returns the row that the norm reads: the stored sum, or x itself. */
static const void *residual(const void *x, const void *branch, void *sum, int64_t r, int64_t d, dtype dt)
{
    if (sum == NULL) return x;
    for (int64_t j = r * d; j < (r + 1) * d; j++)
        put(sum, j, dt, branch ? get(x, j, dt) + get(branch, j, dt) : get(x, j, dt));
    return sum;
}

static status rmsnorm_fwd(const struct rmsnorm_fwd_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    CHECK(a->sum || !a->branch, "a branch needs a place for its sum");
    CHECK(a->y != a->x && a->y != a->sum && a->y != a->branch, "y aliases an input");
    CHECK(!a->x_stride || (a->x_stride >= a->d && !a->sum), "x_stride %lld", (long long)a->x_stride);
    CHECK(!a->y_stride || a->y_stride >= a->d, "y_stride %lld", (long long)a->y_stride);
    const int64_t stride = a->x_stride ? a->x_stride : a->d, y_stride = a->y_stride ? a->y_stride : a->d;
    PARALLEL_CHUNKS(r, a->rows)
    {
        const void *s = residual(a->x, a->branch, a->sum, r, a->d, a->dt);
        double squares = 0;
        for (int64_t j = 0; j < a->d; j++)
            squares += get(s, r * stride + j, a->dt) * get(s, r * stride + j, a->dt);
        double rstd = 1 / sqrt(squares / (double)a->d + a->eps);
        for (int64_t j = 0; j < a->d; j++)
            put(a->y, r * y_stride + j, a->dt,
                get(s, r * stride + j, a->dt) * rstd * (get(a->w, j, a->dt) + a->shift));
        if (a->rstd) put(a->rstd, r, dtype_acc(a->dt), rstd);
    }
    CHECK(!quantized_asked(&a->q) || y_stride == a->d, "codes of y with y_stride %lld", (long long)y_stride);
    oracle_quantized(&a->q, a->y, a->rows, a->d, a->dt);
    return STATUS_OK;
}

static status layernorm_fwd(const struct layernorm_fwd_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    CHECK(a->sum || !a->branch, "a branch needs a place for its sum");
    CHECK(a->y != a->x && a->y != a->sum && a->y != a->branch, "y aliases an input");
    dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(r, a->rows)
    {
        const void *s = residual(a->x, a->branch, a->sum, r, a->d, a->dt);
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < a->d; j++) sum += get(s, r * a->d + j, a->dt);
        double mean = sum / (double)a->d;
        for (int64_t j = 0; j < a->d; j++) {
            double from_mean = get(s, r * a->d + j, a->dt) - mean;
            squares += from_mean * from_mean;
        }
        double rstd = 1 / sqrt(squares / (double)a->d + a->eps);
        for (int64_t j = 0; j < a->d; j++) {
            double xh = (get(s, r * a->d + j, a->dt) - mean) * rstd;
            put(a->y, r * a->d + j, a->dt, xh * get(a->w, j, a->dt) + get(a->b, j, a->dt));
        }
        if (a->mean) put(a->mean, r, acc, mean);
        if (a->rstd) put(a->rstd, r, acc, rstd);
    }
    return STATUS_OK;
}

/* RMSNorm's backward is LayerNorm's with mean 0, no bias, and no mean(g) term. */
struct norm_bwd {
    const void *dy, *s, *w, *mean, *rstd, *dres;
    void *dx, *dw, *db;
    int64_t rows, d, dy_stride, s_stride, dx_stride;
    double shift;
    dtype dt;
};

static double xhat(const struct norm_bwd *a, int64_t r, int64_t j)
{
    dtype acc = dtype_acc(a->dt);
    double mean = a->mean ? get(a->mean, r, acc) : 0;
    return (get(a->s, r * a->s_stride + j, a->dt) - mean) * get(a->rstd, r, acc);
}

static void norm_bwd(const struct norm_bwd *a)
{
    check_dt(a->dt);
    dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(j, a->d) /* before dx, which may alias dy */
    {
        double dw = 0, db = 0;
        for (int64_t r = 0; r < a->rows; r++) {
            double dy = get(a->dy, r * a->dy_stride + j, a->dt);
            dw += dy * xhat(a, r, j);
            db += dy;
        }
        put(a->dw, j, acc, get(a->dw, j, acc) + dw);
        if (a->db) put(a->db, j, acc, get(a->db, j, acc) + db);
    }
    PARALLEL_CHUNKS(r, a->rows)
    {
        double g_sum = 0, gx_sum = 0;
        for (int64_t j = 0; j < a->d; j++) {
            double g = get(a->dy, r * a->dy_stride + j, a->dt) * (get(a->w, j, a->dt) + a->shift);
            g_sum += g;
            gx_sum += g * xhat(a, r, j);
        }
        double g_mean = a->mean ? g_sum / (double)a->d : 0, gx_mean = gx_sum / (double)a->d;
        for (int64_t j = 0; j < a->d; j++) {
            double g = get(a->dy, r * a->dy_stride + j, a->dt) * (get(a->w, j, a->dt) + a->shift);
            double dx = get(a->rstd, r, acc) * (g - g_mean - xhat(a, r, j) * gx_mean);
            if (a->dres) dx += get(a->dres, r * a->d + j, a->dt);
            put(a->dx, r * a->dx_stride + j, a->dt, dx);
        }
    }
}

static status rmsnorm_bwd(const struct rmsnorm_bwd_args *a, dev_stream stream)
{
    (void)stream;
    norm_bwd(&(struct norm_bwd){.dy = a->dy,
                                .s = a->s,
                                .w = a->w,
                                .rstd = a->rstd,
                                .dres = a->dres,
                                .dx = a->dx,
                                .dw = a->dw,
                                .rows = a->rows,
                                .d = a->d,
                                .dy_stride = a->dy_stride ? a->dy_stride : a->d,
                                .s_stride = a->s_stride ? a->s_stride : a->d,
                                .dx_stride = a->dx_stride ? a->dx_stride : a->d,
                                .shift = a->shift,
                                .dt = a->dt});
    CHECK(!quantized_asked(&a->q) || !a->dx_stride || a->dx_stride == a->d, "codes of dx with dx_stride %lld",
          (long long)a->dx_stride);
    oracle_quantized(&a->q, a->dx, a->rows, a->d, a->dt);
    return STATUS_OK;
}

static status layernorm_bwd(const struct layernorm_bwd_args *a, dev_stream stream)
{
    (void)stream;
    CHECK(a->mean && a->db, "layernorm_bwd needs mean and db");
    norm_bwd(&(struct norm_bwd){.dy = a->dy,
                                .s = a->s,
                                .w = a->w,
                                .mean = a->mean,
                                .rstd = a->rstd,
                                .dres = a->dres,
                                .dx = a->dx,
                                .dw = a->dw,
                                .db = a->db,
                                .rows = a->rows,
                                .d = a->d,
                                .dy_stride = a->d,
                                .s_stride = a->d,
                                .dx_stride = a->d,
                                .dt = a->dt});
    return STATUS_OK;
}

void oracle_norm(struct ops *o)
{
    o->rmsnorm_fwd = rmsnorm_fwd;
    o->rmsnorm_bwd = rmsnorm_bwd;
    o->layernorm_fwd = layernorm_fwd;
    o->layernorm_bwd = layernorm_bwd;
}
