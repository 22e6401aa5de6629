/* FP8 codes of a tensor. A chunk is a block of rows and a strip of columns: its codes go through a buffer in the L1
 * cache, from where 16 x 16 blocks are transposed in registers. The transpose is written in whole cache lines. */
#include "base/parallel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vec.h"
#include "tensor/f8.h"

#include <stdatomic.h>

enum { ROWS = 64, COLS = 256, BLOCK = 16 };

typedef uint8_t codes16 __attribute__((vector_size(16)));

/* The f32 constants of a format. */
struct encoder {
    int mantissa;
    int32_t max;          /* bits of the largest value */
    int32_t least_normal; /* bits of the smallest normal value */
    float to_integer;     /* added to a subnormal value, leaves its code in the lowest bits */
};
VEC_INLINE struct encoder encoder_of(dtype codes)
{
    return codes == DTYPE_F8_E4M3 ? (struct encoder){.mantissa = 3,
                                                     .max = 0x43e00000,
                                                     .least_normal = (127 - 6) << 23,
                                                     .to_integer = 0x1p14f}
                                  : (struct encoder){.mantissa = 2,
                                                     .max = 0x47600000,
                                                     .least_normal = (127 - 14) << 23,
                                                     .to_integer = 0x1p7f};
}

VEC_INLINE vi select_vi(vi mask, vi yes, vi no)
{
    return (mask & yes) | (~mask & no);
}

/* The codes of x, one in each lane: f8_encode. */
VEC_INLINE vi encode(vf x, struct encoder e)
{
    const vi bits = (vi)x, exact = bits & 0x7fffffff, size = select_vi(exact > e.max, vec_each(e.max), exact);
    const int drop = 23 - e.mantissa;
    const vi half = vec_each((1 << (drop - 1)) - 1), odd = size >> drop & 1;
    const vi normal = ((size + half + odd) >> drop) - (((e.least_normal >> 23) - 1) << e.mantissa);
    const vi low = (vi)((vf)size + e.to_integer) - vec_each(vec_bits(e.to_integer));
    const vi code = select_vi(size < e.least_normal, low, normal) | (bits >> 24 & 0x80);
    return select_vi(exact > 0x7f800000, vec_each(0x7f), code);
}

/* Codes of `n` elements from x[from] on, and the largest magnitude with `most`, as bits. Without `to` that alone. */
VEC_INLINE vi row(const struct quantize_args *a, int64_t from, int64_t n, uint8_t *to, vi most, dtype dt,
                  dtype codes)
{
    const struct encoder e = encoder_of(codes);
    const float scale = to ? *a->q.scale : 1;
    for (int64_t j = 0; j < n; j += VEC) {
        const vf x = vec_load(a->x, from + j, vec_n(n - j), dt);
        const vi size = (vi)x & 0x7fffffff;
        most = select_vi(size > most, size, most);
        if (to == NULL) continue;
        typedef uint8_t bytes __attribute__((vector_size(VEC)));
        const bytes b = __builtin_convertvector((vu)encode(x * scale, e), bytes);
        memcpy(to + j, &b, sizeof b); /* codes come in multiples of 16 */
    }
    return most;
}

