#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/cuda/gemm_plain.h"
}
#include <cuda_fp8.h>

namespace {

// FP8 codes. Both conversions are exact, also those in software before sm_89; NaN stays NaN.
template <__nv_fp8_interpretation_t KIND> struct code {
    __nv_fp8_storage_t bits;
};
using e4m3 = code<__NV_E4M3>;
using e5m2 = code<__NV_E5M2>;
using ::to_f32;
template <__nv_fp8_interpretation_t KIND> __device__ float to_f32(code<KIND> x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, KIND)));
}

// A block of 16 x 16 threads computes tiles of 64 x 64; thread (x, y) has rows y + 16 r and columns x + 16 q.
enum { SIDE = 16, PER_THREAD = 4, TILE = SIDE * PER_THREAD, SLICE = 16, THREADS = SIDE * SIDE };

// Element (i, kk) of op(a) is at i * a_row + kk * a_k, element (kk, j) of op(b) at kk * b_k + j * b_col. One of the
// two strides is 1.
struct strides {
    int64_t a_row, a_k, b_k, b_col;
};

// The part [first, first + TILE) x [k0, k0 + SLICE) of an operand, zero outside it. Neighbouring threads read
// neighbouring addresses.
template <typename T>
__device__ void load(float (*to)[TILE + 1], const T *from, int64_t stride, int64_t stride_k, int64_t first,
                     int64_t count, int64_t k0, int64_t k)
{
    const int t = threadIdx.x;
    for (int r = 0; r < TILE * SLICE / THREADS; r++) {
        const int kk = stride_k == 1 ? t % SLICE : t / TILE + r * (THREADS / TILE);
        const int i = stride_k == 1 ? t / SLICE + r * (THREADS / SLICE) : t % TILE;
        const bool inside = first + i < count && k0 + kk < k;
        to[kk][i] = inside ? to_f32(from[(first + i) * stride + (k0 + kk) * stride_k]) : 0.0f;
    }
}

// Of FP8 operands. One product: that of powers of two is exact.
struct scales {
    const float *a, *b;
};

template <typename A, typename B, typename BIAS, typename C>
__global__ void __launch_bounds__(THREADS)
gemm(const A *a, const B *b, C *c, const BIAS *bias, const C *add, scales scale, int64_t m, int64_t n, int64_t k,
     strides at)
{
    __shared__ float as[SLICE][TILE + 1], bs[SLICE][TILE + 1];
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const int64_t j0 = (int64_t)blockIdx.x * TILE;
    for (int64_t i0 = (int64_t)blockIdx.y * TILE; i0 < m; i0 += (int64_t)gridDim.y * TILE) {
        float sum[PER_THREAD][PER_THREAD] = {};
        for (int64_t k0 = 0; k0 < k; k0 += SLICE) {
            load(as, a, at.a_row, at.a_k, i0, m, k0, k);
            load(bs, b, at.b_col, at.b_k, j0, n, k0, k);
            __syncthreads();
            for (int kk = 0; kk < SLICE; kk++)
                for (int r = 0; r < PER_THREAD; r++)
                    for (int q = 0; q < PER_THREAD; q++) sum[r][q] += as[kk][y + SIDE * r] * bs[kk][x + SIDE * q];
            __syncthreads();
        }
        for (int r = 0; r < PER_THREAD; r++)
            for (int q = 0; q < PER_THREAD; q++) {
                const int64_t i = i0 + y + SIDE * r, j = j0 + x + SIDE * q;
                if (i >= m || j >= n) continue;
                float v = sum[r][q];
                if constexpr (sizeof(A) == 1) v *= *scale.a * *scale.b;
                if (bias) v += to_f32(bias[j]);
                if (add) v += to_f32(add[i * n + j]);
                c[i * n + j] = from_f32<C>(v);
            }
    }
}

template <typename T, typename C>
__global__ void __launch_bounds__(THREADS) fill(C *c, const T *bias, int64_t m, int64_t n, bool add)
{
    const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j >= n) return;
    const float first = bias ? to_f32(bias[j]) : 0.0f;
    for (int64_t i = blockIdx.y; i < m; i += gridDim.y) {
        const float v = add ? to_f32(c[i * n + j]) + first : first;
        c[i * n + j] = from_f32<C>(v);
    }
}

// `columns` elements per block across, rows divided among blocks.
dim3 grid(int64_t m, int64_t n, int64_t rows, int64_t columns)
{
    const int64_t down = (m + rows - 1) / rows, across = (n + columns - 1) / columns, down_max = 65535;
    CHECK(across <= INT32_MAX, "a GEMM with %lld columns", (long long)n);
    return dim3((unsigned)across, (unsigned)(down < down_max ? down : down_max));
}

template <typename A, typename B, typename BIAS, typename C> void launch_gemm(const struct gemm_args *g, dev_stream s)
{
    const strides at = {g->a.trans ? 1 : g->k, g->a.trans ? g->m : 1, g->b.trans ? 1 : g->n, g->b.trans ? g->k : 1};
    gemm<A, B, BIAS, C><<<grid(g->m, g->n, TILE, TILE), THREADS, 0, queue_of(s)>>>(
        (const A *)g->a.data, (const B *)g->b.data, (C *)g->c, (const BIAS *)gemm_bias(g),
        (const C *)(g->accum == ACCUM_ADD ? g->c : gemm_addend(g)), {g->a.scale, g->b.scale}, g->m, g->n, g->k, at);
}

template <typename A, typename B> void launch_fp8(const struct gemm_args *g, dev_stream s)
{
    if (g->cdt == DTYPE_F32)
        launch_gemm<A, B, __nv_bfloat16, float>(g, s);
    else
        launch_gemm<A, B, __nv_bfloat16, __nv_bfloat16>(g, s);
}

template <typename T, typename C> void launch_fill(const struct gemm_args *g, dev_stream s)
{
    fill<T, C><<<grid(g->m, g->n, 1, THREADS), THREADS, 0, queue_of(s)>>>((C *)g->c, (const T *)gemm_bias(g), g->m,
                                                                          g->n, g->accum == ACCUM_ADD);
}

} // namespace

extern "C" status gemm_plain(const struct gemm_args *g, dev_stream s)
{
    if (g->m == 0 || g->n == 0) return STATUS_OK;
    if (gemm_fp8(g) && g->a.dt == DTYPE_F8_E5M2)
        launch_fp8<e5m2, e4m3>(g, s);
    else if (gemm_fp8(g) && g->b.dt == DTYPE_F8_E5M2)
        launch_fp8<e4m3, e5m2>(g, s);
    else if (gemm_fp8(g))
        launch_fp8<e4m3, e4m3>(g, s);
    else if (g->a.dt == DTYPE_F32)
        launch_gemm<float, float, float, float>(g, s);
    else if (g->cdt == DTYPE_F32)
        launch_gemm<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float>(g, s);
    else
        launch_gemm<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(g, s);
    return cuda_set_launched(s, "gemm");
}

extern "C" status gemm_plain_bias(const struct gemm_args *g, dev_stream s)
{
    if (g->m == 0 || g->n == 0) return STATUS_OK;
    if (gemm_bias_dt(g) == DTYPE_F32)
        launch_fill<float, float>(g, s);
    else if (g->cdt == DTYPE_F32)
        launch_fill<__nv_bfloat16, float>(g, s);
    else
        launch_fill<__nv_bfloat16, __nv_bfloat16>(g, s);
    return cuda_set_launched(s, "gemm");
}
