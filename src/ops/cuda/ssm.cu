// The ops around the states of Mamba-2. Bound: memory bandwidth. Traffic per row, in units of heads d elements:
//
//   in    forward reads x, writes v; backward reads dv, ds and x, writes dx: 2 and 4
//   out   forward reads o, x, z, writes y; backward reads dy, o, x, z, writes ds and dz: 4 and 6
//
// A thread has W neighbouring channels of one head. In backward of the inputs `lanes` neighbours hold a head's row,
// and a warp stays at one head while it walks down its rows: sums over rows are each lane's own first, then the
// warp's tree, then partials.cuh.
#include "ops/cuda/partials.cuh"
#include "ops/cuda/rowwise.cuh"
extern "C" {
#include "ops/cuda/gdn_kernels.h"
}

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP, ROWS_MIN = 16 };

__device__ inline float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

struct ssm {
    const void *raw, *x, *o, *z, *dy, *dv, *ds;
    const float *a_log, *dt_bias, *skip, *dg, *step_in;
    // partial: [blocks of rows][dA_log: heads | ddt_bias: heads], partial_skip: [..][heads]
    float *step, *g, *partial, *partial_skip;
    void *out, *dz, *draw;                    // out: v, y, ds or dx
    int64_t rows, raw_stride, x_stride, z_stride, dz_stride, draw_stride, out_stride, rows_each;
    int heads, d;
};

// f(row, head, first channel of the row) for each run of W channels.
template <int W, typename F> __device__ inline void each_run(const ssm &a, F f)
{
    const uint32_t width = (uint32_t)(a.heads * (a.d / W)), per_head = (uint32_t)(a.d / W);
    const int64_t count = a.rows * width;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / width;
        const uint32_t at = (uint32_t)(i - row * width);
        f(row, (int)(at / per_head), (int)at * W);
    }
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) in_fwd_kernel(const ssm a)
{
    each_run<W>(a, [&](int64_t row, int h, int c) {
        const float step = softplus(to_f32(((const T *)a.raw)[row * a.raw_stride + h]) + a.dt_bias[h]);
        float f[W];
        widen(load_vec<W>((const T *)a.x + row * a.x_stride + c), f);
        for (int j = 0; j < W; j++) f[j] *= step;
        store_vec((T *)a.out + row * a.out_stride + c, narrow<T>(f));
        if (c != h * a.d) return;
        a.step[row * a.heads + h] = step;
        a.g[row * a.heads + h] = -expf(a.a_log[h]) * step;
    });
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) out_fwd_kernel(const ssm a)
{
    each_run<W>(a, [&](int64_t row, int h, int c) {
        float o[W], x[W], z[W];
        widen(load_vec<W>((const T *)a.o + row * a.out_stride + c), o);
        widen(load_vec<W>((const T *)a.x + row * a.x_stride + c), x);
        widen(load_vec<W>((const T *)a.z + row * a.z_stride + c), z);
        const float skip = a.skip[h];
        for (int j = 0; j < W; j++) o[j] = (o[j] + skip * x[j]) * z[j] * sigmoid(z[j]);
        store_vec((T *)a.out + row * a.out_stride + c, narrow<T>(o));
    });
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) out_bwd_kernel(const ssm a)
{
    each_run<W>(a, [&](int64_t row, int h, int c) {
        float o[W], x[W], z[W], dy[W];
        widen(load_vec<W>((const T *)a.dy + row * a.out_stride + c), dy);
        widen(load_vec<W>((const T *)a.o + row * a.out_stride + c), o);
        widen(load_vec<W>((const T *)a.x + row * a.x_stride + c), x);
        widen(load_vec<W>((const T *)a.z + row * a.z_stride + c), z);
        const float skip = a.skip[h];
        for (int j = 0; j < W; j++) {
            const float sg = sigmoid(z[j]);
            o[j] = dy[j] * (o[j] + skip * x[j]) * sg * (1.f + z[j] * (1.f - sg));
            dy[j] *= z[j] * sg;
        }
        store_vec((T *)a.out + row * a.out_stride + c, narrow<T>(dy));
        store_vec((T *)a.dz + row * a.dz_stride + c, narrow<T>(o));
    });
}

