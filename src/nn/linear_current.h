/* linear_current: operands of RECIPE_CURRENT for the GEMMs of nn/linear: tensors rounded to codes whose scales come
 * from themselves (tensor/current_linears.h). A set whose GEMMs read the format gets codes, any other their values in
 * bf16. All linears share the memory: an operand is valid until the next ones of GEMMs are made. */
#ifndef INGOT_NN_LINEAR_CURRENT_H
#define INGOT_NN_LINEAR_CURRENT_H
#include "nn/linear.h"

/* Where linear_current_make puts an operand of a GEMM of so many rows, and in which form. */
struct operand linear_current_form(const struct linear *m, enum gemm_pass pass, enum fp8_tensor what, int64_t rows,
                                   const struct exec *r);
/* Rounds t, which is x, W or dy, to codes in blocks along the k of the GEMM. */
status linear_current_make(const struct linear *m, enum gemm_pass pass, enum fp8_tensor what, struct tensor t,
                           int64_t rows, struct operand *out, const struct exec *r) WARN_UNUSED;
/* Both operands of forward or dgrad: that of t in `out`; that of W is linear_current_form's. */
status linear_current_operands(const struct linear *m, enum gemm_pass pass, struct tensor t, struct operand *out,
                               const struct exec *r) WARN_UNUSED;
#endif
