// The gated delta rule on Hopper: the scan backward (gdn_delta_sm90.cuh), built like the scan forward. dS^T [64 dv,
// 128 dk] stays in an accumulator; the last chunk of a document comes first:
//
//   dD^T = f (dS^T K^T) + dO^T P  ->  Y^T = dD^T T  ->  dS^T = e_last dS^T + (s e dO^T) Q - (beta e Y^T) K
//
// Output for the gradients' kernel: Y, and dS after each chunk. For documents in pieces, the first step (ENDS) is
// the same scan with nothing after each piece; its output is dS before the piece.
#include "ops/cuda/gdn_delta_sm90.cuh"

template <int WGS> struct back_tile {
    enum { STAGES = WGS == 1 ? 3 : 2, THREADS = WARPGROUP * (WGS + 1) };
    // A stage.
    using k_smem = smem_field<0, TILE>;
    using q_smem = smem_field<k_smem::END, TILE>;
    using t_smem = smem_field<q_smem::END, SLAB>;
    using p_smem = smem_field<t_smem::END, SLAB>;
    using o_smem = smem_field<p_smem::END, SLAB, WGS>;
    using f_smem = smem_field<o_smem::END, FACTORS>;
    // What a warpgroup stores.
    using out_ds_smem = smem_field<0, STATE_HALF>;
    using out_y_smem = smem_field<out_ds_smem::END, SLAB>;
    // The block.
    using stage_smem = smem_field<0, f_smem::END, STAGES>;
    using out_smem = smem_field<stage_smem::END, out_y_smem::END, WGS>;
    using meta_smem = smem_field<out_smem::END, 32, STAGES>;
    using sent_smem = smem_field<meta_smem::END, 32, WGS>;
    using pipe = pipeline<sent_smem::END, STAGES>;
    enum { BYTES = pipe::END };
};

struct back_args {
    delta_docs docs;
    delta_memory_map m;
};
// Contents of a stage; row < 0: no more. from: source of dS after it: a slot, or see gdn_delta_sm90.cuh. to: the
// slot for dS before it, or -1.
struct back_meta { int row, len, last, head, half, from, to, pad; };

#ifdef TILE90

// The units of a pass; for ENDS the pieces that have one before and one after them.
template <bool ENDS>
__device__ inline bool back_unit(const back_args &a, int unit, int halves, delta_unit &u, int &from, int &to)
{
    if (!unit_find(a.docs, a.m, unit, halves, u)) return false;
    from = FROM_OUTSIDE;
    to = -1;
    if (u.piece < 0) return !ENDS;
    const delta_piece &p = a.m.pieces[u.piece];
    if (ENDS) to = u.piece;
    else from = p.behind;
    return !ENDS || p.index > 0;
}

template <int WGS, bool ENDS>
__device__ inline void back_produce(const back_args &a, unsigned char *shared, const CUtensorMap *q,
                                    const CUtensorMap *k, const CUtensorMap *o)
{
    using tile = back_tile<WGS>;
    const uint32_t at = shared_at(shared);
    auto *meta = (back_meta *)(shared + tile::meta_smem::AT);
    constexpr int HALVES = 2 / WGS;
    const int units = (a.docs.slots + (ENDS ? 0 : a.m.counts[COUNT_DOCS])) * a.docs.heads * HALVES;
    pipeline_state<tile::STAGES> st;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        delta_unit u;
        int from, link;
        if (!back_unit<ENDS>(a, unit, HALVES, u, from, link)) continue;
        const int head = u.head, slab = head / a.docs.group * 2, end_row = u.row + (u.end - u.row - 1) / CHUNK * CHUNK;
        for (int row = end_row; row >= u.row && row < u.end; row -= CHUNK, st.next()) {
            const uint32_t to = tile::stage_smem::at(at, st.stage), bar = tile::pipe::full(at, st.stage);
            const int len = min(CHUNK, u.stop - row);
            tile::pipe::producer_acquire(at, st);
            meta[st.stage] = {row,
                              len,
                              row + CHUNK >= u.stop,
                              head,
                              u.half,
                              row == end_row ? from : FROM_BEFORE,
                              row == u.row ? link : -1,
                              0};
            mbar_arrive_expect(bar, 2 * TILE + WGS * SLAB + len * (2 * SLAB_ROW + 32));
            tma_load(tile::k_smem::at(to), k, bar, row, slab);
            tma_load(tile::o_smem::at(to), o, bar, row, head * 2 + u.half);
            bulk_load(tile::p_smem::at(to), a.m.p + row_image(a.docs, head, row), len * SLAB_ROW, bar);
            bulk_load(tile::f_smem::at(to), a.m.factors + (int64_t)head * a.docs.rows + row, len * 32, bar);
            tma_load(tile::q_smem::at(to), q, bar, row, slab);
            bulk_load(tile::t_smem::at(to), a.m.t + row_image(a.docs, head, row), len * SLAB_ROW, bar);
        }
    }
    tile::pipe::producer_acquire(at, st);
    meta[st.stage].row = -1;
    tile::pipe::producer_commit(at, st.stage);
}