// grid: blocks of rows, groups of eight heads; a warp per head. `lanes` of the warp hold a row.
template <typename T, int W> __global__ void __launch_bounds__(THREADS) in_bwd_kernel(const ssm a, int lanes)
{
    const int h = blockIdx.y * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP, rank = lane % lanes;
    if (h >= a.heads) return;
    const float rate = expf(a.a_log[h]), bias = a.dt_bias[h], skip = a.ds ? a.skip[h] : 0;
    float da_log = 0, ddt_bias = 0, dskip = 0;
    const int64_t first = blockIdx.x * a.rows_each, last = min(first + a.rows_each, a.rows);
    for (int64_t row0 = first; row0 < last; row0 += WARP / lanes) { // the same for the whole warp, which sums together
        const int64_t row = row0 + lane / lanes, at = row * a.heads + h;
        const bool there = row < last;
        const float step = there ? a.step_in[at] : 0, pull = there ? -rate * a.dg[at] : 0;
        float by_v = 0;
        for (int c = rank * W; there && c < a.d; c += lanes * W) {
            float x[W], dv[W], ds[W] = {};
            widen(load_vec<W>((const T *)a.x + row * a.x_stride + h * a.d + c), x);
            widen(load_vec<W>((const T *)a.dv + at * a.d + c), dv);
            if (a.ds) widen(load_vec<W>((const T *)a.ds + at * a.d + c), ds);
            for (int j = 0; j < W; j++) {
                by_v += dv[j] * x[j];
                dskip += ds[j] * x[j];
                x[j] = step * dv[j] + skip * ds[j];
            }
            store_vec((T *)a.out + row * a.out_stride + h * a.d + c, narrow<T>(x));
        }
        for (int d = lanes / 2; d > 0; d /= 2) by_v += __shfl_xor_sync(0xffffffffu, by_v, d);
        if (!there || rank != 0) continue;
        const float raw = to_f32(((const T *)a.raw)[row * a.raw_stride + h]) + bias,
                    draw = (pull + by_v) / (1.f + expf(-raw));
        da_log += pull * step;
        ddt_bias += draw;
        ((T *)a.draw)[row * a.draw_stride + h] = from_f32<T>(draw);
    }
    da_log = warp_sum(da_log);
    ddt_bias = warp_sum(ddt_bias);
    dskip = warp_sum(dskip);
    if (lane != 0) return;
    a.partial[(int64_t)blockIdx.x * 2 * a.heads + h] = da_log;
    a.partial[((int64_t)blockIdx.x * 2 + 1) * a.heads + h] = ddt_bias;
    if (a.ds) a.partial_skip[(int64_t)blockIdx.x * a.heads + h] = dskip;
}

// W elements in 16 bytes, or one if unaligned.
template <typename T> bool ssm_wide(const ssm &a)
{
    const int64_t strides = a.d | a.x_stride | a.z_stride | a.dz_stride | a.out_stride;
    const uintptr_t places = (uintptr_t)a.x | (uintptr_t)a.o | (uintptr_t)a.z | (uintptr_t)a.dy | (uintptr_t)a.dv |
                             (uintptr_t)a.ds | (uintptr_t)a.out | (uintptr_t)a.dz;
    return strides % WIDE<T> == 0 && places % 16 == 0;
}
unsigned ssm_blocks(const ssm &a, int w, dev_stream s)
{
    const int64_t need = (a.rows * a.heads * (a.d / w) + THREADS - 1) / THREADS,
                  most = 32 * (int64_t)cuda_set(s)->multiprocessors;
    return (unsigned)(need < most ? need : most);
}
#define LAUNCH_RUNS(kernel)                                                                                            \
    do {                                                                                                               \
        if (ssm_wide<T>(x))                                                                                            \
            kernel<T, WIDE<T>><<<ssm_blocks(x, WIDE<T>, s), THREADS, 0, queue_of(s)>>>(x);                             \
        else                                                                                                           \
            kernel<T, 1><<<ssm_blocks(x, 1, s), THREADS, 0, queue_of(s)>>>(x);                                         \
    } while (0)

ssm ssm_of(int64_t rows, int64_t heads, int64_t d)
{
    CHECK(heads > 0 && d > 0 && heads * d < INT32_MAX, "%lld heads of %lld", (long long)heads, (long long)d);
    ssm x = {};
    x.rows = rows, x.heads = (int)heads, x.d = (int)d;
    x.out_stride = heads * d;
    return x;
}

} // namespace

