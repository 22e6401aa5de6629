// Attention of one new token per sequence against its cache. Bound: memory bandwidth; each key and value is read once
// for all query heads of its head, up to GROUP_MAX.
//
// A block has a sequence, some heads that share their keys, and a part of the keys: `splits` parts, so that few
// sequences fill the GPU too (Flash-Decoding, Dao et al., 2023). With several parts a second kernel adds them in order.
// The number of parts depends on batch and capacity alone; a part's keys on the length, which is read on the device.
//
//   vector   BF16 and F32 heads of equal widths, in 16-byte packs: LANES neighbours hold a row, so a warp has WARP /
//            LANES rows at once
//   any      one warp per row (attn_warp.cuh): other widths, such as a latent cache, and other alignments
//
// Scores of `vector` are in powers of two: log2(e) is a part of the scale.
#include "ops/cuda/attn_warp.cuh"
#include "ops/cuda/rowwise.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

namespace {

enum { THREADS = 128, WARPS = THREADS / WARP, GROUP_MAX = 4, SPLITS_MAX = 64, KEYS_MIN = 64 };

struct decode {
    attn_decode_args a;
    int64_t q_stride;
    int splits;
    float *parts, *stats; // of splits > 1: [batch, heads, splits] of hd_v sums; of maximum and sum
};

// The keys of a block: [begin, end).
struct key_span { int begin, end; };
__device__ inline key_span keys_of(const decode &d, int b, int split)
{
    const int length = (int)min((int64_t)d.a.lengths[b], d.a.capacity); // the host cannot check it
    const int first = d.a.window && length > d.a.window ? length - (int)d.a.window : 0, count = max(length - first, 0);
    const int each = max((count + d.splits - 1) / d.splits, (int)KEYS_MIN), begin = first + min(split * each, count);
    return {begin, min(begin + each, first + count)};
}

// Where a head's result goes: to o, or with its maximum and sum to the parts.
template <typename T>
__device__ inline void leave(const decode &d, int64_t row, int split, int i, float o, float max, float sum)
{
    if (d.splits == 1) {
        ((T *)d.a.o)[row * d.a.head_dim_v + i] = from_f32<T>(sum > 0 ? o / sum : 0.f);
        return;
    }
    const int64_t part = row * d.splits + split;
    d.parts[part * d.a.head_dim_v + i] = o;
    if (i == 0) {
        d.stats[2 * part] = max;
        d.stats[2 * part + 1] = sum;
    }
}

template <bool POWERS> __device__ inline float power(float x) { return POWERS ? exp2f(x) : expf(x); }
// What a sum counts for when the maximum rises: nothing, where there was no key.
template <bool POWERS> __device__ inline float weight_of(float max, float top)
{
    return max == -INFINITY ? 0.f : power<POWERS>(max - top);
}

// ---- vector

// The state of one head over the keys of a group of lanes; each lane has W elements of o.
template <int W> struct head_state {
    float o[W], max, sum;
    __device__ head_state() : max(-INFINITY), sum(0)
    {
        for (int i = 0; i < W; i++) o[i] = 0;
    }
    __device__ void rescale(float top)
    {
        const float factor = weight_of<true>(max, top);
        for (int i = 0; i < W; i++) o[i] *= factor;
        sum *= factor;
        max = top;
    }
    // Adds the state that lane ^ `away` has.
    __device__ void join(int away)
    {
        const float other = __shfl_xor_sync(0xffffffffu, max, away), top = fmaxf(max, other);
        rescale(top);
        const float mine = sum;
        sum = mine + __shfl_xor_sync(0xffffffffu, mine, away);
        for (int i = 0; i < W; i++) o[i] += __shfl_xor_sync(0xffffffffu, o[i], away);
    }
};

template <int LANES> __device__ inline float lanes_sum(float x)
{
    for (int d = LANES / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// The sums of the block's warps, added in order. Rows of HEADS: [head][elements of o].
template <int HEADS, int ELEMENTS> struct block_parts {
    float o[WARPS][HEADS][ELEMENTS], max[WARPS][HEADS], sum[WARPS][HEADS];
};

template <typename T, int HEADS, int ELEMENTS>
__device__ inline void leave_heads(const decode &d, const block_parts<HEADS, ELEMENTS> &s, int64_t row, int heads,
                                   int split)
{
    const int hd = (int)d.a.head_dim_v;
    for (int e = threadIdx.x; e < heads * hd; e += THREADS) {
        const int h = e / hd, i = e % hd;
        float top = s.max[0][h], o = 0, sum = 0;
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, s.max[w][h]);
        for (int w = 0; w < WARPS; w++) {
            const float factor = weight_of<true>(s.max[w][h], top);
            o += factor * s.o[w][h][i];
            sum += factor * s.sum[w][h];
        }
        leave<T>(d, row + h, split, i, o, top, sum);
    }
}

// Adds the keys u, u + step, ... below end, which a group of LANES has loaded; x: the heads of the query.
template <int LANES, typename T, int W, int HEADS, int AT_ONCE>
__device__ inline void attend(head_state<W> (&state)[HEADS], const float (&x)[HEADS][W],
                              const vec<T, W> (&raw_k)[AT_ONCE], const vec<T, W> (&raw_v)[AT_ONCE], int u, int step,
                              int end)
{
    float score[HEADS][AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        float y[W];
        widen(raw_k[j], y);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float dot = 0;
            for (int i = 0; i < W; i++) dot = fmaf(x[h][i], y[i], dot);
            dot = lanes_sum<LANES>(dot);
            score[h][j] = u + j * step < end ? dot : -INFINITY;
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float top = state[h].max;
        for (int j = 0; j < AT_ONCE; j++) top = fmaxf(top, score[h][j]);
        state[h].rescale(top);
        for (int j = 0; j < AT_ONCE; j++) {
            score[h][j] = weight_of<true>(score[h][j], top);
            state[h].sum += score[h][j];
        }
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        float y[W];
        widen(raw_v[j], y);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < W; i++) state[h].o[i] = fmaf(score[h][j], y[i], state[h].o[i]);
    }
}

// grid: parts, kv heads x groups of HEADS query heads, sequences.
template <typename T, int LANES, int HEADS> __global__ void __launch_bounds__(THREADS) vector_kernel(const decode d)
{
    constexpr int W = WIDE<T>, SLOTS = THREADS / LANES, AT_ONCE = 4;
    __shared__ block_parts<HEADS, LANES * W> shared;
    const int group = (int)(d.a.heads / d.a.heads_kv), groups = (group + HEADS - 1) / HEADS, hd = (int)d.a.head_dim;
    const int kv = blockIdx.y / groups, first = blockIdx.y % groups * HEADS, heads = min((int)HEADS, group - first);
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES, b = blockIdx.z, at = lane * W;
    const bool there = at < hd;
    const int64_t row = (int64_t)b * d.a.heads + kv * group + first;
    const T *q = (const T *)d.a.q + b * d.q_stride + (int64_t)(kv * group + first) * hd + at;
    const T *k = (const T *)d.a.k_cache + b * d.a.capacity * d.a.k_stride + (int64_t)kv * hd + at;
    const T *v = (const T *)d.a.v_cache + b * d.a.capacity * d.a.v_stride + (int64_t)kv * hd + at;
    const key_span keys = keys_of(d, b, blockIdx.x);
    const float scale = (float)d.a.scale * 1.4426950408889634f;
    head_state<W> state[HEADS];
    float x[HEADS][W];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < W; i++) x[h][i] = 0;
        if (there && h < heads) widen(load_vec<W>(q + h * hd), x[h]);
        for (int i = 0; i < W; i++) x[h][i] *= scale;
    }
    // The same for the whole block: lanes add up.
    for (int base = keys.begin; base < keys.end; base += SLOTS * AT_ONCE) {
        vec<T, W> raw_k[AT_ONCE] = {}, raw_v[AT_ONCE] = {};
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int u = base + j * SLOTS + slot;
            if (there && u < keys.end) raw_k[j] = load_vec_once<W>(k + u * d.a.k_stride);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int u = base + j * SLOTS + slot;
            if (there && u < keys.end) raw_v[j] = load_vec_once<W>(v + u * d.a.v_stride);
        }
        attend<LANES>(state, x, raw_k, raw_v, base + slot, SLOTS, keys.end);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        for (int away = LANES; away < WARP; away *= 2) state[h].join(away);
        if (threadIdx.x % WARP >= LANES) continue;
        const int warp = threadIdx.x / WARP;
        for (int i = 0; i < W; i++) shared.o[warp][h][at + i] = state[h].o[i];
        shared.max[warp][h] = state[h].max;
        shared.sum[warp][h] = state[h].sum;
    }
    __syncthreads();
    leave_heads<T>(d, shared, row, heads, blockIdx.x);
}

