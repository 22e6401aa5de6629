#include "dev/cuda/cuda_int.h"
#include "dev/driver_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { SM_MIN = 80 };

/* Why no GPU can be used. */
static status no_gpu(struct dev *d, bool optional, cudaError_t err)
{
    if (optional && (err == cudaErrorNoDevice || err == cudaErrorInsufficientDriver)) {
        int driver = 0;
        (void)cudaDriverGetVersion(&driver);
        if (driver == 0 || err == cudaErrorNoDevice)
            return STATUS_OK; /* no driver at all, or one without a GPU */
    }
    if (err == cudaErrorInsufficientDriver)
        return FAIL(STATUS_DEVICE,
                    "the NVIDIA driver is missing or too old: this build needs one for CUDA %d.%d; "
                    "update it, or use --machine.device=cpu",
                    CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (err == cudaErrorNoDevice)
        return FAIL(STATUS_DEVICE,
                    "no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES may hide it); use --machine.device=cpu");
    (void)d;
    return FAIL(STATUS_DEVICE, "the GPU cannot be used: %s (%s)", cudaGetErrorString(err),
                cudaGetErrorName(err));
}

static status cuda_open(struct dev *d, bool optional, int local)
{
    int count = 0;
    struct cudaDeviceProp prop;
    cudaError_t err = cudaGetDeviceCount(&count);
    if (err == cudaSuccess && count == 0) err = cudaErrorNoDevice;
    if (err != cudaSuccess) return no_gpu(d, optional, err);
    const int index = count == 1 ? 0 : local; /* with several ranks, each may see only its own GPU */
    if (index >= count)
        return FAIL(STATUS_DEVICE,
                    "rank %d of this machine has no GPU: %d are visible; start at most as many ranks", local,
                    count);
    TRY_CUDA(cudaSetDevice(index));
    TRY_CUDA(cudaGetDeviceProperties(&prop, index));
    TRY_CUDA(cudaDriverGetVersion(&d->driver_version));
    TRY_CUDA(cudaRuntimeGetVersion(&d->runtime_version));
    d->sm = prop.major * 10 + prop.minor;
    if (d->sm < SM_MIN)
        return FAIL(
            STATUS_DEVICE,
            "%s has compute capability %d.%d; ingot needs 8.0 (A100) or newer: use --machine.device=cpu",
            prop.name, prop.major, prop.minor);
    TRY_CUDA(cudaMemGetInfo(&d->bytes_free, &d->bytes_total));
    d->kind = DEV_CUDA;
    d->driver = cuda_driver();
    d->index = index;
    d->multiprocessors = prop.multiProcessorCount;
    snprintf(d->name, sizeof d->name, "%s", prop.name);
    cuda_nvtx_open();
    return STATUS_OK;
}

static status cuda_use(const struct dev *d)
{
    TRY_CUDA(cudaSetDevice(d->index));
    return STATUS_OK;
}

static status cuda_address(const struct dev *d, char address[DEV_ADDRESS])
{
    TRY_CUDA(cudaDeviceGetPCIBusId(address, DEV_ADDRESS, d->index));
    return STATUS_OK;
}

static size_t cuda_bytes_used(const struct dev *d)
{
    size_t have = 0, total = 0;
    if (cudaMemGetInfo(&have, &total) != cudaSuccess) return 0;
    return d->bytes_free > have ? d->bytes_free - have : 0;
}

static status cuda_memory(const struct dev *d, size_t bytes, const char *what, void **out)
{
    size_t have = 0, total = 0;
    const size_t page = 2 << 20; /* whole pages: other ranks map pages (comm/) */
    cudaError_t err = cudaMalloc(out, (bytes + page - 1) / page * page);
    if (err == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&have, &total);
        return FAIL(
            STATUS_OUT_OF_MEMORY,
            "no memory on %s for the %s arena: %.1f of %.1f MiB free; `ingot plan` shows what takes it",
            d->name, what, (double)have / 1048576, (double)bytes / 1048576);
    }
    TRY_CUDA(err);
    TRY_CUDA(cudaMemset(*out, 0, bytes));
    /* Streams do not wait for the default stream: without this, zeros could overwrite an upload. */
    TRY_CUDA(cudaDeviceSynchronize());
    return STATUS_OK;
}

