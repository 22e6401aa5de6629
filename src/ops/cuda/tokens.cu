// Ops on token ids, Engram's gate, and heads that halt.
#include "ops/cuda/docs.cuh"
#include "ops/cuda/rowwise.cuh"
extern "C" {
#include "base/rng.h"
}
#include <initializer_list>

namespace {

enum { THREADS = 256, ROWS = THREADS / WARP /* warps of a block, one row each */ };
const unsigned ALL = 0xffffffffu;

unsigned blocks_of(int64_t count, int64_t each)
{
    return unsigned((count + each - 1) / each);
}

__global__ void __launch_bounds__(THREADS) ahead_kernel(const shift_tokens_args a)
{
    const int64_t t = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (t >= a.rows) return;
    const doc_cursor doc(a.cu_seqlens, int(a.docs), int(t));
    a.out[t] = t + a.k < doc.end ? a.in[t + a.k] : a.none;
}

status shift_tokens(const struct shift_tokens_args *a, dev_stream s)
{
    CHECK(a->k >= 0 && a->out != a->in, "%lld tokens ahead", (long long)a->k);
    if (a->rows == 0) return STATUS_OK;
    ahead_kernel<<<blocks_of(a->rows, THREADS), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "shift_tokens");
}

// ---- rows of hashed n-grams: one thread each. Heads of an order recompute its hash: a few integer
// multiplications; the division by the prime costs more, and all of it less than the gather that reads the rows.

// The id of row t - k for the hash; TOKEN_NONE: it and everything before it are missing.
__device__ inline int32_t token_back(const ngram_args &a, int order, int64_t begin, int64_t t, int k)
{
    if (t - k >= begin) return a.tokens[t - k];
    // With tokens before it, document `begin` begins at row `begin`.
    return a.before ? a.before[(begin + 1) * (order - 1) + (t - begin - k)] : int32_t(TOKEN_NONE);
}

__global__ void __launch_bounds__(THREADS) ngram_kernel(const ngram_args a, const __grid_constant__ ngram_hash h)
{
    const int order = int(h.order), heads = int(h.heads), width = (order - 1) * heads;
    const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x, t = at / width;
    if (t >= a.rows) return;
    const int i = int(at % width), n = i / heads + 2;
    const doc_cursor doc(a.cu_seqlens, int(a.docs), int(t));
    const int32_t pad = a.map ? a.map[h.pad] : h.pad;
    uint64_t hash = 0;
    bool there = true;
    for (int k = 0; k < n; k++) {
        const int32_t token = there ? token_back(a, order, doc.begin, t, k) : int32_t(TOKEN_NONE);
        there = token != TOKEN_NONE;
        const int32_t x = !there ? pad : a.map ? a.map[token] : token;
        hash ^= uint64_t(x) * uint64_t(h.multipliers[k]);
    }
    a.out[at] = int32_t(hash % uint32_t(h.primes[i])) + h.offsets[i];
}

status ngram(const struct ngram_args *a, dev_stream s)
{
    const struct ngram_hash *h = a->hash;
    const int64_t width = (h->order - 1) * h->heads;
    CHECK(h->order >= 2 && h->order <= NGRAM_ORDER_MAX && width <= NGRAM_ROWS_MAX, "%lld heads of order %lld",
          (long long)h->heads, (long long)h->order);
    CHECK(!a->before || a->docs == 1 || a->docs == a->rows, "tokens before the first of %lld in %lld documents",
          (long long)a->rows, (long long)a->docs);
    if (a->rows * width == 0) return STATUS_OK;
    ngram_kernel<<<blocks_of(a->rows * width, THREADS), THREADS, 0, queue_of(s)>>>(*a, *h);
    return cuda_set_launched(s, "ngram");
}

// ---- Engram's gate: a warp per row. Bound: memory bandwidth. Forward moves 6 d elements per row (a, b, v, h; u,
// sum), backward 7 d (du, a, b, v; da, db, dv); its second read of du hits the cache.

const float DELTA_MIN = 1e-6f;

__device__ inline float gate_of(float delta)
{
    const float root = sqrtf(fmaxf(fabsf(delta), DELTA_MIN)), q = delta > 0 ? root : delta < 0 ? -root : 0.f;
    return 1.f / (1.f + expf(-q));
}

