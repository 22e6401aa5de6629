// The gated delta rule on Hopper: preparation of both scans (gdn_delta_sm90.cuh). Per block of 64 rows and key
// head: K K^T and Q K^T once; then for each value head the factors, P, and T by forward substitution on two 32 x 32
// blocks and one merge, in f32.
#include "ops/cuda/gdn_delta_sm90.cuh"

// ---- The index.

enum { INDEX_THREADS = 256 };

// The first document that ends after `row`.
__device__ inline int doc_behind(const delta_docs &d, int row)
{
    int lo = 0, hi = d.docs;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (__ldg(d.cu + mid + 1) > row) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}
// Of document `doc` the first piece that begins in rows [from, to), of a document that has several.
__device__ inline bool piece_find(const delta_docs &d, int doc, int from, int to, delta_piece &p)
{
    if (doc >= d.docs) return false;
    const int begin = __ldg(d.cu + doc), rows = __ldg(d.cu + doc + 1) - begin, count = piece_count(d, rows);
    if (count == 1) return false;
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK, skip = from > begin ? (from - begin + CHUNK - 1) / CHUNK : 0;
    const int index = (int)((skip * count + chunks - 1) / chunks);
    if (index >= count || begin + piece_row(rows, count, index) >= to) return false;
    auto row = [&](int i) { return begin + piece_row(rows, count, i); };
    auto slot = [&](int i) { return piece_slot(d, begin, rows, count, i); };
    p = {doc, row(index), index + 1 < count ? row(index + 1) : begin + rows, index, count, 0, 0, slot(count - 1)};
    p.before = index > 0 ? slot(index - 1) : FROM_OUTSIDE;
    p.behind = index + 1 < count ? slot(index + 1) : FROM_OUTSIDE;
    return true;
}

// Searches are chains of loads, so no thread has two: one per block of rows, one for the count, two per slot.
__global__ void __launch_bounds__(INDEX_THREADS)
    delta_index_kernel(const delta_docs d, const delta_memory_map m, int blocks)
{
    const int b = blockIdx.x * INDEX_THREADS + threadIdx.x, warp_b = b - (blocks + WARP - 1) / WARP * WARP;
    if (b < blocks) m.first_doc[b] = doc_behind(d, b * CHUNK);
    if (warp_b == 0) {
        int lo = 0, hi = d.docs; // the first document that begins after the last row
        while (lo < hi) {
            const int mid = (lo + hi) / 2;
            if (__ldg(d.cu + mid) >= d.rows) hi = mid;
            else lo = mid + 1;
        }
        m.counts[COUNT_DOCS] = lo;
        m.counts[COUNT_TICKET] = 0;
    }
    if (warp_b >= WARP && warp_b < WARP + (2 * d.slots + WARP - 1) / WARP * WARP) {
        // The documents of a slot's first and of its last rows: a document in pieces that begins here has the last
        // ones.
        const int slot = (warp_b - WARP) / 2, from = slot * d.cut * CHUNK, to = from + d.cut * CHUNK;
        delta_piece p = {};
        const bool found = slot < d.slots && piece_find(d, doc_behind(d, b % 2 ? to - 1 : from), from, to, p);
        const bool other = __shfl_xor_sync(0xffffffffu, found, 1);
        if (slot < d.slots && (b % 2 ? found && !other : found || !other)) m.pieces[slot] = p;
    }
    if (blockIdx.x != 0) return;
    for (int i = threadIdx.x; i < STATE_HALF / 16; i += INDEX_THREADS) ((int4 *)m.zero)[i] = make_int4(0, 0, 0, 0);
}

// ---- T, P, factors.

