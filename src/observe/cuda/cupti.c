/* Device times from CUPTI's activity API. libcupti is loaded on demand and never linked: on a machine
 * without it ingot runs without device times.
 *
 * CUPTI delivers buffers of records on a thread of its own. This file uses these kinds of records:
 *     CONCURRENT_KERNEL     a kernel; the replay of a graph gives one per node (graph-level tracing, GRAPH_TRACE, stays off)
 *     MEMCPY, MEMSET        all other activity on the device
 *     EXTERNAL_CORRELATION  the ingot scope of a call. CUPTI writes these only together with records of API calls; RUNTIME
 *                           and DRIVER are therefore on, and their own records are skipped
 * It also uses the callbacks for graph nodes: a node is created on the thread that captures it, inside the
 * scope of its op.
 *
 * Clock: CUPTI reports CLOCK_REALTIME, to which it fits the device's clock; ingot uses CLOCK_MONOTONIC. The
 * difference is read again before records are delivered, because the time of day may be set during a run. */
#include "observe/kernels_int.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/scope.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<cupti.h>)
#include <cupti.h>

#define CUPTI_CALLS(X)                                                                                       \
    X(cuptiSubscribe)                                                                                        \
    X(cuptiUnsubscribe)                                                                                      \
    X(cuptiEnableCallback)                                                                                   \
    X(cuptiGetGraphNodeId)                                                                                   \
    X(cuptiGetResultString)                                                                                  \
    X(cuptiGetTimestamp)                                                                                     \
    X(cuptiActivityEnable)                                                                                   \
    X(cuptiActivityDisable)                                                                                  \
    X(cuptiActivityFlushAll)                                                                                 \
    X(cuptiActivityGetNextRecord)                                                                            \
    X(cuptiActivityGetNumDroppedRecords)                                                                     \
    X(cuptiActivityRegisterCallbacks)                                                                        \
    X(cuptiActivityPushExternalCorrelationId)                                                                \
    X(cuptiActivityPopExternalCorrelationId)

enum { BUFFER_BYTES = 4 << 20, RECORD_ALIGN = 8 };

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record; /* the fields read here have the offsets of older records */
typedef CUpti_ActivityMemcpy6 memcpy_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
typedef CUpti_ActivityMemcpy5 memcpy_record;
#endif
typedef CUpti_ActivityMemcpyPtoP4 peer_record;
typedef CUpti_ActivityMemset4 memset_record;

static const CUpti_ActivityKind kinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
};

/* The library, once per process: CUPTI's callbacks carry no context. */
static struct {
#define X(call) __typeof__(call) *call;
    CUPTI_CALLS(X)
#undef X
    CUpti_SubscriberHandle subscriber;
    int64_t offset_ns; /* clock_ns() - CUPTI's */
} cupti;

static const char *reason(CUptiResult r)
{
    const char *text = NULL;
    if (cupti.cuptiGetResultString(r, &text) != CUPTI_SUCCESS || text == NULL) return "unknown error";
    return text;
}

#define TRY_CUPTI(call, ...)                                                                                 \
    do {                                                                                                     \
        CUptiResult try_result_ = cupti.call(__VA_ARGS__);                                                   \
        if (__builtin_expect(try_result_ != CUPTI_SUCCESS, 0))                                               \
            return FAIL(STATUS_DEVICE, "no device times: %s: %s", #call, reason(try_result_));               \
    } while (0)

static status load(void)
{
    static const char *const places[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"};
    char path[128];
    void *library = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && library == NULL; i++) {
        snprintf(path, sizeof path, "%slibcupti.so.%d", places[i], CUDART_VERSION / 1000);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL)
        return FAIL(
            STATUS_DEVICE,
            "no device times: libcupti.so.%d was not found; install the CUDA toolkit's cuda-cupti, or "
            "add its directory to LD_LIBRARY_PATH",
            CUDART_VERSION / 1000);
#define X(call)                                                                                              \
    cupti.call = (__typeof__(call) *)dlsym(library, #call);                                                  \
    if (cupti.call == NULL)                                                                                  \
        return FAIL(STATUS_DEVICE, "no device times: %s has no %s: it is too old", path, #call);
    CUPTI_CALLS(X)
#undef X
    return STATUS_OK;
}

/* ---- records, on CUPTI's thread ---- */

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *bytes, size_t *records_max)
{
    *buffer = aligned_alloc(RECORD_ALIGN, BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *records_max = 0; /* 0: as many as fit */
}

static const char *copy_name(uint8_t kind)
{
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "memcpy on the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "memcpy between GPUs";
    default: return "memcpy";
    }
}

/* Drops records without both times. */
static void put_activity(const char *name, uint64_t start, uint64_t end, struct activity a)
{
    if (start == 0 || end < start) {
        kernels_put_lost(1);
        return;
    }
    a.start_ns = (int64_t)start;
    a.end_ns = (int64_t)end;
    a.scope = -1;
    kernels_put(name ? name : "unnamed kernel", a, cupti.offset_ns);
}

static enum kernel_link copy_link(uint8_t kind)
{
    if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD) return LINK_UP;
    return kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? LINK_DOWN : LINK_NONE;
}

static void read_record(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const kernel_record *k = (const void *)record;
        put_activity(k->name, k->start, k->end,
                     (struct activity){
                         .node = k->graphNodeId, .stream = k->streamId, .correlation = k->correlationId});
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const memcpy_record *m = (const void *)record;
        put_activity(copy_name(m->copyKind), m->start, m->end,
                     (struct activity){.node = m->graphNodeId,
                                       .stream = m->streamId,
                                       .correlation = m->correlationId,
                                       .link = copy_link(m->copyKind),
                                       .bytes = m->bytes});
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const peer_record *m = (const void *)record;
        put_activity(copy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP), m->start, m->end,
                     (struct activity){.node = m->graphNodeId,
                                       .stream = m->streamId,
                                       .correlation = m->correlationId,
                                       .bytes = m->bytes});
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const memset_record *m = (const void *)record;
        put_activity("memset", m->start, m->end,
                     (struct activity){
                         .node = m->graphNodeId, .stream = m->streamId, .correlation = m->correlationId});
        break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const CUpti_ActivityExternalCorrelation *e = (const void *)record;
        if (e->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 && e->externalId > 0)
            kernels_put_link(e->correlationId, (int)(e->externalId - 1));
        break;
    }
    default: break;
    }
}

