// Attention's backward on Hopper with keys wider than values: heads of 192 and 128 (multi-head latent attention).
//
//   kernel 1   dK and dV by blocks of keys; also stores dS, the gradients of the scores
//   kernel 2   dQ = dS K by blocks of queries (attn_bwd_wide_dq_sm90.cu)
//
// Why two kernels: dK and dV of 128 keys take 160 registers of each thread of two warpgroups. dQ fits neither
// beside them nor in shared memory beside K, V, Q and dO. Its sum over blocks of keys in a fixed order would take
// waits and four bytes per value (attn_bwd_sm90.cu).
//
//   dS         two bytes per pair of rows, written once and read once while memory is idle (H200, 32768 rows: 1.0 TB/s
//              during kernel 1, 3.4 TB/s in kernel 2, which still runs at 650 TFLOP/s)
//   matmuls    five of 832 columns (192 + 128 + 128 + 192 and 192); with recomputed scores dQ takes 1152
//   bits       every sum has one writer: equal in every run
//   memory     bounded by slabs (attn_bwd_wide_sm90.cuh, wide_plan_of); beyond that dQ recomputes its scores
//   accuracy   dS is computed from the rounded P, as in dK: dQ is off by 3.0e-3 of its norm, 2.5e-3 if recomputed
//
//   whole backward, ms, H200               recomputed   stored dS
//     3 x 32768 rows, 8 heads              42.4         33.8
//     4 x 8192, 8 heads                    3.67         3.00
//     4 x 4096, 32 heads                   4.08         3.37
//     24 documents in 16384, 32 heads      1.28         1.16
//   dK and dV then take 10 to 15 % longer, dQ 0.42 to 0.58 of its time.
//
//   no gain: ping-pong for the exponentials of dK and dV (587 TFLOP/s of its own matmuls instead of 719); dS by shared
//   memory and TMA (as fast, with more waits); stores while dV is open (registers run out: 4 % slower); slabs of 2 to
//   4 GiB instead of 1 (2 % at most)
//
//   a step of each of two warpgroups, 64 keys, over blocks of 64 queries and the heads of the group:
//     P^T  = exp2(scale2 S^T - lse2)  overlaps dK of the step before
//     dP^T = V dO^T,  dV += P^T dO
//     dS^T = P^T (dP^T - delta)       overlaps dV; to memory
//     S^T  = K Q^T of the next step,  dK += dS^T Q
//   P^T and dS^T stay in registers: they are operand A of the following matmuls.
//
// Warpgroup 0 loads. Blocks are persistent and take blocks of rows by tickets, the longest first.
#include "ops/cuda/attn_bwd_wide_sm90.cuh"

struct dkv_slot { int block, kv, first, steps; };       // key block (-1: no more), kv head, its last query block, steps

// ---- dK and dV.

struct dkv_tile {
    enum { KEYS = ROWS, M = 64, STAGES = 3 };
    enum { K = 64 * HD * 2, V = 64 * HDV * 2, Q = M * HD * 2, O = M * HDV * 2 }; // bytes: of a warpgroup, of a stage
    using k_smem = smem_field<0, K, GROUPS>;
    using v_smem = smem_field<k_smem::END, V, GROUPS>;
    using q_smem = smem_field<v_smem::END, Q, STAGES>;
    using o_smem = smem_field<q_smem::END, O, STAGES>;
    using lse_smem = smem_field<o_smem::END, M * 4, STAGES>;
    using delta_smem = smem_field<lse_smem::END, M * 4, STAGES>;
    using slots_smem = smem_field<delta_smem::END, sizeof(dkv_slot), SLOTS>;
    using slot_pipe = pipeline<slots_smem::END, SLOTS>;
    using k_pipe = pipeline<slot_pipe::END, GROUPS>;
    using v_pipe = pipeline<k_pipe::END, GROUPS>;
    using q_pipe = pipeline<v_pipe::END, STAGES>;
    using o_pipe = pipeline<q_pipe::END, STAGES>;
    using ds_smem = smem_field<o_pipe::END, 8, STAGES * GROUPS>;
    enum { BYTES = ds_smem::END };
};

