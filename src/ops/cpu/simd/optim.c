/* The optimizer step: one pass over the gradients for their norm, one over all arrays; each array is read and written
 * once. Elements are independent; the order of the norm's sum depends only on the chunks. */
#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"
#include "ops/cpu/simd/split_weights.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/quant.h"
#include "ops/rounding.h"
#include <float.h>

enum {
    SUMS = 1024, /* chunks at once: their sums are on the stack */
    ROWS = 64    /* of rows_update, per chunk */
};

/* In f64, in fixed lanes. */
static double square_sum(const float *x, int64_t count)
{
    typedef double vd __attribute__((vector_size(4 * VEC)));
    vd lanes[4] = {0};
    int64_t i = 0;
    for (; i + 2 * VEC <= count; i += 2 * VEC) {
        for (int k = 0; k < 4; k++) {
#ifdef __AVX512F__
            vd wide = (vd)_mm512_cvtps_pd(_mm256_loadu_ps(x + i + k * VEC / 2));
#elif defined __aarch64__
            vd wide = (vd)vcvt_f64_f32(vld1_f32(x + i + k * VEC / 2));
#else
            vd wide = (vd)_mm256_cvtps_pd(_mm_loadu_ps(x + i + k * VEC / 2));
#endif
            lanes[k] += wide * wide;
        }
    }
    double sum = 0;
    for (; i < count; i++) sum += (double)x[i] * (double)x[i];
    const vd all = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    for (int k = 0; k < VEC / 2; k++) sum += all[k];
    return sum;
}

static void chunk_squares(const struct update_args *a, int64_t first, int64_t count, double *sums)
{
    PARALLEL_CHUNKS(k, count)
    {
        const struct update_chunk *c = &a->chunks[first + k];
        sums[k] = square_sum(a->g + c->begin, c->count);
    }
}

static double all_squares(const struct update_args *a)
{
    double sums[SUMS], sum = 0;
    for (int64_t first = 0; first < a->chunk_count; first += SUMS) {
        const int64_t left = a->chunk_count - first, count = left < SUMS ? left : SUMS;
        chunk_squares(a, first, count, sums);
        for (int64_t k = 0; k < count; k++) sum += sums[k];
    }
    return sum;
}

/* The step's constants in f32, folded: p = p (1 - decay) - step m / (sqrt(v) root + eps), Lion: p = p (1 -
 * decay) -+ step. */
struct update_fold {
    float scale, beta1, rest1, beta2, rest2, eps, step, root, decay, momentum;
};
static struct update_fold fold(const struct update_args *a, double factor, double lr)
{
    const struct step_scalars *s = a->scalars;
    struct update_fold f = {.scale = (float)factor,
                            .beta1 = (float)a->beta1,
                            .rest1 = (float)(1 - a->beta1),
                            .beta2 = (float)a->beta2,
                            .rest2 = (float)(1 - a->beta2),
                            .eps = (float)a->eps,
                            .momentum = (float)a->momentum,
                            .step = (float)lr,
                            .decay = (float)(lr * a->weight_decay)};
    if (update_needs(a->rule).corrections) {
        f.step = (float)(lr / s->correction1);
        f.root = (float)(1 / __builtin_sqrt(s->correction2));
    }
    return f;
}

/* The random words of VEC elements of a chunk from k on, a multiple of 4. */
static vu words_at(const struct update_args *a, const struct update_chunk *c, int64_t k)
{
    vu words;
    for (int q = 0; q < VEC / 4; q++) {
        const struct rng_block r = rounding_words(a->seed, a->scalars->step, c, k + 4 * q);
        memcpy((char *)&words + 16 * q, &r, 16);
    }
    return words;
}

