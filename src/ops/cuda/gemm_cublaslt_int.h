/* GEMMs by cuBLASLt: what gemm_cublaslt.c (the op, its table) and gemm_cublaslt_search.c (finding an algorithm) share. */
#ifndef INGOT_OPS_CUDA_GEMM_CUBLASLT_INT_H
#define INGOT_OPS_CUDA_GEMM_CUBLASLT_INT_H
#include "ops/cuda/set.h"
#include "ops/gemm_choice.h"
#include "ops/cuda/libs.h"

enum {
    GEMM_WORKSPACE = 32 << 20,  /* of the set's workspace, what an algorithm may ask for: enough on Hopper */
    GEMM_CANDIDATES = 16
};

/* One GEMM, ready to run: a lookup finds it. */
struct gemm_entry {
    bool taken;                 /* the slot of the table is in use */
    struct gemm_choice choice;
    cublasLtMatmulDesc_t op;    /* descriptors in cuBLASLt's terms: its A is our b */
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtMatmulAlgo_t algo;
};

struct gemm_choices {
    cublasLtHandle_t lt;
    struct gemm_place here;
    struct gemm_entry *table;   /* open addressing; a power of two, at most half full */
    int capacity, count;
    struct gemm_choice_list cached;     /* the cache file's, as it was at start */
    bool unkept;                /* and cannot be written, as was said */
    struct gemm_choice_list recorded;   /* a checkpoint's: before the cache file's */
    struct event begin, end;    /* of timed runs; opened by the first search */
    int timed_count;            /* GEMMs that were searched, and what that took */
    double timed_s;
};

/* Fills choice.way, algo and time_ns: the fastest algorithm for this GEMM on these operands. Runs it many times, and waits. c is
 * written with ACCUM_STORE alone; with ACCUM_ADD it is only read. */
status cuda_gemm_search(struct gemm_choices *t, struct gemm_entry *e, const struct gemm_args *g, dev_stream s) WARN_UNUSED;
/* The algorithm of the same GEMM with ACCUM_STORE, where it has run and the library takes it; false: nothing. */
bool cuda_gemm_inherit(const struct gemm_choices *t, struct gemm_entry *e);
/* Queues the GEMM once, into `c` instead of g->c. */
cublasStatus_t cuda_gemm_launch(const struct gemm_choices *t, const struct gemm_entry *e, const cublasLtMatmulAlgo_t *algo,
                                const struct gemm_args *g, void *c, dev_stream s);

/* `return FAIL` with the call and cuBLAS' name for the error. */
#define TRY_LT(call)                                                                                                   \
    do {                                                                                                               \
        cublasStatus_t try_lt_ = (call);                                                                               \
        if (__builtin_expect(try_lt_ != CUBLAS_STATUS_SUCCESS, 0))                                                     \
            return FAIL(STATUS_DEVICE, "%s: %s (%s)", #call, cublasLtGetStatusString(try_lt_), cublasLtGetStatusName(try_lt_)); \
    } while (0)
#endif
