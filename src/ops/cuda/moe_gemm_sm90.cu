// Grouped GEMMs on Hopper: each expert's rows times its weights, in one launch; only the device knows the row
// counts.
//
//   dtypes    BF16 operands, or FP8 codes with one scale each; f32 accumulators; tiles by TMA and wgmma
//             (tile_sm90.cuh), gathered rows by cp.async
//
//   GEMM      A                     B                      C                       sum over
//   FWD       [128 rows][64 of k]   [256 of n][64 of k]    [128 rows][256 of n]    k
//   DGRAD     [128 rows][64 of n]   [64 of n][256 of k]    [128 rows][256 of k]    n
//   WGRAD     [64 rows][128 of n]   [64 rows][256 of k]    [128 of n][256 of k]    the expert's rows
//   WGRAD^T   [64 rows][128 of k]   [64 rows][256 of n]    its transpose           the same, if b is gathered
//
//   of codes  A                     B                      C                       sum over
//   FWD       [128 rows][128 of k]  [256 of n][128 of k]   [128 rows][256 of n]    k
//   DGRAD     [128 rows][128 of n]  [256 of k][128 of n]   [128 rows][256 of k]    n; B: the transposed weights
//   WGRAD     [128 of n][128 rows]  [256 of k][128 rows]   [128 of n][256 of k]    the expert's rows; A, B: transposed
//    gathered [128 rows][128 of n]  the same               the same                the same; A is turned into registers
//   WGRAD^T   [128 rows][128 of k]  [256 of n][128 rows]   its transpose           the same, if b is gathered
//
// wgmma reads codes contiguous along the sum alone. A code is a byte: 128 of them are the 128 bytes of a slab's row, so
// to TMA and to the gather a matrix of codes is one of BF16 with half the columns. Transposed codes are in panels of
// 128 rows: a stage's box is contiguous.
//
//   gathered operand   always A
//   cluster            two blocks with tiles below each other: the same B, of which each loads half into both
//                      (multicast). If they belong to different experts, each loads its own B.
//   persistent         a cluster takes every gridDim.x / 2-th pair of tiles; concurrent pairs are neighbours in rows
//                      and columns: weights stay in L2 while an expert's rows pass, and rows while columns of weights
//                      pass. Offsets are multiples of 128, so a tile of rows has one expert.
//
//   warps 0-3          producers: one thread by TMA; with gathered rows all threads, 16 bytes at a time
//   warpgroups 1, 2    64 rows each: m64n256k16 wgmma, 128 accumulators per thread
//
//   stage              empty when the consumers of both blocks have read theirs, since either producer writes to both
//   C                  through 4 KiB per warp, in two alternating pieces; its stores overlap the matmuls of the next
//                      tile. += is done by the stores (cp.reduce, in L2): one addend per element, so no order matters.
//   padding rows       zeros in C; in WGRAD's last stage zeroed in shared memory, since they would enter sums (those of
//                      codes are zeros)
//   sums of codes      the tensor core keeps 14 bits. With PROMOTE a stage's sums, of 128 terms, are added to f32, as
//                      cuBLASLt does. The halves of a tile take turns in 64 more accumulators; meanwhile the other
//                      warpgroup's matmuls run. A gathered WGRAD: quarters, in two sets of 32.
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/moe_backends.h"
}

