// Attention, plain: one warp per row and head, key by key, sums in F32, no shared memory. Any head dim and
// alignment: lane i has elements i, i + 32, ... of a head. Forward keeps the running maximum m and the sum of exp(s
// - m). Backward computes dq by query row, then dk and dv by key row over the queries that see it, so every sum has
// one writer.
//
// The fallback for what fast backends do not support, and their reference in tests. Also here: decode, one query
// per sequence.
#include "ops/cuda/attn_docs.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { HD_MAX = HEAD_CUDA_MAX, WARPS = 4 };

// A head spread over a warp: PER elements in each lane.
template <typename T, int PER> __device__ inline void head_load(float (&x)[PER], const T *from, int hd, int lane)
{
#pragma unroll
    for (int i = 0; i < PER; i++) x[i] = i * WARP + lane < hd ? to_f32(from[i * WARP + lane]) : 0.0f;
}
template <typename T, int PER>
__device__ inline void head_store(T *to, const float (&x)[PER], float factor, int hd, int lane)
{
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (i * WARP + lane < hd) to[i * WARP + lane] = from_f32<T>(x[i] * factor);
}
template <int PER> __device__ inline float head_dot(const float (&x)[PER], const float (&y)[PER])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) sum = fmaf(x[i], y[i], sum);
    return warp_sum(sum);
}

// Online softmax over AT_ONCE keys at a time: independent dot products hide the latency of the sums over lanes.
template <int PER> struct softmax_state {
    enum { AT_ONCE = PER <= 4 ? 4 : 2 };
    float o[PER], max, sum;

    __device__ softmax_state() : max(-INFINITY), sum(0)
    {
        for (int i = 0; i < PER; i++) o[i] = 0;
    }
    // Keys u, u + step, ... below end.
    template <typename T>
    __device__ void add(const float (&q)[PER], const T *k, const T *v, int64_t k_stride, int64_t v_stride, int u,
                        int step, int end, float scale, int hd, int hd_v, int lane)
    {
        float x[AT_ONCE][PER], score[AT_ONCE], top = max;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            head_load(x[j], k + (u + j * step < end ? u + j * step : u) * k_stride, hd, lane);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            score[j] = head_dot(q, x[j]) * scale;
            if (u + j * step >= end) score[j] = -INFINITY;
            top = fmaxf(top, score[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            head_load(x[j], v + (u + j * step < end ? u + j * step : u) * v_stride, hd_v, lane);
        rescale(top);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float p = expf(score[j] - top);
            sum += p;
#pragma unroll
            for (int i = 0; i < PER; i++) o[i] = fmaf(p, x[j][i], o[i]);
        }
    }
    __device__ void rescale(float top)
    {
        float factor = max == -INFINITY ? 0.0f : expf(max - top);
        for (int i = 0; i < PER; i++) o[i] *= factor;
        sum *= factor;
        max = top;
    }
};

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
    const int hd = a.hd, hd_v = a.hd_v, kv = w.head / (int)(a.heads / a.heads_kv), first = first_key(docs, w.row);
    float q[PER];
    head_load(q, (const T *)a.q + w.row * a.q_stride + w.head * hd, hd, w.lane);
    softmax_state<PER> s;
    for (int u = first; u <= w.row; u += s.AT_ONCE)
        s.add(q, (const T *)a.k + kv * hd, (const T *)a.v + kv * hd_v, a.k_stride, a.v_stride, u, 1, w.row + 1,
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
    const int hd = a.hd, hd_v = a.hd_v, kv = w.head / (int)(a.heads / a.heads_kv);
    const row_stats r = row_stats_of(a, w.row, w.head);
    const T *k = (const T *)a.k + kv * hd, *v = (const T *)a.v + kv * hd_v;
    float q[PER], grad[PER], dq[PER] = {0};
    head_load(q, (const T *)a.q + w.row * a.q_stride + w.head * hd, hd, w.lane);
    head_load(grad, (const T *)a.do_ + (w.row * a.heads + w.head) * hd_v, hd_v, w.lane);
#pragma unroll 2
    for (int u = first_key(docs, w.row); u <= w.row; u++) {
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
    const warp_item w = warp_item_of(docs.rows, a.heads_kv);
    if (!w.any) return;
    const int hd = a.hd, hd_v = a.hd_v, group = a.heads / a.heads_kv, end = query_end(docs, w.row);
    float k[PER], v[PER], dk[PER] = {0}, dv[PER] = {0};
    head_load(k, (const T *)a.k + w.row * a.k_stride + w.head * hd, hd, w.lane);
    head_load(v, (const T *)a.v + w.row * a.v_stride + w.head * hd_v, hd_v, w.lane);
    for (int h = w.head * group; h < (w.head + 1) * group; h++) {
#pragma unroll 2
        for (int t = w.row; t < end; t++) {
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
        const bool vector = aligned16(a->o) && aligned16(a->do_) && a->hd_v % pack<T>::COUNT == 0;
        const int64_t units = vector ? a->hd_v / pack<T>::COUNT : a->hd_v;
        int lanes = 1;
        while (lanes < WARP && lanes < units) lanes *= 2;
        const unsigned grid = (unsigned)((a->rows * a->heads * lanes + 255) / 256);
        auto kernel = vector ? delta_kernel<T, true> : delta_kernel<T, false>;
        kernel<<<grid, 256, 0, queue>>>((const T *)a->o, (const T *)a->do_, delta, (int)a->rows, (int)a->heads,
                                        (int)a->hd_v, lanes);
    });
}

template <typename ARGS> static void check_widths(const ARGS *a)
{
    CHECK(a->hd > 0 && a->hd <= HD_MAX, "hd %lld, the limit is %d", (long long)a->hd, HD_MAX);
    CHECK(a->hd_v > 0 && a->hd_v <= HD_MAX, "hd_v %lld, the limit is %d", (long long)a->hd_v, HD_MAX);
}

// PER = elements of a head per lane. Two sizes, so a head of 128 does not need the registers of 512.
#define BY_HEAD(a_, ...)                            \
    BY_DTYPE((a_)->dt, {                            \
        if ((a_)->hd <= 128 && (a_)->hd_v <= 128) { \
            constexpr int PER = 4;                  \
            __VA_ARGS__;                            \
        } else {                                    \
            constexpr int PER = HD_MAX / WARP;      \
            __VA_ARGS__;                            \
        }                                           \
    })

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
        reference_dkv_kernel<T, PER><<<warp_grid(a->rows, a->heads_kv), WARPS * WARP, 0, queue_of(s)>>>(*a, docs);
    });
    return cuda_set_launched(s, "attn_bwd (reference)");
}

