// Shared by both passes of the chunked delta rule: sizes, matmuls of tiles, the loop over chunks, scratch.
// gdn_delta_fwd_sm80.cu describes the passes.
//
// One source for BF16 and F32. Operands of a matmul are in shared memory, its result in registers in the layout of
// mma.m16n8k16; in F32 FMAs fill the same registers.
#pragma once
#include "ops/cuda/docs.cuh"
extern "C" {
#include "ops/cuda/gdn_kernels.h"
}

namespace delta {

// SHARED_MAX: shared memory of a block on sm_120, the least
enum { THREADS = 256, WARPS = THREADS / WARP, SHARED_MAX = 99 << 10 };

// A chunk has C rows; a head's dk is zero-padded to DK columns; dv is cut into tiles of DV columns.
template <typename T, int DK_, int W = WARPS> struct cut {
    enum {
        NARROW = sizeof(T) == 2,
        C = NARROW ? 64 : 32,
        DK = DK_,
        DV = NARROW && DK <= 128 ? 64 : 32,
        PAD = 16 / sizeof(T),   // 8 neighbouring rows of a tile lie in different banks
        LK = DK + PAD, LV = DV + PAD, LC = C + PAD, // row widths in shared memory
        M_WARPS = C / 16, N_WARPS = W / M_WARPS, // the warps side by side
        // pieces of 8 columns of a warp: of [., DV], [., C], [., DK]
        NV = DV / N_WARPS / 8, NC = C / N_WARPS / 8, NK = DK / N_WARPS / 8,
        MK = DK / C // pieces of 16 rows of a warp in [DK, .], C rows apart
    };
};

struct warp_place {
    int m, n; // of M_WARPS, of N_WARPS
    __device__ explicit warp_place(int m_warps) : m(threadIdx.x / WARP % m_warps), n(threadIdx.x / WARP / m_warps) {}
};

// Calls f(row, column, value) for a warp's part of a result. row0, column0: of its first piece; pieces below each
// other are `apart` rows apart.
template <int M, int N, typename F>
__device__ inline void each(float (&c)[M][N][4], int row0, int apart, int column0, F f)
{
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                f(row0 + m * apart + e / 2 * 8 + g, column0 + n * 8 + 2 * t + e % 2, c[m][n][e]);
}
// The same for one piece of rows, and f(row, column, half, value): half is a constant 0 or 1 for a thread's two
// rows.
template <int N, typename F> __device__ inline void each_half(float (&c)[1][N][4], int row0, int column0, F f)
{
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) f(row0 + e / 2 * 8 + g, column0 + n * 8 + 2 * t + e % 2, e / 2, c[0][n][e]);
}
template <int M, int N> __device__ inline void clear(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[m][n][e] = 0;
}

// ---- matmuls

enum side { AS_IS, TRANS };