// <x, y> of two rows, in every lane of the warp.
template <int W, typename T> __device__ inline float row_dot(const T *x, const T *y, int64_t d)
{
    float sum = 0;
#pragma unroll 4
    for (int64_t j = threadIdx.x % WARP * W; j < d; j += WARP * W) {
        float fx[W], fy[W];
        widen(load_vec<W>(x + j), fx);
        widen(load_vec<W>(y + j), fy);
        for (int i = 0; i < W; i++) sum += fx[i] * fy[i];
    }
    return warp_sum(sum);
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) ngram_gate_fwd_kernel(const ngram_gate_fwd_args a)
{
    const int64_t t = int64_t(blockIdx.x) * ROWS + threadIdx.x / WARP, at = t * a.d;
    if (t >= a.rows) return;
    const T *v_row = (const T *)a.v + at, *h_row = (const T *)a.h + at;
    T *u_row = (T *)a.u + at, *sum_row = (T *)a.sum + at; // sum may alias h
    const float delta = row_dot<W>((const T *)a.a + at, (const T *)a.b + at, a.d) / sqrtf(float(a.d)),
                alpha = gate_of(delta);
    if (threadIdx.x % WARP == 0) ((float *)a.delta)[t] = delta;
#pragma unroll 4
    for (int64_t j = threadIdx.x % WARP * W; j < a.d; j += WARP * W) {
        float u[W], h[W];
        widen(load_vec<W>(v_row + j), u);
        widen(load_vec<W>(h_row + j), h);
        for (int i = 0; i < W; i++) u[i] *= alpha;
        const vec<T, W> rounded = narrow<T>(u);
        store_vec(u_row + j, rounded);
        widen(rounded, u);
        for (int i = 0; i < W; i++) h[i] += u[i];
        store_vec(sum_row + j, narrow<T>(h));
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) ngram_gate_bwd_kernel(const ngram_gate_bwd_args a)
{
    const int64_t t = int64_t(blockIdx.x) * ROWS + threadIdx.x / WARP, at = t * a.d;
    if (t >= a.rows) return;
    const T *du_row = (const T *)a.du + at, *a_row = (const T *)a.a + at, *b_row = (const T *)a.b + at;
    const float delta = ((const float *)a.delta)[t], size = fabsf(delta), alpha = gate_of(delta);
    const float dq = row_dot<W>(du_row, (const T *)a.v + at, a.d) * alpha * (1.f - alpha);
    const float slope = size > DELTA_MIN ? dq / (2.f * sqrtf(size)) / sqrtf(float(a.d)) : 0.f;
#pragma unroll 2
    for (int64_t j = threadIdx.x % WARP * W; j < a.d; j += WARP * W) {
        float du[W], na[W], nb[W];
        widen(load_vec<W>(du_row + j), du);
        widen(load_vec<W>(a_row + j), na);
        widen(load_vec<W>(b_row + j), nb);
        for (int i = 0; i < W; i++) du[i] *= alpha, na[i] *= slope, nb[i] *= slope;
        store_vec((T *)a.dv + at + j, narrow<T>(du));
        store_vec((T *)a.da + at + j, narrow<T>(nb));
        store_vec((T *)a.db + at + j, narrow<T>(na));
    }
}

// Rows of whole accesses of 16 bytes.
template <typename T> bool sp_rows(int64_t d, std::initializer_list<const void *> rows)
{
    bool wide = d % WIDE<T> == 0;
    for (const void *p : rows) wide = wide && aligned16(p);
    return wide;
}

status ngram_gate_fwd(const struct ngram_gate_fwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    const unsigned blocks = blocks_of(a->rows, ROWS);
    BY_DTYPE(a->dt, {
        if (sp_rows<T>(a->d, {a->a, a->b, a->v, a->h, a->u, a->sum}))
            ngram_gate_fwd_kernel<T, WIDE<T>><<<blocks, THREADS, 0, queue_of(s)>>>(*a);
        else
            ngram_gate_fwd_kernel<T, 1><<<blocks, THREADS, 0, queue_of(s)>>>(*a);
    });
    return cuda_set_launched(s, "ngram_gate_fwd");
}

status ngram_gate_bwd(const struct ngram_gate_bwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    const unsigned blocks = blocks_of(a->rows, ROWS);
    BY_DTYPE(a->dt, {
        if (sp_rows<T>(a->d, {a->du, a->a, a->b, a->v, a->da, a->db, a->dv}))
            ngram_gate_bwd_kernel<T, WIDE<T>><<<blocks, THREADS, 0, queue_of(s)>>>(*a);
        else
            ngram_gate_bwd_kernel<T, 1><<<blocks, THREADS, 0, queue_of(s)>>>(*a);
    });
    return cuda_set_launched(s, "ngram_gate_bwd");
}

// ---- heads that halt: a warp per document. Most are empty: there are slots for as many as tokens. Few rows are
// read, so elements are loaded one by one, and results are computed in f64.

template <typename T> __global__ void __launch_bounds__(THREADS) halt_fwd_kernel(const halt_fwd_args a)
{
    const int64_t i = int64_t(blockIdx.x) * ROWS + threadIdx.x / WARP;
    if (i >= a.docs) return;
    const int lane = threadIdx.x % WARP, last = a.cu_seqlens[i + 1] - 1;
    const bool empty = last < a.cu_seqlens[i];
    const T *z = (const T *)a.z + int64_t(last) * a.d, *w = (const T *)a.w, *b = (const T *)a.b;
    float halt = 0, more = 0;
    for (int64_t j = lane; !empty && j < a.d; j += WARP) {
        const float x = to_f32(z[j]);
        halt += to_f32(w[j]) * x;
        more += to_f32(w[a.d + j]) * x;
    }
    halt = warp_sum(halt), more = warp_sum(more);
    if (lane < 2) ((float *)a.q)[2 * i + lane] = empty ? 0.f : (lane == 0 ? halt : more) + to_f32(b[lane]);
}

status halt_fwd(const struct halt_fwd_args *a, dev_stream s)
{
    if (a->docs == 0) return STATUS_OK;
    BY_DTYPE(a->dt, (halt_fwd_kernel<T><<<blocks_of(a->docs, ROWS), THREADS, 0, queue_of(s)>>>(*a)));
    return cuda_set_launched(s, "halt_fwd");
}

// FNV-1a over the ids of a document, as in the oracle: sequential; each lane loads its own id.
__device__ inline uint64_t name_of(const halt_stop_args &a, int begin, int end)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (int base = begin; base < end; base += WARP) {
        const int at = base + int(threadIdx.x % WARP), count = min(end - base, int(WARP));
        const int32_t mine = at < end ? a.tokens[at] : 0;
        for (int k = 0; k < count; k++) hash = (hash ^ uint32_t(__shfl_sync(ALL, mine, k))) * 0x100000001B3u;
    }
    return hash;
}
__device__ inline int64_t least_segments(const halt_stop_args &a, int begin, int end)
{
    if (a.explore <= 0 || a.segments < 2) return 1;
    const rng_block r = rng_at(*a.step, RNG_HALT, name_of(a, begin, end), 0);
    if (double(r.u[0]) * 0x1p-32 >= a.explore) return 1;
    return 2 + int64_t(r.u[1] % uint64_t(a.segments - 1));
}

