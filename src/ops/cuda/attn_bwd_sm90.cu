// Attention's backward on Hopper, heads of 64 and 128 (keys wider than values: attn_bwd_wide_sm90.cu). Five matmuls
// in one kernel, after FlashAttention-3 (Shah et al., arXiv:2407.08608), with equal bits in every run.
//
//   work item   a block of KEYS = 128 key rows of one kv head; loops over the blocks of M query rows that see the keys
//               (M = 128 for heads of 64, 64 for heads of 128), inside over the query heads of the group
//   registers   dK and dV of the item, all the way
//   warps       warpgroup 0: a producer (TMA: Q, dO, their lse and delta, K, V), and one warp per consumer that adds
//               its dQ to global memory; warpgroups 1, 2: consumers, 64 keys each
//
// One step of a consumer:
//
//   dP^T = V dO^T - delta           [64 keys x M queries], like S^T: so P^T and dS^T are in registers as operand A
//   P^T  = exp2(scale2 S^T - lse2)  overlaps dP^T
//   dV  += P^T dO
//   dS^T = P^T dP^T                 overlaps dV; also to shared memory, for dQ, which sums over both consumers' keys
//   dQ   = dS K                     of the step before: [64 x 64 of the M x HD tile per consumer]; added to global
//                                   memory during the next two matmuls
//   S^T  = K Q^T                    of the next step
//   dK  += dS^T Q
//
// Since dQ is one step late, the consumers need not run in lockstep. Ping-pong by named barriers: one consumer
// computes exponentials and dS while the other keeps the tensor cores busy.
//
//   measured: heads of 64, 8 x 4096 and 32 x 2048 rows, sustained load, alternating   slower by
//     without ping-pong                                                               4 and 6 %
//     delta subtracted after the matmul                                               2.5 and 3.5 %
//     dQ after S^T, handed over when all matmuls are done                             0 and 2 %
//     dQ not added to anything (wrong)                                                8 % faster
//   no gain: some exponentials as polynomials; dS in bf16x2; lse and delta permuted for 16-byte loads
//   limit: a step is one chain of waits, mostly for shared memory; tensor cores are busy for 58 % of it
//
// Which matmuls may be open at once is limited by ptxas: it must not report that it serializes wgmma (C7512, C7514,
// C7515).
//
// ---- dQ in a fixed order.
//
// Query block i of a head is seen by the key blocks first_block(i) .. own_block(i) (both never decrease along the
// rows, attn_docs.cuh). They add in the order of the walk, by a semaphore per (i, head, warpgroup) in global
// memory. The first one stores, so nothing is zeroed. The last one reads the partial sum, scales, rounds and writes
// dq. The walk has two directions:
//
//   down   key blocks ascending, each from the last query block that sees it down to its own. The longest items of a
//          document come first, so the tail is short. Each key block follows the one before it by a step.
//   up     key blocks descending, each from its own query block upwards. Waits are only for earlier items, but the
//          longest items come last, and blocks of one head are further apart. For short documents whose step is one
//          head (group 1): down, all items of a document end together, and those of the next one begin with waits for
//          each other.
//
//   measured, TFLOP/s          up    down
//     64 x 1024, 12/12 of 64   270   211
//     4 x 4096, 32/32 of 128   336   430
//
// Work items are taken by tickets in the order of the walk. Waits are only for smaller tickets, which a block
// already has or has finished: no deadlock, however few blocks are resident. Concurrent blocks of one head read the
// same tiles of Q and dO and add to the same tile of dQ while these are in L2.
//
// Partial sums of dQ have the layout of wgmma accumulators: [query block][head][warpgroup][8][128 threads] float4.
// Only this file reads them.
#include "ops/cuda/attn_docs.cuh"
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { ELEMENTWISE = 1 }; // and 2: named barriers of the ping-pong
enum { KEYS = 128, GROUPS = 2, THREADS = (1 + GROUPS) * WARPGROUP, DQ_FLOATS = 64 * 64 };

template <int HD> struct bwd_tile {
    enum {
        M = HD == 64 ? 128 : 64, // query rows of a step
        REGISTERS = 240,         // registers per consumer thread; the producer's warpgroup has the rest of 3 * 168
        GIVEN = 3 * 168 - 2 * REGISTERS,
        Q_STAGES = HD == 64 ? 2 : 3,
        O_STAGES = 2,
        DS_STAGES = 3, // one being written, one read by this warpgroup, one still read by the other
        KV = KEYS * HD * 2,
        Q = M * HD * 2,
        DS = KEYS * M * 2,
        DQ = DQ_FLOATS * 4
    };
    using k_smem = smem_field<0, KV>;
    using v_smem = smem_field<k_smem::END, KV>;
    using q_smem = smem_field<v_smem::END, Q, Q_STAGES>;
    using o_smem = smem_field<q_smem::END, Q, O_STAGES>;
    using ds_smem = smem_field<o_smem::END, DS, DS_STAGES>;
    using dq_smem = smem_field<ds_smem::END, DQ, GROUPS>;
    using lse_smem = smem_field<dq_smem::END, M * 4, Q_STAGES>;
    using delta_smem = smem_field<lse_smem::END, M * 4, O_STAGES>;
    using bars_smem = smem_field<delta_smem::END, 8, 24>;
    using item_smem = smem_field<bars_smem::END, 16>;
    using mode_smem = smem_field<item_smem::END, 4, 4>; // dq_mode of each warpgroup
    enum { BYTES = mode_smem::END };
};