#ifdef TILE90

__device__ inline float2 shared_float2(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}

__device__ inline uint64_t shared_u64(uint32_t at)
{
    uint64_t x;
    asm volatile("ld.shared.u64 %0, [%1];\n" : "=l"(x) : "r"(at) : "memory");
    return x;
}
__device__ inline void shared_u64_write(uint32_t at, uint64_t x)
{
    asm volatile("st.shared.u64 [%0], %1;\n" ::"r"(at), "l"(x) : "memory");
}

// ---- dK and dV: loaders, one thread each.

// STORES: with each tile of queries, the addresses for the warpgroups' tiles of dS; NULL if none of its queries
// sees their keys.
template <int STORES>
__device__ inline void dkv_load_queries(const wide_args &a, uint32_t at, const CUtensorMap *map_q,
                                        const CUtensorMap *map_o)
{
    using tile = dkv_tile;
    const int items = a.layout.blocks * a.units;
    pipeline_state<tile::STAGES> q;
    for (pipeline_state<SLOTS> slot;; slot.next()) {
        const int ticket = (int)atomicAdd(a.tickets, 1u);
        const walk_item w = ticket < items ? walk_at(ticket, a.layout.blocks, a.units, 1) : walk_item{-1, 0};
        const int unit = a.unit0 + w.head, kv = unit % a.heads_kv;
        const int block = ticket < items ? unit / a.heads_kv * a.layout.blocks + w.block : -1;
        int first = 0, steps = 0, end[GROUPS];
        wide_column column[GROUPS];
        if (block >= 0) {
            first = (__ldg(a.x.row_end + min(block * tile::KEYS + tile::KEYS, a.rows) - 1) - 1) / tile::M;
            steps = (first - block * tile::KEYS / tile::M + 1) * a.group;
            if (STORES)
                for (int g = 0; g < GROUPS; g++) {
                    const int key = block * tile::KEYS + g * 64;
                    end[g] = key < a.rows ? __ldg(a.x.row_end + min(key + 64, a.rows) - 1) : 0;
                    column[g] = wide_column_of(a, key / 64, kv);
                }
        }
        tile::slot_pipe::producer_acquire(at, slot);
        slot_write(tile::slots_smem::at(at, slot.stage), make_int4(block, kv, first, steps));
        tile::slot_pipe::producer_commit(at, slot.stage);
        if (block < 0) return;
        for (int step = 0, i = first, h = 0; step < steps; step++, q.next()) {
            const int row = i * tile::M, head = kv * a.group + h;
            const int64_t stats = (int64_t)head * a.x.rows_pad + row;
            const uint32_t q_full = tile::q_pipe::full(at, q.stage), o_full = tile::o_pipe::full(at, q.stage);
            tile::q_pipe::producer_acquire(at, q);
            if (STORES)
                for (int g = 0; g < GROUPS; g++)
                    shared_u64_write(tile::ds_smem::at(at, q.stage * GROUPS + g),
                                     row < end[g] ? (uint64_t)(wide_pair(a, column[g], i / 2, h) + i % 2 * TILE) : 0);
            mbar_arrive_expect(q_full, tile::Q + tile::M * 4);
            tma_load(tile::q_smem::at(at, q.stage), map_q, q_full, row, head * (HD / SLAB_COLS));
            bulk_load(tile::lse_smem::at(at, q.stage), a.x.lse2 + stats, tile::M * 4, q_full);
            tile::o_pipe::producer_acquire(at, q);
            mbar_arrive_expect(o_full, tile::O + tile::M * 4);
            tma_load(tile::o_smem::at(at, q.stage), map_o, o_full, row, head * (HDV / SLAB_COLS));
            bulk_load(tile::delta_smem::at(at, q.stage), a.x.delta + stats, tile::M * 4, o_full);
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
    for (pipeline_state<SLOTS> slot;; slot.next(), parity ^= 1) {
        tile::slot_pipe::consumer_wait(at, slot);
        const int4 x = slot_read(tile::slots_smem::at(at, slot.stage));
        tile::slot_pipe::consumer_release(at, slot.stage);
        if (x.x < 0) return;
        for (int g = 0; g < GROUPS; g++) {
            const int row = x.x * tile::KEYS + g * 64;
            mbar_wait(tile::k_pipe::empty(at, g), parity ^ 1);
            tile::k_pipe::producer_expect(at, g, tile::K);
            tma_load(tile::k_smem::at(at, g), map_k, tile::k_pipe::full(at, g), row, x.y * (HD / SLAB_COLS));
            mbar_wait(tile::v_pipe::empty(at, g), parity ^ 1);
            tile::v_pipe::producer_expect(at, g, tile::V);
            tma_load(tile::v_smem::at(at, g), map_v, tile::v_pipe::full(at, g), row, x.y * (HDV / SLAB_COLS));
        }
    }
}

// ---- dK and dV: a warpgroup of 64 keys.

// STORES: dS goes to memory, too, for dQ.
template <int STORES> struct dkv_group {
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
        const uint64_t k = operand_k(tile::k_smem::at(at, group)), q = operand_k(tile::q_smem::at(at, stage));
        fresh(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HD / 16; i++)
            wgmma_ss<M>(s, operand_step(k, step_k(i, 64)), operand_step(q, step_k(i, M)), i > 0);
        wgmma_commit();
    }
    __device__ void score_gradients_queue(int stage)
    {
        const uint64_t v = operand_k(tile::v_smem::at(at, group)), o = operand_k(tile::o_smem::at(at, stage));
        fresh(dp);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HDV / 16; i++)
            wgmma_ss<M>(dp, operand_step(v, step_k(i, 64)), operand_step(o, step_k(i, M)), i > 0);
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
    // Masks queries of a tile outside [from, to), counted from its first query; from, to of this thread's two keys.
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
        const uint32_t lse_at = tile::lse_smem::at(at, stage) + lane % 4 * 8;
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
    // From the rounded P: dV reads it.
    __device__ void score_gradients(int stage)
    {
        const uint32_t delta_at = tile::delta_smem::at(at, stage) + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < M / 8; n++) {
            const float2 delta = shared_float2(delta_at + n * 32);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = n * 4 + half * 2;
                const uint32_t x = p[n / 2][n % 2 * 2 + half];
                ds[n / 2][n % 2 * 2 + half] = two_bf16(__uint_as_float(x << 16) * (dp[i] - delta.x),
                                                       __uint_as_float(x & 0xffff0000u) * (dp[i + 1] - delta.y));
            }
        }
#pragma unroll
        for (int c = 0; c < M / 16; c++) hold(ds[c]);
    }

    // In register layout: a register is a block of 8 keys and 8 queries, 128 bytes of the warp's 16 keys.
    __device__ void score_gradients_store(int stage)
    {
        uint32_t *to = reinterpret_cast<uint32_t *>(shared_u64(tile::ds_smem::at(at, stage * GROUPS + group)));
        if (to == NULL) return;
        to += thread / WARP * (TILE_STEP / 4) + lane;
#pragma unroll
        for (int c = 0; c < M / 16; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) __stcs(to + (4 * c + i) * WARP, ds[c][i]);
    }

    __device__ void run()
    {
        pipeline_state<tile::STAGES> q;
        uint32_t parity = 0;
        for (pipeline_state<SLOTS> slot;; slot.next(), parity ^= 1) {
            const int4 item = slot_take(tile::slots_smem::at(at, slot.stage), tile::slot_pipe::full(at, slot.stage),
                                        tile::slot_pipe::empty(at, slot.stage), slot.parity);
            if (item.x < 0) return;
            const int key0 = item.x * tile::KEYS + group * 64, key = key0 + acc_row(thread, 0);
            const int end[2] = {__ldg(a.x.row_end + key), __ldg(a.x.row_end + key + 8)},
                      end0 = __ldg(a.x.row_end + key0);
#pragma unroll
            for (int i = 0; i < HD / 2; i++) dk[i] = 0;
#pragma unroll
            for (int i = 0; i < HDV / 2; i++) dv[i] = 0;
            mbar_wait(tile::k_pipe::full(at, group), parity);
            tile::q_pipe::consumer_wait(at, q);
            scores_queue(q.stage);
            mbar_wait(tile::v_pipe::full(at, group), parity);
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
                if (step > 0) release(tile::q_pipe::empty(at, now == 0 ? tile::STAGES - 1 : now - 1));
                mbar_wait(tile::o_pipe::full(at, now), q.parity);
                score_gradients_queue(now);
                rows_queue<HDV>(dv, p, tile::o_smem::at(at, now));
                wgmma_wait<1>();
                hold(dp);
                score_gradients(now);
                wgmma_wait<0>(); // dV
                release(tile::o_pipe::empty(at, now));
                if (STORES) score_gradients_store(now);
                q.next();
                // After the last step this computes garbage that is not used: a condition would keep the compiler
                // from leaving matmuls open.
                if (step + 1 < item.w) tile::q_pipe::consumer_wait(at, q);
                scores_queue(q.stage);
                rows_queue<HD>(dk, ds, tile::q_smem::at(at, now));
                wgmma_wait<1>();
                hold(s);
                if (++h == a.group) {
                    h = 0;
                    query -= M;
                }
            }
            release(tile::k_pipe::empty(at, group));
            release(tile::v_pipe::empty(at, group));
            wgmma_wait<0>();
            hold(dk);
            hold(dv);
            release(tile::q_pipe::empty(at, q.stage == 0 ? tile::STAGES - 1 : q.stage - 1));
            const int valid = a.rows - key0;
            rows_store(dv, {1, 1}, a.dv + key0 * a.dv_stride + item.y * HDV, a.dv_stride, valid);
            rows_store(dk, {a.scale, a.scale}, a.dk + key0 * a.dk_stride + item.y * HD, a.dk_stride, valid);
        }
    }
};
#endif // TILE90

