// Attention in tiles for BF16, after FlashAttention-2 (Dao, arXiv:2307.08691), for every GPU from sm_80 on: matmuls
// by mma.m16n8k16, tiles in shared memory by cp.async, one tile ahead. F32: attn_f32.cu.
//
//   forward   block = 128 query rows of one head (64 for heads of 192); 32 rows per warp: O, running max and sum in
//             registers
//   dq        the same blocks; S and dP = dO V^T recomputed per tile of keys, dQ = sum of dS K in registers
//   dk, dv    block = 64 key rows (128 for heads of 64) of one kv head; S^T and dP^T, so P^T and dS^T are in registers
//             as the next matmul needs them: dV = sum of P^T dO, dK = sum of dS^T Q over the queries that see the
//             keys, head after head of the group
//
//   rows      all documents are one axis, cut into blocks regardless of documents: the grid depends on the number of
//             rows alone. Each row has its own limits (attn_docs.cuh). The limits of a block's first and last row
//             bound its tiles; a warp skips tiles that none of its rows sees, and masks only in tiles that its limits
//             cross.
//   bits      each result has one writer and one order of sums: equal in every run. The price: backward computes S
//             and dP twice, seven matmuls instead of five.
//   tiles     rows of HD bf16, zero-padded (heads shorter than HD, values than HDV, rows past the last). The 16-byte
//             chunk c of row r is at chunk c ^ (r & 7), so ldmatrix (one chunk of eight rows) and copies (the chunks
//             of one row) touch all banks once. Rows of 192 are 256 apart: the bits of chunk and row stay separate.
#include "ops/cuda/attn_docs.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { THREADS = 128, WARPS = THREADS / WARP };
constexpr float LOG2E = 1.44269504088896340736f;

// ---- Tiles and fragments. Addresses are 32-bit addresses of shared memory.

// Bytes from row to row of a tile.
template <int HD> __device__ constexpr int row_bytes() { return HD == 192 ? 512 : HD * 2; }

__device__ inline uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// cp.async; if not `there`, zeros are written and nothing is read.
__device__ inline void copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void copy4(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(there ? 4 : 0));
}
__device__ inline void copies_close() { asm volatile("cp.async.commit_group;\n" ::); }
__device__ inline void copies_wait() { asm volatile("cp.async.wait_group 0;\n" ::: "memory"); }

// Queues a tile: row i comes from `from` + i * stride; the first `valid` rows exist (none if negative), `chunks` of
// each.
template <int ROWS, int HD>
__device__ inline void tile_load(uint32_t to, const __nv_bfloat16 *from, int64_t stride, int valid, int chunks)
{
    // STEP is a multiple of 8: the swizzle is the same in all steps
    constexpr int PER_ROW = HD == 128 ? 16 : 8, STEP = THREADS / PER_ROW;
    int thread;
    // recomputed each time: none of this is worth a register between tiles
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const int row = thread / PER_ROW, c = thread % PER_ROW;
    const uint32_t at = to + row * row_bytes<HD>() + ((c ^ (row & 7)) << 4);
    const __nv_bfloat16 *p = from + row * stride + c * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP)
#pragma unroll
        for (int j = 0; j < HD / 8; j += PER_ROW)
            copy16(at + i * row_bytes<HD>() + j * 16, p + i * stride + j * 8, row + i < valid && c + j < chunks);
}

// The address of a lane for ldmatrix.x4 of the 16 x 16 piece at row 0, column 0 of a tile. Column 16 k: xor (k <<
// 5); row 16 i: add.
//   lane_mn: the four 8 x 8 matrices in order down, right: operand A as stored, operand B from a tile of rows k
//       (transposed load)
//   lane_nm: in order right, down: operand B from a tile of rows n, two neighbouring n8 pieces
template <int HD> __device__ inline uint32_t lane_mn(int lane)
{
    return (lane & 15) * row_bytes<HD>() + (((lane >> 4) ^ (lane & 7)) << 4);
}
template <int HD> __device__ inline uint32_t lane_nm(int lane)
{
    return ((lane & 7) + (lane >> 4 << 3)) * row_bytes<HD>() + ((((lane >> 3) & 1) ^ (lane & 7)) << 4);
}