namespace {

// matmuls
enum { FWD = EXPERT_FWD, DGRAD = EXPERT_DGRAD, WGRAD = EXPERT_WGRAD, WGRAD_T, FWD_F8, DGRAD_F8, WGRAD_F8, WGRAD_T_F8 };
enum { M = MOE_ALIGN, N = 256, K = 64, PAIR = 2, STAGES = 4, CONSUMERS = 2, THREADS = WARPGROUP * (CONSUMERS + 1) };
enum { A_BYTES = M * K * 2, B_BYTES = N * K * 2, PIECE = 16 * SLAB_ROW, OUT_BYTES = 2 * PIECE }; // a stage's; a warp's
using a_smem = smem_field<0, A_BYTES, STAGES>;
using b_smem = smem_field<a_smem::END, B_BYTES, STAGES>;
using out_smem = smem_field<b_smem::END, OUT_BYTES, 4 * CONSUMERS>;
using pipe = pipeline<out_smem::END, STAGES>;
enum { BYTES = pipe::END };
enum { REGISTERS_LOAD = 40, REGISTERS = 232 };

__host__ __device__ constexpr bool by_rows(int pass)
{
    return pass == FWD || pass == DGRAD || pass == FWD_F8 || pass == DGRAD_F8;
}

struct grouped {
    const int *offsets, *counts, *source;
    const __nv_bfloat16 *gathered;
    int chunks;     // 16-byte chunks in one of its rows
    uint32_t share; // 2^31 / top_k, rounded up: slot -> token
    int experts, n; // n: rows of an expert's weights
    int down, across, depth; // of C; of the sum, where it is not over rows
    int add;        // WGRAD: += by the stores
    const float *scale_a, *scale_b; // of codes
};

#ifdef TILE90

// ---- Shared by producers and consumers.

__device__ constexpr bool is_fp8(int pass) { return pass >= FWD_F8; }
// Of the sum, in a stage.
__device__ constexpr int depth_of(int pass) { return is_fp8(pass) ? 2 * K : K; }
// Columns of A, in BF16's two bytes.
__device__ constexpr int words_of(int pass, int column) { return is_fp8(pass) ? column / 2 : column; }

// One tile: `row` and `column` of C; `steps` of K; `expert`; `first` of its sorted rows, and `valid` rows from
// there (0: only the other block has a tile, and this one follows along). shared: the other block's B is the same.
struct tile {
    int row, column, steps, expert, first, valid;
    bool shared;
};

// By a whole warp: the expert of a sorted row, searched from `from`.
__device__ inline int expert_of(const grouped &g, int row, int from)
{
    const int lane = threadIdx.x % WARP;
    for (int e = from;; e += WARP) {
        const int next = e + lane + 1;
        const uint32_t behind = __ballot_sync(0xffffffffu, next <= g.experts ? __ldg(g.offsets + next) <= row : false);
        if (behind != 0xffffffffu) return e + __popc(behind);
    }
}

// Pairs of tiles.
template <int PASS> __device__ inline int pairs_of(const grouped &g)
{
    const int across = (g.across + N - 1) / N;
    if (!by_rows(PASS)) return g.experts * ((g.down + PAIR * M - 1) / (PAIR * M)) * across;
    return (__ldg(g.offsets + g.experts) / M + PAIR - 1) / PAIR * across;
}
// This block's tile of pair t, by a whole warp; `from`: an expert that is not after the tile's.
template <int PASS> __device__ inline tile tile_at(const grouped &g, int t, int rank, int from)
{
    const int across = (g.across + N - 1) / N;
    tile x;
    x.column = t % across * N;
    if (!by_rows(PASS)) {
        const int down = (g.down + PAIR * M - 1) / (PAIR * M);
        x.expert = t / across / down;
        x.row = (t / across % down * PAIR + rank) * M;
        x.first = __ldg(g.offsets + x.expert);
        x.valid = __ldg(g.counts + x.expert);
        x.steps = (x.valid + depth_of(PASS) - 1) / depth_of(PASS);
        x.shared = true;
    } else {
        const int row = (t / across * PAIR + rank) * M, end = __ldg(g.offsets + g.experts);
        x.row = x.first = row < end ? row : row - M;
        x.expert = expert_of(g, x.row, from);
        const int begin = __ldg(g.offsets + x.expert), other = row + (rank ? -M : M);
        x.valid = row < end ? begin + __ldg(g.counts + x.expert) - row : 0;
        x.shared = row < end && other >= begin && other < __ldg(g.offsets + x.expert + 1);
        x.steps = g.depth / depth_of(PASS);
    }
    return x;
}

// ---- Producers.

__device__ inline void gather16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}
// Arrives when this thread's copies are complete.
__device__ inline void gather_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(bar) : "memory");
}
__device__ inline void gather_wait() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// A thread's part of a gathered A: of rows i, i + 16, .. the 16-byte chunk `chunk` of every slab. Few instructions,
// or loads come too late: padding rows read token 0's row, which is not used.
template <int PASS> struct gatherer {
    enum {
        SLABS = by_rows(PASS) || is_fp8(PASS) ? 1 : M / SLAB_COLS,
        ROWS = by_rows(PASS) || is_fp8(PASS) ? M : K,
        EACH = ROWS / 16,
        SLAB = ROWS * SLAB_ROW
    };
    const int *const slots;                // of this thread's rows
    const __nv_bfloat16 *const gathered;
    const uint32_t share, chunks, chunk, to; // to: from the operand's beginning
    uint32_t from[EACH];                   // by_rows: start of each row's chunks, in chunks; else their slots

    __device__ explicit gatherer(const grouped &g)
        : slots(g.source + threadIdx.x / 8), gathered(g.gathered), share(g.share), chunks(g.chunks),
          chunk(threadIdx.x % 8), to(slab_offset(threadIdx.x / 8, threadIdx.x % 8 * 8))
    {
    }
    __device__ uint32_t chunk_of(uint32_t slot) const { return __umulhi(2 * slot, share) * chunks + chunk; }
    // Advances to the rows from `first` on.
    __device__ void rows(int first)
    {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const uint32_t slot = max(__ldg(slots + first + 16 * j), 0);
            from[j] = by_rows(PASS) ? chunk_of(slot) : slot;
        }
    }
    // Columns from `column` on of these rows into `at`; `further`: distance to the next slab.
    __device__ void load(uint32_t at, int column, int further) const
    {
        const __nv_bfloat16 *p = gathered + column;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const __nv_bfloat16 *row = p + (uint64_t)(by_rows(PASS) ? from[j] : chunk_of(from[j])) * 8;
            gather16(at + to + j * (16 * SLAB_ROW), row);
            if (SLABS == 2) gather16(at + to + SLAB + j * (16 * SLAB_ROW), row + further);
        }
    }
};