// After their matmuls, Q and K are overwritten by A, T and P.
enum {
    PREP_STRIDE = 68, // floats of a row of A: 4 banks offset from the next
    PREP_BLOCKS = 4 // per multiprocessor
};
enum prep_row { ROW_C, ROW_BETA, ROW_RHO_Q, ROW_RHO_K, ROW_QQ }; // QQ: twice, for halves of rows
using prep_q = smem_field<0, TILE>;
using prep_k = smem_field<prep_q::END, TILE>;
using prep_a = smem_field<0, CHUNK * PREP_STRIDE * 4>;
using prep_t = smem_field<18 * 1024, SLAB>;
using prep_p = smem_field<prep_t::END, SLAB>;
using prep_rows = smem_field<prep_p::END, CHUNK * 4, 6>; // floats: enum prep_row
using prep_bar = smem_field<prep_rows::END, 16>;
enum { PREP_BYTES = prep_bar::END };
static_assert(prep_a::END <= prep_t::AT, "A ends before T");

#ifdef TILE90
// x += left right, ROWS x 4 of a matmul over `depth`, rows of PREP_STRIDE floats.
template <int ROWS>
__device__ inline void multiply(float (&x)[ROWS][4], const float *left, const float *right, int depth)
{
#pragma unroll 2
    for (int m = 0; m < depth; m += 4) {
        float4 l[ROWS], r[4];
#pragma unroll
        for (int i = 0; i < ROWS; i++) l[i] = *(const float4 *)(left + i * PREP_STRIDE + m);
#pragma unroll
        for (int i = 0; i < 4; i++) r[i] = *(const float4 *)(right + (m + i) * PREP_STRIDE);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float li[4] = {l[i].x, l[i].y, l[i].z, l[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i][0] = fmaf(li[j], r[j].x, x[i][0]);
                x[i][1] = fmaf(li[j], r[j].y, x[i][1]);
                x[i][2] = fmaf(li[j], r[j].z, x[i][2]);
                x[i][3] = fmaf(li[j], r[j].w, x[i][3]);
            }
        }
    }
}
// In a block of 2 SIZE whose diagonal blocks are done: T21 = -T22 (A21 T11), by threads with ROWS x 4 elements
// each. Z = A21 T11 is stored in `z`, the unused quarter above the diagonal.
template <int SIZE, int ROWS> __device__ inline void merge(float *block, float *z, int thread)
{
    const int row = thread / (SIZE / 4) * ROWS, col = thread % (SIZE / 4) * 4;
    float *corner = block + SIZE * PREP_STRIDE;
#pragma unroll
    for (int step = 0; step < 2; step++) {
        float x[ROWS][4] = {};
        if (step == 0) multiply<ROWS>(x, corner + row * PREP_STRIDE, block + col, SIZE);
        else multiply<ROWS>(x, corner + SIZE + row * PREP_STRIDE, z + col, SIZE);
        float *to = (step ? corner : z) + row * PREP_STRIDE + col;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            *(float4 *)(to + i * PREP_STRIDE) = step ? make_float4(-x[i][0], -x[i][1], -x[i][2], -x[i][3])
                                                     : make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        __syncthreads();
    }
}
// A [64][PREP_STRIDE], strictly lower, becomes T below the diagonal and on it, by 128 threads: on four 16 x 16
// diagonal blocks a thread has a column of T; then blocks are merged twice.
__device__ inline void invert(float *a, int thread)
{
    if (thread < CHUNK) {
        const int j = thread % 16;
        float *block = a + thread / 16 * (16 * PREP_STRIDE + 16), x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float sum[2] = {i == j ? 1.0f : 0.0f, 0};
#pragma unroll
            for (int m = 0; m < i; m += 4) {
                const float4 r = *(const float4 *)(block + i * PREP_STRIDE + m);
                sum[0] = fmaf(-r.x, x[m], sum[0]);
                if (m + 1 < i) sum[1] = fmaf(-r.y, x[m + 1], sum[1]);
                if (m + 2 < i) sum[0] = fmaf(-r.z, x[m + 2], sum[0]);
                if (m + 3 < i) sum[1] = fmaf(-r.w, x[m + 3], sum[1]);
            }
            x[i] = sum[0] + sum[1];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i++) block[i * PREP_STRIDE + j] = x[i];
    }
    __syncthreads();
    merge<16, 1>(a + thread / 64 * (32 * PREP_STRIDE + 32), a + 32 + thread / 64 * (16 * PREP_STRIDE), thread % 64);
    merge<32, 2>(a, a + 32, thread);
}

