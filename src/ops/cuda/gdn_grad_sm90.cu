// The gated delta rule on Hopper: gradients, parallel over chunks (gdn_delta_sm90.cuh). Persistent blocks, one per
// multiprocessor.
//
//   work item   a block of 64 rows and a key head: the chunks that begin there, and for each the value heads
//   producer    one warp: halves of dv of each (chunk, value head), two stages; tiles of Q and K
//   queries     warpgroup: E = dO D^T, Y D^T, D Y^T, dO S^T, Q K^T, K K^T;  dQ;  G + G^T, for the other;  <S, dS>
//   keys        warpgroup: E^T = D dO^T, D dS^T, Y S^T, K Q^T;  dK;  dV and <Y, V>
//
// Sums over dv run over both stages. E and its transpose take a matmul each: in registers each is operand A of the
// next matmul. Value heads of one key head add to the result of the one before in global memory, each thread its
// own values.
#include "ops/cuda/gdn_delta_sm90.cuh"

enum { GRAD_STAGES = 2, GRAD_THREADS = 3 * WARPGROUP, GRAD_WARPS = 8 };
enum {
    GRAD_O = 0,
    GRAD_D = SLAB,
    GRAD_Y = 2 * SLAB,
    GRAD_V = 3 * SLAB,
    GRAD_S = 4 * SLAB,
    GRAD_DS = 6 * SLAB,
    GRAD_STAGE = 8 * SLAB
};
enum {
    GRAD_QK = GRAD_STAGES * GRAD_STAGE,
    GRAD_G = GRAD_QK + 2 * 2 * TILE,
    GRAD_F = GRAD_G + SLAB,
    GRAD_SUMS = GRAD_F + 2 * FACTORS
};
// [64] floats each, twice
enum { SUM_A, SUM_N, SUM_NB, SUM_YV, SUM_MCOL, SUM_KD, SUM_KS, SUM_SDS, SUM_META, SUM_COUNT };
enum { GRAD_META = GRAD_SUMS + 2 * SUM_COUNT * CHUNK * 4, GRAD_BARS = GRAD_META + 32, GRAD_BYTES = GRAD_BARS + 8 * 16 };
enum { GRAD_REGISTERS = 240, GRAD_GIVEN = 3 * 168 - 2 * GRAD_REGISTERS };
enum { BAR_G_READY = 1, BAR_G_FREE, BAR_BOTH }; // named barriers

struct grad_args {
    delta_docs docs;
    delta_memory_map m;
    __nv_bfloat16 *dq, *dk, *dv;
    float *dg, *dbeta;
    int64_t dq_stride, dk_stride, dv_stride;
    int items, normalize;
    float scale;
};
struct grad_meta { int row, len, head_k, pad; };

#ifdef TILE90

struct grad_shared {
    unsigned char *shared;
    uint32_t at;
    __device__ uint32_t bar(int i) const { return at + GRAD_BARS + 8 * i; }
    __device__ uint32_t full(int i) const { return bar(i); }
    __device__ uint32_t empty(int i) const { return bar(2 + i); }
    __device__ uint32_t qk_full(int i) const { return bar(4 + i); }
    __device__ uint32_t qk_empty(int i) const { return bar(6 + i); }
    __device__ uint32_t f_full(int i) const { return bar(8 + i); }
    __device__ uint32_t f_empty(int i) const { return bar(10 + i); }
    __device__ uint32_t sums_full(int i) const { return bar(12 + i); }
    __device__ uint32_t sums_empty(int i) const { return bar(14 + i); }
    __device__ grad_meta *meta() const { return (grad_meta *)(shared + GRAD_META); }
    __device__ float *sums(int parity, int which) const
    {
        return (float *)(shared + GRAD_SUMS) + (parity * SUM_COUNT + which) * CHUNK;
    }
};

// ---- Producer: one thread.