template <int STORES>
__global__ void __launch_bounds__(THREADS, 1)
    hopper_dkv_kernel(const wide_args a, const __grid_constant__ CUtensorMap map_q,
                      const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
                      const __grid_constant__ CUtensorMap map_o)
{
#ifdef TILE90
    using tile = dkv_tile;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), warps = WARPGROUP / WARP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            tile::slot_pipe::init(at, i, 1, GROUPS * warps + 1);
        }
        for (int i = 0; i < GROUPS; i++) {
            mbar_init(tile::k_pipe::full(at, i), 1);
            mbar_init(tile::v_pipe::full(at, i), 1);
            mbar_init(tile::k_pipe::empty(at, i), warps);
            mbar_init(tile::v_pipe::empty(at, i), warps);
        }
        for (int i = 0; i < tile::STAGES; i++) {
            mbar_init(tile::q_pipe::full(at, i), 1);
            mbar_init(tile::o_pipe::full(at, i), 1);
            mbar_init(tile::q_pipe::empty(at, i), GROUPS * warps);
            mbar_init(tile::o_pipe::empty(at, i), GROUPS * warps);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < warps) {
        registers_give<REGISTERS_LOAD>();
        if (warp == 0 && one_lane()) dkv_load_queries<STORES>(a, at, &map_q, &map_o);
        if (warp == 1 && one_lane()) dkv_load_keys(at, &map_k, &map_v);
    } else {
        registers_take<REGISTERS>();
        dkv_group<STORES>(a, at, warp / warps - 1).run();
    }
