// SwiGLU, GELU and the plain gate, forward and backward. Bound: memory bandwidth. A block takes a fixed run of
// vectors, each thread several of them, all loaded before the first is used.
//
// sigmoid(z) = 1 / (1 + exp(-z)) is right for every z: exp may overflow to infinity, whose reciprocal is 0.
// tanh-GELU uses it: 0.5 (1 + tanh u) = sigmoid(2 u) keeps small values of the negative side, which cancel in 1 +
// tanh. BF16: the hardware's fast exp and division (some 2^-21); F32: the exact ones.
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/sigmoid.cuh"
#include "ops/cuda/rowwise.cuh"

namespace {

enum { THREADS = 256, AHEAD = 4, AHEAD_BWD = 2 }; // vectors of each operand that a thread holds at a time

// Index of the thread's k-th vector.
template <int K> __device__ inline int64_t vector_at(int k)
{
    return ((int64_t)blockIdx.x * K + k) * THREADS + threadIdx.x;
}
template <int K> unsigned blocks_for(int64_t vectors)
{
    return (unsigned)((vectors + K * THREADS - 1) / (K * THREADS));
}

// `width` vectors of gate and of up in a row.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) swiglu_fwd_kernel(const T *gu, T *m, int64_t count, int width)
{
    vec<T, W> gate[AHEAD], up[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int64_t i = vector_at<AHEAD>(k), row = i / width;
        if (i >= count) continue;
        const T *at = gu + (i + row * width) * W;
        gate[k] = load_vec_once<W>(at);
        up[k] = load_vec_once<W>(at + (int64_t)width * W);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int64_t i = vector_at<AHEAD>(k);
        if (i >= count) continue;
        float g[W], u[W];
        widen(gate[k], g);
        widen(up[k], u);
        for (int j = 0; j < W; j++) u[j] = swiglu<T>(g[j], u[j]);
        store_vec(m + i * W, narrow<T>(u));
    }
}

// dgu may alias gu, and m dm: a thread writes only what it has read.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    swiglu_bwd_kernel(const T *dm, const T *gu, T *dgu, T *m, int64_t count, int width)
{
    vec<T, W> gate[AHEAD_BWD], up[AHEAD_BWD], d[AHEAD_BWD];
#pragma unroll
    for (int k = 0; k < AHEAD_BWD; k++) {
        int64_t i = vector_at<AHEAD_BWD>(k), row = i / width;
        if (i >= count) continue;
        const T *at = gu + (i + row * width) * W;
        gate[k] = load_vec_once<W>(at);
        up[k] = load_vec_once<W>(at + (int64_t)width * W);
        d[k] = load_vec_once<W>(dm + i * W);
    }
#pragma unroll
    for (int k = 0; k < AHEAD_BWD; k++) {
        int64_t i = vector_at<AHEAD_BWD>(k), row = i / width;
        if (i >= count) continue;
        float g[W], u[W], dy[W];
        widen(gate[k], g);
        widen(up[k], u);
        widen(d[k], dy);
        for (int j = 0; j < W; j++) dy[j] = swiglu_back<T>(dy[j], g[j], u[j]);
        if (m) store_vec(m + i * W, narrow<T>(dy));
        T *at = dgu + (i + row * width) * W;
        store_vec(at, narrow<T>(g));
        store_vec(at + (int64_t)width * W, narrow<T>(u));
    }
}

// ---- SwiGLU with FP8 codes of its results, a square of the result per block; values are those of the kernels above.
// Codes are those of training: m in E4M3, dgu in E5M2. The launchers leave others to `quantize`.

enum { CODES_AHEAD = 4, CODES_AHEAD_BWD = 2 }; // eights of each operand that a thread holds at a time

// m NULL: only its codes are written.
template <typename T, bool TRANS>
__global__ void __launch_bounds__(code_square::THREADS)
    swiglu_fwd_codes_kernel(const T *gu, T *m, const code_out o, int64_t rows, int64_t f)
{
    __shared__ __align__(16) uint8_t tile[TRANS ? code_square::TILE_BYTES : 16];
    __shared__ uint32_t exchange[WARP];
    const code_square square(rows, f);
    if (square.rows <= 0) return;
    const float scale = o.scale_now();
    amax_of<T> most;
#pragma unroll
    for (int first = 0; first < code_square::EACH; first += CODES_AHEAD) {
        vec<T, 8> gate[CODES_AHEAD] = {}, up[CODES_AHEAD] = {};
#pragma unroll
        for (int k = 0; k < CODES_AHEAD; k++) {
            if (!square.has(first + k)) continue;
            const T *at = gu + square.at(first + k, 2 * f);
            gate[k] = load_eight_once<WIDE<T>>(at);
            up[k] = load_eight_once<WIDE<T>>(at + f);
        }
#pragma unroll
        for (int k = 0; k < CODES_AHEAD; k++) {
            const int i = first + k;
            float g[8], u[8];
            widen(gate[k], g);
            widen(up[k], u);
            for (int j = 0; j < 8; j++) u[j] = swiglu<T>(g[j], u[j]);
            const vec<T, 8> x = narrow<T>(u);
            most.add(x);
            if (m && square.has(i)) store_vec(m + square.at(i, f), x);
            square.put(o, TRANS ? tile : nullptr, i, codes_of(x, scale, false), f, 0);
        }
    }
    if (TRANS) {
        __syncthreads();
        square.store(o, tile, 0);
    }
    amax_store_block(most.bits(), o.amax, exchange);
}

// dgu and m NULL: only their codes are written. q: of dgu, mq: of m. Each transpose has its tiles in shared memory.
// dgu may alias gu, and m dm: a thread writes only what it has read.
template <typename T>
__global__ void __launch_bounds__(code_square::THREADS)
    swiglu_bwd_codes_kernel(const T *dm, const T *gu, T *dgu, T *m, const code_out q, const code_out mq, int64_t rows,
                            int64_t f)
{
    extern __shared__ __align__(16) uint8_t tiles[];
    __shared__ uint32_t exchange[2][WARP];
    uint8_t *gate_tile = q.codes_t ? tiles : nullptr, *up_tile = q.codes_t ? tiles + code_square::TILE_BYTES : nullptr,
            *m_tile = mq.codes_t ? tiles + (q.codes_t ? 2 * code_square::TILE_BYTES : 0) : nullptr;
    const code_square square(rows, f);
    if (square.rows <= 0) return;
    const float scale = q.scale_now(), m_scale = mq.scale_now();
    amax_of<T> most, m_most;
#pragma unroll
    for (int first = 0; first < code_square::EACH; first += CODES_AHEAD_BWD) {
        vec<T, 8> gate[CODES_AHEAD_BWD] = {}, up[CODES_AHEAD_BWD] = {}, d[CODES_AHEAD_BWD] = {};
#pragma unroll
        for (int k = 0; k < CODES_AHEAD_BWD; k++) {
            if (!square.has(first + k)) continue;
            const T *at = gu + square.at(first + k, 2 * f);
            gate[k] = load_eight_once<WIDE<T>>(at);
            up[k] = load_eight_once<WIDE<T>>(at + f);
            d[k] = load_eight_once<WIDE<T>>(dm + square.at(first + k, f));
        }
#pragma unroll
        for (int k = 0; k < CODES_AHEAD_BWD; k++) {
            const int i = first + k;
            float g[8], u[8], dy[8];
            widen(gate[k], g);
            widen(up[k], u);
            widen(d[k], dy);
            for (int j = 0; j < 8; j++) dy[j] = swiglu_back<T>(dy[j], g[j], u[j]);
            const vec<T, 8> x = narrow<T>(dy), dgate = narrow<T>(g), dup = narrow<T>(u);
            m_most.add(x);
            most.add(dgate);
            most.add(dup);
            if (m && square.has(i)) store_vec(m + square.at(i, f), x);
            if (dgu && square.has(i)) {
                store_vec(dgu + square.at(i, 2 * f), dgate);
                store_vec(dgu + square.at(i, 2 * f) + f, dup);
            }
            square.put(mq, m_tile, i, codes_of(x, m_scale, false), f, 0);
            square.put(q, gate_tile, i, codes_of(dgate, scale, true), 2 * f, 0);
            square.put(q, up_tile, i, codes_of(dup, scale, true), 2 * f, f);
        }
    }
    if (q.codes_t || mq.codes_t) __syncthreads();
    if (mq.codes_t) square.store(mq, m_tile, 0);
    if (q.codes_t) {
        square.store(q, gate_tile, 0);
        square.store(q, up_tile, f);
    }
    amax_store_block(most.bits(), q.amax, exchange[0]);
    amax_store_block(m_most.bits(), mq.amax, exchange[1]);
}

__device__ constexpr float GELU_SCALE = 2 * 0.79788456080286535588f, GELU_CUBIC = 0.044715f; // 2 sqrt(2 / pi)

template <typename T> __device__ inline float gelu(float x)
{
    return x * sigmoid<T>(GELU_SCALE * (x + GELU_CUBIC * x * x * x));
}
template <typename T> __device__ inline float gelu_slope(float x)
{
    float s = sigmoid<T>(GELU_SCALE * (x + GELU_CUBIC * x * x * x));
    return s + x * s * (1.0f - s) * GELU_SCALE * (1.0f + 3 * GELU_CUBIC * x * x);
}

// The elements that make no whole vector, at the end, are done one by one in the first block.
template <typename T, int W> __global__ void __launch_bounds__(THREADS) gelu_fwd_kernel(const T *x, T *y, int64_t count)
{
    int64_t vectors = count / W, rest = vectors * W + threadIdx.x;
    vec<T, W> v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (vector_at<AHEAD>(k) < vectors) v[k] = load_vec_once<W>(x + vector_at<AHEAD>(k) * W);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        if (vector_at<AHEAD>(k) >= vectors) continue;
        float f[W];
        widen(v[k], f);
        for (int j = 0; j < W; j++) f[j] = gelu<T>(f[j]);
        store_vec(y + vector_at<AHEAD>(k) * W, narrow<T>(f));
    }
    if (blockIdx.x == 0 && rest < count) y[rest] = from_f32<T>(gelu<T>(to_f32(x[rest])));
}
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) gelu_bwd_kernel(const T *dy, const T *x, T *dx, T *y, int64_t count)
{
    int64_t vectors = count / W, rest = vectors * W + threadIdx.x;
    vec<T, W> v[AHEAD], d[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (vector_at<AHEAD>(k) < vectors) {
            v[k] = load_vec_once<W>(x + vector_at<AHEAD>(k) * W);
            d[k] = load_vec_once<W>(dy + vector_at<AHEAD>(k) * W);
        }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        if (vector_at<AHEAD>(k) >= vectors) continue;
        float f[W], fd[W];
        widen(v[k], f);
        widen(d[k], fd);
        for (int j = 0; j < W; j++) fd[j] *= gelu_slope<T>(f[j]);
        store_vec(dx + vector_at<AHEAD>(k) * W, narrow<T>(fd));
        if (!y) continue;
        for (int j = 0; j < W; j++) f[j] = gelu<T>(f[j]);
        store_vec(y + vector_at<AHEAD>(k) * W, narrow<T>(f));
    }
    if (blockIdx.x == 0 && rest < count) {
        const float last = to_f32(x[rest]);
        dx[rest] = from_f32<T>(to_f32(dy[rest]) * gelu_slope<T>(last));
        if (y) y[rest] = from_f32<T>(gelu<T>(last));
    }
}