extern "C" status cuda_ssm_in_fwd(const struct ssm_in_fwd_args *a, dev_stream s)
{
    ssm x = ssm_of(a->rows, a->heads, a->d);
    if (a->rows == 0) return STATUS_OK;
    x.raw = a->raw, x.x = a->x, x.a_log = (const float *)a->a_log, x.dt_bias = (const float *)a->dt_bias;
    x.step = (float *)a->step, x.g = (float *)a->g, x.out = a->v, x.raw_stride = a->raw_stride,
    x.x_stride = a->x_stride;
    BY_DTYPE(a->dt, LAUNCH_RUNS(in_fwd_kernel));
    return cuda_set_launched(s, "ssm_in_fwd");
}

extern "C" status cuda_ssm_in_bwd(const struct ssm_in_bwd_args *a, dev_stream s)
{
    ssm x = ssm_of(a->rows, a->heads, a->d);
    if (a->rows == 0) return STATUS_OK;
    x.raw = a->raw, x.x = a->x, x.dv = a->dv, x.ds = a->ds, x.dg = (const float *)a->dg,
    x.step_in = (const float *)a->step;
    x.a_log = (const float *)a->a_log, x.dt_bias = (const float *)a->dt_bias, x.skip = (const float *)a->skip;
    x.draw = a->draw, x.out = a->dx, x.raw_stride = a->raw_stride, x.x_stride = a->x_stride;
    x.draw_stride = a->draw_stride, x.out_stride = a->dx_stride;
    const int eights = (x.heads + WARPS - 1) / WARPS;
    int64_t blocks = 8 * (int64_t)cuda_set(s)->multiprocessors / eights + 1, most = (x.rows + ROWS_MIN - 1) / ROWS_MIN;
    blocks = partials_fit(blocks < most ? blocks : most, 3 * x.heads);
    x.rows_each = (x.rows + blocks - 1) / blocks;
    blocks = (x.rows + x.rows_each - 1) / x.rows_each;
    x.partial = (float *)cuda_set_workspace(s, sizeof(float) * 3 * (size_t)(x.heads * blocks), "ssm_in_bwd");
    x.partial_skip = x.partial + 2 * x.heads * blocks;
    const dim3 grid((unsigned)blocks, (unsigned)eights);
    BY_DTYPE(a->dt, {
        int lanes = 1;
        if (ssm_wide<T>(x)) {
            while (lanes < WARP && lanes * WIDE<T> < x.d) lanes *= 2;
            in_bwd_kernel<T, WIDE<T>><<<grid, THREADS, 0, queue_of(s)>>>(x, lanes);
        } else {
            while (lanes < WARP && lanes < x.d) lanes *= 2;
            in_bwd_kernel<T, 1><<<grid, THREADS, 0, queue_of(s)>>>(x, lanes);
        }
    });
    partials_add(s, x.partial, blocks, 2 * x.heads, x.heads, (float *)a->da_log, (float *)a->ddt_bias);
    if (a->ds) partials_add(s, x.partial_skip, blocks, x.heads, x.heads, (float *)a->dskip, NULL);
    return cuda_set_launched(s, "ssm_in_bwd");
}

extern "C" status cuda_ssm_out_fwd(const struct ssm_out_fwd_args *a, dev_stream s)
{
    ssm x = ssm_of(a->rows, a->heads, a->d);
    if (a->rows == 0) return STATUS_OK;
    x.o = a->o, x.x = a->x, x.z = a->z, x.skip = (const float *)a->skip, x.out = a->y;
    x.x_stride = a->x_stride, x.z_stride = a->z_stride;
    BY_DTYPE(a->dt, LAUNCH_RUNS(out_fwd_kernel));
    return cuda_set_launched(s, "ssm_out_fwd");
}

extern "C" status cuda_ssm_out_bwd(const struct ssm_out_bwd_args *a, dev_stream s)
{
    ssm x = ssm_of(a->rows, a->heads, a->d);
    if (a->rows == 0) return STATUS_OK;
    x.dy = a->dy, x.o = a->o, x.x = a->x, x.z = a->z, x.skip = (const float *)a->skip, x.out = a->ds, x.dz = a->dz;
    x.x_stride = a->x_stride, x.z_stride = a->z_stride, x.dz_stride = a->dz_stride;
    BY_DTYPE(a->dt, LAUNCH_RUNS(out_bwd_kernel));
    return cuda_set_launched(s, "ssm_out_bwd");
}
