// The optimizer step in one cooperative launch: norm of all gradients, grid barrier, then weights and moments of
// every element. Bound: memory bandwidth.
//
//   phase 1   each block sums squares of its tiles in f64 into its own slot           reads 4 B per element
//   barrier   each block adds those sums in the same order: all get the same norm
//   phase 2   the rule, tile by tile, last tiles first: their gradients are still in L2
//
//   phase 2, bytes per element    F32 moments   8-bit moments
//     split weights               28            16
//     weights in p and w          30            18
//     w alone                     24            12
//
// Rows of a table that no token read are skipped (UPDATE_ROWS): they cost only their gradients, 8 B of the 32.
// rows_update is a separate launch over the rows that were read.
//
// A tile is a part of a chunk with a few quads per thread: small enough to balance blocks, large enough to keep
// many loads in flight.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/quant.h"
#include "ops/rounding.h"
#include "ops/update_rule.h"
}
#include <cooperative_groups.h>

namespace {

enum { THREADS = 256, QUAD = 4, NORM_QUADS = 8, RULE_QUADS = 2 };
enum { NORM_TILE = THREADS * QUAD * NORM_QUADS, RULE_TILE = THREADS * QUAD * RULE_QUADS }; // elements
enum { NORM_TILES = UPDATE_CHUNK / NORM_TILE, RULE_TILES = UPDATE_CHUNK / RULE_TILE };     // of a chunk
enum { LANE = QUANT_BLOCK / WARP }; // elements of a lane of the warp that has a block of moments in 8 bits
static_assert(RULE_TILE == THREADS / WARP * QUANT_BLOCK && LANE == 2 * QUAD, "a warp has one block of a tile");
static_assert(NORM_TILES * NORM_TILE == UPDATE_CHUNK && RULE_TILES * RULE_TILE == UPDATE_CHUNK, "whole tiles");

// Constants of a step, the same for all elements, folded as on the CPU.
struct fold {
    float scale, beta1, rest1, beta2, rest2, eps, step, root, decay, momentum;
};

struct tile {
    int64_t begin;
    int count; // <= 0: past the end of the chunk
    uint32_t flags;
    const update_chunk *chunk;
    int skip; // elements of the chunk before the tile
    int64_t v_offset;
};
template <int TILE> __device__ inline tile tile_at(const update_args &a, int64_t index)
{
    const int tiles = UPDATE_CHUNK / TILE;
    const update_chunk c = a.chunks[index / tiles];
    const int skip = int(index % tiles) * TILE;
    return {c.begin + skip, min(c.count - skip, TILE), c.flags, a.chunks + index / tiles, skip, c.v_offset};
}

// Four elements from i on; zeros past the first n. `wide`: arrays that allow quad accesses. Plain loads: lines that
// are written again soon should not leave L2 first (with __ldcs the step takes 7 % longer).
struct quad {
    float x[QUAD];
};
__device__ inline quad load_quad(const float *p, int64_t i, int n, bool wide)
{
    quad q = {};
    if (wide && n >= QUAD) {
        const float4 raw = *reinterpret_cast<const float4 *>(p + i);
        return {{raw.x, raw.y, raw.z, raw.w}};
    }
    for (int k = 0; k < QUAD; k++)
        if (k < n) q.x[k] = p[i + k];
    return q;
}
__device__ inline quad load_quad(const __nv_bfloat16 *p, int64_t i, int n, bool wide)
{
    quad q = {};
    if (wide && n >= QUAD) {
        const uint2 raw = *reinterpret_cast<const uint2 *>(p + i);
        return {{__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                 __uint_as_float(raw.y & 0xffff0000u)}};
    }
    for (int k = 0; k < QUAD; k++)
        if (k < n) q.x[k] = __bfloat162float(p[i + k]);
    return q;
}
__device__ inline void store_quad(float *p, int64_t i, int n, bool wide, const quad &q)
{
    if (wide && n >= QUAD) {
        __stcs(reinterpret_cast<float4 *>(p + i), make_float4(q.x[0], q.x[1], q.x[2], q.x[3]));
        return;
    }
    for (int k = 0; k < QUAD; k++)
        if (k < n) p[i + k] = q.x[k];
}
// The bits of four bf16.
__device__ inline void store_halves(void *to, int64_t i, int n, bool wide, const uint16_t (&h)[QUAD])
{
    uint16_t *p = static_cast<uint16_t *>(to) + i;
    if (wide && n >= QUAD) {
        *reinterpret_cast<uint2 *>(p) = make_uint2(uint32_t(h[1]) << 16 | h[0], uint32_t(h[3]) << 16 | h[2]);
        return;
    }
    for (int k = 0; k < QUAD; k++)
        if (k < n) p[k] = h[k];
}
enum weights {
    WHOLE,  // in p
    HALVES, // the value that w and master_residual are halves of
    ALONE   // in w, rounded stochastically
};
template <weights IN> __device__ inline quad load_weights(const update_args &a, int64_t i, int n, bool wide)
{
    if (IN == WHOLE) return load_quad(a.p, i, n, wide);
    if (IN == ALONE) return load_quad(reinterpret_cast<const __nv_bfloat16 *>(a.w), i, n, wide);
    const bf16 *w = a.w + i;
    const uint16_t *low = a.master_residual + i;
    quad q = {};
    if (wide && n >= QUAD) {
        const uint2 u = *reinterpret_cast<const uint2 *>(w), l = *reinterpret_cast<const uint2 *>(low);
        return {{__uint_as_float(rounding_joined(uint16_t(u.x), uint16_t(l.x))),
                 __uint_as_float(rounding_joined(u.x >> 16, l.x >> 16)),
                 __uint_as_float(rounding_joined(uint16_t(u.y), uint16_t(l.y))),
                 __uint_as_float(rounding_joined(u.y >> 16, l.y >> 16))}};
    }
    for (int k = 0; k < QUAD; k++)
        if (k < n) q.x[k] = __uint_as_float(rounding_joined(w[k], low[k]));
    return q;
}
// The bits of four bf16, each rounded by random[k].
__device__ inline void store_rounded(void *to, int64_t i, int n, bool wide, const quad &q, const rng_block &random)
{
    uint16_t h[QUAD];
    for (int k = 0; k < QUAD; k++) h[k] = rounding_bf16(__float_as_uint(q.x[k]), random.u[k]);
    store_halves(to, i, n, wide, h);
}
// `words`: of the elements, for weights only.
template <weights IN>
__device__ inline void store_weights(const update_args &a, int64_t i, int n, bool wide, const quad &q,
                                     const rng_block &words)
{
    if constexpr (IN == ALONE) {
        rng_block random;
        for (int k = 0; k < QUAD; k++) random.u[k] = rounding_third(words.u[k]);
        store_rounded(a.w, i, n, wide, q, random);
    } else {
        uint16_t upper[QUAD], low[QUAD];
        for (int k = 0; k < QUAD; k++) {
            const half_pair h = rounding_halves(__float_as_uint(q.x[k]));
            upper[k] = h.upper, low[k] = h.low;
        }
        if (IN == HALVES)
            store_halves(a.master_residual, i, n, wide, low);
        else
            store_quad(a.p, i, n, wide, q);
        if (IN == HALVES || a.w) store_halves(a.w, i, n, wide, upper);
    }
}

// Moments: as they are in F32; in BF16 rounded by the word of each element, shifted right by `shift`.
__device__ inline void store_moment(float *p, int64_t i, int n, bool wide, const quad &q, const rng_block &, int)
{
    store_quad(p, i, n, wide, q);
}
__device__ inline void store_moment(__nv_bfloat16 *p, int64_t i, int n, bool wide, const quad &q,
                                    const rng_block &words, int shift)
{
    rng_block random;
    for (int k = 0; k < QUAD; k++) random.u[k] = words.u[k] >> shift & 0xffff;
    store_rounded(p, i, n, wide, q, random);
}

// Gradients are read twice: the first read keeps them in L2 as long as possible.
__device__ inline double tile_squares(const update_args &a, int64_t index, bool wide)
{
    const tile t = tile_at<NORM_TILE>(a, index);
    double sum = 0;
    if (wide && t.count == NORM_TILE) {
        const float4 *g = reinterpret_cast<const float4 *>(a.g + t.begin) + threadIdx.x;
        float4 x[NORM_QUADS];
#pragma unroll
        for (int u = 0; u < NORM_QUADS; u++) x[u] = g[u * THREADS];
#pragma unroll
        for (int u = 0; u < NORM_QUADS; u++)
            sum += (double(x[u].x) * x[u].x + double(x[u].y) * x[u].y) +
                   (double(x[u].z) * x[u].z + double(x[u].w) * x[u].w);
        return sum;
    }
    for (int at = int(threadIdx.x); at < t.count; at += THREADS) {
        const double g = a.g[t.begin + at];
        sum += g * g;
    }
    return sum;
}

__device__ fold fold_of(const update_args &a, double factor, double rate)
{
    const step_scalars &s = *a.scalars;
    fold f = {};
    f.scale = float(factor);
    f.beta1 = float(a.beta1), f.rest1 = float(1 - a.beta1);
    f.beta2 = float(a.beta2), f.rest2 = float(1 - a.beta2);
    f.eps = float(a.eps);
    f.momentum = float(a.momentum);
    const double lr = rate > 0 ? s.lr * rate : s.lr;
    f.decay = float(lr * a.weight_decay);
    const bool corrections = update_needs(a.rule).corrections;
    f.step = float(corrections ? lr / s.correction1 : lr);
    f.root = corrections ? float(1 / sqrt(s.correction2)) : 0;
    return f;
}

// The state of one thread's quad between its loads and its stores.
struct state {
    quad p, g, m, v;
};

// Within 2^-23 of the root. Like the division by it, within 2 ulp of f32, it affects a part of the step, far below
// the last place of a weight. Exact rounding of the two costs 0.14 of 14.3 ms (7B's shape of 8 layers, H200), and
// 0.8 of 11.1 with bf16 moments and weights.
__device__ inline float root_near(float x)
{
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <update_rule RULE> __device__ inline void apply(state &s, const fold &f, float decay)
{
    for (int k = 0; k < QUAD; k++) {
        const float g = s.g.x[k] * f.scale, p = s.p.x[k], m = s.m.x[k];
        const float blend = m * f.beta1 + g * f.rest1;
        if constexpr (RULE == UPDATE_ADAMW) {
            const float v = s.v.x[k] * f.beta2 + g * g * f.rest2;
            s.p.x[k] = p - (p * decay + __fdividef(f.step * blend, root_near(v) * f.root + f.eps));
            s.m.x[k] = blend;
            s.v.x[k] = v;
        } else {
            static_assert(RULE == UPDATE_LION, "a rule without its formula");
            const float sign = blend > 0 ? f.step : blend < 0 ? -f.step : 0.f;
            s.p.x[k] = p - (p * decay + sign);
            s.m.x[k] = m * f.beta2 + g * f.rest2;
        }
    }
}

// m = momentum m + g;  g = g + momentum m.
__device__ inline void accelerate(state &s, const fold &f)
{
    for (int k = 0; k < QUAD; k++) {
        const float g = s.g.x[k] * f.scale, m = s.m.x[k] * f.momentum + g;
        s.m.x[k] = m;
        s.g.x[k] = g + m * f.momentum;
    }
}
template <typename S>
__device__ inline void tile_momentum(const update_args &a, const tile &t, const fold &f, uint64_t step, bool wide)
{
    S *m = static_cast<S *>(a.m);
#pragma unroll
    for (int u = 0; u < RULE_QUADS; u++) {
        const int at = (u * THREADS + int(threadIdx.x)) * QUAD, n = t.count - at;
        const int64_t i = t.begin + at;
        if (n <= 0) continue;
        state s;
        s.g = load_quad(a.g, i, n, wide);
        s.m = load_quad(m, i, n, wide);
        accelerate(s, f);
        rng_block words = {};
        if (sizeof(S) == 2) words = rounding_words(a.seed, step, t.chunk, t.skip + at);
        store_quad(a.g, i, n, wide, s.g);
        store_moment(m, i, n, wide, s.m, words, 0);
    }
}

// A row of a table is handled by `lanes` neighbours of a warp. Only they read and write it, so none tests it while
// another writes zeros.
struct row_lanes {
    int lanes, first, groups; // first: this lane's first element; groups: rows that a block has at once
    unsigned own;             // of the warp's lanes those of the row
};
__device__ inline row_lanes lanes_of(int width)
{
    row_lanes r = {WARP, 0, 0, 0};
    while (r.lanes / 2 * QUAD >= width) r.lanes /= 2;
    r.groups = THREADS / r.lanes;
    r.first = int(threadIdx.x) % r.lanes * QUAD;
    r.own = 0xffffffffu >> (WARP - r.lanes) << (threadIdx.x % WARP / r.lanes * r.lanes);
    return r;
}
// By all lanes of a warp; `here`: the row exists.
__device__ inline bool row_touched(const float *g, const row_lanes &l, int width, bool here, bool wide)
{
    bool some = false;
    for (int at = l.first; here && at < width; at += l.lanes * QUAD) {
        const quad q = load_quad(g, at, QUAD, wide);
        for (int k = 0; k < QUAD; k++) some = some || q.x[k] != 0;
    }
    return (__ballot_sync(0xffffffffu, some) & l.own) != 0;
}
// Elements [i, i + width) of the arrays, `skip` elements after the start of the chunk that determines the rounding
// of moments.
template <update_rule RULE, typename S, weights IN>
__device__ inline void row_move(const update_args &a, float *g, int64_t i, int width, const row_lanes &l, const fold &f,
                                const update_chunk *chunk, int skip, uint64_t step, bool wide)
{
    const float decay = chunk->flags & UPDATE_DECAY ? f.decay : 0;
    S *m = static_cast<S *>(a.m) + i, *v = static_cast<S *>(a.v) + (i - chunk->v_offset);
    for (int at = l.first; at < width; at += l.lanes * QUAD) {
        state s;
        s.g = load_quad(g, at, QUAD, wide);
        s.p = load_weights<IN>(a, i + at, QUAD, wide);
        s.m = load_quad(m, at, QUAD, wide);
        if (update_needs(RULE).second) s.v = load_quad(v, at, QUAD, wide);
        rng_block words = {};
        if (sizeof(S) == 2 || IN == ALONE) words = rounding_words(a.seed, step, chunk, skip + at);
        apply<RULE>(s, f, decay);
        store_weights<IN>(a, i + at, QUAD, wide, s.p, words);
        store_moment(m, at, QUAD, wide, s.m, words, 0);
        if (update_needs(RULE).second) store_moment(v, at, QUAD, wide, s.v, words, 16);
        if (chunk->flags & UPDATE_ZERO) store_quad(g, at, QUAD, wide, quad{});
    }
}

// UPDATE_ROWS: the rows that begin in the tile. A row that no token read costs only two reads of its gradients, 8 B
// per element.
template <update_rule RULE, typename S, weights IN>
__device__ inline void tile_rows(const update_args &a, const tile &t, const fold &f, uint64_t step, bool wide)
{
    const int width = int(t.flags / UPDATE_WIDTH), end = (t.skip + t.count + width - 1) / width;
    const row_lanes l = lanes_of(width);
    for (int base = (t.skip + width - 1) / width; base < end; base += l.groups) {
        // elements behind the tile's begin
        const int row = base + int(threadIdx.x) / l.lanes, from = row * width - t.skip;
        const int64_t i = t.begin + from;
        if (row_touched(a.g + i, l, width, row < end, wide))
            row_move<RULE, S, IN>(a, a.g + i, i, width, l, f, t.chunk, t.skip + from, step, wide);
    }
}

// rows_update: its rows are sorted, then TOKEN_NONE, so a block whose first row is none is done.
template <update_rule RULE, typename S, weights IN>
__global__ void __launch_bounds__(THREADS) rows_update_kernel(const rows_update_args a, bool wide)
{
    __shared__ fold f;
    const double factor = a.of.scalars->clip_factor;
    if (factor == 0) return;
    if (threadIdx.x == 0) f = fold_of(a.of, factor, a.of.row_rate);
    __syncthreads();
    const int width = int(a.width);
    const row_lanes l = lanes_of(width);
    const uint64_t step = a.of.scalars->step;
    for (int64_t base = int64_t(blockIdx.x) * l.groups; base < a.slots; base += int64_t(gridDim.x) * l.groups) {
        if (a.rows[base] == TOKEN_NONE) return;
        const int64_t slot = base + int(threadIdx.x) / l.lanes;
        const int32_t row = slot < a.slots ? a.rows[slot] : int32_t(TOKEN_NONE);
        float *g = a.sums + slot * width;
        if (!row_touched(g, l, width, row != TOKEN_NONE, wide)) continue;
        update_chunk place = {};
        place.flags = UPDATE_ZERO;
        place.v_offset = a.v_offset;
        place.key = a.key;
        place.first = a.first + row * a.stride;
        if (row >= a.from && row < a.to)
            row_move<RULE, S, IN>(a.of, g, a.begin + (row - a.from) * width, width, l, f, &place, 0, step, wide);
        else // another rank's
            for (int at = l.first; at < width; at += l.lanes * QUAD) store_quad(g, at, QUAD, wide, quad{});
    }
}

// FULL: a whole tile of arrays that allow wide accesses; no branch between its loads.
template <update_rule RULE, typename S, bool FULL, weights IN>
__device__ inline void tile_update(const update_args &a, const tile &t, const fold &f, uint64_t step, bool any_wide)
{
    const bool wide = FULL || any_wide;
    S *m = static_cast<S *>(a.m), *v = static_cast<S *>(a.v);
    state s[RULE_QUADS];
    int at[RULE_QUADS];
#pragma unroll
    for (int u = 0; u < RULE_QUADS; u++) {
        at[u] = (u * THREADS + int(threadIdx.x)) * QUAD;
        const int64_t i = t.begin + at[u];
        const int n = FULL ? int(QUAD) : t.count - at[u];
        s[u].g = load_quad(a.g, i, n, wide);
        s[u].p = load_weights<IN>(a, i, n, wide);
        s[u].m = load_quad(m, i, n, wide);
        if (update_needs(RULE).second) s[u].v = load_quad(v, i - t.v_offset, n, wide);
    }
    const float decay = t.flags & UPDATE_DECAY ? f.decay : 0;
#pragma unroll
    for (int u = 0; u < RULE_QUADS; u++) {
        const int64_t i = t.begin + at[u];
        const int n = FULL ? int(QUAD) : t.count - at[u];
        if (n <= 0) continue;
        rng_block words = {};
        if (sizeof(S) == 2 || IN == ALONE) words = rounding_words(a.seed, step, t.chunk, t.skip + at[u]);
        apply<RULE>(s[u], f, decay);
        store_weights<IN>(a, i, n, wide, s[u].p, words);
        store_moment(m, i, n, wide, s[u].m, words, 0);
        if (update_needs(RULE).second) store_moment(v, i - t.v_offset, n, wide, s[u].v, words, 16);
        if (t.flags & UPDATE_ZERO) store_quad(a.g, i, n, wide, quad{});
    }
}

// ---- 8-bit moments (ops/quant.h): each warp has one block of a tile. ----

struct quant_maps {
    quant_map m, v;
};

// Maps are stored twice: constants if all lanes read the same entry, shared memory if each has its own decade.
struct quant_places {
    const quant_maps &fixed, &shared;
};

// The code of magnitude `size` <= 1: how many magnitudes are below, plus one if `random` in [0, 2^16) says so.
__device__ inline int magnitude_of(const quant_map &fixed, const quant_map &q, float size, uint32_t random)
{
    int d = 0;
#pragma unroll
    for (int e = 0; e < QUANT_DECADES - 1; e++) d += size >= fixed.first[e];
    const float last = q.last[d], t = (size - q.low[d]) * q.slope[d], k = fminf(truncf(t), last);
    const float rest = k < last ? t - k : (t - k) * q.stretch[d];
    return int(q.base[d] + k) + (float(random) * 0x1p-16f < rest);
}
template <quant_kind KIND>
__device__ inline uint8_t code_of(const quant_map &fixed, const quant_map &q, float x, float inverse, uint32_t random)
{
    const float size = fabsf(x) * inverse;
    const int u = magnitude_of(fixed, q, size, random);
    if (KIND == QUANT_UNSIGNED) return uint8_t(u + (u == 0 && size > 0));
    return uint8_t(x < 0 ? max(QUANT_ZERO - u, 0) : QUANT_ZERO + u);
}

struct codes {
    uint8_t c[LANE];
};
__device__ inline codes load_codes(const void *from, int64_t i, int n, bool wide)
{
    const uint8_t *p = static_cast<const uint8_t *>(from) + i;
    codes k = {};
    if (wide && n >= LANE) {
        const uint2 raw = *reinterpret_cast<const uint2 *>(p);
        memcpy(k.c, &raw, sizeof raw);
        return k;
    }
    for (int j = 0; j < LANE; j++)
        if (j < n) k.c[j] = p[j];
    return k;
}
// The lane's elements of a block; the block's largest magnitude becomes the scale.
template <quant_kind KIND>
__device__ inline void store_codes(void *to, float *scale, int64_t i, int n, bool wide, const quant_map &fixed,
                                   const quant_map &q, const float (&x)[LANE], const uint32_t (&words)[LANE])
{
    float top = 0;
#pragma unroll
    for (int j = 0; j < LANE; j++) top = fmaxf(top, j < n ? fabsf(x[j]) : 0.f);
    top = warp_max(top);
    if (top < 1.17549435e-38f) top = 0; // its inverse would not be finite
    if (threadIdx.x % WARP == 0) scale[i / QUANT_BLOCK] = top;
    const float inverse = top > 0 ? 1 / top : 0.f;
    codes k;
#pragma unroll
    for (int j = 0; j < LANE; j++)
        k.c[j] = code_of<KIND>(fixed, q, x[j], inverse, KIND == QUANT_SIGNED ? words[j] & 0xffff : words[j] >> 16);
    uint8_t *p = static_cast<uint8_t *>(to) + i;
    if (wide && n >= LANE) {
        uint2 raw;
        memcpy(&raw, k.c, sizeof raw);
        __stcs(reinterpret_cast<uint2 *>(p), raw);
        return;
    }
    for (int j = 0; j < LANE; j++)
        if (j < n) p[j] = k.c[j];
}

// FULL: a whole tile of arrays that allow wide accesses, without momentum; no branch between its loads.
template <update_rule RULE, bool FULL, weights IN>
__device__ inline void block_update(const update_args &a, const tile &t, const fold &f, uint64_t step, bool any_wide,
                                    const quant_places &q)
{
    const int begin = int(threadIdx.x) / WARP * QUANT_BLOCK, at = begin + int(threadIdx.x) % WARP * LANE,
              n = FULL ? int(LANE) : t.count - at;
    if (!FULL && begin >= t.count) return; // the whole warp
    const int64_t i = t.begin + at;
    const bool wide = FULL || any_wide, momentum = !FULL && t.flags & UPDATE_MOMENTUM,
               two = update_needs(RULE).second && !momentum;
    const int64_t iv = i - t.v_offset;
    const codes cm = load_codes(a.m, i, n, wide), cv = two ? load_codes(a.v, iv, n, wide) : codes{};
    const float top_m = a.m_scale[i / QUANT_BLOCK], top_v = two ? a.v_scale[iv / QUANT_BLOCK] : 0;
    const float decay = t.flags & UPDATE_DECAY ? f.decay : 0;
    state s[LANE / QUAD];
#pragma unroll
    for (int u = 0; u < LANE / QUAD; u++) {
        s[u].g = load_quad(a.g, i + u * QUAD, n - u * QUAD, wide);
        if (!momentum) s[u].p = load_weights<IN>(a, i + u * QUAD, n - u * QUAD, wide);
    }
    float m[LANE], v[LANE];
    uint32_t words[LANE];
#pragma unroll
    for (int u = 0; u < LANE / QUAD; u++) {
        const int64_t at4 = i + u * QUAD;
        const int n4 = n - u * QUAD;
        for (int k = 0; k < QUAD; k++) {
            s[u].m.x[k] = top_m * quant_value(&q.shared.m, QUANT_SIGNED, cm.c[u * QUAD + k]);
            s[u].v.x[k] = two ? top_v * quant_value(&q.shared.v, QUANT_UNSIGNED, cv.c[u * QUAD + k]) : 0;
        }
        if (momentum)
            accelerate(s[u], f);
        else
            apply<RULE>(s[u], f, decay);
        const rng_block random = rounding_words(a.seed, step, t.chunk, t.skip + at + u * QUAD);
        for (int k = 0; k < QUAD; k++)
            m[u * QUAD + k] = s[u].m.x[k], v[u * QUAD + k] = s[u].v.x[k], words[u * QUAD + k] = random.u[k];
        if (n4 <= 0) continue;
        if (momentum) {
            store_quad(a.g, at4, n4, wide, s[u].g);
            continue;
        }
        store_weights<IN>(a, at4, n4, wide, s[u].p, random);
        if (t.flags & UPDATE_ZERO) store_quad(a.g, at4, n4, wide, quad{});
    }
    store_codes<QUANT_SIGNED>(a.m, a.m_scale, i, n, wide, q.fixed.m, q.shared.m, m, words);
    if (two) store_codes<QUANT_UNSIGNED>(a.v, a.v_scale, iv, n, wide, q.fixed.v, q.shared.v, v, words);
}

// The sum of all squares, in every block.
__device__ inline double grid_squares(const update_args &a, double *sums, bool wide, double *line)
{
    const int64_t squares = a.chunk_count * NORM_TILES;
    double sum = 0;
    for (int64_t k = blockIdx.x; k < squares; k += gridDim.x) sum += tile_squares(a, k, wide);
    sum = block_sum(sum, line);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    cooperative_groups::this_grid().sync();
    sum = 0;
    for (unsigned k = threadIdx.x; k < gridDim.x; k += THREADS) sum += __ldcg(sums + k);
    return block_sum(sum, line);
}

// UPDATE_CHUNK_NORMS: a block per chunk.
__global__ void __launch_bounds__(THREADS) squares_kernel(const update_args a, bool wide)
{
    __shared__ double line[WARP];
    double sum = 0;
    for (int k = 0; k < NORM_TILES; k++) sum += tile_squares(a, int64_t(blockIdx.x) * NORM_TILES + k, wide);
    sum = block_sum(sum, line);
    if (threadIdx.x == 0) a.squares[blockIdx.x] = a.chunks[blockIdx.x].flags & UPDATE_COPY ? 0 : sum;
}

template <update_rule RULE, typename S, bool TABLES, weights IN>
__device__ inline void tile_move(const update_args &a, const tile &t, const fold &f, const fold &of_rows, uint64_t step,
                                 bool wide, const quant_places &q)
{
    const bool full = wide && t.count == RULE_TILE, momentum = t.flags & UPDATE_MOMENTUM;
    if constexpr (sizeof(S) == 1) {
        if (full && !momentum)
            block_update<RULE, true, IN>(a, t, f, step, wide, q);
        else
            block_update<RULE, false, IN>(a, t, f, step, wide, q);
    } else {
        if (TABLES && t.flags & UPDATE_ROWS)
            tile_rows<RULE, S, IN>(a, t, of_rows, step, wide);
        else if (momentum)
            tile_momentum<S>(a, t, f, step, wide);
        else if (full)
            tile_update<RULE, S, true, IN>(a, t, f, step, wide);
        else
            tile_update<RULE, S, false, IN>(a, t, f, step, wide);
    }
}

// TABLES: for models with UPDATE_ROWS; other models' kernel has no code for them. MASTER: weights are whole or
// split, not in w alone. With BF16 moments a fourth block fits (9.8 instead of 10.2 ms).
template <update_rule RULE, typename S, bool TABLES, bool MASTER>
__global__ void __launch_bounds__(THREADS, sizeof(S) == 2 ? 4 : 3)
    update_kernel(const update_args a, double *sums, bool wide, const quant_maps maps)
{
    __shared__ double line[WARP];
    __shared__ quant_maps q;
    if (sizeof(S) == 1 && threadIdx.x == 0) q = maps; // seen by all after the barrier
    const int64_t tiles = a.chunk_count * RULE_TILES;
    const double squares = a.phase == UPDATE_APPLY ? a.scalars->grad_squares : grid_squares(a, sums, wide, line),
                 norm = sqrt(squares);
    __syncthreads();
    if (a.phase == UPDATE_GLOBAL_NORM) { // the same grid as the whole update, so the same sum
        if (blockIdx.x == 0 && threadIdx.x == 0) a.scalars->grad_squares = squares;
        return;
    }
    const bool finite = isfinite(norm);
    const double factor = !finite ? 0 : a.clip > 0 ? fmin(1.0, a.clip / (norm + 1e-6)) : 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        a.scalars->grad_norm = norm;
        a.scalars->clip_factor = factor;
    }
    if (!finite) return;
    const fold f = fold_of(a, factor, a.rate);
    __shared__ fold of_rows; // in registers it would be used by the tables' tiles only
    if (TABLES) {
        if (threadIdx.x == 0) of_rows = fold_of(a, factor, a.row_rate);
        __syncthreads();
    }
    const uint64_t step = a.scalars->step;
    tile next = blockIdx.x < tiles ? tile_at<RULE_TILE>(a, tiles - 1 - blockIdx.x) : tile{};
    for (int64_t k = blockIdx.x; k < tiles; k += gridDim.x) {
        const tile t = next; // looks up the next one while this one's elements are in flight
        if (k + gridDim.x < tiles) next = tile_at<RULE_TILE>(a, tiles - 1 - k - gridDim.x);
        if (!MASTER)
            tile_move<RULE, S, TABLES, ALONE>(a, t, f, of_rows, step, wide, {maps, q});
        else if (a.master_residual) // the same kernel and grid, so the same order of the norm's sum, as without tables
            tile_move<RULE, S, TABLES, HALVES>(a, t, f, of_rows, step, wide, {maps, q});
        else
            tile_move<RULE, S, TABLES, WHOLE>(a, t, f, of_rows, step, wide, {maps, q});
    }
}

// Arrays in which every quad is one access: chunks begin at multiples of 16 elements.
bool is_wide(const update_args *a, const float *g)
{
    const void *arrays[] = {a->p, g, a->m, a->v, a->w, a->master_residual};
    for (const void *p : arrays)
        if (!aligned16(p)) return false;
    return true;
}

bool has_master(const update_args *a)
{
    return a->p || a->master_residual;
}

typedef void update_fn(const update_args, double *, bool, const quant_maps);
template <update_rule RULE, bool MASTER> update_fn *update_kernel_of(dtype sdt, bool tables)
{
    if (sdt == DTYPE_U8) return update_kernel<RULE, uint8_t, false, MASTER>;
    if (sdt == DTYPE_F32)
        return tables ? update_kernel<RULE, float, true, MASTER> : update_kernel<RULE, float, false, MASTER>;
    return tables ? update_kernel<RULE, __nv_bfloat16, true, MASTER>
                  : update_kernel<RULE, __nv_bfloat16, false, MASTER>;
}
template <update_rule RULE> update_fn *update_kernel_by(const struct update_args *a)
{
    const bool tables = a->row_rate != 0;
    return has_master(a) ? update_kernel_of<RULE, true>(a->moment_dt, tables)
                         : update_kernel_of<RULE, false>(a->moment_dt, tables);
}
update_fn *update_kernel_for(const struct update_args *a)
{
    switch (a->rule) {
    case UPDATE_ADAMW: return update_kernel_by<UPDATE_ADAMW>(a);
    case UPDATE_LION: return update_kernel_by<UPDATE_LION>(a);
    }
    CHECK(false, "rule %d", int(a->rule));
    return nullptr;
}

status update(const struct update_args *a, dev_stream s)
{
    CHECK(a->moment_dt == DTYPE_F32 || a->moment_dt == DTYPE_BF16 || a->moment_dt == DTYPE_U8, "moments of %s",
          dtype_name(a->moment_dt));
    CHECK(a->row_rate == 0 || a->moment_dt != DTYPE_U8, "rows of tables with moments in 8 bits");
    bool wide = is_wide(a, a->g);
    if (a->phase == UPDATE_CHUNK_NORMS) {
        if (a->chunk_count > 0) squares_kernel<<<unsigned(a->chunk_count), THREADS, 0, queue_of(s)>>>(*a, wide);
        return cuda_set_launched(s, "update");
    }
    update_fn *kernel = update_kernel_for(a);
    int resident = 0;
    // The launch reports an error of this call.
    (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, THREADS, 0);
    const int64_t tiles = a->chunk_count * RULE_TILES, most = int64_t(resident) * cuda_set(s)->multiprocessors;
    const unsigned blocks = unsigned(tiles < most ? tiles : most);
    const dim3 grid(blocks ? blocks : 1);
    update_args args = *a;
    double *sums = static_cast<double *>(cuda_set_workspace(s, grid.x * sizeof(double), "update"));
    quant_maps maps = {quant_map_of(QUANT_SIGNED), quant_map_of(QUANT_UNSIGNED)};
    void *list[] = {&args, &sums, &wide, &maps};
    (void)cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(kernel), grid, dim3(THREADS), list, 0,
                                      queue_of(s));
    return cuda_set_launched(s, "update");
}