// `width` vectors in a row; strides of the gates in elements.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    gate_fwd_kernel(const T *x, const T *z, T *y, int64_t count, int width, int64_t z_stride)
{
    vec<T, W> in[AHEAD], gate[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int64_t i = vector_at<AHEAD>(k), row = i / width;
        if (i >= count) continue;
        in[k] = load_vec_once<W>(x + i * W);
        gate[k] = load_vec_once<W>(z + row * z_stride + (i - row * width) * W);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        int64_t i = vector_at<AHEAD>(k);
        if (i >= count) continue;
        float f[W], g[W];
        widen(in[k], f);
        widen(gate[k], g);
        for (int j = 0; j < W; j++) f[j] *= sigmoid<T>(g[j]);
        store_vec(y + i * W, narrow<T>(f));
    }
}

// dx may alias dy, dz z and y x: a thread writes only what it has read.
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) gate_bwd_kernel(const struct gate_bwd_args a, int64_t count, int width)
{
    vec<T, W> dy[AHEAD_BWD], in[AHEAD_BWD], gate[AHEAD_BWD];
#pragma unroll
    for (int k = 0; k < AHEAD_BWD; k++) {
        int64_t i = vector_at<AHEAD_BWD>(k), row = i / width;
        if (i >= count) continue;
        dy[k] = load_vec_once<W>((const T *)a.dy + i * W);
        in[k] = load_vec_once<W>((const T *)a.x + i * W);
        gate[k] = load_vec_once<W>((const T *)a.z + row * a.z_stride + (i - row * width) * W);
    }
#pragma unroll
    for (int k = 0; k < AHEAD_BWD; k++) {
        int64_t i = vector_at<AHEAD_BWD>(k), row = i / width;
        if (i >= count) continue;
        float d[W], f[W], g[W];
        widen(dy[k], d);
        widen(in[k], f);
        widen(gate[k], g);
        if (a.y) { // as in forward
            float again[W];
            for (int j = 0; j < W; j++) again[j] = f[j] * sigmoid<T>(g[j]);
            store_vec((T *)a.y + i * W, narrow<T>(again));
        }
        for (int j = 0; j < W; j++) {
            float s, rest;
            sigmoids<T>(g[j], s, rest);
            g[j] = d[j] * f[j] * s * rest;
            d[j] *= s;
        }
        store_vec((T *)a.dx + i * W, narrow<T>(d));
        store_vec((T *)a.dz + row * a.dz_stride + (i - row * width) * W, narrow<T>(g));
    }
}

