#include "comm/gpu/cuda/nccl.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void find(const struct nccl *n, const char *name, void *entry)
{
    void *f = dlsym(n->lib, name);
    memcpy(entry, &f, sizeof f);
}

status nccl_load(struct nccl *n)
{
    enum { OLDEST = 21803 };
    *n = (struct nccl){.lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)};
    if (n->lib == NULL) n->lib = dlopen(INGOT_CUDA_LIBRARY_DIR "/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (n->lib == NULL)
        return FAIL(STATUS_DEVICE,
                    "libnccl.so.2 cannot be loaded (%s): several ranks with GPUs need NCCL; install it, or "
                    "name its directory in LD_LIBRARY_PATH",
                    dlerror());
#define X(name) find(n, #name, &n->name##_);
    NCCL_CALLS(X)
    NCCL_NEWER(X)
#undef X
#define X(name)                                                                                              \
    if (n->name##_ == NULL) return FAIL(STATUS_DEVICE, "libnccl.so.2 has no %s: it is too old", #name);
    NCCL_CALLS(X)
#undef X
    TRY_NCCL(n, "version", n->ncclGetVersion_(&n->version));
    if (n->version < OLDEST)
        return FAIL(STATUS_DEVICE, "NCCL %d is too old: 2.18.3 or newer is needed", n->version);
    return STATUS_OK;
}

struct abort_of {
    __typeof__(&ncclCommAbort) abort;
    ncclComm_t comm;
};

static void *abort_comm(void *arg)
{
    const struct abort_of a = *(struct abort_of *)arg;
    free(arg);
    (void)a.abort(a.comm);
    return NULL;
}

void nccl_abort(struct nccl *n, ncclComm_t *comm)
{
    struct abort_of *a = *comm && n->abort_count < NCCL_ABORTS_MAX ? malloc(sizeof *a) : NULL;
    if (a) *a = (struct abort_of){n->ncclCommAbort_, *comm};
    *comm = NULL;
    if (a == NULL) return;
    if (pthread_create(&n->aborts[n->abort_count], NULL, abort_comm, a) == 0)
        n->abort_count++;
    else
        free(a);
}

bool nccl_unload(struct nccl *n)
{
    struct timespec until;
    bool ended = true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += NCCL_ABORT_S;
    for (int i = 0; i < n->abort_count; i++)
        ended = pthread_timedjoin_np(n->aborts[i], NULL, &until) == 0 && ended;
    if (!ended) return false;
    if (n->lib) dlclose(n->lib);
    *n = (struct nccl){0};
    return true;
}

status nccl_make_id(const struct nccl *n, unsigned char id[128])
{
    ncclUniqueId unique;
    static_assert(sizeof unique == 128, "NCCL's id");
    TRY_NCCL(n, "id", n->ncclGetUniqueId_(&unique));
    memcpy(id, &unique, sizeof unique);
    return STATUS_OK;
}

status nccl_init(const struct nccl *n, ncclComm_t *comm, const unsigned char id[128], int ranks, int rank,
                 const ncclConfig_t *config)
{
    ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    memcpy(&unique, id, sizeof unique);
    if (config) own = *config;
    TRY_NCCL(n, "communicator", n->ncclCommInitRankConfig_(comm, ranks, unique, rank, &own));
    return STATUS_OK;
}

status nccl_failed(const struct nccl *n, const char *what, ncclResult_t err)
{
    return FAIL(STATUS_COMM, "NCCL, %s: %s (%.200s)", what, n->ncclGetErrorString_(err),
                n->ncclGetLastError_(NULL));
}