static void CUPTIAPI buffer_done(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    (void)size;
    while (valid > 0 && cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        read_record(record);
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped > 0)
        kernels_put_lost((int64_t)dropped);
    free(buffer);
}

/* ---- scopes ---- */

static void scope_pushed(const char *name, int64_t idx)
{
    (void)name;
    (void)idx;
    (void)cupti.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                       (uint64_t)(kernels_scope() + 1)); /* 0: unknown */
}

static void scope_popped(void)
{
    (void)cupti.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL);
}

static void CUPTIAPI on_callback(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                 const void *data)
{
    (void)user;
    if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
    const CUpti_GraphData *graph = ((const CUpti_ResourceData *)data)->resourceDescriptor;
    uint64_t node = 0, original = 0;
    if (graph == NULL || cupti.cuptiGetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS) return;
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
        int scope = kernels_scope();
        if (scope >= 0) kernels_put_node(node, scope);
    } else if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED &&
               cupti.cuptiGetGraphNodeId(graph->originalNode, &original) == CUPTI_SUCCESS) {
        kernels_put_clone(node, original);
    }
}

/* ---- the source ---- */

/* CUPTI's clock is read between two readings of ours; the try with the closest pair is used. */
static void read_offset(void)
{
    int64_t closest = INT64_MAX;
    for (int i = 0; i < 8; i++) {
        uint64_t theirs = 0;
        int64_t before = clock_ns();
        if (cupti.cuptiGetTimestamp(&theirs) != CUPTI_SUCCESS) return;
        int64_t after = clock_ns();
        if (after - before >= closest) continue;
        closest = after - before;
        cupti.offset_ns = before + (after - before) / 2 - (int64_t)theirs;
    }
}

static status listen(void)
{
    TRY_CUPTI(cuptiEnableCallback, 1, cupti.subscriber, CUPTI_CB_DOMAIN_RESOURCE,
              CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
    TRY_CUPTI(cuptiEnableCallback, 1, cupti.subscriber, CUPTI_CB_DOMAIN_RESOURCE,
              CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
    TRY_CUPTI(cuptiActivityRegisterCallbacks, buffer_wanted, buffer_done);
    return STATUS_OK;
}

static status cupti_open(void)
{
    TRY(load());
    CUptiResult r = cupti.cuptiSubscribe(&cupti.subscriber, on_callback, NULL);
    if (r != CUPTI_SUCCESS)
        return FAIL(STATUS_DEVICE, "no device times: %s; is another profiler attached?", reason(r));
    status st = listen();
    if (st != STATUS_OK) {
        (void)cupti.cuptiUnsubscribe(cupti.subscriber);
        return st;
    }
    read_offset();
    scope_range_set(scope_pushed, scope_popped);
    return STATUS_OK;
}

static status cupti_record(bool on)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (on)
            TRY_CUPTI(cuptiActivityEnable, kinds[i]);
        else
            TRY_CUPTI(cuptiActivityDisable, kinds[i]);
    return STATUS_OK;
}

static void cupti_flush(void)
{
    read_offset();
    CUptiResult r = cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (r != CUPTI_SUCCESS) log_warn("device times: cuptiActivityFlushAll: %s", reason(r));
}

static void cupti_close(void)
{
    scope_range_set(NULL, NULL);
    cupti_flush();
    (void)cupti.cuptiUnsubscribe(cupti.subscriber);
}

const struct kernel_source *cuda_kernel_source(void)
{
    static const struct kernel_source source = {cupti_open, cupti_record, cupti_flush, cupti_close};
    return &source;
}
#else
const struct kernel_source *cuda_kernel_source(void)
{
    return NULL;
}
#endif
