// Attention, plain: one warp per row and head, key by key, sums in F32, no shared memory. Any head dim and
// alignment: lane i has elements i, i + 32, ... of a head. Forward keeps the running maximum m and the sum of exp(s
// - m). Backward computes dq by query row, then dk and dv by key row over the queries that see it, so every sum has
// one writer.
//
// The fallback for what fast backends do not support, and their reference in tests.
#include "ops/cuda/attn_docs.cuh"
#include "ops/cuda/attn_warp.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { WARPS = 4 };

// The work of one warp. Heads of a row are neighbours, so they read the same keys.
struct warp_item { int row, head, lane; bool any; };
__device__ inline warp_item warp_item_of(int rows, int heads)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    return {(int)(item / heads), (int)(item % heads), (int)threadIdx.x % WARP, item < (int64_t)rows * heads};
}
static inline unsigned warp_grid(int64_t rows, int64_t heads) { return (unsigned)((rows * heads + WARPS - 1) / WARPS); }

template <typename T, int PER>
__global__ void __launch_bounds__(WARPS *WARP) reference_fwd_kernel(attn_fwd_args a, attn_docs docs)
{
    const warp_item w = warp_item_of(docs.rows, a.heads);
    if (!w.any) return;
    const int hd = a.head_dim, hd_v = a.head_dim_v, kv = w.head / (int)(a.heads / a.heads_kv);
    const key_span keys = keys_of(docs, w.row);
    float q[PER];
    head_load(q, (const T *)a.q + w.row * a.q_stride + w.head * hd, hd, w.lane);
    softmax_state<PER> s;
    for (int u = keys.first; u <= keys.last; u += s.AT_ONCE)
        s.add(q, (const T *)a.k + kv * hd, (const T *)a.v + kv * hd_v, a.k_stride, a.v_stride, u, 1, keys.last + 1,
              (float)a.scale, hd, hd_v, w.lane);
    head_store((T *)a.o + (w.row * a.heads + w.head) * hd_v, s.o, 1 / s.sum, hd_v, w.lane);
    if (a.lse && w.lane == 0) ((float *)a.lse)[w.head * a.rows + w.row] = s.max + logf(s.sum);
}

// lse and delta of one row and head.
struct row_stats { float lse, delta; };
__device__ inline row_stats row_stats_of(const attn_bwd_args &a, int row, int head)
{
    int64_t at = head * a.rows + row;
    return {((const float *)a.lse)[at], ((const float *)a.scratch)[at]};
}

template <typename T, int PER>
__global__ void __launch_bounds__(WARPS *WARP) reference_dq_kernel(attn_bwd_args a, attn_docs docs)
{
    const warp_item w = warp_item_of(docs.rows, a.heads);
    if (!w.any) return;
    const int hd = a.head_dim, hd_v = a.head_dim_v, kv = w.head / (int)(a.heads / a.heads_kv);
    const row_stats r = row_stats_of(a, w.row, w.head);
    const T *k = (const T *)a.k + kv * hd, *v = (const T *)a.v + kv * hd_v;
    const key_span keys = keys_of(docs, w.row);
    float q[PER], grad[PER], dq[PER] = {0};
    head_load(q, (const T *)a.q + w.row * a.q_stride + w.head * hd, hd, w.lane);
    head_load(grad, (const T *)a.do_ + (w.row * a.heads + w.head) * hd_v, hd_v, w.lane);
#pragma unroll 2
    for (int u = keys.first; u <= keys.last; u++) {
        float x[PER], y[PER];
        head_load(x, k + u * a.k_stride, hd, w.lane);
        head_load(y, v + u * a.v_stride, hd_v, w.lane);
        float p = expf(head_dot(q, x) * (float)a.scale - r.lse), ds = p * (head_dot(grad, y) - r.delta);
#pragma unroll
        for (int i = 0; i < PER; i++) dq[i] = fmaf(ds, x[i], dq[i]);
    }
    head_store((T *)a.dq + w.row * a.dq_stride + w.head * hd, dq, (float)a.scale, hd, w.lane);
}

