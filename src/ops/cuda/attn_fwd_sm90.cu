// Attention's forward on Hopper, after FlashAttention-3 (Shah et al., arXiv:2407.08608). BF16, heads of 64 and 128,
// wgmma, TMA (tile_sm90.cuh). Supports what attn_sm80.cu does, with the same lse: causal, grouped heads, window,
// documents.
//
//   rows         all documents are one axis, cut into blocks regardless of documents; each row has its own limits
//                (attn_docs.cuh)
//   block        M = 64 WGS query rows: positions, each with 2^shift heads that share their keys. With eight heads
//                per kv head, 128 rows of a block are 32 positions: short documents see little more than their own
//                keys, and less is masked. Row i is position at + (i >> shift) of head head + i % 2^shift; a map with
//                a dimension for heads loads and stores it.
//   persistent   one block per SM, rows by tickets, late rows first: they see most keys, so the last tickets are
//                short. Other heads of a group have neighbouring tickets and read their keys from L2.
//
//   warps 0-3         three are used, with few registers
//     scheduler       draws tickets, finds the limits of rows, loads the query rows of each warpgroup
//     keys, values    load tiles of N keys, last to first, into rings of STAGES tiles
//   warpgroups 1..    64 rows each: S = Q K^T, softmax in registers, O += P V with P from registers
//
// Two overlaps keep the tensor cores busy: S of the next tile is queued before O += P V of this one, so the next
// softmax overlaps P V; and warpgroups ping-pong, so one computes softmax during the other's matmuls.
//
// A row's max is updated only in tiles at the limits (the last tiles of keys, which come first, and those at the
// start of a document or window), and only if it grows by more than 2^LAZY. Inner tiles use it as it is: it divides
// out of O, and lse includes it. (H200, heads of 64, 8 x 4096, median TFLOP/s: 500; with a max per tile: 441.)
// Bounds:
//
//   - Weights are positive, and a row's sum shrinks only when the max moves, together with O. Sums are compared with
//     SUM_MAX there and at the end, so in a row that passes weight <= sum <= 2^64 at all times, and |O| <= 2^64
//     max|v|: in range for |v| < 2^63. A sum that was infinite or NaN stays so. bf16 has the range of f32: weights
//     keep 8 bits.
//   - When the max was found, its key had weight 1, and the sum has not been below 2^-LAZY since. exp2 flushes to zero
//     below 2^-126, which is negligible in that sum.
//   - A row that fails (a later score is 2^64 times as heavy as those near the diagonal) is not stored. The scheduler
//     repeats its block with a max per tile, where weights are at most 2^LAZY. So a NaN is what it would have been,
//     and the path of a row depends only on its values.
#include "ops/cuda/attn_docs.cuh"
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

// Arguments beside the maps.
struct hopper_fwd {
    attn_docs docs;
    int heads, group;
    int shift;           // 2^shift heads of a group are side by side in a block
    float scale, scale2; // scale2: for exp2
    __nv_bfloat16 *o;
    float *lse;          // [heads, rows]; NULL: not saved
    int *drawn;          // tickets that blocks drew after their first; 0 at the launch
};

