#include "nn/rope.h"
#include "base/parallel.h"
#include "dev/dev.h"

#include <math.h>
#include <stdlib.h>

static const double PI = 3.14159265358979323846;

static void scale_llama3(const struct model_spec *m, double *inv, int64_t half)
{
    double original = (double)m->rope_original, low = m->rope_low_freq, high = m->rope_high_freq;
    for (int64_t i = 0; i < half; i++) {
        double wavelength = 2 * PI / inv[i];
        if (wavelength < original / high) continue;
        if (wavelength > original / low) {
            inv[i] /= m->rope_factor;
            continue;
        }
        double mix = (original / wavelength - low) / (high - low);
        inv[i] = (1 - mix) * inv[i] / m->rope_factor + mix * inv[i];
    }
}

/* The dimension at which `turns` full rotations fit in the original context. */
static double yarn_dim(const struct model_spec *m, double dims, double rotations)
{
    return dims * log((double)m->rope_original / (2 * PI * rotations)) / (2 * log(m->rope_theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double rope_softmax_factor(const struct model_spec *m)
{
    if (m->rope_scaling == SCALING_NONE || m->rope_mscale_all_dim == 0) return 1;
    const double mscale = yarn_mscale(m->rope_factor, m->rope_mscale_all_dim);
    return mscale * mscale;
}

static double scale_yarn(const struct model_spec *m, double *inv, int64_t half)
{
    double dims = 2.0 * (double)half;
    double low = fmax(floor(yarn_dim(m, dims, m->rope_beta_fast)), 0);
    double high = fmin(ceil(yarn_dim(m, dims, m->rope_beta_slow)), dims - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < half; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        inv[i] = ramp * inv[i] / m->rope_factor + (1 - ramp) * inv[i];
    }
    if (m->rope_attention_factor != 0) return m->rope_attention_factor;
    if (m->rope_mscale != 0 && m->rope_mscale_all_dim != 0)
        return yarn_mscale(m->rope_factor, m->rope_mscale) /
               yarn_mscale(m->rope_factor, m->rope_mscale_all_dim);
    return yarn_mscale(m->rope_factor, 1);
}

double rope_frequencies(const struct model_spec *m, double *inv, int64_t half)
{
    for (int64_t i = 0; i < half; i++) inv[i] = pow(m->rope_theta, -2.0 * (double)i / (2.0 * (double)half));
    switch ((enum scaling)m->rope_scaling) {
    case SCALING_NONE: break;
    case SCALING_LINEAR:
        for (int64_t i = 0; i < half; i++) inv[i] /= m->rope_factor;
        break;
    case SCALING_LLAMA3: scale_llama3(m, inv, half); break;
    case SCALING_YARN: return scale_yarn(m, inv, half);
    }
    return 1;
}

/* cos and sin [positions, half] in host memory. */
static void fill(const struct rope_table *t, const struct model_spec *m, double *inv, void *cosines,
                 void *sines)
{
    const double factor = rope_frequencies(m, inv, t->half);
    const dtype acc = t->cos.dt;
    PARALLEL_CHUNKS(p, t->cos.shape[0])
    {
        for (int64_t i = 0; i < t->half; i++) {
            double angle = (double)p * inv[i];
            dtype_store(cosines, p * t->half + i, acc, factor * cos(angle));
            dtype_store(sines, p * t->half + i, acc, factor * sin(angle));
        }
    }
}

static status fill_and_upload(const struct rope_table *t, const struct model_spec *m, double *inv,
                              struct stream *s)
{
    size_t bytes = (size_t)tensor_count(t->cos) * dtype_bytes(t->cos.dt);
    char *both = malloc(2 * bytes);
    if (both == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu bytes of rotary tables", 2 * bytes);
    fill(t, m, inv, both, both + bytes);
    status st = dev_upload(s, t->cos.data, both, bytes);
    if (st == STATUS_OK) st = dev_upload(s, t->sin.data, both + bytes, bytes);
    if (st == STATUS_OK) st = dev_sync(s);
    free(both);
    return st;
}

static status table_layout(struct rope_table *t, int64_t dims, const struct model_spec *m,
                           const struct rope_layout_args *a)
{
    *t = (struct rope_table){.half = dims / 2};
    if (t->half == 0) return STATUS_OK;
    dtype acc = dtype_acc(a->dt);
    t->cos = tensor_take(a->perm, "rope cos", acc, 2, a->positions, t->half);
    t->sin = tensor_take(a->perm, "rope sin", acc, 2, a->positions, t->half);
    if (t->cos.data == NULL) return STATUS_OK;
    double *inv = malloc((size_t)t->half * sizeof *inv);
    if (inv == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld rotary frequencies", (long long)t->half);
    status st = STATUS_OK;
    if (a->stream)
        st = fill_and_upload(t, m, inv, a->stream);
    else
        fill(t, m, inv, t->cos.data, t->sin.data);
    free(inv);
    return st;
}

status rope_layout(struct rope *r, const struct model_spec *m, const struct rope_layout_args *a)
{
    *r = (struct rope){.positions = a->positions};
    TRY(table_layout(&r->heads, a->dims.heads, m, a));
    return table_layout(&r->tails, a->dims.tails, m, a);
}
