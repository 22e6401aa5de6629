// GEMMs on Hopper with a fused epilogue, SwiGLU or RoPE: their result is not read again from memory.
//
//   dtypes       BF16 operands and results, f32 accumulators; SWIGLU_FWD_FP8: operands of E4M3 codes
//   tile         M 128 x N 256 x K 64 (128 codes); 3 stages
//   cluster      two blocks with tiles below each other: the same B, of which each loads half into both (multicast)
//   persistent   a cluster takes every gridDim.x / 2-th pair of tiles; concurrent pairs are neighbours in rows and
//                columns, so both operands come from L2
//
//   GEMM         A                    B                                         C
//   SWIGLU_FWD   x [rows][64 of d]    up.weight: 128 gates, 128 ups [64 of d]   gu [128 rows][128 gates, their ups],
//                                                                               m [128][128]
//   SWIGLU_FWD_FP8  the same, as codes    as codes                              gu; codes of m, and m unless they do
//   SWIGLU_BWD   dy [rows][64 of d]   down.weight [64 of d][256 of f]           dm [128 rows][256], from which dgu
//                                     and,
//                                                                               with gu, m
//   ROPE_FWD     x [rows][64 of d]    qkv.weight [64 of d]: 128 rows of first   qkv [128 rows][128 pairs of columns],
//                                     halves of heads, 128 of second halves     q and k rotated
//
//   warp 0            producer: one thread, TMA
//   warps 1 to 3      epilogue: read the tile as BF16 from shared memory and write to global memory, overlapped with
//                     the matmuls of the next tile
//   warpgroups 1, 2   64 rows each: m64n256k16 wgmma, 128 accumulators per thread, rounded into shared memory
//
// Between matmul and epilogue values are rounded to BF16 as if stored there, so every kernel that recomputes m has
// its bits.
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/sigmoid.cuh"
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/set.h"
#include "ops/fusion.h"
}