__device__ inline void grad_produce(const grad_args &a, const grad_shared sh, const CUtensorMap *q,
                                    const CUtensorMap *k, const CUtensorMap *v, const CUtensorMap *o)
{
    pipeline_state<GRAD_STAGES> st;
    pipeline_state<2> qk, f;
    for (int item = blockIdx.x; item < a.items; item += gridDim.x) {
        const int block = item / a.docs.heads_k, head_k = item % a.docs.heads_k;
        delta_walk walk(a.docs, a.m.first_doc, block);
        for (delta_chunk c; walk.next(c); qk.next()) {
            const uint32_t to = sh.at + GRAD_QK + qk.stage * (2 * TILE);
            mbar_wait(sh.qk_empty(qk.stage), qk.parity ^ 1);
            sh.meta()[qk.stage] = {c.row, c.len, head_k, 0};
            mbar_arrive_expect(sh.qk_full(qk.stage), 2 * TILE);
            tma_load(to, q, sh.qk_full(qk.stage), c.row, head_k * 2);
            tma_load(to + TILE, k, sh.qk_full(qk.stage), c.row, head_k * 2);
            for (int h = head_k * a.docs.group; h < (head_k + 1) * a.docs.group; h++, f.next()) {
                mbar_wait(sh.f_empty(f.stage), f.parity ^ 1);
                mbar_arrive_expect(sh.f_full(f.stage), c.len * 32);
                bulk_load(sh.at + GRAD_F + f.stage * FACTORS, a.m.factors + (int64_t)h * a.docs.rows + c.row,
                          c.len * 32, sh.f_full(f.stage));
                for (int half = 0; half < 2; half++, st.next()) {
                    const uint32_t stage = sh.at + st.stage * GRAD_STAGE, bar = sh.full(st.stage);
                    const int64_t rows_at = half_image(a.docs, h, half, c.row);
                    mbar_wait(sh.empty(st.stage), st.parity ^ 1);
                    mbar_arrive_expect(bar, 2 * SLAB + 2 * STATE_HALF + c.len * (2 * SLAB_ROW));
                    tma_load(stage + GRAD_O, o, bar, c.row, h * 2 + half);
                    bulk_load(stage + GRAD_D, a.m.d + rows_at, c.len * SLAB_ROW, bar);
                    bulk_load(stage + GRAD_Y, a.m.y + rows_at, c.len * SLAB_ROW, bar);
                    bulk_load(stage + GRAD_S, c.first ? a.m.zero : a.m.s + state_image(a.docs, h, half, c.row),
                              STATE_HALF, bar);
                    bulk_load(stage + GRAD_DS, c.last ? a.m.zero : a.m.ds + state_image(a.docs, h, half, c.row + CHUNK),
                              STATE_HALF, bar);
                    tma_load(stage + GRAD_V, v, bar, c.row, h * 2 + half);
                }
            }
        }
    }
    mbar_wait(sh.qk_empty(qk.stage), qk.parity ^ 1);
    sh.meta()[qk.stage].row = -1;
    mbar_arrive(sh.qk_full(qk.stage));
}

// ---- Used by both warpgroups.

// Sum over the four lanes that share a row of an accumulator.
__device__ inline float row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

struct grad_group {
    const grad_args &a;
    const grad_shared sh;
    int thread, warp, lane;
    int mine; // the first of this thread's two rows; the other is 8 further on
    pipeline_state<GRAD_STAGES> st;
    pipeline_state<2> qk, f, sums;
    int row, len, head_k, h; // of the chunk; h: the value head

