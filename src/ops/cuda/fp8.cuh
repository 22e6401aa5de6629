// FP8 codes in kernels: conversion, the largest magnitude, and the tile that turns codes into their transpose. The
// contract: tensor/quantized.h. A kernel makes codes of values that are rounded to its type.
#pragma once
#include "ops/cuda/rowwise.cuh"
#include <cuda_fp8.h>

// What a kernel needs of struct quantized. What is NULL is not written.
struct code_out {
    uint8_t *codes, *codes_t;
    const float *scale;
    uint32_t *amax; // the bits of a float
    int64_t ld;     // from row to row of codes_t
    bool e5m2;      // else E4M3
    __device__ inline float scale_now() const { return codes || codes_t ? *scale : 0.f; }
    // With codes_t in panels of ld rows, [n, ld] each: for the rows of the panel of `row`.
    __device__ inline code_out panel_of(int64_t row, int64_t n) const
    {
        code_out o = *this;
        if (codes_t) o.codes_t += row / ld * (n - 1) * ld;
        return o;
    }
};
// Checks q, the FP8 form of the tensor `what` [rows, n].
static inline code_out code_out_of(const struct quantized *q, int64_t rows, int64_t n, const char *what)
{
    if (quantized_any(q)) {
        CHECK(q->dt == DTYPE_F8_E4M3 || q->dt == DTYPE_F8_E5M2, "codes of %s in %s", what, dtype_name(q->dt));
        CHECK(q->scale, "codes of %s without a scale", what);
        CHECK(n % 16 == 0, "codes of %s [%lld, %lld] on a GPU: rows of a multiple of 16", what, (long long)rows,
              (long long)n);
        CHECK(aligned16(q->codes) && aligned16(q->codes_t), "codes of %s [%lld, %lld] at %p and %p: not at 16 bytes",
              what, (long long)rows, (long long)n, q->codes, q->codes_t);
    }
    return {(uint8_t *)q->codes, (uint8_t *)q->codes_t, q->scale,           (uint32_t *)q->amax,
            quantized_ld(rows),  q->dt == DTYPE_F8_E5M2};
}

// 8 values of a row that are read once, by accesses of W elements: WIDE<T>, or 1 where they are not at 16 bytes.
template <int W, typename T> __device__ inline vec<T, 8> load_eight_once(const T *p)
{
    vec<T, 8> x;
#pragma unroll
    for (int k = 0; k < 8; k += W) *reinterpret_cast<vec<T, W> *>(x.v + k) = load_vec_once<W>(p + k);
    return x;
}

// ---- conversion

// W codes of neighbours in a row (4, 8 or 16), the first in the lowest byte; stored as one access.
template <int W> struct alignas(W) codes_vec { uint32_t v[W / 4]; };