// One block per sequence and query head. Its warps take every DECODE_WARPS-th key; warp 0 then combines their sums
// in order.
enum { DECODE_WARPS = 8 };
template <typename T, int PER>
__global__ void __launch_bounds__(DECODE_WARPS *WARP) decode_kernel(attn_decode_args a)
{
    __shared__ float part_o[DECODE_WARPS][PER * WARP], part_max[DECODE_WARPS], part_sum[DECODE_WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, hd = a.hd, hd_v = a.hd_v;
    const int64_t b = blockIdx.x / a.heads, h = blockIdx.x % a.heads, kv = h / (a.heads / a.heads_kv);
    const T *k = (const T *)a.k_cache + b * a.capacity * a.k_stride + kv * hd;
    const T *v = (const T *)a.v_cache + b * a.capacity * a.v_stride + kv * hd_v;
    const int length = min((int64_t)a.lengths[b], a.capacity); // the host cannot check it
    const int first = a.window && length > a.window ? length - (int)a.window : 0;
    float q[PER];
    head_load(q, (const T *)a.q + blockIdx.x * (int64_t)hd, hd, lane);
    softmax_state<PER> s;
    for (int u = first + warp; u < length; u += DECODE_WARPS * s.AT_ONCE)
        s.add(q, k, v, a.k_stride, a.v_stride, u, DECODE_WARPS, length, (float)a.scale, hd, hd_v, lane);
#pragma unroll
    for (int i = 0; i < PER; i++) part_o[warp][i * WARP + lane] = s.o[i];
    if (lane == 0) {
        part_max[warp] = s.max;
        part_sum[warp] = s.sum;
    }
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < DECODE_WARPS; w++) {
        if (part_max[w] == -INFINITY) continue; // it had no key
        s.rescale(fmaxf(s.max, part_max[w]));
        const float factor = expf(part_max[w] - s.max);
        s.sum += factor * part_sum[w];
#pragma unroll
        for (int i = 0; i < PER; i++) s.o[i] = fmaf(factor, part_o[w][i * WARP + lane], s.o[i]);
    }
    head_store((T *)a.o + blockIdx.x * (int64_t)hd_v, s.o, length > 0 ? 1 / s.sum : 0.0f, hd_v, lane);
}

extern "C" status cuda_attn_decode(const struct attn_decode_args *a, dev_stream s)
{
    if (a->batch == 0) return STATUS_OK;
    check_widths(a);
    CHECK(a->heads > 0 && a->heads_kv > 0 && a->heads % a->heads_kv == 0, "%lld heads on %lld kv heads",
          (long long)a->heads, (long long)a->heads_kv);
    CHECK(a->capacity < INT_MAX && a->window >= 0, "capacity %lld, window %lld", (long long)a->capacity,
          (long long)a->window);
    BY_HEAD(a,
            decode_kernel<T, PER><<<(unsigned)(a->batch * a->heads), DECODE_WARPS * WARP, 0, queue_of(s)>>>(*a));
    return cuda_set_launched(s, "attn_decode");
}
