// Offsets and lengths of packed documents for cuDNN's ragged tensors, and gradients of k and v from contiguous rows to
// where the caller wants them. Small: both are launched once per call.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/cuda/attn_cudnn_offsets.h"
}

enum { THREADS = 256, PACK = 8 }; // bf16 values in 16 bytes

__global__ void __launch_bounds__(THREADS) offsets_kernel(attn_offsets_args a)
{
    int64_t d = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (d > a.docs) return;
    int64_t begin = a.cu_seqlens[d];
#pragma unroll
    for (int i = 0; i < ATTN_OFFSETS_MAX; i++)
        if (a.offsets[i]) a.offsets[i][d] = begin * a.width[i];
    if (d < a.docs) a.lengths[d] = (int32_t)(a.cu_seqlens[d + 1] - begin);
}

// blockIdx.y: which of the two.
__global__ void __launch_bounds__(THREADS) spread_kernel(attn_spread_args a)
{
    bool second = blockIdx.y;
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)(second ? a.from[1] : a.from[0]);
    __nv_bfloat16 *to = (__nv_bfloat16 *)(second ? a.to[1] : a.to[0]);
    const int64_t packs = (second ? a.width[1] : a.width[0]) / PACK, all = a.rows * packs,
                  stride = second ? a.stride[1] : a.stride[0];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / packs, at = i % packs * PACK;
        store_pack(to + row * stride + at, load_pack_once(from + i * PACK));
    }
}

extern "C" status cuda_attn_offsets(const attn_offsets_args *a, dev_stream s)
{
    unsigned blocks = (unsigned)((a->docs + 1 + THREADS - 1) / THREADS);
    offsets_kernel<<<blocks, THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "attention offsets");
}

extern "C" status cuda_attn_spread(const attn_spread_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    const int64_t wide = a->width[0] > a->width[1] ? a->width[0] : a->width[1];
    int64_t need = (a->rows * (wide / PACK) + THREADS - 1) / THREADS;
    int64_t most = 8 * (int64_t)cuda_set(s)->multiprocessors;
    dim3 grid((unsigned)(need < most ? need : most), 2);
    spread_kernel<<<grid, THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "attention gradients of documents");
}
