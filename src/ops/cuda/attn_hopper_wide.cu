// Attention's backward on Hopper where keys are wider than values: heads of 192 and 128, as in multi-head latent attention. Two kernels, of
// which each forms the scores and their gradients again: one for dK and dV by blocks of keys, one for dQ by blocks of queries.
//
// Products over 1152 columns (192 + 128 + 128 + 192 and 192 + 128 + 192) where one kernel would have 832. But dK and dV of 128 keys take 160
// registers of each thread of two warpgroups, and dQ has no room beside them, nor in shared memory beside K, V, Q and dO; and its sum over
// blocks of keys, in a fixed order, takes waits and four bytes of memory for each value (attn_hopper_bwd.cu). Here every sum has one
// writer: equal bits in every run, whatever runs when, and both kernels keep the tensor cores busy (H200, 4 x 4096 rows, 16 heads, TFLOP/s
// of their own products: 719 and 709; together 486, counted as 2.5 times forward). What did not pay: turns for the exponentials of dK and
// dV (587), tiles of 96 keys for dQ, which leave room for two stages (358), tiles of 80 (no faster than 64, and more registers).
//
//   dK, dV    a step, of each of two warpgroups, which hold 64 keys each, over blocks of 64 queries and the heads of the group:
//               P^T  = exp2(scale2 S^T - lse2)  beside dK of the step before
//               dP^T = V dO^T,  dV += P^T dO
//               dS^T = P^T (dP^T - delta)       beside dV
//               S^T  = K Q^T of the next step,  dK += dS^T Q
//             P^T and dS^T stay in registers: they are operand A of the products that take them.
//   dQ        a step, of each of two warpgroups, which hold 64 queries each, over tiles of N keys:
//               S = Q K^T, dP = dO V^T of this tile, dQ += dS K of the one before
//               dS = exp2(scale2 S - lse2) (dP - delta)   beside dQ
//
// Warpgroup 0 loads. Blocks of the SM stay and take blocks of rows by tickets, the longest first.
#include "ops/cuda/attn_docs.cuh"
#include "ops/cuda/tile90.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { HD = 192, HDV = 128, GROUPS = 2, THREADS = (1 + GROUPS) * WARPGROUP, REGISTERS = 240, REGISTERS_LOAD = 24 };

// What a kernel that runs first makes, in attention's scratch. Rows are filled up to a multiple of ROWS: a row that does not exist has
// lse2 = inf, so that its probabilities are 0, and is seen by nothing.
enum { ROWS = 128 };
struct wide_scratch {
    float *lse2, *delta;        // [heads, rows_pad]; lse2 for exp2
    int *row_first, *row_end;   // [rows_pad]: first_key of a query row, query_end of a key row
    unsigned *tickets;          // [2]: of each kernel
    int rows_pad;
};

struct wide_args {
    wide_scratch x;
    __nv_bfloat16 *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    int rows, heads, heads_kv, group;
    float scale, scale2;
};

// Slots in shared memory in which a loader tells the others what comes next.
enum { SLOTS = 2 };
struct dkv_slot { int block, kv, first, steps; };       // key block (-1: no more), kv head, its last query block, steps
struct dq_slot { int row, head, begin, tiles; };        // row < 0: no more; the first key

// ---- dK and dV.

struct dkv_tile {
    enum { KEYS = ROWS, M = 64, STAGES = 3 };
    enum { K = 64 * HD * 2, V = 64 * HDV * 2, Q = M * HD * 2, O = M * HDV * 2 }; // bytes: of a warpgroup, of a stage
    enum { K_AT = 0, V_AT = K_AT + GROUPS * K, Q_AT = V_AT + GROUPS * V, O_AT = Q_AT + STAGES * Q, LSE_AT = O_AT + STAGES * O };
    enum { DELTA_AT = LSE_AT + STAGES * M * 4, SLOTS_AT = DELTA_AT + STAGES * M * 4 };
    enum { SLOT_FULL = SLOTS_AT + SLOTS * (int)sizeof(dkv_slot), SLOT_EMPTY = SLOT_FULL + 8 * SLOTS, K_FULL = SLOT_EMPTY + 8 * SLOTS };
    enum { K_EMPTY = K_FULL + 8 * GROUPS, V_FULL = K_EMPTY + 8 * GROUPS, V_EMPTY = V_FULL + 8 * GROUPS, Q_FULL = V_EMPTY + 8 * GROUPS };
    enum { Q_EMPTY = Q_FULL + 8 * STAGES, O_FULL = Q_EMPTY + 8 * STAGES, O_EMPTY = O_FULL + 8 * STAGES, BYTES = O_EMPTY + 8 * STAGES };
};

// ---- dQ.

