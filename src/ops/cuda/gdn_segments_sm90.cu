// The gated delta rule on Hopper: long documents in pieces (gdn_delta_sm90.cuh): the forward's first step, and the
// second step of both passes.
//
//   ends   a block has a piece, a head and one of two kinds of states: B of dv = 128 columns or, from the identity, A
//          of 128. The scan forward without output: S^T K^T -> R^T -> D^T = R^T T^T -> S^T. No such piece is a
//          document's last one, so all its chunks are whole.
//   join   X' = X A^T + B (forward), X' = X A + C (backward) for 8 of the 128 rows of S^T, piece after piece: rows are
//          independent, so there are 16 blocks per head. Factors are split in two tf32 each and three of the four
//          matmuls are computed: the sum over pieces is as exact as in f32. With FMAs, shared memory would be read
//          five times as long.
#include "ops/cuda/gdn_delta_sm90.cuh"

// ---- ends

enum { ENDS_WGS = 2, ENDS_STAGES = 4, ENDS_THREADS = ENDS_WGS * WARPGROUP + WARP };
// Shared memory: a stage, and the block.
using ends_k = smem_field<0, TILE>;
using ends_t = smem_field<ends_k::END, SLAB>;
using ends_v = smem_field<ends_t::END, SLAB, ENDS_WGS>;
using ends_f = smem_field<ends_v::END, FACTORS>;
using ends_stage = smem_field<0, ends_f::END, ENDS_STAGES>;
using ends_pipe = pipeline<ends_stage::END, ENDS_STAGES>;
enum { ENDS_BYTES = ends_pipe::END };
enum ends_kind { ENDS_B, ENDS_A, ENDS_KINDS };

struct ends_args {
    delta_docs docs;
    delta_memory_map m;
    const float *state_in;
};

#ifdef TILE90

__device__ inline void ends_produce(const ends_args &a, uint32_t at, const CUtensorMap *k, const CUtensorMap *v,
                                    const delta_piece &p, int head, int kind)
{
    const int slab = head / a.docs.group * 2;
    pipeline_state<ENDS_STAGES> st;
    for (int row = p.row; row < p.end; row += CHUNK, st.next()) {
        const uint32_t to = ends_stage::at(at, st.stage), bar = ends_pipe::full(at, st.stage);
        ends_pipe::producer_acquire(at, st);
        mbar_arrive_expect(bar, TILE + SLAB + FACTORS + (kind == ENDS_B ? ENDS_WGS * SLAB : 0));
        tma_load(ends_k::at(to), k, bar, row, slab);
        bulk_load(ends_f::at(to), a.m.factors + (int64_t)head * a.docs.rows + row, FACTORS, bar);
        if (kind == ENDS_B) tma_load(ends_v::at(to), v, bar, row, head * 2);
        bulk_load(ends_t::at(to), a.m.t + row_image(a.docs, head, row), SLAB, bar);
    }
}

struct ends_group {
    const ends_args &a;
    const delta_piece &p;
    uint32_t at;
    int head, kind, wg, thread, warp, lane;
    float s[64];

