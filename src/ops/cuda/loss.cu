// Cross-entropy: one block per row; the row is read once from memory and its gradient written once. Bound: memory
// bandwidth.
//
//   pass 1   each thread keeps a running maximum and sum of its columns. As much of the row as two blocks of an SM can
//            hold stays in shared memory, the rest hopefully in L2.                          reads ldt
//   pass 2   dz from the kept columns, in place of the logits if they share memory           writes dt
//
// Exponents are of base 2: c = max log2(e), rounded, is subtracted from all exponents and added to the logarithm,
// so its rounding cancels. A target outside [0, vocab_used) that is not TARGET_IGNORE makes loss and gradient of
// its row NaN: the step's norm is then not finite, and nothing is updated. (The loader checks ids; the CPU aborts.)
#include "ops/cuda/rowwise.cuh"
#include "ops/cuda/sigmoid.cuh"
#include <math.h>

namespace {

enum {
    THREADS = 512,
    BLOCKS = 2 /* of an SM */,
    SIDE = 4 /* groups that a thread loads at once */,
    SUM_THREADS = 1024
};
const float LOG2E = 1.44269504f, LOW = -1e30f;
const double LN2 = 0.69314718055994530942;

__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// G columns of one thread, 8 as accesses of 16 bytes or 1.
template <typename T, int G> struct group {
    T v[G];
};
template <typename T, int G> __device__ inline group<T, G> load_group(const T *p)
{
    group<T, G> x;
    if constexpr (G == 1) {
        x.v[0] = *p;
    } else {
        for (int at = 0; at < G; at += pack<T>::COUNT) {
            const pack<T> part = load_pack(p + at);
            for (int k = 0; k < pack<T>::COUNT; k++) x.v[at + k] = part.v[k];
        }
    }
    return x;
}
template <typename T, int G> __device__ inline void store_group(T *p, const group<T, G> &x)
{
    if constexpr (G == 1) {
        *p = x.v[0];
    } else {
        for (int at = 0; at < G; at += pack<T>::COUNT) {
            pack<T> part;
            for (int k = 0; k < pack<T>::COUNT; k++) part.v[k] = x.v[at + k];
            store_pack(p + at, part);
        }
    }
}

template <typename T, int G> __device__ inline group<T, G> rounded(const float (&x)[G])
{
    group<T, G> y;
    if constexpr (sizeof(T) == 2 && G > 1) {
        for (int k = 0; k < G; k += 2) { // one instruction for two
            const __nv_bfloat162 pair = __floats2bfloat162_rn(x[k], x[k + 1]);
            y.v[k] = pair.x, y.v[k + 1] = pair.y;
        }
    } else {
        for (int k = 0; k < G; k++) y.v[k] = from_f32<T>(x[k]);
    }
    return y;
}

// Shared memory for the first `count` groups of a row. A group of 32 bytes is stored in two halves, so that
// neighbours are adjacent.
template <typename T, int G> struct keep {
    T *at;
    int count;
    enum { PIECE = G == 1 ? 1 : int(pack<T>::COUNT) };
    __device__ inline void put(int g, const group<T, G> &x) const
    {
        for (int k = 0; k < G; k += PIECE) {
            group<T, PIECE> part;
            for (int j = 0; j < PIECE; j++) part.v[j] = x.v[k + j];
            store_group<T, PIECE>(at + int64_t(k) * count + g * PIECE, part);
        }
    }
    __device__ inline group<T, G> get(int g) const
    {
        group<T, G> x;
        for (int k = 0; k < G; k += PIECE) {
            const group<T, PIECE> part = load_group<T, PIECE>(at + int64_t(k) * count + g * PIECE);
            for (int j = 0; j < PIECE; j++) x.v[k + j] = part.v[j];
        }
        return x;
    }
};

// sum is of 2^(z log2e - top log2e) over the columns so far.
struct running {
    float top, sum;
};
template <typename T, int G> __device__ inline void absorb(running &r, const group<T, G> &x, int n)
{
    float z[G], top = r.top;
    for (int k = 0; k < G; k++) z[k] = to_f32(x.v[k]);
    if (n < G) // the last columns that count
        for (int k = 0; k < G; k++) z[k] = k < n ? z[k] : -INFINITY;
    for (int k = 0; k < G; k++) top = fmaxf(top, z[k]);
    const float c = top * LOG2E;
    float sum = r.sum * exp2_fast(r.top * LOG2E - c);
    for (int k = 0; k < G; k++) sum += exp2_fast(fmaf(z[k], LOG2E, -c));
    r = {top, sum};
}

__device__ inline float block_max(float x, float *shared)
{
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_max(threadIdx.x % WARP < THREADS / WARP ? shared[threadIdx.x % WARP] : LOW);
}

template <typename T, int G> __device__ void zero_row(T *dz, int groups)
{
    for (int g = threadIdx.x; g < groups; g += THREADS) store_group<T, G>(dz + int64_t(g) * G, group<T, G>{});
}

// log2 of the row's sum of exponentials.
template <typename L, int G> __device__ float row_lse2(const L *z, int used, const keep<L, G> &kept)
{
    __shared__ float line[WARP];
    const int groups = (used + G - 1) / G;
    running r = {LOW, 0};
    for (int base = threadIdx.x; base < groups; base += SIDE * THREADS) {
        group<L, G> x[SIDE];
#pragma unroll
        for (int u = 0; u < SIDE; u++)
            if (base + u * THREADS < groups) x[u] = load_group<L, G>(z + int64_t(base + u * THREADS) * G);
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            const int g = base + u * THREADS;
            if (g >= groups) continue;
            if (g < kept.count) kept.put(g, x[u]);
            absorb<L, G>(r, x[u], min(used - g * G, G));
        }
    }
    const float c = block_max(r.top, line) * LOG2E;
    return c + log2f(block_sum(r.sum * exp2_fast(r.top * LOG2E - c), line));
}

