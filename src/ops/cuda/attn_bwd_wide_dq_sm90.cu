// dQ of attention's backward on Hopper, heads of 192 (keys) and 128 (values). attn_bwd_wide_sm90.cu queues one of
// two kernels:
//
//   stored     dQ = scale dS K, from the tiles of dS that the dK/dV kernel stored
//     block      256 rows, so a tile of keys (from L2) serves four tiles of dS (from memory)
//     step       each of two warpgroups, 128 queries, over tiles of 64 keys: dQ += dS K
//   alone      if dS of one head does not fit in memory: recomputes S and dP
//     block      128 rows
//     step       each of two warpgroups, 64 queries, over tiles of N keys:
//                  S = Q K^T, dP = dO V^T of this tile, dQ += dS K of the one before
//                  dS = exp2(scale2 S - lse2) (dP - delta), overlapped with dQ
//     slower     tiles of 96 keys, with two stages (358 TFLOP/s instead of 709); 80 keys (no faster, more registers)
//
// Warpgroup 0 loads. Blocks are persistent and take blocks of rows by tickets, the longest first.
#include "ops/cuda/attn_bwd_wide_sm90.cuh"

// ---- Alone.

struct dq_slot { int row, head, begin, tiles; };        // row < 0: no more; the first key

struct dq_tile {
    enum { M = ROWS, N = 64, K_STAGES = 4, V_STAGES = 3 };
    enum { Q = 64 * HD * 2, O = 64 * HDV * 2, K = N * HD * 2, V = N * HDV * 2 }; // bytes: of a warpgroup, of a stage
    using q_smem = smem_field<0, Q, GROUPS>;
    using o_smem = smem_field<q_smem::END, O, GROUPS>;
    using k_smem = smem_field<o_smem::END, K, K_STAGES>;
    using v_smem = smem_field<k_smem::END, V, V_STAGES>;
    using slots_smem = smem_field<v_smem::END, sizeof(dq_slot), SLOTS>;
    using slot_pipe = pipeline<slots_smem::END, SLOTS>;
    using q_pipe = pipeline<slot_pipe::END, GROUPS>;
    using k_pipe = pipeline<q_pipe::END, K_STAGES>;
    using v_pipe = pipeline<k_pipe::END, V_STAGES>;
    enum { BYTES = v_pipe::END };
};

#ifdef TILE90

// ---- Alone: loaders, one thread each.

__device__ inline void dq_load_queries(const wide_args &a, uint32_t at, const CUtensorMap *map_q,
                                       const CUtensorMap *map_o)
{
    using tile = dq_tile;
    const int items = a.x.rows_pad / tile::M * a.heads;
    uint32_t parity = 0;
    for (pipeline_state<SLOTS> slot;; slot.next(), parity ^= 1) {
        const int ticket = (int)atomicAdd(a.tickets + 1, 1u);
        const walk_item w = ticket < items ? walk_at(ticket, items / a.heads, a.heads, a.group) : walk_item{-1, 0};
        const int row = ticket < items ? a.x.rows_pad - (w.block + 1) * tile::M : -1, head = w.head;
        const int begin = row < 0 ? 0 : __ldg(a.x.row_first + row);
        tile::slot_pipe::producer_acquire(at, slot);
        slot_write(tile::slots_smem::at(at, slot.stage),
                   make_int4(row, head, begin, (min(row + tile::M, a.rows) - begin + tile::N - 1) / tile::N));
        tile::slot_pipe::producer_commit(at, slot.stage);
        if (row < 0) return;
        for (int g = 0; g < GROUPS; g++) {
            const uint32_t full = tile::q_pipe::full(at, g);
            mbar_wait(tile::q_pipe::empty(at, g), parity ^ 1);
            mbar_arrive_expect(full, tile::Q + tile::O);
            tma_load(tile::q_smem::at(at, g), map_q, full, row + g * 64, head * (HD / SLAB_COLS));
            tma_load(tile::o_smem::at(at, g), map_o, full, row + g * 64, head * (HDV / SLAB_COLS));
        }
    }
}

