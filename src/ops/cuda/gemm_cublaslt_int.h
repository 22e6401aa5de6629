/* GEMMs by cuBLASLt: declarations shared by gemm_cublaslt.c (the op and its table) and gemm_cublaslt_search.c
 * (algorithm search). */
#ifndef INGOT_OPS_CUDA_GEMM_CUBLASLT_INT_H
#define INGOT_OPS_CUDA_GEMM_CUBLASLT_INT_H
#include "ops/cuda/set.h"
#include "ops/gemm_choice.h"
#include "ops/cuda/libs.h"

enum {
    GEMM_WORKSPACE = 32 << 20,  /* bytes of the set's workspace that an algorithm may use: enough on Hopper */
    GEMM_CANDIDATES = 16
};

/* One GEMM, ready to run; the table maps a key to it. */
struct gemm_entry {
    bool taken;                 /* this slot of the table is used */
    struct gemm_choice choice;
    cublasLtMatmulDesc_t op;    /* cuBLASLt descriptors: its A is our b */
    cublasLtMatrixLayout_t la, lb, lc;
    cublasLtMatmulAlgo_t algo;
};

struct gemm_choices {
    cublasLtHandle_t lt;
    struct gemm_place here;
    struct gemm_entry *table;   /* open addressing; a power of two, at most half full */
    int capacity, count;
    struct gemm_choice_list cached;     /* the contents of the cache file at start */
    bool unkept;                /* the cache file cannot be written; a warning was logged */
    struct gemm_choice_list recorded;   /* from a checkpoint; preferred over `cached` */
    struct event begin, end;    /* of timed runs; the first search opens them */
    int timed_count;            /* number of searched GEMMs, and seconds spent */
    double timed_s;
};

/* Fills choice.way, algo and time_ns with the fastest algorithm for this GEMM on these operands. Runs the GEMM many
 * times and blocks. Writes c with ACCUM_STORE, only reads it with ACCUM_ADD. */
status cuda_gemm_search(struct gemm_choices *t, struct gemm_entry *e, const struct gemm_args *g,
                        dev_stream s) WARN_UNUSED;
/* Copies the algorithm of the same GEMM with ACCUM_STORE if that has run and the library accepts it; else returns
 * false. */
bool cuda_gemm_inherit(const struct gemm_choices *t, struct gemm_entry *e);
static inline bool gemm_key_fp8(const struct gemm_key *k)
{
    return k->dt == DTYPE_F8_E4M3 || k->dt == DTYPE_F8_E5M2 || k->dt == DTYPE_U8;
}
/* Queues the GEMM once, with result `c` instead of g->c. */
cublasStatus_t cuda_gemm_launch(const struct gemm_choices *t, const struct gemm_entry *e,
                                const cublasLtMatmulAlgo_t *algo, const struct gemm_args *g, void *c, dev_stream s);

/* Returns FAIL with the failed call and cuBLAS's name of the error. */
#define TRY_LT(call)                                                                                                   \
    do {                                                                                                               \
        cublasStatus_t try_lt_ = (call);                                                                               \
        if (__builtin_expect(try_lt_ != CUBLAS_STATUS_SUCCESS, 0))                                                     \
            return FAIL(STATUS_DEVICE, "%s: %s (%s)", #call, cublasLtGetStatusString(try_lt_),                         \
                        cublasLtGetStatusName(try_lt_));                                                               \
    } while (0)
#endif