typedef void rows_update_fn(const rows_update_args, bool);
template <update_rule RULE, weights IN> rows_update_fn *rows_kernel_of(dtype sdt)
{
    return sdt == DTYPE_BF16 ? rows_update_kernel<RULE, __nv_bfloat16, IN> : rows_update_kernel<RULE, float, IN>;
}
template <update_rule RULE> rows_update_fn *rows_kernel_by(const struct update_args *a)
{
    return a->p                 ? rows_kernel_of<RULE, WHOLE>(a->moment_dt)
           : a->master_residual ? rows_kernel_of<RULE, HALVES>(a->moment_dt)
                                : rows_kernel_of<RULE, ALONE>(a->moment_dt);
}
rows_update_fn *rows_kernel_for(const struct update_args *a)
{
    switch (a->rule) {
    case UPDATE_ADAMW: return rows_kernel_by<UPDATE_ADAMW>(a);
    case UPDATE_LION: return rows_kernel_by<UPDATE_LION>(a);
    }
    CHECK(false, "rule %d", int(a->rule));
    return nullptr;
}

status rows_update(const struct rows_update_args *a, dev_stream s)
{
    CHECK(a->of.moment_dt == DTYPE_F32 || a->of.moment_dt == DTYPE_BF16, "moments of %s", dtype_name(a->of.moment_dt));
    enum { ROUND = 8 }; // blocks of a multiprocessor
    const int64_t rows = (a->slots * a->width + THREADS * QUAD - 1) / (THREADS * QUAD),
                  most = ROUND * cuda_set(s)->multiprocessors;
    if (a->slots == 0) return STATUS_OK;
    rows_update_fn *kernel = rows_kernel_for(&a->of);
    kernel<<<unsigned(rows < most ? rows : most), THREADS, 0, queue_of(s)>>>(*a, is_wide(&a->of, a->sums));
    return cuda_set_launched(s, "rows_update");
}

} // namespace

extern "C" void cuda_optim_slots(struct ops *o)
{
    o->update = update;
    o->rows_update = rows_update;
}