struct prepare_group {
    const delta_prepare_args &a;
    unsigned char *shared;
    uint32_t at;
    int thread, warp, lane;
    float kk[32], qk[32];
    float rate[2]; // of rows of the next value head: g of two in warp 0, beta of one in warps 2 and 3

    __device__ float *rows(int which) const { return (float *)(shared + prep_rows::AT) + which * CHUNK; }

    __device__ void fetch(const delta_chunk &c, int h)
    {
        const int64_t heads = a.docs.heads, from = c.row * heads + h;
        if (warp == 0) {
            const float *g = (const float *)a.g + from;
            rate[0] = 2 * lane < c.len ? __ldg(g + 2 * lane * heads) : 0;
            rate[1] = 2 * lane + 1 < c.len ? __ldg(g + (2 * lane + 1) * heads) : 0;
        } else if (warp >= 2) {
            const int i = thread - CHUNK;
            rate[0] = i >= c.len ? 0.0f : a.beta ? __ldg((const float *)a.beta + from + i * heads) : 1.0f;
        }
    }
    // K K^T, Q K^T and the norms' factors.
    __device__ void matmuls()
    {
        const uint64_t q = operand_k(prep_q::at(at)), k = operand_k(prep_k::at(at));
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            wgmma_ss<64>(kk, operand_step(k, step_k(i, CHUNK)), operand_step(k, step_k(i, CHUNK)), i > 0);
            wgmma_ss<64>(qk, operand_step(q, step_k(i, CHUNK)), operand_step(k, step_k(i, CHUNK)), i > 0);
        }
        wgmma_commit();
        if (a.normalize) { // a thread has half a row of Q
            const int row = thread % CHUNK;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint4 x =
                    shared_uint4(prep_q::at(at) + thread / CHUNK * SLAB + row * SLAB_ROW + ((i ^ (row & 7)) << 4));
                sum += dot_bf16(x, x);
            }
            rows(ROW_QQ + thread / CHUNK)[row] = sum;
        }
        wgmma_wait<0>();
        hold(kk);
        hold(qk);