// Keys or values, heads of COLS columns, into a field by its pipeline.
template <int COLS, typename FIELD, typename PIPE>
__device__ inline void dq_load(const CUtensorMap *map, const wide_args &a, uint32_t at)
{
    using tile = dq_tile;
    typename PIPE::state kv;
    for (pipeline_state<SLOTS> slot;; slot.next()) {
        tile::slot_pipe::consumer_wait(at, slot);
        const int4 x = slot_read(tile::slots_smem::at(at, slot.stage));
        tile::slot_pipe::consumer_release(at, slot.stage);
        if (x.x < 0) return;
        for (int j = x.w - 1; j >= 0; j--, kv.next()) {
            PIPE::producer_acquire(at, kv);
            PIPE::producer_expect(at, kv.stage, FIELD::BYTES);
            tma_load(FIELD::at(at, kv.stage), map, PIPE::full(at, kv.stage), x.z + j * tile::N,
                     x.y / a.group * (COLS / SLAB_COLS));
        }
    }
}

// ---- Alone: a warpgroup of 64 queries.

struct dq_group {
    using tile = dq_tile;
    enum { N = tile::N };
    const wide_args &a;
    const uint32_t at;
    const int group, thread, lane;
    float dq[HD / 2], s[N / 2], dp[N / 2];
    uint32_t ds[N / 16][4];
    float lse2[2], delta[2];
    pipeline_state<tile::K_STAGES> k; // of the tile whose S comes next
    pipeline_state<tile::V_STAGES> v;
    int k_before;           // the stage of the tile before

    __device__ dq_group(const wide_args &a_, uint32_t at_, int group_)
        : a(a_), at(at_), group(group_), thread(threadIdx.x % WARPGROUP), lane(threadIdx.x % WARP), k_before(0)
    {
    }
    __device__ void release(uint32_t bar) const
    {
        if (lane == 0) mbar_arrive(bar);
    }
    // Ping-pong: the warpgroups queue their matmuls alternately, once per tile.
    __device__ void pingpong_wait() const { named_sync(1 + group, GROUPS * WARPGROUP); }
    __device__ void pingpong_arrive() const { named_arrive(2 - group, GROUPS * WARPGROUP); }
    __device__ void keys_wait() const
    {
        tile::k_pipe::consumer_wait(at, k);
        tile::v_pipe::consumer_wait(at, v);
    }
    // S and dP of the next tile.
    __device__ void scores_queue()
    {
        const uint64_t q = operand_k(tile::q_smem::at(at, group)), key = operand_k(tile::k_smem::at(at, k.stage));
        const uint64_t o = operand_k(tile::o_smem::at(at, group)), value = operand_k(tile::v_smem::at(at, v.stage));
        fresh(s);
        fresh(dp);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HD / 16; i++)
            wgmma_ss<N>(s, operand_step(q, step_k(i, 64)), operand_step(key, step_k(i, N)), i > 0);
#pragma unroll
        for (int i = 0; i < HDV / 16; i++)
            wgmma_ss<N>(dp, operand_step(o, step_k(i, 64)), operand_step(value, step_k(i, N)), i > 0);
        wgmma_commit();
    }
    __device__ void dq_queue()
    {
        const uint64_t b = operand_mn(tile::k_smem::at(at, k_before), N * SLAB_ROW);
        hold(dq);
#pragma unroll
        for (int i = 0; i < N / 16; i++) hold(ds[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < N / 16; i++) wgmma_rs<HD, 1>(dq, ds[i], operand_step(b, step_mn(i)), 1);
        wgmma_commit();
    }
    // Masks keys outside [from, to], counted from the tile's first key; from, to of this thread's two rows.
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
        release(tile::v_pipe::empty(at, v.stage));
        v.next();
        k_before = k.stage;
        k.next();
    }
    // A tile of keys that no row of this warpgroup sees.
    __device__ void skip()
    {
        keys_wait();
        pingpong_wait();
        pingpong_arrive();
        values_done();
        release(tile::k_pipe::empty(at, k_before));
    }
    // Rows row .. last of the block at item; tiles high, high - 1, .. low, each of which some row sees.
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
                const int from[2] = {first[0] - key, first[1] - key},
                          to[2] = {mine - base - key, mine + 8 - base - key};
                mask(from, to);
            }
            score_gradients();
        };
        keys_wait();
        pingpong_wait();
        scores_queue();
        pingpong_arrive();
        wgmma_wait<0>();
        hold(s);
        hold(dp);
        values_done();
        gradients(high);
        pack();
        for (int j = high - 1; j >= low; j--) {
            keys_wait();
            pingpong_wait();
            scores_queue();
            dq_queue();
            pingpong_arrive();
            wgmma_wait<1>();
            hold(s);
            hold(dp);
            const int before = k_before;
            values_done();
            gradients(j);
            wgmma_wait<0>();
            hold(dq);
            release(tile::k_pipe::empty(at, before));
            pack();
        }
        release(tile::q_pipe::empty(at, group));
        dq_queue();
        wgmma_wait<0>();
        hold(dq);
        release(tile::k_pipe::empty(at, k_before));
        rows_store(dq, {a.scale, a.scale}, a.dq + row * a.dq_stride + item.y * HD, a.dq_stride, a.rows - row);
    }

    __device__ void run()
    {
        uint32_t parity = 0;
        if (group == 1) pingpong_arrive(); // warpgroup 0 goes first
        for (pipeline_state<SLOTS> slot;; slot.next(), parity ^= 1) {
            const int4 item = slot_take(tile::slots_smem::at(at, slot.stage), tile::slot_pipe::full(at, slot.stage),
                                        tile::slot_pipe::empty(at, slot.stage), slot.parity);
            if (item.x < 0) return;
            const int row = item.x + group * 64, last = min(row + 63, a.rows - 1);
            const int high = row <= last ? (last - item.z) / N : -1,
                      low = row <= last ? (__ldg(a.x.row_first + row) - item.z) / N : 0;
            for (int j = item.w - 1; j > high; j--) skip();
            mbar_wait(tile::q_pipe::full(at, group), parity);
            if (high >= low) attend(item, row, high, low);
            else release(tile::q_pipe::empty(at, group));
            for (int j = low - 1; j >= 0; j--) skip();
        }
    }
};
#endif // TILE90