// HD: width of queries and keys, HDV: of values. KEYS: of a tile; 64 for short documents (less is masked; heads of
// 128 then have space for three warpgroups). At 192/128 shared memory has space for one Q per warpgroup and none
// for O. SPLIT: queries and keys are different rows (attn_docs.cuh).
template <int HD, int HDV, int KEYS, bool SPLIT> struct fwd_tile {
    enum {
        WGS = HD == 64 || KEYS == 64 ? 3 : 2,
        STAGES = HD == 64 ? 512 / KEYS : 2,
        M = 64 * WGS,
        N = KEYS,
        THREADS = WARPGROUP * (WGS + 1)
    };
    enum { REGISTERS = WGS == 3 ? 160 : 240, REGISTERS_LOAD = WGS == 3 ? 32 : 24, Q_STAGES = HD == 192 ? 1 : 2 };
    // bytes: of a warpgroup, of stages, of a warp
    enum { Q = 64 * HD * 2, K = N * HD * 2, V = N * HDV * 2, O = HD == 192 ? 0 : 16 * HDV * 2 };
    // A block of rows; at < 0: no more. careful: 0, or a bit for each warp that repeats it. redo: the warps that
    // must.
    // first[i], last[i]: keys that row i sees; last: with SPLIT, else its own position
    struct slot { int at, head, begin, tiles, careful, redo, first[M], last[SPLIT ? M : 1]; };
    using q_smem = smem_field<0, Q, Q_STAGES * WGS>;
    using k_smem = smem_field<q_smem::END, K, STAGES>;
    using v_smem = smem_field<k_smem::END, V, STAGES>;
    using o_smem = smem_field<v_smem::END, O, 4 * WGS>;
    using slots_smem = smem_field<o_smem::END, sizeof(slot), 2>;
    using slot_pipe = pipeline<slots_smem::END, 2>;
    using q_pipe = pipeline<slot_pipe::END, 2 * WGS>; // of each warpgroup
    using k_pipe = pipeline<q_pipe::END, STAGES>;
    using v_pipe = pipeline<k_pipe::END, STAGES>;
    enum { BYTES = v_pipe::END };
};

#ifdef TILE90
constexpr float LAZY = 8;
constexpr float SUM_MAX = 18446744073709551616.0f; // 2^64

// ---- Producer warps.

// The first key of row t whose document begins at `begin`.
__device__ inline int fwd_first(const attn_docs &d, int t, int begin)
{
    return d.window && t - begin >= d.window ? t - d.window + 1 : begin;
}