namespace {

enum fused { SWIGLU_FWD, SWIGLU_FWD_FP8, SWIGLU_BWD, ROPE_FWD };
template <fused P> constexpr bool reads_codes = P == SWIGLU_FWD_FP8;
enum { M = 128, N = 256, K = 64, PAIR = 2, STAGES = 3, CONSUMERS = 2, THREADS = WARPGROUP * (CONSUMERS + 1) };
enum { A_BYTES = M * K * 2, B_BYTES = N * K * 2, SLAB = M * SLAB_ROW, OUT_BYTES = N / SLAB_COLS * SLAB };
// epilogue warps; SWIGLU_BWD: pairs of rows of gu in flight per warp, bytes of a pair
enum { EPILOGUE_WARPS = 3, SLOTS = 3, SLOT = 2 * 2 * N * 2 };
using a_smem = smem_field<0, A_BYTES, STAGES>;
using b_smem = smem_field<a_smem::END, B_BYTES, STAGES>;
using out_smem = smem_field<b_smem::END, OUT_BYTES>;
using rows_smem = smem_field<out_smem::END, SLOT, EPILOGUE_WARPS * SLOTS>;
using pipe = pipeline<rows_smem::END, STAGES>;
using came_bars = smem_field<pipe::END, 8, EPILOGUE_WARPS * SLOTS>; // full, of each slot of rows_smem
enum { BYTES = came_bars::END };
static_assert(BYTES <= 232448, "shared memory");
// named barriers, of each consumer; their threads
enum { FILLED = 1, DRAINED = FILLED + CONSUMERS, BOTH = WARPGROUP + EPILOGUE_WARPS * WARP };

struct problem {
    __nv_bfloat16 *gu, *dgu, *m; // [rows][2 f], [rows][f]
    int rows, f, steps;          // ROPE_FWD: f pairs of columns, in qkv as gu; steps of K
    int down, across, group;     // pairs of tiles down and across; down to `group`, then across
    int half, rotated;           // ROPE_FWD: hd / 2; pairs of columns of q and k
    const int *positions;        // [rows]
    const float *cos, *sin;      // [positions, half]
    const float *scale_a, *scale_b; // of codes
    code_out codes;                 // of m; without a transpose
};

#ifdef TILE90

struct place { int row, column; }; // of C: column of f

template <fused P> __device__ inline place tile_at(const problem &p, int t, int rank)
{
    const int whole = p.group * p.across, first = t / whole * p.group, here = min(p.group, p.down - first),
              in = t % whole;
    return {((first + in % here) * PAIR + rank) * M, in / here * (P == SWIGLU_BWD ? N : N / 2)};
}

template <fused P>
__device__ inline void load(const CUtensorMap *a, const CUtensorMap *b, const problem &p, int rank, uint32_t at)
{
    pipeline_state<STAGES> s;
    for (int t = blockIdx.x / PAIR; t < p.down * p.across; t += gridDim.x / PAIR) {
        const place x = tile_at<P>(p, t, rank);
        const int row = rank ? p.f + x.column : x.column; // FWD: this block's half of B
        const int slab = x.column / SLAB_COLS + rank * (N / 2 / SLAB_COLS);
        for (int i = 0; i < p.steps; i++, s.next()) {
            const uint32_t full = pipe::full(at, s.stage);
            const uint32_t b_to = b_smem::at(at, s.stage) + rank * (B_BYTES / 2);
            pipe::producer_acquire(at, s);
            mbar_arrive_expect(full, A_BYTES + B_BYTES);
            tma_load(a_smem::at(at, s.stage), a, full, x.row, i);
            if (P == SWIGLU_FWD || P == SWIGLU_FWD_FP8) tma_load_both(b_to, b, full, row, i);
            else if (P == ROPE_FWD) tma_load_both(b_to, b, full, rank * p.half, x.column / p.half, i);
            else tma_load_both(b_to, b, full, i * K, slab);
        }
    }
}

template <fused P> __device__ inline void consume(const problem &p, uint32_t at)
{
    const int wg = threadIdx.x / WARPGROUP - 1, warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP;
    const uint32_t to = out_smem::at(at) + (wg * 64 + warp * 16) * SLAB_ROW;
    pipeline_state<STAGES> s;
    float d[N / 2];
    const float scale = reads_codes<P> ? *p.scale_a * *p.scale_b : 1.f; // a power of two
    for (int t = blockIdx.x / PAIR; t < p.down * p.across; t += gridDim.x / PAIR) {
        for (int i = 0; i < p.steps; i++) {
            const int now = s.stage;
            const uint32_t b_at = b_smem::at(at, now);
            mbar_wait(pipe::full(at, now), s.parity);
            const uint64_t a = operand_k(a_smem::at(at, now) + wg * (A_BYTES / 2));
            const uint64_t b = P == SWIGLU_BWD ? operand_mn(b_at, K * SLAB_ROW) : operand_k(b_at);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < K / 16; k++) {
                if constexpr (reads_codes<P>)
                    wgmma_codes<N>(d, operand_step(a, k * 32), operand_step(b, k * 32), i > 0 || k > 0);
                else
                    wgmma_ss<N, 0, P == SWIGLU_BWD>(d, operand_step(a, k * 32),
                                                    operand_step(b, P == SWIGLU_BWD ? step_mn(k) : k * 32),
                                                    i > 0 || k > 0);
            }
            wgmma_commit();
            if (i > 0) {
                wgmma_wait<1>();
                mbar_arrive_both(pipe::empty(at, (now + STAGES - 1) % STAGES)); // both producers may write there
            }
            s.next();
        }
        wgmma_wait<0>();
        hold(d);
        mbar_arrive_both(pipe::empty(at, (s.stage + STAGES - 1) % STAGES));
        if constexpr (reads_codes<P>) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) d[i] *= scale;
        }
        named_sync(DRAINED + wg, BOTH);
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            uint32_t r[4];
            pack_a(r, d, k);
            store8x8x4(to + k / 4 * SLAB + slab_offset(lane % 16, k % 4 * 16 + lane / 16 * 8), r[0], r[1], r[2], r[3]);
        }
        named_arrive(FILLED + wg, BOTH);
    }
}

// ---- Epilogue of a tile: 8 columns of a row at a time.

__device__ inline int4 shared_load16(uint32_t from)
{
    int4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}
typedef vec<__nv_bfloat16, 8> eight;
__device__ inline eight as_eight(const int4 &x) { return *reinterpret_cast<const eight *>(&x); }