__global__ void __launch_bounds__(THREADS, 1)
    hopper_dq_kernel(const wide_args a, const __grid_constant__ CUtensorMap map_q,
                     const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
                     const __grid_constant__ CUtensorMap map_o)
{
#ifdef TILE90
    using tile = dq_tile;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), warps = WARPGROUP / WARP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            tile::slot_pipe::init(at, i, 1, GROUPS * warps + 2);
        }
        for (int i = 0; i < GROUPS; i++) {
            tile::q_pipe::init(at, i, 1, warps);
        }
        for (int i = 0; i < tile::K_STAGES; i++) {
            tile::k_pipe::init(at, i, 1, GROUPS * warps);
        }
        for (int i = 0; i < tile::V_STAGES; i++) {
            tile::v_pipe::init(at, i, 1, GROUPS * warps);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < warps) {
        registers_give<REGISTERS_LOAD>();
        if (warp == 0 && one_lane()) dq_load_queries(a, at, &map_q, &map_o);
        if (warp == 1 && one_lane()) dq_load<HD, tile::k_smem, tile::k_pipe>(&map_k, a, at);
        if (warp == 2 && one_lane()) dq_load<HDV, tile::v_smem, tile::v_pipe>(&map_v, a, at);
    } else {
        registers_take<REGISTERS>();
        dq_group(a, at, warp / warps - 1).run();
    }
#endif
}

void wide_dq_alone_queue(const wide_args &a, const CUtensorMap &q, const CUtensorMap &k, const CUtensorMap &v,
                         const CUtensorMap &o, int resident, cudaStream_t queue)
{
    static_assert(dq_tile::N == 64, "the box of the maps");
    const int items = a.x.rows_pad / dq_tile::M * a.heads;
    // A failure shows at the launch.
    cudaFuncSetAttribute(hopper_dq_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dq_tile::BYTES);
    hopper_dq_kernel<<<items < resident ? items : resident, THREADS, dq_tile::BYTES, queue>>>(a, q, k, v, o);
}

// ---- From stored tiles.

// row < 0: no more; tiles of keys high, high - 1, .. low that some row sees
struct dqs_slot { int row, head, high, low; };

// Block: M rows; each of two warpgroups has two tiles of 64. STAGES of N keys, and of the tiles of dS that a
// warpgroup needs.
struct dqs_tile {
    enum { M = 256, HALVES = M / 64 / GROUPS, N = 64, STAGES = 4, REGISTERS = 232, REGISTERS_LOAD = 40 };
    enum { DS = GROUPS * HALVES * TILE, K = N * HD * 2, STAGE = DS + K }; // bytes
    using stage_smem = smem_field<0, STAGE, STAGES>;
    using slots_smem = smem_field<stage_smem::END, sizeof(dqs_slot), SLOTS>;
    using slot_pipe = pipeline<slots_smem::END, SLOTS>;
    using pipe = pipeline<slot_pipe::END, STAGES>;
    enum { BYTES = pipe::END };
};

