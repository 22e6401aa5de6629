// Elementwise ops around the expert GEMMs. Bound: memory bandwidth. A warp has a sorted row (its activation, both
// directions) or 32 vectors of a token's row (the combination), and loads several vectors before it uses the first.
// With FP8 codes, a block of the activation's backward has 128 rows, and turns them into transposed codes square by
// square (fp8.cuh).
#include "ops/cuda/fp8.cuh"
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

// From dy to the gradients of gate and up, in place, and of the weight; returns the activation.
template <typename T>
__device__ inline float act_back(float w, float dy, float &gate, float &up, float &dw)
{
    float s, rest;
    sigmoids<T>(gate, s, rest);
    const float silu = gate * s, again = activated<T>(w, gate, up);
    dw += dy * silu * up;
    gate = w * dy * up * s * (1.0f + gate * rest);
    up = w * dy * silu;
    return again;
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
            for (int j = 0; j < W; j++) dy[j] = act_back<T>(w, dy[j], gate[j], x[j], dw);
            store_vec(m + i, narrow<T>(dy));
            store_vec(dup + i, narrow<T>(gate));
            store_vec(dup + f + i, narrow<T>(x));
        }
    }
    dw = warp_sum(dw);
    if (lane == 0 && slot >= 0) ((float *)a.dweight)[slot] = dw;
}

// ---- the activation with FP8 codes of its results; values are those of the kernels above. m in E4M3, dup in E5M2.

// eights of each operand that a thread of the backward holds at a time; rows of a warp of the forward
enum { CODES_AHEAD = 2, CODES_ROWS = 4 };

// m NULL: only its codes are written.
template <typename T>
__global__ void __launch_bounds__(THREADS) act_fwd_codes_kernel(const expert_act_fwd_args a, T *m, const code_out o)
{
    __shared__ uint32_t exchange[WARP];
    const int64_t first = (int64_t)blockIdx.x * (CODES_ROWS * WARPS), f = a.f, end = a.offsets[a.experts];
    if (first >= end) return;
    const int lane = threadIdx.x % WARP;
    const float scale = o.scale_now();
    amax_of<T> most;
    for (int64_t row = first + threadIdx.x / WARP; row < min(first + CODES_ROWS * WARPS, end); row += WARPS) {
        const int slot = a.source[row];
        const T *up = (const T *)a.up + row * 2 * f;
        const float w = slot < 0 ? 0 : ((const float *)a.weight)[slot];
        for (int64_t at = lane * 8; at < f; at += AHEAD * WARP * 8) {
            vec<T, 8> g[AHEAD] = {}, u[AHEAD] = {};
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int64_t i = at + k * WARP * 8;
                if (i >= f || slot < 0) continue;
                g[k] = load_eight_once<WIDE<T>>(up + i);
                u[k] = load_eight_once<WIDE<T>>(up + f + i);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int64_t i = at + k * WARP * 8;
                if (i >= f) continue;
                float gate[8], x[8];
                widen(g[k], gate);
                widen(u[k], x);
                for (int j = 0; j < 8; j++) x[j] = slot < 0 ? 0 : activated<T>(w, gate[j], x[j]);
                const vec<T, 8> y = narrow<T>(x);
                most.add(y);
                if (m) store_vec(m + row * f + i, y);
                store_codes(o.codes + row * f + i, codes_of(y, scale, false));
            }
        }
    }
    amax_store_block(most.bits(), o.amax, exchange);
}

// A block's rows: slot by slot, their weights, and whose row is no padding.
struct act_strip {
    enum { EACH = code_square::EACH };
    float w[EACH], dw[EACH];
    uint32_t real; // bits
    __device__ act_strip(const expert_act_bwd_args &a, int64_t row, int64_t end) : real(0)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int slot = row + i * code_square::STEP < end ? a.source[row + i * code_square::STEP] : -1;
            w[i] = slot < 0 ? 0 : ((const float *)a.weight)[slot];
            dw[i] = 0;
            real |= (uint32_t)(slot >= 0) << i;
        }
    }
    // Of the 16 threads of each row, which add their parts in a fixed order.
    __device__ void store(const expert_act_bwd_args &a, int64_t row)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            for (int d = code_square::EIGHTS / 2; d > 0; d /= 2) dw[i] += __shfl_xor_sync(0xffffffffu, dw[i], d);
            if (threadIdx.x % code_square::EIGHTS == 0 && (real >> i & 1))
                ((float *)a.dweight)[a.source[row + i * code_square::STEP]] = dw[i];
        }
    }
};