static void cuda_memory_free(void *p, size_t bytes)
{
    (void)bytes;
    (void)cudaFree(p);
}

static status cuda_pinned(size_t bytes, void **out)
{
    TRY_CUDA(cudaMallocHost(out, bytes ? bytes : 1));
    return STATUS_OK;
}

static void cuda_pinned_free(void *p)
{
    (void)cudaFreeHost(p);
}

static status cuda_pin(const struct dev *d, void *p, size_t bytes, const char *what)
{
    cudaError_t err = cudaHostRegister(p, bytes, cudaHostRegisterPortable);
    if (err == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return FAIL(STATUS_OUT_OF_MEMORY,
                    "the host cannot lock %.1f MiB of memory in place for %s (%s); `ingot plan` shows how "
                    "much is asked for",
                    (double)bytes / 1048576, d->name, what);
    }
    TRY_CUDA(err);
    return STATUS_OK;
}

static void cuda_unpin(void *p)
{
    (void)cudaHostUnregister(p);
}

static void cuda_pinned_unmap(void *p, size_t bytes)
{
    cuda_unpin(p);
    (void)munmap(p, bytes);
}

static status cuda_stream_open(struct stream *s)
{
    cudaStream_t q;
    int last, first;
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&last, &first));
    TRY_CUDA(cudaStreamCreateWithPriority(&q, cudaStreamNonBlocking, s->side ? first : last));
    s->queue = q;
    return STATUS_OK;
}

static void cuda_stream_close(struct stream *s)
{
    (void)cudaStreamDestroy(cuda_queue(s));
}

static status cuda_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    const cudaError_t err = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_queue(s));
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "copy of %zu bytes from %p to %p: %s (%s)", bytes, from, to,
                cudaGetErrorString(err), cudaGetErrorName(err));
}

static status cuda_copy_lines(struct stream *s, const struct dev_lines *l)
{
    TRY_CUDA(cudaMemcpy2DAsync(l->to, l->to_stride, l->from, l->from_stride, l->bytes, l->count,
                               cudaMemcpyDefault, cuda_queue(s)));
    return STATUS_OK;
}

static status cuda_zero(struct stream *s, void *to, size_t bytes)
{
    TRY_CUDA(cudaMemsetAsync(to, 0, bytes, cuda_queue(s)));
    return STATUS_OK;
}

static status cuda_sync(struct stream *s)
{
    TRY_CUDA(cudaStreamSynchronize(cuda_queue(s)));
    return STATUS_OK;
}

static status cuda_done(struct stream *s, bool *done)
{
    const cudaError_t err = cudaStreamQuery(cuda_queue(s));
    *done = err != cudaErrorNotReady;
    if (*done) TRY_CUDA(err);
    return STATUS_OK;
}

static status cuda_event_open(struct event *e, bool timed)
{
    cudaEvent_t mark;
    TRY_CUDA(cudaEventCreateWithFlags(&mark, timed ? cudaEventDefault : cudaEventDisableTiming));
    e->mark = mark;
    return STATUS_OK;
}

static status cuda_stream_wait(struct stream *s, const struct event *e)
{
    TRY_CUDA(cudaStreamWaitEvent(cuda_queue(s), (cudaEvent_t)e->mark, 0));
    return STATUS_OK;
}

/* What a graph waits for has been recorded before each launch; an event of the capture would vanish with it. */
static status cuda_stream_wait_outside(struct stream *s, const struct event *e)
{
    enum cudaStreamCaptureStatus capture;
    TRY_CUDA(cudaStreamIsCapturing(cuda_queue(s), &capture));
    TRY_CUDA(cudaStreamWaitEvent(cuda_queue(s), (cudaEvent_t)e->mark,
                                 capture == cudaStreamCaptureStatusActive ? cudaEventWaitExternal
                                                                          : cudaEventWaitDefault));
    return STATUS_OK;
}