// No branch here: it would let loads move behind it.
__device__ inline void store_if(bool is, __nv_bfloat16 *to, const eight &x)
{
    const int4 &v = reinterpret_cast<const int4 &>(x);
    asm volatile(
        "{\n.reg .pred is;\nsetp.ne.s32 is, %0, 0;\n@is st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}\n" ::"r"((int)is),
        "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

__device__ inline void store_if(bool is, uint8_t *to, const codes_vec<8> &c)
{
    asm volatile("{\n.reg .pred is;\nsetp.ne.s32 is, %0, 0;\n@is st.global.v2.b32 [%1], {%2, %3};\n}\n" ::"r"((int)is),
                 "l"(to), "r"(c.v[0]), "r"(c.v[1])
                 : "memory");
}
__device__ inline void amax_if(bool is, amax_of<__nv_bfloat16> &amax, const eight &x)
{
    const uint32_t *words = reinterpret_cast<const uint32_t *>(&x);
#pragma unroll
    for (int j = 0; j < 4; j++) amax.most = __vmaxu2(amax.most, is ? words[j] & 0x7fff7fffu : 0u);
}

// 64 rows of 128 gates and their ups. Warps alternate in steps of ROWS rows, UNROLL steps at a time.
template <fused P>
__device__ inline void epilogue_swiglu_fwd(const problem &p, const place &x, uint32_t at, int wg,
                                           amax_of<__nv_bfloat16> &amax)
{
    enum { CHUNKS = N / 2 / 8, ROWS = WARP / CHUNKS, STEP = EPILOGUE_WARPS * ROWS, UNROLL = 4 };
    const int warp = threadIdx.x / WARP - 1, lane = threadIdx.x % WARP, chunk = lane % CHUNKS,
              column = x.column + chunk * 8;
    const uint32_t slab = out_smem::at(at) + chunk / 8 * SLAB;
    const float scale = P == SWIGLU_FWD_FP8 ? *p.codes.scale : 1.f;
    for (int i = warp * ROWS + lane / CHUNKS; i < 64; i += UNROLL * STEP) {
        eight gate[UNROLL], up[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) { // past the last row: values are loaded and not used
            const uint32_t from = slab + slab_offset(min(wg * 64 + i + k * STEP, M - 1), chunk % 8 * 8);
            gate[k] = as_eight(shared_load16(from));
            up[k] = as_eight(shared_load16(from + N / 2 / SLAB_COLS * SLAB));
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t row = x.row + wg * 64 + i + k * STEP;
            const bool is = i + k * STEP < 64 && row < p.rows && column < p.f;
            __nv_bfloat16 *to = p.gu + row * 2 * p.f + column;
            float g[8], u[8];
            widen(gate[k], g);
            widen(up[k], u);
            for (int j = 0; j < 8; j++) u[j] = swiglu<__nv_bfloat16>(g[j], u[j]);
            const eight m = narrow<__nv_bfloat16>(u);
            store_if(is, to, gate[k]);
            store_if(is, to + p.f, up[k]);
            store_if(is && (P == SWIGLU_FWD || p.m), p.m + row * p.f + column, m);
            if constexpr (P == SWIGLU_FWD_FP8) {
                amax_if(is, amax, m);
                store_if(is, p.codes.codes + row * p.f + column, codes_of(m, scale, false));
            }
        }
    }
}

// 64 rows of 128 pairs of columns, in the order of epilogue_swiglu_fwd.
__device__ inline void epilogue_rope(const problem &p, const place &x, uint32_t at, int wg)
{
    enum { CHUNKS = N / 2 / 8, ROWS = WARP / CHUNKS, STEP = EPILOGUE_WARPS * ROWS, UNROLL = 4 };
    const int warp = threadIdx.x / WARP - 1, lane = threadIdx.x % WARP, chunk = lane % CHUNKS,
              column = x.column + chunk * 8;
    const int head = column / p.half, in = column % p.half;
    const bool rotated = column < p.rotated;
    const uint32_t slab = out_smem::at(at) + chunk / 8 * SLAB;
    for (int i = warp * ROWS + lane / CHUNKS; i < 64; i += UNROLL * STEP) {
        eight first[UNROLL], second[UNROLL];
        int position[UNROLL];
        float4 c[UNROLL][2], s[UNROLL][2];
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            position[k] = rotated ? __ldg(p.positions + min(x.row + wg * 64 + i + k * STEP, p.rows - 1)) : 0;
#pragma unroll
        for (int k = 0; k < UNROLL; k++) { // past the last row: values are loaded and not used
            const uint32_t from = slab + slab_offset(min(wg * 64 + i + k * STEP, M - 1), chunk % 8 * 8);
            first[k] = as_eight(shared_load16(from));
            second[k] = as_eight(shared_load16(from + N / 2 / SLAB_COLS * SLAB));
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const int64_t angle = (int64_t)position[k] * p.half + in + q * 4;
                if (rotated)
                    c[k][q] = __ldg((const float4 *)(p.cos + angle)), s[k][q] = __ldg((const float4 *)(p.sin + angle));
            }
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t row = x.row + wg * 64 + i + k * STEP;
            const bool is = i + k * STEP < 64 && row < p.rows && column < p.f;
            __nv_bfloat16 *to = p.gu + row * 2 * p.f + head * 2 * p.half + in;
            float fx[8], fy[8];
            widen(first[k], fx);
            widen(second[k], fy);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float u = fx[j], v = fy[j], cosine = (&c[k][j / 4].x)[j % 4], sine = (&s[k][j / 4].x)[j % 4];
                fx[j] = rotated ? u * cosine - v * sine : u;
                fy[j] = rotated ? v * cosine + u * sine : v;
            }
            store_if(is, to, narrow<__nv_bfloat16>(fx));
            store_if(is, to + p.half, narrow<__nv_bfloat16>(fy));
        }
    }
}