#pragma unroll
        for (int half = 0; half < 2; half++) // the diagonal of K K^T
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++)
                    if (acc_row(thread, 2 * half) == acc_col(thread, 4 * n + x))
                        rows(ROW_RHO_K)[acc_row(thread, 2 * half)] =
                            a.normalize ? rsqrtf(kk[4 * n + 2 * half + x] + 1e-6f) : 1.0f;
        __syncthreads();
        if (thread < CHUNK)
            rows(ROW_RHO_Q)[thread] =
                a.normalize ? rsqrtf(rows(ROW_QQ)[thread] + rows(ROW_QQ + 1)[thread] + 1e-6f) : 1.0f;
    }
    // c and the factors of head h.
    __device__ void factors(const delta_chunk &c, int h)
    {
        if (warp == 0) {
            float sum = rate[0] + rate[1];
#pragma unroll
            for (int d = 1; d < WARP; d *= 2) {
                const float before = __shfl_up_sync(0xffffffffu, sum, d);
                if (lane >= d) sum += before;
            }
            rows(ROW_C)[2 * lane] = (sum - rate[1]) * LOG2E;
            rows(ROW_C)[2 * lane + 1] = sum * LOG2E;
        } else if (warp >= 2) {
            rows(ROW_BETA)[thread - CHUNK] = rate[0];
        }
        __syncthreads();
        if (thread < c.len) {
            const float cum = rows(ROW_C)[thread], last = rows(ROW_C)[c.len - 1], beta = rows(ROW_BETA)[thread];
            const float rho_q = rows(ROW_RHO_Q)[thread], rho_k = rows(ROW_RHO_K)[thread];
            const float e = exp2_fast(cum), beta_a = a.beta ? beta : 0.0f;
            float4 *to = (float4 *)(a.m.factors + (int64_t)h * a.docs.rows + c.row + thread);
            to[0] = make_float4(beta, beta_a * e * rho_k, exp2_fast(last - cum) * rho_k, a.scale * e * rho_q);
            to[1] = make_float4(cum, rho_k, rho_q, beta_a);
        }
    }
    // A to shared memory in f32, P as a tile.
    __device__ void scale(const delta_chunk &c)
    {
        float *strict = (float *)(shared + prep_a::AT);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = acc_row(thread, 2 * half);
            const float cum = rows(ROW_C)[i], beta = a.beta ? rows(ROW_BETA)[i] * rows(ROW_RHO_K)[i] : 0.0f,
                        rho = a.scale * rows(ROW_RHO_Q)[i];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int j = acc_col(thread, 4 * n), at0 = 4 * n + 2 * half;
                const float2 cj = *(const float2 *)(rows(ROW_C) + j), rj = *(const float2 *)(rows(ROW_RHO_K) + j);
                const float gam0 = i >= j ? exp2_fast(cum - cj.x) * rj.x : 0.0f,
                            gam1 = i >= j + 1 ? exp2_fast(cum - cj.y) * rj.y : 0.0f;
                float2 x;
                x.x = i > j && i < c.len ? beta * gam0 * kk[at0] : 0.0f;
                x.y = i > j + 1 && i < c.len ? beta * gam1 * kk[at0 + 1] : 0.0f;
                *(float2 *)(strict + i * PREP_STRIDE + j) = x;
                // P's offset in the slab: 4 bytes, no two lanes in one bank.
                const float p0 = i >= j && i < c.len ? rho * gam0 * qk[at0] : 0.0f,
                            p1 = i >= j + 1 && i < c.len ? rho * gam1 * qk[at0 + 1] : 0.0f;
                *(uint32_t *)(shared + prep_p::AT + slab_offset(i, j)) = two_bf16(p0, p1);
            }
        }
    }
    __device__ void round_t()
    {
        const float *from = (const float *)(shared + prep_a::AT);
        const int row = thread / 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int col = thread % 2 * 8 + 16 * i;
            const float4 x = *(const float4 *)(from + row * PREP_STRIDE + col),
                         y = *(const float4 *)(from + row * PREP_STRIDE + col + 4);
            uint4 t = make_uint4(two_bf16(x.x, x.y), two_bf16(x.z, x.w), two_bf16(y.x, y.y), two_bf16(y.z, y.w));
            if (i > row / 16) t = make_uint4(0, 0, 0, 0);
            *(uint4 *)(shared + prep_t::AT + slab_offset(row, col)) = t;
        }
    }
};
#endif

__global__ void __launch_bounds__(WARPGROUP, PREP_BLOCKS)
    delta_prepare_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                         const delta_prepare_args a)
{
#ifdef TILE90
    extern __shared__ __align__(1024) unsigned char shared[];
    prepare_group x = {
        a, shared, shared_at(shared), (int)threadIdx.x, (int)threadIdx.x / WARP, (int)threadIdx.x % WARP, {}, {}, {}};
    const uint32_t bar = prep_bar::at(x.at);
    const int block = blockIdx.x / a.docs.heads_k, head_k = blockIdx.x % a.docs.heads_k;
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        mbar_init_done();
    }
    __syncthreads();
    delta_walk walk(a.docs, a.m.first_doc, block);
    delta_chunk c;
    for (uint32_t parity = 0; walk.next(c); parity ^= 1) {
        const int head0 = head_k * a.docs.group;
        if (threadIdx.x == 0) {
            bulk_wait_read<0>();
            mbar_arrive_expect(bar, 2 * TILE);
            tma_load(prep_q::at(x.at), &q, bar, c.row, head_k * 2);
            tma_load(prep_k::at(x.at), &k, bar, c.row, head_k * 2);
        }
        x.fetch(c, head0);
        mbar_wait(bar, parity);
        if (c.len < CHUNK) {
            clear_rows(prep_q::at(x.at), 4, c.len, threadIdx.x, WARPGROUP);
            fence_async();
            __syncthreads();
        }
        x.matmuls();
        for (int h = head0; h < head0 + a.docs.group; h++) {
            if (threadIdx.x == 0) bulk_wait_read<0>();
            __syncthreads();
            x.factors(c, h);
            if (h + 1 < head0 + a.docs.group) x.fetch(c, h + 1);
            x.scale(c);
            __syncthreads();
            invert((float *)(shared + prep_a::AT), threadIdx.x);
            x.round_t();
            fence_async();
            __syncthreads();
            if (threadIdx.x == 0) {
                const int64_t to = row_image(a.docs, h, c.row);
                bulk_store(a.m.t + to, prep_t::at(x.at), c.len * SLAB_ROW);
                bulk_store(a.m.p + to, prep_p::at(x.at), c.len * SLAB_ROW);
                bulk_commit();
            }
        }
    }
    if (threadIdx.x == 0) bulk_wait<0>();