struct dq_tile {
    enum { M = ROWS, N = 64, K_STAGES = 4, V_STAGES = 3 };
    enum { Q = 64 * HD * 2, O = 64 * HDV * 2, K = N * HD * 2, V = N * HDV * 2 }; // bytes: of a warpgroup, of a stage
    enum { Q_AT = 0, O_AT = Q_AT + GROUPS * Q, K_AT = O_AT + GROUPS * O, V_AT = K_AT + K_STAGES * K, SLOTS_AT = V_AT + V_STAGES * V };
    enum { SLOT_FULL = SLOTS_AT + SLOTS * (int)sizeof(dq_slot), SLOT_EMPTY = SLOT_FULL + 8 * SLOTS, Q_FULL = SLOT_EMPTY + 8 * SLOTS };
    enum { Q_EMPTY = Q_FULL + 8 * GROUPS, K_FULL = Q_EMPTY + 8 * GROUPS, K_EMPTY = K_FULL + 8 * K_STAGES };
    enum { V_FULL = K_EMPTY + 8 * K_STAGES, V_EMPTY = V_FULL + 8 * V_STAGES, BYTES = V_EMPTY + 8 * V_STAGES };
};

#ifdef TILE90

__device__ inline int4 slot_read(uint32_t at)
{
    int4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}
__device__ inline void slot_write(uint32_t at, int4 x)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// A slot once it is filled, the same in all lanes of a converged warp.
__device__ inline int4 slot_take(uint32_t at, uint32_t full, uint32_t empty, uint32_t parity)
{
    mbar_wait(full, parity);
    int4 x = slot_read(at);
    x.x = __shfl_sync(0xffffffffu, x.x, 0);
    x.y = __shfl_sync(0xffffffffu, x.y, 0);
    x.z = __shfl_sync(0xffffffffu, x.z, 0);
    x.w = __shfl_sync(0xffffffffu, x.w, 0);
    if (threadIdx.x % WARP == 0) mbar_arrive(empty);
    return x;
}
__device__ inline float2 shared_float2(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
// What was in d is of no use: else the compiler keeps it until the product that overwrites it, since that could read it.
template <int COUNT> __device__ inline void fresh(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "=f"(d[i]));
}

// ---- dK and dV: loaders, one thread each.

__device__ inline void dkv_load_queries(const wide_args &a, uint32_t at, const CUtensorMap *map_q, const CUtensorMap *map_o)
{
    using tile = dkv_tile;
    const int items = a.x.rows_pad / tile::KEYS * a.heads_kv;
    ring<tile::STAGES> q;
    for (ring<SLOTS> slot;; slot.next()) {
        const int ticket = (int)atomicAdd(a.x.tickets, 1u);
        const walk_item w = ticket < items ? walk_at(ticket, items / a.heads_kv, a.heads_kv, 1) : walk_item{-1, 0};
        const int block = w.block, kv = w.head;
        int first = 0, steps = 0;
        if (block >= 0) {
            first = (__ldg(a.x.row_end + min(block * tile::KEYS + tile::KEYS, a.rows) - 1) - 1) / tile::M;
            steps = (first - block * tile::KEYS / tile::M + 1) * a.group;
        }
        mbar_wait(at + tile::SLOT_EMPTY + 8 * slot.stage, slot.parity ^ 1);
        slot_write(at + tile::SLOTS_AT + slot.stage * (int)sizeof(dkv_slot), make_int4(block, kv, first, steps));
        mbar_arrive(at + tile::SLOT_FULL + 8 * slot.stage);
        if (block < 0) return;
        for (int step = 0, i = first, h = 0; step < steps; step++, q.next()) {
            const int row = i * tile::M, head = kv * a.group + h;
            const int64_t stats = (int64_t)head * a.x.rows_pad + row;
            const uint32_t q_full = at + tile::Q_FULL + 8 * q.stage, o_full = at + tile::O_FULL + 8 * q.stage;
            mbar_wait(at + tile::Q_EMPTY + 8 * q.stage, q.parity ^ 1);
            mbar_arrive_expect(q_full, tile::Q + tile::M * 4);
            tma_load(at + tile::Q_AT + q.stage * tile::Q, map_q, q_full, row, head * (HD / SLAB_COLS));
            bulk_load(at + tile::LSE_AT + q.stage * (tile::M * 4), a.x.lse2 + stats, tile::M * 4, q_full);
            mbar_wait(at + tile::O_EMPTY + 8 * q.stage, q.parity ^ 1);
            mbar_arrive_expect(o_full, tile::O + tile::M * 4);
            tma_load(at + tile::O_AT + q.stage * tile::O, map_o, o_full, row, head * (HDV / SLAB_COLS));
            bulk_load(at + tile::DELTA_AT + q.stage * (tile::M * 4), a.x.delta + stats, tile::M * 4, o_full);
            if (++h == a.group) {
                h = 0;
                i--;
            }
        }
    }
}

