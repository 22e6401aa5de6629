#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"
#include <math.h>

enum { GRAIN = 4096 }; /* elements per chunk of the flat ops */

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

static status swiglu_fwd(const struct swiglu_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(r, a->rows)
    {
        for (int64_t j = 0; j < a->f; j++) {
            double gate = get(a->gu, 2 * r * a->f + j, a->dt), up = get(a->gu, (2 * r + 1) * a->f + j, a->dt);
            put(a->m, r * a->f + j, a->dt, gate * sigmoid(gate) * up);
        }
    }
    oracle_quantized(&a->q, a->m, a->rows, a->f, a->dt);
    return STATUS_OK;
}

static status swiglu_bwd(const struct swiglu_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(r, a->rows)
    {
        for (int64_t j = 0; j < a->f; j++) {
            int64_t at_gate = 2 * r * a->f + j, at_up = at_gate + a->f;
            double gate = get(a->gu, at_gate, a->dt), up = get(a->gu, at_up, a->dt), sg = sigmoid(gate);
            double dm = get(a->dm, r * a->f + j, a->dt);
            put(a->dgu, at_gate, a->dt, dm * up * sg * (1 + gate * (1 - sg)));
            put(a->dgu, at_up, a->dt, dm * gate * sg);
            if (a->m) put(a->m, r * a->f + j, a->dt, gate * sg * up);
        }
    }
    CHECK(a->m || !quantized_asked(&a->mq), "codes of an m that is not stored");
    oracle_quantized(&a->q, a->dgu, a->rows, 2 * a->f, a->dt);
    oracle_quantized(&a->mq, a->m, a->rows, a->f, a->dt);
    return STATUS_OK;
}

static const double GELU_SCALE = 0.79788456080286535588; /* sqrt(2/pi) */
static const double GELU_CUBIC = 0.044715;

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
}

static status gelu_fwd(const struct gelu_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->y != a->x || a->count == 0, "gelu_fwd in place: backward reads x");
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        struct span span = chunk_span(c, a->count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            double x = get(a->x, i, a->dt);
            put(a->y, i, a->dt, gelu(x));
        }
    }
    return STATUS_OK;
}

static status gelu_bwd(const struct gelu_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        struct span span = chunk_span(c, a->count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            double x = get(a->x, i, a->dt), th = tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x));
            double slope =
                0.5 * (1 + th) + 0.5 * x * (1 - th * th) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
            double dy = get(a->dy, i, a->dt);
            if (a->y) put(a->y, i, a->dt, gelu(x));
            put(a->dx, i, a->dt, dy * slope);
        }
    }
    return STATUS_OK;
}

static status gate_fwd(const struct gate_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->z_stride >= a->d, "rows of %lld gates %lld apart", (long long)a->d, (long long)a->z_stride);
    PARALLEL_CHUNKS(r, a->rows)
    {
        for (int64_t j = 0; j < a->d; j++)
            put(a->y, r * a->d + j, a->dt,
                get(a->x, r * a->d + j, a->dt) * sigmoid(get(a->z, r * a->z_stride + j, a->dt)));
    }
    return STATUS_OK;
}

static status gate_bwd(const struct gate_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->z_stride >= a->d && a->dz_stride >= a->d, "rows of %lld gates %lld and %lld apart",
          (long long)a->d, (long long)a->z_stride, (long long)a->dz_stride);
    PARALLEL_CHUNKS(r, a->rows)
    {
        for (int64_t j = 0; j < a->d; j++) {
            double dy = get(a->dy, r * a->d + j, a->dt), x = get(a->x, r * a->d + j, a->dt);
            double sg = sigmoid(get(a->z, r * a->z_stride + j, a->dt));
            put(a->dx, r * a->d + j, a->dt, dy * sg);
            put(a->dz, r * a->dz_stride + j, a->dt, dy * x * sg * (1 - sg));
            if (a->y) put(a->y, r * a->d + j, a->dt, x * sg);
        }
    }
    return STATUS_OK;
}

static status accumulate_tree(const struct accumulate_tree_args *a, dev_stream s)
{
    (void)s;
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        struct span span = chunk_span(c, a->count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            const double x = get(a->x, i, a->dt);
            if (a->what == TREE_KEEP) put(a->kept, i, a->dt, x);
            put(a->x, i, a->dt, a->what == TREE_KEEP ? 0 : x + get(a->kept, i, a->dt));
        }
    }
    return STATUS_OK;
}

void oracle_act(struct ops *o)
{
    o->swiglu_fwd = swiglu_fwd;
    o->swiglu_bwd = swiglu_bwd;
    o->gelu_fwd = gelu_fwd;
    o->gelu_bwd = gelu_bwd;
    o->gate_fwd = gate_fwd;
    o->gate_bwd = gate_bwd;
    o->accumulate_tree = accumulate_tree;
}