// Tables that the first kernel makes, and partial sums, in attention's scratch. Rows are padded to a multiple of
// KEYS: padding has lse2 = inf, so its probabilities are 0, and it sees nothing and is seen by nothing.
struct bwd_scratch {
    float *dq;                  // the padded rows
    float *lse2, *delta;        // [heads, rows_pad]; lse2 for exp2, delta negative
    int *row_begin, *row_end;   // [keys_pad]: queries_of a key row; row_begin: with split, else NULL
    int *first_block;           // [rows_pad / M]: the first key block that a query block sees
    int *own_block;             // [rows_pad / M]: the last one; with split, else NULL
    unsigned *dq_semaphore;            // [rows_pad / M, heads, 2]: how many key blocks have added
    unsigned *ticket;
    int rows_pad, keys_pad;     // keys_pad: a multiple of KEYS
};

struct bwd_args {
    bwd_scratch x;
    __nv_bfloat16 *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    int rows, keys, heads, heads_kv, group, items; // rows: of queries
    int upward; // the direction of the walk
    float scale, scale2;
    const int *positions; // heads of 64: rotates dq and dk back (RoPE) by these angles; NULL: does not
    const float *cos, *sin; // [positions, 32]
};

// What happens to a warpgroup's part of dQ: others add to it, or it is finished, alone or with a partial sum.
enum dq_mode { DQ_ADD, DQ_LAST, DQ_ONLY };

// A work item as the producer passes it on: key block (-1: no more), kv head, query blocks in the order of the
// walk.
struct bwd_item { int block, kv, first, last; };

// ---- What the kernel's warps share.

template <int HD> struct bwd_shared {
    using tile = bwd_tile<HD>;
    uint32_t base;

    __device__ uint32_t bar(int i) const { return tile::bars_smem::at(base, i); }
    __device__ uint32_t ds_full(int stage) const { return bar(16 + stage); }
    __device__ uint32_t ds_empty(int stage) const { return bar(19 + stage); }
    __device__ uint32_t q_full(int stage) const { return bar(stage); }
    __device__ uint32_t q_empty(int stage) const { return bar(3 + stage); }
    __device__ uint32_t o_full(int stage) const { return bar(6 + stage); }
    __device__ uint32_t o_empty(int stage) const { return bar(8 + stage); }
    __device__ uint32_t kv_full() const { return bar(10); }
    __device__ uint32_t kv_empty() const { return bar(11); }
    __device__ uint32_t dq_full(int group) const { return bar(12 + group); }
    __device__ uint32_t dq_empty(int group) const { return bar(14 + group); }

    __device__ bwd_item item() const
    {
        bwd_item x;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(x.block), "=r"(x.kv), "=r"(x.first), "=r"(x.last)
                     : "r"(tile::item_smem::at(base))
                     : "memory");
        return x;
    }
    __device__ int mode(int group) const
    {
        int x;
        asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(x) : "r"(tile::mode_smem::at(base, group)) : "memory");
        return x;
    }
    __device__ void put_mode(int group, int x) const
    {
        asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(tile::mode_smem::at(base, group)), "r"(x) : "memory");
    }
    __device__ void put_item(const bwd_item &x) const
    {
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(tile::item_smem::at(base)), "r"(x.block),
                     "r"(x.kv), "r"(x.first), "r"(x.last)
                     : "memory");
    }
};

#ifdef TILE90

__device__ inline unsigned load_acquire(const unsigned *p)
{
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(x) : "l"(p) : "memory");
    return x;
}
__device__ inline void add_release(unsigned *p)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(p) : "memory");
}
__device__ inline void fence_async_all() { asm volatile("fence.proxy.async;\n" ::: "memory"); }

// ---- Producer: one thread.

// The query blocks that see a key block: none if high < low. As add_dq counts them: a block with a row at row_begin of
// the first key or after it, and one before row_end of the last, even if no row of it is both.
struct block_span { int low, high; };
template <int M, bool SPLIT> __device__ inline block_span query_blocks(const bwd_args &a, int block)
{
    const int end = __ldg(a.x.row_end + min(block * KEYS + KEYS, a.keys) - 1);
    if constexpr (SPLIT) {
        const int begin = __ldg(a.x.row_begin + block * KEYS);
        return {begin < a.rows ? begin / M : (a.rows + M - 1) / M, end > 0 ? (end - 1) / M : -1};
    }
    return {block * KEYS / M, (end - 1) / M};
}