// dz = factor 2^(z log2e - lse2) in `used` of the row's groups * G columns, minus `one` in column `target` if it is
// one of them; times softcap's slope, 1 - steep z^2.
struct row_factors {
    float lse2, factor, one, steep;
};
__device__ inline float steep_of(double cap) { return cap > 0 ? float(1 / (cap * cap)) : 0.f; }
template <typename L, typename T, int G>
__device__ __forceinline__ void write_grad(const L *z, T *dz, const keep<L, G> &kept, int groups, int used, int target,
                                           const row_factors f)
{
    const int used_groups = (used + G - 1) / G;
    for (int base = threadIdx.x; base < groups; base += SIDE * THREADS) {
        group<L, G> x[SIDE] = {};
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            const int g = base + u * THREADS;
            if (g < used_groups) x[u] = g < kept.count ? kept.get(g) : load_group<L, G>(z + int64_t(g) * G);
        }
#pragma unroll
        for (int u = 0; u < SIDE; u++) {
            const int g = base + u * THREADS, left = used - g * G, at = target - g * G;
            if (g >= groups) continue;
            float d[G];
            for (int k = 0; k < G; k++) d[k] = f.factor * exp2_fast(fmaf(to_f32(x[u].v[k]), LOG2E, -f.lse2));
            if (at >= 0 && at < G)
                for (int k = 0; k < G; k++) d[k] = k == at ? d[k] - f.one : d[k];
            if (f.steep > 0)
                for (int k = 0; k < G; k++) {
                    const float at_k = to_f32(x[u].v[k]);
                    d[k] *= 1 - f.steep * (at_k * at_k);
                }
            if (left < G) // padding, whatever it holds
                for (int k = 0; k < G; k++) d[k] = k < left ? d[k] : 0.f;
            store_group<T, G>(dz + int64_t(g) * G, rounded<T, G>(d));
        }
    }
}

