// FP8 codes of a tensor, and the scales of the next step.
//
// quantize is bound by memory: 2 bytes are read and up to 2 written per element of BF16. A block makes the codes of a
// square of the tensor. It holds all its values in registers before the first is used, stores codes by rows from there,
// and the transpose by columns through shared memory, in whole lines of 128 bytes.
#include "ops/cuda/fp8.cuh"
#include <math.h>

namespace {

enum { THREADS = code_square::THREADS };

// W: elements of an access to x.
template <typename T, int W, bool E5M2, bool TRANS>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 2 ? 4 : 2)
    quantize_kernel(const T *x, const code_out o, int64_t rows, int64_t n, int64_t stride, const int32_t *exist)
{
    enum { EACH = code_square::EACH };
    __shared__ __align__(16) uint8_t tile[TRANS ? code_square::TILE_BYTES : 16];
    __shared__ uint32_t exchange[WARP];
    const code_square square(exist ? min(rows, (int64_t)*exist) : rows, n);
    if (square.rows <= 0) return;
    const float scale = *o.scale;
    vec<T, 8> v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = vec<T, 8>{};
        if (square.has(i)) v[i] = load_eight_once<W>(x + square.at(i, stride));
    }
    amax_of<T> most;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        most.add(v[i]);
        square.put(o, TRANS ? tile : nullptr, i, codes_of(v[i], scale, E5M2), n, 0);
    }
    if (TRANS) {
        __syncthreads();
        square.store(o, tile, 0);
    }
    amax_store_block(most.bits(), o.amax, exchange);
}

// Vectors that a thread holds; blocks of a multiprocessor, at most: several times what it runs at once, for balance.
enum { AHEAD = 8, AMAX_BLOCKS = 32 };

// `rows` of `width` vectors each, of which *exist are there.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    amax_kernel(const T *x, uint32_t *amax, int64_t rows, int64_t width, int64_t stride, const int32_t *exist)
{
    __shared__ uint32_t exchange[WARP];
    const int64_t count = (exist ? min(rows, (int64_t)*exist) : rows) * width;
    const bool gaps = stride != width * W;
    amax_of<T> most;
    for (int64_t base = (int64_t)blockIdx.x * AHEAD * THREADS; base < count;
         base += (int64_t)gridDim.x * AHEAD * THREADS) {
        vec<T, W> v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t i = base + k * THREADS + threadIdx.x, row = gaps ? i / width : 0;
            v[k] = vec<T, W>{};
            if (i < count) v[k] = load_vec<W>(x + row * stride + (i - row * width) * W);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) most.add(v[k]);
    }
    amax_store_block(most.bits(), amax, exchange);
}

template <typename T, int W> void amax_launch(const struct quantize_args *a, int64_t stride, dev_stream s)
{
    const int64_t count = a->rows * (a->n / W), most = (int64_t)cuda_set(s)->multiprocessors * AMAX_BLOCKS,
                  blocks = (count + AHEAD * THREADS - 1) / (AHEAD * THREADS);
    amax_kernel<T, W><<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, queue_of(s)>>>(
        (const T *)a->x, (uint32_t *)a->q.amax, a->rows, a->n / W, stride, a->count);
}

template <typename T, int W, bool E5M2>
void codes_launch(const struct quantize_args *a, const code_out &o, int64_t stride, dev_stream s)
{
    const unsigned grid = code_square::grid(a->rows, a->n);
    auto *kernel = o.codes_t ? quantize_kernel<T, W, E5M2, true> : quantize_kernel<T, W, E5M2, false>;
    kernel<<<grid, THREADS, 0, queue_of(s)>>>((const T *)a->x, o, a->rows, a->n, stride, a->count);
}
template <typename T, int W>
void quantize_launch(const struct quantize_args *a, const code_out &o, int64_t stride, dev_stream s)
{
    if (!quantized_any(&a->q)) amax_launch<T, W>(a, stride, s);
    else if (o.e5m2) codes_launch<T, W, true>(a, o, stride, s);
    else codes_launch<T, W, false>(a, o, stride, s);
}

} // namespace

extern "C" status cuda_quantize(const struct quantize_args *a, dev_stream s)
{
    const int64_t stride = a->x_stride ? a->x_stride : a->n;
    const code_out o = code_out_of(&a->q, a->rows, a->n, "x");
    CHECK(!a->count || !a->q.codes_t, "the transpose of rows that may not exist");
    if (a->rows == 0 || a->n == 0 || !quantized_asked(&a->q)) return STATUS_OK;
    BY_DTYPE(a->dt, {
        if (aligned16(a->x) && stride % WIDE<T> == 0 && a->n % WIDE<T> == 0)
            quantize_launch<T, WIDE<T>>(a, o, stride, s);
        else
            quantize_launch<T, 1>(a, o, stride, s);
    });
    return cuda_set_launched(s, "quantize");
}