#endif
}

// ---- First kernel: delta = <dO, O>, lse for exp2, the tables.

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
    if (i < a.x.ticket_count) a.x.tickets[i] = 0;
    if (i < TILE / 16) reinterpret_cast<int4 *>(a.x.zeros)[i] = make_int4(0, 0, 0, 0);
    if (i >= a.x.rows_pad) return;
    a.x.row_first[i] = first_key(a.docs, min((int)i, a.docs.rows - 1));
    a.x.row_end[i] = i < a.docs.rows ? query_end(a.docs, (int)i) : 0;
}

// ---- Launchers.

// Splits a call into slabs of at most so many units. slab == 0: dQ recomputes its scores.
struct wide_plan {
    wide_layout layout;
    int64_t units, slab;
};

// Memory of a slab: as many units as fit into SLAB_WANTED; at least two, which fill the GPU better than one; else
// one, up to SLAB_MOST. A document of 65536 rows takes 4.01 GiB.
constexpr size_t SLAB_WANTED = (size_t)9 << 27, SLAB_MOST = (size_t)17 << 28;

static wide_plan wide_plan_alone(const struct attn_shape *a)
{
    return {{0, (int)((a->rows + ROWS - 1) / ROWS), 0}, a->heads_kv, 0};
}

static wide_plan wide_plan_of(const struct attn_shape *a)
{
    const int64_t blocks = (a->rows + ROWS - 1) / ROWS, group = a->heads / a->heads_kv;
    const int64_t longest = a->len_max < a->rows ? a->len_max : a->rows,
                  reach = a->window && a->window < longest ? a->window : longest;
    int64_t wide = (reach - 1 + 63) / 64 + 2, n = a->docs == 1 ? blocks : 0;
    if (wide > 2 * blocks) wide = 2 * blocks;
    if (a->docs * a->len_max == a->rows && a->len_max % ROWS == 0) n = a->len_max / ROWS;
    if (n + 1 > wide) n = 0; // a short window
    const int64_t pairs = n ? n * (n + 1) : blocks * wide, units = (n ? blocks / n : 1) * a->heads_kv;
    const size_t unit = (size_t)(pairs * group) * 2 * TILE;
    if (unit > SLAB_MOST) return wide_plan_alone(a);
    const int64_t fit = (int64_t)(SLAB_WANTED / unit), least = 2 * unit <= SLAB_MOST ? 2 : 1,
                  most = fit > least ? fit : least;
    const int64_t slabs = (units + most - 1) / most;
    return {{n ? 0 : (int)wide, (int)(n ? n : blocks), (int)pairs}, units, (units + slabs - 1) / slabs};
}

