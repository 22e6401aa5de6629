/* The CUDA op set: F32 and BF16 on one stream of a GPU. Every slot is filled. Results are equal from run to run: no
 * float atomics, fixed reduction orders, one algorithm per GEMM for the whole run.
 *
 * ops_cuda() fills the table and, with a stream, opens the libraries on it. Without a stream, only the planner can
 * use the table. The caller allocates the workspace (ops.workspace bytes of device memory) and passes it to
 * ops_cuda_workspace before the first op. All ops of the stream share it, one after the other. */
#ifndef INGOT_OPS_CUDA_OPS_CUDA_H
#define INGOT_OPS_CUDA_OPS_CUDA_H
#include "dev/dev.h"
#include "ops/ops.h"

enum cuda_math { CUDA_MATH_FP32, CUDA_MATH_TF32 };  /* for F32 GEMMs */
enum cuda_attention { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_CUDNN, CUDA_ATTENTION_OWN, CUDA_ATTENTION_REFERENCE };
struct cuda_options {
    enum cuda_math math;
    enum cuda_attention attention;
    bool attention_atomic;      /* cuDNN's backward may use atomic adds: faster, but runs differ in their last bits */
    bool delta_portable;        /* use the portable delta rule kernels on Hopper too: for tests */
    const char *gemm_cache;     /* file of chosen algorithms, read and extended; NULL: choose again, store nothing */
    int sm;                     /* without a stream: the compute capability that the traits are for; 0: any, and the
                                   largest attention scratch */
    int gemm_candidates;        /* algorithms timed per GEMM; 0: as many as pay off; 1: the library's first, untimed,
                                   no file */
    int gemm_sms;               /* multiprocessors that GEMMs of the library are made for; 0: all of the GPU */
};

status ops_cuda(struct ops *o, struct stream *s, const struct cuda_options *options) WARN_UNUSED;
void ops_cuda_workspace(struct stream *s, void *workspace, size_t bytes);
void ops_cuda_close(struct stream *s);

/* The algorithms chosen so far for this stream's GEMMs, as lines of text (ops/gemm_choice.h) for checkpoints. The
 * caller frees it; NULL: out of memory. A resumed run is bit-identical only with the same algorithms. Loaded
 * algorithms that have not run since are included. */
char *cuda_gemm_choices_text(dev_stream s);
/* Loads such lines. Call it before the first GEMM of its shape; they take precedence over the cache file. Lines of
 * another GPU or library version are ignored with one warning. STATUS_CKPT: damaged lines. */
status cuda_gemm_choices_load(dev_stream s, const char *text) WARN_UNUSED;
/* Describes the algorithm of a GEMM that has run: "id 66 tile 128x256 stages 35 split 1 cluster 3". Returns `text`. */
const char *cuda_gemm_text(dev_stream s, const struct gemm_args *g, char *text, size_t size);
#endif
