// The gated delta rule on Hopper: gradients, parallel over chunks (delta_hopper.cuh). Blocks stay, one per multiprocessor; a work item is a block of
// 64 rows and a key head, in it the chunks that begin there, and for each the value heads of the key head. A producer warp loads halves of dv of
// one (chunk, value head) after another into two stages, beside the tiles of Q and K. Two warpgroups share the work:
//
//   queries   E = dO D^T, Y D^T, D Y^T, dO S^T, Q K^T, K K^T;  dQ;  G + G^T, which it hands to the other;  dV and <Y, V>;  dg and dbeta
//   keys      E^T = D dO^T, D dS^T, Y S^T, K Q^T;  dK;  <S, dS>
//
// Sums over dv run over both stages. E and its transpose are formed by a product each: in registers, each is the operand A of the next product.
// Of several value heads of a key head each adds to what the one before left in global memory, the same thread the same values.
#include "ops/cuda/delta_hopper.cuh"

enum { GRAD_STAGES = 2, GRAD_THREADS = 3 * WARPGROUP, GRAD_WARPS = 8 };
enum { GRAD_O = 0, GRAD_D = SLAB, GRAD_Y = 2 * SLAB, GRAD_V = 3 * SLAB, GRAD_S = 4 * SLAB, GRAD_DS = 6 * SLAB, GRAD_STAGE = 8 * SLAB };
enum { GRAD_QK = GRAD_STAGES * GRAD_STAGE, GRAD_G = GRAD_QK + 2 * 2 * TILE, GRAD_F = GRAD_G + SLAB, GRAD_SUMS = GRAD_F + 2 * FACTORS };
enum { SUM_A, SUM_NB, SUM_YV, SUM_MCOL, SUM_KD, SUM_KS, SUM_SDS, SUM_COUNT }; // [64] floats each, twice
enum { GRAD_META = GRAD_SUMS + 2 * SUM_COUNT * CHUNK * 4, GRAD_BARS = GRAD_META + 32, GRAD_BYTES = GRAD_BARS + 8 * 12 };
enum { BAR_G_READY = 1, BAR_G_FREE, BAR_BOTH, BAR_QUERIES, BAR_KEYS }; // named barriers

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
    __device__ grad_meta *meta() const { return (grad_meta *)(shared + GRAD_META); }
    __device__ float *sums(int parity, int which) const { return (float *)(shared + GRAD_SUMS) + (parity * SUM_COUNT + which) * CHUNK; }
};

// ---- Producer: one thread.

__device__ inline void grad_produce(const grad_args &a, const grad_shared sh, const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v,
                                    const CUtensorMap *o)
{
    ring<GRAD_STAGES> st;
    ring<2> qk, f;
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
                bulk_load(sh.at + GRAD_F + f.stage * FACTORS, a.m.factors + (int64_t)h * a.docs.rows + c.row, c.len * 32, sh.f_full(f.stage));
                for (int half = 0; half < 2; half++, st.next()) {
                    const uint32_t stage = sh.at + st.stage * GRAD_STAGE, bar = sh.full(st.stage);
                    const int64_t rows_at = half_image(a.docs, h, half, c.row);
                    mbar_wait(sh.empty(st.stage), st.parity ^ 1);
                    mbar_arrive_expect(bar, 2 * SLAB + 2 * STATE_HALF + c.len * (2 * SLAB_ROW));
                    tma_load(stage + GRAD_O, o, bar, c.row, h * 2 + half);
                    bulk_load(stage + GRAD_D, a.m.d + rows_at, c.len * SLAB_ROW, bar);
                    bulk_load(stage + GRAD_Y, a.m.y + rows_at, c.len * SLAB_ROW, bar);
                    bulk_load(stage + GRAD_S, c.first ? a.m.zero : a.m.s + state_image(a.docs, h, half, c.row), STATE_HALF, bar);
                    bulk_load(stage + GRAD_DS, c.last ? a.m.zero : a.m.ds + state_image(a.docs, h, half, c.row + CHUNK), STATE_HALF, bar);
                    tma_load(stage + GRAD_V, v, bar, c.row, h * 2 + half);
                }
            }
        }
    }
    mbar_wait(sh.qk_empty(qk.stage), qk.parity ^ 1);
    sh.meta()[qk.stage].row = -1;
    mbar_arrive(sh.qk_full(qk.stage));
}