// The part of a stage that TMA loads: one thread.
template <int PASS, bool GATHER>
__device__ inline void load_stage(const CUtensorMap *a, const CUtensorMap *b, const grouped &g, const tile &x, int rank,
                                  int step, uint32_t at, int stage)
{
    const uint32_t full = pipe::full(at, stage), a_to = a_smem::at(at, stage), b_to = b_smem::at(at, stage);
    mbar_arrive_expect(full, (GATHER ? 0 : A_BYTES) + B_BYTES);
    if (!GATHER) {
        if (by_rows(PASS)) tma_load(a_to, a, full, x.row, step);
        else if (PASS == WGRAD_F8) tma_load(a_to, a, full, (x.first / depth_of(PASS) + step) * g.down + x.row, 0);
        else tma_load(a_to, a, full, x.first + step * K, x.row / SLAB_COLS);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (x.shared && half != rank) continue;
        const int line = x.column + half * (N / 2); // of B, where k runs along columns
        const int row = PASS == FWD || PASS == FWD_F8 ? x.expert * g.n + line
                        : PASS == DGRAD_F8            ? line
                        : is_fp8(PASS)                ? (x.first / depth_of(PASS) + step) * g.across + line
                        : PASS == DGRAD               ? x.expert * g.n + step * K
                                                      : x.first + step * K;
        const int slab = PASS == FWD || PASS == FWD_F8 ? step
                         : PASS == DGRAD_F8            ? x.expert * (g.n / depth_of(PASS)) + step
                         : is_fp8(PASS)                ? 0
                                                       : line / SLAB_COLS;
        if (x.shared) tma_load_both(b_to + half * (B_BYTES / 2), b, full, row, slab);
        else tma_load(b_to + half * (B_BYTES / 2), b, full, row, slab);
    }
}

template <int PASS, bool GATHER>
__device__ inline void load(const CUtensorMap *a, const CUtensorMap *b, const grouped &g, int rank, uint32_t at)
{
    const int pairs = pairs_of<PASS>(g), lane = threadIdx.x % WARP, stride = gridDim.x / PAIR;
    int expert = 0;
    pipeline_state<STAGES> stage;
    if constexpr (!GATHER) {
        if (threadIdx.x >= WARP) return;
        for (int t = blockIdx.x / PAIR; t < pairs; t += stride) {
            const tile x = tile_at<PASS>(g, t, rank, expert);
            expert = x.expert;
            for (int i = 0; i < x.steps; i++, stage.next()) {
                pipe::producer_acquire(at, stage);
                if (lane == 0) load_stage<PASS, GATHER>(a, b, g, x, rank, i, at, stage.stage);
                __syncwarp();
            }
        }
    } else {
        gatherer<PASS> rows(g);
        for (int t = blockIdx.x / PAIR; t < pairs; t += stride) {
            const tile x = tile_at<PASS>(g, t, rank, expert);
            expert = x.expert;
            // columns of A past its last are those of rows that are not stored
            const int further = x.row + SLAB_COLS < g.down ? SLAB_COLS : 0, column = x.row < g.down ? x.row : 0;
            if (x.steps) rows.rows(x.first);
            for (int i = 0; i < x.steps; i++, stage.next()) {
                const uint32_t full = pipe::full(at, stage.stage);
                pipe::producer_acquire(at, stage);
                if (threadIdx.x == 0) load_stage<PASS, GATHER>(a, b, g, x, rank, i, at, stage.stage);
                rows.load(a_smem::at(at, stage.stage), by_rows(PASS) ? i * K : words_of(PASS, column), further);
                gather_arrive(full);
                if (!by_rows(PASS) && i + 1 < x.steps) rows.rows(x.first + (i + 1) * depth_of(PASS));
            }
        }
        gather_wait();
    }
}