    __device__ grad_group(const grad_args &a_, const grad_shared &sh_)
        : a(a_), sh(sh_), thread(threadIdx.x % WARPGROUP), warp(thread / WARP), lane(thread % WARP),
          mine(acc_row(thread, 0))
    {
    }
    __device__ uint32_t q_at() const { return sh.at + GRAD_QK + qk.stage * (2 * TILE); }
    __device__ uint32_t k_at() const { return q_at() + TILE; }
    __device__ uint32_t stage_at() const { return sh.at + st.stage * GRAD_STAGE; }
    __device__ uint32_t f_at() const { return sh.at + GRAD_F + f.stage * FACTORS; }
    __device__ float *sum(int which) const { return sh.sums(sums.stage, which); }
    __device__ void release(uint32_t bar) const
    {
        __syncwarp();
        if (lane == 0) mbar_arrive(bar);
    }
    __device__ bool chunk_wait()
    {
        mbar_wait(sh.qk_full(qk.stage), qk.parity);
        const grad_meta c = sh.meta()[qk.stage];
        row = c.row;
        len = c.len;
        head_k = c.head_k;
        return row >= 0;
    }
    // For missing rows of a short chunk: zeros in Q and K with the first value head; factors 0 except the last
    // row's c, so no decay is infinite.
    __device__ void factors_wait()
    {
        mbar_wait(sh.f_full(f.stage), f.parity);
        if (len < CHUNK) {
            const int all = threadIdx.x - WARPGROUP, threads = 2 * WARPGROUP;
            if (h == head_k * a.docs.group) clear_rows(q_at(), 4, len, all, threads);
            const float last = shared_float4(f_at() + (len - 1) * 32 + 16).x;
            if (all < CHUNK * 2 && all / 2 >= len)
                asm volatile("st.shared.v4.f32 [%0], {%1,%2,%2,%2};\n" ::"r"(f_at() + all * 16),
                             "f"(all % 2 ? last : 0.0f), "f"(0.0f)
                             : "memory");
            fence_async();
            named_sync(BAR_BOTH, threads);
        }
        mbar_wait(sh.sums_empty(sums.stage), sums.parity ^ 1);
    }
    __device__ void stage_wait() const
    {
        mbar_wait(sh.full(st.stage), st.parity);
        if (len < CHUNK) {
            clear_rows(stage_at(), 3, len, threadIdx.x - WARPGROUP, 2 * WARPGROUP);
            fence_async();
            named_sync(BAR_BOTH, 2 * WARPGROUP);
        }
    }
    // Returns `x` opaquely: else the compiler keeps the addresses derived from it in registers all the time.
    __device__ static int again(int x)
    {
        asm volatile("" : "+r"(x));
        return x;
    }
    // Two elements of a tile at this thread's accumulators: row mine + 8 half, columns 8 n + 2 (lane % 4).
    __device__ uint32_t pair(uint32_t tile, int mine, int n, int half) const
    {
        uint32_t x;
        asm volatile("ld.shared.b32 %0, [%1];\n"
                     : "=r"(x)
                     : "r"(tile + mine * SLAB_ROW + (((n % 8) ^ (mine & 7)) << 4) + lane % 4 * 4 + n / 8 * SLAB +
                           half * (8 * SLAB_ROW))
                     : "memory");
        return x;
    }
    // <acc, x> of this thread's two rows over a tile's 128 columns.
    __device__ void dots(const float (&acc)[64], uint32_t tile, float (&sum_)[2]) const
    {
        float x[4] = {0, 0, 0, 0};
        const int from = again(mine);
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t p = pair(tile, from, n, half);
                x[half] = fmaf(acc[4 * n + 2 * half], low_f32(p), x[half]);
                x[2 + half] = fmaf(acc[4 * n + 2 * half + 1], high_f32(p), x[2 + half]);
            }
        sum_[0] = row_sum(x[0] + x[2]);
        sum_[1] = row_sum(x[1] + x[3]);
    }
    // The gradient of normalised rows: added to that of the heads before. With the last head, stored as that of the
    // raw rows in `tile`.
    __device__ void finish(float (&acc)[64], uint32_t tile, const float (&rho)[2], float *partial, __nv_bfloat16 *to,
                           int64_t stride)
    {
        if (a.docs.group > 1) {
            float4 *p = (float4 *)partial + thread;
            if (h > head_k * a.docs.group)
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const float4 x = p[i * WARPGROUP];
                    acc[4 * i] += x.x;
                    acc[4 * i + 1] += x.y;
                    acc[4 * i + 2] += x.z;
                    acc[4 * i + 3] += x.w;
                }
            if (h + 1 < (head_k + 1) * a.docs.group) {
#pragma unroll
                for (int i = 0; i < 16; i++)
                    p[i * WARPGROUP] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
                return;
            }
        }
        float back[2] = {0, 0};
        if (a.normalize) {
            dots(acc, tile, back);
            back[0] *= rho[0] * rho[0];
            back[1] *= rho[1] * rho[1];
        }
        const int from = again(mine);
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t p = pair(tile, from, n, half);
                float &x = acc[4 * n + 2 * half], &y = acc[4 * n + 2 * half + 1];
                x = rho[half] * fmaf(-back[half], low_f32(p), x);
                y = rho[half] * fmaf(-back[half], high_f32(p), y);
            }
        rows_store(acc, {1, 1}, to + (int64_t)row * stride + head_k * HEAD, stride, len);
    }
};

// ---- Queries.

