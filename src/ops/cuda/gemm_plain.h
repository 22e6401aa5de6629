/* Custom GEMM kernels for what the library does not offer: every shape and alignment, f32 sums in ascending order of
 * k, rounded once. FP8 codes are decoded exactly. Correct, not fast. */
#ifndef INGOT_OPS_CUDA_GEMM_PLAIN_H
#define INGOT_OPS_CUDA_GEMM_PLAIN_H
#include "ops/ops.h"

/* Implements all of ops.gemm, and also ACCUM_ADD with c in bf16. */
status gemm_plain(const struct gemm_args *a, dev_stream s) WARN_UNUSED;
/* c = bias, or zeros; with ACCUM_ADD c += bias. A GEMM with ACCUM_ADD then adds to c. bf16 c holds the bias exactly,
 * so the result is still rounded once. */
status gemm_plain_bias(const struct gemm_args *a, dev_stream s) WARN_UNUSED;
#endif