    __device__ int state_row() const { return wg * HALF + acc_row(thread, 0); }
    __device__ void store(float *base, int slot) const
    {
        float *to = piece_state(base, a.docs, slot, head) + state_row() * HEAD + acc_col(thread, 0);
#pragma unroll
        for (int i = 0; i < 64; i += 2)
            *(float2 *)(to + i / 2 % 2 * (8 * HEAD) + i / 4 * 8) = make_float2(s[i], s[i + 1]);
    }
    // A^T as join reads it. An accumulator's n-th 16 by 8 tile is the backward's operand as stored, rows of A^T
    // being rows of M; for the forward it is transposed. The 8 columns of a k may have any order if both factors
    // have the same.
    __device__ void store_chain(int slot) const
    {
        const int tile = wg * 4 + warp, g = lane / 4, t = lane % 4;
        float2 *fwd = (float2 *)piece_state(a.m.chain, a.docs, slot, head);
#pragma unroll
        for (int n = 0; n < 16; n += 2)
#pragma unroll
            for (int i = 0; i < 4; i++)
                fwd[((n / 2 * 16 + tile * 2 + i / 2) * WARP + (2 * t + i % 2) * 4 + g % 4) * 2 + g / 4] =
                    make_float2(s[4 * n + i], s[4 * n + 4 + i]);
        if (a.m.chain_back == NULL) return;
        float4 *back = (float4 *)piece_state(a.m.chain_back, a.docs, slot, head);
#pragma unroll
        for (int n = 0; n < 16; n++)
            back[(tile * 16 + n) * WARP + lane] = make_float4(s[4 * n], s[4 * n + 2], s[4 * n + 1], s[4 * n + 3]);
    }
    // The identity; zeros; or the state that enters the document, which the last step finds in the last piece's
    // slot: state_out may alias state_in.
    __device__ void begin()
    {
        const bool outside = kind == ENDS_B && p.index == 0 && a.state_in;
        const float *from = a.state_in + ((int64_t)p.doc * a.docs.heads + head) * PIECE_STATE;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int row = wg * HALF + acc_row(thread, i), col = acc_col(thread, i);
            s[i] = outside ? from[col * HEAD + row] : kind == ENDS_A && row == col ? 1.0f : 0.0f;
        }
        if (outside) store(a.m.link, p.last);
    }
    __device__ void step(uint32_t stage)
    {
        const uint32_t factors = ends_f::at(stage), column = lane % 4 * 2;
        uint32_t sp[8][4], v[4][4], r[4][4], df[4][4];
        float ks[32], d[32];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            pack_a(sp[i], s, i);
            hold(sp[i]);
        }
        fresh(ks);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) wgmma_rs<64>(ks, sp[i], operand_k(ends_k::at(stage) + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        const float decay = exp2_fast(shared_float4(factors + (CHUNK - 1) * 32 + 16).x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
            if (kind == ENDS_B) load8x8x4_trans(v[i], fragment_at_trans(ends_v::at(stage) + wg * SLAB, warp, lane, i));
            hold(v[i]);
        }
#pragma unroll
        for (int i = 0; i < 64; i++) s[i] *= decay;
        hold(s);
        wgmma_wait<0>();
        hold(ks);
#pragma unroll
        for (int i = 0; i < 8; i++) hold(sp[i]);
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
        fresh(d);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(r[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_rs<64>(d, r[i], operand_k(ends_t::at(stage) + step_k(i, CHUNK)), i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(d);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(r[i]);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float f0 = factor_rest(factors, n * 8 + column).x, f1 = factor_rest(factors, n * 8 + column + 1).x;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 4 * n + 2 * half;
                df[n / 2][n % 2 * 2 + half] = two_bf16(d[i] * f0, d[i + 1] * f1);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) hold(df[i]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) wgmma_rs<HEAD, 1>(s, df[i], operand_mn(ends_k::at(stage) + step_mn(i), SLAB), 1);
        wgmma_commit();
        wgmma_wait<0>();
        hold(s);
#pragma unroll
        for (int i = 0; i < 4; i++) hold(df[i]);
    }
    __device__ void run(int slot)
    {
        begin();
        pipeline_state<ENDS_STAGES> st;
        for (int row = p.row; row < p.end; row += CHUNK, st.next()) {
            ends_pipe::consumer_wait(at, st);
            step(ends_stage::at(at, st.stage));
            __syncwarp();
            if (lane == 0) ends_pipe::consumer_release(at, st.stage);
        }
        if (kind == ENDS_A) store_chain(slot);
        else store(a.m.link, slot);
    }
};
#endif

__global__ void __launch_bounds__(ENDS_THREADS, 1)
    delta_ends_kernel(const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const ends_args a)
{
#ifdef TILE90
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t at = shared_at(shared);
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0);
    const int kind = blockIdx.x % ENDS_KINDS, head = blockIdx.x / ENDS_KINDS % a.docs.heads,
              slot = blockIdx.x / ENDS_KINDS / a.docs.heads;
    const delta_piece p = a.m.pieces[slot];
    if (p.index + 1 >= p.count || (kind == ENDS_A && p.index == 0)) return; // not needed
    if (threadIdx.x == 0) {
        for (int i = 0; i < ENDS_STAGES; i++) {
            ends_pipe::init(at, i, 1, 4 * ENDS_WGS);
        }
        mbar_init_done();
    }
    __syncthreads();
    if (warp == 4 * ENDS_WGS) {
        if (one_lane()) ends_produce(a, at, &k, &v, p, head, kind);
    } else {
        const int thread = threadIdx.x % WARPGROUP;
        ends_group x = {a, p, at, head, kind, warp / 4, thread, thread / WARP, thread % WARP, {}};
        x.run(slot);
    }
#endif
}

// ---- join

// The matmul is X'^T = M X^T: a warp has 16 columns of X' and half of the depth, in registers as mma reads them.
enum { JOIN_ROWS = 8, JOIN_HALVES = 2, JOIN_WARPS = JOIN_HALVES * HEAD / 16, JOIN_THREADS = JOIN_WARPS * WARP };
enum { JOIN_STEPS = HEAD / JOIN_HALVES / 8, JOIN_PITCH = HEAD + 4, JOIN_EACH = JOIN_ROWS * HEAD / JOIN_THREADS };
enum join_pass { JOIN_FWD, JOIN_BACK };

#ifdef TILE90

__device__ inline uint32_t tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
    return y;
}
__device__ inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <int COUNT>
__device__ inline void split(uint32_t (&high)[COUNT], uint32_t (&low)[COUNT], const float (&x)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        high[i] = tf32(x[i]);
        low[i] = tf32(x[i] - __uint_as_float(high[i]));
    }
}