// A block has 128 rows. dup and m NULL: only their codes are written. q: of dup, mq: of m. Each transpose has its tiles
// in shared memory. dup may alias up, and m dm: a thread writes only what it has read.
template <typename T>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 2 ? 3 : 1)
    act_bwd_codes_kernel(const expert_act_bwd_args a, T *dup, T *m, const code_out q, const code_out mq)
{
    static_assert(THREADS == code_square::THREADS, "a square per block");
    extern __shared__ __align__(16) uint8_t tiles[];
    __shared__ uint32_t exchange[2][WARP];
    const int64_t row0 = (int64_t)blockIdx.x * code_square::SIDE, f = a.f, end = a.offsets[a.experts];
    if (row0 >= end) return;
    uint8_t *gate_tile = q.codes_t ? tiles : nullptr, *up_tile = q.codes_t ? tiles + code_square::TILE_BYTES : nullptr,
            *m_tile = mq.codes_t ? tiles + (q.codes_t ? 2 * code_square::TILE_BYTES : 0) : nullptr;
    const code_out panel = q.panel_of(row0, 2 * f), m_panel = mq.panel_of(row0, f);
    const float scale = q.scale_now(), m_scale = mq.scale_now();
    const T *up = (const T *)a.up, *dm = (const T *)a.dm;
    act_strip strip(a, row0 + threadIdx.x / code_square::EIGHTS, end);
    amax_of<T> most, m_most;
    for (int64_t column0 = 0; column0 < f; column0 += code_square::SIDE) {
        const code_square square(row0, column0, end, f);
        if (column0) __syncthreads(); // the tiles are stored
#pragma unroll
        for (int first = 0; first < code_square::EACH; first += CODES_AHEAD) {
            vec<T, 8> g[CODES_AHEAD] = {}, u[CODES_AHEAD] = {}, d[CODES_AHEAD] = {};
#pragma unroll
            for (int k = 0; k < CODES_AHEAD; k++) {
                if (!square.has(first + k) || !(strip.real >> (first + k) & 1)) continue;
                const T *at = up + square.at(first + k, 2 * f);
                g[k] = load_eight_once<WIDE<T>>(at);
                u[k] = load_eight_once<WIDE<T>>(at + f);
                d[k] = load_eight_once<WIDE<T>>(dm + square.at(first + k, f));
            }
#pragma unroll
            for (int k = 0; k < CODES_AHEAD; k++) {
                const int i = first + k;
                float gate[8], x[8], dy[8];
                widen(g[k], gate);
                widen(u[k], x);
                widen(d[k], dy);
                for (int j = 0; j < 8; j++) dy[j] = act_back<T>(strip.w[i], dy[j], gate[j], x[j], strip.dw[i]);
                const vec<T, 8> again = narrow<T>(dy), dgate = narrow<T>(gate), dx = narrow<T>(x);
                m_most.add(again);
                most.add(dgate);
                most.add(dx);
                if (m && square.has(i)) store_vec(m + square.at(i, f), again);
                if (dup && square.has(i)) {
                    store_vec(dup + square.at(i, 2 * f), dgate);
                    store_vec(dup + square.at(i, 2 * f) + f, dx);
                }
                square.put(mq, m_tile, i, codes_of(again, m_scale, false), f, 0);
                square.put(q, gate_tile, i, codes_of(dgate, scale, true), 2 * f, 0);
                square.put(q, up_tile, i, codes_of(dx, scale, true), 2 * f, f);
            }
        }
        __syncthreads();
        if (m_tile) square.store(m_panel, m_tile, 0);
        if (gate_tile) {
            square.store(panel, gate_tile, 0);
            square.store(panel, up_tile, f);
        }
    }
    strip.store(a, row0 + threadIdx.x / code_square::EIGHTS);
    amax_store_block(most.bits(), q.amax, exchange[0]);
    amax_store_block(m_most.bits(), mq.amax, exchange[1]);
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

namespace {

// Codes of the one format, in whole vectors: the kernels above make them. Else they are made of the stored values.
bool fused(const struct quantized &q, dtype dt) { return !quantized_any(&q) || q.dt == dt; }

template <typename T> void queue_fwd_codes(const struct expert_act_fwd_args *a, code_out o, unsigned grid, dev_stream s)
{
    T *m = a->q.only ? NULL : (T *)a->m;
    act_fwd_codes_kernel<T><<<grid, THREADS, 0, queue_of(s)>>>(*a, m, o);
}
status act_fwd_codes(const struct expert_act_fwd_args *a, int64_t rows, dev_stream s)
{
    const code_out o = code_out_of(&a->q, rows, a->f, "experts' activation");
    BY_DTYPE(a->dt, queue_fwd_codes<T>(a, o, blocks_for((rows + CODES_ROWS - 1) / CODES_ROWS), s));
    return cuda_set_launched(s, "expert_act_fwd (codes)");
}

template <typename T>
void queue_bwd_codes(const struct expert_act_bwd_args *a, code_out q, code_out mq, unsigned grid, dev_stream s)
{
    const int bytes = code_square::TILE_BYTES * ((q.codes_t ? 2 : 0) + (mq.codes_t ? 1 : 0));
    (void)cudaFuncSetAttribute(act_bwd_codes_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    act_bwd_codes_kernel<T><<<grid, THREADS, bytes, queue_of(s)>>>(*a, a->q.only ? NULL : (T *)a->dup,
                                                                    a->mq.only ? NULL : (T *)a->m, q, mq);
}
status act_bwd_codes(const struct expert_act_bwd_args *a, int64_t rows, dev_stream s)
{
    code_out q = code_out_of(&a->q, rows, 2 * a->f, "experts' gradient"),
             mq = code_out_of(&a->mq, rows, a->f, "experts' activation");
    q.ld = mq.ld = a->ld;
    const unsigned grid = (unsigned)((rows + code_square::SIDE - 1) / code_square::SIDE);
    BY_DTYPE(a->dt, queue_bwd_codes<T>(a, q, mq, grid, s));
    return cuda_set_launched(s, "expert_act_bwd (codes)");
}

} // namespace

extern "C" status cuda_expert_act_fwd(const struct expert_act_fwd_args *a, dev_stream s)
{
    const int64_t rows = moe_rows_max(a->rows, a->top_k, a->experts, a->align);
    const bool vectors = wide(a->dt, a->f, a->up, a->m, NULL, NULL);
    const struct expert_codes_args codes = expert_act_fwd_codes(a);
    if (vectors && a->q.codes && !a->q.codes_t && fused(a->q, DTYPE_F8_E4M3)) return act_fwd_codes(a, rows, s);
    BY_DTYPE(a->dt, BY_WIDTH(vectors, (act_fwd_kernel<T, W><<<blocks_for(rows), THREADS, 0, queue_of(s)>>>(*a))));
    TRY(cuda_set_launched(s, "expert_act_fwd"));
    return quantized_asked(&a->q) ? cuda_expert_codes(&codes, s) : STATUS_OK;
}

extern "C" status cuda_expert_act_bwd(const struct expert_act_bwd_args *a, dev_stream s)
{
    const int64_t rows = moe_rows_max(a->rows, a->top_k, a->experts, a->align);
    const bool vectors = wide(a->dt, a->f, a->up, a->m, a->dm, a->dup),
               codes = quantized_any(&a->q) || quantized_any(&a->mq);
    const struct expert_codes_args of_dup = expert_act_bwd_codes(a, false), of_m = expert_act_bwd_codes(a, true);
    if (vectors && codes && fused(a->q, DTYPE_F8_E5M2) && fused(a->mq, DTYPE_F8_E4M3))
        return act_bwd_codes(a, rows, s);
    BY_DTYPE(a->dt, BY_WIDTH(vectors, (act_bwd_kernel<T, W><<<blocks_for(rows), THREADS, 0, queue_of(s)>>>(*a))));
    TRY(cuda_set_launched(s, "expert_act_bwd"));
    if (quantized_asked(&a->q)) TRY(cuda_expert_codes(&of_dup, s));
    return quantized_asked(&a->mq) ? cuda_expert_codes(&of_m, s) : STATUS_OK;
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