// Lays out the scratch; returns its bytes. `at` may be NULL.
static size_t wide_scratch_layout(wide_scratch *x, char *at, const wide_plan &p, int64_t rows, int64_t heads,
                                  int64_t group)
{
    const int64_t pad = (rows + ROWS - 1) / ROWS * ROWS;
    size_t used = 0;
    auto take = [&](int64_t bytes) {
        char *to = at ? at + used : NULL;
        used += ((size_t)bytes + 255) / 256 * 256;
        return to;
    };
    x->rows_pad = (int)pad;
    x->lse2 = (float *)take(pad * heads * 4);
    x->delta = (float *)take(pad * heads * 4);
    x->row_first = (int *)take(pad * 4);
    x->row_end = (int *)take(pad * 4);
    x->ticket_count = (int)(p.slab ? 2 * ((p.units + p.slab - 1) / p.slab) : 2);
    x->tickets = (unsigned *)take(x->ticket_count * 4);
    x->zeros = (unsigned char *)take(TILE);
    x->tiles = (unsigned char *)take(p.slab * group * p.layout.pairs * 2 * TILE);
    return used;
}

extern "C" size_t cuda_hopper_wide_scratch(const struct attn_shape *shape)
{
    wide_scratch x;
    return wide_scratch_layout(&x, NULL, wide_plan_of(shape), shape->rows, shape->heads,
                               shape->heads / shape->heads_kv);
}

