/* The CUDA op set: F32 and BF16 on one GPU's stream. Every slot is filled; results are equal from run to run (no float atomics, fixed
 * orders of reduction, one algorithm per product for the whole run).
 *
 * ops_cuda() fills the table and, with a stream, opens the libraries on it. Without a stream the table serves the planner alone: its
 * traits answer for `sm`. The workspace (ops.workspace bytes, device memory, laid out by the caller) is handed over before the first
 * op; all ops of the stream share it, one after the other. */
#ifndef INGOT_OPS_CUDA_OPS_CUDA_H
#define INGOT_OPS_CUDA_OPS_CUDA_H
#include "dev/dev.h"
#include "ops/ops.h"

enum cuda_math { CUDA_MATH_FP32, CUDA_MATH_TF32 };  /* of products of F32 */
enum cuda_attention { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_CUDNN, CUDA_ATTENTION_OWN, CUDA_ATTENTION_REFERENCE };
struct cuda_options {
    enum cuda_math math;
    enum cuda_attention attention;
    const char *gemm_cache;     /* file of chosen algorithms, read and added to; NULL: choose anew, keep nothing */
};

status ops_cuda(struct ops *o, struct stream *s, const struct cuda_options *options) WARN_UNUSED;
void ops_cuda_workspace(struct stream *s, void *workspace, size_t bytes);
void ops_cuda_close(struct stream *s);

/* The algorithms chosen for this stream's products so far, as lines of text (caller frees; NULL: no memory), and back: before the
 * first product of its shape. Lines of another card or library version are not used. */
char *cuda_gemm_choices_text(struct stream *s);
status cuda_gemm_choices_load(struct stream *s, const char *text) WARN_UNUSED;
#endif