// ---- Consumers.

__device__ inline void tma_add(const CUtensorMap *map, uint32_t from, int row, int slab)
{
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];\n" ::"l"(map),
        "r"(from), "r"(0), "r"(row), "r"(slab)
        : "memory");
}

template <int PASS, bool GATHER, bool PROMOTE> struct consumer {
    const grouped &g;
    const CUtensorMap *c;
    uint32_t at, out;
    int wg, warp, lane;
    pipeline_state<STAGES> stage;
    enum { TURNED = GATHER && is_fp8(PASS) && !by_rows(PASS) };
    float d[N / 2], part[TURNED ? 1 : PROMOTE ? N / 4 : 1], parts[TURNED ? 2 : 1][TURNED ? N / 8 : 1];
    enum { TRANS = PASS == WGRAD_T || PASS == WGRAD_T_F8 };

    __device__ consumer(const CUtensorMap *c_, const grouped &g_, uint32_t at_)
        : g(g_), c(c_), at(at_), out(out_smem::at(at_, threadIdx.x / WARP - 4)), wg(threadIdx.x / WARPGROUP - 1),
          warp(threadIdx.x / WARP % 4), lane(threadIdx.x % WARP)
    {
    }
    // This warp has read stage i: arrives for both producers.
    __device__ void release(int i) const { mbar_arrive_both(pipe::empty(at, i)); }
    // Zeroes the rows from `rows` on of a WGRAD stage.
    __device__ void blank(int rows) const
    {
        const int thread = threadIdx.x - WARPGROUP, all = (K - rows) * 8; // chunks of a slab
        for (int i = thread; i < all; i += CONSUMERS * WARPGROUP) {
            const uint32_t to = (rows + i / 8) * SLAB_ROW + i % 8 * 16;
            for (int slab = 0; slab < M / SLAB_COLS; slab++)
                zero16(a_smem::at(at, stage.stage) + slab * K * SLAB_ROW + to);
            for (int slab = 0; slab < N / SLAB_COLS; slab++)
                zero16(b_smem::at(at, stage.stage) + slab * K * SLAB_ROW + to);
        }
        fence_async();
        named_sync(1, CONSUMERS * WARPGROUP);
    }
    __device__ static void zero16(uint32_t to)
    {
        asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(to), "r"(0) : "memory");
    }

    __device__ void matmuls(const tile &x)
    {
        enum { TA = !by_rows(PASS), TB = PASS != FWD };
        for (int i = 0; i < x.steps; i++) {
            const int now = stage.stage;
            mbar_wait(pipe::full(at, now), stage.parity);
            if (GATHER) fence_async(); // cp.async writes by the generic proxy, like threads
            if (!by_rows(PASS) && (i + 1) * K > x.valid) blank(x.valid - i * K);
            const uint32_t a_at = a_smem::at(at, now) + wg * (A_BYTES / 2), b_at = b_smem::at(at, now);
            const uint64_t a = TA ? operand_mn(a_at, K * SLAB_ROW) : operand_k(a_at);
            const uint64_t b = TB ? operand_mn(b_at, K * SLAB_ROW) : operand_k(b_at);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < K / 16; k++)
                wgmma_ss<N, TA, TB>(d, operand_step(a, TA ? step_mn(k) : step_k(k, M)),
                                    operand_step(b, TB ? step_mn(k) : step_k(k, N)), i > 0 || k > 0);
            wgmma_commit();
            if (i > 0) {
                wgmma_wait<1>();
                release((now + STAGES - 1) % STAGES);
            }
            stage.next();
        }
        wgmma_wait<0>();
        hold(d);
        if (by_rows(PASS) || x.steps) release((stage.stage + STAGES - 1) % STAGES);
    }

    __device__ void scale(const tile &x)
    {
        const float by = *g.scale_a * *g.scale_b;
        if (x.steps == 0) return;
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] *= by;
    }
    // Of codes, all in the tensor core's accumulators.
    __device__ void matmuls_fast(const tile &x)
    {
        for (int i = 0; i < x.steps; i++) {
            const int now = stage.stage;
            mbar_wait(pipe::full(at, now), stage.parity);
            if (GATHER) fence_async();
            const uint64_t a = operand_k(a_smem::at(at, now) + wg * (A_BYTES / 2)), b = operand_k(b_smem::at(at, now));
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < K / 16; k++)
                wgmma_codes<N, PASS != FWD_F8>(d, operand_step(a, k * 32), operand_step(b, k * 32), i > 0 || k > 0);
            wgmma_commit();
            if (i > 0) {
                wgmma_wait<1>();
                release((now + STAGES - 1) % STAGES);
            }
            stage.next();
        }
        wgmma_wait<0>();
        hold(d);
        release((stage.stage + STAGES - 1) % STAGES);
    }
    // Of codes: a stage's sums of half of the columns, then of the others, each added to f32.
    __device__ void matmuls_promoted(const tile &x)
    {
        for (int i = 0; i < x.steps; i++) {
            mbar_wait(pipe::full(at, stage.stage), stage.parity);
            if (GATHER) fence_async();
            const uint64_t a = operand_k(a_smem::at(at, stage.stage) + wg * (A_BYTES / 2));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint64_t b = operand_k(b_smem::at(at, stage.stage) + half * (B_BYTES / 2));
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < K / 16; k++)
                    wgmma_codes<N / 2, PASS != FWD_F8>(part, operand_step(a, k * 32), operand_step(b, k * 32), k > 0);
                wgmma_commit();
                wgmma_wait<0>();
                hold(part);
                if (half == 1) release(stage.stage);
#pragma unroll
                for (int j = 0; j < N / 4; j++) {
                    float &sum = d[half * (N / 4) + j];
                    sum = i ? sum + part[j] : part[j];
                }
            }
            stage.next();
        }
    }

    // The same with a gathered A, which has a row per row of the sum: turned into registers, in which rows from `valid`
    // on, of others, are 0. Quarters of the columns take turns in two sets of accumulators: while one is added to f32
    // the matmuls of the next run.
    __device__ void matmuls_turned(const tile &x)
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] = 0;
        for (int i = 0; i < x.steps; i++) {
            mbar_wait(pipe::full(at, stage.stage), stage.parity);
            uint32_t a[K / 16][4];
#pragma unroll
            for (int k = 0; k < K / 16; k++)
                turned_codes(a[k], a_smem::at(at, stage.stage), k * 32, wg * 4 + warp);
            if (i) add_part(3); // the stage before
            const int valid = x.valid - i * depth_of(PASS);
            if (valid < depth_of(PASS)) mask(a, valid);
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                const uint64_t b = operand_k(b_smem::at(at, stage.stage) + quarter * (B_BYTES / 4));
                hold(a[0]), hold(a[1]), hold(a[2]), hold(a[3]);
                hold(parts[quarter % 2]);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < K / 16; k++)
                    wgmma_codes_rs<PASS == WGRAD_F8>(parts[quarter % 2], a[k], operand_step(b, k * 32), k > 0);
                wgmma_commit();
                if (quarter == 0) continue;
                wgmma_wait<1>();
                hold(parts[(quarter - 1) % 2]);
                add_part(quarter - 1);
            }
            wgmma_wait<0>();
            hold(parts[1]);
            release(stage.stage);
            stage.next();
        }
        if (x.steps) add_part(3);
    }
    __device__ void add_part(int quarter)
    {
#pragma unroll
        for (int j = 0; j < N / 8; j++) d[quarter * (N / 8) + j] += parts[quarter % 2][j];
    }
    __device__ void mask(uint32_t (&a)[K / 16][4], int valid) const
    {
#pragma unroll
        for (int k = 0; k < K / 16; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int here = valid - (k * 32 + j / 2 * 16 + lane % 4 * 4); // of four
                a[k][j] &= here >= 4 ? 0xffffffffu : here <= 0 ? 0 : (1u << 8 * here) - 1;
            }
    }

    // This warp's 16 rows of BF16, 64 columns at a time.
    __device__ void store_rows(const tile &x)
    {
        const int row = wg * 64 + warp * 16, limit = x.valid - row - lane / 4, columns = x.valid ? g.across : 0;
#pragma unroll
        for (int piece = 0; piece < N / SLAB_COLS; piece++) {
            if (x.column + piece * SLAB_COLS >= columns) break;
            const uint32_t to = out + piece % 2 * PIECE;
            if (lane == 0) bulk_wait_read<1>();
            __syncwarp();
#pragma unroll
            for (int k = 0; k < SLAB_COLS / 16; k++) {
                uint32_t r[4];
                pack_a(r, d, piece * 4 + k);
                for (int i = 0; i < 4; i++)
                    if (limit <= i % 2 * 8) r[i] = 0;
                store8x8x4(to + slab_offset(lane % 16, k * 16 + lane / 16 * 8), r[0], r[1], r[2], r[3]);
            }
            fence_async();
            __syncwarp();
            if (lane == 0) {
                tma_store(c, to, x.row + row, x.column / SLAB_COLS + piece);
                bulk_commit();
            }
        }
    }
    // The same in F32, 32 columns at a time; WGRAD^T: these are rows of C. If A is turned, neighbours there are rows of
    // d, and half of the threads have the other column first, for other banks.
    __device__ void store_weights(const tile &x)
    {
        enum { COLUMNS = 32 };
        const int row = wg * 64 + warp * 16;
        const bool some = x.steps > 0; // else d is not written
        if (x.row + row >= g.down || (g.add && !some)) return;
#pragma unroll
        for (int piece = 0; piece < N / COLUMNS; piece++) {
            if (x.column + piece * COLUMNS >= g.across) break;
            const uint32_t to = out + piece % 2 * PIECE;
            if (lane == 0) bulk_wait_read<1>();
            __syncwarp();
            if constexpr (TURNED && TRANS) {
                const int r = turned_row(lane / 4), right = lane / 8 % 2;
#pragma unroll
                for (int i = 0; i < COLUMNS / 8 * 4; i += 2) {
                    const int j = piece * 16 + i / 4 * 4, one = i / 2 % 2 ^ right;
                    const int column = i / 4 * 8 + lane % 4 * 2 + one;
                    const float low = one ? d[j + 1] : d[j], high = one ? d[j + 3] : d[j + 2];
                    const uint32_t where = to + column * 64 + ((r / 4 ^ (column / 2 & 3)) << 4) + r % 4 * 4;
                    asm volatile("st.shared.v2.f32 [%0], {%1,%2};\n" ::"r"(where), "f"(some ? low : 0.0f),
                                 "f"(some ? high : 0.0f)
                                 : "memory");
                }
            } else {
#pragma unroll
                for (int i = 0; i < COLUMNS / 8 * 4; i += 2) {
                    const int in = i / 2 % 2 * 8 + lane / 4, r = TURNED ? turned_row(in) : in,
                              column = i / 4 * 8 + lane % 4 * 2;
                    const float left = some ? d[piece * 16 + i] : 0.0f, right = some ? d[piece * 16 + i + 1] : 0.0f;
                    if (TRANS) { // 64-byte rows, 64-byte swizzle: column and column + 1 have the same
                        const uint32_t where = to + column * 64 + ((r / 4 ^ (column / 2 & 3)) << 4) + r % 4 * 4;
                        asm volatile("st.shared.f32 [%0], %1;\nst.shared.f32 [%0 + 64], %2;\n" ::"r"(where),
                                     "f"(left), "f"(right)
                                     : "memory");
                    } else {
                        const uint32_t where = to + r * SLAB_ROW + ((column / 4 ^ (r & 7)) << 4) + column % 4 * 4;
                        asm volatile("st.shared.v2.f32 [%0], {%1,%2};\n" ::"r"(where), "f"(left), "f"(right)
                                     : "memory");
                    }
                }
            }
            fence_async();
            __syncwarp();
            if (lane == 0) {
                const int c_row = x.expert * g.n + (TRANS ? x.column + piece * COLUMNS : x.row + row);
                const int slab = TRANS ? (x.row + row) / 16 : x.column / COLUMNS + piece;
                if (g.add) tma_add(c, to, c_row, slab);
                else tma_store(c, to, c_row, slab);
                bulk_commit();
            }
        }
    }

    __device__ void run(int rank)
    {
        const int pairs = pairs_of<PASS>(g);
        int expert = 0;
        for (int t = blockIdx.x / PAIR; t < pairs; t += gridDim.x / PAIR) {
            const tile x = tile_at<PASS>(g, t, rank, expert);
            expert = x.expert;
            if constexpr (!is_fp8(PASS)) matmuls(x);
            else if constexpr (TURNED) matmuls_turned(x);
            else if constexpr (PROMOTE) matmuls_promoted(x);
            else matmuls_fast(x);
            if constexpr (is_fp8(PASS)) scale(x);
            if (!by_rows(PASS)) store_weights(x);
            else store_rows(x);
        }
        if (lane == 0) bulk_wait<0>();
    }
};
#endif