__device__ inline void dkv_load_keys(uint32_t at, const CUtensorMap *map_k, const CUtensorMap *map_v)
{
    using tile = dkv_tile;
    uint32_t parity = 0;
    for (ring<SLOTS> slot;; slot.next(), parity ^= 1) {
        mbar_wait(at + tile::SLOT_FULL + 8 * slot.stage, slot.parity);
        const int4 x = slot_read(at + tile::SLOTS_AT + slot.stage * (int)sizeof(dkv_slot));
        mbar_arrive(at + tile::SLOT_EMPTY + 8 * slot.stage);
        if (x.x < 0) return;
        for (int g = 0; g < GROUPS; g++) {
            const int row = x.x * tile::KEYS + g * 64;
            mbar_wait(at + tile::K_EMPTY + 8 * g, parity ^ 1);
            mbar_arrive_expect(at + tile::K_FULL + 8 * g, tile::K);
            tma_load(at + tile::K_AT + g * tile::K, map_k, at + tile::K_FULL + 8 * g, row, x.y * (HD / SLAB_COLS));
            mbar_wait(at + tile::V_EMPTY + 8 * g, parity ^ 1);
            mbar_arrive_expect(at + tile::V_FULL + 8 * g, tile::V);
            tma_load(at + tile::V_AT + g * tile::V, map_v, at + tile::V_FULL + 8 * g, row, x.y * (HDV / SLAB_COLS));
        }
    }
}

// ---- dK and dV: a warpgroup of 64 keys.

struct dkv_group {
    using tile = dkv_tile;
    enum { M = tile::M };
    const wide_args &a;
    const uint32_t at;
    const int group, thread, lane; // thread: within the warpgroup
    float dk[HD / 2], dv[HDV / 2], s[M / 2], dp[M / 2];
    uint32_t p[M / 16][4], ds[M / 16][4];

    __device__ dkv_group(const wide_args &a_, uint32_t at_, int group_)
        : a(a_), at(at_), group(group_), thread(threadIdx.x % WARPGROUP), lane(threadIdx.x % WARP)
    {
    }
    __device__ void release(uint32_t bar) const
    {
        if (lane == 0) mbar_arrive(bar);
    }
    // S^T of the tile of Q in a stage.
    __device__ void scores_queue(int stage)
    {
        const uint64_t k = operand_k(at + tile::K_AT + group * tile::K), q = operand_k(at + tile::Q_AT + stage * tile::Q);
        fresh(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HD / 16; i++) wgmma_ss<M>(s, operand_step(k, step_k(i, 64)), operand_step(q, step_k(i, M)), i > 0);
        wgmma_commit();
    }
    __device__ void score_gradients_queue(int stage)
    {
        const uint64_t v = operand_k(at + tile::V_AT + group * tile::V), o = operand_k(at + tile::O_AT + stage * tile::O);
        fresh(dp);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HDV / 16; i++) wgmma_ss<M>(dp, operand_step(v, step_k(i, 64)), operand_step(o, step_k(i, M)), i > 0);
        wgmma_commit();
    }
    // c += x^T tile: dV of P^T and dO, dK of dS^T and Q.
    template <int COLS> __device__ void rows_queue(float (&c)[COLS / 2], uint32_t (&x)[M / 16][4], uint32_t tile_at)
    {
        const uint64_t b = operand_mn(tile_at, M * SLAB_ROW);
        hold(c);
#pragma unroll
        for (int k = 0; k < M / 16; k++) hold(x[k]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < M / 16; k++) wgmma_rs<COLS, 1>(c, x[k], operand_step(b, step_mn(k)), 1);
        wgmma_commit();
    }
    // Queries of a tile outside [from, to), counted from its first query, do not see a key: from, to of this thread's two keys.
    __device__ void mask(const int (&from)[2], const int (&to)[2])
    {
#pragma unroll
        for (int i = 0; i < M / 2; i++) {
            const int col = i / 4 * 8 + i % 2 + lane % 4 * 2, half = i / 2 % 2;
            if (col < from[half] || col >= to[half]) s[i] = -INFINITY;
        }
    }
    __device__ void probabilities(int stage)
    {
        const uint32_t lse_at = at + tile::LSE_AT + stage * (M * 4) + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < M / 8; n++) {
            const float2 lse = shared_float2(lse_at + n * 32);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = n * 4 + half * 2;
                p[n / 2][n % 2 * 2 + half] =
                    two_bf16(exp2_fast(fmaf(s[i], a.scale2, -lse.x)), exp2_fast(fmaf(s[i + 1], a.scale2, -lse.y)));
            }
        }