/* vec_store, but BF16 as rounding_bf16 rounds, for `random` below 2^16. */
VEC_INLINE void moment_store(void *p, int64_t i, int n, dtype sdt, vf x, vu random)
{
    if (sdt == DTYPE_BF16) {
        const vf nan = (vf)(vu)((vu){0} + 0x7fc00000u);
        x = vec_select(x == x, (vf)(((vu)x + random) & 0xffff0000u), nan);
    }
    vec_store(p, i, n, sdt, x);
}

/* `words`: for a weight only. */
VEC_INLINE void weights_store(const struct update_args *a, int64_t i, int n, vf x, vu words)
{
    if (update_alone(a))
        moment_store(a->w, i, n, DTYPE_BF16, x, (words * 0x9E3779B1u) >> 16); /* rounding_third */
    else
        master_store(a->p, a->w, a->master_residual, i, n, x);
}

/* What the rule subtracts from p. Updates the moments. */
VEC_INLINE vf rule_vec(struct update_fold f, enum update_rule rule, vf g, vf p, vf *m, vf *v)
{
    const vf blend = *m * f.beta1 + g * f.rest1;
    switch (rule) {
    case UPDATE_ADAMW:
        *m = blend;
        *v = *v * f.beta2 + g * g * f.rest2;
        return p * f.decay + f.step * blend / (vec_sqrt(*v) * f.root + f.eps);
    case UPDATE_LION: break;
    }
    const vf up = vec_select(blend > 0.f, vec_set(f.step), (vf){0}),
             down = vec_select(blend < 0.f, vec_set(f.step), (vf){0});
    *m = *m * f.beta2 + g * f.rest2;
    return p * f.decay + (up - down);
}

VEC_INLINE void update_span(const struct update_args *a, const struct update_chunk *c, struct update_fold f,
                            enum update_rule rule, dtype sdt)
{
    const bool alone = update_alone(a);
    const int64_t end = c->begin + c->count;
    for (int64_t i = c->begin; i < end; i += VEC) {
        int n = vec_n(end - i);
        vu words = sdt == DTYPE_BF16 || alone ? words_at(a, c, i - c->begin) : (vu){0};
        vf g = vec_load(a->g, i, n, DTYPE_F32) * f.scale,
           p = master_load(a->p, a->w, a->master_residual, i, n);
        vf m = vec_load(a->m, i, n, sdt), v = {0};
        if (update_needs(rule).second) v = vec_load(a->v, i - c->v_offset, n, sdt);
        p -= rule_vec(f, rule, g, p, &m, &v);
        moment_store(a->m, i, n, sdt, m, words & 0xffff);
        if (update_needs(rule).second) moment_store(a->v, i - c->v_offset, n, sdt, v, words >> 16);
        weights_store(a, i, n, p, words);
        if (c->flags & UPDATE_ZERO) vec_store(a->g, i, n, DTYPE_F32, (vf){0});
    }
}

/* m = momentum m + g;  g = g + momentum m. */
VEC_INLINE void momentum_span(const struct update_args *a, const struct update_chunk *c, struct update_fold f,
                              dtype sdt)
{
    const int64_t end = c->begin + c->count;
    for (int64_t i = c->begin; i < end; i += VEC) {
        const int n = vec_n(end - i);
        const vu words = sdt == DTYPE_BF16 ? words_at(a, c, i - c->begin) : (vu){0};
        const vf g = vec_load(a->g, i, n, DTYPE_F32) * f.scale,
                 m = vec_load(a->m, i, n, sdt) * f.momentum + g;
        moment_store(a->m, i, n, sdt, m, words & 0xffff);
        vec_store(a->g, i, n, DTYPE_F32, g + m * f.momentum);
    }
}

/* ---- 8-bit moments (ops/quant.h), a block at a time: its scale is known when all its moments are. ---- */

/* Bytes p[0, n) as integers, 0 after them; and back. */
VEC_INLINE vi bytes_load(const uint8_t *p, int n)
{
    uint8_t part[VEC] = {0};
    if (__builtin_expect(n != VEC, 0)) {
        memcpy(part, p, (size_t)n);
        p = part;
    }
#ifdef __AVX512F__
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined __aarch64__
    uint32_t word;
    memcpy(&word, p, VEC);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))));