// first[i] of the rows from position `at` on, by a warp; returns the first one. The start of a document is searched
// once, in two or three dependent loads, the others are derived from the following boundaries. One search per row
// took longer than the matmuls of a block of short documents (H200, 100 documents in 15.5k rows: 6500 of 10400
// clocks).
template <int ROWS> __device__ inline int fwd_limits(int *first, const attn_docs &d, int at, int shift)
{
    constexpr int EACH = ROWS / WARP;
    const int lane = threadIdx.x % WARP, last = min(at + (ROWS >> shift), d.rows) - 1;
    int begin[EACH], t[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) t[j] = min(at + ((j * WARP + lane) >> shift), last);
    if (d.uniform) {
#pragma unroll
        for (int j = 0; j < EACH; j++) begin[j] = t[j] / d.uniform * d.uniform;
    } else {
        int doc = 0; // candidates from here on: the last that begins at or before the first row
        for (int left = d.docs; left > 1;) {
            const int step = (left + WARP - 1) / WARP, ahead = lane * step;
            const bool below = ahead < left && __ldg(d.cu + doc + ahead) <= at;
            const int piece = 31 - __clz(__ballot_sync(0xffffffffu, below));
            doc += piece * step;
            left = min(step, left - piece * step);
        }
        const int found = __ldg(d.cu + doc);
#pragma unroll
        for (int j = 0; j < EACH; j++) begin[j] = found;
        for (int next = doc + 1;; next += WARP) { // cu[docs] is past the last row
            const int bounds = __ldg(d.cu + min(next + lane, d.docs));
            int bound = 0;
            for (int i = 0; i < WARP && (bound = __shfl_sync(0xffffffffu, bounds, i)) <= last; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    if (bound <= t[j]) begin[j] = bound;
            if (bound > last) break;
        }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) first[j * WARP + lane] = fwd_first(d, t[j], begin[j]);
    return __shfl_sync(0xffffffffu, fwd_first(d, at, begin[0]), 0);
}

// The same with SPLIT, and last[i]. Positions are queries, and a search per row is in the shadow of the many keys that
// such a row sees.
template <int ROWS> __device__ inline int fwd_split_limits(int *first, int *last, const attn_docs &d, int at, int shift)
{
    const int lane = threadIdx.x % WARP;
    for (int i = lane; i < ROWS; i += WARP) {
        const key_span keys = split_keys(d, min(at + (i >> shift), d.rows - 1));
        first[i] = keys.first;
        last[i] = keys.last;
    }
    __syncwarp();
    return first[0];
}

// Fills a slot, by a warp: the block from position `at` and head `head` on.
template <int HD, int HDV, int KEYS, bool SPLIT>
__device__ inline void fwd_fill(typename fwd_tile<HD, HDV, KEYS, SPLIT>::slot &s, const hopper_fwd &a, int at, int head)
{
    using tile = fwd_tile<HD, HDV, KEYS, SPLIT>;
    const int lane = threadIdx.x % WARP;
    int begin, end;
    if constexpr (SPLIT) {
        begin = fwd_split_limits<tile::M>(s.first, s.last, a.docs, at, a.shift);
        end = s.last[tile::M - 1] + 1;
    } else {
        begin = fwd_limits<tile::M>(s.first, a.docs, at, a.shift);
        end = min(at + (tile::M >> a.shift), a.docs.rows);
    }
    if (lane == 0) {
        s.at = at;
        s.head = head;
        s.begin = begin;
        s.tiles = (end - begin + tile::N - 1) / tile::N;
        s.careful = 0;
    }
}

template <int HD, int HDV, int KEYS, bool SPLIT>
__device__ inline void fwd_schedule(const CUtensorMap *q, const hopper_fwd &a, unsigned char *shared)
{
    using tile = fwd_tile<HD, HDV, KEYS, SPLIT>;
    const uint32_t at = shared_at(shared);
    const int lane = threadIdx.x % WARP, positions = tile::M >> a.shift,
              blocks = (a.docs.rows + positions - 1) / positions;
    const int sets = a.heads >> a.shift, total = blocks * sets;
    auto *slots = (typename tile::slot *)(shared + tile::slots_smem::AT);
    int ticket = blockIdx.x;
    pipeline_state<tile::Q_STAGES> q_ring;
    for (pipeline_state<2> slot;; slot.next(), q_ring.next()) {
        auto &s = slots[slot.stage], &other = slots[slot.stage ^ 1];
        tile::slot_pipe::producer_acquire(at, slot);
        if (s.redo == 0 && ticket < total) {
            const walk_item w = walk_at(ticket, blocks, sets, a.group >> a.shift);
            fwd_fill<HD, HDV, KEYS, SPLIT>(s, a, (blocks - 1 - w.block) * positions, w.head << a.shift);
            if (lane == 0) ticket = gridDim.x + atomicAdd(a.drawn, 1);
            ticket = __shfl_sync(0xffffffffu, ticket, 0);
        } else {
            // no blocks left: must the last one, in the other slot, be repeated?
            if (s.redo == 0) {
                mbar_wait(tile::slot_pipe::empty(at, slot.stage ^ 1), slot.parity ^ slot.stage ^ 1);
                const int again = other.redo ? other.at : -1;
                if (again >= 0) fwd_fill<HD, HDV, KEYS, SPLIT>(s, a, again, other.head);
                __syncwarp();
                if (lane == 0) {
                    s.at = again;
                    s.redo = other.redo;
                    other.redo = 0;
                }
            }
            __syncwarp();
            if (lane == 0) {
                s.careful = s.redo;
                s.redo = 0;
            }
        }
        __syncwarp();
        if (lane == 0) tile::slot_pipe::producer_commit(at, slot.stage);
        if (s.at < 0) return;
        if (lane == 0)
            for (int w = 0; w < tile::WGS; w++) {
                const int i = q_ring.stage * tile::WGS + w;
                mbar_wait(tile::q_pipe::empty(at, i), q_ring.parity ^ 1);
                tile::q_pipe::producer_expect(at, i, tile::Q);
                tma_load_heads(tile::q_smem::at(at, i), q, tile::q_pipe::full(at, i), s.at + (64 * w >> a.shift),
                               s.head);
            }
        __syncwarp();
    }
}

// Loads keys or values, heads of COLS columns, by one thread, into a field, with its pipeline.
template <int HD, int HDV, int KEYS, bool SPLIT, int COLS, typename FIELD, typename PIPE>
__device__ inline void fwd_load(const CUtensorMap *map, const hopper_fwd &a, unsigned char *shared)
{
    using tile = fwd_tile<HD, HDV, KEYS, SPLIT>;
    const uint32_t at = shared_at(shared);
    const auto *slots = (const typename tile::slot *)(shared + tile::slots_smem::AT);
    typename PIPE::state kv;
    for (pipeline_state<2> slot;; slot.next()) {
        tile::slot_pipe::consumer_wait(at, slot);
        const auto &s = slots[slot.stage];
        if (s.at < 0) return;
        const int slab = s.head / a.group * (COLS / SLAB_COLS), begin = s.begin, tiles = s.tiles;
        tile::slot_pipe::consumer_release(at, slot.stage);
        for (int j = tiles - 1; j >= 0; j--, kv.next()) {
            PIPE::producer_acquire(at, kv);
            PIPE::producer_expect(at, kv.stage, FIELD::BYTES);
            tma_load(FIELD::at(at, kv.stage), map, PIPE::full(at, kv.stage), begin + j * tile::N, slab);
        }
    }
}

// ---- Consumer warpgroups.

// One warpgroup: 64 rows of a block. A thread has two of them, acc_row of elements 0 and 2: N / 2 scores and HDV /
// 2 elements of O.
template <int HD, int HDV, int KEYS, bool SPLIT> struct fwd_group {
    using tile = fwd_tile<HD, HDV, KEYS, SPLIT>;
    using slot = typename tile::slot;
    enum { N = tile::N, WGS = tile::WGS };
    const hopper_fwd &a;
    const CUtensorMap *map_o;
    const slot *slots; // block data are re-read from shared memory: registers are scarce
    uint32_t at;       // of the shared memory
    int wg, warp, lane;
    float s[N / 2], o[HDV / 2];
    uint32_t p[N / 16][4];  // s as operand A
    float max[2], sum[2];   // max of raw scores, as last moved; sum over this thread's columns
    // tiles of keys queued for S; blocks of rows. Tile n is in stage n % STAGES, block n in slot n % 2
    uint32_t tiles, blocks;

    __device__ fwd_group(const CUtensorMap *map, const hopper_fwd &a_, unsigned char *shared)
        : a(a_), map_o(map), slots((const slot *)(shared + tile::slots_smem::AT)), at(shared_at(shared)),
          wg(threadIdx.x / WARPGROUP - 1), warp(threadIdx.x / WARP % 4), lane(threadIdx.x % WARP), tiles(0), blocks(0)
    {
    }

    __device__ const slot &block() const { return slots[blocks & 1]; }
    __device__ uint32_t q_stage() const { return blocks % tile::Q_STAGES * WGS + wg; }
    __device__ static uint32_t stage(uint32_t n) { return n % tile::STAGES; }
    __device__ static uint32_t parity(uint32_t n) { return n / tile::STAGES & 1; }
    // This warp has finished reading.
    __device__ void release(uint32_t bar) const
    {
        if (lane == 0) mbar_arrive(bar);
    }
    __device__ void keys_wait() const { mbar_wait(tile::k_pipe::full(at, stage(tiles)), parity(tiles)); }
    __device__ void keys_done() { release(tile::k_pipe::empty(at, stage(tiles++))); }
    // Values of tile n.
    __device__ void values_wait(uint32_t n) const { mbar_wait(tile::v_pipe::full(at, stage(n)), parity(n)); }
    __device__ void values_done(uint32_t n) const { release(tile::v_pipe::empty(at, stage(n))); }
    // Ping-pong: the warpgroups queue their matmuls alternately, once per tile.
    __device__ void pingpong_wait() const { named_sync(1 + wg, 2 * WARPGROUP); }
    __device__ void pingpong_arrive() const { named_arrive(1 + (wg + 1) % WGS, 2 * WARPGROUP); }

    // S = Q K^T of the next tile, queued.
    __device__ void scores_queue()
    {
        const uint64_t q = operand_k(tile::q_smem::at(at, q_stage())),
                       k = operand_k(tile::k_smem::at(at, stage(tiles)));
#pragma unroll
        for (int i = 0; i < HD / 16; i++)
            wgmma_ss<N>(s, operand_step(q, step_k(i, 64)), operand_step(k, step_k(i, N)), i > 0);
        wgmma_commit();
    }
    // O += P V of tile n, queued; add 0: O = P V.
    __device__ void values_queue(uint32_t n, int add)
    {
        const uint64_t v = operand_mn(tile::v_smem::at(at, stage(n)), N * SLAB_ROW);
#pragma unroll
        for (int i = 0; i < N / 16; i++) wgmma_rs<HDV, 1>(o, p[i], operand_step(v, step_mn(i)), i > 0 || add);
        wgmma_commit();
    }

    // Of row r of this warpgroup.
    __device__ int position(int r) const { return block().at + ((wg * 64 + r) >> a.shift); }
    // The last key that it sees, if it exists.
    __device__ int last_seen(int r) const
    {
        if constexpr (SPLIT) return block().last[wg * 64 + r];
        else return position(r);
    }
    // True: every row sees all of tile j of the block, and keys after it.
    __device__ bool inner(int j) const
    {
        const slot &b = block();
        const int key = b.begin + j * N;
        return key + N <= last_seen(0) && key >= b.first[wg * 64 + 63] && !b.careful;
    }
    // Bit mask of a row's elements in this thread, columns 0, 1, 8, 9, 16, ..: those up to column `to`.
    __device__ static uint32_t bits_up_to(int to)
    {
        const int count = (to >> 3) * 2 + ::min(to & 7, 1) + 1;
        return ~__funnelshift_lc(0u, ~0u, ::max(count, 0)); // shifts by at most 32
    }
    // Scores of tile j of the block that a row does not see become -inf.
    __device__ void mask(int j)
    {
        const slot &b = block();
        const int mine = wg * 64 + warp * 16 + lane / 4, base = b.begin + j * N + lane % 4 * 2;
        uint32_t seen[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = mine + 8 * half;
            seen[half] = bits_up_to(last_seen(r - wg * 64) - base) & ~bits_up_to(b.first[r] - base - 1);
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            if (!(seen[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1)) s[i] = -INFINITY;
    }

    // Adds one tile of scores: s becomes exp(s - max). True: O must be multiplied by factor; the same in the whole
    // warp.
    __device__ bool softmax(float (&factor)[2])
    {
        float top[2] = {s[0], s[2]};
#pragma unroll
        for (int i = 1; i < N / 2; i++)
            if (i != 2) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
        bool grown = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
            top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
            grown = grown || (top[half] - max[half]) * a.scale2 > LAZY; // NaN if no key was seen yet: not grown
        }
        grown = __any_sync(0xffffffffu, grown);
        if (grown) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float now = fmaxf(max[half], top[half]);
                factor[half] = now == -INFINITY ? 1.0f : exp2_fast((max[half] - now) * a.scale2);
                max[half] = now;
                sum[half] = sum[half] > SUM_MAX ? INFINITY : sum[half] * factor[half];
            }
        }
        exponentials(max[0] == -INFINITY ? 0.0f : max[0] * a.scale2, max[1] == -INFINITY ? 0.0f : max[1] * a.scale2);
        return grown;
    }
    // s becomes 2^(s scale2 - base).
    __device__ void exponentials(float base0, float base1)
    {
        float part[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            s[i] = exp2_fast(fmaf(s[i], a.scale2, i / 2 % 2 ? -base1 : -base0));
            part[i / 2 % 2] += s[i];
        }
        sum[0] += part[0];
        sum[1] += part[1];
    }
    __device__ void pack()
    {
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            pack_a(p[i], s, i);
            hold(p[i]);
        }
    }

    // A tile of keys that no row of this warpgroup sees.
    __device__ void skip()
    {
        keys_wait();
        keys_done();
        pingpong_wait();
        pingpong_arrive();
        values_wait(tiles - 1);
        values_done(tiles - 1);
    }

    // Tiles high, high - 1, .. low of the block, each of which some row sees.
    __device__ void attend(int high, int low)
    {
        float factor[2];
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0;
        keys_wait();
        pingpong_wait();
        hold(s);
        wgmma_fence();
        scores_queue();
        pingpong_arrive();
        wgmma_wait<0>();
        hold(s);
        keys_done();
        for (int j = high;; j--) {
            if (inner(j)) {
                // after the exponentials, kept there by a branch, it is 1 % slower (H200 at 700 W): the others'
                // matmuls run here
                wgmma_wait<0>();
                hold(o);
                values_done(tiles - 2);
                exponentials(max[0] * a.scale2, max[1] * a.scale2);
                pack();
            } else {
                mask(j);
                const bool grown = softmax(factor);
                wgmma_wait<0>();
                hold(o);
                if (j < high) values_done(tiles - 2);
                pack();
                if (grown && j < high)
#pragma unroll
                    for (int i = 0; i < HDV / 2; i++) o[i] *= factor[i / 2 % 2];
            }
            if (j == low) break;
            keys_wait();
            pingpong_wait();
            hold(s);
            hold(o);
            wgmma_fence();
            scores_queue();
            values_wait(tiles - 1);
            wgmma_fence();
            values_queue(tiles - 1, j < high);
            pingpong_arrive();
            wgmma_wait<1>();
            hold(s);
            keys_done();
        }
        release(tile::q_pipe::empty(at, q_stage()));
        values_wait(tiles - 1);
        hold(o);
        wgmma_fence();
        values_queue(tiles - 1, high > low);
        wgmma_wait<0>();
        hold(o);
        values_done(tiles - 1);
    }

    // Each warp stores its rows once, except rows out of range, which are repeated.
    __device__ void finish()
    {
        const uint32_t bit = 1u << (wg * 4 + warp);
        const uint32_t careful = block().careful;
        if (careful ? careful & bit : !__any_sync(0xffffffffu, !(sum[0] < SUM_MAX && sum[1] < SUM_MAX))) store();
        else if (!careful && lane == 0) atomicOr((int *)&block().redo, (int)bit);
    }
    // This warp's part of lse, and of O through its own 16 rows of shared memory.
    __device__ void store()
    {
        const int head = block().head;
        const uint32_t o_at = tile::o_smem::at(at, wg * 4 + warp);
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
            inverse[half] = __fdividef(1, sum[half]);
        }
        // lse: one lane for each of the two rows.
        const int half = lane % 2, r = warp * 16 + 8 * half + lane / 4, t = position(r),
                  h = head + (r & ((1 << a.shift) - 1));
        if (a.lse && lane % 4 < 2 && t < a.docs.rows)
            a.lse[(int64_t)h * a.docs.rows + t] = (half ? max[1] : max[0]) * a.scale + logf(half ? sum[1] : sum[0]);
        if constexpr (tile::O == 0) {
            const int64_t stride = (int64_t)a.heads * HDV, first = position(0);
            rows_store(o, inverse, a.o + first * stride + head * HDV, stride, a.docs.rows - (int)first);
            return;
        }
        if (lane == 0) bulk_wait_read<0>(); // the store of the block before
        __syncwarp();