__device__ inline void ldmatrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void ldmatrix_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
// c += a b. Lane (g = lane / 4, t = lane % 4) has rows g (c[0], c[1]) and g + 8 (c[2], c[3]), columns 2t and 2t + 1
// of c.
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline uint32_t two_bf16(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&x);
}
__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

template <int M, int N> __device__ inline void zero(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[m][n][e] = 0;
}

// c[16 M rows][8 N columns] = A B^T over HD: rows of tile A (a_at: lane_mn) times rows of tile B (b_at: lane_nm).
template <int HD, int M, int N> __device__ inline void rows_by_rows(float (&c)[M][N][4], uint32_t a_at, uint32_t b_at)
{
    zero(c);
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) ldmatrix(a[m], (a_at ^ (k << 5)) + m * (16 * row_bytes<HD>()));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            ldmatrix(b, (b_at ^ (k << 5)) + n * (8 * row_bytes<HD>()));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m][n], a[m], b[0], b[1]);
                mma(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
// c[16 M rows][HD] += s B: s in registers as a matmul left it, rounded to bf16, times the 8 K rows of tile B (b_at:
// lane_mn).
template <int HD, int M, int K>
__device__ inline void registers_by_tile(float (&c)[M][HD / 8][4], const float (&s)[M][K][4], uint32_t b_at)
{
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            a[m][0] = two_bf16(s[m][k][0], s[m][k][1]);
            a[m][1] = two_bf16(s[m][k][2], s[m][k][3]);
            a[m][2] = two_bf16(s[m][k + 1][0], s[m][k + 1][1]);
            a[m][3] = two_bf16(s[m][k + 1][2], s[m][k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < HD / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_trans(b, (b_at ^ (n << 4)) + k * (8 * row_bytes<HD>()));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m][n], a[m], b[0], b[1]);
                mma(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Stores a warp's accumulators to global memory as bf16, through its own rows of a tile that it no longer reads
// (`at`: their first byte). factor[m][half] multiplies a row; the first `valid` rows exist.
template <int HD, int M>
__device__ inline void rows_store(const float (&c)[M][HD / 8][4], const float (&factor)[M][2], uint32_t at,
                                  __nv_bfloat16 *to, int64_t stride, int valid, int chunks)
{
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                const int row = m * 16 + half * 8 + g; // row & 7 == g
                uint32_t x = two_bf16(c[m][n][half * 2] * factor[m][half], c[m][n][half * 2 + 1] * factor[m][half]);
                asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at + row * row_bytes<HD>() + ((n ^ g) << 4) + t * 4),
                             "r"(x)
                             : "memory");
            }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < M * 16 * (HD / 8); i += WARP) {
        const int row = i / (HD / 8), chunk = i % (HD / 8);
        int4 x;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(at + row * row_bytes<HD>() + ((chunk ^ (row & 7)) << 4))
                     : "memory");
        if (row < valid && chunk < chunks) *reinterpret_cast<int4 *>(to + row * stride + chunk * 8) = x;
    }
}

// ---- Rows and their limits.

// Limits are in shared memory: these kernels are short of registers.

// Query rows of one warp in forward and dq: 16 MT from `row` on; this lane's rows are row + 16 m + 8 half + g.
template <int MT> struct query_rows {
    int row;
    bool exist;
    const int *first, *last; // [16 MT] each in shared memory: keys_of each row

    __device__ query_rows(const attn_docs &docs, int row_, int *limits)
        : row(row_), exist(row_ < docs.rows), first(limits), last(limits + 16 * MT)
    {
        const int lane = threadIdx.x % WARP;
        if (lane < 16 * MT) {
            const key_span keys = keys_of(docs, min(row + lane, docs.rows - 1));
            limits[lane] = keys.first;
            limits[16 * MT + lane] = keys.last;
        }
        __syncwarp();
    }
    // Of keys [key, key + N): does any row see one; does every row see all?
    template <int N> __device__ bool any(int key) const
    {
        return exist && key <= last[16 * MT - 1] && key + N > first[0];
    }
    template <int N> __device__ bool all(int key) const { return key + N - 1 <= last[0] && key >= first[16 * MT - 1]; }
};