template <typename T, int W> void gate_fwd_launch(const struct gate_fwd_args *a, dev_stream s)
{
    int64_t count = a->rows * a->d / W;
    gate_fwd_kernel<T, W><<<blocks_for<AHEAD>(count), THREADS, 0, queue_of(s)>>>(
        (const T *)a->x, (const T *)a->z, (T *)a->y, count, (int)(a->d / W), a->z_stride);
}
template <typename T, int W> void gate_bwd_launch(const struct gate_bwd_args *a, dev_stream s)
{
    int64_t count = a->rows * a->d / W;
    gate_bwd_kernel<T, W><<<blocks_for<AHEAD_BWD>(count), THREADS, 0, queue_of(s)>>>(*a, count, (int)(a->d / W));
}

template <typename T, int W> void swiglu_fwd_launch(const struct swiglu_fwd_args *a, dev_stream s)
{
    int64_t count = a->rows * a->f / W;
    swiglu_fwd_kernel<T, W>
        <<<blocks_for<AHEAD>(count), THREADS, 0, queue_of(s)>>>((const T *)a->gu, (T *)a->m, count, (int)(a->f / W));
}
template <typename T, int W> void swiglu_bwd_launch(const struct swiglu_bwd_args *a, dev_stream s)
{
    int64_t count = a->rows * a->f / W;
    swiglu_bwd_kernel<T, W><<<blocks_for<AHEAD_BWD>(count), THREADS, 0, queue_of(s)>>>(
        (const T *)a->dm, (const T *)a->gu, (T *)a->dgu, (T *)a->m, count, (int)(a->f / W));
}

