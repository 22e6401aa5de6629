// The gated delta rule on Hopper: the scan forward (gdn_delta_sm90.cuh). The state is transposed and in registers:
// a warpgroup has 64 columns of dv, so S^T is its accumulator [64 dv, 128 dk], and every matmul of the chain reads
// operand A from registers:
//
//   S^T K^T, S^T Q^T  ->  R^T = beta V^T - beta e (S^T K^T)  ->  D^T = R^T T^T
//                     ->  S^T = e_last S^T + (f D^T) K,  O^T = s e (S^T Q^T) + D^T P^T
//
//   work unit   a document (or a piece of one), a head and WGS halves of dv: both in one block if there are enough
//               blocks, which reads the tiles once
//   producer    one warp: STAGES chunks ahead, across the ends of documents
//   output      O, and for backward S and D: in shared memory until TMA has stored it
//
// Nothing passes through shared memory between chunks.
#include "ops/cuda/gdn_delta_sm90.cuh"

template <int WGS> struct scan_tile {
    enum { STAGES = WGS == 1 ? 3 : 2, THREADS = WARPGROUP * (WGS + 1) };
    // A stage.
    using k_smem = smem_field<0, TILE>;
    using q_smem = smem_field<k_smem::END, TILE>;
    using t_smem = smem_field<q_smem::END, SLAB>;
    using p_smem = smem_field<t_smem::END, SLAB>;
    using v_smem = smem_field<p_smem::END, SLAB, WGS>;
    using f_smem = smem_field<v_smem::END, FACTORS>;
    // What a warpgroup stores.
    using out_s_smem = smem_field<0, STATE_HALF>;
    using out_d_smem = smem_field<out_s_smem::END, SLAB>;
    using out_o_smem = smem_field<out_d_smem::END, SLAB>;
    // The block.
    using stage_smem = smem_field<0, f_smem::END, STAGES>;
    using out_smem = smem_field<stage_smem::END, out_o_smem::END, WGS>;
    using meta_smem = smem_field<out_smem::END, 32, STAGES>;
    using sent_smem = smem_field<meta_smem::END, 32, WGS>;
    using pipe = pipeline<sent_smem::END, STAGES>;
    enum { BYTES = pipe::END };
};

struct scan_fwd {
    delta_docs docs;
    delta_memory_map m;
    __nv_bfloat16 *o;
    const float *state_in;
    float *state_out;
};
// Contents of a stage; row < 0: no more. from: source of the state before it: a slot, or see gdn_delta_sm90.cuh.
struct scan_meta { int row, len, first, last, head, half, doc, from; };

#ifdef TILE90

template <int WGS>
__device__ inline void scan_produce(const scan_fwd &a, unsigned char *shared, const CUtensorMap *q,
                                    const CUtensorMap *k, const CUtensorMap *v)
{
    using tile = scan_tile<WGS>;
    const uint32_t at = shared_at(shared);
    auto *meta = (scan_meta *)(shared + tile::meta_smem::AT);
    constexpr int HALVES = 2 / WGS;
    const int docs = a.state_out ? a.docs.docs : a.m.counts[COUNT_DOCS],
              units = (a.docs.slots + docs) * a.docs.heads * HALVES;
    pipeline_state<tile::STAGES> st;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        delta_unit u;
        if (!unit_find(a.docs, a.m, unit, HALVES, u)) continue;
        const int slab = u.head / a.docs.group * 2;
        int from = FROM_OUTSIDE;
        if (u.piece >= 0) {
            const delta_piece &p = a.m.pieces[u.piece];
            from = p.index > 0 ? p.before : a.state_in ? p.last : FROM_OUTSIDE;
        }
        for (int row = u.row; row < u.end; row += CHUNK, st.next()) {
            const uint32_t to = tile::stage_smem::at(at, st.stage), bar = tile::pipe::full(at, st.stage);
            const int head = u.head, len = min(CHUNK, u.stop - row);
            tile::pipe::producer_acquire(at, st);
            meta[st.stage] = {row,  len,    row == u.begin, row + CHUNK >= u.stop,
                              head, u.half, u.doc,          row == u.row ? from : FROM_BEFORE};
            mbar_arrive_expect(bar, 2 * TILE + WGS * SLAB + len * (2 * SLAB_ROW + 32));
            tma_load(tile::k_smem::at(to), k, bar, row, slab);
            bulk_load(tile::f_smem::at(to), a.m.factors + (int64_t)head * a.docs.rows + row, len * 32, bar);
            tma_load(tile::v_smem::at(to), v, bar, row, head * 2 + u.half);
            bulk_load(tile::t_smem::at(to), a.m.t + row_image(a.docs, head, row), len * SLAB_ROW, bar);
            tma_load(tile::q_smem::at(to), q, bar, row, slab);
            bulk_load(tile::p_smem::at(to), a.m.p + row_image(a.docs, head, row), len * SLAB_ROW, bar);
        }
    }
    tile::pipe::producer_acquire(at, st);
    meta[st.stage].row = -1;
    tile::pipe::producer_commit(at, st.stage);
}

