// The gated delta rule on Hopper in chunks of 64 rows (Yang et al., arXiv:2412.06464), dk = dv = 128, BF16. Chunks
// begin anew at each document. In a chunk, for one value head, with S [dk, dv] entering it, c_i the sum of g over
// the chunk's rows up to i, e_i = exp(c_i), f_i = exp(c_last - c_i), Gam_ij = exp(c_i - c_j) for i >= j, s the
// scale, q and k normalised:
//
//   index, prepare (parallel over chunks)
//     A = strict_tril(diag(beta) (K K^T . Gam)),  T = (I + A)^-1,  P = s tril(Q K^T . Gam)
//   scan forward (chunk after chunk)
//     R = beta (V - e K S)    D = T R    O = s e Q S + P D    S' = e_last S + (f K)^T D
//
// Solving for D with T after K S needs no W = T (beta e K), which other implementations write to memory and read
// again. Backward, with dS the gradient of S' and Y = T^T dD that of R:
//
//   scan backward
//     dD = P^T dO + f K dS    Y = T^T dD    dV = beta Y    dS_in = e_last dS + (s e Q)^T dO - (beta e K)^T Y
//   gradients (parallel)
//     E  = s tril(dO D^T . Gam)    dA = -strict_tril(Y D^T)    G = strict_tril(beta dA . Gam)
//     dQ = s e dO S^T + E K        dK = f D dS^T - beta e Y S^T + E^T Q + (G + G^T) K
//
// dA is this short because Y S^T cancels in it: T^T dT T^T = Y U^T + X W^T with X = -Y S^T, U = D + W S. The
// gradients of c are row and column sums of everything with a decay, M = strict E . Q K^T and N = G . K K^T (the
// diagonals cancel and are left out, so strong decay leaves no difference of large numbers):
//
//   dg_t = sum_{i >= t} (s e <dO S^T, Q> + M 1 - M^T 1 + N 1 - N^T 1 - beta e <Y S^T, K>)_i
//          + sum_{i < t} f_i <D dS^T, K>_i + e_last <S, dS>
//   dbeta_i = <Y, V>_i - e_i <Y S^T, K>_i + sum_j (dA . Gam . K K^T)_ij
//
// Operands are the raw rows of q and k: the factors of normalisation are applied to f32 values with e, f and beta.
//
// ---- Memory. Arrays of rows are indexed by rows, so short documents waste nothing; states by slots of 64 rows.
//
//   T, P        [heads][rows][64] bf16      rows of 128 bytes, swizzled as tiles are (tile_sm90.cuh), by their
//                                           position in the chunk
//   factors     [heads][rows][2] float4     struct delta_factors below
//   D, Y        [heads][2][rows][64] bf16   a half of dv each, swizzled
//   S, dS       [slots][heads][2][64 dv][128 dk] bf16
//                                           slot r / 64: of a chunk that begins at row r and is not the first of its
//                                           document: S that enters it, dS that leaves the chunk before. S of a first
//                                           chunk is 0 (backward has no state_in), and so is dS after a last one.
//
// ---- Long documents in pieces. A scan has one chain of chunks per document and half of dv: with few documents most
// multiprocessors are idle. But the state after a piece is affine in the state before it, S_out = A S_in + B, and
// so is the gradient, dS_in = A^T dS_out + C, with the same A [dk, dk]. So a scan over a document in pieces has
// three steps (gdn_segments_sm90.cu; the first step of backward is in gdn_scan_bwd_sm90.cu):
//
//   ends    all pieces at once: B, the state after the piece with nothing before it, and A, the same rule over the
//           identity with V = 0
//   join    piece after piece, in f32: the true state between each two
//   scan    all pieces at once, from the true states: as over whole documents
//
// Only `join` is a chain, of some ten matmuls. A is computed like any state, f32 in registers with bf16 matmuls,
// and has the error of states. The first step costs about half a scan, so documents of less than 3 pieces stay
// whole. The length of a piece is a function of the shape alone (delta_hopper_cut), the cuts of a document of its
// length; results depend on nothing else.
//
//   link    [slots][heads][128 dv][128 dk] f32   what passes between pieces. Forward: S after the piece, and of the
//           last
//                                                piece the state that enters the document. Backward: dS before the
//                                           piece
//   chain   [slots][heads][128][128] f32         A^T of a piece, in the order in which join reads it; forward keeps
//                                                another for backward
//
// A piece has slot r / (64 cut), r its first row: no piece is shorter.
//
// cu_seqlens is read on the device alone. A kernel that is parallel over chunks takes a block of 64 rows and the
// chunks that begin in it, from the first document that ends after the block's start.
#pragma once
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/gdn_delta_sm90.h"
}