// Of xent_args and vocab_xent_finish_args.
template <typename A> __device__ __forceinline__ void put_loss(const A &a, int64_t row, double loss, double z_term)
{
    static_cast<float *>(a.loss)[row] = float(a.z_term ? loss : loss + z_term);
    if (a.z_term) static_cast<float *>(a.z_term)[row] = float(z_term);
}

// L: of logits; T: of their gradient. G == 8 needs rows of whole groups, 16-byte aligned.
template <typename L, typename T, int G>
__global__ void __launch_bounds__(THREADS, BLOCKS) xent_kernel(const xent_args a, int kept_count)
{
    extern __shared__ int4 kept_space[];
    const keep<L, G> kept = {reinterpret_cast<L *>(kept_space), kept_count};
    const int64_t row = blockIdx.x;
    const int vocab = int(a.vocab), used = int(a.vocab_used), target = a.targets[row];
    const L *z = static_cast<const L *>(a.logits) + row * a.vocab;
    T *dz = static_cast<T *>(a.dlogits) + row * a.vocab;
    const int groups = vocab / G;
    if (target == TARGET_IGNORE) {
        if (threadIdx.x == 0) put_loss(a, row, 0, 0);
        if (a.dlogits) zero_row<T, G>(dz, groups);
        return;
    }
    // Read before any part of the row is overwritten: row_lse2 synchronises all threads.
    const float hit = target >= 0 && target < used ? to_f32(z[target]) : NAN;
    const float lse2 = row_lse2<L, G>(z, used, kept) + (isnan(hit) ? NAN : 0.f);
    const double lse = lse2 * LN2;
    if (threadIdx.x == 0) put_loss(a, row, lse - double(hit), a.z_loss * lse * lse);
    if (a.dlogits == nullptr) return;
    const double grad_scale = *a.grad_scale;
    const row_factors f = {lse2, float(grad_scale * (1 + 2 * a.z_loss * lse)), float(grad_scale), steep_of(a.cap)};
    write_grad<L, T, G>(z, dz, kept, groups, used, target, f);
}

template <typename L, typename T, int G> status launch(const struct xent_args *a, dev_stream s)
{
    const void *kernel = reinterpret_cast<const void *>(xent_kernel<L, T, G>);
    int of_sm = 0, of_block = 0, reserved = 0;
    // The launch reports an error of this call.
    (void)cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, s->dev->index);
    (void)cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, s->dev->index);
    (void)cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, s->dev->index);
    const int fixed = WARP * int(sizeof(float)), group_bytes = G * int(sizeof(L));
    const int most = (of_sm / BLOCKS - reserved < of_block ? of_sm / BLOCKS - reserved : of_block) - fixed;
    const int64_t groups = (a->vocab_used + G - 1) / G, room = most > 0 ? most / group_bytes : 0;
    const int kept = a->dlogits ? int(groups < room ? groups : room) : 0;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kept * group_bytes);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    xent_kernel<L, T, G><<<unsigned(a->rows), THREADS, size_t(kept) * group_bytes, queue_of(s)>>>(*a, kept);
    return cuda_set_launched(s, "xent");
}

status xent(const struct xent_args *a, dev_stream s)
{
    CHECK(a->vocab_used > 0 && a->vocab_used <= a->vocab && a->vocab <= INT32_MAX / 2, "%lld of %lld columns are used",
          (long long)a->vocab_used, (long long)a->vocab);
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    CHECK(a->ldt == DTYPE_F32 || a->ldt == a->dt, "logits of %s", dtype_name(a->ldt));
    CHECK(a->dlogits != a->logits || a->dt == a->ldt, "dlogits in place of logits of another type");
    if (a->rows == 0) return STATUS_OK;
    const bool wide = a->vocab % 8 == 0 && aligned16(a->logits) && aligned16(a->dlogits);
    typedef __nv_bfloat16 half;
    if (a->ldt == DTYPE_BF16) return wide ? launch<half, half, 8>(a, s) : launch<half, half, 1>(a, s);
    if (a->dt == DTYPE_BF16) return wide ? launch<float, half, 8>(a, s) : launch<float, half, 1>(a, s);
    return wide ? launch<float, float, 8>(a, s) : launch<float, float, 1>(a, s);
}