// ---- any

// grid: parts, query heads, sequences. The warps take every WARPS-th key.
template <typename T, int PER> __global__ void __launch_bounds__(THREADS) any_kernel(const decode d)
{
    __shared__ float part_o[WARPS][PER * WARP], part_max[WARPS], part_sum[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, hd = (int)d.a.head_dim, hd_v = (int)d.a.head_dim_v;
    const int64_t b = blockIdx.z, h = blockIdx.y, kv = h / (d.a.heads / d.a.heads_kv);
    const T *k = (const T *)d.a.k_cache + b * d.a.capacity * d.a.k_stride + kv * hd;
    const T *v = (const T *)d.a.v_cache + b * d.a.capacity * d.a.v_stride + kv * hd_v;
    const key_span keys = keys_of(d, (int)b, blockIdx.x);
    float q[PER];
    head_load(q, (const T *)d.a.q + b * d.q_stride + h * hd, hd, lane);
    softmax_state<PER> s;
    for (int u = keys.begin + warp; u < keys.end; u += WARPS * s.AT_ONCE)
        s.add(q, k, v, d.a.k_stride, d.a.v_stride, u, WARPS, keys.end, (float)d.a.scale, hd, hd_v, lane);
#pragma unroll
    for (int i = 0; i < PER; i++) part_o[warp][i * WARP + lane] = s.o[i];
    if (lane == 0) {
        part_max[warp] = s.max;
        part_sum[warp] = s.sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < hd_v; i += THREADS) {
        float top = part_max[0], o = 0, sum = 0;
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, part_max[w]);
        for (int w = 0; w < WARPS; w++) {
            const float factor = weight_of<false>(part_max[w], top);
            o += factor * part_o[w][i];
            sum += factor * part_sum[w];
        }
        leave<T>(d, b * d.a.heads + h, blockIdx.x, i, o, top, sum);
    }
}