enum { CHUNK = 64, HEAD = 128, HALF = 64 };
enum { PIECE_STATE = HEAD * HEAD }; // floats
enum { SLAB = CHUNK * SLAB_ROW, TILE = 2 * SLAB, FACTORS = CHUNK * 32, STATE_HALF = 2 * SLAB }; // bytes

constexpr float LOG2E = 1.4426950408889634f;

// Of a row and a value head. Rows past a short chunk are zeros if tiles were cleared.
struct delta_factors {
    // beta; beta e rho_k; f rho_k; s e rho_q. rho: of the normalisation, or 1. No beta: 1 and 0
    float beta, beta_e, f_k, e_q;
    float c, rho_k, rho_q, beta_a;  // c: for exp2; beta_a: beta, or 0 where there is none
};

struct delta_memory_map {
    int *first_doc;          // [blocks]: the first document that ends after row 64 b
    int *counts;             // [8]: documents up to the last row; tickets
    unsigned char *zero;     // STATE_HALF bytes of zeros
    struct delta_piece *pieces; // [slots]
    float *link, *chain;     // chain: forward
    float *chain_back;       // saved by the forward, or NULL
    unsigned char *t, *p;
    delta_factors *factors;
    unsigned char *y, *ds;   // backward
    float *partial;          // backward: dQ and dK of the value heads before, of each block of threads
    unsigned char *s, *d;    // saved by the forward, or NULL
};
enum { COUNT_DOCS, COUNT_TICKET, COUNT_TOTAL = 8 };
enum { GRAD_BLOCKS = 160 };  // at most, of the gradients' kernel

struct delta_docs {
    const int32_t *cu;
    int docs, rows, heads, heads_k, group;
    int cut, slots; // chunks of a piece, at least; slots of pieces. 0: documents stay whole
};
enum { CUT_STATES = 104 }; // at most, slots of all heads (delta_hopper_cut)
// A piece of a document that has several, by slots; count 0: no piece begins here.
struct delta_piece {
    int doc, row, end, index, count;
    int before, behind, last; // slots: of the pieces before and behind, of the document's last one
};

// Both return their bytes; `at` may be NULL.
size_t delta_hopper_layout(struct delta_memory_map *m, unsigned char *at, const struct delta_shape *n,
                           enum delta_memory what);
size_t delta_hopper_layout_saved(struct delta_memory_map *m, unsigned char *at, const struct delta_shape *n);
struct delta_docs delta_hopper_docs(const struct delta_shape *n, const int32_t *cu);
// True: a block of a scan has both halves of dv, if there are more units of one half than multiprocessors.
static inline bool delta_hopper_both(const struct delta_docs *d, dev_stream s)
{
    const int64_t blocks = cuda_set(s)->multiprocessors, heads = d->heads;
    return d->docs * heads >= blocks || 2 * d->slots * heads > blocks;
}
// A and the states between pieces: `ends` and `join` of the forward, `join` of the backward.
status delta_hopper_pieces(const struct delta_fwd_args *a, const struct delta_docs *docs,
                           const struct delta_memory_map *m, dev_stream s);
status delta_hopper_join_back(const struct delta_docs *docs, const struct delta_memory_map *m, dev_stream s);