__device__ inline uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void ldmatrix(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p))
                 : "memory");
}
__device__ inline void ldmatrix_trans(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p))
                 : "memory");
}
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c[16 M rows][8 N columns] += A B over k. A: rows m of columns k, or with TRANS rows k of columns m. B: rows k of
// columns n, or with TRANS rows n of columns k. Both pointers are the warp's first row or column of the result; A's
// pieces are `apart` rows apart.
template <side A, side B, int M, int N>
__device__ inline void matmul(float (&c)[M][N][4], const __nv_bfloat16 *a, int a_width, int apart,
                               const __nv_bfloat16 *b, int b_width, int depth)
{
    static_assert(N % 2 == 0, "columns come in pairs of pieces");
    // of a 16 x 16 piece whose quarters go down, right
    const int lane = threadIdx.x % WARP, first = lane & 15, second = lane >> 4 << 3;
    const int across = (lane & 7) + second, along = lane & 8;                        // right, down
    const __nv_bfloat16 *a_at = A == AS_IS ? a + first * a_width + second : a + across * a_width + along;
    const __nv_bfloat16 *b_at = B == AS_IS ? b + first * b_width + second : b + across * b_width + along;
#pragma unroll 4
    for (int k = 0; k < depth; k += 16) {
        uint32_t x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (A == AS_IS)
                ldmatrix(x[m], a_at + m * apart * a_width + k);
            else
                ldmatrix_trans(x[m], a_at + k * a_width + m * apart);
        }
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t y[4];
            if (B == AS_IS)
                ldmatrix_trans(y, b_at + k * b_width + n * 8);
            else
                ldmatrix(y, b_at + n * 8 * b_width + k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(c[m][n], x[m], y[0], y[1]);
                mma(c[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}
template <side A, side B, int M, int N>
__device__ inline void matmul(float (&c)[M][N][4], const float *a, int a_width, int apart, const float *b, int b_width,
                               int depth)
{
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll 4
    for (int k = 0; k < depth; k++) {
        float x[M][2];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = m * apart + i * 8 + g;
                x[m][i] = A == AS_IS ? a[row * a_width + k] : a[k * a_width + row];
            }
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = n * 8 + 2 * t + i;
                const float y = B == AS_IS ? b[k * b_width + column] : b[column * b_width + k];
#pragma unroll
                for (int m = 0; m < M; m++) {
                    c[m][n][i] += x[m][0] * y;
                    c[m][n][2 + i] += x[m][1] * y;
                }
            }
    }
}

// ---- tiles between global and shared memory

// Queues a copy of `rows` by `columns`; the rest of the tile is zeros. `wide`: 16-byte accesses are allowed. Ends
// with tile_wait and a barrier.
template <int ROWS, int COLUMNS, int WIDTH, typename T>
__device__ inline void tile_load(T *to, const T *from, int64_t stride, int rows, int columns, bool wide)
{
    constexpr int EACH = 16 / sizeof(T), PER_ROW = COLUMNS / EACH;
    if (wide) {
        for (int i = threadIdx.x; i < ROWS * PER_ROW; i += blockDim.x) {
            const int row = i / PER_ROW, c = i % PER_ROW * EACH;
            const bool there = row < rows && c < columns;
            const T *p = there ? from + row * stride + c : from;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_at(to + row * WIDTH + c)),
                         "l"(p), "r"(there ? 16 : 0)
                         : "memory");
        }
        return;
    }
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        const int row = i / COLUMNS, c = i % COLUMNS;
        to[row * WIDTH + c] = row < rows && c < columns ? from[row * stride + c] : from_f32<T>(0);
    }
}
__device__ inline void tile_wait() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

template <int ROWS, int COLUMNS, int WIDTH, typename T>
__device__ inline void tile_store(T *to, int64_t stride, const T *from, int rows, int columns, bool wide)
{
    constexpr int EACH = 16 / sizeof(T), PER_ROW = COLUMNS / EACH;
    if (wide) {
        for (int i = threadIdx.x; i < ROWS * PER_ROW; i += blockDim.x) {
            const int row = i / PER_ROW, c = i % PER_ROW * EACH;
            if (row < rows && c < columns) store_pack(to + row * stride + c, load_pack(from + row * WIDTH + c));
        }
        return;
    }
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        const int row = i / COLUMNS, c = i % COLUMNS;
        if (row < rows && c < columns) to[row * stride + c] = from[row * WIDTH + c];
    }
}

// ---- chunks

// Chunks start at the beginning of each document. Each chunk but a document's first begins C rows after another
// one, so start / C is unique: the slot of the state that enters it (none enters the first). So memory follows
// rows, not documents.
struct chunk {
    int start, rows;
    bool first, last; // of its document
};

// The chunks that begin in [row, row + c).
struct chunk_walk {
    doc_cursor doc;
    int next, limit, c;
    __device__ chunk_walk(const int32_t *cu, int docs, int rows, int row, int c_)
        : doc(cu, docs, row), limit(min(row + c_, rows)), c(c_)
    {
        next = doc.begin + (row - doc.begin + c - 1) / c * c;
        if (next > doc.end) next = doc.end;
    }
    __device__ bool take(chunk &x)
    {
        if (next >= limit) return false;
        doc.advance(next);
        x = {next, min(c, doc.end - next), next == doc.begin, next + c >= doc.end};
        next = x.last ? doc.end : next + c;
        return true;
    }
};