#pragma unroll
        for (int k = 0; k < HDV / 16; k++) {
            uint32_t r[4];
            for (int i = 0; i < 4; i++)
                r[i] = two_bf16(o[8 * k + 2 * i] * inverse[i % 2], o[8 * k + 2 * i + 1] * inverse[i % 2]);
            store8x8x4(o_at + k / 4 * (16 * SLAB_ROW) + slab_offset(lane % 16, k % 4 * 16 + lane / 16 * 8), r[0], r[1],
                       r[2], r[3]);
        }
        fence_async();
        __syncwarp();
        if (lane == 0) {
            tma_store_heads(map_o, o_at, position(warp * 16), head);
            bulk_commit();
        }
    }

    __device__ void run()
    {
        if (wg == WGS - 1) pingpong_arrive(); // warpgroup 0 goes first
        for (;; blocks++) {
            mbar_wait(tile::slot_pipe::full(at, blocks & 1), blocks >> 1 & 1);
            const slot &b = block();
            if (b.at < 0) break;
            const int from = position(0), last = min(position(63), a.docs.rows - 1);
            const int high = from <= last ? ((SPLIT ? last_seen(63) : last) - b.begin) / N : -1,
                      low = from <= last ? (b.first[wg * 64] - b.begin) / N : 0;
            for (int j = b.tiles - 1; j > high; j--) skip();
            mbar_wait(tile::q_pipe::full(at, q_stage()), blocks / tile::Q_STAGES & 1);
            if (high >= low) {
                attend(high, low);
                finish();
                for (int j = low - 1; j >= 0; j--) skip();
            } else {
                release(tile::q_pipe::empty(at, q_stage()));
            }
            __syncwarp();
            release(tile::slot_pipe::empty(at, blocks & 1));
        }
        if (lane == 0) bulk_wait<0>();
    }
};
#endif

