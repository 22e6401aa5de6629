#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static status ssm_in_fwd(const struct ssm_in_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(t, a->rows)
    {
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t at = t * a->heads + h;
            const double step = softplus(get(a->raw, t * a->raw_stride + h, a->dt) + get(a->dt_bias, h, acc));
            put(a->step, at, acc, step);
            put(a->g, at, acc, -exp(get(a->a_log, h, acc)) * step);
            for (int64_t j = 0; j < a->d; j++)
                put(a->v, at * a->d + j, a->dt, step * get(a->x, t * a->x_stride + h * a->d + j, a->dt));
        }
    }
    return STATUS_OK;
}

static status ssm_in_bwd(const struct ssm_in_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(h, a->heads)
    {
        const double rate = exp(get(a->a_log, h, acc)), skip = a->ds ? get(a->skip, h, acc) : 0;
        double da_log = 0, ddt_bias = 0, dskip = 0;
        for (int64_t t = 0; t < a->rows; t++) {
            const int64_t at = t * a->heads + h;
            const double dg = get(a->dg, at, acc), step = get(a->step, at, acc);
            double dstep = -rate * dg;
            for (int64_t j = 0; j < a->d; j++) {
                const double x = get(a->x, t * a->x_stride + h * a->d + j, a->dt),
                             dv = get(a->dv, at * a->d + j, a->dt),
                             ds = a->ds ? get(a->ds, at * a->d + j, a->dt) : 0;
                dstep += dv * x;
                dskip += ds * x;
                put(a->dx, t * a->dx_stride + h * a->d + j, a->dt, step * dv + skip * ds);
            }
            const double draw =
                dstep * sigmoid(get(a->raw, t * a->raw_stride + h, a->dt) + get(a->dt_bias, h, acc));
            da_log -= dg * rate * step;
            ddt_bias += draw;
            put(a->draw, t * a->draw_stride + h, a->dt, draw);
        }
        put(a->da_log, h, acc, get(a->da_log, h, acc) + da_log);
        put(a->ddt_bias, h, acc, get(a->ddt_bias, h, acc) + ddt_bias);
        if (a->ds) put(a->dskip, h, acc, get(a->dskip, h, acc) + dskip);
    }
    return STATUS_OK;
}

static status ssm_out_fwd(const struct ssm_out_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t width = a->heads * a->d;
    PARALLEL_CHUNKS(t, a->rows)
    {
        for (int64_t c = 0; c < width; c++) {
            const double z = get(a->z, t * a->z_stride + c, a->dt);
            const double sum = get(a->o, t * width + c, a->dt) + get(a->skip, c / a->d, dtype_acc(a->dt)) *
                                                                     get(a->x, t * a->x_stride + c, a->dt);
            put(a->y, t * width + c, a->dt, sum * z * sigmoid(z));
        }
    }
    return STATUS_OK;
}

static status ssm_out_bwd(const struct ssm_out_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const int64_t width = a->heads * a->d;
    PARALLEL_CHUNKS(t, a->rows)
    {
        for (int64_t c = 0; c < width; c++) {
            const double z = get(a->z, t * a->z_stride + c, a->dt), dy = get(a->dy, t * width + c, a->dt);
            const double sum = get(a->o, t * width + c, a->dt) + get(a->skip, c / a->d, dtype_acc(a->dt)) *
                                                                     get(a->x, t * a->x_stride + c, a->dt);
            put(a->dz, t * a->dz_stride + c, a->dt, dy * sum * sigmoid(z) * (1 + z * (1 - sigmoid(z))));
            put(a->ds, t * width + c, a->dt, dy * z * sigmoid(z));
        }
    }
    return STATUS_OK;
}

void oracle_ssm(struct ops *o)
{
    o->ssm_in_fwd = ssm_in_fwd;
    o->ssm_in_bwd = ssm_in_bwd;
    o->ssm_out_fwd = ssm_out_fwd;
    o->ssm_out_bwd = ssm_out_bwd;
}