template <int HD, bool SPLIT>
__device__ inline void produce(const bwd_args &a, const bwd_shared<HD> sh, const CUtensorMap *map_q,
                               const CUtensorMap *map_k, const CUtensorMap *map_v, const CUtensorMap *map_o)
{
    using tile = bwd_tile<HD>;
    constexpr int SLABS = HD / SLAB_COLS;
    pipeline_state<tile::Q_STAGES> q;
    pipeline_state<tile::O_STAGES> o;
    for (uint32_t parity = 0;; parity ^= 1) {
        bwd_item item;
        block_span queries;
        int ticket;
        do {
            ticket = (int)atomicAdd(a.x.ticket, 1u);
            item = {ticket / a.heads_kv, ticket % a.heads_kv, 0, 0};
            if (a.upward) item.block = a.items / a.heads_kv - 1 - item.block;
            if (ticket < a.items) queries = query_blocks<tile::M, SPLIT>(a, item.block);
        } while (SPLIT && ticket < a.items && queries.high < queries.low);
        if (ticket >= a.items) {
            mbar_wait(sh.kv_empty(), parity ^ 1);
            sh.put_item({-1, 0, 0, 0});
            mbar_arrive(sh.kv_full());
            return;
        }
        const int low = queries.low, high = queries.high, onward = a.upward ? 1 : -1;
        item.first = a.upward ? low : high;
        item.last = a.upward ? high : low;
        const int head = item.kv * a.group, steps = (high - low + 1) * a.group;
        for (int step = 0, i = item.first, h = head; step < steps; step++) {
            const int row = i * tile::M;
            const int64_t stats = (int64_t)h * a.x.rows_pad + row;
            mbar_wait(sh.q_empty(q.stage), q.parity ^ 1);
            mbar_arrive_expect(sh.q_full(q.stage), tile::Q + tile::M * 4);
            tma_load(tile::q_smem::at(sh.base, q.stage), map_q, sh.q_full(q.stage), row, h * SLABS);
            bulk_load(tile::lse_smem::at(sh.base, q.stage), a.x.lse2 + stats, tile::M * 4, sh.q_full(q.stage));
            mbar_wait(sh.o_empty(o.stage), o.parity ^ 1);
            mbar_arrive_expect(sh.o_full(o.stage), tile::Q + tile::M * 4);
            tma_load(tile::o_smem::at(sh.base, o.stage), map_o, sh.o_full(o.stage), row, h * SLABS);
            bulk_load(tile::delta_smem::at(sh.base, o.stage), a.x.delta + stats, tile::M * 4, sh.o_full(o.stage));
            q.next();
            o.next();
            if (step == 0) { // after the first tiles, which need not wait for the item before
                mbar_wait(sh.kv_empty(), parity ^ 1);
                sh.put_item(item);
                mbar_arrive_expect(sh.kv_full(), 2 * tile::KV);
                tma_load(tile::k_smem::at(sh.base), map_k, sh.kv_full(), item.block * KEYS, item.kv * SLABS);
                tma_load(tile::v_smem::at(sh.base), map_v, sh.kv_full(), item.block * KEYS, item.kv * SLABS);
            }
            if (++h == head + a.group) {
                h = head;
                i += onward;
            }
        }
    }
}

// ---- dQ of one warpgroup to global memory, in order: one thread.

template <int HD, bool SPLIT> __device__ inline void add_dq(const bwd_args &a, const bwd_shared<HD> sh, int group)
{
    using tile = bwd_tile<HD>;
    const uint32_t from = tile::dq_smem::at(sh.base, group);
    const int onward = a.upward ? 1 : -1;
    uint32_t full = 0;
    for (uint32_t parity = 0;; parity ^= 1) {
        mbar_wait(sh.kv_full(), parity);
        const bwd_item item = sh.item();
        mbar_arrive(sh.kv_empty());
        if (item.block < 0) return;
        for (int i = item.first; i != item.last + onward; i += onward) {
            const int first = __ldg(a.x.first_block + i);
            int own = (min(i * tile::M + tile::M, a.rows) - 1) / KEYS;
            if constexpr (SPLIT) own = __ldg(a.x.own_block + i);
            const unsigned before = (unsigned)(a.upward ? own - item.block : item.block - first);
            const bool last = item.block == (a.upward ? first : own);
            for (int h = item.kv * a.group; h < (item.kv + 1) * a.group; h++, full ^= 1) {
                const int64_t at = ((int64_t)i * a.heads + h) * GROUPS + group;
                if (last)
                    while (load_acquire(a.x.dq_semaphore + at) != before) {}
                sh.put_mode(group, !last ? DQ_ADD : before ? DQ_LAST : DQ_ONLY);
                mbar_arrive(sh.dq_empty(group));
                if (!last)
                    while (load_acquire(a.x.dq_semaphore + at) != before) {}
                fence_async_all();
                mbar_wait(sh.dq_full(group), full);
                if (last) continue;
                if (before == 0) bulk_store(a.x.dq + at * DQ_FLOATS, from, tile::DQ);
                else bulk_add_f32(a.x.dq + at * DQ_FLOATS, from, tile::DQ);
                bulk_commit();
                bulk_wait<0>();
                fence_async_all();
                add_release(a.x.dq_semaphore + at);
            }
        }
    }
}

// ---- Consumers.

__device__ inline float2 shared_float2(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}