template <int HD, int HDV, int KEYS, bool SPLIT>
__global__ void __launch_bounds__(fwd_tile<HD, HDV, KEYS, SPLIT>::THREADS, 1)
    hopper_fwd_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                      const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap o, const hopper_fwd a)
{
#ifdef TILE90
    using tile = fwd_tile<HD, HDV, KEYS, SPLIT>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            ((typename tile::slot *)(shared + tile::slots_smem::AT))[i].redo = 0;
            tile::slot_pipe::init(at, i, 1, 2 + 4 * tile::WGS);
        }
        for (int i = 0; i < 2 * tile::WGS; i++) {
            tile::q_pipe::init(at, i, 1, 4);
        }
        for (int i = 0; i < tile::STAGES; i++) {
            mbar_init(tile::k_pipe::full(at, i), 1);
            mbar_init(tile::v_pipe::full(at, i), 1);
            mbar_init(tile::k_pipe::empty(at, i), 4 * tile::WGS);
            mbar_init(tile::v_pipe::empty(at, i), 4 * tile::WGS);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        registers_give<tile::REGISTERS_LOAD>();
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        if (warp == 0) fwd_schedule<HD, HDV, KEYS, SPLIT>(&q, a, shared);
        if (warp == 1 && lane == 0)
            fwd_load<HD, HDV, KEYS, SPLIT, HD, typename tile::k_smem, typename tile::k_pipe>(&k, a, shared);
        if (warp == 2 && lane == 0)
            fwd_load<HD, HDV, KEYS, SPLIT, HDV, typename tile::v_smem, typename tile::v_pipe>(&v, a, shared);
    } else {
        registers_take<tile::REGISTERS>();
        fwd_group<HD, HDV, KEYS, SPLIT>(&o, a, shared).run();
    }