#pragma unroll
        for (int c = 0; c < M / 16; c++) hold(p[c]);
    }
    // From the rounded P: it is what dV takes.
    __device__ void score_gradients(int stage)
    {
        const uint32_t delta_at = at + tile::DELTA_AT + stage * (M * 4) + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < M / 8; n++) {
            const float2 delta = shared_float2(delta_at + n * 32);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = n * 4 + half * 2;
                const uint32_t x = p[n / 2][n % 2 * 2 + half];
                ds[n / 2][n % 2 * 2 + half] =
                    two_bf16(__uint_as_float(x << 16) * (dp[i] - delta.x), __uint_as_float(x & 0xffff0000u) * (dp[i + 1] - delta.y));
            }
        }
#pragma unroll
        for (int c = 0; c < M / 16; c++) hold(ds[c]);
    }

    __device__ void run()
    {
        ring<tile::STAGES> q;
        uint32_t parity = 0;
        for (ring<SLOTS> slot;; slot.next(), parity ^= 1) {
            const int4 item = slot_take(at + tile::SLOTS_AT + slot.stage * (int)sizeof(dkv_slot), at + tile::SLOT_FULL + 8 * slot.stage,
                                        at + tile::SLOT_EMPTY + 8 * slot.stage, slot.parity);
            if (item.x < 0) return;
            const int key0 = item.x * tile::KEYS + group * 64, key = key0 + acc_row(thread, 0);
            const int end[2] = {__ldg(a.x.row_end + key), __ldg(a.x.row_end + key + 8)}, end0 = __ldg(a.x.row_end + key0);
#pragma unroll
            for (int i = 0; i < HD / 2; i++) dk[i] = 0;
#pragma unroll
            for (int i = 0; i < HDV / 2; i++) dv[i] = 0;
            mbar_wait(at + tile::K_FULL + 8 * group, parity);
            mbar_wait(at + tile::Q_FULL + 8 * q.stage, q.parity);
            scores_queue(q.stage);
            mbar_wait(at + tile::V_FULL + 8 * group, parity);
            wgmma_wait<0>();
            hold(s);
            int query = item.z * M, h = 0;
            for (int step = 0; step < item.w; step++) {
                const int now = q.stage;
                if (query < key0 + 63 || query + M > end0) {
                    const int from[2] = {key - query, key + 8 - query}, to[2] = {end[0] - query, end[1] - query};
                    mask(from, to);
                }
                probabilities(now);
                wgmma_wait<0>(); // dK of the step before
                if (step > 0) release(at + tile::Q_EMPTY + 8 * (now == 0 ? tile::STAGES - 1 : now - 1));
                mbar_wait(at + tile::O_FULL + 8 * now, q.parity);
                score_gradients_queue(now);
                rows_queue<HDV>(dv, p, at + tile::O_AT + now * tile::O);
                wgmma_wait<1>();
                hold(dp);
                score_gradients(now);
                wgmma_wait<0>(); // dV
                release(at + tile::O_EMPTY + 8 * now);
                q.next();
                // After the last step this is a product of garbage, which nobody reads: queued under a condition, it would keep the
                // compiler from leaving products open.
                if (step + 1 < item.w) mbar_wait(at + tile::Q_FULL + 8 * q.stage, q.parity);
                scores_queue(q.stage);
                rows_queue<HD>(dk, ds, at + tile::Q_AT + now * tile::Q);
                wgmma_wait<1>();
                hold(s);
                if (++h == a.group) {
                    h = 0;
                    query -= M;
                }
            }
            release(at + tile::K_EMPTY + 8 * group);
            release(at + tile::V_EMPTY + 8 * group);
            wgmma_wait<0>();
            hold(dk);
            hold(dv);
            release(at + tile::Q_EMPTY + 8 * (q.stage == 0 ? tile::STAGES - 1 : q.stage - 1));
            const int valid = a.rows - key0;
            rows_store(dv, {1, 1}, a.dv + key0 * a.dv_stride + item.y * HDV, a.dv_stride, valid);
            rows_store(dk, {a.scale, a.scale}, a.dk + key0 * a.dk_stride + item.y * HD, a.dk_stride, valid);
        }
    }
};

// ---- dQ: loaders, one thread each.