template <int PASS, bool GATHER, bool PROMOTE>
__global__ void __launch_bounds__(THREADS, 1)
    expert_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const __grid_constant__ CUtensorMap c, const grouped g)
{
#ifdef TILE90
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int rank = pair_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            pipe::init(at, i, GATHER ? 1 + WARPGROUP : 1, 4 * CONSUMERS * PAIR);
        }
        mbar_init_done();
    }
    pair_sync();
    if (threadIdx.x < WARPGROUP) {
        registers_give<REGISTERS_LOAD>();
        load<PASS, GATHER>(&a, &b, g, rank, at);
    } else {
        registers_take<REGISTERS>();
        consumer<PASS, GATHER, PROMOTE>(&c, g, at).run(rank);
    }
    __syncwarp();
    pair_sync(); // the other block may still write to this block's memory
#endif
}

// ---- Launchers.

// tile_map_rows in F32, with slabs of `slab` columns: 32, or 16.
status map_f32(CUtensorMap *map, dev_stream s, const void *base, int64_t rows, int64_t cols, int box_rows, int slab)
{
    const auto encode = (PFN_cuTensorMapEncodeTiled_v12000)cuda_set(s)->tensor_map_encode;
    const cuuint64_t dims[3] = {(cuuint64_t)slab, (cuuint64_t)rows, (cuuint64_t)(cols / slab)};
    const cuuint64_t strides[2] = {(cuuint64_t)cols * 4, (cuuint64_t)slab * 4};
    const cuuint32_t box[3] = {(cuuint32_t)slab, (cuuint32_t)box_rows, 1}, steps[3] = {1, 1, 1};
    const CUresult got =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, (void *)(uintptr_t)base, dims, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, slab == 32 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (got != CUDA_SUCCESS)
        return FAIL(STATUS_INTERNAL, "a tensor map of %lld rows of %lld in F32: CUDA error %d", (long long)rows,
                    (long long)cols, (int)got);
    return STATUS_OK;
}