// Arguments of the kernels. Chunks of 16 bytes in a head of keys and of values.
struct own_shape {
    attn_docs docs;
    int heads, group, chunks, chunks_v; // group: query heads of one kv head
    float scale, scale2;      // scale2: for exp2
};

// Block `blockIdx.x` of `rows_each` rows. Late rows see most keys and start first; heads of one group run side by
// side.
struct row_block { int row, head; };
__device__ inline row_block late_first(const own_shape &a, int rows_each)
{
    const int blocks = (a.docs.rows + rows_each - 1) / rows_each;
    return {(blocks - 1 - (int)(blockIdx.x / a.heads)) * rows_each, (int)(blockIdx.x % a.heads)};
}

// ---- Forward.

struct own_fwd {
    own_shape shape;
    const __nv_bfloat16 *q, *k, *v;
    __nv_bfloat16 *o;
    float *lse;
    int64_t q_stride, k_stride, v_stride;
};

// MT: pieces of 16 rows in a warp. 99 KiB of shared memory is what every GPU has.
template <int HD, int HDV> struct fwd_tile {
    enum { MT = HD == 192 ? 1 : 2, M = WARPS * 16 * MT, N = HD == 192 ? 32 : 64 };
    enum { Q = M * row_bytes<HD>(), K = N * row_bytes<HD>(), V = N * row_bytes<HDV>() };
    enum { LIMITS = Q + 2 * (K + V), BYTES = LIMITS + M * 8, BLOCKS = HD == 64 ? 3 : 2 };
};

// Adds one tile of scores: updates running max and sum, rescales o, s becomes exp(s - max).
template <int HDV, int N, int MT>
__device__ inline void softmax_tile(float (&s)[MT][N / 8][4], float (&o)[MT][HDV / 8][4], float (&max)[MT][2],
                                    float (&sum)[MT][2], float scale2)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = max[m][half];
#pragma unroll
            for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float safe = top == -INFINITY ? 0.0f : top; // a row that has seen no key yet
            const float base = safe * scale2;
            const float factor = exp2_fast((max[m][half] - safe) * scale2); // exactly 1 if the max did not change
            max[m][half] = top;
            float part = 0;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; e++) {
                    s[m][n][e] = exp2_fast(fmaf(s[m][n][e], scale2, -base));
                    part += s[m][n][e];
                }
            sum[m][half] = sum[m][half] * factor + part;
#pragma unroll
            for (int n = 0; n < HDV / 8; n++) {
                o[m][n][half * 2] *= factor;
                o[m][n][half * 2 + 1] *= factor;
            }
        }
}

template <int N, int MT>
__device__ inline void mask_scores(float (&s)[MT][N / 8][4], const query_rows<MT> &rows, int key, float hidden)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = m * 16 + half * 8 + threadIdx.x % WARP / 4, base = key + 2 * (threadIdx.x % 4);
            const int from = rows.first[i] - base, to = rows.last[i] - base;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (n * 8 + e < from || n * 8 + e > to) s[m][n][half * 2 + e] = hidden;
        }
}