__device__ inline void dq_load_queries(const wide_args &a, uint32_t at, const CUtensorMap *map_q, const CUtensorMap *map_o)
{
    using tile = dq_tile;
    const int items = a.x.rows_pad / tile::M * a.heads;
    uint32_t parity = 0;
    for (ring<SLOTS> slot;; slot.next(), parity ^= 1) {
        const int ticket = (int)atomicAdd(a.x.tickets + 1, 1u);
        const walk_item w = ticket < items ? walk_at(ticket, items / a.heads, a.heads, a.group) : walk_item{-1, 0};
        const int row = ticket < items ? a.x.rows_pad - (w.block + 1) * tile::M : -1, head = w.head;
        const int begin = row < 0 ? 0 : __ldg(a.x.row_first + row);
        mbar_wait(at + tile::SLOT_EMPTY + 8 * slot.stage, slot.parity ^ 1);
        slot_write(at + tile::SLOTS_AT + slot.stage * (int)sizeof(dq_slot),
                   make_int4(row, head, begin, (min(row + tile::M, a.rows) - begin + tile::N - 1) / tile::N));
        mbar_arrive(at + tile::SLOT_FULL + 8 * slot.stage);
        if (row < 0) return;
        for (int g = 0; g < GROUPS; g++) {
            const uint32_t full = at + tile::Q_FULL + 8 * g;
            mbar_wait(at + tile::Q_EMPTY + 8 * g, parity ^ 1);
            mbar_arrive_expect(full, tile::Q + tile::O);
            tma_load(at + tile::Q_AT + g * tile::Q, map_q, full, row + g * 64, head * (HD / SLAB_COLS));
            tma_load(at + tile::O_AT + g * tile::O, map_o, full, row + g * 64, head * (HDV / SLAB_COLS));
        }
    }
}

// Keys or values, heads of COLS columns: full, empty and to are offsets of the first stage's.
template <int COLS, int STAGES>
__device__ inline void dq_load(const CUtensorMap *map, const wide_args &a, uint32_t at, int to, int full, int empty)
{
    using tile = dq_tile;
    constexpr int BYTES = tile::N * COLS * 2;
    ring<STAGES> kv;
    for (ring<SLOTS> slot;; slot.next()) {
        mbar_wait(at + tile::SLOT_FULL + 8 * slot.stage, slot.parity);
        const int4 x = slot_read(at + tile::SLOTS_AT + slot.stage * (int)sizeof(dq_slot));
        mbar_arrive(at + tile::SLOT_EMPTY + 8 * slot.stage);
        if (x.x < 0) return;
        for (int j = x.w - 1; j >= 0; j--, kv.next()) {
            mbar_wait(at + empty + 8 * kv.stage, kv.parity ^ 1);
            mbar_arrive_expect(at + full + 8 * kv.stage, BYTES);
            tma_load(at + to + kv.stage * BYTES, map, at + full + 8 * kv.stage, x.z + j * tile::N, x.y / a.group * (COLS / SLAB_COLS));
        }
    }
}

// ---- dQ: a warpgroup of 64 queries.

struct dq_group {
    using tile = dq_tile;
    enum { N = tile::N };
    const wide_args &a;
    const uint32_t at;
    const int group, thread, lane;
    float dq[HD / 2], s[N / 2], dp[N / 2];
    uint32_t ds[N / 16][4];
    float lse2[2], delta[2];
    ring<tile::K_STAGES> k; // of the tile whose S comes next
    ring<tile::V_STAGES> v;
    int k_before;           // the stage of the tile before