// Per row of a chunk: cum, the sum of g up to it; e = exp(cum); f = exp(cum of the last row - cum). Missing rows
// have g 0 and beta 0.
template <int C> struct gates {
    float cum[C], e[C], f[C], beta[C];
};
// Warp 0 fills them; a barrier must follow. exp gets no positive number.
template <int C>
__device__ inline void gates_load(gates<C> &to, const float *g, const float *beta, int64_t at, int heads, int rows)
{
    enum { EACH = C / WARP };
    if (threadIdx.x >= WARP) return;
    const int lane = threadIdx.x;
    float x[EACH], sum = 0;
    for (int i = 0; i < EACH; i++) {
        const int row = lane * EACH + i;
        sum += row < rows ? g[at + (int64_t)row * heads] : 0.f;
        x[i] = sum;
        to.beta[row] = row >= rows ? 0.f : beta ? beta[at + (int64_t)row * heads] : 1.f;
    }
    float scan = sum;
    for (int d = 1; d < WARP; d *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, scan, d);
        if (lane >= d) scan += other;
    }
    const float before = __shfl_up_sync(0xffffffffu, scan, 1), all = __shfl_sync(0xffffffffu, scan, WARP - 1);
    for (int i = 0; i < EACH; i++) {
        const float cum = lane * EACH + i == C - 1 ? all : x[i] + (lane ? before : 0.f);
        to.cum[lane * EACH + i] = cum;
        to.e[lane * EACH + i] = expf(cum);
        to.f[lane * EACH + i] = expf(fminf(all - cum, 0.f));
    }
}
template <int C> __device__ inline float decay(const gates<C> &g, int i, int j)
{
    return expf(fminf(g.cum[i] - g.cum[j], 0.f));
}

// ---- arguments and scratch

// Arguments that any kernel of one call may need.
struct call {
    const void *q, *k, *v, *do_;
    const float *g, *beta;
    void *o, *dq, *dk, *dv;
    float *dg, *dbeta;
    const float *state_in;
    float *state_out;
    int64_t q_stride, k_stride, v_stride, dq_stride, dk_stride, dv_stride;
    const int32_t *cu;
    int docs, rows, heads, heads_k, dk_size, dv_size, segments, segment_rows, tiles; // tiles: of dv
    float scale;
    bool normalize, wide_v, wide_o; // 16-byte accesses: v; o, or do and dv
    // Scratch. Rows of q and k, of DK columns; of the inverse and of P, of C columns.
    void *qn, *kn, *inverse, *p;
    float *rho;                     // [rows, heads_k, 2]: the factors of q's and k's normalisation
    void *states;                   // [slots, heads, tiles, DK, DV]: entering a chunk
    void *dstates, *du, *dqs, *dks; // gradients: of states; [rows, heads, tiles DV]; [rows, heads, DK] twice
};

struct layout {
    size_t qk, rho, square, states, du, dqk; // bytes of each
    int64_t c, dk, dv, tiles;
};
static inline layout layout_of(const struct delta_shape *n)
{
    const bool narrow = n->dt == DTYPE_BF16;
    CHECK(narrow || n->dt == DTYPE_F32, "dtype %s", dtype_name(n->dt));
    CHECK(n->dk > 0 && n->dk <= DELTA_KEYS_CUDA_MAX && n->dv > 0, "a delta rule of %lld by %lld", (long long)n->dk,
          (long long)n->dv);
    layout l = {};
    const size_t e = dtype_bytes(n->dt), rows = (size_t)n->rows, heads = (size_t)n->heads, heads_k = (size_t)n->heads_k;
    l.c = narrow ? 64 : 32;
    l.dk = n->dk <= 64 ? 64 : n->dk <= 128 ? 128 : 256;
    l.dv = narrow && l.dk <= 128 ? 64 : 32;
    l.tiles = (n->dv + l.dv - 1) / l.dv;
    const size_t slots = (size_t)((n->rows + l.c - 1) / l.c);
    auto whole = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    l.qk = whole(rows * heads_k * (size_t)l.dk * e);
    l.rho = whole(rows * heads_k * 2 * sizeof(float));
    l.square = whole(rows * heads * (size_t)l.c * e);
    l.states = whole(slots * heads * (size_t)(l.tiles * l.dk * l.dv) * e);
    l.du = whole(rows * heads * (size_t)(l.tiles * l.dv) * e);
    l.dqk = whole(rows * heads * (size_t)l.dk * e);
    return l;
}

