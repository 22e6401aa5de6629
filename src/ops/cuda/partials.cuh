// Sums over rows, in two kernels: each block of the first sums its own rows into one partial row of the workspace;
// the second adds the partial rows in order. The order is a function of the shape and the number of
// multiprocessors, so two runs on one machine give the same bits. No float atomics.
#pragma once
#include "ops/cuda/device.cuh"

enum { PARTIALS_COLUMNS = 32, PARTIALS_SLICES = 32 };

// to[0, split) and beyond[0, width - split) += column sums of partial [count, width].
static __global__ void __launch_bounds__(PARTIALS_COLUMNS *PARTIALS_SLICES)
    partials_kernel(const float *partial, int count, int64_t width, int64_t split, float *to, float *beyond)
{
    __shared__ float sums[PARTIALS_SLICES][PARTIALS_COLUMNS];
    int64_t column = (int64_t)blockIdx.x * PARTIALS_COLUMNS + threadIdx.x;
    float sum = 0;
    if (column < width) {
#pragma unroll 8
        for (int i = threadIdx.y; i < count; i += PARTIALS_SLICES) sum += partial[i * width + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    sum = 0;
    for (int i = 0; i < PARTIALS_SLICES; i++) sum += sums[i][threadIdx.x];
    float *at = column < split ? to + column : beyond + (column - split);
    *at += sum;
}

// At most `count` partial rows of `width` that fit in the workspace.
static inline int64_t partials_fit(int64_t count, int64_t width)
{
    int64_t most = (int64_t)CUDA_WORKSPACE / (int64_t)sizeof(float) / width;
    CHECK(most > 0, "partial sums of %lld columns", (long long)width);
    return count < most ? count : most;
}

static inline void partials_add(dev_stream s, const float *partial, int64_t count, int64_t width, int64_t split,
                                float *to, float *beyond)
{
    dim3 block(PARTIALS_COLUMNS, PARTIALS_SLICES);
    unsigned blocks = (unsigned)((width + PARTIALS_COLUMNS - 1) / PARTIALS_COLUMNS);
    partials_kernel<<<blocks, block, 0, queue_of(s)>>>(partial, (int)count, width, split, to, beyond);
}
