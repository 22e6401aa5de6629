// SwiGLU, GELU and the plain gate, forward and backward. Bound: memory bandwidth. A block takes a fixed run of
// vectors, each thread several of them, all loaded before the first is used.
//
// sigmoid(z) = 1 / (1 + exp(-z)) is right for every z: exp may overflow to infinity, whose reciprocal is 0.
// tanh-GELU uses it: 0.5 (1 + tanh u) = sigmoid(2 u) keeps small values of the negative side, which cancel in 1 +
// tanh. BF16: the hardware's fast exp and division (some 2^-21); F32: the exact ones.
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

status swiglu_fwd(const struct swiglu_fwd_args *a, dev_stream s)
{
    if (a->rows == 0 || a->f == 0) return STATUS_OK;
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