#else
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#endif
}
VEC_INLINE void bytes_store(uint8_t *p, int n, vi x)
{
#ifdef __AVX512F__
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)x);
#elif defined __aarch64__
    const uint16x4_t halves = vmovn_u32((uint32x4_t)x);
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
#else
    const __m256i pairs = _mm256_packus_epi32((__m256i)x, (__m256i)x);
    const __m128i halves =
                      _mm_unpacklo_epi64(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)),
                  bytes = _mm_packus_epi16(halves, halves);
#endif
    if (__builtin_expect(n == VEC, 1))
        memcpy(p, &bytes, VEC);
    else
        memcpy(p, &bytes, (size_t)n);
}

/* Halves of the matmuls of all lanes with m. */
struct wide_product {
    vu low, high;
};
VEC_INLINE struct wide_product wide_product(vu x, uint32_t m)
{
#ifdef __aarch64__
    const uint32x4_t low = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32((uint32x4_t)x), m)),
                     high = vreinterpretq_u32_u64(vmull_high_n_u32((uint32x4_t)x, m));
    return (struct wide_product){(vu)vuzp1q_u32(low, high), (vu)vuzp2q_u32(low, high)};
#elif defined __AVX512F__
    const __m512i f = _mm512_set1_epi32((int)m), even = _mm512_mul_epu32((__m512i)x, f),
                  odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), f);
    return (struct wide_product){(vu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)),
                                 (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
#else
    const __m256i f = _mm256_set1_epi32((int)m), even = _mm256_mul_epu32((__m256i)x, f),
                  odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), f);
    return (struct wide_product){(vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa),
                                 (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)};
#endif
}

/* The random words of a block: rounding_words of VEC groups at once (the same arithmetic as base/rng.h:
 * rng_at). */
static void block_words(const struct update_args *a, const struct update_chunk *c,
                        uint32_t words[QUANT_BLOCK])
{
    const uint64_t key = (a->seed ^ c->key) ^ ((uint64_t)RNG_ROUND * 0x9E3779B97F4A7C15u),
                   step = a->scalars->step;
    if (c->width > 0) { /* of a slice: its groups are not consecutive */
        for (int64_t k = 0; k < c->count; k += 4) {
            const struct rng_block r = rounding_words(a->seed, step, c, k);
            memcpy(words + k, &r, sizeof r);
        }
        return;
    }
    for (int64_t k = 0; k < c->count; k += 4 * VEC) {
        uint32_t low[VEC], high[VEC], out[4][VEC];
        for (int i = 0; i < VEC; i++) {
            const uint64_t at = (uint64_t)(c->first + k) / 4 + (uint64_t)i;
            low[i] = (uint32_t)at, high[i] = (uint32_t)(at >> 32);
        }
        vu c0, c1, c2 = (vu){0} + (uint32_t)step, c3 = (vu){0} + (uint32_t)(step >> 32);
        memcpy(&c0, low, sizeof c0);
        memcpy(&c1, high, sizeof c1);
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            const struct wide_product p0 = wide_product(c0, 0xD2511F53u), p1 = wide_product(c2, 0xCD9E8D57u);
            c0 = p1.high ^ c1 ^ k0, c2 = p0.high ^ c3 ^ k1;
            c1 = p1.low, c3 = p0.low;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        memcpy(out[0], &c0, sizeof c0);
        memcpy(out[1], &c1, sizeof c1);
        memcpy(out[2], &c2, sizeof c2);
        memcpy(out[3], &c3, sizeof c3);
        for (int i = 0; i < VEC; i++)
            for (int j = 0; j < 4; j++) words[k + 4 * i + j] = out[j][i];
    }
}

