/* NCCL, loaded on demand: a table of its entry points. */
#ifndef INGOT_COMM_GPU_CUDA_NCCL_H
#define INGOT_COMM_GPU_CUDA_NCCL_H
#include "base/status.h"
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>

#define NCCL_CALLS(X)                                                                                                  \
    X(ncclGetVersion) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommDestroy) X(ncclCommAbort) X(ncclAllGather) X(ncclAllReduce) \
    X(ncclReduceScatter) X(ncclBroadcast) X(ncclSend) X(ncclRecv) X(ncclGroupStart) X(ncclGroupEnd) X(ncclGetErrorString) X(ncclGetLastError)
/* Of newer versions: NULL if the library lacks them. */
#define NCCL_NEWER(X) X(ncclAlltoAll) X(ncclMemAlloc) X(ncclMemFree) X(ncclCommWindowRegister) X(ncclCommWindowDeregister)
enum { NCCL_ABORTS_MAX = 64 };
struct nccl {
    void *lib;
    int version;
    pthread_t aborts[NCCL_ABORTS_MAX];
    int abort_count;
#define X(f) __typeof__(&f) f##_;
    NCCL_CALLS(X)
    NCCL_NEWER(X)
#undef X
};

/* STATUS_DEVICE: missing, or too old. */
status nccl_load(struct nccl *n) WARN_UNUSED;
/* Stops what is in flight on *comm, and sets it to NULL; the others of the rank are aborted too. On a thread of its own: NCCL
 * stops its kernels at once, and then waits until no graph refers to the communicator (ncclCommAbort). */
void nccl_abort(struct nccl *n, ncclComm_t *comm);
/* After the graphs are closed. False: NCCL still waits after NCCL_ABORT_S, and *n and the library must stay. */
#define NCCL_ABORT_S 2
bool nccl_unload(struct nccl *n);
/* A communicator of `ranks`; config NULL: NCCL's defaults. */
status nccl_init(const struct nccl *n, ncclComm_t *comm, const unsigned char id[128], int ranks, int rank, const ncclConfig_t *config) WARN_UNUSED;
status nccl_make_id(const struct nccl *n, unsigned char id[128]) WARN_UNUSED;
/* STATUS_COMM with `what`, NCCL's text and its last error. */
status nccl_failed(const struct nccl *n, const char *what, ncclResult_t err);
#define TRY_NCCL(n, what, call)                                                                                        \
    do {                                                                                                               \
        ncclResult_t try_nccl_ = (call);                                                                               \
        if (try_nccl_ != ncclSuccess) return nccl_failed(n, what, try_nccl_);                                          \
    } while (0)
#endif