// ---- Soft-cap: z = cap tanh(z / cap), a vector per thread and turn. tanh(u) = sigmoid(2u) - (1 - sigmoid(2u)).

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) softcap_kernel(T *z, int64_t vectors, float cap, float twice)
{
    vec<T, W> x[SIDE];
    const int64_t first = int64_t(blockIdx.x) * SIDE * THREADS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < SIDE; k++)
        if (first + k * THREADS < vectors) x[k] = load_vec<W>(z + (first + k * THREADS) * W);
#pragma unroll
    for (int k = 0; k < SIDE; k++) {
        if (first + k * THREADS >= vectors) continue;
        float f[W];
        widen(x[k], f);
        for (int j = 0; j < W; j++) {
            float yes, no;
            sigmoids<T>(f[j] * twice, yes, no);
            f[j] = cap * (yes - no);
        }
        store_vec(z + (first + k * THREADS) * W, narrow<T>(f));
    }
}

template <typename T, int W> void launch_softcap(const struct softcap_args *a, int64_t vectors, dev_stream s)
{
    const int64_t each = int64_t(SIDE) * THREADS;
    softcap_kernel<T, W><<<unsigned((vectors + each - 1) / each), THREADS, 0, queue_of(s)>>>(
        static_cast<T *>(a->z), vectors, float(a->cap), float(2 / a->cap));
}

status softcap(const struct softcap_args *a, dev_stream s)
{
    CHECK(a->cap > 0, "a cap of %g", a->cap);
    if (a->count == 0) return STATUS_OK;
    BY_DTYPE(a->dt, {
        if (a->count % WIDE<T> == 0 && aligned16(a->z))
            launch_softcap<T, WIDE<T>>(a, a->count / WIDE<T>, s);
        else
            launch_softcap<T, 1>(a, a->count, s);
    });
    return cuda_set_launched(s, "softcap");
}

// One block per row counts the columns that reach the target's logit; NaN is never reached.
template <typename L> __global__ void __launch_bounds__(THREADS) hits_kernel(const top1_correct_args a)
{
    __shared__ float line[WARP];
    const int64_t row = blockIdx.x;
    const int used = int(a.vocab_used), target = a.targets[row];
    const L *z = static_cast<const L *>(a.logits) + row * a.vocab;
    const bool counts = target >= 0 && target < used;
    const float top = counts ? to_f32(z[target]) : NAN;
    int reach = 0;
    for (int j = threadIdx.x; counts && j < used; j += THREADS) reach += to_f32(z[j]) >= top;
    const float all = block_sum(float(reach), line); // exact to 2^24 columns, and beyond that not 1
    if (threadIdx.x == 0) static_cast<float *>(a.hits)[row] = all == 1 ? 1.f : 0.f;
}

status top1_correct(const struct top1_correct_args *a, dev_stream s)
{
    CHECK(a->vocab_used > 0 && a->vocab_used <= a->vocab && a->vocab <= INT32_MAX / 2, "%lld of %lld columns are used",
          (long long)a->vocab_used, (long long)a->vocab);
    CHECK(a->ldt == DTYPE_F32 || a->ldt == a->dt, "logits of %s", dtype_name(a->ldt));
    if (a->rows == 0) return STATUS_OK;
    BY_DTYPE(a->ldt, { hits_kernel<T><<<unsigned(a->rows), THREADS, 0, queue_of(s)>>>(*a); });
    return cuda_set_launched(s, "top1_correct");
}