// First step of both passes: the index, T, P and the factors.
struct delta_prepare_args {
    const void *q, *k, *g, *beta;
    int64_t q_stride, k_stride;
    struct delta_docs docs;
    struct delta_memory_map m;
    float scale;
    int normalize;
};
status delta_hopper_prepare(const struct delta_prepare_args *a, dev_stream s);
status delta_hopper_grad(const struct delta_bwd_args *a, const struct delta_memory_map *m, dev_stream s);

// ---- Places.

__host__ __device__ inline int64_t row_image(const delta_docs &d, int head, int row)
{
    return ((int64_t)head * d.rows + row) * SLAB_ROW;
}
__host__ __device__ inline int64_t half_image(const delta_docs &d, int head, int half, int row)
{
    return (((int64_t)head * 2 + half) * d.rows + row) * SLAB_ROW;
}
__host__ __device__ inline int64_t state_image(const delta_docs &d, int head, int half, int row)
{
    return (((int64_t)(row / CHUNK) * d.heads + head) * 2 + half) * STATE_HALF;
}

// The chunks that begin in rows [64 block, 64 block + 64).
struct delta_chunk { int row, len, first, last; };
struct delta_walk {
    const delta_docs &docs;
    int doc, from, to;
    __device__ delta_walk(const delta_docs &d, const int *first_doc, int block)
        : docs(d), doc(first_doc[block]), from(block * CHUNK), to(min(block * CHUNK + CHUNK, d.rows))
    {
    }
    __device__ bool next(delta_chunk &c)
    {
        for (; doc < docs.docs; doc++) {
            const int begin = __ldg(docs.cu + doc), end = __ldg(docs.cu + doc + 1);
            if (begin >= to) return false;
            const int row = begin >= from ? begin : begin + (from - begin + CHUNK - 1) / CHUNK * CHUNK;
            if (row >= min(end, to)) continue;
            c = {row, min(CHUNK, end - row), row == begin, row + CHUNK >= end};
            doc++; // a document has one chunk that begins here
            return true;
        }
        return false;
    }
};

// ---- Pieces of documents.

__device__ inline int piece_count(const delta_docs &d, int rows)
{
    const int count = d.cut ? rows / (d.cut * CHUNK) : 1;
    return count < 3 ? 1 : count;
}
// The first row of a document's piece, in the document.
__device__ inline int piece_row(int rows, int count, int piece)
{
    return (int)((int64_t)((rows + CHUNK - 1) / CHUNK) * piece / count) * CHUNK;
}
__device__ inline int piece_slot(const delta_docs &d, int begin, int rows, int count, int piece)
{
    return (begin + piece_row(rows, count, piece)) / (d.cut * CHUNK);
}
__device__ inline float *piece_state(float *base, const delta_docs &d, int slot, int head)
{
    return base + ((int64_t)slot * d.heads + head) * PIECE_STATE;
}

// Work units of a scan: pieces, and documents in one piece, of each head and half (or both: halves 1).
struct delta_unit { int doc, begin, row, end, stop, head, half, piece; };
__device__ inline bool unit_find(const delta_docs &d, const delta_memory_map &m, int unit, int halves, delta_unit &u)
{
    const int place = unit / halves / d.heads;
    u.half = unit % halves;
    u.head = unit / halves % d.heads;
    if (place < d.slots) {
        const delta_piece p = m.pieces[place];
        if (p.count == 0) return false;
        u = {p.doc, __ldg(d.cu + p.doc), p.row, p.end, __ldg(d.cu + p.doc + 1), u.head, u.half, place};
        return true;
    }
    u.doc = place - d.slots;
    u.begin = u.row = __ldg(d.cu + u.doc);
    u.end = u.stop = __ldg(d.cu + u.doc + 1);
    u.piece = -1;
    return piece_count(d, u.end - u.begin) == 1;
}
// The source of a unit's state before a chunk: a slot of `link`, or one of these.
enum { FROM_BEFORE = -2, FROM_OUTSIDE = -1 }; // the chunk before; the initial state of the pass