// ---- What both warpgroups do.

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
    ring<GRAD_STAGES> st;
    ring<2> qk, f;
    int row, len, head_k, h; // of the chunk; h: the value head
    int parity;              // of the sums

    __device__ grad_group(const grad_args &a_, const grad_shared &sh_)
        : a(a_), sh(sh_), thread(threadIdx.x % WARPGROUP), warp(thread / WARP), lane(thread % WARP), parity(0)
    {
    }
    __device__ uint32_t q_at() const { return sh.at + GRAD_QK + qk.stage * (2 * TILE); }
    __device__ uint32_t k_at() const { return q_at() + TILE; }
    __device__ uint32_t stage_at() const { return sh.at + st.stage * GRAD_STAGE; }
    __device__ uint32_t f_at() const { return sh.at + GRAD_F + f.stage * FACTORS; }
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
    // Zeros where a short chunk has no rows: of Q and K with the first value head, of the factors.
    __device__ void factors_wait()
    {
        mbar_wait(sh.f_full(f.stage), f.parity);
        if (len == CHUNK) return;
        const int all = threadIdx.x - WARPGROUP, threads = 2 * WARPGROUP;
        if (h == head_k * a.docs.group) clear_rows(q_at(), 4, len, all, threads);
        for (int i = all; i < CHUNK * 2; i += threads)
            if (i / 2 >= len) asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(f_at() + i * 16), "r"(0) : "memory");
        fence_async();
        named_sync(BAR_BOTH, threads);
    }
    // <acc, x> of this thread's two rows over a tile's 128 columns.
    __device__ void dots(const float (&acc)[64], uint32_t tile, float (&sum)[2]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = acc_row(thread, 2 * half);
            float x = 0;
#pragma unroll
            for (int n = 0; n < 16; n++) {
                uint32_t pair;
                asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(pair) : "r"(tile + n / 8 * SLAB + slab_offset(i, n % 8 * 8 + lane % 4 * 2)) : "memory");
                x = fmaf(acc[4 * n + 2 * half], low_f32(pair), x);
                x = fmaf(acc[4 * n + 2 * half + 1], high_f32(pair), x);
            }
            sum[half] = row_sum(x);
        }
    }
    // The gradient of normalised rows: added to that of the heads before, and with the last head stored as that of the raw rows in `tile`.
    __device__ void finish(float (&acc)[64], uint32_t tile, const float (&rho)[2], float *partial, __nv_bfloat16 *to, int64_t stride)
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
                for (int i = 0; i < 16; i++) p[i * WARPGROUP] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
                return;
            }
        }
        float along[2] = {0, 0};
        if (a.normalize) dots(acc, tile, along);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = acc_row(thread, 2 * half);
            const float back = along[half] * rho[half] * rho[half] * rho[half];
#pragma unroll
            for (int n = 0; n < 16; n++) {
                uint32_t pair;
                asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(pair) : "r"(tile + n / 8 * SLAB + slab_offset(i, n % 8 * 8 + lane % 4 * 2)) : "memory");
                float &x = acc[4 * n + 2 * half], &y = acc[4 * n + 2 * half + 1];
                x = x * rho[half] - back * low_f32(pair);
                y = y * rho[half] - back * high_f32(pair);
            }
        }
        rows_store(acc, 1.0f, to + (int64_t)row * stride + head_k * HEAD, stride, len);
    }
};

// ---- Queries.

struct grad_queries : grad_group {
    using grad_group::grad_group;

