// Elementwise ops around the expert GEMMs. Bound: memory bandwidth. A warp has a sorted row (its activation, both
// directions) or 32 vectors of a token's row (the combination), and loads several vectors before it uses the first.
#include "ops/cuda/rowwise.cuh"
extern "C" {
#include "ops/cuda/moe_backends.h"
}

namespace {

// vectors that a lane holds of each operand
enum { THREADS = 256, WARPS = THREADS / WARP, AHEAD = 4, AHEAD_BWD = 1, PLACES = 8 };

template <typename T> __device__ inline float sigmoid(float z)
{
    if (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-z));
    return 1.0f / (1.0f + expf(-z));
}
// sigmoid(z) and 1 - sigmoid(z), neither by a difference that cancels in f32; in bf16 the result is rounded to less
// than its error.
template <typename T> __device__ inline void sigmoids(float z, float &s, float &rest)
{
    if (sizeof(T) == 2) {
        s = sigmoid<T>(z);
        rest = 1.0f - s;
        return;
    }
    const float t = expf(-fabsf(z)), larger = 1.0f / (1.0f + t), smaller = t * larger;
    s = z >= 0 ? larger : smaller;
    rest = z >= 0 ? smaller : larger;
}
template <int W, typename T> __device__ inline void store_zeros(T *p)
{
    const float zero[W] = {};
    store_vec(p, narrow<T>(zero));
}

// As in forward; backward recomputes it here.
template <typename T> __device__ inline float activated(float w, float gate, float up)
{
    return w * (up * (gate * sigmoid<T>(gate)));
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) act_fwd_kernel(const expert_act_fwd_args a)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, f = a.f;
    if (row >= a.offsets[a.experts]) return;
    const int slot = a.source[row], lane = threadIdx.x % WARP;
    const T *up = (const T *)a.up + row * 2 * f;
    T *m = (T *)a.m + row * f;
    const float w = slot < 0 ? 0 : ((const float *)a.weight)[slot];
    for (int64_t at = lane * W; at < f; at += AHEAD * WARP * W) {
        vec<T, W> g[AHEAD], u[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t i = at + k * WARP * W;
            if (i >= f || slot < 0) continue;
            g[k] = load_vec<W>(up + i);
            u[k] = load_vec<W>(up + f + i);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t i = at + k * WARP * W;
            if (i >= f) continue;
            if (slot < 0) {
                store_zeros<W>(m + i);
                continue;
            }
            float gate[W], x[W];
            widen(g[k], gate);
            widen(u[k], x);
            for (int j = 0; j < W; j++) x[j] = activated<T>(w, gate[j], x[j]);
            store_vec(m + i, narrow<T>(x));
        }
    }
}

// dup may alias up, and m dm: a lane writes only what it has read.
template <typename T, int W> __global__ void __launch_bounds__(THREADS, 4) act_bwd_kernel(const expert_act_bwd_args a)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, f = a.f;
    if (row >= a.offsets[a.experts]) return;
    const int slot = a.source[row], lane = threadIdx.x % WARP;
    const T *up = (const T *)a.up + row * 2 * f, *dm = (const T *)a.dm + row * f;
    T *dup = (T *)a.dup + row * 2 * f, *m = (T *)a.m + row * f;
    const float w = slot < 0 ? 0 : ((const float *)a.weight)[slot];
    float dw = 0;
    for (int64_t at = lane * W; at < f; at += AHEAD_BWD * WARP * W) {
        vec<T, W> g[AHEAD_BWD], u[AHEAD_BWD], d[AHEAD_BWD];
#pragma unroll
        for (int k = 0; k < AHEAD_BWD; k++) {
            const int64_t i = at + k * WARP * W;
            if (i >= f || slot < 0) continue;
            g[k] = load_vec_once<W>(up + i);
            u[k] = load_vec_once<W>(up + f + i);
            d[k] = load_vec_once<W>(dm + i);
        }
#pragma unroll
        for (int k = 0; k < AHEAD_BWD; k++) {
            const int64_t i = at + k * WARP * W;
            if (i >= f) continue;
            if (slot < 0) {
                store_zeros<W>(m + i);
                store_zeros<W>(dup + i);
                store_zeros<W>(dup + f + i);
                continue;
            }
            float gate[W], x[W], dy[W];
            widen(g[k], gate);
            widen(u[k], x);
            widen(d[k], dy);
            float again[W];
            for (int j = 0; j < W; j++) {
                float s, rest;
                sigmoids<T>(gate[j], s, rest);
                const float silu = gate[j] * s;
                again[j] = activated<T>(w, gate[j], x[j]);
                dw += dy[j] * silu * x[j];
                gate[j] = w * dy[j] * x[j] * s * (1.0f + gate[j] * rest);
                x[j] = w * dy[j] * silu;
            }
            store_vec(m + i, narrow<T>(again));
            store_vec(dup + i, narrow<T>(gate));
            store_vec(dup + f + i, narrow<T>(x));
        }
    }
    dw = warp_sum(dw);
    if (lane == 0 && slot >= 0) ((float *)a.dweight)[slot] = dw;
}