// The pairs of rows of a warp, in order: every third pair of each tile, as far as rows exist. t past the last tile:
// none left.
struct walk {
    const problem &p;
    int rank, t, in;
    place x;
    __device__ walk(const problem &p_, int rank_)
        : p(p_), rank(rank_), t(blockIdx.x / PAIR), in(2 * (threadIdx.x / WARP - 1 - EPILOGUE_WARPS))
    {
        if (more()) x = tile_at<SWIGLU_BWD>(p, t, rank);
        next();
    }
    __device__ bool more() const { return t < p.down * p.across; }
    __device__ void next()
    {
        in += 2 * EPILOGUE_WARPS;
        while (more() && (in >= M || x.row + in >= p.rows)) {
            t += gridDim.x / PAIR, in = 2 * (threadIdx.x / WARP - 1);
            if (more()) x = tile_at<SWIGLU_BWD>(p, t, rank);
        }
    }
};

// Prefetches their gates and ups: slabs of 64 columns, 2 rows each.
__device__ inline void ask(const walk &w, const CUtensorMap *gu, uint32_t at, const pipeline_state<SLOTS> &slot)
{
    const int own = (threadIdx.x / WARP - 1) * SLOTS + slot.stage;
    if (!w.more() || !one_lane()) return;
    mbar_arrive_expect(came_bars::at(at, own), SLOT);
    // the map's heads are rows
    tma_load_heads(rows_smem::at(at, own), gu, came_bars::at(at, own), w.x.column / SLAB_COLS, w.x.row + w.in);
}