__global__ void __launch_bounds__(THREADS) halt_stop_kernel(const halt_stop_args a)
{
    const int64_t i = int64_t(blockIdx.x) * ROWS + threadIdx.x / WARP;
    if (i >= a.docs) return;
    const int lane = threadIdx.x % WARP, begin = a.cu_seqlens[i], end = a.cu_seqlens[i + 1];
    const int64_t least = least_segments(a, begin, end);
    const float *q = (const float *)a.q;
    int64_t m = 1;
    for (; m < a.segments; m++) {
        const int64_t at = 2 * ((m - 1) * a.docs + i);
        if (m >= least && q[at] > q[at + 1]) break;
    }
    if (lane == 0) a.stop[i] = int32_t(m);
    for (int64_t t = begin + lane; t < end; t += WARP) {
        const int32_t target = a.targets[t];
        for (int64_t k = 0; k < a.segments; k++) a.masked[k * a.rows + t] = k < m ? target : int32_t(TARGET_IGNORE);
    }
}

status halt_stop(const struct halt_stop_args *a, dev_stream s)
{
    if (a->docs == 0) return STATUS_OK;
    halt_stop_kernel<<<blocks_of(a->docs, ROWS), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "halt_stop");
}

// A document's part of the loss, and the gradient of its q: zeros if it does not count.
struct halted {
    double loss, dq[2];
};

__device__ inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }
__device__ inline double bce(double x, double p) { return fmax(x, 0.) + log1p(exp(-fabs(x))) - p * x; }

// Whether document i counts, and whether all of its targets were hit; per warp.
__device__ inline bool takes_part(const halt_bwd_args &a, int64_t i, bool *right)
{
    bool some = false, missed = false;
    if (a.stop[i] < a.m) return false;
    for (int64_t t = a.cu_seqlens[i] + int(threadIdx.x % WARP); t < a.cu_seqlens[i + 1]; t += WARP) {
        if (a.targets[t] == TARGET_IGNORE) continue;
        some = true;
        missed = missed || !(((const float *)a.hits)[t] > 0);
    }
    *right = !__any_sync(ALL, missed);
    return __any_sync(ALL, some);
}