    __device__ dq_group(const wide_args &a_, uint32_t at_, int group_)
        : a(a_), at(at_), group(group_), thread(threadIdx.x % WARPGROUP), lane(threadIdx.x % WARP), k_before(0)
    {
    }
    __device__ void release(uint32_t bar) const
    {
        if (lane == 0) mbar_arrive(bar);
    }
    // The warpgroups queue their products in turns, one turn for each tile of the block.
    __device__ void turn() const { named_sync(1 + group, GROUPS * WARPGROUP); }
    __device__ void turn_over() const { named_arrive(2 - group, GROUPS * WARPGROUP); }
    __device__ void keys_wait() const
    {
        mbar_wait(at + tile::K_FULL + 8 * k.stage, k.parity);
        mbar_wait(at + tile::V_FULL + 8 * v.stage, v.parity);
    }
    // S and dP of the tile that comes next.
    __device__ void scores_queue()
    {
        const uint64_t q = operand_k(at + tile::Q_AT + group * tile::Q), key = operand_k(at + tile::K_AT + k.stage * tile::K);
        const uint64_t o = operand_k(at + tile::O_AT + group * tile::O), value = operand_k(at + tile::V_AT + v.stage * tile::V);
        fresh(s);
        fresh(dp);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HD / 16; i++) wgmma_ss<N>(s, operand_step(q, step_k(i, 64)), operand_step(key, step_k(i, N)), i > 0);
#pragma unroll
        for (int i = 0; i < HDV / 16; i++) wgmma_ss<N>(dp, operand_step(o, step_k(i, 64)), operand_step(value, step_k(i, N)), i > 0);
        wgmma_commit();
    }
    __device__ void dq_queue()
    {
        const uint64_t b = operand_mn(at + tile::K_AT + k_before * tile::K, N * SLAB_ROW);
        hold(dq);
#pragma unroll
        for (int i = 0; i < N / 16; i++) hold(ds[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < N / 16; i++) wgmma_rs<HD, 1>(dq, ds[i], operand_step(b, step_mn(i)), 1);
        wgmma_commit();
    }
    // Keys outside [from, to], counted from the tile's first, are not seen: from, to of this thread's two rows.
    __device__ void mask(const int (&from)[2], const int (&to)[2])
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int col = i / 4 * 8 + i % 2, half = i / 2 % 2;
            if (col < from[half] || col > to[half]) s[i] = -INFINITY;
        }
    }
    // s becomes dS.
    __device__ void score_gradients()
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            s[i] = exp2_fast(fmaf(s[i], a.scale2, -lse2[i / 2 % 2])) * (dp[i] - delta[i / 2 % 2]);
    }
    __device__ void pack()
    {
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            pack_a(ds[i], s, i);
            hold(ds[i]);
        }
    }
    __device__ void values_done()
    {
        release(at + tile::V_EMPTY + 8 * v.stage);
        v.next();
        k_before = k.stage;
        k.next();
    }
    // A tile of keys that no row of this warpgroup sees.
    __device__ void skip()
    {
        keys_wait();
        turn();
        turn_over();
        values_done();
        release(at + tile::K_EMPTY + 8 * k_before);
    }
    // Rows row .. last of the block at item; tiles high, high - 1, .. low, all that some row sees.
    __device__ void attend(const int4 &item, int row, int high, int low)
    {
        const int mine = row + acc_row(thread, 0), base = item.z + lane % 4 * 2;
        const int64_t stats = (int64_t)item.y * a.x.rows_pad + mine;
        const int first[2] = {__ldg(a.x.row_first + mine) - base, __ldg(a.x.row_first + mine + 8) - base};
        const int last = __ldg(a.x.row_first + row + 63) - item.z; // the first key that all rows see
        lse2[0] = __ldg(a.x.lse2 + stats);
        lse2[1] = __ldg(a.x.lse2 + stats + 8);
        delta[0] = __ldg(a.x.delta + stats);
        delta[1] = __ldg(a.x.delta + stats + 8);
#pragma unroll
        for (int i = 0; i < HD / 2; i++) dq[i] = 0;
        auto gradients = [&](int j) {
            const int key = j * N;
            if (item.z + key + N > row || key < last) {
                const int from[2] = {first[0] - key, first[1] - key}, to[2] = {mine - base - key, mine + 8 - base - key};
                mask(from, to);
            }
            score_gradients();
        };
        keys_wait();
        turn();
        scores_queue();
        turn_over();
        wgmma_wait<0>();
        hold(s);
        hold(dp);
        values_done();
        gradients(high);
        pack();
        for (int j = high - 1; j >= low; j--) {
            keys_wait();
            turn();
            scores_queue();
            dq_queue();
            turn_over();
            wgmma_wait<1>();
            hold(s);
            hold(dp);
            const int before = k_before;
            values_done();
            gradients(j);
            wgmma_wait<0>();
            hold(dq);
            release(at + tile::K_EMPTY + 8 * before);
            pack();
        }
        release(at + tile::Q_EMPTY + 8 * group);
        dq_queue();
        wgmma_wait<0>();
        hold(dq);
        release(at + tile::K_EMPTY + 8 * k_before);
        rows_store(dq, {a.scale, a.scale}, a.dq + row * a.dq_stride + item.y * HD, a.dq_stride, a.rows - row);
    }

    __device__ void run()
    {
        uint32_t parity = 0;
        if (group == 1) turn_over(); // the first turn is warpgroup 0's
        for (ring<SLOTS> slot;; slot.next(), parity ^= 1) {
            const int4 item = slot_take(at + tile::SLOTS_AT + slot.stage * (int)sizeof(dq_slot), at + tile::SLOT_FULL + 8 * slot.stage,
                                        at + tile::SLOT_EMPTY + 8 * slot.stage, slot.parity);
            if (item.x < 0) return;
            const int row = item.x + group * 64, last = min(row + 63, a.rows - 1);
            const int high = row <= last ? (last - item.z) / N : -1, low = row <= last ? (__ldg(a.x.row_first + row) - item.z) / N : 0;
            for (int j = item.w - 1; j > high; j--) skip();
            mbar_wait(at + tile::Q_FULL + 8 * group, parity);
            if (high >= low) attend(item, row, high, low);
            else release(at + tile::Q_EMPTY + 8 * group);
            for (int j = low - 1; j >= 0; j--) skip();
        }
    }
};
#endif // TILE90