__device__ inline uint32_t two_codes(float lo, float hi, bool e5m2)
{
    return __nv_cvt_float2_to_fp8x2({lo, hi}, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
// The bits of f8_encode(x * scale) (tensor/f8.h). The product with a power of two is exact, or beyond the codes, in f32
// and in bf16. A constant e5m2 costs nothing; else the branch is the caller's.
template <int W> __device__ inline codes_vec<W> codes_of(const float (&x)[W], float scale, bool e5m2)
{
    static_assert(W == 4 || W == 8 || W == 16, "whole words, one access");
    codes_vec<W> c;
#pragma unroll
    for (int i = 0; i < W / 4; i++) {
        const float *at = x + 4 * i;
        c.v[i] = two_codes(at[0] * scale, at[1] * scale, e5m2) | two_codes(at[2] * scale, at[3] * scale, e5m2) << 16;
    }
    return c;
}
template <typename T, int W> __device__ inline codes_vec<W> codes_of(const vec<T, W> &x, float scale, bool e5m2)
{
    float f[W];
    if constexpr (sizeof(T) == 4) {
        widen(x, f);
        return codes_of(f, scale, e5m2);
    } else { // two products at a time
        vec<T, W> scaled;
        const __nv_bfloat162 by = __float2bfloat162_rn(scale), *from = reinterpret_cast<const __nv_bfloat162 *>(&x);
#pragma unroll
        for (int i = 0; i < W / 2; i++) reinterpret_cast<__nv_bfloat162 *>(&scaled)[i] = __hmul2_rn(from[i], by);
        widen(scaled, f);
        return codes_of(f, 1.f, e5m2);
    }
}
template <int W> __device__ inline void store_codes(uint8_t *to, const codes_vec<W> &c)
{
    if constexpr (W == 4)
        *reinterpret_cast<uint32_t *>(to) = c.v[0];
    else if constexpr (W == 8)
        *reinterpret_cast<uint2 *>(to) = make_uint2(c.v[0], c.v[1]);
    else
        *reinterpret_cast<uint4 *>(to) = make_uint4(c.v[0], c.v[1], c.v[2], c.v[3]);
}

// ---- the largest magnitude: magnitudes compare as the integers of their bits, with NaN above Inf

template <typename T> struct amax_of; // of one thread
template <> struct amax_of<float> {
    uint32_t most = 0;
    template <int W> __device__ inline void add(const vec<float, W> &x)
    {
        for (int i = 0; i < W; i++) most = max(most, __float_as_uint(x.v[i]) & 0x7fffffffu);
    }
    __device__ inline uint32_t bits() const { return most; }
};
template <> struct amax_of<__nv_bfloat16> {
    uint32_t most = 0; // two of them
    template <int W> __device__ inline void add(const vec<__nv_bfloat16, W> &x)
    {
        if constexpr (W == 1) {
            most = __vmaxu2(most, __bfloat16_as_ushort(x.v[0]) & 0x7fffu);
        } else {
            const uint32_t *words = reinterpret_cast<const uint32_t *>(&x);
            for (int i = 0; i < W / 2; i++) most = __vmaxu2(most, words[i] & 0x7fff7fffu);
        }
    }
    __device__ inline uint32_t bits() const { return max(most << 16, most & 0xffff0000u); }
};
// *to = the largest of itself and of the warp's bits; to NULL: nothing. The maximum does not depend on the order.
__device__ inline void amax_store_warp(uint32_t bits, uint32_t *to)
{
    if (to == nullptr) return;
    bits = __reduce_max_sync(0xffffffffu, bits);
    if (threadIdx.x % WARP == 0 && bits) atomicMax(to, bits);
}
// The largest bits of the block, one-dimensional and of whole warps; the threads of its first warp get it. `shared`
// holds 32 words that nobody else uses. All threads take part; no barrier is needed before or after.
__device__ inline uint32_t block_most(uint32_t bits, uint32_t *shared)
{
    bits = __reduce_max_sync(0xffffffffu, bits);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = bits;
    __syncthreads();
    if (threadIdx.x >= WARP) return bits;
    return __reduce_max_sync(0xffffffffu, threadIdx.x < blockDim.x / WARP ? shared[threadIdx.x] : 0u);
}
// As amax_store_warp, of the block and with one atomic; the conditions of block_most.
__device__ inline void amax_store_block(uint32_t bits, uint32_t *to, uint32_t *shared)
{
    if (to == nullptr) return;
    bits = block_most(bits, shared);
    if (threadIdx.x == 0 && bits) atomicMax(to, bits);
}

// ---- transpose

// Four words of four bytes each, transposed in place.
__device__ inline void transpose4(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d)
{
    const uint32_t ab01 = __byte_perm(a, b, 0x5140), ab23 = __byte_perm(a, b, 0x7362),
                   cd01 = __byte_perm(c, d, 0x5140), cd23 = __byte_perm(c, d, 0x7362);
    a = __byte_perm(ab01, cd01, 0x5410);
    b = __byte_perm(ab01, cd01, 0x7632);
    c = __byte_perm(ab23, cd23, 0x5410);
    d = __byte_perm(ab23, cd23, 0x7632);
}

// Codes of ROWS rows in shared memory: put by rows, stored by columns. A column is stored in runs of ROWS bytes: 32
// rows fill sectors of memory, 128 fill lines. Threads that put 8 neighbours each, or read them to store, use different
// banks: columns are permuted within 128 by the row's sixteen.
//
//   __shared__ __align__(16) uint8_t tile[code_tile<32>::bytes(COLUMNS)];
//   code_tile<32>::put(tile, code_tile<32>::width(COLUMNS), row, column, codes_of(x, scale, e5m2));
//   __syncthreads();
//   code_tile<32>::store(...);      // and a barrier before the tile is filled again
template <int ROWS> struct code_tile {
    static_assert(ROWS == 16 || ROWS == 32 || ROWS == 64 || ROWS == 128, "up to eight sixteens");
    enum { PARTS = ROWS / 16 };
    // Bytes of a row of the tile, and of the tile.
    static __host__ __device__ constexpr int width(int columns) { return (columns + 127) / 128 * 128; }
    static __host__ __device__ constexpr int bytes(int columns) { return ROWS * width(columns); }
    static __device__ inline int at(int width, int row, int column)
    {
        return row * width + (column ^ row / 16 * (128 / PARTS));
    }
    // W (4 or 8) codes of a row; column is a multiple of W.
    template <int W> static __device__ inline void put(uint8_t *tile, int width, int row, int column,
                                                       const codes_vec<W> &c)
    {
        static_assert(W <= 8, "the permutation moves eights");
        store_codes(tile + at(width, row, column), c);
    }
    // Stores the tile, whose first code belongs to row0 (a multiple of 16) and column0 of the tensor: `rows` rows that
    // were put (more than ROWS counts as ROWS) and `columns` columns, a multiple of 4. Rows up to the next sixteen are
    // zeros in codes_t, whose rows are ld apart. For `threads` threads, of which this one is number `rank`.
    static __device__ inline void store(const uint8_t *tile, int width, uint8_t *codes_t, int64_t ld, int64_t row0,
                                        int64_t column0, int64_t rows, int columns, int rank, int threads)
    {
        const int put = (int)min(rows, (int64_t)ROWS);
        for (int i = rank; i < PARTS * (columns / 4); i += threads) {
            const int row = i % PARTS * 16, column = i / PARTS * 4;
            const int there = put - row; // of the sixteen
            if (there <= 0) continue;
            uint32_t w[16];
#pragma unroll
            for (int r = 0; r < 16; r++)
                w[r] = r < there ? *reinterpret_cast<const uint32_t *>(tile + at(width, row + r, column)) : 0;
#pragma unroll
            for (int r = 0; r < 16; r += 4) transpose4(w[r], w[r + 1], w[r + 2], w[r + 3]);
            uint8_t *to = codes_t + (column0 + column) * ld + row0 + row;
#pragma unroll
            for (int j = 0; j < 4; j++)
                *reinterpret_cast<uint4 *>(to + j * ld) = make_uint4(w[j], w[4 + j], w[8 + j], w[12 + j]);
        }
    }
};

// A block of 256 threads makes codes of a square of a tensor [rows, n]: a thread has 8 neighbours in each of 8 rows.
// n is a multiple of 8 (of 16 for codes_t). The blocks that run at a time cover strips of BAND squares: long runs of
// the tensor's rows, and runs of BAND lines of codes_t. Blocks below the last row are empty.
struct code_square {
    enum { SIDE = 128, THREADS = 256, EIGHTS = SIDE / 8, STEP = THREADS / EIGHTS, EACH = SIDE / STEP, BAND = 8 };
    using tile = code_tile<SIDE>;
    enum { TILE_BYTES = SIDE * SIDE };

    int64_t row0, column0;
    int rows, columns; // of the square that the tensor has; rows <= 0: it is empty
    int slot, column;  // of the thread's first eight, in the square
    __device__ inline code_square(int64_t rows_, int64_t n)
        : slot(threadIdx.x / EIGHTS), column(threadIdx.x % EIGHTS * 8)
    {
        const unsigned across = (unsigned)((n + SIDE - 1) / SIDE), at = blockIdx.x / BAND, band = at / across;
        row0 = ((int64_t)band * BAND + blockIdx.x % BAND) * SIDE;
        column0 = (int64_t)(at - band * across) * SIDE;
        rows = (int)min(rows_ - row0, (int64_t)SIDE);
        columns = (int)min(n - column0, (int64_t)SIDE);
    }
    // The square at this row and column.
    __device__ inline code_square(int64_t row, int64_t column_, int64_t rows_, int64_t n)
        : row0(row), column0(column_), rows((int)min(rows_ - row, (int64_t)SIDE)),
          columns((int)min(n - column_, (int64_t)SIDE)), slot(threadIdx.x / EIGHTS), column(threadIdx.x % EIGHTS * 8)
    {
    }
    static inline unsigned grid(int64_t rows, int64_t n)
    {
        const int64_t bands = (rows + BAND * SIDE - 1) / (BAND * SIDE), across = (n + SIDE - 1) / SIDE;
        CHECK(bands * across <= INT32_MAX / BAND, "codes of [%lld, %lld]", (long long)rows, (long long)n);
        return (unsigned)(bands * across * BAND);
    }
    // The thread's i-th eight: whether the tensor has it, and where in rows `stride` apart.
    __device__ inline bool has(int i) const { return slot + i * STEP < rows && column < columns; }
    __device__ inline int64_t at(int i, int64_t stride) const
    {
        return (row0 + slot) * stride + column0 + column + i * (STEP * stride);
    }
    // Writes codes of the i-th eight, `right` columns further in rows `stride` apart, and to the tile t; NULL: none.
    __device__ inline void put(const code_out &o, uint8_t *t, int i, const codes_vec<8> &c, int64_t stride,
                               int64_t right) const
    {
        static_assert(STEP == 16, "tile::at of row slot + i * STEP");
        if (o.codes && has(i)) store_codes(o.codes + at(i, stride) + right, c);
        if (t) store_codes(t + i * (STEP * SIDE) + slot * SIDE + (column ^ i * (SIDE / tile::PARTS)), c);
    }
    // After a barrier.
    __device__ inline void store(const code_out &o, const uint8_t *t, int64_t right) const
    {
        tile::store(t, SIDE, o.codes_t, o.ld, row0, column0 + right, rows, columns, threadIdx.x, THREADS);
    }
};