template <join_pass PASS> struct join_group {
    int tile, half, lane; // of M: 16 rows; half of the columns

    __device__ join_group()
        : tile(threadIdx.x / WARP / JOIN_HALVES), half(threadIdx.x / WARP % JOIN_HALVES), lane(threadIdx.x % WARP)
    {
    }
    __device__ void fetch(float4 (&m)[JOIN_STEPS], const float *chain) const
    {
#pragma unroll
        for (int i = 0; i < JOIN_STEPS; i++)
            m[i] = __ldg((const float4 *)chain + (tile * 16 + half * JOIN_STEPS + i) * WARP + lane);
    }
    __device__ void multiply(float (*to)[JOIN_PITCH], const float4 (&m)[JOIN_STEPS], const float (*x)[JOIN_PITCH]) const
    {
        const float *row = x[lane / 4] + half * (JOIN_STEPS * 8) + (PASS == JOIN_FWD ? lane % 4 : lane % 4 * 2);
        float sum[4] = {}, rest[4] = {};
#pragma unroll
        for (int i = 0; i < JOIN_STEPS; i++) {
            const float a[4] = {m[i].x, m[i].y, m[i].z, m[i].w},
                        b[2] = {row[i * 8], row[i * 8 + (PASS == JOIN_FWD ? 4 : 1)]};
            uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
            split(a_high, a_low, a);
            split(b_high, b_low, b);
            mma_tf32(sum, a_high, b_high);
            mma_tf32(rest, a_high, b_low);
            mma_tf32(rest, a_low, b_high);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) to[lane % 4 * 2 + i % 2][tile * 16 + lane / 4 + i / 2 * 8] = sum[i] + rest[i];
    }
};
#endif