template <typename T> void swiglu_fwd_codes_launch(const struct swiglu_fwd_args *a, const code_out &o, dev_stream s)
{
    T *m = a->q.only ? nullptr : (T *)a->m;
    const unsigned grid = code_square::grid(a->rows, a->f);
    if (o.codes_t)
        swiglu_fwd_codes_kernel<T, true>
            <<<grid, code_square::THREADS, 0, queue_of(s)>>>((const T *)a->gu, m, o, a->rows, a->f);
    else
        swiglu_fwd_codes_kernel<T, false>
            <<<grid, code_square::THREADS, 0, queue_of(s)>>>((const T *)a->gu, m, o, a->rows, a->f);
}

template <typename T>
void swiglu_bwd_codes_launch(const struct swiglu_bwd_args *a, const code_out &q, const code_out &mq, dev_stream s)
{
    const int tiles = (q.codes_t ? 2 : 0) + (mq.codes_t ? 1 : 0), bytes = tiles * code_square::TILE_BYTES;
    auto *kernel = swiglu_bwd_codes_kernel<T>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes); // a failure shows at the launch
    kernel<<<code_square::grid(a->rows, a->f), code_square::THREADS, bytes, queue_of(s)>>>(
        (const T *)a->dm, (const T *)a->gu, a->q.only ? nullptr : (T *)a->dgu, a->mq.only ? nullptr : (T *)a->m, q, mq,
        a->rows, a->f);
}

