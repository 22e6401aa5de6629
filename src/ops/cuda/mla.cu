// The heads of multi-head latent attention: k from each head's own part and the shared rotated part, rope columns
// rotated in place; and backward.
//
// A block takes a row of tokens. Bound: memory bandwidth; per row the forward reads and writes q's rope columns,
// reads k's parts and writes k. Items of a row are vectors: W elements (whole pairs) of rope columns, C elements of
// copied parts. Unaligned operands use single pairs. dk_rope is a sum over heads: PARTS threads take every PARTS-th
// head each, and their sums are added in order.
#include "ops/cuda/rowwise.cuh"

namespace {

enum { THREADS = 256, PARTS = 8 };

struct latent {
    void *q, *k, *k_nope, *k_rope; // backward: their gradients
    int64_t q_stride, k_nope_stride, k_rope_stride;
    const int32_t *positions;
    const float *cos, *sin;
    int64_t rows;
    int heads, nope, half;
    float sign; // of the angle
};

// A vector of W elements as W / 2 pairs; a single pair takes two accesses, since it may start anywhere.
template <int W, typename T> __device__ inline void load_pairs(const T *p, float (&f)[W])
{
    if constexpr (W == 2) {
        f[0] = to_f32(p[0]);
        f[1] = to_f32(p[1]);
    } else {
        widen(load_vec<W>(p), f);
    }
}
template <int W, typename T> __device__ inline void store_pairs(T *p, const float (&f)[W])
{
    if constexpr (W == 2) {
        p[0] = from_f32<T>(f[0]);
        p[1] = from_f32<T>(f[1]);
    } else {
        store_vec(p, narrow<T>(f));
    }
}

// `at`: of the first pair's angle in the tables.
template <int W> __device__ inline void rotate(const latent &a, int64_t at, float (&f)[W])
{
    for (int i = 0; i < W / 2; i++) {
        const float c = __ldg(a.cos + at + i), s = a.sign * __ldg(a.sin + at + i), x = f[2 * i], y = f[2 * i + 1];
        f[2 * i] = x * c - y * s;
        f[2 * i + 1] = y * c + x * s;
    }
}

// Offsets of the row's parts.
template <typename T> struct row_at {
    T *q, *k, *nope, *rope;
    int64_t angle;
    int head_dim;
    __device__ row_at(const latent &a, int64_t row)
        : q((T *)a.q + row * a.q_stride), nope((T *)a.k_nope + row * a.k_nope_stride),
          rope((T *)a.k_rope + row * a.k_rope_stride), angle((int64_t)a.positions[row] * a.half),
          head_dim(a.nope + 2 * a.half)
    {
        k = (T *)a.k + row * a.heads * head_dim;
    }
};

template <int C, typename T>
__device__ inline void copy_fronts(const latent &a, T *to, int to_head, const T *from, int from_head)
{
    const int per = a.nope / C;
    for (int i = threadIdx.x; i < a.heads * per; i += THREADS) {
        const int h = i / per, j = i % per * C;
        store_vec(to + h * to_head + j, load_vec_once<C>(from + h * from_head + j));
    }
}
template <int W, typename T> __device__ inline void turn_q(const latent &a, const row_at<T> &r)
{
    const int per = 2 * a.half / W;
    for (int i = threadIdx.x; i < a.heads * per; i += THREADS) {
        const int h = i / per, j = i % per * W;
        float f[W];
        load_pairs(r.q + h * r.head_dim + a.nope + j, f);
        rotate(a, r.angle + j / 2, f);
        store_pairs(r.q + h * r.head_dim + a.nope + j, f);
    }
}

template <typename T, int C, int W> __global__ void __launch_bounds__(THREADS) latent_fwd_kernel(const latent a)
{
    const row_at<T> r(a, blockIdx.x);
    if (a.q) turn_q<W>(a, r);
    if (a.k == NULL) return;
    copy_fronts<C>(a, r.k, r.head_dim, r.nope, a.nope);
    const int per = 2 * a.half / W;
    for (int i = threadIdx.x; i < a.heads * per; i += THREADS) {
        const int h = i / per, j = i % per * W;
        float f[W];
        load_pairs(r.rope + j, f);
        rotate(a, r.angle + j / 2, f);
        store_pairs(r.k + h * r.head_dim + a.nope + j, f);
    }
}

template <typename T, int C, int W> __global__ void __launch_bounds__(THREADS) latent_bwd_kernel(const latent a)
{
    extern __shared__ float sums[]; // [PARTS][2 half]
    const row_at<T> r(a, blockIdx.x);
    if (a.q) turn_q<W>(a, r);
    if (a.k == NULL) return;
    const int tail = 2 * a.half, per = tail / W;
    for (int i = threadIdx.x; i < PARTS * per; i += THREADS) {
        const int part = i / per, j = i % per * W;
        float sum[W] = {};
        for (int h = part; h < a.heads; h += PARTS) {
            float f[W];
            load_pairs(r.k + h * r.head_dim + a.nope + j, f);
            for (int e = 0; e < W; e++) sum[e] += f[e];
        }
        for (int e = 0; e < W; e++) sums[part * tail + j + e] = sum[e];
    }
    copy_fronts<C>(a, r.nope, a.nope, r.k, r.head_dim);
    __syncthreads();
    for (int i = threadIdx.x; i < per; i += THREADS) {
        float f[W] = {};
        for (int part = 0; part < PARTS; part++)
            for (int e = 0; e < W; e++) f[e] += sums[part * tail + i * W + e];
        rotate(a, r.angle + i * W / 2, f);
        store_pairs(r.rope + i * W, f);
    }
}

void check_shape(const latent &a, int64_t heads, int64_t nope, int64_t half)
{
    CHECK(heads > 0 && nope >= 0 && half > 0 && heads * (nope + 2 * half) < INT32_MAX && half <= 512,
          "%lld heads of %lld and 2 x %lld", (long long)heads, (long long)nope, (long long)half);
    CHECK(!a.q || a.q_stride >= heads * (nope + 2 * half), "q's row stride %lld", (long long)a.q_stride);
    CHECK(a.rows < INT32_MAX, "%lld rows", (long long)a.rows);
}
bool wide_serves(const latent &a, int width)
{
    return aligned16(a.q) && aligned16(a.k) && aligned16(a.k_nope) && aligned16(a.k_rope) && a.q_stride % width == 0 &&
           a.k_nope_stride % width == 0 && a.k_rope_stride % width == 0 && a.nope % width == 0 &&
           2 * a.half % width == 0;
}

status mla_rope_fwd(const struct mla_rope_fwd_args *x, dev_stream s)
{
    latent a = {x->q,
                x->k,
                (void *)x->k_nope,
                (void *)x->k_rope,
                x->q_stride,
                x->k_nope_stride,
                x->k_rope_stride,
                x->positions,
                (const float *)x->cos,
                (const float *)x->sin,
                x->rows,
                (int)x->heads,
                (int)x->nope,
                (int)x->half,
                1};
    check_shape(a, x->heads, x->nope, x->half);
    if (x->rows == 0) return STATUS_OK;
    BY_DTYPE(x->dt, {
        if (wide_serves(a, WIDE<T>))
            latent_fwd_kernel<T, WIDE<T>, WIDE<T>><<<(unsigned)x->rows, THREADS, 0, queue_of(s)>>>(a);
        else
            latent_fwd_kernel<T, 1, 2><<<(unsigned)x->rows, THREADS, 0, queue_of(s)>>>(a);
    });
    return cuda_set_launched(s, "mla_rope_fwd");
}

status mla_rope_bwd(const struct mla_rope_bwd_args *x, dev_stream s)
{
    latent a = {x->dq,
                (void *)x->dk,
                x->dk_nope,
                x->dk_rope,
                x->dq_stride,
                x->dk_nope_stride,
                x->dk_rope_stride,
                x->positions,
                (const float *)x->cos,
                (const float *)x->sin,
                x->rows,
                (int)x->heads,
                (int)x->nope,
                (int)x->half,
                -1};
    check_shape(a, x->heads, x->nope, x->half);
    if (x->rows == 0) return STATUS_OK;
    const size_t shared = sizeof(float) * PARTS * 2 * (size_t)x->half;
    BY_DTYPE(x->dt, {
        if (wide_serves(a, WIDE<T>))
            latent_bwd_kernel<T, WIDE<T>, WIDE<T>><<<(unsigned)x->rows, THREADS, shared, queue_of(s)>>>(a);
        else
            latent_bwd_kernel<T, 1, 2><<<(unsigned)x->rows, THREADS, shared, queue_of(s)>>>(a);
    });
    return cuda_set_launched(s, "mla_rope_bwd");
}

} // namespace

extern "C" void cuda_mla_slots(struct ops *o)
{
    o->mla_rope_fwd = mla_rope_fwd;
    o->mla_rope_bwd = mla_rope_bwd;
}