template <join_pass PASS>
__global__ void __launch_bounds__(JOIN_THREADS) delta_join_kernel(const delta_docs d, const delta_memory_map m)
{
#ifdef TILE90
    __shared__ float x[JOIN_ROWS][JOIN_PITCH], part[JOIN_HALVES][JOIN_ROWS][JOIN_PITCH];
    __shared__ int slots[CUT_STATES];
    const int block = blockIdx.x % (HEAD / JOIN_ROWS), head = blockIdx.x / (HEAD / JOIN_ROWS) % d.heads;
    // Once per document, by the blocks of its first piece: from there on, or from its last piece back.
    const delta_piece p = m.pieces[blockIdx.x / (HEAD / JOIN_ROWS) / d.heads];
    if (p.count == 0 || p.index > 0) return;
    const int rows = __ldg(d.cu + p.doc + 1) - p.row, steps = p.count - 2;
    if ((int)threadIdx.x < p.count)
        slots[PASS == JOIN_FWD ? threadIdx.x : p.count - 1 - threadIdx.x] =
            piece_slot(d, p.row, rows, p.count, threadIdx.x);
    __syncthreads();
    const join_group<PASS> g;
    float4 chain[JOIN_STEPS], chain_ahead[JOIN_STEPS];
    float end[JOIN_EACH], end_ahead[JOIN_EACH];
    auto link = [&](int step) { return piece_state(m.link, d, slots[step], head) + block * (JOIN_ROWS * HEAD); };
    auto fetch = [&](float4(&c)[JOIN_STEPS], float(&e)[JOIN_EACH], int step) {
#pragma unroll
        for (int i = 0; i < JOIN_EACH; i++) e[i] = link(step)[i * JOIN_THREADS + threadIdx.x];
        g.fetch(c, piece_state(PASS == JOIN_FWD ? m.chain : m.chain_back, d, slots[step], head));
    };
    fetch(chain, end, 1);
    for (int i = threadIdx.x; i < JOIN_ROWS * HEAD; i += JOIN_THREADS) x[i / HEAD][i % HEAD] = link(0)[i];
    __syncthreads();
    for (int step = 1; step <= steps; step++) {
        if (step < steps) fetch(chain_ahead, end_ahead, step + 1);
        g.multiply(part[g.half], chain, x);
        __syncthreads();
        float *to = link(step);
#pragma unroll
        for (int i = 0; i < JOIN_EACH; i++) {
            const int at = i * JOIN_THREADS + threadIdx.x, row = at / HEAD, col = at % HEAD;
            x[row][col] = to[at] = end[i] + (part[0][row][col] + part[1][row][col]);
            end[i] = end_ahead[i];
        }
#pragma unroll
        for (int i = 0; i < JOIN_STEPS; i++) chain[i] = chain_ahead[i];
        __syncthreads();
    }
#endif
}

// ---- Launchers.

template <join_pass PASS>
static status queue_join(const struct delta_docs *d, const struct delta_memory_map *m, dev_stream s)
{
    delta_join_kernel<PASS>
        <<<(unsigned)(d->slots * d->heads * (HEAD / JOIN_ROWS)), JOIN_THREADS, 0, queue_of(s)>>>(*d, *m);
    return cuda_set_launched(s, "delta (hopper, join)");
}

status delta_hopper_pieces(const struct delta_fwd_args *a, const struct delta_docs *d, const struct delta_memory_map *m,
                           dev_stream s)
{
    const ends_args x = {*d, *m, (const float *)a->state_in};
    CUtensorMap k, v;
    TRY(tile_map_rows(&k, s, a->k, d->rows, a->k_stride, d->heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&v, s, a->v, d->rows, a->v_stride, d->heads * HEAD, CHUNK, ENDS_WGS));
    // a failure shows at the launch
    cudaFuncSetAttribute(delta_ends_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ENDS_BYTES);
    delta_ends_kernel<<<(unsigned)(d->slots * d->heads * ENDS_KINDS), ENDS_THREADS, ENDS_BYTES, queue_of(s)>>>(k, v, x);
    TRY(cuda_set_launched(s, "delta_fwd (hopper, ends)"));
    return queue_join<JOIN_FWD>(d, m, s);
}

status delta_hopper_join_back(const struct delta_docs *d, const struct delta_memory_map *m, dev_stream s)
{
    return queue_join<JOIN_BACK>(d, m, s);
}