template <int WGS> struct scan_group {
    using tile = scan_tile<WGS>;
    const scan_fwd &a;
    const scan_meta *meta;
    scan_out *sent;
    uint32_t at, out;
    int wg, thread, warp, lane;
    float s[64], o[32];
    struct { int row, len, slab, stage; } before; // the chunk whose O is in o; row < 0: none

    __device__ scan_group(const scan_fwd &a_, unsigned char *shared)
        : a(a_), meta((const scan_meta *)(shared + tile::meta_smem::AT)), at(shared_at(shared)),
          wg(threadIdx.x / WARPGROUP), thread(threadIdx.x % WARPGROUP), warp(thread / WARP), lane(thread % WARP)
    {
        out = tile::out_smem::at(at, wg);
        sent = (scan_out *)(shared + tile::sent_smem::AT) + wg;
    }
    __device__ void sync() const { named_sync(1 + wg, WARPGROUP); }
    __device__ int64_t state_at(const scan_meta &c, int i) const
    {
        const int dv = (c.half + wg) * HALF + acc_row(thread, i);
        return (((int64_t)c.doc * a.docs.heads + c.head) * HEAD + acc_col(thread, i)) * HEAD + dv;
    }
    __device__ void begin(const scan_meta &c)
    {
        if (c.from >= 0) {
            const float *from = piece_state(a.m.link, a.docs, c.from, c.head) +
                                ((c.half + wg) * HALF + acc_row(thread, 0)) * HEAD + acc_col(thread, 0);
#pragma unroll
            for (int i = 0; i < 64; i += 2) {
                const float2 x = *(const float2 *)(from + i / 2 % 2 * (8 * HEAD) + i / 4 * 8);
                s[i] = x.x;
                s[i + 1] = x.y;
            }
        } else if (a.state_in)
#pragma unroll
            for (int i = 0; i < 64; i++) s[i] = a.state_in[state_at(c, i)];
        else
#pragma unroll
            for (int i = 0; i < 64; i++) s[i] = 0;
    }
    // Rows past a short chunk: zeros, by all warpgroups.
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

    // Queues S^T K^T and the first half of S^T Q^T; packs O of the chunk before into before_o.
    __device__ __forceinline__ void state_queue(uint32_t stage, uint32_t (&sp)[8][4], float (&ks)[32],
                                                uint32_t (&before_o)[4][4])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pack_a(sp[i], s, i);
            hold(sp[i]);
        }
        fresh(ks);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++)
            wgmma_rs<64>(ks, sp[i], operand_k(tile::k_smem::at(stage) + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        wgmma_wait<1>(); // O of the chunk before
        hold(o);
        if (before.row >= 0) release(before.stage);
#pragma unroll
        for (int i = 0; i < 4; i++) pack_a(before_o[i], o, i);
        fresh(o);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<64>(o, sp[i], operand_k(tile::q_smem::at(stage) + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
    }
    // R^T = beta V^T - beta e (S^T K^T), as operand A.
    __device__ __forceinline__ void residual(uint32_t factors, const uint32_t (&v)[4][4], const float (&ks)[32],
                                             uint32_t (&r)[4][4]) const
    {
        const uint32_t column = lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f0 = factor_beta(factors, n * 8 + column), f1 = factor_beta(factors, n * 8 + column + 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t x = v[n / 2][n % 2 * 2 + half];
                r[n / 2][n % 2 * 2 + half] = two_bf16(f0.x * low_f32(x) - f0.y * ks[4 * n + 2 * half],
                                                      f1.x * high_f32(x) - f1.y * ks[4 * n + 2 * half + 1]);
            }
        }
    }
    // Queues D^T = R^T T^T and the second half of S^T Q^T.
    __device__ __forceinline__ void delta_queue(uint32_t stage, const uint32_t (&sp)[8][4], uint32_t (&r)[4][4],
                                                float (&d)[32])
    {
        fresh(d);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(r[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_rs<64>(d, r[i], operand_k(tile::t_smem::at(stage) + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
#pragma unroll
        for (int i = 4; i < 8; i++) wgmma_rs<64>(o, sp[i], operand_k(tile::q_smem::at(stage) + step_k(i, CHUNK)), 1);
        wgmma_commit();
    }
    // S that enters the chunk and O of the chunk before, to shared memory.
    __device__ __forceinline__ void out_store(const scan_meta &c, const uint32_t (&sp)[8][4],
                                              const uint32_t (&before_o)[4][4]) const
    {
        named_sync(BAR_OUT_FREE + wg, OUT_THREADS);
        if (a.m.s && !c.first)
#pragma unroll
            for (int i = 0; i < 8; i++)
                store8x8x4(fragment_at(tile::out_s_smem::at(out) + i / 4 * SLAB, warp, lane, i % 4), sp[i][0], sp[i][1],
                           sp[i][2], sp[i][3]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            store8x8x4_trans(fragment_at_trans(tile::out_o_smem::at(out), warp, lane, i), before_o[i][0],
                             before_o[i][1], before_o[i][2], before_o[i][3]);
    }
    // Queues S^T += (f D^T) K; e_q scales S^T Q^T.
    __device__ __forceinline__ void state_update(uint32_t stage, const float (&d)[32], uint32_t (&df)[4][4],
                                                 float (&e_q)[16])
    {
        const uint32_t factors = tile::f_smem::at(stage), column = lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 f0 = factor_rest(factors, n * 8 + column), f1 = factor_rest(factors, n * 8 + column + 1);
            e_q[2 * n] = f0.y;
            e_q[2 * n + 1] = f1.y;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 4 * n + 2 * half;
                df[n / 2][n % 2 * 2 + half] = two_bf16(d[i] * f0.x, d[i + 1] * f1.x);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) hold(df[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_rs<HEAD, 1>(s, df[i], operand_mn(tile::k_smem::at(stage) + step_mn(i), SLAB), 1);
        wgmma_commit();
    }
    // Queues O^T = s e (S^T Q^T) + D^T P^T; dp is D^T.
    __device__ __forceinline__ void output_queue(uint32_t stage, const float (&d)[32], const float (&e_q)[16],
                                                 uint32_t (&dp)[4][4])
    {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 4 * n + 2 * half;
                dp[n / 2][n % 2 * 2 + half] = two_bf16(d[i], d[i + 1]);
                o[i] *= e_q[2 * n];
                o[i + 1] *= e_q[2 * n + 1];
            }
        }
        hold(o);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(dp[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_rs<64>(o, dp[i], operand_k(tile::p_smem::at(stage) + step_k(i, CHUNK)), 1);
        wgmma_commit();
    }

    // S^T becomes that of the next chunk; o is left with D^T P^T in flight, and on entry holds the same of the
    // chunk before. The matmuls are ordered by their waits: those that need none (Q) fill the gaps of the
    // arithmetic.
    __device__ void step(const scan_meta &c, uint32_t stage)
    {
        const uint32_t factors = tile::f_smem::at(stage);
        uint32_t sp[8][4], before_o[4][4];
        float ks[32], d[32];
        state_queue(stage, sp, ks, before_o);
        const float decay = exp2_fast(shared_float4(factors + (c.len - 1) * 32 + 16).x);
        uint32_t v[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load8x8x4_trans(v[i], fragment_at_trans(tile::v_smem::at(stage) + wg * SLAB, warp, lane, i));
        wgmma_wait<1>();
        hold(ks);
        uint32_t r[4][4];
        residual(factors, v, ks, r);
        delta_queue(stage, sp, r, d);
#pragma unroll
        for (int i = 0; i < 64; i++) s[i] *= decay;
        hold(s);
        out_store(c, sp, before_o);
        wgmma_wait<1>();
        hold(d);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(r[i]);
        uint32_t dp[4][4], df[4][4];
        float e_q[16];
        state_update(stage, d, df, e_q);
        wgmma_wait<1>();
        hold(o);
#pragma unroll
        for (int i = 0; i < 8; i++) hold(sp[i]);
        output_queue(stage, d, e_q, dp);
        if (a.m.d)
#pragma unroll
            for (int i = 0; i < 4; i++)
                store8x8x4_trans(fragment_at_trans(tile::out_d_smem::at(out), warp, lane, i), dp[i][0], dp[i][1],
                                 dp[i][2], dp[i][3]);
        const int half = c.half + wg;
        send(a.m.s && !c.first ? a.m.s + state_image(a.docs, c.head, half, c.row) : NULL,
             a.m.d ? a.m.d + half_image(a.docs, c.head, half, c.row) : NULL, c.len * SLAB_ROW);
        wgmma_wait<1>();
        hold(s);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(df[i]);
    }
    // Stores what is in shared memory, with O of the chunk before.
    __device__ void send(unsigned char *state, unsigned char *rows, int rows_bytes)
    {
        const bool whole = before.row >= 0 && before.len == CHUNK;
        if (thread == 0) *sent = {state, rows, rows_bytes, whole ? before.row : -1, before.slab, 0};
        fence_async();
        named_arrive(BAR_OUT_READY + wg, OUT_THREADS);
        if (before.row < 0 || whole) return;
        sync();
        for (int i = thread; i < before.len * 8; i += WARPGROUP) {
            const uint4 x = shared_uint4(tile::out_o_smem::at(out) + slab_offset(i / 8, i % 8 * 8));
            *(uint4 *)(a.o + (int64_t)(before.row + i / 8) * (a.docs.heads * HEAD) + before.slab * HALF + i % 8 * 8) =
                x;
        }
    }
    __device__ void release(int stage) const
    {
        __syncwarp();
        if (lane == 0) tile::pipe::consumer_release(at, stage);
    }
    __device__ void run()
    {
#pragma unroll
        for (int i = 0; i < 32; i++) o[i] = 0;
        before.row = -1;
        for (pipeline_state<tile::STAGES> st;; st.next()) {
            tile::pipe::consumer_wait(at, st);
            const scan_meta c = meta[st.stage];
            if (c.row < 0) break;
            const uint32_t stage = tile::stage_smem::at(at, st.stage);
            if (c.len < CHUNK) clear(stage, c.len);
            if (c.from != FROM_BEFORE) begin(c);
            step(c, stage);
            before = {c.row, c.len, c.head * 2 + c.half + wg, st.stage};
            if (c.last && a.state_out)
#pragma unroll
                for (int i = 0; i < 64; i++) a.state_out[state_at(c, i)] = s[i];
        }
        wgmma_wait<0>();
        hold(o);
        named_sync(BAR_OUT_FREE + wg, OUT_THREADS);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t x[4];
            pack_a(x, o, i);
            store8x8x4_trans(fragment_at_trans(tile::out_o_smem::at(out), warp, lane, i), x[0], x[1], x[2], x[3]);
        }
        send(NULL, NULL, 0);
        named_sync(BAR_OUT_FREE + wg, OUT_THREADS);
        if (thread == 0) sent->done = 1;
        named_arrive(BAR_OUT_READY + wg, OUT_THREADS);
    }
};

// The states of empty documents, which no chunk writes.
template <int WGS> __device__ inline void scan_empty(const scan_fwd &a)
{
    const int64_t size = HEAD * HEAD;
    for (int unit = blockIdx.x; unit < a.docs.docs * a.docs.heads; unit += gridDim.x) {
        const int doc = unit / a.docs.heads;
        if (__ldg(a.docs.cu + doc) != __ldg(a.docs.cu + doc + 1)) continue;
        for (int64_t i = unit * size + threadIdx.x; i < (unit + 1) * size; i += scan_tile<WGS>::THREADS)
            a.state_out[i] = a.state_in ? a.state_in[i] : 0.0f;
    }
}
#endif

template <int WGS>
__global__ void __launch_bounds__(scan_tile<WGS>::THREADS, 1)
    delta_scan_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                      const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap o, const scan_fwd a)
{
#ifdef TILE90
    using tile = scan_tile<WGS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < tile::STAGES; i++) {
            tile::pipe::init(at, i, 1, 4 * WGS);
        }
        mbar_init_done();
    }
    if (a.state_out) scan_empty<WGS>(a);
    __syncthreads();
    if (warp >= 4 * WGS) {
        if constexpr (WGS == 2) registers_give<24>();
        if (warp == 4 * WGS && one_lane()) scan_produce<WGS>(a, shared, &q, &k, &v);
        const int wg = warp - 4 * WGS - 1; // a warp queues their copies
        if (wg >= 0 && wg < WGS)
            scan_store<tile::out_s_smem::AT, tile::out_d_smem::AT, tile::out_o_smem::AT>(
                (const scan_out *)(shared + tile::sent_smem::AT) + wg, tile::out_smem::at(at, wg), &o, wg);
    } else {
        if constexpr (WGS == 2) registers_take<240>();
        scan_group<WGS>(a, shared).run();
    }
#endif
}

// ---- Launcher.

template <int WGS> static status queue_scan(const struct delta_fwd_args *a, const scan_fwd &x, dev_stream s)
{
    using tile = scan_tile<WGS>;
    const struct delta_docs &d = x.docs;
    const int64_t units = (d.slots + a->shape.docs) * a->shape.heads * (2 / WGS), each = cuda_set(s)->multiprocessors;
    CUtensorMap q, k, v, o;
    TRY(tile_map_rows(&q, s, a->q, d.rows, a->q_stride, d.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&k, s, a->k, d.rows, a->k_stride, d.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&v, s, a->v, d.rows, a->v_stride, d.heads * HEAD, CHUNK, WGS));
    TRY(tile_map_rows(&o, s, a->o, d.rows, d.heads * HEAD, d.heads * HEAD, CHUNK, 1));
    // a failure shows at the launch
    cudaFuncSetAttribute(delta_scan_kernel<WGS>, cudaFuncAttributeMaxDynamicSharedMemorySize, tile::BYTES);
    delta_scan_kernel<WGS>
        <<<(unsigned)(units < each ? units : each), tile::THREADS, tile::BYTES, queue_of(s)>>>(q, k, v, o, x);
    return cuda_set_launched(s, "delta_fwd (hopper)");
}

// Without rows, states pass through.
static status delta_hopper_idle(const struct delta_fwd_args *a, dev_stream s)
{
    const size_t bytes = (size_t)(a->shape.docs * a->shape.heads) * (HEAD * HEAD * sizeof(float));
    if (a->state_out == NULL || a->state_out == a->state_in) return STATUS_OK;
    if (a->state_in) cudaMemcpyAsync(a->state_out, a->state_in, bytes, cudaMemcpyDeviceToDevice, queue_of(s));
    else cudaMemsetAsync(a->state_out, 0, bytes, queue_of(s));
    return cuda_set_launched(s, "delta_fwd (hopper)");
}

extern "C" status delta_hopper_fwd(const struct delta_fwd_args *a, dev_stream s)
{
    const struct delta_shape *n = &a->shape;
    if (n->rows == 0) return delta_hopper_idle(a, s);
    struct delta_memory_map m, saved = {};
    delta_hopper_layout(&m, (unsigned char *)a->scratch, n, DELTA_FWD);
    if (a->saved) delta_hopper_layout_saved(&saved, (unsigned char *)a->saved, n);
    m.s = saved.s;
    m.d = saved.d;
    m.chain_back = saved.chain_back;
    const struct delta_docs docs = delta_hopper_docs(n, a->cu_seqlens);
    const struct delta_prepare_args prepare = {a->q,        a->k, a->g, a->beta,         a->q_stride,
                                               a->k_stride, docs, m,    (float)a->scale, a->normalize};
    const scan_fwd x = {docs, m, (__nv_bfloat16 *)a->o, (const float *)a->state_in, (float *)a->state_out};
    TRY(delta_hopper_prepare(&prepare, s));
    if (docs.cut) TRY(delta_hopper_pieces(a, &docs, &m, s));
    return delta_hopper_both(&docs, s) ? queue_scan<2>(a, x, s) : queue_scan<1>(a, x, s);
}