__global__ void __launch_bounds__(THREADS, 1)
hopper_dkv_kernel(const wide_args a, const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                  const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_o)
{
#ifdef TILE90
    using tile = dkv_tile;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), warps = WARPGROUP / WARP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            mbar_init(at + tile::SLOT_FULL + 8 * i, 1);
            mbar_init(at + tile::SLOT_EMPTY + 8 * i, GROUPS * warps + 1);
        }
        for (int i = 0; i < GROUPS; i++) {
            mbar_init(at + tile::K_FULL + 8 * i, 1);
            mbar_init(at + tile::V_FULL + 8 * i, 1);
            mbar_init(at + tile::K_EMPTY + 8 * i, warps);
            mbar_init(at + tile::V_EMPTY + 8 * i, warps);
        }
        for (int i = 0; i < tile::STAGES; i++) {
            mbar_init(at + tile::Q_FULL + 8 * i, 1);
            mbar_init(at + tile::O_FULL + 8 * i, 1);
            mbar_init(at + tile::Q_EMPTY + 8 * i, GROUPS * warps);
            mbar_init(at + tile::O_EMPTY + 8 * i, GROUPS * warps);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < warps) {
        registers_give<REGISTERS_LOAD>();
        if (warp == 0 && one_lane()) dkv_load_queries(a, at, &map_q, &map_o);
        if (warp == 1 && one_lane()) dkv_load_keys(at, &map_k, &map_v);
    } else {
        registers_take<REGISTERS>();
        dkv_group(a, at, warp / warps - 1).run();
    }
#endif
}

__global__ void __launch_bounds__(THREADS, 1)
hopper_dq_kernel(const wide_args a, const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                 const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_o)
{
#ifdef TILE90
    using tile = dq_tile;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), warps = WARPGROUP / WARP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            mbar_init(at + tile::SLOT_FULL + 8 * i, 1);
            mbar_init(at + tile::SLOT_EMPTY + 8 * i, GROUPS * warps + 2);
        }
        for (int i = 0; i < GROUPS; i++) {
            mbar_init(at + tile::Q_FULL + 8 * i, 1);
            mbar_init(at + tile::Q_EMPTY + 8 * i, warps);
        }
        for (int i = 0; i < tile::K_STAGES; i++) {
            mbar_init(at + tile::K_FULL + 8 * i, 1);
            mbar_init(at + tile::K_EMPTY + 8 * i, GROUPS * warps);
        }
        for (int i = 0; i < tile::V_STAGES; i++) {
            mbar_init(at + tile::V_FULL + 8 * i, 1);
            mbar_init(at + tile::V_EMPTY + 8 * i, GROUPS * warps);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < warps) {
        registers_give<REGISTERS_LOAD>();
        if (warp == 0 && one_lane()) dq_load_queries(a, at, &map_q, &map_o);
        if (warp == 1 && one_lane()) dq_load<HD, tile::K_STAGES>(&map_k, a, at, tile::K_AT, tile::K_FULL, tile::K_EMPTY);
        if (warp == 2 && one_lane()) dq_load<HDV, tile::V_STAGES>(&map_v, a, at, tile::V_AT, tile::V_FULL, tile::V_EMPTY);
    } else {
        registers_take<REGISTERS>();
        dq_group(a, at, warp / warps - 1).run();
    }
#endif
}

// ---- Before: delta = <dO, O>, lse for exp2, the tables.

struct wide_before {
    attn_docs docs;
    wide_scratch x;
    const __nv_bfloat16 *o, *grad;
    const float *lse;
    int heads;
};

enum { BEFORE_THREADS = 256, BEFORE_LANES = HDV / 8, BEFORE_ROWS = BEFORE_THREADS / BEFORE_LANES };