template <int HD, bool SPLIT> struct consumer {
    using tile = bwd_tile<HD>;
    enum { M = tile::M, SLABS = HD / SLAB_COLS };
    const bwd_args &a;
    const bwd_shared<HD> sh;
    const int group, thread, lane; // thread: within the warpgroup
    float dk[HD / 2], dv[HD / 2], s[M / 2], dp[M / 2];
    uint32_t p[M / 16][4], ds[M / 16][4];
    struct places { int at[2]; };              // positions of this thread's two rows
    struct angles { float2 cos[2][4], sin[2][4]; }; // their columns below 32

    __device__ consumer(const bwd_args &a_, const bwd_shared<HD> &sh_, int group_)
        : a(a_), sh(sh_), group(group_), thread(threadIdx.x % WARPGROUP), lane(threadIdx.x % WARP)
    {
    }

    // d is dead here: else the compiler keeps it until the matmul that overwrites it, since that could read it.
    template <int COUNT> __device__ static void fresh(float (&d)[COUNT])
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) asm volatile("" : "=f"(d[i]));
    }
    // S^T of the tile of Q in a stage; added to d: dP^T of the tile of dO.
    template <int ADD> __device__ void keys_by_tile(float (&d)[M / 2], int at_keys, uint32_t tile_at)
    {
        const uint64_t keys = operand_k(sh.base + at_keys + group * (64 * SLAB_ROW)), rows = operand_k(tile_at);
        if (ADD) hold(d);
        else fresh(d);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HD / 16; k++)
            wgmma_ss<M>(d, operand_step(keys, step_k(k, KEYS)), operand_step(rows, step_k(k, M)), ADD || k > 0);
    }
    // dV += P^T dO, dK += dS^T Q.
    __device__ void registers_by_tile(float (&d)[HD / 2], uint32_t (&x)[M / 16][4], uint32_t tile_at)
    {
        const uint64_t rows = operand_mn(tile_at, M * SLAB_ROW);
        hold(d);
#pragma unroll
        for (int k = 0; k < M / 16; k++) hold(x[k]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < M / 16; k++) wgmma_rs<HD, 1>(d, x[k], operand_step(rows, step_mn(k)), 1);
    }
    // dQ = dS K, 64 queries x 64 columns of the head.
    __device__ void dq_matmul(float (&dq)[32], uint32_t ds_at)
    {
        const uint64_t x = operand_mn(ds_at + (HD == 64 ? group * (KEYS * SLAB_ROW) : 0), 0);
        const uint64_t keys = operand_mn(tile::k_smem::at(sh.base) + (HD == 64 ? 0 : group * (KEYS * SLAB_ROW)), 0);
        fresh(dq);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            wgmma_ss<64, 1, 1>(dq, operand_step(x, step_mn(k)), operand_step(keys, step_mn(k)), k > 0);
    }

    // Masks queries of a tile outside [from, to), counted from its first query; from, to of this thread's two keys.
    __device__ void mask(const int (&from)[2], const int (&to)[2])
    {
        const int t2 = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < M / 2; i++) {
            const int col = i / 4 * 8 + i % 2 + t2, half = i / 2 % 2;
            if (col < from[half] || col >= to[half]) s[i] = -INFINITY;
        }
    }
    // The initial value of dP^T: -delta of each query.
    __device__ void deltas(uint32_t delta_at)
    {
#pragma unroll
        for (int i = 0; i < M / 2; i += 4) {
            const float2 delta = shared_float2(delta_at + (i * 2 + lane % 4 * 2) * 4);
            dp[i] = dp[i + 2] = delta.x;
            dp[i + 1] = dp[i + 3] = delta.y;
        }
    }
    // Prefetches lse of a tile's first queries during the matmuls. There are no registers for more.
    enum { AHEAD = 4 };
    __device__ void lse_ahead(float2 (&ahead)[AHEAD], uint32_t lse_at) const
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i] = shared_float2(lse_at + (i * 8 + lane % 4 * 2) * 4);
    }
    __device__ void probabilities(const float2 (&ahead)[AHEAD], uint32_t lse_at)
    {
#pragma unroll
        for (int c = 0; c < M / 16; c++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float2 lse =
                    c * 2 + n < AHEAD ? ahead[c * 2 + n] : shared_float2(lse_at + (c * 16 + n * 8 + lane % 4 * 2) * 4);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int i = c * 8 + n * 4 + half * 2;
                    p[c][n * 2 + half] =
                        two_bf16(exp2_fast(fmaf(s[i], a.scale2, -lse.x)), exp2_fast(fmaf(s[i + 1], a.scale2, -lse.y)));
                }
            }