struct grad_queries : grad_group {
    using grad_group::grad_group;

    // G + G^T for the keys and N, from Y D^T, its transpose and K K^T: below the diagonal beta_i Gam_ij (Y D^T)_ij,
    // above it the mirror image.
    __device__ void mix(float (&yd)[32], const float (&kk)[32], const float4 (&high)[2])
    {
        float below[2] = {0, 0}, above[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int j = n * 8 + lane % 4 * 2 + x;
                const float4 fj = shared_float4(f_at() + j * 32 + 16);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int i = mine + 8 * half, at = 4 * n + 2 * half + x;
                    const float gam = exp2_fast(-fabsf(high[half].x - fj.x));
                    const float g = gam * yd[at] * (i == j ? 0.0f : -fj.y), product = g * kk[at];
                    below[half] += i > j ? product : 0.0f;
                    above[half] += i > j ? 0.0f : product * fj.w;
                    yd[at] = g * (i > j ? high[half].w : fj.w);
                }
            }
        named_sync(BAR_G_FREE, 2 * WARPGROUP);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t x[4];
            pack_a(x, yd, i);
            store8x8x4(fragment_at(sh.at + GRAD_G, warp, lane, i), x[0], x[1], x[2], x[3]);
        }
        fence_async();
        named_arrive(BAR_G_READY, 2 * WARPGROUP);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float b = row_sum(below[half]) * high[half].y, c = row_sum(above[half]) * high[half].y;
            if (lane % 4 == 0) {
                sum(SUM_NB)[mine + 8 * half] = b;
                sum(SUM_N)[mine + 8 * half] = high[half].w * b - c;
            }
        }
    }

    // ---- The phases of a value head.

    // E = dO D^T, Y D^T and its transpose, dO S^T over both halves of dv; returns <S, dS>. Y D^T becomes what G
    // needs: its own elements below the diagonal, those of the transpose elsewhere.
    __device__ __forceinline__ float halves(float (&e)[32], float (&yd)[32], float (&os)[64])
    {
        float dy[32], sds = 0;
        fresh(e);
        fresh(yd);
        fresh(dy);
        fresh(os);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            stage_wait();
            const uint32_t o = stage_at() + GRAD_O, d = stage_at() + GRAD_D, y = stage_at() + GRAD_Y,
                           s = stage_at() + GRAD_S, ds = stage_at() + GRAD_DS;
            hold(e);
            hold(yd);
            hold(dy);
            hold(os);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < HALF / 16; i++) {
                wgmma_ss<64>(yd, operand_step(operand_k(y), step_k(i, CHUNK)),
                             operand_step(operand_k(d), step_k(i, CHUNK)), half || i);
                wgmma_ss<64>(dy, operand_step(operand_k(d), step_k(i, CHUNK)),
                             operand_step(operand_k(y), step_k(i, CHUNK)), half || i);
                wgmma_ss<64>(e, operand_step(operand_k(o), step_k(i, CHUNK)),
                             operand_step(operand_k(d), step_k(i, CHUNK)), half || i);
                wgmma_ss<HEAD, 0, 1>(os, operand_step(operand_k(o), step_k(i, CHUNK)),
                                     operand_step(operand_mn(s, SLAB), step_mn(i)), half || i);
            }
            wgmma_commit();
#pragma unroll 2
            for (int i = 0; i < STATE_HALF / 16 / WARPGROUP; i++)
                sds += dot_bf16(shared_uint4(s + (i * WARPGROUP + thread) * 16),
                                shared_uint4(ds + (i * WARPGROUP + thread) * 16));
            wgmma_wait<0>();
            hold(e);
            hold(yd);
            hold(dy);
            hold(os);
            release(sh.empty(st.stage));
            st.next();
        }