template <int WGS, bool ENDS> struct back_group {
    using tile = back_tile<WGS>;
    const back_args &a;
    const back_meta *meta;
    scan_out *sent;
    uint32_t at, out;
    int wg, thread, warp, lane;
    float ds[64];

    __device__ back_group(const back_args &a_, unsigned char *shared)
        : a(a_), meta((const back_meta *)(shared + tile::meta_smem::AT)), at(shared_at(shared)),
          wg(threadIdx.x / WARPGROUP), thread(threadIdx.x % WARPGROUP), warp(thread / WARP), lane(thread % WARP)
    {
        out = tile::out_smem::at(at, wg);
        sent = (scan_out *)(shared + tile::sent_smem::AT) + wg;
    }
    // The address of this thread's first pair of dS^T in a slot.
    __device__ float *link_at(const back_meta &c, int slot) const
    {
        return piece_state(a.m.link, a.docs, slot, c.head) + ((c.half + wg) * HALF + acc_row(thread, 0)) * HEAD +
               acc_col(thread, 0);
    }
    __device__ void begin(const back_meta &c)
    {
        if (c.from >= 0) {
            const float *from = link_at(c, c.from);
#pragma unroll
            for (int i = 0; i < 64; i += 2) {
                const float2 x = *(const float2 *)(from + i / 2 % 2 * (8 * HEAD) + i / 4 * 8);
                ds[i] = x.x;
                ds[i + 1] = x.y;
            }
        } else
#pragma unroll
            for (int i = 0; i < 64; i++) ds[i] = 0;
    }
    __device__ void end(const back_meta &c) const
    {
        float *to = link_at(c, c.to);
#pragma unroll
        for (int i = 0; i < 64; i += 2)
            *(float2 *)(to + i / 2 % 2 * (8 * HEAD) + i / 4 * 8) = make_float2(ds[i], ds[i + 1]);
    }
    __device__ void clear(uint32_t stage, int len) const
    {
        clear_rows(stage, 6 + WGS, len, threadIdx.x, WGS * WARPGROUP);
        for (int i = threadIdx.x; i < CHUNK * 2; i += WGS * WARPGROUP)
            if (i / 2 >= len)
                asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(tile::f_smem::at(stage) + i * 16), "r"(0)
                             : "memory");
        fence_async();
        named_sync(15, WGS * WARPGROUP);
    }

    // ---- The phases of a chunk.

    // Queues dS^T K^T into ks and dO^T P into d.
    __device__ __forceinline__ void delta_gradient_queue(uint32_t stage, uint32_t (&sp)[8][4], uint32_t (&od)[4][4],
                                                         float (&ks)[32], float (&d)[32])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pack_a(sp[i], ds, i);
            hold(sp[i]);
        }
        fresh(ks);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++)
            wgmma_rs<64>(ks, sp[i], operand_step(operand_k(tile::k_smem::at(stage)), step_k(i, CHUNK)), i > 0);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load8x8x4_trans(od[i], fragment_at_trans(tile::o_smem::at(stage) + wg * SLAB, warp, lane, i));
            hold(od[i]);
        }
        fresh(d);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<64, 1>(d, od[i], operand_step(operand_mn(tile::p_smem::at(stage), 0), step_mn(i)), i > 0);
        wgmma_commit();
    }
    // dS^T = e_last dS^T, and queues the first half of += (s e dO^T) Q; oe: s e dO^T.
    __device__ __forceinline__ void state_output_queue(const back_meta &c, uint32_t stage, const uint32_t (&od)[4][4],
                                                       uint32_t (&oe)[4][4])
    {
        const uint32_t factors = tile::f_smem::at(stage), column = lane % 4 * 2;
        const float decay = exp2_fast(shared_float4(factors + (c.len - 1) * 32 + 16).x);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f0 = factor_rest(factors, n * 8 + column), f1 = factor_rest(factors, n * 8 + column + 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t x = od[n / 2][n % 2 * 2 + half];
                oe[n / 2][n % 2 * 2 + half] = two_bf16(f0.y * low_f32(x), f1.y * high_f32(x));
            }
        }