template <int HD, int HDV>
__global__ void __launch_bounds__(THREADS, fwd_tile<HD, HDV>::BLOCKS) own_fwd_kernel(const own_fwd a)
{
    using tile = fwd_tile<HD, HDV>;
    constexpr int N = tile::N, MT = tile::MT;
    extern __shared__ __align__(1024) unsigned char shared[];
    const own_shape &c = a.shape;
    const row_block b = late_first(c, tile::M);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, hd = c.chunks * 8, hd_v = c.chunks_v * 8;
    const uint32_t q_at = shared_at(shared), kv_at = q_at + tile::Q, own_q = q_at + warp * (16 * MT * row_bytes<HD>());
    const __nv_bfloat16 *k = a.k + b.head / c.group * hd, *v = a.v + b.head / c.group * hd_v;

    tile_load<tile::M, HD>(q_at, a.q + b.row * a.q_stride + b.head * hd, a.q_stride, c.docs.rows - b.row, c.chunks);
    const int begin = first_key(c.docs, b.row) & ~(N - 1),
              end = keys_of(c.docs, min(b.row + tile::M, c.docs.rows) - 1).last + 1;
    auto load = [&](int key, int stage) {
        const uint32_t to = kv_at + stage * (tile::K + tile::V);
        tile_load<N, HD>(to, k + key * a.k_stride, a.k_stride, c.docs.keys - key, c.chunks);
        tile_load<N, HDV>(to + tile::K, v + key * a.v_stride, a.v_stride, c.docs.keys - key, c.chunks_v);
        copies_close();
    };
    load(begin, 0);
    const query_rows<MT> rows(c.docs, b.row + warp * (16 * MT), (int *)(shared + tile::LIMITS) + warp * (32 * MT));

    float o[MT][HDV / 8][4], max[MT][2], sum[MT][2];
    zero(o);
    for (int i = 0; i < 2 * MT; i++) {
        max[i / 2][i % 2] = -INFINITY;
        sum[i / 2][i % 2] = 0;
    }
    int stage = 0;
    for (int key = begin; key < end; key += N, stage ^= 1) {
        copies_wait();
        __syncthreads(); // this tile has arrived, and all have read the one before
        if (key + N < end) load(key + N, stage ^ 1);
        if (!rows.template any<N>(key)) continue;
        const uint32_t at = kv_at + stage * (tile::K + tile::V);
        float s[MT][N / 8][4];
        rows_by_rows<HD>(s, own_q + lane_mn<HD>(lane), at + lane_nm<HD>(lane));
        if (!rows.template all<N>(key)) mask_scores<N, MT>(s, rows, key, -INFINITY);
        softmax_tile<HDV, N, MT>(s, o, max, sum, c.scale2);
        registers_by_tile<HDV>(o, s, at + tile::K + lane_mn<HDV>(lane));
    }

#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        float &l = sum[i / 2][i % 2];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        const int row = rows.row + i * 8 + lane / 4;
        if (a.lse && lane % 4 == 0 && row < c.docs.rows)
            a.lse[(int64_t)b.head * c.docs.rows + row] = max[i / 2][i % 2] * c.scale + logf(l);
        l = 1 / l;
    }
    const int64_t stride = (int64_t)c.heads * hd_v;
    rows_store<HDV>(o, sum, own_q, a.o + rows.row * stride + b.head * hd_v, stride, c.docs.rows - rows.row, c.chunks_v);
}

// ---- Backward.

struct own_bwd {
    own_shape shape;
    const __nv_bfloat16 *q, *k, *v, *grad; // grad: of o
    __nv_bfloat16 *dq, *dk, *dv;
    const float *lse, *delta;
    int64_t q_stride, k_stride, v_stride, dq_stride, dk_stride, dv_stride;
};

template <int HD, int HDV> struct dq_tile {
    enum { MT = HD == 192 ? 1 : 2, M = WARPS * 16 * MT, N = 32 };
    enum { Q = M * row_bytes<HD>(), O = M * row_bytes<HDV>(), K = N * row_bytes<HD>(), V = N * row_bytes<HDV>() };
    enum { LIMITS = Q + O + 2 * (K + V), BYTES = LIMITS + M * 8, BLOCKS = HD == 64 ? 3 : HD == 192 ? 1 : 2 };
};