// ---- Vocabulary sharded over ranks.
//
// Sums are relative to 2^c with c = max log2e, rounded. The maximum is stored with its sum, and all readers compute
// the same c.

template <typename L, int G> __global__ void __launch_bounds__(THREADS) part_kernel(const vocab_xent_partial_args a)
{
    __shared__ float line[WARP];
    const int64_t row = blockIdx.x, first = a.slice * a.vocab;
    const int vocab = int(a.vocab), groups = vocab / G;
    const L *z = static_cast<const L *>(a.logits) + row * a.vocab;
    float *part = static_cast<float *>(a.part) + row * XENT_PARTS;
    const int id = a.targets[row];
    if (id == TARGET_IGNORE) {
        if (threadIdx.x < XENT_PARTS) part[threadIdx.x] = 0;
        return;
    }
    const bool here = id >= first && id < first + a.vocab;
    const int target = here ? int(id - first) : -1;
    running r = {LOW, 0};
    float others = -INFINITY;
    for (int g = threadIdx.x; g < groups; g += THREADS) {
        const group<L, G> x = load_group<L, G>(z + int64_t(g) * G);
        absorb<L, G>(r, x, G);
        for (int k = 0; k < G; k++)
            if (g * G + k != target) others = fmaxf(others, to_f32(x.v[k]));
    }
    const float top = block_max(r.top, line), c = __fmul_rn(top, LOG2E);
    const float sum = block_sum(r.sum * exp2_fast(r.top * LOG2E - c), line);
    others = block_max(others, line);
    if (threadIdx.x != 0) return;
    part[XENT_MAX] = top, part[XENT_SUM] = sum;
    part[XENT_TARGET] = here ? to_f32(z[target]) : -INFINITY;
    part[XENT_OTHERS] = others > LOW ? others : -INFINITY;
}

template <typename L, typename T,
int G> __global__ void __launch_bounds__(THREADS) join_kernel(const vocab_xent_finish_args a)
{
    const int64_t row = blockIdx.x, first = a.slice * a.vocab;
    const int vocab = int(a.vocab), groups = vocab / G, id = a.targets[row];
    const L *z = static_cast<const L *>(a.logits) + row * a.vocab;
    T *dz = static_cast<T *>(a.dlogits) + row * a.vocab;
    if (id == TARGET_IGNORE) {
        if (threadIdx.x == 0) put_loss(a, row, 0, 0);
        if (threadIdx.x == 0 && a.hits) static_cast<float *>(a.hits)[row] = 0;
        if (a.dlogits) zero_row<T, G>(dz, groups);
        return;
    }
    const float *parts = static_cast<const float *>(a.parts) + row * XENT_PARTS;
    const int64_t apart = a.rows * XENT_PARTS; // from rank to rank
    float top = LOW, others = -INFINITY, sum = 0, hit = NAN;
    for (int k = 0; k < a.slices; k++) {
        const float *part = parts + k * apart;
        top = fmaxf(top, part[XENT_MAX]);
        others = fmaxf(others, part[XENT_OTHERS]);
        if (id >= 0 && id / a.vocab == k) hit = part[XENT_TARGET];
    }
    const float c = __fmul_rn(top, LOG2E);
    for (int k = 0; k < a.slices; k++) {
        const float *part = parts + k * apart;
        sum += part[XENT_SUM] * exp2f(__fmul_rn(part[XENT_MAX], LOG2E) - c);
    }
    const float lse2 = c + log2f(sum) + (isnan(hit) ? NAN : 0.f);
    const double lse = lse2 * LN2;
    if (threadIdx.x == 0) put_loss(a, row, lse - double(hit), a.z_loss * lse * lse);
    if (threadIdx.x == 0 && a.hits) static_cast<float *>(a.hits)[row] = hit > others ? 1.f : 0.f;
    if (a.dlogits == nullptr) return;
    const double grad_scale = *a.grad_scale;
    const row_factors f = {lse2, float(grad_scale * (1 + 2 * a.z_loss * lse)), float(grad_scale), steep_of(a.cap)};
    const int target = id >= first && id < first + a.vocab ? int(id - first) : -1;
    write_grad<L, T, G>(z, dz, keep<L, G>{nullptr, 0}, groups, vocab, target, f);
}

