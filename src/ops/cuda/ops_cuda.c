#include "ops/cuda/ops_cuda.h"
#include "dev/cuda/cuda_int.h"
#include "ops/cuda/set.h"

#include <stdlib.h>

static size_t workspace_bytes(int64_t tokens)
{
    return CUDA_WORKSPACE + 64 * (size_t)tokens;
}

static dtype logits_dt(dtype dt)
{
    return dt; /* bf16 logits halve the traffic; the loss overwrites them with the gradient */
}

/* From the driver that the runtime has loaded: the program does not link libcuda. */
static void *tensor_map_encode(void)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t err =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (err != cudaSuccess) (void)cudaGetLastError();
    return err == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : NULL;
}

static status open_libraries(struct stream *s, const struct cuda_options *options)
{
    struct cuda_set *set = calloc(1, sizeof *set);
    if (set == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the CUDA op set");
    *set =
        (struct cuda_set){.options = *options, .sm = s->dev->sm, .multiprocessors = s->dev->multiprocessors};
    set->tensor_map_encode = tensor_map_encode();
    s->ops = set;
    status st = cuda_gemm_open(set);
    if (st == STATUS_OK) st = cuda_sdpa_open(set, s);
    if (st != STATUS_OK) ops_cuda_close(s);
    return st;
}

status ops_cuda(struct ops *o, struct stream *s, const struct cuda_options *options)
{
    *o = (struct ops){.name = "cuda",
                      .attn_scratch = cuda_attn_scratch(options, s ? s->dev->sm : options->sm),
                      .workspace = workspace_bytes,
                      .logits_dt = logits_dt,
                      .logits_max = (int64_t)512 << 20};
#define X(file) cuda_##file##_slots(o);
    CUDA_FILES(X)
#undef X
    return s ? open_libraries(s, options) : STATUS_OK;
}

void ops_cuda_workspace(struct stream *s, void *workspace, size_t bytes)
{
    struct cuda_set *set = cuda_set(s);
    set->workspace = workspace;
    set->workspace_bytes = bytes;
}

void ops_cuda_close(struct stream *s)
{
    struct cuda_set *set = cuda_set(s);
    if (set == NULL) return;
    cuda_gemm_close(set);
    cuda_sdpa_close(set);
    cuda_attn_close(set);
    free(set);
    s->ops = NULL;
}
