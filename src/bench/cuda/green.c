#include "bench/cuda/green.h"
#include "dev/cuda/cuda_int.h"

#include <cuda.h>
#include <cudaTypedefs.h>

/* Of the driver that the runtime has loaded: the program does not link libcuda. */
#define DRIVER_CALLS(X)                                                                                      \
    X(cuGetErrorName, 6000)                                                                                  \
    X(cuDeviceGetDevResource, 12040)                                                                         \
    X(cuDevSmResourceSplitByCount, 12040)                                                                    \
    X(cuDevResourceGenerateDesc, 12040)                                                                      \
    X(cuGreenCtxCreate, 12040)                                                                               \
    X(cuGreenCtxDestroy, 12040)                                                                              \
    X(cuGreenCtxStreamCreate, 12050)
static struct {
#define X(name, version) PFN_##name##_v##version name;
    DRIVER_CALLS(X)
#undef X
} driver;

static status find(const char *name, int version, void **to)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t err =
        cudaGetDriverEntryPointByVersion(name, to, (unsigned)version, cudaEnableDefault, &found);
    if (err == cudaSuccess && found == cudaDriverEntryPointSuccess && *to) return STATUS_OK;
    (void)cudaGetLastError();
    return FAIL(STATUS_DEVICE, "the NVIDIA driver has no %s of CUDA %d.%d: green contexts need a newer one",
                name, version / 1000, version % 1000 / 10);
}

#define TRY_CU(call)                                                                                         \
    do {                                                                                                     \
        const CUresult try_err_ = driver.call;                                                               \
        const char *try_name_ = "?";                                                                         \
        if (try_err_ != CUDA_SUCCESS) {                                                                      \
            (void)driver.cuGetErrorName(try_err_, &try_name_);                                               \
            return FAIL(STATUS_DEVICE, "%s: %s", #call, try_name_);                                          \
        }                                                                                                    \
    } while (0)

static status part_open(const struct dev *d, CUdevResource *sms, int priority, struct green_part *p)
{
    CUdevResourceDesc what;
    CUgreenCtx context;
    CUstream queue;
    TRY_CU(cuDevResourceGenerateDesc(&what, sms, 1));
    TRY_CU(cuGreenCtxCreate(&context, what, d->index, CU_GREEN_CTX_DEFAULT_STREAM));
    p->context = context;
    p->sms = (int)sms->sm.smCount;
    TRY_CU(cuGreenCtxStreamCreate(&queue, context, CU_STREAM_NON_BLOCKING, priority));
    p->stream = (struct stream){.dev = d, .queue = queue};
    return STATUS_OK;
}

status green_open(const struct dev *d, int sms, struct green *g)
{
    CUdevResource all, few, rest;
    unsigned groups = 1;
    int last, first;
    *g = (struct green){0};
#define X(name, version) TRY(find(#name, version, (void **)&driver.name));
    DRIVER_CALLS(X)
#undef X
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&last, &first));
    TRY_CU(cuDeviceGetDevResource(d->index, &all, CU_DEV_RESOURCE_TYPE_SM));
    TRY_CU(cuDevSmResourceSplitByCount(&few, &groups, &all, &rest, 0, (unsigned)sms));
    if (groups != 1 || rest.type != CU_DEV_RESOURCE_TYPE_SM || rest.sm.smCount == 0)
        return FAIL(STATUS_DEVICE, "%d of the %u multiprocessors of %s: nothing is left for other work", sms,
                    all.sm.smCount, d->name);
    TRY(part_open(d, &few, first, &g->few));
    return part_open(d, &rest, last, &g->rest);
}

static void part_close(struct green_part *p)
{
    if (p->stream.queue) (void)cudaStreamDestroy(cuda_queue(&p->stream));
    if (p->context) (void)driver.cuGreenCtxDestroy((CUgreenCtx)p->context);
    *p = (struct green_part){0};
}

void green_close(struct green *g)
{
    part_close(&g->few);
    part_close(&g->rest);
}
