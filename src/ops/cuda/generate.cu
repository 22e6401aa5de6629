// The ops of generation beside attn_decode.cu. Bound: memory bandwidth for per_head_gemm's matrices; kv_cache_append is
// a launch.
#include "ops/cuda/rowwise.cuh"

namespace {

// ---- rows into caches: a block for each sequence and array

enum { PUT_THREADS = 128 };

template <typename T, int W> __global__ void __launch_bounds__(PUT_THREADS) put_kernel(const kv_cache_append_args a)
{
    const cache_part &p = a.part[blockIdx.y];
    const int64_t b = blockIdx.x, row = min(max((int64_t)a.lengths[b], (int64_t)1), a.capacity) - 1; // no check here
    const T *x = (const T *)p.x + b * p.x_stride;
    T *to = (T *)p.cache + (b * a.capacity + row) * p.stride;
    for (int64_t i = (int64_t)threadIdx.x * W; i < p.width; i += PUT_THREADS * W)
        store_vec(to + i, load_vec<W>(x + i));
}

bool put_wide(const cache_part &p, int64_t width)
{
    return p.width == 0 || (aligned16(p.x) && aligned16(p.cache) &&
                            p.x_stride % width == 0 && p.stride % width == 0 && p.width % width == 0);
}

status kv_cache_append(const struct kv_cache_append_args *a, dev_stream s)
{
    CHECK(a->batch < INT32_MAX && a->capacity > 0, "%lld sequences of %lld", (long long)a->batch,
          (long long)a->capacity);
    if (a->batch == 0) return STATUS_OK;
    const dim3 grid((unsigned)a->batch, a->part[1].width ? 2 : 1);
    BY_DTYPE(a->dt, {
        if (put_wide(a->part[0], WIDE<T>) && put_wide(a->part[1], WIDE<T>))
            put_kernel<T, WIDE<T>><<<grid, PUT_THREADS, 0, queue_of(s)>>>(*a);
        else
            put_kernel<T, 1><<<grid, PUT_THREADS, 0, queue_of(s)>>>(*a);
    });
    return cuda_set_launched(s, "kv_cache_append");
}

// ---- a matrix for each head. A block has some columns of one head and up to ROWS rows, so W is read once for them.

enum { ROWS = 4, THREADS = 128, ACROSS = 8, DOWN = THREADS / ACROSS, WARPS = THREADS / WARP };

struct head_place {
    int64_t row, rows; // rows of the block: [row, row + rows)
    int h;
};
__device__ inline head_place head_at(const per_head_gemm_args &a)
{
    const int64_t row = (int64_t)blockIdx.z * ROWS;
    return {row, min((int64_t)ROWS, a.rows - row), (int)blockIdx.y};
}

// The tails, by the blocks of the first columns.
template <typename T> __device__ inline void copy_tails(const per_head_gemm_args &a, const head_place &at)
{
    if (blockIdx.x != 0) return;
    for (int64_t r = at.row; r < at.row + at.rows; r++)
        for (int64_t i = threadIdx.x; i < a.tail; i += THREADS)
            ((T *)a.c)[r * a.c_stride + at.h * a.c_head + a.n + i] =
                ((const T *)a.a)[r * a.a_stride + at.h * a.a_head + a.k + i];
}

// W [k, n]: ACROSS threads have W columns each, DOWN of them split k; their sums are added in order.
template <typename T, int W> __global__ void __launch_bounds__(THREADS) columns_kernel(const per_head_gemm_args a)
{
    __shared__ float part[DOWN][ROWS][ACROSS * W];
    const head_place at = head_at(a);
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    const int64_t first = (int64_t)blockIdx.x * ACROSS * W, col = first + across * W;
    const T *x = (const T *)a.a + at.row * a.a_stride + at.h * a.a_head, *w = (const T *)a.w + at.h * a.k * a.n + col;
    float sum[ROWS][W] = {};
    for (int64_t p = down; p < a.k && col < a.n; p += DOWN) {
        float y[W];
        widen(load_vec<W>(w + p * a.n), y);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= at.rows) break;
            const float f = to_f32(x[r * a.a_stride + p]);
            for (int i = 0; i < W; i++) sum[r][i] = fmaf(f, y[i], sum[r][i]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < W; i++) part[down][r][across * W + i] = sum[r][i];
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * ACROSS * W; e += THREADS) {
        const int r = e / (ACROSS * W), j = e % (ACROSS * W);
        if (r >= at.rows || first + j >= a.n) continue;
        float all = 0;
        for (int i = 0; i < DOWN; i++) all += part[i][r][j];
        ((T *)a.c)[(at.row + r) * a.c_stride + at.h * a.c_head + first + j] = from_f32<T>(all);
    }
    copy_tails<T>(a, at);
}