template <int HD, int HDV>
__global__ void __launch_bounds__(THREADS, dq_tile<HD, HDV>::BLOCKS) own_dq_kernel(const own_bwd a)
{
    using tile = dq_tile<HD, HDV>;
    constexpr int N = tile::N, MT = tile::MT;
    extern __shared__ __align__(1024) unsigned char shared[];
    const own_shape &c = a.shape;
    const row_block b = late_first(c, tile::M);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, hd = c.chunks * 8, hd_v = c.chunks_v * 8;
    const int64_t grad_stride = (int64_t)c.heads * hd_v;
    const uint32_t q_at = shared_at(shared), grad_at = q_at + tile::Q, kv_at = grad_at + tile::O;
    const uint32_t own_q = q_at + warp * (16 * MT * row_bytes<HD>()),
                   own_grad = grad_at + warp * (16 * MT * row_bytes<HDV>());
    const __nv_bfloat16 *k = a.k + b.head / c.group * hd, *v = a.v + b.head / c.group * hd_v;

    tile_load<tile::M, HD>(q_at, a.q + b.row * a.q_stride + b.head * hd, a.q_stride, c.docs.rows - b.row, c.chunks);
    tile_load<tile::M, HDV>(grad_at, a.grad + b.row * grad_stride + b.head * hd_v, grad_stride, c.docs.rows - b.row,
                            c.chunks_v);
    const int begin = first_key(c.docs, b.row) & ~(N - 1),
              end = keys_of(c.docs, min(b.row + tile::M, c.docs.rows) - 1).last + 1;
    auto load = [&](int key, int stage) {
        const uint32_t to = kv_at + stage * (tile::K + tile::V);
        tile_load<N, HD>(to, k + key * a.k_stride, a.k_stride, c.docs.keys - key, c.chunks);
        tile_load<N, HDV>(to + tile::K, v + key * a.v_stride, a.v_stride, c.docs.keys - key, c.chunks_v);
        copies_close();
    };
    load(begin, 0);
    const query_rows<MT> rows(c.docs, b.row + warp * (16 * MT), (int *)(shared + tile::LIMITS) + warp * (32 * MT));

    float dq[MT][HD / 8][4], lse2[MT][2], delta[MT][2], factor[MT][2];
    zero(dq);
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int64_t at = (int64_t)b.head * c.docs.rows + min(rows.row + i * 8 + lane / 4, c.docs.rows - 1);
        lse2[i / 2][i % 2] = a.lse[at] * LOG2E;
        delta[i / 2][i % 2] = a.delta[at];
        factor[i / 2][i % 2] = c.scale;
    }
    int stage = 0;
    for (int key = begin; key < end; key += N, stage ^= 1) {
        copies_wait();
        __syncthreads();
        if (key + N < end) load(key + N, stage ^ 1);
        if (!rows.template any<N>(key)) continue;
        const uint32_t at = kv_at + stage * (tile::K + tile::V);
        float s[MT][N / 8][4], dp[MT][N / 8][4];
        rows_by_rows<HD>(s, own_q + lane_mn<HD>(lane), at + lane_nm<HD>(lane));
        if (!rows.template all<N>(key)) mask_scores<N, MT>(s, rows, key, -INFINITY);
        rows_by_rows<HDV>(dp, own_grad + lane_mn<HDV>(lane), at + tile::K + lane_nm<HDV>(lane));
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[m][n][e] =
                        exp2_fast(fmaf(s[m][n][e], c.scale2, -lse2[m][e / 2])) * (dp[m][n][e] - delta[m][e / 2]);
        registers_by_tile<HD>(dq, s, at + lane_mn<HD>(lane));
    }
    rows_store<HD>(dq, factor, own_q, a.dq + rows.row * a.dq_stride + b.head * hd, a.dq_stride, c.docs.rows - rows.row,
                   c.chunks);
}

// MT: pieces of 16 key rows per warp. Its two accumulators take 128 registers, 160 for heads of 192.
template <int HD, int HDV> struct dkv_tile {
    enum {
        MT = HD == 64 ? 2 : 1,
        M = WARPS * 16 * MT, // key rows of the block
        N = HD == 128 ? 64 : 32, // query rows of a tile
        K = M * row_bytes<HD>(),
        V = M * row_bytes<HDV>(),
        Q = N * row_bytes<HD>(),
        O = N * row_bytes<HDV>(),
        // q, gradient of o, lse, delta; tiles begin at a multiple of their rows' bytes
        STAGE = Q + O + (HD == 192 ? 512 : 2 * N * 4),
        LIMITS = K + V + 2 * STAGE,
        BYTES = LIMITS + M * 8,
        BLOCKS = HD == 192 ? 1 : 2
    };
};