#endif
}

// ---- Launcher.

// Up to eight heads of a group side by side: the greatest power of two that divides the group.
template <int HD, int HDV, int KEYS> static int fwd_shift(int64_t group)
{
    int shift = 0;
    while (fwd_tile<HD, HDV, KEYS, false>::O > 0 && shift < 3 && (group >> shift) % 2 == 0) shift++;
    return shift;
}

template <int HD, int HDV, int KEYS, bool SPLIT = false>
static status queue_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    using tile = fwd_tile<HD, HDV, KEYS, SPLIT>;
    CUtensorMap q, k, v, o;
    const int64_t cols_kv = a->heads_kv * HD, cols_v = a->heads_kv * HDV;
    const int shift = fwd_shift<HD, HDV, KEYS>(a->heads / a->heads_kv);
    TRY(tile_map_heads(&q, s, a->q, a->rows, a->q_stride, a->heads, HD, 64 >> shift, 1 << shift));
    const int64_t keys = SPLIT ? a->keys : a->rows;
    TRY(tile_map_rows(&k, s, a->k, keys, a->k_stride, cols_kv, tile::N, HD / SLAB_COLS));
    TRY(tile_map_rows(&v, s, a->v, keys, a->v_stride, cols_v, tile::N, HDV / SLAB_COLS));
    TRY(tile_map_heads(&o, s, a->o, a->rows, a->heads * HDV, a->heads, HDV, 16 >> shift, 1 << shift));
    int *drawn = (int *)cuda_set_workspace(s, sizeof *drawn, "attn_fwd (hopper)");
    const hopper_fwd x = {attn_docs_of(a),
                          (int)a->heads,
                          (int)(a->heads / a->heads_kv),
                          shift,
                          (float)a->scale,
                          (float)(a->scale * 1.4426950408889634),
                          (__nv_bfloat16 *)a->o,
                          (float *)a->lse,
                          drawn};
    const int64_t positions = tile::M >> shift, blocks = (a->rows + positions - 1) / positions,
                  total = blocks * (a->heads >> shift);
    const int64_t each = cuda_set(s)->multiprocessors;
    cudaMemsetAsync(drawn, 0, sizeof *drawn, queue_of(s)); // a failure shows at the launch, as those of the next line
    cudaFuncSetAttribute(hopper_fwd_kernel<HD, HDV, KEYS, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         tile::BYTES);
    hopper_fwd_kernel<HD, HDV, KEYS, SPLIT>
        <<<(unsigned)(total < each ? total : each), tile::THREADS, tile::BYTES, queue_of(s)>>>(q, k, v, o, x);
    return cuda_set_launched(s, "attn_fwd (hopper)");
}