// ---- the parts, added in order

// grid: query heads, sequences. A part without keys has no sums: they are not read.
template <typename T, bool POWERS> __global__ void __launch_bounds__(THREADS) join_kernel(const decode d)
{
    const int64_t row = (int64_t)blockIdx.y * d.a.heads + blockIdx.x, first = row * d.splits;
    float top = -INFINITY;
    for (int s = 0; s < d.splits; s++) top = fmaxf(top, d.stats[2 * (first + s)]);
    for (int i = threadIdx.x; i < d.a.head_dim_v; i += THREADS) {
        float o = 0, sum = 0;
        for (int s = 0; s < d.splits; s++) {
            const float max = d.stats[2 * (first + s)];
            if (max == -INFINITY) continue;
            const float factor = power<POWERS>(max - top);
            o = fmaf(factor, d.parts[(first + s) * d.a.head_dim_v + i], o);
            sum = fmaf(factor, d.stats[2 * (first + s) + 1], sum);
        }
        ((T *)d.a.o)[row * d.a.head_dim_v + i] = from_f32<T>(sum > 0 ? o / sum : 0.f);
    }
}

// ---- host

template <typename T> bool vector_serves(const decode &d)
{
    constexpr int W = WIDE<T>;
    const attn_decode_args &a = d.a;
    return a.head_dim == a.head_dim_v && a.head_dim % W == 0 && a.head_dim <= WARP * W && aligned16(a.q) &&
           aligned16(a.k_cache) && aligned16(a.v_cache) && d.q_stride % W == 0 && a.k_stride % W == 0 &&
           a.v_stride % W == 0;
}