template <int PASS, bool GATHER> status queue(const struct expert_gemm_args *x, dev_stream s)
{
    CUtensorMap a = {}, b = {}, c = {};
    const int64_t weights = x->experts * x->n, rows = moe_rows_max(x->rows, x->top_k, x->experts, x->align);
    const void *in_a = PASS == WGRAD_T ? x->b.data : x->a.data, *in_b = PASS == WGRAD_T ? x->a.data : x->b.data;
    grouped g = {x->offsets, x->counts, x->source, (const __nv_bfloat16 *)in_a, 0, 0, (int)x->experts, (int)x->n,
                 0,          0,         0,         x->accum == ACCUM_ADD, NULL, NULL};
    g.share = (uint32_t)((((uint64_t)1 << 31) + (uint64_t)x->top_k - 1) / (uint64_t)x->top_k);
    if (by_rows(PASS)) {
        g.across = (int)(PASS == FWD ? x->n : x->k);
        g.depth = (int)(PASS == FWD ? x->k : x->n);
        g.chunks = g.depth / 8;
        if (!GATHER) TRY(tile_map_rows(&a, s, in_a, rows, g.depth, g.depth, M, 1));
        TRY(tile_map_rows(&b, s, in_b, weights, x->k, x->k, PASS == FWD ? N / 2 : K,
                          PASS == FWD ? 1 : N / 2 / SLAB_COLS));
        TRY(tile_map_rows(&c, s, x->c, rows, g.across, g.across, 16, 1));
    } else {
        g.down = (int)(PASS == WGRAD ? x->n : x->k);
        g.across = (int)(PASS == WGRAD ? x->k : x->n);
        g.chunks = g.down / 8;
        if (!GATHER) TRY(tile_map_rows(&a, s, in_a, rows, g.down, g.down, K, M / SLAB_COLS));
        TRY(tile_map_rows(&b, s, in_b, rows, g.across, g.across, K, N / 2 / SLAB_COLS));
        TRY(map_f32(&c, s, x->c, weights, x->k, PASS == WGRAD ? 16 : 32, PASS == WGRAD ? 32 : 16));
    }
    launch_pairs(expert_gemm_kernel<PASS, GATHER, false>, THREADS, BYTES, s, a, b, c, g);
    return cuda_set_launched(s, "expert_gemm (hopper)");
}