// Key rows of one warp: 16 MT from `row` on; this lane's rows are row + 16 m + 8 half + g.
template <int MT> struct key_rows {
    int row;
    bool exist;
    const int *begin, *end; // [16 MT] each in shared memory: queries_of each row

    __device__ key_rows(const attn_docs &docs, int row_, int *limits)
        : row(row_), exist(row_ < docs.keys), begin(limits), end(limits + 16 * MT)
    {
        const int lane = threadIdx.x % WARP;
        if (lane < 16 * MT) {
            const query_span queries = queries_of(docs, min(row + lane, docs.keys - 1));
            limits[lane] = queries.begin;
            limits[16 * MT + lane] = queries.end;
        }
        __syncwarp();
    }
    // Of queries [query, query + N): is any seen by one; are all seen by every row?
    template <int N> __device__ bool any(int query) const
    {
        return exist && query + N > begin[0] && query < end[16 * MT - 1];
    }
    template <int N> __device__ bool all(int query) const
    {
        return query >= begin[16 * MT - 1] && query + N <= end[0];
    }
};

// Turns S^T and dP^T of one tile into s = P^T and dp = dS^T. stats: lse [N] and delta [N] of the tile's queries, in
// shared memory.
template <int MT, int N>
__device__ inline void scores_to_gradients(float (&s)[MT][N / 8][4], float (&dp)[MT][N / 8][4],
                                           const key_rows<MT> &rows, int query, bool masked, const float *stats,
                                           float scale2)
{
    const int t2 = threadIdx.x % 4 * 2, g = threadIdx.x % WARP / 4;
    int from[MT][2], to[MT][2]; // of a row: its first and last query, counted as n * 8 + e below
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        from[i / 2][i % 2] = masked ? rows.begin[i * 8 + g] - query - t2 : -N;
        to[i / 2][i % 2] = masked ? rows.end[i * 8 + g] - 1 - query - t2 : N;
    }
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 lse = *(const float2 *)(stats + n * 8 + t2), delta = *(const float2 *)(stats + N + n * 8 + t2);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_fast(fmaf(s[m][n][e], scale2, (e % 2 ? lse.y : lse.x) * -LOG2E));
                if (n * 8 + e % 2 < from[m][e / 2] || n * 8 + e % 2 > to[m][e / 2]) p = 0;
                s[m][n][e] = p;
                dp[m][n][e] = p * (dp[m][n][e] - (e % 2 ? delta.y : delta.x));
            }
    }
}