#pragma unroll
        for (int c = 0; c < M / 16; c++) hold(p[c]);
    }
    // From the rounded P: dV reads it, and its registers are the ones left.
    __device__ void score_gradients()
    {
#pragma unroll
        for (int c = 0; c < M / 16; c++)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int i = c * 8 + n * 4 + half * 2;
                    const uint32_t x = p[c][n * 2 + half];
                    ds[c][n * 2 + half] =
                        two_bf16(__uint_as_float(x << 16) * dp[i], __uint_as_float(x & 0xffff0000u) * dp[i + 1]);
                }
    }
    // dS^T to shared memory as [key][query], a slab for each 64 queries.
    __device__ void ds_store(uint32_t ds_at)
    {
        const int row = group * 64 + thread / WARP * 16 + lane % 16;
        const uint32_t at = ds_at + row * SLAB_ROW + ((lane / 16 ^ (lane & 7)) << 4);
#pragma unroll
        for (int c = 0; c < M / 16; c++)
            store8x8x4((at ^ (c % 4 << 5)) + c / 4 * (KEYS * SLAB_ROW), ds[c][0], ds[c][1], ds[c][2], ds[c][3]);
    }
    // Adds the partial sum of other key blocks.
    __device__ void dq_gather(float (&dq)[32], int query, int head)
    {
        const int64_t at = ((int64_t)(query / M) * a.heads + head) * GROUPS + group;
        const float4 *from = (const float4 *)(a.x.dq + at * DQ_FLOATS) + thread;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float4 x = __ldcg(from + i * WARPGROUP);
            dq[4 * i] += x.x;
            dq[4 * i + 1] += x.y;
            dq[4 * i + 2] += x.z;
            dq[4 * i + 3] += x.w;
        }
    }
    __device__ void dq_stage(const float (&dq)[32])
    {
        const uint32_t at = tile::dq_smem::at(sh.base, group) + thread * 16;
#pragma unroll
        for (int i = 0; i < 8; i++)
            asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(at + i * (WARPGROUP * 16)), "f"(dq[4 * i]),
                         "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                         : "memory");
        fence_async();
        __syncwarp();
        if (lane == 0) mbar_arrive(sh.dq_full(group));
    }
    // Rotates heads of 64 back, columns i and i + 32: both are this thread's. Rows past the last use its position.
    __device__ places places_of(int row) const
    {
        places x = {};
        if (!SPLIT && HD == 64 && a.positions)
#pragma unroll
            for (int half = 0; half < 2; half++)
                x.at[half] = __ldg(a.positions + min(row + acc_row(thread, half * 2), a.rows - 1));
        return x;
    }
    // Prefetches to L1 one step ahead: four threads read the same two rows of both tables.
    __device__ void angles_ahead(const places &x) const
    {
        const float *table = lane % 4 < 2 ? a.cos : a.sin;
        if (!SPLIT && a.positions && !a.upward)
            asm volatile("prefetch.global.L1 [%0];\n" ::"l"(table + (int64_t)(lane % 2 ? x.at[1] : x.at[0]) * 32));
    }
    __device__ angles angles_of(const places &x) const
    {
        angles t;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int64_t at = (int64_t)x.at[half] * 32 + acc_col(thread, 4 * n);
                t.cos[half][n] = __ldg((const float2 *)(a.cos + at));
                t.sin[half][n] = __ldg((const float2 *)(a.sin + at));
            }
        return t;
    }
    __device__ static void rope_inverse(float (&d)[32], const angles &t)
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = d[4 * n + 2 * half + e], &y = d[4 * (n + 4) + 2 * half + e];
                    const float u = x, v = y, c = e ? t.cos[half][n].y : t.cos[half][n].x,
                                s = e ? t.sin[half][n].y : t.sin[half][n].x;
                    x = u * c + v * s;
                    y = v * c - u * s;
                }
    }
    __device__ void release(uint32_t bar)
    {
        if (lane == 0) mbar_arrive(bar);
    }

    // ---- The phases of an item and of a step. `w`: the item of this warpgroup, and its position in it.

    struct walk {
        bwd_item item;
        // this warpgroup's first key, this thread's; end of the queries that see this thread's two keys and key0
        int key0, key, end[2], end0, begin63; // begin63: of the queries that see its last key
        int steps, onward;
        int query, h;                // of this step: the first query, the head in the group
        pipeline_state<tile::DS_STAGES> before; // dS of the step before, whose dQ is next
        int query_before, head_before;
        places keys_at; // and, in direction down, of the query block that is finished here: M = KEYS
        float2 ahead[AHEAD];
    };
    pipeline_state<tile::Q_STAGES> q;
    pipeline_state<tile::O_STAGES> o;
    pipeline_state<tile::DS_STAGES> d;
    uint32_t dq_parity;

    __device__ __forceinline__ uint32_t q_at() const { return tile::q_smem::at(sh.base, q.stage); }
    __device__ __forceinline__ uint32_t o_at() const { return tile::o_smem::at(sh.base, o.stage); }
    __device__ __forceinline__ uint32_t lse_at() const { return tile::lse_smem::at(sh.base, q.stage); }

    // Waits for the producer's next item. False: no more.
    __device__ __forceinline__ bool item_next(walk &w, uint32_t parity)
    {
        mbar_wait(sh.kv_full(), parity);
        w.item = sh.item();
        w.item.block = __shfl_sync(0xffffffffu, w.item.block, 0);
        w.item.kv = __shfl_sync(0xffffffffu, w.item.kv, 0);
        w.item.first = __shfl_sync(0xffffffffu, w.item.first, 0);
        w.item.last = __shfl_sync(0xffffffffu, w.item.last, 0);
        if (w.item.block < 0) return false;
        w.key0 = w.item.block * KEYS + group * 64;
        w.key = w.key0 + acc_row(thread, 0);
        w.end[0] = __ldg(a.x.row_end + w.key);
        w.end[1] = __ldg(a.x.row_end + w.key + 8);
        w.end0 = __ldg(a.x.row_end + w.key0);
        if constexpr (SPLIT) w.begin63 = __ldg(a.x.row_begin + w.key0 + 63);
        return true;
    }
    // Prologue of an item: zero dK and dV, and S^T of its first step.
    __device__ __forceinline__ void item_begin(walk &w)
    {
#pragma unroll
        for (int i = 0; i < HD / 2; i++) dk[i] = dv[i] = 0;
        mbar_wait(sh.q_full(q.stage), q.parity);
        keys_by_tile<0>(s, tile::k_smem::AT, q_at());
        wgmma_commit();
        wgmma_wait<0>();
        hold(s);
        lse_ahead(w.ahead, lse_at());
        w.steps = (abs(w.item.first - w.item.last) + 1) * a.group;
        w.onward = a.upward ? M : -M;
        w.query = w.item.first * M;
        w.h = 0;
        w.before = d;
        w.query_before = 0;
        w.head_before = 0;
        w.keys_at = places_of(w.key0);
    }
    // dP^T, P^T and dS^T of this step; dV is queued and stays open.
    __device__ __forceinline__ void score_gradients_step(const walk &w, uint32_t o_now_at)
    {
        mbar_wait(sh.o_full(o.stage), o.parity);
        deltas(tile::delta_smem::at(sh.base, o.stage));
        keys_by_tile<1>(dp, tile::v_smem::AT, o_now_at);
        wgmma_commit();
        named_sync(ELEMENTWISE + group, GROUPS * WARPGROUP);
        if (w.query < (SPLIT ? w.begin63 : w.key0 + 63) || w.query + M > w.end0) {
            int from[2] = {w.key, w.key + 8};
            if constexpr (SPLIT)
#pragma unroll
                for (int half = 0; half < 2; half++) from[half] = __ldg(a.x.row_begin + w.key + 8 * half);
            from[0] -= w.query;
            from[1] -= w.query;
            const int to[2] = {w.end[0] - w.query, w.end[1] - w.query};
            mask(from, to);
        }
        probabilities(w.ahead, lse_at());
        wgmma_wait<0>();
        hold(dp);
        registers_by_tile(dv, p, o_now_at);
        wgmma_commit();
        mbar_wait(sh.ds_empty(d.stage), d.parity ^ 1);
        score_gradients();
        ds_store(tile::ds_smem::at(sh.base, d.stage));
        named_arrive(ELEMENTWISE + 1 - group, GROUPS * WARPGROUP);
    }
    // dQ of the step before, S^T of the next one, and dK. `q_now`: the stage of this step's Q, at q_now_at.
    __device__ __forceinline__ void gradients_step(walk &w, int step, int q_now, uint32_t q_now_at)
    {
        // dQ of the step before. The first step computes garbage that is not used: a condition would keep the
        // compiler from leaving matmuls open. The same for S^T after the last step.
        if (step > 0) mbar_wait(sh.ds_full(w.before.stage), w.before.parity);
        float dq[32];
        dq_matmul(dq, tile::ds_smem::at(sh.base, w.before.stage));
        wgmma_commit();
        if (step + 1 < w.steps) mbar_wait(sh.q_full(q.stage), q.parity);
        keys_by_tile<0>(s, tile::k_smem::AT, q_at());
        wgmma_commit();
        fence_async();
        __syncwarp();
        release(sh.ds_full(d.stage));
        registers_by_tile(dk, ds, q_now_at);
        wgmma_commit();
        wgmma_wait<2>(); // dQ
        hold(dq);
        int mode = DQ_ADD;
        if (step > 0) {
            mode = dq_next(w);
            if (mode == DQ_ADD) dq_stage(dq);
        }
        lse_ahead(w.ahead, lse_at());
        wgmma_wait<0>();
        hold(s);
#pragma unroll
        for (int k = 0; k < M / 16; k++) hold(ds[k]);
        release(sh.q_empty(q_now));
        if (mode != DQ_ADD) dq_finish(w, dq, mode);
    }
    __device__ __forceinline__ void step_next(walk &w)
    {
        w.before = d;
        w.query_before = w.query;
        w.head_before = w.item.kv * a.group + w.h;
        d.next();
        if (++w.h == a.group) {
            w.h = 0;
            w.query += w.onward;
        }
    }
    // The tile of dS has been read: passes on the dQ that it gave.
    __device__ __forceinline__ int dq_next(const walk &w)
    {
        release(sh.ds_empty(w.before.stage));
        mbar_wait(sh.dq_empty(group), dq_parity);
        dq_parity ^= 1;
        return sh.mode(group);
    }
    // dQ without other key blocks: scaled, rounded and stored.
    __device__ __forceinline__ void dq_finish(const walk &w, float (&dq)[32], int mode)
    {
        if constexpr (HD == 64 && !SPLIT)
            if (a.positions) {
                const angles t = angles_of(a.upward ? places_of(w.query_before + group * 64) : w.keys_at);
                if (mode == DQ_LAST) dq_gather(dq, w.query_before, w.head_before);
                rope_inverse(dq, t);
            }
        if (mode == DQ_LAST && !(HD == 64 && !SPLIT && a.positions)) dq_gather(dq, w.query_before, w.head_before);
        const int row = w.query_before + (HD == 64 ? group * 64 : 0),
                  col = w.head_before * HD + (HD == 64 ? 0 : group * 64);
        rows_store(dq, {a.scale, a.scale}, a.dq + row * a.dq_stride + col, a.dq_stride, a.rows - row);
        __syncwarp();
        release(sh.dq_full(group));
    }
    // Epilogue of an item: dQ of its last step, then dK and dV to global memory.
    __device__ __forceinline__ void item_end(const walk &w)
    {
        float dq[32];
        mbar_wait(sh.ds_full(w.before.stage), w.before.parity);
        dq_matmul(dq, tile::ds_smem::at(sh.base, w.before.stage));
        wgmma_commit();
        wgmma_wait<0>();
        hold(dq);
        hold(dk);
        hold(dv);
        const int mode = dq_next(w);
        if (mode == DQ_ADD) dq_stage(dq);
        else dq_finish(w, dq, mode);
        release(sh.kv_empty());
        if constexpr (HD == 64 && !SPLIT)
            if (a.positions) rope_inverse(dk, angles_of(w.keys_at));
        const int hd0 = w.item.kv * HD, valid = a.keys - w.key0;
        rows_store(dv, {1, 1}, a.dv + w.key0 * a.dv_stride + hd0, a.dv_stride, valid);
        rows_store(dk, {a.scale, a.scale}, a.dk + w.key0 * a.dk_stride + hd0, a.dk_stride, valid);
    }

    __device__ void run()
    {
        dq_parity = 0;
        if (group == 1) named_arrive(ELEMENTWISE, GROUPS * WARPGROUP); // warpgroup 0 begins
        for (uint32_t parity = 0;; parity ^= 1) {
            walk w;
            if (!item_next(w, parity)) return;
            item_begin(w);
            for (int step = 0; step < w.steps; step++) {
                const uint32_t q_now_at = q_at(), o_now_at = o_at();
                const int q_now = q.stage, o_now = o.stage;
                if (!SPLIT && HD == 64 && step == w.steps - a.group) angles_ahead(w.keys_at);
                score_gradients_step(w, o_now_at);
                q.next();
                o.next();
                wgmma_wait<0>(); // dV
#pragma unroll
                for (int k = 0; k < M / 16; k++) hold(p[k]);
                release(sh.o_empty(o_now));
                gradients_step(w, step, q_now, q_now_at);
                step_next(w);
            }
            item_end(w);
        }
    }
};
#endif // TILE90