/* table[at], at in [0, 8). */
VEC_INLINE vf vec_pick(const float table[QUANT_DECADES], vi at)
{
#ifdef __AVX512F__
    return (vf)_mm512_permutexvar_ps((__m512i)at, _mm512_castps256_ps512(_mm256_loadu_ps(table)));
#elif defined __aarch64__
    const uint8x16x2_t t = {{(uint8x16_t)vld1q_f32(table), (uint8x16_t)vld1q_f32(table + 4)}};
    return (vf)vqtbl2q_u8(t, (uint8x16_t)((vu)at * 0x04040404u + 0x03020100u)); /* the four bytes of each */
#else
    return (vf)_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)at);
#endif
}
VEC_INLINE vf vec_abs(vf x)
{
    return (vf)((vu)x & 0x7fffffff);
}

/* Values of the codes at p[0, n); 0 after them. */
VEC_INLINE vf codes_load(const struct quant_map *q, enum quant_kind kind, const uint8_t *p, int n,
                         float scale)
{
    const bool sign = kind == QUANT_SIGNED;
    const vi code = bytes_load(p, n);
    const vf place = __builtin_convertvector(sign ? code - QUANT_ZERO : code + 1, vf), u = vec_abs(place);
    const vf power = (vf)((vu)u & 0x7f800000); /* of two, the largest in u */
    const vi decade = ((vi)u >> 23) - (sign ? 127 : 128);
    vf x = vec_pick(q->first, decade) + (u - power) * vec_pick(q->step, decade);
    x = vec_select(u > (sign ? 0.f : 1.f), x * scale, (vf){0});
    return vec_keep(vec_select(place < 0.f, -x, x), n);
}

/* x / scale as codes; `random`: uniform in [0, 2^16). */
VEC_INLINE void codes_store(const struct quant_map *q, enum quant_kind kind, uint8_t *p, int n, vf x,
                            float inverse, vu random)
{
    const vf size = vec_abs(x) * inverse;
    vi d = {0};
    for (int e = 0; e < QUANT_DECADES - 1; e++) d -= size >= vec_set(q->first[e]);
    const vf last = vec_pick(q->last, d), t = (size - vec_pick(q->low, d)) * vec_pick(q->slope, d);
    const vf whole = __builtin_convertvector(__builtin_convertvector(t, vi), vf);
    const vf k = vec_select(whole < last, whole, last);
    const vf rest = vec_select(k < last, t - k, (t - k) * vec_pick(q->stretch, d));
    vi code = __builtin_convertvector(vec_pick(q->base, d) + k, vi);
    code -= __builtin_convertvector((vi)random, vf) * 0x1p-16f < rest;
    if (kind == QUANT_SIGNED) {
        const vi below = QUANT_ZERO - code, above = QUANT_ZERO + code;
        code = (vi)vec_select(x < 0.f, (vf)(below & ~(below >> 31)), (vf)above);
    } else {
        code -= (code == 0) & (size > 0.f);
    }
    bytes_store(p, n, code);
}

/* The scale of a block; 0, and all codes 0, where it would be subnormal. */
VEC_INLINE float block_scale(const float *x, int64_t n)
{
    vf top = {0};
    for (int64_t i = 0; i < n; i += VEC) top = vec_max(top, vec_abs(vec_load(x, i, VEC, DTYPE_F32)));
    const float scale = vec_top(top);
    return scale < FLT_MIN ? 0 : scale;
}

/* Encodes one moment of a block. */
VEC_INLINE void block_store(const struct update_args *a, const struct update_chunk *c, const float *x,
                            const struct quant_map *q, enum quant_kind kind, const uint32_t *random)
{
    const bool first = kind == QUANT_SIGNED;
    const int64_t at = first ? c->begin : c->begin - c->v_offset;
    const float top = block_scale(x, c->count), inverse = top > 0 ? 1 / top : 0;
    uint8_t *codes = (uint8_t *)(first ? a->m : a->v) + at;
    (first ? a->m_scale : a->v_scale)[at / QUANT_BLOCK] = top;
    for (int64_t k = 0; k < c->count; k += VEC) {
        vu words;
        memcpy(&words, random + k, sizeof words);
        codes_store(q, kind, codes + k, vec_n(c->count - k), vec_load(x, k, VEC, DTYPE_F32), inverse,
                    first ? words & 0xffff : words >> 16);
    }
}