template <int HD, int HDV>
__global__ void __launch_bounds__(THREADS, dkv_tile<HD, HDV>::BLOCKS) own_dkv_kernel(const own_bwd a)
{
    using tile = dkv_tile<HD, HDV>;
    constexpr int N = tile::N, MT = tile::MT;
    extern __shared__ __align__(1024) unsigned char shared[];
    const own_shape &c = a.shape;
    const int heads_kv = c.heads / c.group, head = blockIdx.x % heads_kv, row = (int)(blockIdx.x / heads_kv) * tile::M;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, hd = c.chunks * 8, hd_v = c.chunks_v * 8;
    const int64_t grad_stride = (int64_t)c.heads * hd_v;
    const uint32_t k_at = shared_at(shared), v_at = k_at + tile::K, stages_at = v_at + tile::V;
    const uint32_t own_k = k_at + warp * (16 * MT * row_bytes<HD>()),
                   own_v = v_at + warp * (16 * MT * row_bytes<HDV>());

    tile_load<tile::M, HD>(k_at, a.k + row * a.k_stride + head * hd, a.k_stride, c.docs.keys - row, c.chunks);
    tile_load<tile::M, HDV>(v_at, a.v + row * a.v_stride + head * hd_v, a.v_stride, c.docs.keys - row, c.chunks_v);
    auto load = [&](int h, int query, int stage) {
        const uint32_t to = stages_at + stage * tile::STAGE;
        const int valid = c.docs.rows - query;
        tile_load<N, HD>(to, a.q + query * a.q_stride + h * hd, a.q_stride, valid, c.chunks);
        tile_load<N, HDV>(to + tile::Q, a.grad + query * grad_stride + h * hd_v, grad_stride, valid, c.chunks_v);
        if (threadIdx.x < 2 * N) {
            const int i = threadIdx.x % N;
            const float *from = (threadIdx.x < N ? a.lse : a.delta) + (int64_t)h * c.docs.rows + query + i;
            copy4(to + tile::Q + tile::O + threadIdx.x * 4, from, i < valid);
        }
        copies_close();
    };
    const int first = queries_of(c.docs, row).begin;
    int h = head * c.group, query = first;
    const int h_end = h + c.group;
    load(h, query, 0);
    const int end = query_end(c.docs, min(row + tile::M, c.docs.keys) - 1);
    const key_rows<MT> rows(c.docs, row + warp * (16 * MT), (int *)(shared + tile::LIMITS) + warp * (32 * MT));

    float dk[MT][HD / 8][4], dv[MT][HDV / 8][4];
    zero(dk);
    zero(dv);
    for (int stage = 0; h < h_end; stage ^= 1) {
        copies_wait();
        __syncthreads();
        const int now = query;
        query += N;
        if (query >= end) {
            query = first;
            h++;
        }
        if (h < h_end) load(h, query, stage ^ 1);
        if (!rows.template any<N>(now)) continue;
        const uint32_t at = stages_at + stage * tile::STAGE;
        float s[MT][N / 8][4], dp[MT][N / 8][4];
        rows_by_rows<HD>(s, own_k + lane_mn<HD>(lane), at + lane_nm<HD>(lane));
        rows_by_rows<HDV>(dp, own_v + lane_mn<HDV>(lane), at + tile::Q + lane_nm<HDV>(lane));
        scores_to_gradients<MT, N>(
            s, dp, rows, now, !rows.template all<N>(now),
            (const float *)(shared + tile::K + tile::V + stage * tile::STAGE + tile::Q + tile::O), c.scale2);
        registers_by_tile<HDV>(dv, s, at + tile::Q + lane_mn<HDV>(lane));
        registers_by_tile<HD>(dk, dp, at + lane_mn<HD>(lane));
    }

    float factor[MT][2];
    for (int i = 0; i < 2 * MT; i++) factor[i / 2][i % 2] = 1;
    rows_store<HDV>(dv, factor, own_v, a.dv + rows.row * a.dv_stride + head * hd_v, a.dv_stride, c.docs.keys - rows.row,
                    c.chunks_v);
    for (int i = 0; i < 2 * MT; i++) factor[i / 2][i % 2] = c.scale;
    rows_store<HD>(dk, factor, own_k, a.dk + rows.row * a.dk_stride + head * hd, a.dk_stride, c.docs.keys - rows.row,
                   c.chunks);
}

// ---- Launchers.

extern "C" size_t cuda_own_attn_scratch(const struct attn_shape *shape, enum attn_pass pass)
{
    return cuda_reference_attn_scratch(shape, pass); // delta [heads, rows]; unaligned operands go there
}

extern "C" const char *cuda_own_attn_refuses(const struct attn_shape *shape)
{
    if (shape->dt != DTYPE_BF16 && shape->dt != DTYPE_F32) return "the tiled kernels take bf16 and f32";
    const int64_t bytes = (int64_t)dtype_bytes(shape->dt);
    if (shape->head_dim * bytes % 16 != 0 || shape->head_dim_v * bytes % 16 != 0)
        return "the tiled kernels take heads of a multiple of 16 bytes";
    if (shape->head_dim_v > 128 || shape->head_dim > (shape->dt == DTYPE_BF16 ? 192 : 128))
        return "the tiled kernels take heads of at most 128, and in bf16 keys of at most 192";
    return NULL;
}

template <typename ARGS> static void check_served(const ARGS *a)
{
    const attn_shape shape = {a->rows, a->docs, a->len_max, a->heads, a->heads_kv, a->head_dim, a->head_dim_v,
                              a->window, a->dt, a->keys};
    const char *refused = cuda_own_attn_refuses(&shape);
    CHECK(refused == NULL, "%s", refused);
}

static bool rows_aligned(const void *p, int64_t stride, dtype dt)
{
    return aligned16(p) && stride * (int64_t)dtype_bytes(dt) % 16 == 0;
}
// Checks q, k, v. A scale that is not positive is rejected, too: the running max is one of raw scores.
template <typename ARGS> static bool inputs_fit(const ARGS *a)
{
    return a->scale > 0 && rows_aligned(a->q, a->q_stride, a->dt) && rows_aligned(a->k, a->k_stride, a->dt) &&
           rows_aligned(a->v, a->v_stride, a->dt);
}