#endif
}

// ---- Host.

// Pieces for `documents` and heads, so that a scan has a block with half of dv for each of CUT_BLOCKS
// multiprocessors. If that is less than four, the forward's first step gets one block for each: of S pieces S - 1
// need B and S - 2 A; the scan then has both halves in a block. Documents are assumed equally long. A batch with
// documents of any length has as many slots as rows (model/feed.c), which says nothing: then one document is
// assumed, and shorter ones stay whole.
enum { CUT_BLOCKS = 132, CUT_PIECES_MIN = 4, CUT_PIECES = 32, CUT_CHUNKS_MIN = 5 };

struct delta_cut { int64_t chunks, slots; };
static int64_t cut_pieces(int64_t documents)
{
    const int64_t halves = CUT_BLOCKS / (2 * documents), ends = (CUT_BLOCKS / documents + 3) / 2,
                  pieces = halves < CUT_PIECES_MIN ? ends : halves;
    if (pieces < CUT_PIECES_MIN) return 0;
    return pieces < CUT_PIECES ? pieces : (int64_t)CUT_PIECES;
}
static struct delta_cut delta_hopper_cut(const struct delta_shape *n)
{
    const int64_t chunks = n->rows / CHUNK, docs = n->docs > chunks ? 1 : n->docs, pieces = cut_pieces(docs * n->heads);
    if (pieces == 0) return {0, 0};
    const int64_t even = (chunks + docs * pieces - 1) / (docs * pieces),
                  cut = even < CUT_CHUNKS_MIN ? (int64_t)CUT_CHUNKS_MIN : even;
    return chunks / cut < CUT_PIECES_MIN ? delta_cut{0, 0} : delta_cut{cut, chunks / cut};
}
// Slots of `link` and of `chain`: enough for any number of documents, since a run may have fewer than the layout.
static size_t pieces_bytes(const struct delta_shape *n)
{
    const int64_t slots = n->rows / (CUT_CHUNKS_MIN * CHUNK), most = cut_pieces(n->heads) ? CUT_STATES / n->heads : 0;
    return (size_t)((slots < most ? slots : most) * n->heads) * (PIECE_STATE * sizeof(float));
}

size_t delta_hopper_layout_saved(struct delta_memory_map *m, unsigned char *at, const struct delta_shape *n)
{
    const size_t slots = (size_t)(n->rows / CHUNK + 1), heads = (size_t)n->heads, rows = (size_t)n->rows;
    const size_t states = slots * heads * (2 * STATE_HALF), pieces = pieces_bytes(n);
    m->chain_back = (float *)at;
    m->s = at ? at + pieces : NULL;
    m->d = at ? at + pieces + states : NULL;
    return pieces + states + heads * 2 * rows * SLAB_ROW;
}