/* to[j][i] = from[i][j]: four rounds, each of which interleaves the upper half of the rows with the lower. */
VEC_INLINE void transpose(const uint8_t *from, int64_t ld_from, uint8_t *to, int64_t ld_to)
{
    codes16 r[BLOCK], t[BLOCK];
    _Pragma("GCC unroll 16") for (int i = 0; i < BLOCK; i++) memcpy(&r[i], from + i * ld_from, sizeof r[i]);
    _Pragma("GCC unroll 4") for (int round = 0; round < 4; round++)
    {
        _Pragma("GCC unroll 8") for (int i = 0; i < BLOCK / 2; i++)
        {
            const codes16 x = r[i], y = r[i + BLOCK / 2];
            t[2 * i] = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            t[2 * i + 1] =
                __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(r, t, sizeof r);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < BLOCK; i++) memcpy(to + i * ld_to, &r[i], sizeof r[i]);
}

/* One chunk. Returns its largest magnitude, as bits. */
VEC_INLINE uint32_t chunk(const struct quantize_args *a, struct span rows, struct span cols, dtype dt,
                          dtype codes)
{
    _Alignas(64) uint8_t strip[ROWS * COLS];
    const int64_t stride = a->x_stride ? a->x_stride : a->n, n = cols.end - cols.begin,
                  height = rows.end - rows.begin;
    const bool any = quantized_any(&a->q);
    vi most = {0};
    for (int64_t r = 0; r < height; r++) {
        uint8_t *to = any ? strip + r * COLS : NULL;
        most = row(a, (rows.begin + r) * stride + cols.begin, n, to, most, dt, codes);
        if (a->q.codes) memcpy((uint8_t *)a->q.codes + (rows.begin + r) * a->n + cols.begin, to, (size_t)n);
    }
    if (a->q.codes_t) {
        const int64_t ld = quantized_ld(a->rows), padded = (height + BLOCK - 1) / BLOCK * BLOCK;
        memset(strip + height * COLS, 0, (size_t)((padded - height) * COLS));
        for (int64_t j = 0; j < n; j += BLOCK)
            for (int64_t r = 0; r < padded; r += BLOCK)
                transpose(strip + r * COLS + j, COLS,
                          (uint8_t *)a->q.codes_t + (cols.begin + j) * ld + rows.begin + r, ld);
    }
    uint32_t bits = 0;
    for (int i = 0; i < VEC; i++) bits = (uint32_t)most[i] > bits ? (uint32_t)most[i] : bits;
    return bits;
}

static uint32_t chunk_of(const struct quantize_args *a, struct span rows, struct span cols)
{
    const bool e4m3 = a->q.dt == DTYPE_F8_E4M3;
    if (a->dt == DTYPE_F32)
        return e4m3 ? chunk(a, rows, cols, DTYPE_F32, DTYPE_F8_E4M3)
                    : chunk(a, rows, cols, DTYPE_F32, DTYPE_F8_E5M2);
    return e4m3 ? chunk(a, rows, cols, DTYPE_BF16, DTYPE_F8_E4M3)
                : chunk(a, rows, cols, DTYPE_BF16, DTYPE_F8_E5M2);
}

static void raise(_Atomic uint32_t *most, uint32_t bits)
{
    uint32_t before = atomic_load_explicit(most, memory_order_relaxed);
    while (bits > before && !atomic_compare_exchange_weak_explicit(most, &before, bits, memory_order_relaxed,
                                                                   memory_order_relaxed)) {}
}

static status quantize(const struct quantize_args *args, dev_stream s)
{
    (void)s;
    const struct quantize_args there = quantize_there(args), *a = &there;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->q.dt == DTYPE_F8_E4M3 || a->q.dt == DTYPE_F8_E5M2, "codes in %s", dtype_name(a->q.dt));
    CHECK(!quantized_any(&a->q) || (a->q.scale && a->n % 16 == 0), "codes of rows of %lld%s", (long long)a->n,
          a->q.scale ? "" : " without a scale");
    if (!quantized_asked(&a->q)) return STATUS_OK;
    const int64_t bands = chunk_count(a->rows, ROWS), strips = chunk_count(a->n, COLS);
    _Atomic uint32_t most = 0;
    PARALLEL_CHUNKS(c, bands * strips)
    {
        raise(&most, chunk_of(a, chunk_span(c / strips, a->rows, ROWS), chunk_span(c % strips, a->n, COLS)));
    }
    uint32_t before, bits = most;
    if (a->q.amax == NULL) return STATUS_OK;
    memcpy(&before, a->q.amax, sizeof before);
    if (bits > before) memcpy(a->q.amax, &bits, sizeof bits);
    return STATUS_OK;
}

void SIMD(simd_fp8)(struct ops *o)
{
    o->quantize = quantize;
}