namespace {

// ---- scales

// The exponent e of 2^floor(log2(max / (2^margin amax))) within -126 .. 126, from the bits of a finite amax > 0. The
// largest codes are 1.75 2^8 (E4M3) and 1.75 2^15 (E5M2): one less if amax has the larger significand.
__device__ inline int scale_exponent(bool e5m2, int margin, uint32_t bits)
{
    int exponent = (int)(bits >> 23) - 127;
    if (exponent == -127) { // subnormal
        const int shift = __clz((int)bits) - 8;
        bits <<= shift;
        exponent = -126 - shift;
    }
    const int e = (e5m2 ? 15 : 8) - margin - exponent - ((bits & 0x7fffffu) > 0x600000u);
    return min(max(e, -126), 126);
}
__device__ inline bool is_positive(uint32_t bits) { return bits != 0 && bits < 0x7f800000u; } // and finite
__device__ inline void scale_store(float *scale, float *scale_inv, int exponent)
{
    *scale = __uint_as_float((uint32_t)(127 + exponent) << 23);
    *scale_inv = __uint_as_float((uint32_t)(127 - exponent) << 23);
}

enum { SCALES_THREADS = 128 };

// One thread per tensor.
__global__ void __launch_bounds__(SCALES_THREADS) scales_kernel(const struct fp8_scales_args a, bool e5m2)
{
    const int64_t i = (int64_t)blockIdx.x * SCALES_THREADS + threadIdx.x;
    if (i >= a.count) return;
    uint32_t most = __float_as_uint(a.amax[i]);
    if (a.all) {
        most = 0;
        for (int64_t r = 0; r < a.ranks; r++) most = max(most, __float_as_uint(a.all[r * a.all_stride + i]));
    }
    a.amax[i] = 0;
    if (most >= 0x7f800000u) {
        atomicAdd(&a.scalars->fp8_overflow, 1.0); // exact: the order does not matter
        return;
    }
    if (a.scaling == FP8_DELAYED) {
        float *history = a.history + i * FP8_HISTORY;
        history[a.scalars->step % FP8_HISTORY] = __uint_as_float(most);
        for (int k = 0; k < FP8_HISTORY; k++) most = max(most, __float_as_uint(history[k]));
    }
    if (is_positive(most))
        scale_store(&a.scale[i], &a.scale_inv[i * FP8_SCALE_STRIDE], scale_exponent(e5m2, a.margin, most));
}

bool check_codes_dt(dtype dt)
{
    CHECK(dt == DTYPE_F8_E4M3 || dt == DTYPE_F8_E5M2, "codes in %s", dtype_name(dt));
    return dt == DTYPE_F8_E5M2;
}

status fp8_scales(const struct fp8_scales_args *a, dev_stream s)
{
    const bool e5m2 = check_codes_dt(a->dt);
    if (a->count == 0) return STATUS_OK;
    scales_kernel<<<(unsigned)((a->count + SCALES_THREADS - 1) / SCALES_THREADS), SCALES_THREADS, 0, queue_of(s)>>>(
        *a, e5m2);
    return cuda_set_launched(s, "fp8_scales");
}

enum { BOUND_THREADS = 1024 };

// One block. root: sqrt(d). The oracle adds the shift in f64, too; rounding to f32 keeps the order.
template <typename T>
__global__ void __launch_bounds__(BOUND_THREADS) bound_kernel(const struct fp8_bound_args a, float root, bool e5m2)
{
    __shared__ uint32_t exchange[2][WARP];
    uint32_t w = 0, b = 0;
    for (int64_t j = threadIdx.x; j < a.d; j += BOUND_THREADS) {
        const double shifted = (double)to_f32(((const T *)a.w)[j]) + a.shift;
        w = max(w, __float_as_uint(__double2float_rn(shifted)) & 0x7fffffffu);
        if (a.b) b = max(b, __float_as_uint(to_f32(((const T *)a.b)[j])) & 0x7fffffffu);
    }
    w = block_most(w, exchange[0]);
    b = block_most(b, exchange[1]);
    if (threadIdx.x) return;
    const float sum = __fadd_rn(__fmul_rn(root, __uint_as_float(w)), __uint_as_float(b)),
                bound = __fmul_rn(1.01f, sum); // no operation may be contracted
    const uint32_t bits = __float_as_uint(bound);
    if (is_positive(bits)) scale_store(a.scale, a.scale_inv, scale_exponent(e5m2, 0, bits));
}

status fp8_bound(const struct fp8_bound_args *a, dev_stream s)
{
    const bool e5m2 = check_codes_dt(a->codes);
    BY_DTYPE(a->dt, bound_kernel<T><<<1, BOUND_THREADS, 0, queue_of(s)>>>(*a, sqrtf((float)a->d), e5m2));
    return cuda_set_launched(s, "fp8_bound");
}

} // namespace

extern "C" void cuda_fp8_slots(struct ops *o)
{
    o->quantize = cuda_quantize;
    o->fp8_scales = fp8_scales;
    o->fp8_bound = fp8_bound;
}