void check_slice(int64_t vocab, int slice, int slices, dtype dt, dtype ldt)
{
    CHECK(vocab > 0 && vocab * slices <= INT32_MAX / 2 && slice >= 0 && slice < slices,
          "slice %d of %d, of %lld columns", slice, slices, (long long)vocab);
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
    CHECK(ldt == DTYPE_F32 || ldt == dt, "logits of %s", dtype_name(ldt));
}

status vocab_xent_partial(const struct vocab_xent_partial_args *a, dev_stream s)
{
    check_slice(a->vocab, a->slice, a->slices, a->dt, a->ldt);
    if (a->rows == 0) return STATUS_OK;
    const bool wide = a->vocab % 8 == 0 && aligned16(a->logits);
    const unsigned rows = unsigned(a->rows);
    BY_DTYPE(a->ldt, {
        if (wide)
            part_kernel<T, 8><<<rows, THREADS, 0, queue_of(s)>>>(*a);
        else
            part_kernel<T, 1><<<rows, THREADS, 0, queue_of(s)>>>(*a);
    });
    return cuda_set_launched(s, "vocab_xent_partial");
}

template <typename L, typename T> void launch_join(const struct vocab_xent_finish_args *a, dev_stream s)
{
    const bool wide = a->vocab % 8 == 0 && aligned16(a->logits) && aligned16(a->dlogits);
    if (wide)
        join_kernel<L, T, 8><<<unsigned(a->rows), THREADS, 0, queue_of(s)>>>(*a);
    else
        join_kernel<L, T, 1><<<unsigned(a->rows), THREADS, 0, queue_of(s)>>>(*a);
}

status vocab_xent_finish(const struct vocab_xent_finish_args *a, dev_stream s)
{
    check_slice(a->vocab, a->slice, a->slices, a->dt, a->ldt);
    CHECK(a->dlogits != a->logits || a->dt == a->ldt, "dlogits in place of logits of another type");
    if (a->rows == 0) return STATUS_OK;
    if (a->ldt == DTYPE_BF16)
        launch_join<__nv_bfloat16, __nv_bfloat16>(a, s);
    else if (a->dt == DTYPE_BF16)
        launch_join<float, __nv_bfloat16>(a, s);
    else
        launch_join<float, float>(a, s);
    return cuda_set_launched(s, "vocab_xent_finish");
}

template <typename F> __global__ void __launch_bounds__(SUM_THREADS) sum_kernel(const F *x, int64_t count, double *out)
{
    __shared__ double line[WARP];
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < count; i += SUM_THREADS) sum += double(x[i]);
    sum = block_sum(sum, line);
    if (threadIdx.x == 0) *out += sum;
}

// The losses of a micro-batch: one block is enough for them.
status sum(const struct sum_args *a, dev_stream s)
{
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_F64, "sum of %s", dtype_name(a->dt));
    if (a->count == 0) return STATUS_OK;
    if (a->dt == DTYPE_F32)
        sum_kernel<float><<<1, SUM_THREADS, 0, queue_of(s)>>>(static_cast<const float *>(a->x), a->count, a->out);
    else
        sum_kernel<double><<<1, SUM_THREADS, 0, queue_of(s)>>>(static_cast<const double *>(a->x), a->count, a->out);
    return cuda_set_launched(s, "sum");
}

} // namespace

extern "C" void cuda_loss_slots(struct ops *o)
{
    o->softcap = softcap;
    o->xent = xent;
    o->top1_correct = top1_correct;
    o->vocab_xent_partial = vocab_xent_partial;
    o->vocab_xent_finish = vocab_xent_finish;
    o->sum = sum;
}