// The map of a matrix of codes.
status map_codes(CUtensorMap *map, dev_stream s, const struct operand &o, int64_t rows, int64_t cols, int box_rows)
{
    return tile_map_rows(map, s, o.data, rows, cols / 2, cols / 2, box_rows, 1);
}

template <int PASS, bool GATHER, bool PROMOTE> status queue_codes(const struct expert_gemm_args *x, dev_stream s)
{
    CUtensorMap a = {}, b = {}, c = {};
    const int64_t weights = x->experts * x->n, rows = moe_rows_max(x->rows, x->top_k, x->experts, x->align);
    const struct operand &in_a = PASS == WGRAD_T_F8 ? x->b : x->a, &in_b = PASS == WGRAD_T_F8 ? x->a : x->b;
    grouped g = {x->offsets, x->counts, x->source, (const __nv_bfloat16 *)in_a.data, 0, 0, (int)x->experts, (int)x->n,
                 0,          0,         0,         x->accum == ACCUM_ADD, x->a.scale, x->b.scale};
    g.share = (uint32_t)((((uint64_t)1 << 31) + (uint64_t)x->top_k - 1) / (uint64_t)x->top_k);
    if (by_rows(PASS)) {
        g.across = (int)(PASS == FWD_F8 ? x->n : x->k);
        g.depth = (int)(PASS == FWD_F8 ? x->k : x->n);
        g.chunks = g.depth / 16;
        if (!GATHER) TRY(map_codes(&a, s, x->a, rows, g.depth, M));
        const bool fwd = PASS == FWD_F8;
        TRY(map_codes(&b, s, x->b, fwd ? weights : x->k, fwd ? x->k : weights, N / 2));
        TRY(tile_map_rows(&c, s, x->c, rows, g.across, g.across, 16, 1));
    } else {
        const bool trans = PASS == WGRAD_T_F8;
        g.down = (int)(trans ? x->k : x->n);
        g.across = (int)(trans ? x->n : x->k);
        g.chunks = g.down / 16;
        if (!GATHER) TRY(map_codes(&a, s, in_a, rows / MOE_PANEL * g.down, MOE_PANEL, M));
        TRY(map_codes(&b, s, in_b, rows / MOE_PANEL * g.across, MOE_PANEL, N / 2));
        TRY(map_f32(&c, s, x->c, weights, x->k, trans ? 32 : 16, trans ? 16 : 32));
    }
    launch_pairs(expert_gemm_kernel<PASS, GATHER, PROMOTE>, THREADS, BYTES, s, a, b, c, g);
    return cuda_set_launched(s, "expert_gemm of codes (hopper)");
}