status swiglu_fwd(const struct swiglu_fwd_args *a, dev_stream s);
status swiglu_bwd(const struct swiglu_bwd_args *a, dev_stream s);

status swiglu_fwd_codes(const struct swiglu_fwd_args *a, dev_stream s)
{
    const code_out o = code_out_of(&a->q, a->rows, a->f, "swiglu's m");
    const bool joined = a->f % 8 == 0 && aligned16(a->gu) && aligned16(a->m) && (!o.e5m2 || !quantized_any(&a->q));
    if (!joined) {
        struct swiglu_fwd_args plain = *a;
        plain.q = {};
        TRY(swiglu_fwd(&plain, s));
        const struct quantize_args form = {a->m, a->q, a->rows, a->f, 0, a->dt, NULL};
        return cuda_quantize(&form, s);
    }
    BY_DTYPE(a->dt, swiglu_fwd_codes_launch<T>(a, o, s));
    return cuda_set_launched(s, "swiglu_fwd");
}

status swiglu_bwd_codes(const struct swiglu_bwd_args *a, dev_stream s)
{
    const code_out q = code_out_of(&a->q, a->rows, 2 * a->f, "swiglu's dgu"),
                   mq = code_out_of(&a->mq, a->rows, a->f, "swiglu's m");
    CHECK(a->m || !quantized_asked(&a->mq), "FP8 form of swiglu's m [%lld, %lld], which is not stored",
          (long long)a->rows, (long long)a->f);
    const bool formats = (q.e5m2 || !quantized_any(&a->q)) && (!mq.e5m2 || !quantized_any(&a->mq));
    const bool joined = a->f % 8 == 0 && aligned16(a->gu) && aligned16(a->dm) && aligned16(a->dgu) &&
                        aligned16(a->m) && formats;
    if (!joined) {
        struct swiglu_bwd_args plain = *a;
        plain.q = plain.mq = {};
        TRY(swiglu_bwd(&plain, s));
        const struct quantize_args form = {a->dgu, a->q, a->rows, 2 * a->f, 0, a->dt, NULL},
                                   m_form = {a->m, a->mq, a->rows, a->f, 0, a->dt, NULL};
        TRY(cuda_quantize(&form, s));
        return cuda_quantize(&m_form, s);
    }
    BY_DTYPE(a->dt, swiglu_bwd_codes_launch<T>(a, q, mq, s));
    return cuda_set_launched(s, "swiglu_bwd");
}

