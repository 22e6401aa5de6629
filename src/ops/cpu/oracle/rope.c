#include "base/parallel.h"
#include "base/int_math.h"
#include "ops/cpu/oracle/oracle.h"
#include <math.h>

struct head {
    double x[ORACLE_HD_MAX];
};

/* Checks of both directions: shapes, and every position before it indexes a table. */
static void check_shapes(int64_t heads, int64_t heads_kv, int64_t head_dim, int64_t half, int64_t stride_min)
{
    CHECK(heads > 0 && heads_kv > 0, "heads %lld heads_kv %lld", (long long)heads, (long long)heads_kv);
    CHECK(head_dim > 0 && head_dim <= ORACLE_HD_MAX, "head_dim %lld, the oracle takes up to %d",
          (long long)head_dim, ORACLE_HD_MAX);
    CHECK(half >= 0 && 2 * half <= head_dim, "rotates 2 x %lld of %lld dims", (long long)half,
          (long long)head_dim);
    CHECK(stride_min >= (heads + heads_kv) * head_dim, "row stride %lld is below its heads",
          (long long)stride_min);
}

static void check_positions(const int32_t *positions, int64_t rows, int64_t half, int64_t pos_count)
{
    for (int64_t t = 0; half > 0 && t < rows; t++)
        CHECK(positions[t] >= 0 && positions[t] < pos_count, "position %d of row %lld is outside [0, %lld)",
              positions[t], (long long)t, (long long)pos_count);
}

static void rotate(struct head *h, const void *cosines, const void *sines, int64_t position, int64_t half,
                   dtype acc, double sign)
{
    for (int64_t i = 0; i < half; i++) {
        double c = get(cosines, position * half + i, acc), s = sign * get(sines, position * half + i, acc);
        double a = h->x[i], b = h->x[i + half];
        h->x[i] = a * c - b * s;
        h->x[i + half] = b * c + a * s;
    }
}

static status rope_fwd(const struct rope_fwd_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    check_shapes(a->heads, a->heads_kv, a->head_dim, a->half, int64_min(a->in_stride, a->out_stride));
    check_positions(a->positions, a->rows, a->half, a->pos_count);
    CHECK(!a->qw == !a->kw, "QK-norm takes both weights or none");
    CHECK(a->in != a->out || (!a->qw && a->in_stride == a->out_stride),
          "in place only without QK-norm and with one stride");
    dtype acc = dtype_acc(a->dt);
    int64_t both = a->heads + a->heads_kv;
    PARALLEL_CHUNKS(t, a->rows)
    {
        for (int64_t h = 0; h < both; h++) {
            struct head x;
            double squares = 0;
            for (int64_t i = 0; i < a->head_dim; i++) {
                x.x[i] = get(a->in, t * a->in_stride + h * a->head_dim + i, a->dt);
                squares += x.x[i] * x.x[i];
            }
            if (a->qw) {
                double rstd = 1 / sqrt(squares / (double)a->head_dim + a->eps);
                const void *w = h < a->heads ? a->qw : a->kw;
                for (int64_t i = 0; i < a->head_dim; i++) x.x[i] *= rstd * (get(w, i, a->dt) + a->shift);
                if (a->rstd) put(a->rstd, t * both + h, acc, rstd);
            }
            if (a->half) rotate(&x, a->cos, a->sin, a->positions[t], a->half, acc, 1);
            for (int64_t i = 0; i < a->head_dim; i++)
                put(a->out, t * a->out_stride + h * a->head_dim + i, a->dt, x.x[i]);
        }
    }
    return STATUS_OK;
}

/* The gradient before the rotation: rotated by the negative angle. */
static void unrotated(const struct rope_bwd_args *a, int64_t t, int64_t h, struct head *g)
{
    for (int64_t i = 0; i < a->head_dim; i++)
        g->x[i] = get(a->dout, t * a->dout_stride + h * a->head_dim + i, a->dt);
    if (a->half) rotate(g, a->cos, a->sin, a->positions[t], a->half, dtype_acc(a->dt), -1);
}

/* dw += sum of g xh over rows and the heads [h_begin, h_end). Small and rare (QK-norm only): one thread. */
static void weight_bwd(const struct rope_bwd_args *a, void *dw, int64_t h_begin, int64_t h_end)
{
    dtype acc = dtype_acc(a->dt);
    struct head sum = {0}, g;
    for (int64_t t = 0; t < a->rows; t++)
        for (int64_t h = h_begin; h < h_end; h++) {
            unrotated(a, t, h, &g);
            double rstd = get(a->rstd, t * (a->heads + a->heads_kv) + h, acc);
            for (int64_t i = 0; i < a->head_dim; i++)
                sum.x[i] += g.x[i] * rstd * get(a->in, t * a->in_stride + h * a->head_dim + i, a->dt);
        }
    for (int64_t i = 0; i < a->head_dim; i++) put(dw, i, acc, get(dw, i, acc) + sum.x[i]);
}

/* RMSNorm's backward over one head, in place. */
static void norm_bwd(const struct rope_bwd_args *a, int64_t t, int64_t h, struct head *g)
{
    double rstd = get(a->rstd, t * (a->heads + a->heads_kv) + h, dtype_acc(a->dt)), mean = 0;
    const void *w = h < a->heads ? a->qw : a->kw;
    struct head xh;
    for (int64_t i = 0; i < a->head_dim; i++) {
        xh.x[i] = get(a->in, t * a->in_stride + h * a->head_dim + i, a->dt) * rstd;
        g->x[i] *= get(w, i, a->dt) + a->shift;
        mean += g->x[i] * xh.x[i] / (double)a->head_dim;
    }
    for (int64_t i = 0; i < a->head_dim; i++) g->x[i] = rstd * (g->x[i] - xh.x[i] * mean);
}

static status rope_bwd(const struct rope_bwd_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    check_shapes(a->heads, a->heads_kv, a->head_dim, a->half, int64_min(a->dout_stride, a->din_stride));
    check_positions(a->positions, a->rows, a->half, a->pos_count);
    CHECK(!a->qw == !a->kw, "QK-norm takes both weights or none");
    CHECK(a->din != a->dout || a->din_stride == a->dout_stride, "in place with two strides");
    if (a->qw) {
        CHECK(a->in && a->rstd && a->dqw && a->dkw, "QK-norm needs in, rstd, dqw and dkw");
        CHECK(a->in_stride >= (a->heads + a->heads_kv) * a->head_dim, "in_stride %lld",
              (long long)a->in_stride);
        weight_bwd(a, a->dqw, 0, a->heads); /* before din, which may alias dout */
        weight_bwd(a, a->dkw, a->heads, a->heads + a->heads_kv);
    }
    PARALLEL_CHUNKS(t, a->rows)
    {
        for (int64_t h = 0; h < a->heads + a->heads_kv; h++) {
            struct head g;
            unrotated(a, t, h, &g);
            if (a->qw) norm_bwd(a, t, h, &g);
            for (int64_t i = 0; i < a->head_dim; i++)
                put(a->din, t * a->din_stride + h * a->head_dim + i, a->dt, g.x[i]);
        }
    }
    return STATUS_OK;
}

void oracle_rope(struct ops *o)
{
    o->rope_fwd = rope_fwd;
    o->rope_bwd = rope_bwd;
}
