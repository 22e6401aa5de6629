/* Cross-entropy of rows of logits. A row (200 KB for 50k columns) is read once for its maximum and sum, in blocks: a block's maximum
 * is taken first, and when it raises the row's, the sum so far is scaled down once. The second pass, which writes the gradient,
 * finds the row in the second-level cache. Blocks are summed in f32 lanes, the row in f64. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include <math.h>

enum { BLOCK = 1024 }; /* columns: 4 KB stay in the first-level cache between maximum and sum */

struct softmax {
    float max;
    double sum;
}; /* sum of e^(z - max) */

static float block_max(const float *z, int64_t begin, int64_t end)
{
    vf top0 = vec_set(-INFINITY), top1 = top0;
    int64_t j = begin;
    for (; j + 2 * VEC <= end; j += 2 * VEC) {
        top0 = vec_max(top0, vec_load(z, j, VEC, DTYPE_F32));
        top1 = vec_max(top1, vec_load(z, j + VEC, VEC, DTYPE_F32));
    }
    float top = vec_top(vec_max(top0, top1));
    for (; j < end; j++) top = z[j] > top ? z[j] : top; /* a NaN is found by the sum */
    return top;
}

/* e^x for x <= 0: logits less their maximum. NaN for NaN. */
VEC_INLINE vf vec_exp_below(vf x)
{
    return vec_exp_within(vec_max(vec_set(-105.f), x));
}

static float block_sum(const float *z, int64_t begin, int64_t end, float max)
{
    vf sum[VEC_SIDE] = {0};
    int64_t j = begin;
    for (; j + VEC_SIDE * VEC <= end; j += VEC_SIDE * VEC) {
        vf x[VEC_SIDE];
        VEC_EACH(k) x[k] = vec_load(z, j + k * VEC, VEC, DTYPE_F32) - max;
        VEC_EACH(k) x[k] = vec_exp_below(x[k]);
        VEC_EACH(k) sum[k] += x[k];
    }
    for (; j < end; j += VEC) {
        int n = vec_n(end - j);
        sum[0] += vec_keep(vec_exp_below(vec_load(z, j, n, DTYPE_F32) - max), n);
    }
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static struct softmax row_softmax(const float *z, int64_t count)
{
    struct softmax s = {-INFINITY, 0};
    for (int64_t j = 0; j < count; j += BLOCK) {
        int64_t end = j + BLOCK < count ? j + BLOCK : count;
        float top = block_max(z, j, end);
        if (top > s.max) {
            s.sum *= exp((double)s.max - (double)top);
            s.max = top;
        }
        if (s.max > -INFINITY) s.sum += (double)block_sum(z, j, end, s.max);
    }
    return s;
}

/* dz = scale e^(z - max), then the target's column and the padding. */
VEC_INLINE void row_grad(const struct xent_args *a, int64_t t, float max, double scale, dtype dt)
{
    const float *z = (const float *)a->logits + t * a->vocab;
    void *dz = (char *)a->dlogits + t * a->vocab * (dt == DTYPE_F32 ? 4 : 2);
    vf target = {0};
    int64_t column = a->targets[t];
    target[0] = (float)(exp((double)z[column] - (double)max) * scale - *a->grad_scale);
    int64_t j = 0;
    for (; j + VEC_SIDE * VEC <= a->vocab_used; j += VEC_SIDE * VEC) {
        vf x[VEC_SIDE];
        VEC_EACH(k) x[k] = vec_load(z, j + k * VEC, VEC, DTYPE_F32) - max;
        VEC_EACH(k) x[k] = vec_exp_below(x[k]) * (float)scale;
        VEC_EACH(k) vec_store(dz, j + k * VEC, VEC, dt, x[k]);
    }
    for (; j < a->vocab_used; j += VEC) {
        int n = vec_n(a->vocab_used - j);
        vec_store(dz, j, n, dt, vec_exp_below(vec_load(z, j, n, DTYPE_F32) - max) * (float)scale);
    }
    vec_store(dz, column, 1, dt, target);
}

static void row_zero(const struct xent_args *a, int64_t t, int64_t from)
{
    size_t size = a->dt == DTYPE_F32 ? 4 : 2;
    memset((char *)a->dlogits + (size_t)(t * a->vocab + from) * size, 0, (size_t)(a->vocab - from) * size);
}

static void xent_row(const struct xent_args *a, int64_t t)
{
    int64_t target = a->targets[t];
    if (target == TARGET_IGNORE) {
        ((float *)a->loss)[t] = 0;
        if (a->dlogits) row_zero(a, t, 0);
        return;
    }
    CHECK(target >= 0 && target < a->vocab_used, "target %lld of row %lld is outside [0, %lld)",
          (long long)target, (long long)t, (long long)a->vocab_used);
    const float *z = (const float *)a->logits + t * a->vocab;
    struct softmax s = row_softmax(z, a->vocab_used);
    double lse = (double)s.max + log(s.sum);
    ((float *)a->loss)[t] = (float)(lse - (double)z[target] + a->z_loss * lse * lse);
    if (a->dlogits == NULL) return;
    double scale = *a->grad_scale * (1 + 2 * a->z_loss * lse) / s.sum;
    if (a->dt == DTYPE_F32)
        row_grad(a, t, s.max, scale, DTYPE_F32);
    else
        row_grad(a, t, s.max, scale, DTYPE_BF16);
    row_zero(a, t, a->vocab_used);
}

static status xent(const struct xent_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->vocab_used > 0 && a->vocab_used <= a->vocab, "%lld of %lld columns are used",
          (long long)a->vocab_used, (long long)a->vocab);
    CHECK(a->ldt == DTYPE_F32, "logits of %s: this set takes F32", dtype_name(a->ldt));
    CHECK(a->dlogits != a->logits || a->dt == DTYPE_F32, "dlogits in place of logits of another type");
    PARALLEL_CHUNKS(t, a->rows)
    {
        xent_row(a, t);
    }
    return STATUS_OK;
}

static float row_hit(const struct hits_args *a, int64_t t)
{
    const float *z = (const float *)a->logits + t * a->vocab;
    const int64_t target = a->targets[t];
    if (target == TARGET_IGNORE) return 0;
    CHECK(target >= 0 && target < a->vocab_used, "target %lld of row %lld is outside [0, %lld)",
          (long long)target, (long long)t, (long long)a->vocab_used);
    const float top = z[target];
    int reach = 0;
    for (int64_t j = 0; j < a->vocab_used; j++) reach += z[j] >= top;
    return reach == 1 ? 1.f : 0.f;
}

static status hits(const struct hits_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->ldt == DTYPE_F32 && a->vocab_used <= a->vocab && a->vocab <= INT32_MAX,
          "logits of %s: this set takes F32", dtype_name(a->ldt));
    PARALLEL_CHUNKS(t, a->rows)
    {
        ((float *)a->hits)[t] = row_hit(a, t);
    }
    return STATUS_OK;
}

void SIMD(simd_loss)(struct ops *o)
{
    o->xent = xent;
    o->hits = hits;
}