#pragma unroll
        for (int at = 0; at < 32; at++) // below the diagonal and above it
            if (mine + at / 2 % 2 * 8 <= acc_col(thread, at)) yd[at] = dy[at];
        return sds;
    }
    // E with its decays, as operand A; m: the sums of M's rows.
    __device__ __forceinline__ void scores(float (&e)[32], const float (&qk)[32], const float4 (&high)[2],
                                           float (&m)[2], uint32_t (&ep)[4][4])
    {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int j = n * 8 + lane % 4 * 2 + x;
                const float4 fj = shared_float4(f_at() + j * 32 + 16);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int i = mine + 8 * half, at = 4 * n + 2 * half + x;
                    const float gam = exp2_fast(-fabsf(high[half].x - fj.x)), ev = i >= j ? gam * fj.y * e[at] : 0.0f;
                    m[half] += i > j ? ev * qk[at] : 0.0f;
                    e[at] = ev;
                }
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pack_a(ep[i], e, i);
            hold(ep[i]);
        }
    }
    // a b^T of two tiles of the chunk, queued.
    __device__ __forceinline__ void rows_by_rows(float (&d)[32], uint32_t a_at, uint32_t b_at)
    {
        fresh(d);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++)
            wgmma_ss<64>(d, operand_step(operand_k(a_at), step_k(i, CHUNK)),
                         operand_step(operand_k(b_at), step_k(i, CHUNK)), i > 0);
        wgmma_commit();
    }
    // dg's part from the queries: a row's sum, and <S, dS>.
    __device__ __forceinline__ void sums_store(const float4 (&high)[2], const float (&decay)[2], const float (&qs)[2],
                                               const float (&m)[2], float sds)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float x = row_sum(m[half]);
            if (lane % 4 == 0) sum(SUM_A)[mine + 8 * half] = a.scale * high[half].z * (decay[half] * qs[half] + x);
        }
        sds = warp_sum(sds);
        if (lane == 0) sum(SUM_SDS)[warp] = sds;
        if (thread == 0) *(int4 *)sum(SUM_META) = make_int4(row, len, h, f.stage);
    }

    __device__ void head()
    {
        float e[32], yd[32], os[64];
        factors_wait();
        const float sds = halves(e, yd, os);
        const float4 high[2] = {shared_float4(f_at() + mine * 32 + 16),
                                shared_float4(f_at() + mine * 32 + 8 * 32 + 16)};
        float kk[32];
        rows_by_rows(kk, q_at(), k_at());
        float m[2] = {0, 0}, qs[2];
        wgmma_wait<0>();
        hold(kk);
        uint32_t ep[4][4];
        scores(e, kk, high, m, ep);
        dots(os, q_at(), qs);
        const float decay[2] = {exp2_fast(high[0].x), exp2_fast(high[1].x)};
        float dq[64];
        fresh(dq);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<HEAD, 1>(dq, ep[i], operand_step(operand_mn(k_at(), SLAB), step_mn(i)), i > 0);
        wgmma_commit();
        rows_by_rows(kk, k_at(), k_at());
        sums_store(high, decay, qs, m, sds);
        wgmma_wait<0>();
        hold(dq);
        hold(kk);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(ep[i]);
        mix(yd, kk, high);
        release(sh.sums_full(sums.stage));
        release(sh.f_empty(f.stage));
        const float rho[2] = {high[0].z, high[1].z};
#pragma unroll
        for (int i = 0; i < 64; i++) dq[i] = a.scale * fmaf(decay[i / 2 % 2], os[i], dq[i]);
        finish(dq, q_at(), rho, a.m.partial + (int64_t)blockIdx.x * (2 * CHUNK * HEAD), a.dq, a.dq_stride);
        f.next();
        sums.next();
    }
    __device__ void run()
    {
        for (; chunk_wait(); qk.next()) {
            for (h = head_k * a.docs.group; h < (head_k + 1) * a.docs.group; h++) head();
            release(sh.qk_empty(qk.stage));
        }
        mbar_wait(sh.sums_empty(sums.stage), sums.parity ^ 1);
        if (thread == 0) *(int4 *)sum(SUM_META) = make_int4(-1, 0, 0, 0);
        release(sh.sums_full(sums.stage));
    }
};

// ---- Keys.

struct grad_keys : grad_group {
    using grad_group::grad_group;

