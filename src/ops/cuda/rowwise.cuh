// Shared by rowwise kernels: vectors, groups of threads that hold one row, sums over a group.
//
// Memory-bound kernels need bytes in flight: each thread loads several 16-byte vectors before it uses the first.
// For unaligned operands, or widths that are no multiple of a vector, W is 1 and a vector is one element.
#pragma once
#include "ops/cuda/device.cuh"

template <typename T> constexpr int WIDE = 16 / sizeof(T); // elements of one access

template <typename T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) vec { T v[W]; };

// One access moves 16 bytes, 8, or an element.
template <size_t BYTES> struct access { using type = int4; };
template <> struct access<8> { using type = int2; };
template <typename T, int W> using access_of = typename access<sizeof(vec<T, W>)>::type;

// Plain loads and stores for data that other kernels read soon; `once` marks streams, which leave the cache first.
template <int W, typename T> __device__ inline vec<T, W> load_vec(const T *p)
{
    if constexpr (W == 1 || sizeof(vec<T, W>) > 16) {
        return *reinterpret_cast<const vec<T, W> *>(p);
    } else {
        vec<T, W> x;
        *reinterpret_cast<access_of<T, W> *>(&x) = *reinterpret_cast<const access_of<T, W> *>(p);
        return x;
    }
}
template <int W, typename T> __device__ inline vec<T, W> load_vec_once(const T *p)
{
    vec<T, W> x;
    if constexpr (W == 1) {
        x.v[0] = __ldcs(p);
    } else {
        static_assert(sizeof x == 8 || sizeof x == 16, "one access");
        *reinterpret_cast<access_of<T, W> *>(&x) = __ldcs(reinterpret_cast<const access_of<T, W> *>(p));
    }
    return x;
}
template <typename T, int W> __device__ inline void store_vec(T *p, const vec<T, W> &x)
{
    /* as one access: nvcc splits the copy of a struct into its words, or its elements */
    if constexpr (W == 1)
        *p = x.v[0];
    else if constexpr (sizeof x <= 16)
        __stwb(reinterpret_cast<access_of<T, W> *>(p), *reinterpret_cast<const access_of<T, W> *>(&x));
    else
        *reinterpret_cast<vec<T, W> *>(p) = x;
}
template <typename T, int W> __device__ inline void store_vec_once(T *p, const vec<T, W> &x)
{
    if constexpr (W == 1) {
        __stcs(p, x.v[0]);
    } else {
        static_assert(sizeof x == 8 || sizeof x == 16, "one access");
        __stcs(reinterpret_cast<access_of<T, W> *>(p), *reinterpret_cast<const access_of<T, W> *>(&x));
    }
}

// To f32 and back. A word holds two bf16: a shift and a mask widen them, one instruction narrows both.
template <int W> __device__ inline void widen(const vec<float, W> &x, float (&f)[W])
{
    for (int i = 0; i < W; i++) f[i] = x.v[i];
}
template <int W> __device__ inline void widen(const vec<__nv_bfloat16, W> &x, float (&f)[W])
{
    if constexpr (W == 1) {
        f[0] = to_f32(x.v[0]);
    } else {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(&x);
        for (int i = 0; i < W / 2; i++) {
            f[2 * i] = __uint_as_float(words[i] << 16);
            f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}
template <typename T, int W> __device__ inline vec<T, W> narrow(const float (&f)[W])
{
    vec<T, W> x;
    if constexpr (sizeof(T) == 2 && W > 1) {
        for (int i = 0; i < W / 2; i++)
            reinterpret_cast<__nv_bfloat162 *>(&x)[i] = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
    } else {
        for (int i = 0; i < W; i++) x.v[i] = from_f32<T>(f[i]);
    }
    return x;
}

// `threads` neighbours, whole warps, that hold a row together. Groups of a block are independent and use barriers
// of their own, so at most 15 groups of more than one warp.
struct row_group {
    int threads, count; // of a group; groups in the block
    int index, rank;    // of this thread's group in the block; of the thread in its group
    int phase;           // the half of the exchange buffer that is next
    __device__ explicit row_group(int threads_)
        : threads(threads_), count(blockDim.x / threads_), index(threadIdx.x / threads_), rank(threadIdx.x % threads_),
          phase(0)
    {
    }
};
__device__ inline void row_barrier(const row_group &g)
{
    asm volatile("bar.sync %0, %1;" ::"r"(g.index + 1), "r"(g.threads) : "memory");
}
// Exchange buffer of the sums of a block of `THREADS`: two halves, so one barrier per sum is enough. (Whoever
// writes a half again has passed the barrier of the sum in between, which requires all to have read.)
template <int THREADS, int N> struct row_exchange { float sums[2][THREADS / WARP][N]; };

// Sums of N values over the group, in a fixed order: every thread gets the same bits.
template <int THREADS, int N>
__device__ inline void row_sum(row_group &g, float (&x)[N], row_exchange<THREADS, N> &exchange)
{
    for (int i = 0; i < N; i++) x[i] = warp_sum(x[i]);
    if (g.threads == WARP) return;
    int warps = g.threads / WARP, first = g.index * warps;
    float(*sums)[N] = exchange.sums[g.phase];
    g.phase ^= 1;
    if (g.rank % WARP == 0)
        for (int i = 0; i < N; i++) sums[first + g.rank / WARP][i] = x[i];
    row_barrier(g);
    for (int i = 0; i < N; i++) {
        x[i] = 0;
        for (int w = 0; w < warps; w++) x[i] += sums[first + w][i];
    }
}
// The barrier of a row_sum, for a group that has no row while others of its block have one. All threads then pass as
// many barriers, without which compute-sanitizer's racecheck names hazards across a later __syncthreads.
__device__ inline void row_sum_none(const row_group &g)
{
    if (g.threads > WARP) row_barrier(g);
}
