/* The CUDA op set: F32 and BF16 on one GPU's stream. Every slot is filled; results are equal from run to run (no float atomics, fixed
 * orders of reduction, one algorithm per GEMM for the whole run).
 *
 * ops_cuda() fills the table and, with a stream, opens the libraries on it. Without a stream the table serves the planner alone. The workspace (ops.workspace bytes, device memory, laid out by the caller) is handed over before the first
 * op; all ops of the stream share it, one after the other. */
#ifndef INGOT_OPS_CUDA_OPS_CUDA_H
#define INGOT_OPS_CUDA_OPS_CUDA_H
#include "dev/dev.h"
#include "ops/ops.h"

enum cuda_math { CUDA_MATH_FP32, CUDA_MATH_TF32 };  /* of GEMMs of F32 */
enum cuda_attention { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_CUDNN, CUDA_ATTENTION_OWN, CUDA_ATTENTION_REFERENCE };
struct cuda_options {
    enum cuda_math math;
    enum cuda_attention attention;
    bool attention_atomic;      /* cuDNN's backward may add with atomics: faster, but runs differ in their last bits */
    bool delta_portable;        /* the delta rule by the kernels of every GPU, also where Hopper has its own: for tests */
    const char *gemm_cache;     /* file of chosen algorithms, read and added to; NULL: choose anew, keep nothing */
    int sm;                     /* without a stream: the GPU that the traits answer for; 0: any, and attention's scratch is the largest */
    int gemm_candidates;        /* algorithms that are timed for each GEMM; 0: as many as pay; 1: the library's first, untimed, no file */
};

status ops_cuda(struct ops *o, struct stream *s, const struct cuda_options *options) WARN_UNUSED;
void ops_cuda_workspace(struct stream *s, void *workspace, size_t bytes);
void ops_cuda_close(struct stream *s);

/* The algorithms chosen for this stream's GEMMs so far, as lines of text (ops/gemm_choice.h; caller frees; NULL: no memory), for
 * checkpoints: a resumed run is equal bit for bit only with the same ones. What was loaded and has not run since is among them. */
char *cuda_gemm_choices_text(dev_stream s);
/* And back: before the first GEMM of its shape, and ahead of the cache file. Lines of another GPU or library version are not used:
 * one warning. STATUS_CKPT: damaged lines. */
status cuda_gemm_choices_load(dev_stream s, const char *text) WARN_UNUSED;
/* For people: the algorithm of a GEMM that has run, "id 66 tile 128x256 stages 35 split 1 cluster 3". Returns `text`. */
const char *cuda_gemm_text(dev_stream s, const struct gemm_args *g, char *text, size_t size);
#endif