template <int PASS> status queue_rows(const struct expert_gemm_args *a, dev_stream s)
{
    const bool gather = a->gather != EXPERT_GATHER_NONE;
    if (a->fast_accum) return gather ? queue_codes<PASS, true, false>(a, s) : queue_codes<PASS, false, false>(a, s);
    return gather ? queue_codes<PASS, true, true>(a, s) : queue_codes<PASS, false, true>(a, s);
}

} // namespace

extern "C" status cuda_hopper_expert_gemm_fp8(const struct expert_gemm_args *a, dev_stream s)
{
    switch (a->pass) {
    case EXPERT_FWD: return queue_rows<FWD_F8>(a, s);
    case EXPERT_DGRAD: return queue_rows<DGRAD_F8>(a, s);
    default:
        if (a->gather == EXPERT_GATHER_B) return queue_codes<WGRAD_T_F8, true, true>(a, s);
        if (a->gather == EXPERT_GATHER_A) return queue_codes<WGRAD_F8, true, true>(a, s);
        return queue_codes<WGRAD_F8, false, true>(a, s);
    }
}

extern "C" status cuda_hopper_expert_gemm(const struct expert_gemm_args *a, dev_stream s)
{
    const bool gather = a->gather != EXPERT_GATHER_NONE;
    switch (a->pass) {
    case EXPERT_FWD: return gather ? queue<FWD, true>(a, s) : queue<FWD, false>(a, s);
    case EXPERT_DGRAD: return gather ? queue<DGRAD, true>(a, s) : queue<DGRAD, false>(a, s);
    default:
        if (a->gather == EXPERT_GATHER_B) return queue<WGRAD_T, true>(a, s);
        return gather ? queue<WGRAD, true>(a, s) : queue<WGRAD, false>(a, s);
    }
}
