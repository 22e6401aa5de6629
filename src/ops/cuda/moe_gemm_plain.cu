// Grouped GEMMs of any size and type on any GPU: 64 x 64 tiles, FMAs in f32. For F32, for sizes that the Hopper
// kernel does not support, and for other GPUs. Codes are decoded as they are read; their layouts: ops/ops_moe.h.
#include "ops/cuda/device.cuh"
#include <cuda_fp8.h>
extern "C" {
#include "ops/cuda/moe_backends.h"
}

namespace {

// A block of 16 x 16 threads; thread (x, y) has rows y + 16 r and columns x + 16 q.
enum { SIDE = 16, PER_THREAD = 4, TILE = SIDE * PER_THREAD, SLICE = 16, THREADS = SIDE * SIDE };
static_assert(MOE_ALIGN % TILE == 0, "a tile of rows has one expert");

// The last expert with rows that begins at or before the row.
__device__ inline int expert_of(const expert_gemm_args &a, int64_t row)
{
    int low = 0, high = (int)a.experts - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (a.offsets[middle + 1] <= row) low = middle + 1;
        else high = middle;
    }
    return low;
}
__device__ inline int64_t token_of(const expert_gemm_args &a, bool gathered, int64_t row)
{
    return gathered ? a.source[row] / a.top_k : row;
}

// An element of an operand: of type T, or a code.
template <typename T> __device__ inline float value_at(const struct operand &o, int64_t i)
{
    return to_f32(((const T *)o.data)[i]);
}
template <> __device__ inline float value_at<uint8_t>(const struct operand &o, int64_t i)
{
    const __nv_fp8_interpretation_t kind = o.dt == DTYPE_F8_E5M2 ? __NV_E5M2 : __NV_E4M3;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)o.data)[i], kind)));
}
template <typename IN> __device__ inline float scale_of(const expert_gemm_args &a)
{
    return sizeof(IN) == 1 ? *a.a.scale * *a.b.scale : 1;
}
// Element i of n, j of k of an expert's matrix, as this pass stores it.
template <typename IN>
__device__ inline float weight_at(const expert_gemm_args &a, int64_t expert, int64_t i, int64_t j)
{
    const bool trans = sizeof(IN) == 1 && a.pass == EXPERT_DGRAD;
    return value_at<IN>(a.b, trans ? j * (a.experts * a.n) + expert * a.n + i : (expert * a.n + i) * a.k + j);
}
// WGRAD: column c of `width` in a sorted row.
template <typename IN>
__device__ inline float sorted_at(const expert_gemm_args &a, const struct operand &o, bool gathered, int64_t row,
                                  int64_t c, int64_t width)
{
    const bool trans = sizeof(IN) == 1 && !gathered;
    return value_at<IN>(o, trans ? (row / a.ld * width + c) * a.ld + row % a.ld
                                 : token_of(a, gathered, row) * width + c);
}

// Matmul of a slice in shared memory.
__device__ inline void multiply(float (&sum)[PER_THREAD][PER_THREAD], const float (*a)[TILE + 1],
                                const float (*b)[TILE + 1])
{
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    __syncthreads();
    for (int kk = 0; kk < SLICE; kk++)
        for (int r = 0; r < PER_THREAD; r++)
            for (int q = 0; q < PER_THREAD; q++) sum[r][q] += a[kk][y + SIDE * r] * b[kk][x + SIDE * q];
    __syncthreads();
}

// FWD and DGRAD: a tile of rows and columns of c. The sum is over `in` columns of a.
template <typename T, typename IN> __global__ void __launch_bounds__(THREADS) rows_kernel(const expert_gemm_args a)
{
    __shared__ float as[SLICE][TILE + 1], bs[SLICE][TILE + 1];
    const bool fwd = a.pass == EXPERT_FWD, gathered = a.gather == EXPERT_GATHER_A;
    const int64_t in = fwd ? a.k : a.n, out = fwd ? a.n : a.k, column = (int64_t)blockIdx.x * TILE,
                  end = a.offsets[a.experts];
    for (int64_t row = (int64_t)blockIdx.y * TILE; row < end; row += (int64_t)gridDim.y * TILE) {
        const int expert = expert_of(a, row);
        const int64_t real = (int64_t)a.offsets[expert] + a.counts[expert];
        float sum[PER_THREAD][PER_THREAD] = {};
        for (int64_t first = 0; first < in; first += SLICE) {
            for (int i = threadIdx.x; i < TILE * SLICE; i += THREADS) {
                const int kk = i % SLICE, r = i / SLICE;
                const bool some = row + r < real && first + kk < in;
                as[kk][r] = some ? value_at<IN>(a.a, token_of(a, gathered, row + r) * in + first + kk) : 0;
                const int bk = fwd ? kk : i / TILE, c = fwd ? r : i % TILE; // neighbours read neighbouring addresses
                const bool inside = column + c < out && first + bk < in;
                const int64_t i_sum = first + bk, i_out = column + c;
                bs[bk][c] = inside ? weight_at<IN>(a, expert, fwd ? i_out : i_sum, fwd ? i_sum : i_out) : 0;
            }
            multiply(sum, as, bs);
        }
        for (int r = 0; r < PER_THREAD; r++)
            for (int q = 0; q < PER_THREAD; q++) {
                const int64_t i = row + threadIdx.x / SIDE + SIDE * r, j = column + threadIdx.x % SIDE + SIDE * q;
                if (j < out) ((T *)a.c)[i * out + j] = from_f32<T>(i < real ? sum[r][q] * scale_of<IN>(a) : 0);
            }
    }
}