template <int HD, bool SPLIT>
__global__ void __launch_bounds__(THREADS, 1)
    hopper_bwd_kernel(const bwd_args a, const __grid_constant__ CUtensorMap map_q,
                      const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
                      const __grid_constant__ CUtensorMap map_o)
{
#ifdef TILE90
    using tile = bwd_tile<HD>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const bwd_shared<HD> sh = {shared_at(shared)};
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (threadIdx.x == 0) {
        const int warps = GROUPS * WARPGROUP / WARP;
        for (int i = 0; i < tile::Q_STAGES; i++) {
            mbar_init(sh.q_full(i), 1);
            mbar_init(sh.q_empty(i), warps);
        }
        for (int i = 0; i < tile::O_STAGES; i++) {
            mbar_init(sh.o_full(i), 1);
            mbar_init(sh.o_empty(i), warps);
        }
        for (int i = 0; i < tile::DS_STAGES; i++) {
            mbar_init(sh.ds_full(i), warps);
            mbar_init(sh.ds_empty(i), warps);
        }
        mbar_init(sh.kv_full(), 1);
        mbar_init(sh.kv_empty(), warps + GROUPS);
        for (int i = 0; i < GROUPS; i++) {
            mbar_init(sh.dq_full(i), WARPGROUP / WARP);
            mbar_init(sh.dq_empty(i), 1);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < WARPGROUP / WARP) {
        registers_give<tile::GIVEN>();
        if (warp == 0 && one_lane()) produce<HD, SPLIT>(a, sh, &map_q, &map_k, &map_v, &map_o);
        if (warp >= 1 && warp <= GROUPS && one_lane()) add_dq<HD, SPLIT>(a, sh, warp - 1);
    } else {
        registers_take<tile::REGISTERS>();
        consumer<HD, SPLIT>(a, sh, warp / (WARPGROUP / WARP) - 1).run();
    }
#endif
}

// ---- First kernel: delta = <dO, O>, lse for exp2, the tables.

struct before_args {
    attn_docs docs;
    bwd_scratch x;
    const __nv_bfloat16 *o, *grad;
    const float *lse;
    int heads, blocks_of_queries; // rows_pad / M
};

enum { BEFORE_THREADS = 256 };

// Block: BEFORE_THREADS / (HD / 8) rows of one head; the heads of the same rows are neighbours in the grid.
template <int HD> __global__ void __launch_bounds__(BEFORE_THREADS) hopper_before_kernel(const before_args a)
{
    constexpr int LANES = HD / 8, ROWS = BEFORE_THREADS / LANES, M = bwd_tile<HD>::M;
    const int head = blockIdx.x % a.heads, row = (int)(blockIdx.x / a.heads) * ROWS + threadIdx.x / LANES;
    const bool there = row < a.docs.rows;
    float sum = 0;
    if (there) {
        const int64_t at = ((int64_t)row * a.heads + head) * HD + threadIdx.x % LANES * 8;
        const pack<__nv_bfloat16> x = load_pack(a.o + at), y = load_pack(a.grad + at);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(to_f32(x.v[e]), to_f32(y.v[e]), sum);
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % LANES == 0) {
        const int64_t at = (int64_t)head * a.x.rows_pad + row;
        a.x.delta[at] = -sum;
        a.x.lse2[at] = there ? a.lse[(int64_t)head * a.docs.rows + row] * 1.44269504088896340736f : INFINITY;
    }
    const int64_t i = (int64_t)blockIdx.x * BEFORE_THREADS + threadIdx.x;
    if (i == 0) *a.x.ticket = 0;
    for (int64_t key = i; key < a.x.keys_pad; key += (int64_t)gridDim.x * BEFORE_THREADS) {
        const query_span queries = key < a.docs.keys ? queries_of(a.docs, (int)key) : query_span{a.docs.rows, 0};
        a.x.row_end[key] = queries.end;
        if (a.x.row_begin) a.x.row_begin[key] = queries.begin;
    }
    if (i < a.blocks_of_queries) {
        a.x.first_block[i] = i * M < a.docs.rows ? first_key(a.docs, (int)i * M) / KEYS : 0;
        if (a.x.own_block) a.x.own_block[i] = keys_of(a.docs, min((int)i * M + M, a.docs.rows) - 1).last / KEYS;
    }
    if (i < (int64_t)a.blocks_of_queries * a.heads * GROUPS) a.x.dq_semaphore[i] = 0;
}

// ---- Launchers.

// Lays out the scratch; returns its bytes. `at` may be NULL. keys 0: no split.
static size_t bwd_scratch_layout(bwd_scratch *x, char *at, int64_t rows, int64_t keys, int64_t heads, int64_t hd)
{
    const int64_t pad = (rows + KEYS - 1) / KEYS * KEYS, pad_keys = keys ? (keys + KEYS - 1) / KEYS * KEYS : pad,
                  m = hd == 64 ? (int)bwd_tile<64>::M : (int)bwd_tile<128>::M;
    const int64_t blocks = pad / m;
    size_t used = 0;
    auto take = [&](int64_t count) {
        char *p = at ? at + used : NULL;
        used += ((size_t)count * 4 + 255) / 256 * 256;
        return p;
    };
    x->rows_pad = (int)pad;
    x->keys_pad = (int)pad_keys;
    x->dq = (float *)take(pad * heads * hd);
    x->lse2 = (float *)take(pad * heads);
    x->delta = (float *)take(pad * heads);
    x->row_end = (int *)take(pad_keys);
    x->row_begin = keys ? (int *)take(pad_keys) : NULL;
    x->first_block = (int *)take(blocks);
    x->own_block = keys ? (int *)take(blocks) : NULL;
    x->dq_semaphore = (unsigned *)take(blocks * heads * GROUPS);
    x->ticket = (unsigned *)take(1);
    return used;
}

template <int HD, bool SPLIT> static status queue_hopper_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    using tile = bwd_tile<HD>;
    using T = __nv_bfloat16;
    bwd_scratch x;
    const int64_t keys = SPLIT ? a->keys : a->rows;
    bwd_scratch_layout(&x, (char *)a->scratch, a->rows, SPLIT ? keys : 0, a->heads, HD);
    const int64_t width = a->heads * HD, width_kv = a->heads_kv * HD, blocks = x.rows_pad / tile::M;
    const int items = x.keys_pad / KEYS * (int)a->heads_kv, resident = cuda_set(s)->multiprocessors;
    const bwd_args b = {x,
                        (T *)a->dq,
                        (T *)a->dk,
                        (T *)a->dv,
                        a->dq_stride,
                        a->dk_stride,
                        a->dv_stride,
                        (int)a->rows,
                        (int)keys,
                        (int)a->heads,
                        (int)a->heads_kv,
                        (int)(a->heads / a->heads_kv),
                        items,
                        !SPLIT && a->heads == a->heads_kv && a->len_max <= 1024,
                        (float)a->scale,
                        (float)(a->scale * 1.4426950408889634),
                        a->rope ? a->rope->positions : NULL,
                        a->rope ? (const float *)a->rope->cos : NULL,
                        a->rope ? (const float *)a->rope->sin : NULL};
    const before_args before = {attn_docs_of(a), x,          (const T *)a->o, (const T *)a->do_, (const float *)a->lse,
                                (int)a->heads,   (int)blocks};
    CUtensorMap q, k, v, o;
    TRY(tile_map_rows(&q, s, a->q, a->rows, a->q_stride, width, tile::M, HD / SLAB_COLS));
    TRY(tile_map_rows(&k, s, a->k, keys, a->k_stride, width_kv, KEYS, HD / SLAB_COLS));
    TRY(tile_map_rows(&v, s, a->v, keys, a->v_stride, width_kv, KEYS, HD / SLAB_COLS));
    TRY(tile_map_rows(&o, s, a->do_, a->rows, width, width, tile::M, HD / SLAB_COLS));
    const unsigned before_blocks = (unsigned)(x.rows_pad / (BEFORE_THREADS / (HD / 8)) * a->heads);
    hopper_before_kernel<HD><<<before_blocks, BEFORE_THREADS, 0, queue_of(s)>>>(before);
    // a failure shows at the launch
    cudaFuncSetAttribute(hopper_bwd_kernel<HD, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, tile::BYTES);
    hopper_bwd_kernel<HD, SPLIT>
        <<<items < resident ? items : resident, THREADS, tile::BYTES, queue_of(s)>>>(b, q, k, v, o);
    return cuda_set_launched(s, "attn_bwd (hopper)");
}

extern "C" size_t cuda_hopper_attn_scratch(const struct attn_shape *shape, enum attn_pass pass)
{
    bwd_scratch x;
    if (pass != ATTN_BWD || shape->dt != DTYPE_BF16) return 0;
    if (!cuda_hopper_attn_widths(shape->head_dim, shape->head_dim_v)) return 0;
    if (shape->head_dim != shape->head_dim_v) return cuda_hopper_wide_scratch(shape);
    return bwd_scratch_layout(&x, NULL, shape->rows, shape->keys, shape->heads, shape->head_dim);
}

extern "C" status cuda_hopper_attn_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    if (a->head_dim != a->head_dim_v) return cuda_hopper_wide_bwd(a, s);
    CHECK(!(a->cp_docs && a->rope), "queries and keys of different rows are not rotated back");
    if (a->cp_docs) return a->head_dim == 64 ? queue_hopper_bwd<64, true>(a, s) : queue_hopper_bwd<128, true>(a, s);
    return a->head_dim == 64 ? queue_hopper_bwd<64, false>(a, s) : queue_hopper_bwd<128, false>(a, s);
}