// A warp per document: its part of the loss, and its row of dz.
template <typename T> __global__ void __launch_bounds__(THREADS) halt_docs_kernel(const halt_bwd_args a, halted *docs)
{
    const int64_t i = int64_t(blockIdx.x) * ROWS + threadIdx.x / WARP;
    if (i >= a.docs) return;
    const int lane = threadIdx.x % WARP;
    bool right = false;
    halted one = {};
    const bool part = takes_part(a, i, &right);
    if (part) {
        const float *q = (const float *)a.q + 2 * i, *next = (const float *)a.q_next + 2 * i;
        const double goal[2] = {double(right), sigmoid(a.m < a.segments ? fmaxf(next[0], next[1]) : next[0])};
        for (int k = 0; k < 2; k++) {
            one.loss += bce(q[k], goal[k]) / 2;
            one.dq[k] = *a.scale * (sigmoid(q[k]) - goal[k]) / 2;
        }
    }
    if (lane == 0) docs[i] = one;
    if (!part) return;
    const T *w = (const T *)a.w;
    T *dz = (T *)a.dz + int64_t(a.cu_seqlens[i + 1] - 1) * a.d;
    for (int64_t j = lane; j < a.d; j += WARP)
        dz[j] = from_f32<T>(float(to_f32(dz[j]) + one.dq[0] * to_f32(w[j]) + one.dq[1] * to_f32(w[a.d + j])));
}

// The sum of one number of each document, in every thread of the block.
template <typename F> __device__ inline double docs_sum(int64_t docs, double *line, F of)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < docs; i += THREADS) sum += of(i);
    return block_sum(sum, line);
}

// A thread per column of dw, over the documents that have a gradient, in order; the first block also has the sums
// without columns.
template <typename T>
__global__ void __launch_bounds__(THREADS) halt_sums_kernel(const halt_bwd_args a, const halted *docs)
{
    __shared__ double line[WARP];
    const int64_t j = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    double dw[2] = {};
    for (int64_t base = 0; base < a.docs; base += WARP) {
        const int64_t i = base + threadIdx.x % WARP;
        const double mine[2] = {i < a.docs ? docs[i].dq[0] : 0, i < a.docs ? docs[i].dq[1] : 0};
        for (unsigned left = __ballot_sync(ALL, mine[0] != 0 || mine[1] != 0); left; left &= left - 1) {
            const int k = __ffs(left) - 1;
            const double halt = __shfl_sync(ALL, mine[0], k), more = __shfl_sync(ALL, mine[1], k);
            if (j >= a.d) continue;
            const float z = to_f32(((const T *)a.z)[int64_t(a.cu_seqlens[base + k + 1] - 1) * a.d + j]);
            dw[0] += halt * z;
            dw[1] += more * z;
        }
    }
    for (int k = 0; k < 2 && j < a.d; k++) {
        float *to = (float *)a.dw + k * a.d + j;
        *to = float(*to + dw[k]);
    }
    if (blockIdx.x > 0) return;
    const double loss = docs_sum(a.docs, line, [=](int64_t i) { return docs[i].loss; });
    if (threadIdx.x == 0) *a.loss_sum += loss;
    for (int k = 0; k < 2; k++) {
        const double db = docs_sum(a.docs, line, [=](int64_t i) { return docs[i].dq[k]; });
        if (threadIdx.x == 0) ((float *)a.db)[k] = float(((float *)a.db)[k] + db);
    }
}

status halt_bwd(const struct halt_bwd_args *a, dev_stream s)
{
    if (a->docs == 0) return STATUS_OK;
    halted *docs = static_cast<halted *>(cuda_set_workspace(s, size_t(a->docs) * sizeof *docs, "halt_bwd"));
    BY_DTYPE(a->dt, {
        halt_docs_kernel<T><<<blocks_of(a->docs, ROWS), THREADS, 0, queue_of(s)>>>(*a, docs);
        halt_sums_kernel<T><<<blocks_of(a->d, THREADS), THREADS, 0, queue_of(s)>>>(*a, docs);
    });
    return cuda_set_launched(s, "halt_bwd");
}

} // namespace

extern "C" void cuda_tokens_slots(struct ops *o)
{
    o->shift_tokens = shift_tokens;
    o->ngram = ngram;
    o->ngram_gate_fwd = ngram_gate_fwd;
    o->ngram_gate_bwd = ngram_gate_bwd;
    o->halt_fwd = halt_fwd;
    o->halt_stop = halt_stop;
    o->halt_bwd = halt_bwd;
}