// Parts of the keys, for blocks that are `blocks` without: four for each multiprocessor, each worth its launch.
void split(decode &d, int64_t blocks, dev_stream s)
{
    const int64_t want = (4 * (int64_t)cuda_set(s)->multiprocessors + blocks - 1) / blocks,
                  most = (d.a.capacity + KEYS_MIN - 1) / KEYS_MIN;
    int64_t n = want < most ? want : most;
    if (n > SPLITS_MAX) n = SPLITS_MAX;
    d.splits = n < 1 ? 1 : (int)n;
    if (d.splits == 1) return;
    const size_t parts = (size_t)(d.a.batch * d.a.heads * d.splits), sums = parts * (size_t)d.a.head_dim_v;
    d.parts = (float *)cuda_set_workspace(s, sizeof(float) * (sums + 2 * parts), "attn_decode");
    d.stats = d.parts + sums;
}

template <typename T, int HEADS> void vector_queue(const decode &d, dim3 grid, cudaStream_t queue)
{
    const int64_t packs = d.a.head_dim / WIDE<T>;
    if (packs <= 8)
        vector_kernel<T, 8, HEADS><<<grid, THREADS, 0, queue>>>(d);
    else if (packs <= 16)
        vector_kernel<T, 16, HEADS><<<grid, THREADS, 0, queue>>>(d);
    else
        vector_kernel<T, 32, HEADS><<<grid, THREADS, 0, queue>>>(d);
}

template <typename T> void vector_launch(decode &d, dev_stream s)
{
    const int64_t group = d.a.heads / d.a.heads_kv, each = group >= 3 ? (int64_t)GROUP_MAX : group,
                  rows = d.a.heads_kv * ((group + each - 1) / each);
    split(d, rows * d.a.batch, s);
    const dim3 grid((unsigned)d.splits, (unsigned)rows, (unsigned)d.a.batch);
    if (each == 1)
        vector_queue<T, 1>(d, grid, queue_of(s));
    else if (each == 2)
        vector_queue<T, 2>(d, grid, queue_of(s));
    else
        vector_queue<T, GROUP_MAX>(d, grid, queue_of(s));
}

template <typename T, int PER> void any_launch(decode &d, dev_stream s)
{
    split(d, d.a.heads * d.a.batch, s);
    const dim3 grid((unsigned)d.splits, (unsigned)d.a.heads, (unsigned)d.a.batch);
    any_kernel<T, PER><<<grid, THREADS, 0, queue_of(s)>>>(d);
}

void check(const struct attn_decode_args *a)
{
    check_widths(a);
    CHECK(a->heads > 0 && a->heads_kv > 0 && a->heads % a->heads_kv == 0, "%lld heads on %lld kv heads",
          (long long)a->heads, (long long)a->heads_kv);
    CHECK(a->capacity < INT_MAX / 2 && a->window >= 0, "capacity %lld, window %lld", (long long)a->capacity,
          (long long)a->window);
    CHECK(a->batch < 65536 && a->heads < 65536, "%lld sequences of %lld heads", (long long)a->batch,
          (long long)a->heads);
}

} // namespace

extern "C" status cuda_attn_decode(const struct attn_decode_args *a, dev_stream s)
{
    if (a->batch == 0) return STATUS_OK;
    check(a);
    decode d = {*a, a->q_stride ? a->q_stride : a->heads * a->head_dim, 1, NULL, NULL};
    bool vector = false;
    BY_DTYPE(a->dt, vector = vector_serves<T>(d); if (vector) vector_launch<T>(d, s));
    if (!vector) BY_HEAD(a, any_launch<T, PER>(d, s));
    if (d.splits == 1) return cuda_set_launched(s, "attn_decode");
    TRY(cuda_set_launched(s, "attn_decode (parts)"));
    const dim3 rows((unsigned)a->heads, (unsigned)a->batch);
    BY_DTYPE(a->dt, {
        if (vector)
            join_kernel<T, true><<<rows, THREADS, 0, queue_of(s)>>>(d);
        else
            join_kernel<T, false><<<rows, THREADS, 0, queue_of(s)>>>(d);
    });
    return cuda_set_launched(s, "attn_decode");
}