static void cuda_event_close(struct event *e)
{
    (void)cudaEventDestroy((cudaEvent_t)e->mark);
}

static status cuda_event_record(struct stream *s, struct event *e)
{
    TRY_CUDA(cudaEventRecord((cudaEvent_t)e->mark, cuda_queue(s)));
    return STATUS_OK;
}

/* A captured stamp records the time at each launch of the graph. Other captured events only order work and
 * vanish with the capture. */
static status cuda_event_stamp(struct stream *s, struct event *e)
{
    enum cudaStreamCaptureStatus capture;
    TRY_CUDA(cudaStreamIsCapturing(cuda_queue(s), &capture));
    TRY_CUDA(cudaEventRecordWithFlags((cudaEvent_t)e->mark, cuda_queue(s),
                                      capture == cudaStreamCaptureStatusActive ? cudaEventRecordExternal
                                                                               : cudaEventRecordDefault));
    return STATUS_OK;
}

static status cuda_event_ms(const struct event *begin, const struct event *end, double *ms)
{
    float between;
    TRY_CUDA(cudaEventSynchronize((cudaEvent_t)end->mark));
    TRY_CUDA(cudaEventElapsedTime(&between, (cudaEvent_t)begin->mark, (cudaEvent_t)end->mark));
    *ms = (double)between;
    return STATUS_OK;
}

static status cuda_graph_begin(struct stream *s)
{
    TRY_CUDA(cudaStreamBeginCapture(cuda_queue(s), cudaStreamCaptureModeThreadLocal));
    return STATUS_OK;
}

static status cuda_graph_end(struct stream *s, struct graph *g, bool keep)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t nodes = 0;
    cudaError_t err = cudaStreamEndCapture(cuda_queue(s), &graph);
    if (!keep) {
        if (graph) (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError(); /* the op that invalidated the capture has reported it */
        return STATUS_OK;
    }
    TRY_CUDA(err);
    err = cudaGraphGetNodes(graph, NULL, &nodes);
    if (err == cudaSuccess) err = cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    TRY_CUDA(err);
    *g = (struct graph){.exec = exec, .nodes = (int64_t)nodes};
    TRY_CUDA(cudaGraphUpload(exec, cuda_queue(s)));
    return STATUS_OK;
}

static status cuda_graph_launch(struct stream *s, const struct graph *g)
{
    TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)g->exec, cuda_queue(s)));
    return STATUS_OK;
}

static void cuda_graph_close(struct graph *g)
{
    (void)cudaGraphExecDestroy((cudaGraphExec_t)g->exec);
}

const struct dev_driver *cuda_driver(void)
{
    static const struct dev_driver driver = {
        .open = cuda_open,
        .use = cuda_use,
        .address = cuda_address,
        .bytes_used = cuda_bytes_used,
        .memory = cuda_memory,
        .memory_free = cuda_memory_free,
        .pinned = cuda_pinned,
        .pinned_free = cuda_pinned_free,
        .pin = cuda_pin,
        .pinned_unmap = cuda_pinned_unmap,
        .unpin = cuda_unpin,
        .stream_open = cuda_stream_open,
        .stream_close = cuda_stream_close,
        .copy = cuda_copy,
        .copy_lines = cuda_copy_lines,
        .zero = cuda_zero,
        .sync = cuda_sync,
        .done = cuda_done,
        .stream_wait = cuda_stream_wait,
        .stream_wait_outside = cuda_stream_wait_outside,
        .event_open = cuda_event_open,
        .event_close = cuda_event_close,
        .event_record = cuda_event_record,
        .event_stamp = cuda_event_stamp,
        .event_ms = cuda_event_ms,
        .graph_begin = cuda_graph_begin,
        .graph_end = cuda_graph_end,
        .graph_launch = cuda_graph_launch,
        .graph_close = cuda_graph_close,
    };
    return &driver;
}
