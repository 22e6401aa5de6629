/* Cross-entropy of rows of logits. A row (200 KB for 50k columns) is read once, in blocks, for its maximum and sum.
 * Each block's maximum is computed first; if it raises the row's maximum, the sum so far is rescaled once. The second
 * pass writes the gradient and finds the row in the L2 cache. Blocks are summed in f32 lanes, the row in f64. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include <math.h>

enum { BLOCK = 1024 }; /* columns: 4 KB stay in L1 between maximum and sum */

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
    for (; j < end; j++) top = z[j] > top ? z[j] : top; /* the sum finds a NaN */
    return top;
}

/* e^x for x <= 0: logits minus their maximum. NaN for NaN. */
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

/* cap tanh(z / cap); tanh(u) = sigmoid(2u) - sigmoid(-2u). A small z is off by some 2^-24 of the cap. */
VEC_INLINE vf softcap_vec(vf z, float cap)
{
    const struct vec_sigmoid s = vec_sigmoid(vec_clamp(z * (2 / cap), -SIGMOID_END, SIGMOID_END));
    return cap * (s.yes - s.no);
}

VEC_INLINE void softcap_span(const struct softcap_args *a, struct span span, dtype dt)
{
    const float cap = (float)a->cap;
    for (int64_t i = span.begin; i < span.end; i += VEC) {
        const int n = vec_n(span.end - i);
        vec_store(a->z, i, n, dt, softcap_vec(vec_load(a->z, i, n, dt), cap));
    }
}

static status softcap(const struct softcap_args *a, dev_stream s)
{
    enum { GRAIN = 16384 };
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->cap > 0, "a cap of %g", a->cap);
    PARALLEL_CHUNKS(c, chunk_count(a->count, GRAIN))
    {
        if (a->dt == DTYPE_F32)
            softcap_span(a, chunk_span(c, a->count, GRAIN), DTYPE_F32);
        else
            softcap_span(a, chunk_span(c, a->count, GRAIN), DTYPE_BF16);
    }
    return STATUS_OK;
}

/* A row's gradient: dz = scale e^(z - max), minus `one` in the target's column; times softcap's slope, 1 - steep z^2. */
struct row_grad {
    const float *z;
    void *dz;
    int64_t count, column; /* column -1: the target is on another rank */
    float max;
    double scale, one;
    float steep; /* 1 / cap^2; 0: no cap */
};
VEC_INLINE vf row_slope(vf z, float steep)
{
    return 1 - steep * (z * z);
}
VEC_INLINE void row_grad(const struct row_grad *a, dtype dt, bool capped)
{
    const float *z = a->z, max = a->max, steep = a->steep;
    void *dz = a->dz;
    const double scale = a->scale;
    vf target = {0};
    if (a->column >= 0)
        target[0] = (float)(exp((double)z[a->column] - (double)max) * scale - a->one) *
                    (1 - steep * (z[a->column] * z[a->column]));
    int64_t j = 0;
    for (; j + VEC_SIDE * VEC <= a->count; j += VEC_SIDE * VEC) {
        vf x[VEC_SIDE], y[VEC_SIDE];
        VEC_EACH(k) x[k] = vec_load(z, j + k * VEC, VEC, DTYPE_F32);
        VEC_EACH(k) y[k] = vec_exp_below(x[k] - max) * (float)scale;
        if (capped) VEC_EACH(k) y[k] *= row_slope(x[k], steep);
        VEC_EACH(k) vec_store(dz, j + k * VEC, VEC, dt, y[k]);
    }
    for (; j < a->count; j += VEC) {
        int n = vec_n(a->count - j);
        const vf x = vec_load(z, j, n, DTYPE_F32), y = vec_exp_below(x - max) * (float)scale;
        vec_store(dz, j, n, dt, capped ? y * row_slope(x, steep) : y);
    }
    if (a->column >= 0) vec_store(dz, a->column, 1, dt, target);
}

static void row_grad_as(const struct row_grad *a, dtype dt)
{
    if (a->steep > 0)
        dt == DTYPE_F32 ? row_grad(a, DTYPE_F32, true) : row_grad(a, DTYPE_BF16, true);
    else
        dt == DTYPE_F32 ? row_grad(a, DTYPE_F32, false) : row_grad(a, DTYPE_BF16, false);
}

static float steep_of(double cap)
{
    return cap > 0 ? (float)(1 / (cap * cap)) : 0;
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
        if (a->z_term) ((float *)a->z_term)[t] = 0;
        if (a->dlogits) row_zero(a, t, 0);
        return;
    }
    CHECK(target >= 0 && target < a->vocab_used, "target %lld of row %lld is outside [0, %lld)",
          (long long)target, (long long)t, (long long)a->vocab_used);
    const float *z = (const float *)a->logits + t * a->vocab;
    struct softmax s = row_softmax(z, a->vocab_used);
    double lse = (double)s.max + log(s.sum);
    const double z_term = a->z_loss * lse * lse;
    if (a->z_term) ((float *)a->z_term)[t] = (float)z_term;
    ((float *)a->loss)[t] = (float)(lse - (double)z[target] + (a->z_term ? 0 : z_term));
    if (a->dlogits == NULL) return;
    row_grad_as(&(struct row_grad){.z = z,
                                   .dz = (char *)a->dlogits + t * a->vocab * (a->dt == DTYPE_F32 ? 4 : 2),
                                   .count = a->vocab_used,
                                   .column = target,
                                   .max = s.max,
                                   .scale = *a->grad_scale * (1 + 2 * a->z_loss * lse) / s.sum,
                                   .one = *a->grad_scale,
                                   .steep = steep_of(a->cap)},
                a->dt);
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