    // dV of half a head, and its part of <Y, V>: rows thread / 8 + 16 i, 8 columns.
    __device__ void values(int half, float (&yv)[4])
    {
        const uint32_t from = stage_at() + slab_offset(thread / 8, thread % 8 * 8);
        __nv_bfloat16 *to = a.dv + (int64_t)(row + thread / 8) * a.dv_stride + h * HEAD + half * HALF + thread % 8 * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 y = shared_uint4(from + GRAD_Y + i * (16 * SLAB_ROW)),
                        v = shared_uint4(from + GRAD_V + i * (16 * SLAB_ROW));
            float beta;
            asm volatile("ld.shared.f32 %0, [%1];\n"
                         : "=f"(beta)
                         : "r"(f_at() + (thread / 8 + 16 * i) * 32)
                         : "memory");
            yv[i] += dot_bf16(y, v);
            const uint4 dv = make_uint4(two_bf16(beta * low_f32(y.x), beta * high_f32(y.x)),
                                        two_bf16(beta * low_f32(y.y), beta * high_f32(y.y)),
                                        two_bf16(beta * low_f32(y.z), beta * high_f32(y.z)),
                                        two_bf16(beta * low_f32(y.w), beta * high_f32(y.w)));
            if (thread / 8 + 16 * i < len) *(uint4 *)(to + i * 16 * a.dv_stride) = dv;
        }
    }

    // ---- The phases of a value head.

    // E^T = D dO^T, D dS^T, Y S^T over both halves of dv; overlaps dV, and <Y, V> in yv.
    __device__ __forceinline__ void halves(float (&et)[32], float (&kds)[64], float (&ys)[64], float (&yv)[4])
    {
        fresh(et);
        fresh(kds);
        fresh(ys);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            stage_wait();
            const uint32_t o = stage_at() + GRAD_O, d = stage_at() + GRAD_D, y = stage_at() + GRAD_Y,
                           s = stage_at() + GRAD_S, ds = stage_at() + GRAD_DS;
            hold(et);
            hold(kds);
            hold(ys);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < HALF / 16; i++) {
                wgmma_ss<64>(et, operand_step(operand_k(d), step_k(i, CHUNK)),
                             operand_step(operand_k(o), step_k(i, CHUNK)), half || i);
                wgmma_ss<HEAD, 0, 1>(kds, operand_step(operand_k(d), step_k(i, CHUNK)),
                                     operand_step(operand_mn(ds, SLAB), step_mn(i)), half || i);
                wgmma_ss<HEAD, 0, 1>(ys, operand_step(operand_k(y), step_k(i, CHUNK)),
                                     operand_step(operand_mn(s, SLAB), step_mn(i)), half || i);
            }
            wgmma_commit();
            values(half, yv);
            wgmma_wait<0>();
            hold(et);
            hold(kds);
            hold(ys);
            release(sh.empty(st.stage));
            st.next();
        }
    }
    // E^T with its decays, as operand A; m: the sums of M's columns.
    __device__ __forceinline__ void scores(float (&et)[32], const float (&kq)[32], const float4 (&high)[2],
                                           float (&m)[2], uint32_t (&ep)[4][4])
    {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int i = n * 8 + lane % 4 * 2 + x;
                const float4 fi = shared_float4(f_at() + i * 32 + 16);
                const float rho_q = a.scale * fi.z;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int j = mine + 8 * half, at = 4 * n + 2 * half + x;
                    const float gam = exp2_fast(-fabsf(fi.x - high[half].x)), ev = i >= j ? gam * rho_q * et[at] : 0.0f;
                    m[half] += i > j ? ev * kq[at] : 0.0f;
                    et[at] = ev;
                }
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pack_a(ep[i], et, i);
            hold(ep[i]);
        }
    }
    // Parts of dg and dbeta from the keys.
    struct key_sums { float m[2], kd[2], ks[2], e[2], f[2]; };
    __device__ __forceinline__ void sums_store(const float4 (&high)[2], const key_sums &x, const float (&yv)[4])
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float m = row_sum(x.m[half]) * high[half].y;
            const int j = mine + 8 * half;
            if (lane % 4 == 0) {
                sum(SUM_MCOL)[j] = m;
                sum(SUM_KD)[j] = x.f[half] * high[half].y * x.kd[half];
                sum(SUM_KS)[j] = x.e[half] * high[half].y * x.ks[half];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y = yv[i];
            y += __shfl_xor_sync(0xffffffffu, y, 1);
            y += __shfl_xor_sync(0xffffffffu, y, 2);
            y += __shfl_xor_sync(0xffffffffu, y, 4);
            if (lane % 8 == 0) sum(SUM_YV)[thread / 8 + 16 * i] = y;
        }
    }

    __device__ void head()
    {
        float et[32], kds[64], ys[64], yv[4] = {0, 0, 0, 0};
        factors_wait();
        halves(et, kds, ys, yv);
        // <D dS^T, K>, <Y S^T, K>, and both into dK.
        const float4 high[2] = {shared_float4(f_at() + mine * 32 + 16),
                                shared_float4(f_at() + mine * 32 + 8 * 32 + 16)};
        const float last = shared_float4(f_at() + (len - 1) * 32 + 16).x;
        key_sums x = {};
        x.f[0] = exp2_fast(last - high[0].x);
        x.f[1] = exp2_fast(last - high[1].x);
        x.e[0] = exp2_fast(high[0].x);
        x.e[1] = exp2_fast(high[1].x);
        float kq[32];
        fresh(kq);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++)
            wgmma_ss<64>(kq, operand_step(operand_k(k_at()), step_k(i, CHUNK)),
                         operand_step(operand_k(q_at()), step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(kq);
        uint32_t ep[4][4];
        scores(et, kq, high, x.m, ep);
        dots(kds, k_at(), x.kd);
        dots(ys, k_at(), x.ks);
        const float be[2] = {high[0].w * x.e[0], high[1].w * x.e[1]};
#pragma unroll
        for (int i = 0; i < 64; i++) kds[i] = x.f[i / 2 % 2] * kds[i] - be[i / 2 % 2] * ys[i];
        float dk[64];
        fresh(dk);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<HEAD, 1>(dk, ep[i], operand_step(operand_mn(q_at(), SLAB), step_mn(i)), i > 0);
        wgmma_commit();
        sums_store(high, x, yv);
        release(sh.sums_full(sums.stage));
        release(sh.f_empty(f.stage));
        named_sync(BAR_G_READY, 2 * WARPGROUP);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_ss<HEAD, 0, 1>(dk, operand_step(operand_k(sh.at + GRAD_G), step_k(i, CHUNK)),
                                 operand_step(operand_mn(k_at(), SLAB), step_mn(i)), 1);
        wgmma_commit();
        wgmma_wait<0>();
        hold(dk);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(ep[i]);
#pragma unroll
        for (int i = 0; i < 64; i++) dk[i] += kds[i];
        named_arrive(BAR_G_FREE, 2 * WARPGROUP);
        const float rho[2] = {high[0].y, high[1].y};
        finish(dk, k_at(), rho, a.m.partial + (int64_t)blockIdx.x * (2 * CHUNK * HEAD) + CHUNK * HEAD, a.dk,
               a.dk_stride);
        f.next();
        sums.next();
    }
    __device__ void run()
    {
        named_arrive(BAR_G_FREE, 2 * WARPGROUP);
        for (; chunk_wait(); qk.next()) {
            for (h = head_k * a.docs.group; h < (head_k + 1) * a.docs.group; h++) head();
            release(sh.qk_empty(qk.stage));
        }
        release(sh.sums_full(sums.stage));
    }
};