    // dV of half a head, and what it adds to <Y, V>: rows thread / 8 + 16 i, 8 columns.
    __device__ void values(int half, float (&yv)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = thread / 8 + 16 * i, col = thread % 8 * 8;
            if (r >= len) continue;
            const uint4 y = shared_uint4(stage_at() + GRAD_Y + slab_offset(r, col)), v = shared_uint4(stage_at() + GRAD_V + slab_offset(r, col));
            const float beta = shared_float4(f_at() + r * 32).x;
            yv[i] += dot_bf16(y, v);
            *(uint4 *)(a.dv + (int64_t)(row + r) * a.dv_stride + h * HEAD + half * HALF + col) =
                make_uint4(two_bf16(beta * low_f32(y.x), beta * high_f32(y.x)), two_bf16(beta * low_f32(y.y), beta * high_f32(y.y)),
                           two_bf16(beta * low_f32(y.z), beta * high_f32(y.z)), two_bf16(beta * low_f32(y.w), beta * high_f32(y.w)));
        }
    }
    // dg and dbeta, by one warp, two rows a lane.
    __device__ void rates()
    {
        const int i = 2 * lane;
        auto at2 = [&](int which) { return *(const float2 *)(sh.sums(parity, which) + i); };
        const float2 A = at2(SUM_A), nb = at2(SUM_NB), yv = at2(SUM_YV), mcol = at2(SUM_MCOL), ks = at2(SUM_KS);
        float2 kd = at2(SUM_KD);
        const float4 sds = *(const float4 *)sh.sums(parity, SUM_SDS);
        float2 t = {0, 0};
        if (i < len) t.x = A.x - mcol.x - shared_float4(f_at() + i * 32 + 16).w * ks.x;
        if (i + 1 < len) t.y = A.y - mcol.y - shared_float4(f_at() + i * 32 + 48).w * ks.y;
        if (i >= len) kd.x = 0;
        if (i + 1 >= len) kd.y = 0;
        float behind = t.x + t.y, before = kd.x + kd.y;
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const float down = __shfl_down_sync(0xffffffffu, behind, d), up = __shfl_up_sync(0xffffffffu, before, d);
            if (lane + d < WARP) behind += down;
            if (lane >= d) before += up;
        }
        const float up1 = __shfl_up_sync(0xffffffffu, before, 1), down1 = __shfl_down_sync(0xffffffffu, behind, 1);
        before = lane ? up1 : 0; // of the lanes before, and behind
        behind = lane + 1 < WARP ? down1 : 0;
        const float state = exp2_fast(shared_float4(f_at() + (len - 1) * 32 + 16).x) * ((sds.x + sds.y) + (sds.z + sds.w));
        const int64_t to = (int64_t)(row + i) * a.docs.heads + h;
        if (i < len) {
            a.dg[to] = t.x + t.y + behind + before + state;
            if (a.dbeta) a.dbeta[to] = yv.x - ks.x + nb.x;
        }
        if (i + 1 < len) {
            a.dg[to + a.docs.heads] = t.y + behind + (before + kd.x) + state;
            if (a.dbeta) a.dbeta[to + a.docs.heads] = yv.y - ks.y + nb.y;
        }
    }

    __device__ void head()
    {
        float e[32], yd[32], dy[32], qk_[32], os[64], yv[4] = {0, 0, 0, 0};
        factors_wait();
        fresh(e);
        fresh(yd);
        fresh(dy);
        fresh(os);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            mbar_wait(sh.full(st.stage), st.parity);
            const uint32_t o = stage_at() + GRAD_O, d = stage_at() + GRAD_D, y = stage_at() + GRAD_Y, s = stage_at() + GRAD_S;
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < HALF / 16; i++) {
                wgmma_ss<64>(e, operand_k(o + step_k(i, CHUNK)), operand_k(d + step_k(i, CHUNK)), half || i);
                wgmma_ss<64>(yd, operand_k(y + step_k(i, CHUNK)), operand_k(d + step_k(i, CHUNK)), half || i);
                wgmma_ss<64>(dy, operand_k(d + step_k(i, CHUNK)), operand_k(y + step_k(i, CHUNK)), half || i);
                wgmma_ss<HEAD, 0, 1>(os, operand_k(o + step_k(i, CHUNK)), operand_mn(s + step_mn(i), SLAB), half || i);
            }
            wgmma_commit();
            values(half, yv);
            wgmma_wait<0>();
            hold(e);
            hold(yd);
            hold(dy);
            hold(os);
            release(sh.empty(st.stage));
            st.next();
        }
        fresh(qk_);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) wgmma_ss<64>(qk_, operand_k(q_at() + step_k(i, CHUNK)), operand_k(k_at() + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(qk_);

        // E scaled and masked as operand A; Y D^T becomes dA . Gam below the diagonal, beta dA^T . Gam^T above it.
        uint32_t ep[4][4];
        float m[2] = {0, 0};
        const int i0 = acc_row(thread, 0);
        const float4 low[2] = {shared_float4(f_at() + i0 * 32), shared_float4(f_at() + (i0 + 8) * 32)};
        const float4 high[2] = {shared_float4(f_at() + i0 * 32 + 16), shared_float4(f_at() + (i0 + 8) * 32 + 16)};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int j = n * 8 + lane % 4 * 2 + x;
                const float4 fj = shared_float4(f_at() + j * 32 + 16);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int i = i0 + 8 * half, at = 4 * n + 2 * half + x;
                    const float gam = exp2_fast(i >= j ? high[half].x - fj.x : fj.x - high[half].x);
                    const float ev = i >= j && i < len ? a.scale * gam * e[at] * fj.y : 0.0f;
                    m[half] += i > j ? ev * qk_[at] : 0.0f;
                    e[at] = ev;
                    yd[at] = i > j ? (i < len ? -gam * yd[at] : 0.0f) : i < j && j < len ? -gam * dy[at] * fj.w : 0.0f;
                }
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pack_a(ep[i], e, i);
            hold(ep[i]);
        }
        float qs[2];
        dots(os, q_at(), qs);