template <typename ARGS> static own_shape own_shape_of(const ARGS *a)
{
    return {attn_docs_of(a),     (int)a->heads,   (int)(a->heads / a->heads_kv),
            (int)(a->head_dim / 8), (int)(a->head_dim_v / 8), (float)a->scale,
            (float)(a->scale * 1.4426950408889634)};
}

// Blocks for `rows` in pieces of `each`, `heads` times; requests more shared memory than the default.
template <typename ARGS>
static void queue_kernel(void (*kernel)(ARGS), const ARGS &a, int rows, int each, int heads, int bytes,
                         cudaStream_t queue)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes); // a failure shows at the launch
    kernel<<<(unsigned)((rows + each - 1) / each) * heads, THREADS, bytes, queue>>>(a);
}

template <int HD, int HDV> static void queue_fwd(const own_fwd &x, cudaStream_t queue)
{
    using tile = fwd_tile<HD, HDV>;
    queue_kernel(own_fwd_kernel<HD, HDV>, x, x.shape.docs.rows, tile::M, x.shape.heads, tile::BYTES, queue);
}
template <int HD, int HDV> static void queue_bwd(const own_bwd &x, cudaStream_t queue)
{
    const int rows = x.shape.docs.rows, keys = x.shape.docs.keys, heads = x.shape.heads;
    queue_kernel(own_dq_kernel<HD, HDV>, x, rows, dq_tile<HD, HDV>::M, heads, dq_tile<HD, HDV>::BYTES, queue);
    queue_kernel(own_dkv_kernel<HD, HDV>, x, keys, dkv_tile<HD, HDV>::M, heads / x.shape.group,
                 dkv_tile<HD, HDV>::BYTES, queue);
}

extern "C" status cuda_own_attn_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    check_served(a);
    if (!inputs_fit(a) || !aligned16(a->o)) return cuda_reference_attn_fwd(a, s);
    if (a->dt == DTYPE_F32) {
        attn_f32_fwd_queue(a, queue_of(s));
        return cuda_set_launched(s, "attn_fwd (own, f32)");
    }
    using T = __nv_bfloat16;
    const own_fwd x = {own_shape_of(a), (const T *)a->q, (const T *)a->k, (const T *)a->v, (T *)a->o,
                       (float *)a->lse, a->q_stride,     a->k_stride,     a->v_stride};
    if (a->head_dim > 128) queue_fwd<192, 128>(x, queue_of(s));
    else if (a->head_dim <= 64 && a->head_dim_v <= 64) queue_fwd<64, 64>(x, queue_of(s));
    else queue_fwd<128, 128>(x, queue_of(s));
    return cuda_set_launched(s, "attn_fwd (own)");
}

extern "C" status cuda_own_attn_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    check_served(a);
    if (!inputs_fit(a) || !aligned16(a->do_) || !rows_aligned(a->dq, a->dq_stride, a->dt) ||
        !rows_aligned(a->dk, a->dk_stride, a->dt) || !rows_aligned(a->dv, a->dv_stride, a->dt))
        return cuda_reference_attn_bwd(a, s);
    CHECK(a->scratch, "no scratch");
    attn_delta_queue(a, (float *)a->scratch, queue_of(s));
    if (a->dt == DTYPE_F32) {
        attn_f32_bwd_queue(a, queue_of(s));
        return cuda_set_launched(s, "attn_bwd (own, f32)");
    }
    using T = __nv_bfloat16;
    const own_bwd x = {own_shape_of(a),  (const T *)a->q,  (const T *)a->k,        (const T *)a->v,
                       (const T *)a->do_, (T *)a->dq,      (T *)a->dk,             (T *)a->dv,
                       (float *)a->lse,  (float *)a->scratch, a->q_stride,         a->k_stride,
                       a->v_stride,      a->dq_stride,     a->dk_stride,           a->dv_stride};
    if (a->head_dim > 128) queue_bwd<192, 128>(x, queue_of(s));
    else if (a->head_dim <= 64 && a->head_dim_v <= 64) queue_bwd<64, 64>(x, queue_of(s));
    else queue_bwd<128, 128>(x, queue_of(s));
    return cuda_set_launched(s, "attn_bwd (own)");
}