// WGRAD: a tile of one expert's matrix.
template <typename IN> __global__ void __launch_bounds__(THREADS) weights_kernel(const expert_gemm_args a)
{
    __shared__ float as[SLICE][TILE + 1], bs[SLICE][TILE + 1];
    const bool in_a = a.gather == EXPERT_GATHER_A, in_b = a.gather == EXPERT_GATHER_B;
    const int64_t n0 = (int64_t)blockIdx.y * TILE, k0 = (int64_t)blockIdx.x * TILE;
    for (int64_t expert = blockIdx.z; expert < a.experts; expert += gridDim.z) {
        const int64_t begin = a.offsets[expert], end = begin + a.counts[expert];
        float sum[PER_THREAD][PER_THREAD] = {};
        for (int64_t first = begin; first < end; first += SLICE) {
            for (int i = threadIdx.x; i < TILE * SLICE; i += THREADS) {
                const int kk = i / TILE, c = i % TILE;
                const int64_t row = first + kk;
                const bool some = row < end;
                as[kk][c] = some && n0 + c < a.n ? sorted_at<IN>(a, a.a, in_a, row, n0 + c, a.n) : 0;
                bs[kk][c] = some && k0 + c < a.k ? sorted_at<IN>(a, a.b, in_b, row, k0 + c, a.k) : 0;
            }
            multiply(sum, as, bs);
        }
        for (int r = 0; r < PER_THREAD; r++)
            for (int q = 0; q < PER_THREAD; q++) {
                const int64_t i = n0 + threadIdx.x / SIDE + SIDE * r, j = k0 + threadIdx.x % SIDE + SIDE * q;
                if (i >= a.n || j >= a.k) continue;
                float *to = (float *)a.c + (expert * a.n + i) * a.k + j;
                const float x = sum[r][q] * scale_of<IN>(a);
                *to = a.accum == ACCUM_ADD ? *to + x : x;
            }
    }
}

} // namespace

extern "C" status cuda_plain_expert_gemm(const struct expert_gemm_args *a, dev_stream s)
{
    const int64_t rows = moe_rows_max(a->rows, a->top_k, a->experts, a->align), most = 65535;
    const auto tiles = [](int64_t count) { return (count + TILE - 1) / TILE; };
    const int64_t across = tiles(a->pass == EXPERT_FWD ? a->n : a->k),
                  down = a->pass == EXPERT_WGRAD ? tiles(a->n) : tiles(rows);
    CHECK(across <= INT32_MAX && (a->pass != EXPERT_WGRAD || down <= most), "an expert of %lld x %lld",
          (long long)a->n, (long long)a->k);
    const dim3 grid((unsigned)across, (unsigned)(down < most ? down : most),
                    (unsigned)(a->pass == EXPERT_WGRAD ? a->experts : 1));
    const bool wgrad = a->pass == EXPERT_WGRAD, fp8 = expert_gemm_fp8(a);
    BY_DTYPE(a->dt, {
        if (wgrad && fp8) weights_kernel<uint8_t><<<grid, THREADS, 0, queue_of(s)>>>(*a);
        else if (wgrad) weights_kernel<T><<<grid, THREADS, 0, queue_of(s)>>>(*a);
        else if (fp8) rows_kernel<T, uint8_t><<<grid, THREADS, 0, queue_of(s)>>>(*a);
        else rows_kernel<T, T><<<grid, THREADS, 0, queue_of(s)>>>(*a);
    });
    return cuda_set_launched(s, "expert_gemm (plain)");
}
