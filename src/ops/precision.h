/* The meaning of each train.precision, for all modules. One switch without a default: a new precision must be handled
 * here. */
#ifndef INGOT_OPS_PRECISION_H
#define INGOT_OPS_PRECISION_H
#include "spec/spec.h"
#include "tensor/operand.h"

struct precision_types {
    dtype act;              /* activations, and the weights that GEMMs read */
    dtype master, grad;     /* what the optimizer updates; what it reads */
    bool split;             /* split master weights: bf16 and a 16-bit residual (ops/rounding.h) */
    bool tf32;              /* F32 GEMMs round their operands to TF32 (GPU) */
    enum recipe recipe;     /* how GEMM operands are made from tensors (nn/linear.h) */
};

static inline struct precision_types precision_of(enum precision precision)
{
    struct precision_types t = {DTYPE_F32, DTYPE_F32, DTYPE_F32, false, false, RECIPE_PLAIN};
    switch (precision) {
    case PRECISION_FP32: break;
    case PRECISION_TF32: t.tf32 = true; break;
    case PRECISION_BF16: t.act = DTYPE_BF16, t.split = true; break;
    }
    return t;
}
#endif
