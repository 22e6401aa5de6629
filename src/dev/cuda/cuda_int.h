/* For C files that call the CUDA runtime: the wrapper that converts its errors to statuses. */
#ifndef INGOT_DEV_CUDA_CUDA_INT_H
#define INGOT_DEV_CUDA_CUDA_INT_H
#include "dev/dev.h"
#include <cuda_runtime_api.h>

/* Returns FAIL with the call, CUDA's name for the error and its text. */
#define TRY_CUDA(call)                                                                                                 \
    do {                                                                                                               \
        cudaError_t try_err_ = (call);                                                                                 \
        if (__builtin_expect(try_err_ != cudaSuccess, 0))                                                              \
            return FAIL(STATUS_DEVICE, "%s: %s (%s)", #call, cudaGetErrorString(try_err_),                     \
                        cudaGetErrorName(try_err_));                                                           \
    } while (0)

/* Turns scopes into NVTX ranges when a tool listens (nvtx.c). */
void cuda_nvtx_open(void);

static inline cudaStream_t cuda_queue(const struct stream *s) { return (cudaStream_t)s->queue; }
#endif