status swiglu_fwd(const struct swiglu_fwd_args *a, dev_stream s)
{
    if (a->rows == 0 || a->f == 0) return STATUS_OK;
    if (quantized_asked(&a->q)) return swiglu_fwd_codes(a, s);
    BY_DTYPE(a->dt, {
        if (a->f % WIDE<T> == 0 && aligned16(a->gu) && aligned16(a->m))
            swiglu_fwd_launch<T, WIDE<T>>(a, s);
        else
            swiglu_fwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "swiglu_fwd");
}

status swiglu_bwd(const struct swiglu_bwd_args *a, dev_stream s)
{
    if (a->rows == 0 || a->f == 0) return STATUS_OK;
    if (quantized_asked(&a->q) || quantized_asked(&a->mq)) return swiglu_bwd_codes(a, s);
    BY_DTYPE(a->dt, {
        if (a->f % WIDE<T> == 0 && aligned16(a->gu) && aligned16(a->dm) && aligned16(a->dgu) && aligned16(a->m))
            swiglu_bwd_launch<T, WIDE<T>>(a, s);
        else
            swiglu_bwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "swiglu_bwd");
}

template <typename T, int W> void gelu_fwd_launch(const struct gelu_fwd_args *a, dev_stream s)
{
    unsigned blocks = blocks_for<AHEAD>((a->count + W - 1) / W);
    gelu_fwd_kernel<T, W><<<blocks, THREADS, 0, queue_of(s)>>>((const T *)a->x, (T *)a->y, a->count);
}
template <typename T, int W> void gelu_bwd_launch(const struct gelu_bwd_args *a, dev_stream s)
{
    unsigned blocks = blocks_for<AHEAD>((a->count + W - 1) / W);
    gelu_bwd_kernel<T, W>
        <<<blocks, THREADS, 0, queue_of(s)>>>((const T *)a->dy, (const T *)a->x, (T *)a->dx, (T *)a->y, a->count);
}

status gelu_fwd(const struct gelu_fwd_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    CHECK(a->y != a->x, "gelu_fwd in place: backward reads x");
    BY_DTYPE(a->dt, {
        if (aligned16(a->x) && aligned16(a->y))
            gelu_fwd_launch<T, WIDE<T>>(a, s);
        else
            gelu_fwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "gelu_fwd");
}

status gelu_bwd(const struct gelu_bwd_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    BY_DTYPE(a->dt, {
        if (aligned16(a->x) && aligned16(a->dy) && aligned16(a->dx) && aligned16(a->y))
            gelu_bwd_launch<T, WIDE<T>>(a, s);
        else
            gelu_bwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "gelu_bwd");
}

status gate_fwd(const struct gate_fwd_args *a, dev_stream s)
{
    CHECK(a->z_stride >= a->d, "rows of %lld gates %lld apart", (long long)a->d, (long long)a->z_stride);
    if (a->rows == 0 || a->d == 0) return STATUS_OK;
    BY_DTYPE(a->dt, {
        if (a->d % WIDE<T> == 0 && a->z_stride % WIDE<T> == 0 && aligned16(a->x) && aligned16(a->z) && aligned16(a->y))
            gate_fwd_launch<T, WIDE<T>>(a, s);
        else
            gate_fwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "gate_fwd");
}

status gate_bwd(const struct gate_bwd_args *a, dev_stream s)
{
    CHECK(a->z_stride >= a->d && a->dz_stride >= a->d, "rows of %lld gates %lld and %lld apart", (long long)a->d,
          (long long)a->z_stride, (long long)a->dz_stride);
    if (a->rows == 0 || a->d == 0) return STATUS_OK;
    BY_DTYPE(a->dt, {
        bool wide = a->d % WIDE<T> == 0 && a->z_stride % WIDE<T> == 0 && a->dz_stride % WIDE<T> == 0;
        if (wide && aligned16(a->dy) && aligned16(a->x) && aligned16(a->z) && aligned16(a->dx) && aligned16(a->dz) &&
            aligned16(a->y))
            gate_bwd_launch<T, WIDE<T>>(a, s);
        else
            gate_bwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "gate_bwd");
}

} // namespace

extern "C" void cuda_act_slots(struct ops *o)
{
    o->swiglu_fwd = swiglu_fwd;
    o->swiglu_bwd = swiglu_bwd;
    o->gelu_fwd = gelu_fwd;
    o->gelu_bwd = gelu_bwd;
    o->gate_fwd = gate_fwd;
    o->gate_bwd = gate_bwd;
}