// ---- Parts of the kernels.

// Zeroes rows `from` on of `slabs` slabs.
__device__ inline void clear_rows(uint32_t at, int slabs, int from, int thread, int threads)
{
    for (int i = thread; i < slabs * CHUNK * 8; i += threads)
        if (i / 8 % CHUNK >= from)
            asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(at + i * 16), "r"(0) : "memory");
}
__device__ inline float4 shared_float4(uint32_t at)
{
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ inline uint4 shared_uint4(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ inline float low_f32(uint32_t x) { return __uint_as_float(x << 16); }
__device__ inline float high_f32(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
__device__ inline float dot_bf16(uint4 a, uint4 b)
{
    float sum = low_f32(a.x) * low_f32(b.x);
    sum = fmaf(high_f32(a.x), high_f32(b.x), sum);
    sum = fmaf(low_f32(a.y), low_f32(b.y), sum);
    sum = fmaf(high_f32(a.y), high_f32(b.y), sum);
    sum = fmaf(low_f32(a.z), low_f32(b.z), sum);
    sum = fmaf(high_f32(a.z), high_f32(b.z), sum);
    sum = fmaf(low_f32(a.w), low_f32(b.w), sum);
    return fmaf(high_f32(a.w), high_f32(b.w), sum);
}
// d is dead here: else the compiler keeps it until the matmul that overwrites it, since that could read it.
template <int COUNT> __device__ inline void fresh(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "=f"(d[i]));
}
// This lane's address for the k-th 16 columns of operand A from 64 rows of accumulators, or of such a tile
// transposed.
__device__ inline uint32_t fragment_at(uint32_t at, int warp, int lane, int k)
{
    return at + slab_offset(warp * 16 + lane % 16, k * 16 + lane / 16 * 8);
}
__device__ inline uint32_t fragment_at_trans(uint32_t at, int warp, int lane, int k)
{
    return at + slab_offset(k * 16 + lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8);
}
__device__ inline float2 shared_float2(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
// Of a column: beta and beta_e; f_k and e_q.
__device__ inline float2 factor_beta(uint32_t at, int col) { return shared_float2(at + col * 32); }
__device__ inline float2 factor_rest(uint32_t at, int col) { return shared_float2(at + col * 32 + 8); }

// ---- A scan's warpgroup leaves what goes to global memory in shared memory. A warp of its own queues the copies,
// since queueing takes longer than the warpgroup's other work meanwhile.
struct scan_out {
    unsigned char *state, *rows; // NULL: none
    int rows_bytes, o_row, o_slab, done; // o_row < 0: none
};
enum { BAR_OUT_READY = 4, BAR_OUT_FREE = 6, OUT_THREADS = WARPGROUP + WARP }; // named barriers, one for each warpgroup
#ifdef TILE90
template <int AT_STATE, int AT_ROWS, int AT_O>
__device__ inline void scan_store(const scan_out *what, uint32_t from, const CUtensorMap *map_o, int wg)
{
    named_arrive(BAR_OUT_FREE + wg, OUT_THREADS);
    for (;;) {
        named_sync(BAR_OUT_READY + wg, OUT_THREADS);
        const scan_out x = *what;
        if (x.done) break;
        if (threadIdx.x % WARP == 0) {
            if (x.state) bulk_store(x.state, from + AT_STATE, STATE_HALF);
            if (x.rows) bulk_store(x.rows, from + AT_ROWS, x.rows_bytes);
            if (x.o_row >= 0) tma_store(map_o, from + AT_O, x.o_row, x.o_slab);
            bulk_commit();
            bulk_wait_read<0>();
        }
        __syncwarp();
        named_arrive(BAR_OUT_FREE + wg, OUT_THREADS);
    }
    if (threadIdx.x % WARP == 0) bulk_wait<0>();
}
#endif