#pragma unroll
        for (int i = 0; i < 64; i++) os[i] *= a.scale * exp2_fast(high[i / 2 % 2].x);
        hold(os);
        float kk[32];
        fresh(kk);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_rs<HEAD, 1>(os, ep[i], operand_mn(k_at() + step_mn(i), SLAB), 1);
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) wgmma_ss<64>(kk, operand_k(k_at() + step_k(i, CHUNK)), operand_k(k_at() + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(os);
        hold(kk);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(ep[i]);

        // G + G^T for the keys, N.
        float np[2] = {0, 0}, nc[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int j = n * 8 + lane % 4 * 2 + x;
                const float rho_k = shared_float4(f_at() + j * 32 + 16).y;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int i = i0 + 8 * half, at = 4 * n + 2 * half + x;
                    const float g = yd[at] * rho_k, product = g * kk[at];
                    if (i > j) np[half] += product;
                    else nc[half] += product;
                    yd[at] = i > j ? g * high[half].w : g;
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
            const float sum_m = row_sum(m[half]) * high[half].z, sum_np = row_sum(np[half]) * high[half].y, sum_nc = row_sum(nc[half]) * high[half].y;
            if (lane % 4 == 0) {
                sh.sums(parity, SUM_A)[i0 + 8 * half] = low[half].w * qs[half] + sum_m + high[half].w * sum_np - sum_nc;
                sh.sums(parity, SUM_NB)[i0 + 8 * half] = sum_np;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = yv[i];
            x += __shfl_xor_sync(0xffffffffu, x, 1);
            x += __shfl_xor_sync(0xffffffffu, x, 2);
            x += __shfl_xor_sync(0xffffffffu, x, 4);
            if (lane % 8 == 0) sh.sums(parity, SUM_YV)[thread / 8 + 16 * i] = x;
        }
        const float rho[2] = {high[0].z, high[1].z};
        finish(os, q_at(), rho, a.m.partial + (int64_t)blockIdx.x * (2 * CHUNK * HEAD), a.dq, a.dq_stride);
        named_sync(BAR_BOTH, 2 * WARPGROUP);
        if (warp == 0) rates();
        release(sh.f_empty(f.stage));
        f.next();
        parity ^= 1;
    }
    __device__ void run()
    {
        for (; chunk_wait(); qk.next()) {
            for (h = head_k * a.docs.group; h < (head_k + 1) * a.docs.group; h++) head();
            release(sh.qk_empty(qk.stage));
        }
    }
};

// ---- Keys.

struct grad_keys : grad_group {
    using grad_group::grad_group;

    __device__ void head()
    {
        float et[32], kq[32], kds[64], ys[64], sds = 0;
        factors_wait();
        fresh(et);
        fresh(kds);
        fresh(ys);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            mbar_wait(sh.full(st.stage), st.parity);
            const uint32_t o = stage_at() + GRAD_O, d = stage_at() + GRAD_D, y = stage_at() + GRAD_Y, s = stage_at() + GRAD_S, ds = stage_at() + GRAD_DS;
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < HALF / 16; i++) {
                wgmma_ss<64>(et, operand_k(d + step_k(i, CHUNK)), operand_k(o + step_k(i, CHUNK)), half || i);
                wgmma_ss<HEAD, 0, 1>(kds, operand_k(d + step_k(i, CHUNK)), operand_mn(ds + step_mn(i), SLAB), half || i);
                wgmma_ss<HEAD, 0, 1>(ys, operand_k(y + step_k(i, CHUNK)), operand_mn(s + step_mn(i), SLAB), half || i);
            }
            wgmma_commit();
#pragma unroll
            for (int i = 0; i < STATE_HALF / 16 / WARPGROUP; i++)
                sds += dot_bf16(shared_uint4(s + (i * WARPGROUP + thread) * 16), shared_uint4(ds + (i * WARPGROUP + thread) * 16));
            wgmma_wait<0>();
            hold(et);
            hold(kds);
            hold(ys);
            release(sh.empty(st.stage));
            st.next();
        }
        fresh(kq);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) wgmma_ss<64>(kq, operand_k(k_at() + step_k(i, CHUNK)), operand_k(q_at() + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(kq);
        sds = warp_sum(sds);

        uint32_t ep[4][4];
        float m[2] = {0, 0}, kd[2], ks[2], f_[2], e_[2];
        const int j0 = acc_row(thread, 0);
        const float4 high[2] = {shared_float4(f_at() + j0 * 32 + 16), shared_float4(f_at() + (j0 + 8) * 32 + 16)};
        const float last = shared_float4(f_at() + (len - 1) * 32 + 16).x;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int i = n * 8 + lane % 4 * 2 + x;
                const float4 fi = shared_float4(f_at() + i * 32 + 16);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int j = j0 + 8 * half, at = 4 * n + 2 * half + x;
                    const float ev = i >= j && i < len ? a.scale * exp2_fast(fi.x - high[half].x) * et[at] * fi.z : 0.0f;
                    m[half] += i > j ? ev * kq[at] : 0.0f;
                    et[at] = ev;
                }
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pack_a(ep[i], et, i);
            hold(ep[i]);
        }
        dots(kds, k_at(), kd);
        dots(ys, k_at(), ks);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            f_[half] = j0 + 8 * half < len ? exp2_fast(last - high[half].x) : 0.0f;
            e_[half] = exp2_fast(high[half].x);
        }