VEC_INLINE vf block_load(const struct update_args *a, const struct update_chunk *c, int64_t k,
                         const struct quant_map *q, enum quant_kind kind)
{
    const bool first = kind == QUANT_SIGNED;
    const int64_t at = first ? c->begin : c->begin - c->v_offset;
    return codes_load(q, kind, (const uint8_t *)(first ? a->m : a->v) + at + k, vec_n(c->count - k),
                      (first ? a->m_scale : a->v_scale)[at / QUANT_BLOCK]);
}

VEC_INLINE void update_block(const struct update_args *a, const struct update_chunk *c, struct update_fold f,
                             const struct quant_map q[2], enum update_rule rule)
{
    float moments[2][QUANT_BLOCK];
    uint32_t random[QUANT_BLOCK];
    block_words(a, c, random);
    for (int64_t k = 0; k < c->count; k += VEC) {
        const int64_t i = c->begin + k;
        const int n = vec_n(c->count - k);
        vu words;
        vf g = vec_load(a->g, i, n, DTYPE_F32) * f.scale,
           p = master_load(a->p, a->w, a->master_residual, i, n);
        vf m = block_load(a, c, k, &q[0], QUANT_SIGNED), v = {0};
        if (update_needs(rule).second) v = block_load(a, c, k, &q[1], QUANT_UNSIGNED);
        p -= rule_vec(f, rule, g, p, &m, &v);
        (void)vec_store(moments[0], k, VEC, DTYPE_F32, m);
        if (update_needs(rule).second) (void)vec_store(moments[1], k, VEC, DTYPE_F32, v);
        memcpy(&words, random + k, sizeof words);
        weights_store(a, i, n, p, words);
        if (c->flags & UPDATE_ZERO) vec_store(a->g, i, n, DTYPE_F32, (vf){0});
    }
    block_store(a, c, moments[0], &q[0], QUANT_SIGNED, random);
    if (update_needs(rule).second) block_store(a, c, moments[1], &q[1], QUANT_UNSIGNED, random);
}

static void momentum_block(const struct update_args *a, const struct update_chunk *c, struct update_fold f,
                           const struct quant_map *q)
{
    float moments[QUANT_BLOCK];
    for (int64_t k = 0; k < c->count; k += VEC) {
        const int n = vec_n(c->count - k);
        const vf g = vec_load(a->g, c->begin + k, n, DTYPE_F32) * f.scale,
                 m = block_load(a, c, k, q, QUANT_SIGNED) * f.momentum + g;
        (void)vec_store(moments, k, VEC, DTYPE_F32, m);
        vec_store(a->g, c->begin + k, n, DTYPE_F32, g + m * f.momentum);
    }
    uint32_t random[QUANT_BLOCK];
    block_words(a, c, random);
    block_store(a, c, moments, q, QUANT_SIGNED, random);
}

VEC_INLINE void update_blocks(const struct update_args *a, const struct update_chunk *c, struct update_fold f,
                              enum update_rule rule)
{
    const struct quant_map q[] = {quant_map_of(QUANT_SIGNED), quant_map_of(QUANT_UNSIGNED)};
    for (int32_t at = 0; at < c->count; at += QUANT_BLOCK) {
        const int32_t left = c->count - at;
        const struct update_chunk block = update_part(c, at, left < QUANT_BLOCK ? left : QUANT_BLOCK);
        if (c->flags & UPDATE_MOMENTUM)
            momentum_block(a, &block, f, q);
        else
            update_block(a, &block, f, q, rule);
    }
}

