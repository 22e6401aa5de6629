/* linear_current: makes the operands of RECIPE_CURRENT for the GEMMs of nn/linear: tensors rounded to codes whose
 * scales come from the tensor itself (tensor/current_linears.h). If the set's GEMMs read the format, an operand is
 * codes; else it is the decoded codes in bf16. All linears share the memory: an operand is valid until the next GEMM's
 * operands are made. */
#ifndef INGOT_NN_LINEAR_CURRENT_H
#define INGOT_NN_LINEAR_CURRENT_H
#include "nn/linear.h"

/* The operand that linear_current_make will fill for a GEMM of so many rows: its memory and form. */
struct operand linear_current_form(const struct linear *m, enum gemm_pass pass, enum fp8_tensor what, int64_t rows,
                                   const struct exec *r);
/* Rounds t, which is x, W or dy, to codes in blocks along the k of the GEMM. */
status linear_current_make(const struct linear *m, enum gemm_pass pass, enum fp8_tensor what, struct tensor t,
                           int64_t rows, struct operand *out, const struct exec *r) WARN_UNUSED;
/* Makes both operands of forward or dgrad. `out` gets that of t; that of W is what linear_current_form returns. */
status linear_current_operands(const struct linear *m, enum gemm_pass pass, struct tensor t, struct operand *out,
                               const struct exec *r) WARN_UNUSED;
#endif