// ---- dg and dbeta: one warp, two rows per lane, from the other warpgroups' sums.

__device__ inline void grad_rates(const grad_args &a, const grad_shared sh)
{
    const int lane = threadIdx.x % WARP, i = 2 * lane;
    for (pipeline_state<2> sums;; sums.next()) {
        mbar_wait(sh.sums_full(sums.stage), sums.parity);
        const int4 c = *(const int4 *)sh.sums(sums.stage, SUM_META); // row, rows, head, stage of the factors
        if (c.x < 0) return;
        const uint32_t factors = sh.at + GRAD_F + c.w * FACTORS;
        auto two = [&](int which) { return *(const float2 *)(sh.sums(sums.stage, which) + i); };
        const float2 q = two(SUM_A), n = two(SUM_N), m = two(SUM_MCOL), ks = two(SUM_KS), kd = two(SUM_KD);
        const float t0 = i < c.y ? q.x + n.x - m.x - shared_float4(factors + i * 32 + 16).w * ks.x : 0.0f;
        const float t1 = i + 1 < c.y ? q.y + n.y - m.y - shared_float4(factors + i * 32 + 48).w * ks.y : 0.0f;
        const float kd0 = i < c.y ? kd.x : 0.0f, kd1 = i + 1 < c.y ? kd.y : 0.0f;
        float behind = t0 + t1, before = kd0 + kd1;
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const float down = __shfl_down_sync(0xffffffffu, behind, d), up = __shfl_up_sync(0xffffffffu, before, d);
            if (lane + d < WARP) behind += down;
            if (lane >= d) before += up;
        }
        before = __shfl_up_sync(0xffffffffu, before, 1); // sums of the lanes before, and after
        behind = __shfl_down_sync(0xffffffffu, behind, 1);
        if (lane == 0) before = 0;
        if (lane == WARP - 1) behind = 0;
        const float4 sds = *(const float4 *)sh.sums(sums.stage, SUM_SDS);
        behind += exp2_fast(shared_float4(factors + (c.y - 1) * 32 + 16).x) * ((sds.x + sds.y) + (sds.z + sds.w));
        const float2 nb = two(SUM_NB), yv = two(SUM_YV);
        const int64_t to = (int64_t)(c.x + i) * a.docs.heads + c.z;
        if (i < c.y) {
            a.dg[to] = t0 + t1 + behind + before;
            if (a.dbeta) a.dbeta[to] = yv.x - ks.x + nb.x;
        }
        if (i + 1 < c.y) {
            a.dg[to + a.docs.heads] = t1 + behind + (before + kd0);
            if (a.dbeta) a.dbeta[to + a.docs.heads] = yv.y - ks.y + nb.y;
        }
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(sh.sums_empty(sums.stage));
            mbar_arrive(sh.f_empty(c.w));
        }
    }
}
#endif