#ifdef TILE90
// The end of the unit that contains a row.
__device__ inline int dqs_end(const wide_args &a, int row)
{
    const int rows = a.layout.blocks * ROWS;
    return min((row / rows + 1) * rows, a.rows);
}

// Tiles of keys that a warpgroup's rows see; the first tile of each half. None: high < low.
struct dqs_range { int high, low[dqs_tile::HALVES]; };
__device__ inline dqs_range dqs_range_of(const wide_args &a, int row, int end)
{
    dqs_range r;
    r.high = (min(row + ROWS, end) - 1) / 64;
#pragma unroll
    for (int h = 0; h < dqs_tile::HALVES; h++)
        r.low[h] = row + h * 64 < end ? __ldg(a.x.row_first + row + h * 64) / 64 : INT_MAX;
    return r;
}

// Takes blocks and loads keys.
__device__ inline void dqs_load_keys(const wide_args &a, uint32_t at, const CUtensorMap *map_k)
{
    using tile = dqs_tile;
    const int blocks = (a.layout.blocks * ROWS + tile::M - 1) / tile::M, heads = a.units * a.group,
              items = blocks * heads;
    pipeline_state<tile::STAGES> k;
    for (pipeline_state<SLOTS> slot;; slot.next()) {
        const int ticket = (int)atomicAdd(a.tickets + 1, 1u);
        const walk_item w = ticket < items ? walk_at(ticket, blocks, heads, a.group) : walk_item{-1, 0};
        const int unit = a.unit0 + w.head / a.group, head = unit % a.heads_kv * a.group + w.head % a.group;
        const int row =
            ticket < items ? unit / a.heads_kv * (a.layout.blocks * ROWS) + (blocks - 1 - w.block) * tile::M : -1;
        const int high = row < 0 ? 0 : (min(row + tile::M, dqs_end(a, row)) - 1) / 64,
                  low = row < 0 ? 0 : __ldg(a.x.row_first + row) / 64;
        tile::slot_pipe::producer_acquire(at, slot);
        slot_write(tile::slots_smem::at(at, slot.stage), make_int4(row, head, high, low));
        tile::slot_pipe::producer_commit(at, slot.stage);
        if (row < 0) return;
        for (int j = high; j >= low; j--, k.next()) {
            const uint32_t full = tile::pipe::full(at, k.stage);
            tile::pipe::producer_acquire(at, k);
            mbar_arrive_expect(full, tile::K);
            tma_load(at + k.stage * tile::STAGE + tile::DS, map_k, full, j * tile::N,
                     head / a.group * (HD / SLAB_COLS));
        }
    }
}

// Loads warpgroup g's tiles of dS. Tiles in which nothing is visible were not stored: zeros instead.
__device__ inline void dqs_load_tiles(const wide_args &a, uint32_t at, int g)
{
    using tile = dqs_tile;
    const uint64_t once = policy_once();
    pipeline_state<tile::STAGES> k;
    for (pipeline_state<SLOTS> slot;; slot.next()) {
        tile::slot_pipe::consumer_wait(at, slot);
        const int4 x = slot_read(tile::slots_smem::at(at, slot.stage));
        tile::slot_pipe::consumer_release(at, slot.stage);
        if (x.x < 0) return;
        const int row = x.x + g * ROWS, kv = x.y / a.group, h = x.y % a.group;
        const dqs_range r = dqs_range_of(a, row, dqs_end(a, x.x));
        for (int j = x.z; j >= x.w; j--, k.next()) {
            const uint32_t full = tile::pipe::full(at, k.stage), to = at + k.stage * tile::STAGE + g * (2 * TILE);
            tile::pipe::producer_acquire(at, k);
            if (j > r.high || j < r.low[0]) {
                mbar_arrive(full);
                continue;
            }
            const unsigned char *pair = wide_pair(a, wide_column_of(a, j, kv), row / ROWS, h);
            mbar_arrive_expect(full, 2 * TILE);
            bulk_load_once(to, pair, TILE, full, once);
            bulk_load_once(to + TILE, j < r.low[1] ? a.x.zeros : pair + TILE, TILE, full, once);
        }
    }
}