static float row_hit(const struct top1_correct_args *a, int64_t t)
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

static status top1_correct(const struct top1_correct_args *a, dev_stream s)
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

/* ---- vocabulary sharded over ranks */

/* This rank's column of a target, or -1. */
static int64_t column_here(int64_t target, int64_t vocab, int slice, int slices)
{
    CHECK(target >= 0 && target < vocab * slices, "target %lld is outside [0, %lld)", (long long)target,
          (long long)(vocab * slices));
    return target / vocab == slice ? target % vocab : -1;
}

static status vocab_xent_partial(const struct vocab_xent_partial_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->ldt == DTYPE_F32, "logits of %s: this set takes F32", dtype_name(a->ldt));
    PARALLEL_CHUNKS(t, a->rows)
    {
        const float *z = (const float *)a->logits + t * a->vocab;
        float *part = (float *)a->part + t * XENT_PARTS;
        if (a->targets[t] == TARGET_IGNORE) {
            memset(part, 0, XENT_PARTS * sizeof *part);
            continue;
        }
        const int64_t target = column_here(a->targets[t], a->vocab, a->slice, a->slices);
        const struct softmax row = row_softmax(z, a->vocab);
        part[XENT_MAX] = part[XENT_OTHERS] = row.max;
        part[XENT_SUM] = (float)row.sum;
        part[XENT_TARGET] = target < 0 ? -INFINITY : z[target];
        if (target >= 0)
            part[XENT_OTHERS] = fmaxf(block_max(z, 0, target), block_max(z, target + 1, a->vocab));
    }
    return STATUS_OK;
}

/* Combines the ranks' parts of row t: maximum, sum, target. */
static struct softmax parts_join(const struct vocab_xent_finish_args *a, int64_t t, float *target,
                                 float *others)
{
    struct softmax row = {-INFINITY, 0};
    *target = *others = -INFINITY;
    for (int k = 0; k < a->slices; k++) {
        const float *part = (const float *)a->parts + (k * a->rows + t) * XENT_PARTS;
        row.max = fmaxf(row.max, part[XENT_MAX]);
        *others = fmaxf(*others, part[XENT_OTHERS]);
        if (a->targets[t] / a->vocab == k) *target = part[XENT_TARGET];
    }
    for (int k = 0; k < a->slices; k++) {
        const float *part = (const float *)a->parts + (k * a->rows + t) * XENT_PARTS;
        row.sum += (double)part[XENT_SUM] * exp((double)part[XENT_MAX] - (double)row.max);
    }
    return row;
}

static void join_row(const struct vocab_xent_finish_args *a, int64_t t)
{
    const size_t bytes = (size_t)a->vocab * (a->dt == DTYPE_F32 ? 4 : 2);
    char *dz = a->dlogits ? (char *)a->dlogits + (size_t)t * bytes : NULL;
    float *loss = (float *)a->loss + t, *hit = a->hits ? (float *)a->hits + t : NULL, target, others;
    if (a->targets[t] == TARGET_IGNORE) {
        *loss = 0;
        if (a->z_term) ((float *)a->z_term)[t] = 0;
        if (hit) *hit = 0;
        if (dz) memset(dz, 0, bytes);
        return;
    }
    const int64_t column = column_here(a->targets[t], a->vocab, a->slice, a->slices);
    const struct softmax row = parts_join(a, t, &target, &others);
    const double lse = (double)row.max + log(row.sum);
    const double z_term = a->z_loss * lse * lse;
    if (a->z_term) ((float *)a->z_term)[t] = (float)z_term;
    *loss = (float)(lse - (double)target + (a->z_term ? 0 : z_term));
    if (hit) *hit = target > others ? 1.f : 0.f;
    if (dz == NULL) return;
    row_grad_as(&(struct row_grad){.z = (const float *)a->logits + t * a->vocab,
                                   .dz = dz,
                                   .count = a->vocab,
                                   .column = column,
                                   .max = row.max,
                                   .scale = *a->grad_scale * (1 + 2 * a->z_loss * lse) / row.sum,
                                   .one = *a->grad_scale,
                                   .steep = steep_of(a->cap)},
                a->dt);
}

static status vocab_xent_finish(const struct vocab_xent_finish_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->ldt == DTYPE_F32, "logits of %s: this set takes F32", dtype_name(a->ldt));
    CHECK(a->dlogits != a->logits || a->dt == DTYPE_F32, "dlogits in place of logits of another type");
    PARALLEL_CHUNKS(t, a->rows)
    {
        join_row(a, t);
    }
    return STATUS_OK;
}

void SIMD(simd_loss)(struct ops *o)
{
    o->vocab_xent_partial = vocab_xent_partial;
    o->vocab_xent_finish = vocab_xent_finish;
    o->xent = xent;
    o->softcap = softcap;
    o->top1_correct = top1_correct;
}