__global__ void __launch_bounds__(GRAD_THREADS, 1)
    delta_grad_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                      const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap o, const grad_args a)
{
#ifdef TILE90
    extern __shared__ __align__(1024) unsigned char shared[];
    const grad_shared sh = {shared, shared_at(shared)};
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbar_init(sh.full(i), 1);
            mbar_init(sh.qk_full(i), 1);
            mbar_init(sh.f_full(i), 1);
            mbar_init(sh.empty(i), GRAD_WARPS);
            mbar_init(sh.qk_empty(i), GRAD_WARPS);
            mbar_init(sh.f_empty(i), GRAD_WARPS + 1);
            mbar_init(sh.sums_full(i), GRAD_WARPS);
            mbar_init(sh.sums_empty(i), 1);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < 4) {
        registers_give<GRAD_GIVEN>();
        if (warp == 0 && one_lane()) grad_produce(a, sh, &q, &k, &v, &o);
        if (warp == 1) grad_rates(a, sh);
    } else {
        registers_take<GRAD_REGISTERS>();
        if (warp < 8) grad_queries(a, sh).run();
        else grad_keys(a, sh).run();
    }
#endif
}

// ---- Launcher.

status delta_hopper_grad(const struct delta_bwd_args *a, const struct delta_memory_map *m, dev_stream s)
{
    using T = __nv_bfloat16;
    const struct delta_docs d = delta_hopper_docs(&a->shape, a->cu_seqlens);
    const int items = (d.rows + CHUNK - 1) / CHUNK * d.heads_k, resident = cuda_set(s)->multiprocessors;
    const int blocks = items < resident ? items : resident;
    const grad_args x = {d,         *m,           (T *)a->dq,   (T *)a->dk,   (T *)a->dv,   (float *)a->dg,
                         (float *)a->dbeta, a->dq_stride, a->dk_stride, a->dv_stride, items,        a->normalize,
                         (float)a->scale};
    CUtensorMap q, k, v, o;
    TRY(tile_map_rows(&q, s, a->q, d.rows, a->q_stride, d.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&k, s, a->k, d.rows, a->k_stride, d.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&v, s, a->v, d.rows, a->v_stride, d.heads * HEAD, CHUNK, 1));
    TRY(tile_map_rows(&o, s, a->do_, d.rows, d.heads * HEAD, d.heads * HEAD, CHUNK, 1));
    // a failure shows at the launch
    cudaFuncSetAttribute(delta_grad_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GRAD_BYTES);
    delta_grad_kernel<<<(unsigned)(blocks < GRAD_BLOCKS ? blocks : GRAD_BLOCKS), GRAD_THREADS, GRAD_BYTES,
                        queue_of(s)>>>(q, k, v, o, x);
    return cuda_set_launched(s, "delta_bwd (hopper, gradients)");
}