#pragma unroll
        for (int i = 0; i < 64; i++) kds[i] = f_[i / 2 % 2] * kds[i] - high[i / 2 % 2].w * e_[i / 2 % 2] * ys[i];
        hold(kds);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_rs<HEAD, 1>(kds, ep[i], operand_mn(q_at() + step_mn(i), SLAB), 1);
        wgmma_commit();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = row_sum(m[half]) * high[half].y;
            if (lane % 4 == 0) {
                const int j = j0 + 8 * half;
                sh.sums(parity, SUM_MCOL)[j] = sum;
                sh.sums(parity, SUM_KD)[j] = f_[half] * high[half].y * kd[half];
                sh.sums(parity, SUM_KS)[j] = e_[half] * high[half].y * ks[half];
            }
        }
        if (lane == 0) sh.sums(parity, SUM_SDS)[warp] = sds;
        named_sync(BAR_G_READY, 2 * WARPGROUP);
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_ss<HEAD, 0, 1>(kds, operand_k(sh.at + GRAD_G + step_k(i, CHUNK)), operand_mn(k_at() + step_mn(i), SLAB), 1);
        wgmma_commit();
        wgmma_wait<0>();
        hold(kds);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(ep[i]);
        named_arrive(BAR_G_FREE, 2 * WARPGROUP);
        const float rho[2] = {high[0].y, high[1].y};
        finish(kds, k_at(), rho, a.m.partial + (int64_t)blockIdx.x * (2 * CHUNK * HEAD) + CHUNK * HEAD, a.dk, a.dk_stride);
        named_sync(BAR_BOTH, 2 * WARPGROUP);
        release(sh.f_empty(f.stage));
        f.next();
        parity ^= 1;
    }
    __device__ void run()
    {
        named_arrive(BAR_G_FREE, 2 * WARPGROUP);
        for (; chunk_wait(); qk.next()) {
            for (h = head_k * a.docs.group; h < (head_k + 1) * a.docs.group; h++) head();
            release(sh.qk_empty(qk.stage));
        }
    }
};
#endif

__global__ void __launch_bounds__(GRAD_THREADS, 1)
    delta_grad_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                      const __grid_constant__ CUtensorMap o, const grad_args a)
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
            mbar_init(sh.f_empty(i), GRAD_WARPS);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp < 4) {
        registers_give<24>();
        if (warp == 0 && one_lane()) grad_produce(a, sh, &q, &k, &v, &o);
    } else {
        registers_take<240>();
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
    cudaFuncSetAttribute(delta_grad_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GRAD_BYTES); // a failure shows at the launch
    delta_grad_kernel<<<(unsigned)(blocks < GRAD_BLOCKS ? blocks : GRAD_BLOCKS), GRAD_THREADS, GRAD_BYTES, queue_of(s)>>>(q, k, v, o, x);
    return cuda_set_launched(s, "delta_bwd (hopper, gradients)");
}