template <typename T, int PER>
__global__ void __launch_bounds__(WARPS *WARP, PER <= 4 ? 6 : 2) reference_dkv_kernel(attn_bwd_args a, attn_docs docs)
{
    const warp_item w = warp_item_of(docs.keys, a.heads_kv); // w.row: of keys
    if (!w.any) return;
    const int hd = a.head_dim, hd_v = a.head_dim_v, group = a.heads / a.heads_kv;
    const query_span queries = queries_of(docs, w.row);
    float k[PER], v[PER], dk[PER] = {0}, dv[PER] = {0};
    head_load(k, (const T *)a.k + w.row * a.k_stride + w.head * hd, hd, w.lane);
    head_load(v, (const T *)a.v + w.row * a.v_stride + w.head * hd_v, hd_v, w.lane);
    for (int h = w.head * group; h < (w.head + 1) * group; h++) {
#pragma unroll 2
        for (int t = queries.begin; t < queries.end; t++) {
            const row_stats r = row_stats_of(a, t, h);
            float x[PER], y[PER];
            head_load(x, (const T *)a.q + t * a.q_stride + h * hd, hd, w.lane);
            head_load(y, (const T *)a.do_ + (t * a.heads + h) * hd_v, hd_v, w.lane);
            float p = expf(head_dot(k, x) * (float)a.scale - r.lse), ds = p * (head_dot(v, y) - r.delta);
#pragma unroll
            for (int i = 0; i < PER; i++) {
                dk[i] = fmaf(ds, x[i], dk[i]);
                dv[i] = fmaf(p, y[i], dv[i]);
            }
        }
    }
    head_store((T *)a.dk + w.row * a.dk_stride + w.head * hd, dk, (float)a.scale, hd, w.lane);
    head_store((T *)a.dv + w.row * a.dv_stride + w.head * hd_v, dv, 1.0f, hd_v, w.lane);
}

// `lanes` (a power of two) neighbours share a row and head, in 16-byte packs if VECTOR.
template <typename T, bool VECTOR>
__global__ void __launch_bounds__(256)
    delta_kernel(const T *o, const T *grad, float *delta, int rows, int heads, int hd_v, int lanes)
{
    const int64_t item = ((int64_t)blockIdx.x * 256 + threadIdx.x) / lanes;
    const bool any = item < (int64_t)rows * heads;
    float sum = 0;
    for (int i = threadIdx.x % lanes; any && i < (VECTOR ? hd_v / pack<T>::COUNT : hd_v); i += lanes) {
        if (VECTOR) {
            pack<T> x = load_pack(o + item * hd_v + i * pack<T>::COUNT),
                    y = load_pack(grad + item * hd_v + i * pack<T>::COUNT);
#pragma unroll
            for (int e = 0; e < pack<T>::COUNT; e++) sum = fmaf(to_f32(x.v[e]), to_f32(y.v[e]), sum);
        } else {
            sum = fmaf(to_f32(o[item * hd_v + i]), to_f32(grad[item * hd_v + i]), sum);
        }
    }
    for (int d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (any && threadIdx.x % lanes == 0) delta[item % heads * rows + item / heads] = sum;
}

void attn_delta_queue(const struct attn_bwd_args *a, float *delta, cudaStream_t queue)
{
    BY_DTYPE(a->dt, {
        const bool vector = aligned16(a->o) && aligned16(a->do_) && a->head_dim_v % pack<T>::COUNT == 0;
        const int64_t units = vector ? a->head_dim_v / pack<T>::COUNT : a->head_dim_v;
        int lanes = 1;
        while (lanes < WARP && lanes < units) lanes *= 2;
        const unsigned grid = (unsigned)((a->rows * a->heads * lanes + 255) / 256);
        auto kernel = vector ? delta_kernel<T, true> : delta_kernel<T, false>;
        kernel<<<grid, 256, 0, queue>>>((const T *)a->o, (const T *)a->do_, delta, (int)a->rows, (int)a->heads,
                                        (int)a->head_dim_v, lanes);
    });
}

extern "C" size_t cuda_reference_attn_scratch(const struct attn_shape *shape, enum attn_pass pass)
{
    return pass == ATTN_BWD ? (size_t)(shape->heads * shape->rows) * sizeof(float) : 0;
}

extern "C" status cuda_reference_attn_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    check_widths(a);
    const attn_docs docs = attn_docs_of(a);
    BY_HEAD(a,
            reference_fwd_kernel<T, PER><<<warp_grid(a->rows, a->heads), WARPS * WARP, 0, queue_of(s)>>>(*a, docs));
    return cuda_set_launched(s, "attn_fwd (reference)");
}

extern "C" status cuda_reference_attn_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    check_widths(a);
    CHECK(a->scratch, "no scratch");
    const attn_docs docs = attn_docs_of(a);
    attn_delta_queue(a, (float *)a->scratch, queue_of(s));
    BY_HEAD(a, {
        reference_dq_kernel<T, PER><<<warp_grid(a->rows, a->heads), WARPS * WARP, 0, queue_of(s)>>>(*a, docs);
        reference_dkv_kernel<T, PER><<<warp_grid(docs.keys, a->heads_kv), WARPS * WARP, 0, queue_of(s)>>>(*a, docs);
    });
    return cuda_set_launched(s, "attn_bwd (reference)");
}