// Block: BEFORE_ROWS rows of one head; the heads of the same rows are neighbours in the grid.
__global__ void __launch_bounds__(BEFORE_THREADS) hopper_wide_before_kernel(const wide_before a)
{
    const int head = blockIdx.x % a.heads, row = (int)(blockIdx.x / a.heads) * BEFORE_ROWS + threadIdx.x / BEFORE_LANES;
    const bool there = row < a.docs.rows;
    float sum = 0;
    if (there) {
        const int64_t at = ((int64_t)row * a.heads + head) * HDV + threadIdx.x % BEFORE_LANES * 8;
        const pack<__nv_bfloat16> x = load_pack(a.o + at), y = load_pack(a.grad + at);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(to_f32(x.v[e]), to_f32(y.v[e]), sum);
    }
#pragma unroll
    for (int d = BEFORE_LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % BEFORE_LANES == 0) {
        const int64_t at = (int64_t)head * a.x.rows_pad + row;
        a.x.delta[at] = sum;
        a.x.lse2[at] = there ? a.lse[(int64_t)head * a.docs.rows + row] * 1.44269504088896340736f : INFINITY;
    }
    const int64_t i = (int64_t)blockIdx.x * BEFORE_THREADS + threadIdx.x;
    if (i < 2) a.x.tickets[i] = 0;
    if (i >= a.x.rows_pad) return;
    a.x.row_first[i] = first_key(a.docs, min((int)i, a.docs.rows - 1));
    a.x.row_end[i] = i < a.docs.rows ? query_end(a.docs, (int)i) : 0;
}

// ---- Launchers.

// Lays out the scratch; returns its bytes. `at` may be NULL.
static size_t wide_scratch_lay(wide_scratch *x, char *at, int64_t rows, int64_t heads)
{
    const int64_t pad = (rows + ROWS - 1) / ROWS * ROWS;
    size_t used = 0;
    auto take = [&](int64_t count) {
        char *p = at ? at + used : NULL;
        used += ((size_t)count * 4 + 255) / 256 * 256;
        return p;
    };
    x->rows_pad = (int)pad;
    x->lse2 = (float *)take(pad * heads);
    x->delta = (float *)take(pad * heads);
    x->row_first = (int *)take(pad);
    x->row_end = (int *)take(pad);
    x->tickets = (unsigned *)take(2);
    return used;
}

extern "C" size_t cuda_hopper_wide_scratch(const struct attn_shape *shape)
{
    wide_scratch x;
    return wide_scratch_lay(&x, NULL, shape->rows, shape->heads);
}

extern "C" status cuda_hopper_wide_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    using T = __nv_bfloat16;
    wide_scratch x;
    wide_scratch_lay(&x, (char *)a->scratch, a->rows, a->heads);
    const wide_args b = {x,
                         (T *)a->dq,
                         (T *)a->dk,
                         (T *)a->dv,
                         a->dq_stride,
                         a->dk_stride,
                         a->dv_stride,
                         (int)a->rows,
                         (int)a->heads,
                         (int)a->heads_kv,
                         (int)(a->heads / a->heads_kv),
                         (float)a->scale,
                         (float)(a->scale * 1.4426950408889634)};
    const wide_before before = {attn_docs_of(a), x, (const T *)a->o, (const T *)a->do_, (const float *)a->lse, (int)a->heads};
    const int64_t width = a->heads * HD, width_kv = a->heads_kv * HD, width_v = a->heads_kv * HDV, width_o = a->heads * HDV;
    CUtensorMap q, k, k_dq, v, v_dq, o;
    TRY(tile_map_rows(&q, s, a->q, a->rows, a->q_stride, width, 64, HD / SLAB_COLS));
    TRY(tile_map_rows(&o, s, a->do_, a->rows, width_o, width_o, 64, HDV / SLAB_COLS));
    TRY(tile_map_rows(&k, s, a->k, a->rows, a->k_stride, width_kv, 64, HD / SLAB_COLS));
    TRY(tile_map_rows(&v, s, a->v, a->rows, a->v_stride, width_v, 64, HDV / SLAB_COLS));
    TRY(tile_map_rows(&k_dq, s, a->k, a->rows, a->k_stride, width_kv, dq_tile::N, HD / SLAB_COLS));
    TRY(tile_map_rows(&v_dq, s, a->v, a->rows, a->v_stride, width_v, dq_tile::N, HDV / SLAB_COLS));
    const int resident = cuda_set(s)->multiprocessors, blocks = x.rows_pad / ROWS;
    const int items_kv = blocks * (int)a->heads_kv, items = blocks * (int)a->heads;
    hopper_wide_before_kernel<<<(unsigned)(x.rows_pad / BEFORE_ROWS * a->heads), BEFORE_THREADS, 0, queue_of(s)>>>(before);
    // A failure of these shows at the launch.
    cudaFuncSetAttribute(hopper_dkv_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dkv_tile::BYTES);
    cudaFuncSetAttribute(hopper_dq_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dq_tile::BYTES);
    hopper_dkv_kernel<<<items_kv < resident ? items_kv : resident, THREADS, dkv_tile::BYTES, queue_of(s)>>>(b, q, k, v, o);
    hopper_dq_kernel<<<items < resident ? items : resident, THREADS, dq_tile::BYTES, queue_of(s)>>>(b, q, k_dq, v_dq, o);
    return cuda_set_launched(s, "attn_bwd (hopper, wide)");
}
