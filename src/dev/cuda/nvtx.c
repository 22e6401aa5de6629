/* Scopes as NVTX ranges, for nsys, ncu and other tools. NVTX is headers only: its calls load the tool named
 * by the environment variable NVTX_INJECTION64_PATH, which those tools set, and do nothing without it. A
 * domain can only be created when a tool is present; this is how its presence is detected. Without a tool,
 * scopes never reach this file. */
#include "base/scope.h"
#include "dev/cuda/cuda_int.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

/* The index is the range's payload: a profiler sums ranges by name and shows layer and step beside it. */
static void push(const char *name, int64_t idx)
{
    nvtxEventAttributes_t range = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                   .message.ascii = name};
    if (idx >= 0) {
        range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
        range.payload.llValue = idx;
    }
    (void)nvtxRangePushEx(&range);
}

static void pop(void)
{
    (void)nvtxRangePop();
}

void cuda_nvtx_open(void)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("ingot");
    if (domain == NULL) return;
    nvtxDomainDestroy(domain); /* the ranges are of the default domain: filters need no prefix */
    scope_range_set(push, pop);
}
#else
void cuda_nvtx_open(void) {}
#endif