struct dqs_group {
    using tile = dqs_tile;
    const wide_args &a;
    const uint32_t at;
    const int group;
    float dq[tile::HALVES][HD / 2];

    __device__ dqs_group(const wide_args &a_, uint32_t at_, int group_) : a(a_), at(at_), group(group_) {}
    __device__ void release(int stage) const
    {
        if (threadIdx.x % WARP == 0) tile::pipe::consumer_release(at, stage);
    }
    __device__ void dq_queue(int stage)
    {
        const uint32_t from = at + stage * tile::STAGE;
        const uint64_t key = operand_mn(from + tile::DS, tile::N * SLAB_ROW);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < tile::N / 16; i++)
#pragma unroll
            for (int h = 0; h < tile::HALVES; h++) {
                const uint64_t ds = operand_blocks(from + (tile::HALVES * group + h) * TILE, TILE_QUERIES, TILE_KEYS);
                wgmma_ss<HD, 1, 1>(dq[h], operand_step(ds, i * TILE_STEP), operand_step(key, step_mn(i)), 1);
            }
        wgmma_commit();
    }
    __device__ void run()
    {
        pipeline_state<tile::STAGES> k;
        for (pipeline_state<SLOTS> slot;; slot.next()) {
            const int4 item = slot_take(tile::slots_smem::at(at, slot.stage), tile::slot_pipe::full(at, slot.stage),
                                        tile::slot_pipe::empty(at, slot.stage), slot.parity);
            if (item.x < 0) return;
            const int row = item.x + group * ROWS;
            const int end = dqs_end(a, item.x);
            const dqs_range r = dqs_range_of(a, row, end);
            int j = item.z;
            auto skip = [&](int to) {
                for (; j > to; j--, k.next()) {
                    tile::pipe::consumer_wait(at, k);
                    release(k.stage);
                }
            };
#pragma unroll
            for (int h = 0; h < tile::HALVES; h++) {
#pragma unroll
                for (int i = 0; i < HD / 2; i++) dq[h][i] = 0;
                hold(dq[h]);
            }
            skip(max(r.high, item.w - 1));
            int before = -1;
            for (; j >= item.w && j >= r.low[0]; j--, k.next()) {
                tile::pipe::consumer_wait(at, k);
                dq_queue(k.stage);
                wgmma_wait<1>();
                if (before >= 0) release(before);
                before = k.stage;
            }
            wgmma_wait<0>();
            if (before >= 0) release(before);
            skip(item.w - 1);
#pragma unroll
            for (int h = 0; h < tile::HALVES; h++) {
                hold(dq[h]);
                rows_store(dq[h], {a.scale, a.scale}, a.dq + (row + h * 64) * a.dq_stride + item.y * HD, a.dq_stride,
                           end - row - h * 64);
            }
        }
    }
};
#endif // TILE90

__global__ void __launch_bounds__(THREADS, 1)
    hopper_dq_stored_kernel(const wide_args a, const __grid_constant__ CUtensorMap map_k)
{
#ifdef TILE90
    using tile = dqs_tile;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), warps = WARPGROUP / WARP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            tile::slot_pipe::init(at, i, 1, GROUPS * warps + GROUPS);
        }
        for (int i = 0; i < tile::STAGES; i++) {
            tile::pipe::init(at, i, 1 + GROUPS, GROUPS * warps);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < warps) {
        registers_give<tile::REGISTERS_LOAD>();
        if (warp == 0 && one_lane()) dqs_load_keys(a, at, &map_k);
        if (warp > 0 && warp <= GROUPS && one_lane()) dqs_load_tiles(a, at, warp - 1);
    } else {
        registers_take<tile::REGISTERS>();
        dqs_group(a, at, warp / warps - 1).run();
    }
#endif
}

void wide_dq_stored_queue(const wide_args &a, const CUtensorMap &k, int resident, cudaStream_t queue)
{
    static_assert(dqs_tile::N == 64, "the box of the map");
    const int items = (a.layout.blocks * ROWS + dqs_tile::M - 1) / dqs_tile::M * a.units * a.group;
    // A failure shows at the launch.
    cudaFuncSetAttribute(hopper_dq_stored_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dqs_tile::BYTES);
    hopper_dq_stored_kernel<<<items < resident ? items : resident, THREADS, dqs_tile::BYTES, queue>>>(a, k);
}