// B: the type of base. A warp has one of `chunks` parts of a token's row.
template <typename T, typename B, int W>
__global__ void __launch_bounds__(THREADS) combine_kernel(const combine_args a, int chunks)
{
    const int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, t = index / chunks;
    const int lane = threadIdx.x % WARP, k = (int)a.top_k;
    const int64_t at = (index % chunks * WARP + lane) * W, d = a.d;
    if (t >= (a.count ? *a.count : a.rows)) return;
    const int mine = lane < k ? a.place[t * k + lane] : -1;
    const bool in = at < d;
    float sum[W] = {};
    if (a.base && in) {
        const float gate = a.gate ? sigmoid<float>(((const float *)a.gate)[t]) : 1;
        widen(load_vec<W>((const B *)a.base + t * d + at), sum);
        for (int i = 0; i < W; i++) sum[i] *= gate;
    }
    for (int first = 0; first < k; first += PLACES) {
        vec<T, W> x[PLACES];
        int row[PLACES];
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            row[j] = __shfl_sync(0xffffffffu, mine, first + j);
            if (in && row[j] >= 0) x[j] = load_vec_once<W>((const T *)a.x + row[j] * d + at);
        }
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            if (!in || row[j] < 0) continue;
            float add[W];
            widen(x[j], add);
            for (int i = 0; i < W; i++) sum[i] += add[i];
        }
    }
    if (in) store_vec((T *)a.y + t * d + at, narrow<T>(sum));
}

template <typename T, int W> __global__ void __launch_bounds__(THREADS) gate_bwd_kernel(const combine_gate_bwd_args a)
{
    const int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, d = a.d;
    const int lane = threadIdx.x % WARP;
    if (t >= a.rows) return;
    const T *dy = (const T *)a.dy + t * d, *base = (const T *)a.base + t * d;
    T *dbase = (T *)a.dbase + t * d;
    float gate, rest, along = 0;
    sigmoids<float>(((const float *)a.gate)[t], gate, rest);
    for (int64_t i = lane * W; i < d; i += WARP * W) {
        float g[W], b[W];
        widen(load_vec_once<W>(dy + i), g);
        widen(load_vec_once<W>(base + i), b);
        for (int j = 0; j < W; j++) {
            along += g[j] * b[j];
            g[j] *= gate;
        }
        store_vec(dbase + i, narrow<T>(g));
    }
    along = warp_sum(along);
    if (lane == 0) ((T *)a.dgate)[t] = from_f32<T>(along * gate * rest);
}

unsigned blocks_for(int64_t warps) { return (unsigned)((warps + WARPS - 1) / WARPS); }

// True: rows of `width` consist of whole vectors.
bool wide(dtype dt, int64_t width, const void *a, const void *b, const void *c, const void *d)
{
    return width * (int64_t)dtype_bytes(dt) % 16 == 0 && aligned16(a) && aligned16(b) && aligned16(c) && aligned16(d);
}
#define BY_WIDTH(is_wide, ...)                                                                                         \
    do {                                                                                                               \
        if (is_wide) {                                                                                                 \
            constexpr int W = WIDE<T>;                                                                                 \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int W = 1;                                                                                       \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

} // namespace

extern "C" status cuda_expert_act_fwd(const struct expert_act_fwd_args *a, dev_stream s)
{
    const unsigned blocks = blocks_for(moe_rows_max(a->rows, a->top_k, a->experts, a->align));
    const bool vectors = wide(a->dt, a->f, a->up, a->m, NULL, NULL);
    BY_DTYPE(a->dt, BY_WIDTH(vectors, (act_fwd_kernel<T, W><<<blocks, THREADS, 0, queue_of(s)>>>(*a))));
    return cuda_set_launched(s, "expert_act_fwd");
}

extern "C" status cuda_expert_act_bwd(const struct expert_act_bwd_args *a, dev_stream s)
{
    const unsigned blocks = blocks_for(moe_rows_max(a->rows, a->top_k, a->experts, a->align));
    const bool vectors = wide(a->dt, a->f, a->up, a->m, a->dm, a->dup);
    BY_DTYPE(a->dt, BY_WIDTH(vectors, (act_bwd_kernel<T, W><<<blocks, THREADS, 0, queue_of(s)>>>(*a))));
    return cuda_set_launched(s, "expert_act_bwd");
}

template <typename T, typename B> static void queue_combine(const struct combine_args *a, bool vectors, dev_stream s)
{
    BY_WIDTH(vectors, {
        const int64_t chunks = (a->d + WARP * W - 1) / (WARP * W);
        combine_kernel<T, B, W><<<blocks_for(a->rows * chunks), THREADS, 0, queue_of(s)>>>(*a, (int)chunks);
    });
}
extern "C" status cuda_combine(const struct combine_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    CHECK(a->top_k <= MOE_TOP_K_MAX, "%lld places", (long long)a->top_k);
    const bool vectors = wide(a->dt, a->d, a->x, a->base, a->y, NULL);
    BY_DTYPE(a->dt, {
        if (a->base && a->base_dt != a->dt) queue_combine<T, float>(a, vectors, s);
        else queue_combine<T, T>(a, vectors, s);
    });
    return cuda_set_launched(s, "combine");
}

extern "C" status cuda_combine_gate_bwd(const struct combine_gate_bwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    const bool vectors = wide(a->dt, a->d, a->dy, a->base, a->dbase, NULL);
    BY_DTYPE(a->dt, BY_WIDTH(vectors, (gate_bwd_kernel<T, W><<<blocks_for(a->rows), THREADS, 0, queue_of(s)>>>(*a))));
    return cuda_set_launched(s, "combine_gate_bwd");
}
