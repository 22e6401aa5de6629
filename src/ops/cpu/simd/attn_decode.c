/* Attention of one new token per sequence. It is memory bound: one pass over K for the scores, one over V for their
 * weighted mean. */
#include "base/parallel.h"
#include "base/status.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/cpu/workspace.h"
#include <math.h>

VEC_INLINE float dot(const float *q, const void *k, int64_t at, int64_t head_dim, dtype dt)
{
    vf sum = {0};
    for (int64_t j = 0; j < head_dim; j += VEC) {
        const int n = vec_n(head_dim - j);
        sum += vec_load(q, j, VEC, DTYPE_F32) * vec_load(k, at + j, n, dt);
    }
    return vec_sum(sum);
}

/* One query head `h` of sequence `b` over cache rows [keys.begin, keys.end). */
VEC_INLINE void attend(const struct attn_decode_args *a, int64_t b, int64_t h, struct span keys, dtype dt)
{
    const int64_t width = (a->head_dim + VEC - 1) / VEC * VEC,
                  width_v = (a->head_dim_v + VEC - 1) / VEC * VEC, count = keys.end - keys.begin,
                  group = a->heads / a->heads_kv;
    const int64_t head_k = b * a->capacity * a->k_stride + h / group * a->head_dim,
                  head_v = b * a->capacity * a->v_stride + h / group * a->head_dim_v,
                  row = b * (a->q_stride ? a->q_stride : a->heads * a->head_dim) + h * a->head_dim,
                  row_o = (b * a->heads + h) * a->head_dim_v;
    float *q = workspace_get(WORKSPACE_MINE, (size_t)(width + width_v + count) * sizeof *q), *o = q + width,
          *p = o + width_v;
    for (int64_t j = 0; j < a->head_dim; j += VEC)
        vec_store(q, j, VEC, DTYPE_F32,
                  vec_load(a->q, row + j, vec_n(a->head_dim - j), dt) * (float)a->scale);
    for (int64_t j = 0; j < a->head_dim_v; j += VEC) vec_store(o, j, VEC, DTYPE_F32, (vf){0});
    float max = -INFINITY, sum = 0;
    for (int64_t u = 0; u < count; u++) {
        p[u] = dot(q, a->k_cache, head_k + (keys.begin + u) * a->k_stride, a->head_dim, dt);
        max = fmaxf(max, p[u]);
    }
    for (int64_t u = 0; u < count; u += VEC) {
        const int n = vec_n(count - u);
        vf e = vec_keep(vec_exp(vec_load(p, u, n, DTYPE_F32) - max), n);
        vec_store(p, u, n, DTYPE_F32, e);
        sum += vec_sum(e);
    }
    for (int64_t u = 0; u < count; u++) {
        const vf w = vec_set(p[u]);
        const int64_t at = head_v + (keys.begin + u) * a->v_stride;
        for (int64_t j = 0; j < a->head_dim_v; j += VEC) {
            vf x = vec_load(o, j, VEC, DTYPE_F32) +
                   w * vec_load(a->v_cache, at + j, vec_n(a->head_dim_v - j), dt);
            vec_store(o, j, VEC, DTYPE_F32, x);
        }
    }
    for (int64_t j = 0; j < a->head_dim_v; j += VEC)
        vec_store(a->o, row_o + j, vec_n(a->head_dim_v - j), dt, vec_load(o, j, VEC, DTYPE_F32) / sum);
}

static status attn_decode(const struct attn_decode_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "the fast set has no attention in %s",
          dtype_name(a->dt));
    CHECK(a->heads > 0 && a->heads_kv > 0 && a->heads % a->heads_kv == 0, "%lld heads on %lld kv heads",
          (long long)a->heads, (long long)a->heads_kv);
    CHECK(a->head_dim > 0 && a->head_dim_v > 0 && a->k_stride >= a->heads_kv * a->head_dim &&
              a->v_stride >= a->heads_kv * a->head_dim_v,
          "heads of %lld and %lld in cache rows of %lld and %lld", (long long)a->head_dim,
          (long long)a->head_dim_v, (long long)a->k_stride, (long long)a->v_stride);
    PARALLEL_CHUNKS(c, a->batch * a->heads)
    {
        const int64_t b = c / a->heads, length = a->lengths[b];
        CHECK(length > 0 && length <= a->capacity, "sequence %lld has %lld rows, its cache %lld",
              (long long)b, (long long)length, (long long)a->capacity);
        const int64_t first = a->window && length > a->window ? length - a->window : 0;
        if (a->dt == DTYPE_F32)
            attend(a, b, c % a->heads, (struct span){first, length}, DTYPE_F32);
        else
            attend(a, b, c % a->heads, (struct span){first, length}, DTYPE_BF16);
    }
    return STATUS_OK;
}

void SIMD(simd_attn_decode)(struct ops *o)
{
    o->attn_decode = attn_decode;
}