#pragma unroll
        for (int i = 0; i < 64; i++) ds[i] *= decay;
        hold(ds);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(oe[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; i++)
            wgmma_rs<HEAD, 1>(ds, oe[i], operand_step(operand_mn(tile::q_smem::at(stage), SLAB), step_mn(i)), 1);
        wgmma_commit();
    }
    // dD^T = f (dS^T K^T) + dO^T P; queues Y^T = dD^T T and the second half of dS^T += (s e dO^T) Q.
    __device__ __forceinline__ void y_queue(uint32_t stage, const float (&ks)[32], const float (&d)[32],
                                            const uint32_t (&oe)[4][4], uint32_t (&dd)[4][4], float (&y)[32])
    {
        const uint32_t factors = tile::f_smem::at(stage), column = lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f0 = factor_rest(factors, n * 8 + column), f1 = factor_rest(factors, n * 8 + column + 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 4 * n + 2 * half;
                dd[n / 2][n % 2 * 2 + half] = two_bf16(fmaf(f0.x, ks[i], d[i]), fmaf(f1.x, ks[i + 1], d[i + 1]));
            }
        }
        fresh(y);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(dd[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<64, 1>(y, dd[i], operand_step(operand_mn(tile::t_smem::at(stage), 0), step_mn(i)), i > 0);
        wgmma_commit();
#pragma unroll
        for (int i = 2; i < 4; i++)
            wgmma_rs<HEAD, 1>(ds, oe[i], operand_step(operand_mn(tile::q_smem::at(stage), SLAB), step_mn(i)), 1);
        wgmma_commit();
    }
    // dS^T after the chunk, to shared memory.
    __device__ __forceinline__ void state_store(const back_meta &c, const uint32_t (&sp)[8][4]) const
    {
        if (!ENDS) named_sync(BAR_OUT_FREE + wg, OUT_THREADS);
        if (!ENDS && !c.last)
#pragma unroll
            for (int i = 0; i < 8; i++)
                store8x8x4(fragment_at(tile::out_ds_smem::at(out) + i / 4 * SLAB, warp, lane, i % 4), sp[i][0],
                           sp[i][1], sp[i][2], sp[i][3]);
    }
    // Queues dS^T -= (beta e Y^T) K; yp: Y^T, yb: -beta e Y^T.
    __device__ __forceinline__ void state_keys_queue(uint32_t stage, const float (&y)[32], uint32_t (&yp)[4][4],
                                                     uint32_t (&yb)[4][4])
    {
        const uint32_t factors = tile::f_smem::at(stage), column = lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f0 = factor_beta(factors, n * 8 + column), f1 = factor_beta(factors, n * 8 + column + 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 4 * n + 2 * half;
                yp[n / 2][n % 2 * 2 + half] = two_bf16(y[i], y[i + 1]);
                yb[n / 2][n % 2 * 2 + half] = two_bf16(-f0.y * y[i], -f1.y * y[i + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) hold(yb[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<HEAD, 1>(ds, yb[i], operand_step(operand_mn(tile::k_smem::at(stage), SLAB), step_mn(i)), 1);
        wgmma_commit();
    }

    // From dS^T after the chunk to dS^T before it.
    __device__ void step(const back_meta &c, uint32_t stage)
    {
        uint32_t sp[8][4], od[4][4], oe[4][4];
        float ks[32], d[32];
        delta_gradient_queue(stage, sp, od, ks, d);
        state_output_queue(c, stage, od, oe);
        wgmma_wait<1>();
        hold(ks);
        hold(d);
        uint32_t dd[4][4];
        float y[32];
        y_queue(stage, ks, d, oe, dd, y);
        state_store(c, sp);
        wgmma_wait<1>();
        hold(y);
#pragma unroll
        for (int i = 0; i < 8; i++) hold(sp[i]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            hold(dd[i]);
            hold(od[i]);
        }
        uint32_t yp[4][4], yb[4][4];
        state_keys_queue(stage, y, yp, yb);
        if (!ENDS) send(c, yp);
        wgmma_wait<0>();
        hold(ds);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            hold(oe[i]);
            hold(yb[i]);
        }
    }
    __device__ void send(const back_meta &c, const uint32_t (&y)[4][4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            store8x8x4_trans(fragment_at_trans(tile::out_y_smem::at(out), warp, lane, i), y[i][0], y[i][1], y[i][2],
                             y[i][3]);
        if (thread == 0) {
            const int half = c.half + wg;
            *sent = {c.last ? NULL : a.m.ds + state_image(a.docs, c.head, half, c.row + CHUNK),
                     a.m.y + half_image(a.docs, c.head, half, c.row),
                     c.len * SLAB_ROW,
                     -1,
                     0,
                     0};
        }
        fence_async();
        named_arrive(BAR_OUT_READY + wg, OUT_THREADS);
    }
    __device__ void run()
    {
        for (pipeline_state<tile::STAGES> st;; st.next()) {
            tile::pipe::consumer_wait(at, st);
            const back_meta c = meta[st.stage];
            if (c.row < 0) break;
            const uint32_t stage = tile::stage_smem::at(at, st.stage);
            if (c.len < CHUNK) clear(stage, c.len);
            if (c.from != FROM_BEFORE) begin(c);
            step(c, stage);
            if (ENDS && c.to >= 0) end(c);
            __syncwarp();
            if (lane == 0) tile::pipe::consumer_release(at, st.stage);
        }
        if (ENDS) return;
        named_sync(BAR_OUT_FREE + wg, OUT_THREADS);
        if (thread == 0) sent->done = 1;
        named_arrive(BAR_OUT_READY + wg, OUT_THREADS);
    }
};
#endif

template <int WGS, bool ENDS>
__global__ void __launch_bounds__(back_tile<WGS>::THREADS, 1)
    delta_scan_back_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                           const __grid_constant__ CUtensorMap o, const back_args a)
{
#ifdef TILE90
    using tile = back_tile<WGS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < tile::STAGES; i++) {
            tile::pipe::init(at, i, 1, 4 * WGS);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp >= 4 * WGS) {
        if constexpr (WGS == 2) registers_give<24>();
        if (warp == 4 * WGS && one_lane()) back_produce<WGS, ENDS>(a, shared, &q, &k, &o);
        const int wg = warp - 4 * WGS - 1; // a warp queues their copies
        if (!ENDS && wg >= 0 && wg < WGS)
            scan_store<tile::out_ds_smem::AT, tile::out_y_smem::AT, 0>(
                (const scan_out *)(shared + tile::sent_smem::AT) + wg, tile::out_smem::at(at, wg), NULL, wg);
    } else {
        if constexpr (WGS == 2) registers_take<240>();
        back_group<WGS, ENDS>(a, shared).run();
    }
#endif
}

// ---- Launcher.

template <int WGS, bool ENDS> static status queue_back(const struct delta_bwd_args *a, const back_args &x, dev_stream s)
{
    using tile = back_tile<WGS>;
    const struct delta_docs &d = x.docs;
    // If few of the first step's units have work, as many blocks as units spread them over all multiprocessors.
    const int64_t units = (d.slots + (ENDS ? 0 : a->shape.docs)) * a->shape.heads * (2 / WGS),
                  each = ENDS ? units : cuda_set(s)->multiprocessors;
    CUtensorMap q, k, o;
    TRY(tile_map_rows(&q, s, a->q, d.rows, a->q_stride, d.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&k, s, a->k, d.rows, a->k_stride, d.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&o, s, a->do_, d.rows, d.heads * HEAD, d.heads * HEAD, CHUNK, WGS));
    // a failure shows at the launch
    cudaFuncSetAttribute(delta_scan_back_kernel<WGS, ENDS>, cudaFuncAttributeMaxDynamicSharedMemorySize, tile::BYTES);
    delta_scan_back_kernel<WGS, ENDS>
        <<<(unsigned)(units < each ? units : each), tile::THREADS, tile::BYTES, queue_of(s)>>>(q, k, o, x);
    return cuda_set_launched(s, "delta_bwd (hopper, scan)");
}

extern "C" status delta_hopper_bwd(const struct delta_bwd_args *a, dev_stream s)
{
    const struct delta_shape *n = &a->shape;
    if (n->rows == 0) return STATUS_OK;
    struct delta_memory_map m, saved;
    delta_hopper_layout(&m, (unsigned char *)a->scratch, n, DELTA_BWD);
    delta_hopper_layout_saved(&saved, (unsigned char *)(uintptr_t)a->saved, n);
    m.s = saved.s;
    m.d = saved.d;
    m.chain_back = saved.chain_back;
    const struct delta_docs docs = delta_hopper_docs(n, a->cu_seqlens);
    const struct delta_prepare_args prepare = {a->q,        a->k, a->g, a->beta,         a->q_stride,
                                               a->k_stride, docs, m,    (float)a->scale, a->normalize};
    const back_args x = {docs, m};
    TRY(delta_hopper_prepare(&prepare, s));
    if (docs.cut) {
        // except the documents' first pieces
        const int64_t ends = (docs.slots - (docs.docs < docs.slots ? docs.docs : 1)) * n->heads;
        TRY((2 * ends > cuda_set(s)->multiprocessors ? queue_back<2, true> : queue_back<1, true>)(a, x, s));
        TRY(delta_hopper_join_back(&docs, &m, s));
    }
    TRY((delta_hopper_both(&docs, s) ? queue_back<2, false> : queue_back<1, false>)(a, x, s));
    return delta_hopper_grad(a, &m, s);
}