// W [n, k]: a warp for each column.
template <typename T, int W> __global__ void __launch_bounds__(THREADS) dots_kernel(const per_head_gemm_args a)
{
    const head_place at = head_at(a);
    const int lane = threadIdx.x % WARP;
    const int64_t j = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    copy_tails<T>(a, at);
    if (j >= a.n) return;
    const T *x = (const T *)a.a + at.row * a.a_stride + at.h * a.a_head, *w = (const T *)a.w + (at.h * a.n + j) * a.k;
    float sum[ROWS] = {};
    for (int64_t p = lane * W; p < a.k; p += WARP * W) {
        float y[W], f[W];
        widen(load_vec<W>(w + p), y);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= at.rows) break;
            widen(load_vec<W>(x + r * a.a_stride + p), f);
            for (int i = 0; i < W; i++) sum[r] = fmaf(f[i], y[i], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float all = warp_sum(sum[r]);
        if (r < at.rows && lane == 0)
            ((T *)a.c)[(at.row + r) * a.c_stride + at.h * a.c_head + j] = from_f32<T>(all);
    }
}

// Packs run along n of W [k, n], along k of W [n, k] and a.
bool head_wide(const per_head_gemm_args *a, int64_t width)
{
    if (!a->trans) return aligned16(a->w) && a->n % width == 0;
    return aligned16(a->w) && aligned16(a->a) && a->k % width == 0 && a->a_stride % width == 0 &&
           a->a_head % width == 0;
}

template <typename T, int W> void head_queue(const per_head_gemm_args *a, cudaStream_t queue)
{
    const int64_t each = a->trans ? WARPS : ACROSS * W;
    const dim3 grid((unsigned)((a->n + each - 1) / each), (unsigned)a->heads, (unsigned)((a->rows + ROWS - 1) / ROWS));
    if (a->trans)
        dots_kernel<T, W><<<grid, THREADS, 0, queue>>>(*a);
    else
        columns_kernel<T, W><<<grid, THREADS, 0, queue>>>(*a);
}

status per_head_gemm(const struct per_head_gemm_args *a, dev_stream s)
{
    CHECK(a->a_head >= a->k + a->tail && a->c_head >= a->n + a->tail, "heads of %lld and %lld, %lld and %lld apart",
          (long long)(a->k + a->tail), (long long)(a->n + a->tail), (long long)a->a_head, (long long)a->c_head);
    CHECK(a->heads < 65536 && a->rows < 65536 * ROWS && a->n > 0, "%lld rows of %lld heads of %lld", (long long)a->rows,
          (long long)a->heads, (long long)a->n);
    if (a->rows == 0) return STATUS_OK;
    BY_DTYPE(a->dt, {
        if (head_wide(a, WIDE<T>))
            head_queue<T, WIDE<T>>(a, queue_of(s));
        else
            head_queue<T, 1>(a, queue_of(s));
    });
    return cuda_set_launched(s, "per_head_gemm");
}

} // namespace

extern "C" void cuda_generate_slots(struct ops *o)
{
    o->kv_cache_append = kv_cache_append;
    o->per_head_gemm = per_head_gemm;
}