// The rows of `wg` in one tile. Each warp has its own ring of slots; `ahead` comes next. The operands of a step are
// loaded one step ahead.
__device__ inline void epilogue_swiglu_bwd(const problem &p, const CUtensorMap *gu, const place &x, uint32_t at, int wg,
                               walk &ahead, pipeline_state<SLOTS> &slot)
{
    const int warp = threadIdx.x / WARP - 1, chunk = threadIdx.x % WARP, column = x.column + chunk * 8;
    const uint32_t slab = out_smem::at(at) + chunk / 8 * SLAB;
    const int end = min((wg + 1) * 64, p.rows - x.row); // of the rows here
    struct { eight gate[2], up[2], dm[2]; } now, next;
    pipeline_state<SLOTS> coming = slot;
    auto fetch = [&](int in) {
        const int own = warp * SLOTS + coming.stage;
        const uint32_t from = rows_smem::at(at, own);
        mbar_wait(came_bars::at(at, own), coming.parity);
        coming.next();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            next.gate[i] = as_eight(shared_load16(from + slab_offset(chunk / 8 * 2 + i, chunk % 8 * 8)));
            next.up[i] = as_eight(shared_load16(from + SLOT / 2 + slab_offset(chunk / 8 * 2 + i, chunk % 8 * 8)));
            next.dm[i] = as_eight(shared_load16(slab + slab_offset(in + i, chunk % 8 * 8)));
        }
    };
    // a warp's rows continue from one half of the tile to the next: the first of them in this half
    int in = 2 * (warp + (wg * 32 - warp + EPILOGUE_WARPS - 1) / EPILOGUE_WARPS * EPILOGUE_WARPS);
    if (in < end) fetch(in);
    for (; in < end; in += 2 * EPILOGUE_WARPS) {
        now = next;
        if (in + 2 * EPILOGUE_WARPS < end) fetch(in + 2 * EPILOGUE_WARPS);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t row = x.row + in + i;
            const bool is = column < p.f && row < p.rows;
            __nv_bfloat16 *to = p.dgu + row * 2 * p.f + column;
            float g[8], u[8], m[8];
            widen(now.gate[i], g);
            widen(now.up[i], u);
            widen(now.dm[i], m);
            for (int j = 0; j < 8; j++) m[j] = swiglu_back<__nv_bfloat16>(m[j], g[j], u[j]);
            store_if(is, p.m + row * p.f + column, narrow<__nv_bfloat16>(m));
            store_if(is, to, narrow<__nv_bfloat16>(g));
            store_if(is, to + p.f, narrow<__nv_bfloat16>(u));
        }
        __syncwarp(); // all lanes have read this step's slot, since they have stored its results
        ask(ahead, gu, at, slot);
        ahead.next();
        slot.next();
    }
}

template <fused P> __device__ inline void epilogue(const problem &p, const CUtensorMap *gu, int rank, uint32_t at)
{
    walk ahead(p, rank);
    pipeline_state<SLOTS> slot;
    for (int wg = 0; wg < CONSUMERS; wg++) named_arrive(DRAINED + wg, BOTH);
    for (int i = 0; i < SLOTS && P == SWIGLU_BWD; i++, slot.next(), ahead.next()) ask(ahead, gu, at, slot);
    slot = pipeline_state<SLOTS>();
    amax_of<__nv_bfloat16> amax;
    for (int t = blockIdx.x / PAIR; t < p.down * p.across; t += gridDim.x / PAIR) {
        const place x = tile_at<P>(p, t, rank);
        const bool last = t + (int)gridDim.x / PAIR >= p.down * p.across;
        for (int wg = 0; wg < CONSUMERS; wg++) {
            named_sync(FILLED + wg, BOTH);
            if (P == SWIGLU_FWD || P == SWIGLU_FWD_FP8) epilogue_swiglu_fwd<P>(p, x, at, wg, amax);
            else if (P == ROPE_FWD) epilogue_rope(p, x, at, wg);
            else epilogue_swiglu_bwd(p, gu, x, at, wg, ahead, slot);
            __syncwarp();
            if (!last) named_arrive(DRAINED + wg, BOTH);
        }
    }
    if (P == SWIGLU_FWD_FP8) amax_store_warp(amax.bits(), p.codes.amax);
}
#endif

template <fused P>
__global__ void __launch_bounds__(THREADS, 1)
    ended_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      const __grid_constant__ CUtensorMap gu, const problem p)
{
#ifdef TILE90
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int rank = pair_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            pipe::init(at, i, 1, 4 * CONSUMERS * PAIR);
        }
        for (int i = 0; i < EPILOGUE_WARPS * SLOTS; i++) mbar_init(came_bars::at(at, i), 1);
        mbar_init_done();
    }
    pair_sync();
    if (threadIdx.x >= WARPGROUP) consume<P>(p, at);
    else if (threadIdx.x >= WARP) epilogue<P>(p, &gu, rank, at);
    else if (threadIdx.x == 0) load<P>(&a, &b, p, rank, at);
    __syncwarp();
    pair_sync(); // the other block may still write to this block's memory
#endif
}

// Pairs of tiles that run below each other: 8 to 16 are equal, 4 and 32 are 1 to 5 % slower (H200).
enum { GROUP = 8 };

