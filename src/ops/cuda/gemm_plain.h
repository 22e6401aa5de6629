/* GEMMs of our own, for what the library does not offer: every shape, every alignment, sums in f32 in ascending order of k,
 * rounded once. Right, not fast. */
#ifndef INGOT_OPS_CUDA_GEMM_PLAIN_H
#define INGOT_OPS_CUDA_GEMM_PLAIN_H
#include "ops/ops.h"

/* The whole contract of ops.gemm, and ACCUM_ADD also with c in bf16. */
status gemm_plain(const struct gemm_args *a, dev_stream s) WARN_UNUSED;
/* c = bias, or zeros; with ACCUM_ADD c += bias. What a GEMM with ACCUM_ADD then adds to: in bf16 c holds bias exactly, so the
 * result is still rounded once. */
status gemm_plain_bias(const struct gemm_args *a, dev_stream s) WARN_UNUSED;
#endif