size_t delta_hopper_layout(struct delta_memory_map *m, unsigned char *at, const struct delta_shape *n,
                           enum delta_memory what)
{
    const size_t slots = (size_t)(n->rows / CHUNK + 1), heads = (size_t)n->heads, rows = (size_t)n->rows;
    size_t used = 0;
    auto take = [&](size_t bytes) {
        unsigned char *p = at ? at + used : NULL;
        used += (bytes + 1023) / 1024 * 1024;
        return p;
    };
    *m = {};
    m->first_doc = (int *)take(slots * sizeof(int));
    m->counts = (int *)take(COUNT_TOTAL * sizeof(int));
    m->zero = take(STATE_HALF);
    m->pieces = (struct delta_piece *)take((size_t)(n->rows / (CUT_CHUNKS_MIN * CHUNK)) * sizeof(struct delta_piece));
    m->link = (float *)take(pieces_bytes(n));
    m->t = take(heads * rows * SLAB_ROW);
    m->p = take(heads * rows * SLAB_ROW);
    m->factors = (delta_factors *)take(heads * rows * sizeof(delta_factors));
    if (what != DELTA_BWD) {
        m->chain = (float *)take(pieces_bytes(n));
        return used;
    }
    m->y = take(heads * 2 * rows * SLAB_ROW);
    m->ds = take(slots * heads * (2 * STATE_HALF));
    if (n->heads > n->heads_k) m->partial = (float *)take((size_t)GRAD_BLOCKS * 2 * CHUNK * HEAD * sizeof(float));
    return used;
}

struct delta_docs delta_hopper_docs(const struct delta_shape *n, const int32_t *cu)
{
    CHECK(n->rows < INT32_MAX && n->docs > 0 && n->docs < INT32_MAX, "%lld rows, %lld documents", (long long)n->rows,
          (long long)n->docs);
    const struct delta_cut cut = delta_hopper_cut(n);
    CHECK(cut.slots * n->heads <= CUT_STATES, "%lld pieces of %lld heads", (long long)cut.slots, (long long)n->heads);
    return {cu,
            (int)n->docs,
            (int)n->rows,
            (int)n->heads,
            (int)n->heads_k,
            (int)(n->heads / n->heads_k),
            (int)cut.chunks,
            (int)cut.slots};
}

status delta_hopper_prepare(const struct delta_prepare_args *a, dev_stream s)
{
    const int blocks = (a->docs.rows + CHUNK - 1) / CHUNK;
    CUtensorMap q, k;
    TRY(tile_map_rows(&q, s, a->q, a->docs.rows, a->q_stride, a->docs.heads_k * HEAD, CHUNK, 2));
    TRY(tile_map_rows(&k, s, a->k, a->docs.rows, a->k_stride, a->docs.heads_k * HEAD, CHUNK, 2));
    const int threads = blocks + 3 * WARP + 2 * a->docs.slots; // each purpose starts at a new warp
    delta_index_kernel<<<(threads + INDEX_THREADS - 1) / INDEX_THREADS, INDEX_THREADS, 0, queue_of(s)>>>(a->docs, a->m,
                                                                                                         blocks);
    // a failure shows at the launch
    cudaFuncSetAttribute(delta_prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PREP_BYTES);
    delta_prepare_kernel<<<(unsigned)(blocks * a->docs.heads_k), WARPGROUP, PREP_BYTES, queue_of(s)>>>(q, k, *a);
    return cuda_set_launched(s, "delta (hopper, prepare)");
}

extern "C" bool delta_hopper_serves(const struct cuda_set *set, const struct delta_shape *n)
{
    return set->sm / 10 == 9 && set->tensor_map_encode && n->dt == DTYPE_BF16 && n->dk == HEAD && n->dv == HEAD;
}

extern "C" size_t delta_hopper_bytes(const struct delta_shape *n, enum delta_memory what)
{
    struct delta_memory_map m;
    if (n->dt != DTYPE_BF16 || n->dk != HEAD || n->dv != HEAD) return 0;
    return what == DELTA_SAVED ? delta_hopper_layout_saved(&m, NULL, n) : delta_hopper_layout(&m, NULL, n, what);
}