// True: rows see so few keys that tiles of 64 are faster. (H200, 32/8 heads of 128, TFLOP/s with tiles of 64 and
// 128: 16384 rows in 100 documents 245, 218, in 24 494, 478; documents of 1024 480, 465, of 2048 535, 552. Heads of
// 64: in 100 documents 152, 145, in 24 324, 336.) A function of the shape alone, since graphs capture the choice.
static bool few_keys(const struct attn_fwd_args *a)
{
    const int64_t few = a->head_dim == 64 ? 256 : 1024;
    return (a->cp_docs ? a->keys : a->rows) <= few * a->docs || (a->window > 0 && a->window <= few);
}

extern "C" bool cuda_hopper_attn_widths(int64_t hd, int64_t hd_v)
{
    return hd == 192 ? hd_v == 128 : hd == hd_v && (hd == 64 || hd == 128);
}

extern "C" status cuda_hopper_attn_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    CHECK(cuda_hopper_attn_widths(a->head_dim, a->head_dim_v) && a->dt == DTYPE_BF16 &&
              !(a->cp_docs && a->head_dim == 192),
          "heads of %lld, %lld %s", (long long)a->head_dim, (long long)a->head_dim_v, dtype_name(a->dt));
    if (a->cp_docs) {
        if (a->head_dim == 64) return few_keys(a) ? queue_fwd<64, 64, 64, true>(a, s)
                                                  : queue_fwd<64, 64, 128, true>(a, s);
        return few_keys(a) ? queue_fwd<128, 128, 64, true>(a, s) : queue_fwd<128, 128, 128, true>(a, s);
    }
    if (a->head_dim == 192) return queue_fwd<192, 128, 128>(a, s);
    if (a->head_dim == 64) return few_keys(a) ? queue_fwd<64, 64, 64>(a, s) : queue_fwd<64, 64, 128>(a, s);
    return few_keys(a) ? queue_fwd<128, 128, 64>(a, s) : queue_fwd<128, 128, 128>(a, s);
}