// Sets the scratch of both passes; returns what follows it.
static inline char *layout_common(call &x, const layout &l, void *scratch)
{
    char *at = (char *)scratch;
    x.qn = at, at += l.qk;
    x.kn = at, at += l.qk;
    x.inverse = at, at += l.square;
    x.p = at, at += l.square;
    x.rho = (float *)at, at += l.rho;
    return at;
}

// Either pass's arguments.
template <typename ARGS> static inline call call_of(const ARGS *a, const layout &l)
{
    const struct delta_shape &n = a->shape;
    CHECK(n.heads_k > 0 && n.heads % n.heads_k == 0, "%lld value heads over %lld key heads", (long long)n.heads,
          (long long)n.heads_k);
    CHECK(n.rows < INT32_MAX / 2 && n.docs < INT32_MAX, "%lld rows, %lld documents", (long long)n.rows,
          (long long)n.docs);
    call x = {};
    x.q = a->q, x.k = a->k, x.v = a->v, x.g = (const float *)a->g, x.beta = (const float *)a->beta;
    x.q_stride = a->q_stride, x.k_stride = a->k_stride, x.v_stride = a->v_stride, x.cu = a->cu_seqlens;
    x.docs = (int)n.docs, x.rows = (int)n.rows, x.heads = (int)n.heads, x.heads_k = (int)n.heads_k;
    x.dk_size = (int)n.dk, x.dv_size = (int)n.dv, x.tiles = (int)l.tiles;
    x.scale = (float)a->scale, x.normalize = a->normalize;
    const int64_t each = 16 / (int64_t)dtype_bytes(n.dt);
    x.wide_v = aligned16(a->v) && a->v_stride % each == 0 && n.dv % each == 0;
    // A block takes the documents that begin in its segment of rows, one after the other.
    const int64_t most = (n.rows + 255) / 256, segments = n.docs < most ? n.docs : most;
    x.segments = segments > 0 ? (int)segments : 1;
    x.segment_rows = (int)((n.rows + x.segments - 1) / x.segments);
    return x;
}

// The documents of a segment, in order.
struct segment {
    int doc, end; // [doc, end)
    __device__ explicit segment(const call &x)
    {
        const int s = blockIdx.x;
        doc = bound(x, s);
        end = s + 1 == x.segments && x.state_out ? x.docs : bound(x, s + 1);
    }
    // The first document that begins at row s * segment_rows or later. Thousands of empty ones may follow the last
    // row.
    static __device__ int bound(const call &x, int s)
    {
        const int row = min(s * x.segment_rows, x.rows);
        int lo = 0, hi = x.docs;
        while (lo < hi) {
            const int mid = (lo + hi) / 2;
            if (__ldg(x.cu + mid) >= row) hi = mid;
            else lo = mid + 1;
        }
        return lo;
    }
};

// Address of a chunk's entering state, and of one tile of it.
template <typename S, typename T> __device__ inline T *state_at(const call &x, T *states, int start, int head, int tile)
{
    return states + (((int64_t)(start / S::C) * x.heads + head) * x.tiles + tile) * (S::DK * S::DV);
}

// Normalised q and k, the inverses and P: gdn_delta_fwd_sm80.cu. Both passes begin with them.
void prepare(const call &x, dtype dt, int64_t dk, cudaStream_t queue);

// Requests more shared memory than the default.
static inline void queue_kernel(void (*kernel)(call), const call &x, dim3 grid, int bytes, cudaStream_t queue,
                                int threads = THREADS)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes); // a failure shows at the launch
    kernel<<<grid, threads, bytes, queue>>>(x);
}

} // namespace delta