template <fused P>
status queue(const CUtensorMap &a, const CUtensorMap &b, const CUtensorMap &gu, problem &p, int64_t rows, int64_t f,
             int64_t d, const char *name, dev_stream s)
{
    const int width = P == SWIGLU_BWD ? N : N / 2;
    p.rows = (int)rows, p.f = (int)f, p.steps = (int)(d / (reads_codes<P> ? 2 * K : K));
    p.down = (p.rows + PAIR * M - 1) / (PAIR * M), p.across = (p.f + width - 1) / width, p.group = GROUP;
    launch_pairs(ended_gemm_kernel<P>, THREADS, BYTES, s, a, b, gu, p);
    return cuda_set_launched(s, name);
}

// The GEMM as the kernels see it: rows x d, with a weight of 2 f or d rows.
template <fused P>
status queue_swiglu(const CUtensorMap &a, const CUtensorMap &b, const CUtensorMap &gu, const struct gemm_args *g,
                    dev_stream s)
{
    const struct epilogue_swiglu &x = g->epilogue.swiglu;
    problem p = {};
    p.gu = (__nv_bfloat16 *)(P == SWIGLU_BWD ? const_cast<void *>(x.gu) : g->c), p.dgu = (__nv_bfloat16 *)x.dgu,
    p.m = (__nv_bfloat16 *)(P == SWIGLU_FWD_FP8 && x.q.only ? NULL : x.act);
    if (reads_codes<P>) p.scale_a = g->a.scale, p.scale_b = g->b.scale;
    if (reads_codes<P>) p.codes = code_out_of(&x.q, g->m, g->n / 2, "swiglu");
    return queue<P>(a, b, gu, p, g->m, P == SWIGLU_BWD ? g->n : g->n / 2, g->k, "swiglu_gemm", s);
}

status swiglu_fwd(const struct gemm_args *g, dev_stream s)
{
    CUtensorMap a = {}, b = {}, none = {};
    TRY(tile_map_rows(&a, s, g->a.data, g->m, g->k, g->k, M, 1));
    TRY(tile_map_rows(&b, s, g->b.data, g->n, g->k, g->k, N / 2, 1));
    return queue_swiglu<SWIGLU_FWD>(a, b, none, g, s);
}

// Two codes for one bf16: the maps, the tiles and the steps in bytes are those of swiglu_fwd.
status swiglu_fwd_fp8(const struct gemm_args *g, dev_stream s)
{
    CUtensorMap a = {}, b = {}, none = {};
    TRY(tile_map_rows(&a, s, g->a.data, g->m, g->k / 2, g->k / 2, M, 1));
    TRY(tile_map_rows(&b, s, g->b.data, g->n, g->k / 2, g->k / 2, N / 2, 1));
    return queue_swiglu<SWIGLU_FWD_FP8>(a, b, none, g, s);
}

status swiglu_bwd(const struct gemm_args *g, dev_stream s)
{
    CUtensorMap a = {}, b = {}, gu = {};
    const cuuint64_t rows = (cuuint64_t)g->m, f = (cuuint64_t)g->n;
    TRY(tile_map_rows(&a, s, g->a.data, g->m, g->k, g->k, M, 1));
    TRY(tile_map_rows(&b, s, g->b.data, g->k, g->n, g->n, K, N / 2 / SLAB_COLS));
    TRY(tile_map<4>(&gu, s, g->epilogue.swiglu.gu, {SLAB_COLS, rows, f / SLAB_COLS, 2 /* gates, ups */},
                    {f * 4, SLAB_ROW, f * 2}, {SLAB_COLS, 2, N / SLAB_COLS, 2}));
    return queue_swiglu<SWIGLU_BWD>(a, b, gu, g, s);
}

// qkv.weight as [heads][hd rows][d]: a box is half the rows of as many heads as give N / 2 rows.
status rope(const struct gemm_args *g, dev_stream s)
{
    const struct epilogue_rope &x = g->epilogue.rope;
    const cuuint64_t hd = (cuuint64_t)x.head_dim, d = (cuuint64_t)g->k, heads = (cuuint64_t)(x.heads + 2 * x.heads_kv);
    const int half = (int)x.head_dim / 2;
    CUtensorMap a = {}, b = {}, none = {};
    problem p = {};
    TRY(tile_map_rows(&a, s, g->a.data, g->m, g->k, g->k, M, 1));
    TRY(tile_map<4>(&b, s, g->b.data, {SLAB_COLS, hd, heads, d / SLAB_COLS}, {d * 2, hd * d * 2, SLAB_ROW},
                    {SLAB_COLS, (cuuint32_t)half, (cuuint32_t)(N / 2 / half), 1}));
    p.gu = (__nv_bfloat16 *)g->c;
    p.half = half, p.rotated = (int)(x.heads + x.heads_kv) * half;
    p.positions = x.rotation.positions, p.cos = (const float *)x.rotation.cos, p.sin = (const float *)x.rotation.sin;
    return queue<ROPE_FWD>(a, b, none, p, g->m, (int64_t)heads * half, g->k, "rope_gemm", s);
}