// Maps of boxes of 64 rows and all columns of a head.
struct wide_maps { CUtensorMap q, k, v, o; };
static status wide_maps_of(wide_maps *m, const struct attn_bwd_args *a, dev_stream s)
{
    const int64_t width = a->heads * HD, width_kv = a->heads_kv * HD, width_v = a->heads_kv * HDV,
                  width_o = a->heads * HDV;
    TRY(tile_map_rows(&m->q, s, a->q, a->rows, a->q_stride, width, 64, HD / SLAB_COLS));
    TRY(tile_map_rows(&m->o, s, a->do_, a->rows, width_o, width_o, 64, HDV / SLAB_COLS));
    TRY(tile_map_rows(&m->k, s, a->k, a->rows, a->k_stride, width_kv, 64, HD / SLAB_COLS));
    return tile_map_rows(&m->v, s, a->v, a->rows, a->v_stride, width_v, 64, HDV / SLAB_COLS);
}

template <int STORES>
static void wide_dkv_queue(const wide_args &a, const wide_maps &m, int resident, cudaStream_t queue)
{
    const int items = a.layout.blocks * a.units;
    // Errors are checked at the launch.
    cudaFuncSetAttribute(hopper_dkv_kernel<STORES>, cudaFuncAttributeMaxDynamicSharedMemorySize, dkv_tile::BYTES);
    hopper_dkv_kernel<STORES>
        <<<(items < resident ? items : resident), THREADS, dkv_tile::BYTES, queue>>>(a, m.q, m.k, m.v, m.o);
}

static wide_args wide_args_of(const struct attn_bwd_args *a, const wide_scratch &x, const wide_plan &plan)
{
    using T = __nv_bfloat16;
    return {x,
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
            (float)(a->scale * 1.4426950408889634),
            plan.layout,
            0,
            (int)plan.units,
            x.tickets};
}

extern "C" status cuda_hopper_wide_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    using T = __nv_bfloat16;
    const struct attn_shape shape = {a->rows, a->docs, a->len_max, a->heads, a->heads_kv,
                                     a->head_dim,   a->head_dim_v, a->window,  a->dt,    0};
    wide_plan plan = wide_plan_of(&shape);
    wide_scratch x;
    wide_maps m;
    // The scratch is that of the largest call. A call with fewer rows or documents may fit more units into
    // SLAB_WANTED.
    if (wide_scratch_layout(&x, NULL, plan, a->rows, a->heads, shape.heads / shape.heads_kv) > a->scratch_bytes)
        plan = wide_plan_alone(&shape);
    const size_t used = wide_scratch_layout(&x, (char *)a->scratch, plan, a->rows, a->heads, a->heads / a->heads_kv);
    CHECK(used <= a->scratch_bytes, "%zu bytes of %zu", used, a->scratch_bytes);
    TRY(wide_maps_of(&m, a, s));
    const wide_before before = {attn_docs_of(a), x, (const T *)a->o, (const T *)a->do_, (const float *)a->lse,
                                (int)a->heads};
    hopper_wide_before_kernel<<<(unsigned)(x.rows_pad / BEFORE_ROWS * a->heads), BEFORE_THREADS, 0, queue_of(s)>>>(
        before);
    const int resident = cuda_set(s)->multiprocessors;
    wide_args b = wide_args_of(a, x, plan);
    if (plan.slab == 0) {
        wide_dkv_queue<0>(b, m, resident, queue_of(s));
        wide_dq_alone_queue(b, m.q, m.k, m.v, m.o, resident, queue_of(s));
        return cuda_set_launched(s, "attn_bwd (hopper, wide)");
    }
    for (; b.unit0 < plan.units; b.unit0 += (int)plan.slab, b.tickets += 2) {
        b.units = (int)(plan.slab < plan.units - b.unit0 ? plan.slab : plan.units - b.unit0);
        wide_dkv_queue<1>(b, m, resident, queue_of(s));
        wide_dq_stored_queue(b, m.k, resident, queue_of(s));
    }
    return cuda_set_launched(s, "attn_bwd (hopper, wide)");
}
