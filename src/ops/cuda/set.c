#include "ops/cuda/set.h"
#include "dev/cuda/cuda_int.h"

status cuda_set_launched(dev_stream s, const char *op)
{
    cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess && s->sync) err = cudaStreamSynchronize(cuda_queue(s));
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "%s on %s: %s (%s)", op, s->dev->name, cudaGetErrorString(err),
                cudaGetErrorName(err));
}

void *cuda_set_workspace(dev_stream s, size_t bytes, const char *op)
{
    const struct cuda_set *set = cuda_set(s);
    CHECK(bytes <= set->workspace_bytes, "%s needs %zu bytes of workspace, there are %zu", op, bytes,
          set->workspace_bytes);
    return set->workspace;
}