bool aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

// BF16 without scales, or E4M3 codes; whole tiles along K.
bool types_fit(const struct gemm_args *g)
{
    if (gemm_fp8(g)) return g->a.dt == DTYPE_F8_E4M3 && g->b.dt == DTYPE_F8_E4M3 && g->k % (2 * K) == 0;
    return gemm_dt(g) == DTYPE_BF16 && g->k % K == 0;
}
// Requirements of all: Hopper, 31-bit sizes, aligned operands.
bool operands_fit(const struct gemm_args *g, dev_stream s)
{
    const struct cuda_set *set = cuda_set(s);
    return types_fit(g) && set->sm / 10 == 9 && set->tensor_map_encode && g->m < INT32_MAX && g->k < INT32_MAX &&
           aligned(g->a.data) && aligned(g->b.data) && aligned(g->c);
}
// The FP8 form of m: codes, without a transpose.
bool codes_fit(const struct gemm_args *g)
{
    const struct quantized &q = g->epilogue.swiglu.q;
    return gemm_fp8(g) ? q.codes && !q.codes_t && q.dt == DTYPE_F8_E4M3 && aligned(q.codes) : !quantized_any(&q);
}

bool swiglu_fits(const struct gemm_args *g, int64_t f)
{
    const struct epilogue_swiglu &x = g->epilogue.swiglu;
    return f % SLAB_COLS == 0 && 2 * f < INT32_MAX && aligned(x.gu) && aligned(x.dgu) && aligned(x.act);
}

bool rope_fits(const struct gemm_args *g)
{
    const struct epilogue_rope &x = g->epilogue.rope;
    return (x.head_dim == 64 || x.head_dim == 128) && g->n < INT32_MAX && aligned(x.rotation.cos) &&
           aligned(x.rotation.sin);
}

} // namespace

extern "C" bool cuda_gemm_fused_supports(const struct gemm_args *g, dev_stream s)
{
    switch (g->epilogue.kind) {
    case EPILOGUE_SWIGLU_FWD:
        return fusion_swiglu_fwd(g->m, g->k) && operands_fit(g, s) && swiglu_fits(g, g->n / 2) && codes_fit(g);
    case EPILOGUE_SWIGLU_BWD:
        return !gemm_fp8(g) && fusion_swiglu_bwd(g->m, g->k) && operands_fit(g, s) && swiglu_fits(g, g->n);
    case EPILOGUE_ROPE: return !gemm_fp8(g) && fusion_rope_fwd(g->m, g->k) && operands_fit(g, s) && rope_fits(g);
    case EPILOGUE_NONE:
    case EPILOGUE_BIAS:
    case EPILOGUE_ADD: break;
    }
    return false;
}

extern "C" status cuda_gemm_fused(const struct gemm_args *g, dev_stream s)
{
    CHECK(!gemm_fp8(g) || g->epilogue.kind == EPILOGUE_SWIGLU_FWD, "an epilogue of BF16 alone with FP8 operands");
    switch (g->epilogue.kind) {
    case EPILOGUE_SWIGLU_FWD: return gemm_fp8(g) ? swiglu_fwd_fp8(g, s) : swiglu_fwd(g, s);
    case EPILOGUE_SWIGLU_BWD: return swiglu_bwd(g, s);
    case EPILOGUE_ROPE: return rope(g, s);
    case EPILOGUE_NONE:
    case EPILOGUE_BIAS:
    case EPILOGUE_ADD: break;
    }
    return FAIL(STATUS_INTERNAL, "an epilogue without a kernel: %d", (int)g->epilogue.kind);
}