VEC_INLINE void update_chunk_by(const struct update_args *a, const struct update_chunk *c,
                                struct update_fold f, enum update_rule rule)
{
    if (a->moment_dt == DTYPE_U8)
        update_blocks(a, c, f, rule);
    else if (a->moment_dt == DTYPE_F32)
        update_span(a, c, f, rule, DTYPE_F32);
    else
        update_span(a, c, f, rule, DTYPE_BF16);
}

/* One loop for each rule and type of moments. */
static void update_chunk(const struct update_args *a, const struct update_chunk *c, struct update_fold f)
{
    if (!(c->flags & UPDATE_DECAY)) f.decay = 0;
    if (c->flags & UPDATE_MOMENTUM && a->moment_dt == DTYPE_F32) {
        momentum_span(a, c, f, DTYPE_F32);
        return;
    }
    if (c->flags & UPDATE_MOMENTUM && a->moment_dt == DTYPE_BF16) {
        momentum_span(a, c, f, DTYPE_BF16);
        return;
    }
    switch (a->rule) {
    case UPDATE_ADAMW: update_chunk_by(a, c, f, UPDATE_ADAMW); break;
    case UPDATE_LION: update_chunk_by(a, c, f, UPDATE_LION); break;
    }
}

/* Each row as a chunk of its own. */
static void update_rows(const struct update_args *a, const struct update_chunk *c, struct update_fold f)
{
    const int32_t width = (int32_t)(c->flags / UPDATE_WIDTH);
    for (int64_t at = 0; at < c->count; at += width) {
        const struct update_chunk row = update_part(c, at, width);
        if (!update_untouched(a->g + row.begin, width)) update_chunk(a, &row, f);
    }
}

static status update(const struct update_args *a, dev_stream s)
{
    (void)s;
    update_check(a);
    double factor;
    if (a->phase == UPDATE_CHUNK_NORMS) {
        chunk_squares(a, 0, a->chunk_count, a->squares);
        for (int64_t c = 0; c < a->chunk_count; c++)
            if (a->chunks[c].flags & UPDATE_COPY) a->squares[c] = 0;
        return STATUS_OK;
    }
    if (a->phase == UPDATE_GLOBAL_NORM) {
        a->scalars->grad_squares = all_squares(a);
        return STATUS_OK;
    }
    if (!update_factor(a, a->phase == UPDATE_APPLY ? a->scalars->grad_squares : all_squares(a), &factor))
        return STATUS_OK;
    const struct update_fold f = fold(a, factor, update_lr(a)),
                             rows = fold(a, factor, a->scalars->lr * a->row_rate);
    PARALLEL_CHUNKS(c, a->chunk_count)
    {
        if (a->chunks[c].flags & UPDATE_ROWS)
            update_rows(a, &a->chunks[c], rows);
        else
            update_chunk(a, &a->chunks[c], f);
    }
    return STATUS_OK;
}

static status rows_update(const struct rows_update_args *a, dev_stream s)
{
    (void)s;
    const double factor = a->of.scalars->clip_factor;
    update_check(&a->of);
    if (factor == 0) return STATUS_OK;
    const struct update_fold f = fold(&a->of, factor, a->of.scalars->lr * a->of.row_rate);
    PARALLEL_CHUNKS(c, chunk_count(a->slots, ROWS))
    {
        const struct span slots = chunk_span(c, a->slots, ROWS);
        for (int64_t k = slots.begin; k < slots.end; k++) {
            const struct update_chunk row = rows_chunk(a, k);
            float *g = a->sums + k * a->width;
            struct update_args of = a->of;
            of.g = g - row.begin;
            if (row.count > 0 && !update_untouched(g, a->width)) update_chunk(&of, &row, f);
            memset(g, 0, (size_t)a->width * sizeof *g);
        }
    }
    return STATUS_OK;
}

void SIMD(simd_optim)(struct ops *o)
{
    o->update = update;
    o->rows_update = rows_update;
}
