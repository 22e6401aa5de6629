/* The sum of products that Hopper's FP8 tensor core forms (wgmma.mma_async, m64nNk32, f32 accumulators), as a model.
 *
 * It is not an f32 sum: the accumulator has 14 significant bits. One instruction adds 32 products to it:
 *   1. The exponent of a product is the sum of its factors' exponents (f8_split). E is the largest of the products that
 *      are not zero, and of the accumulator.
 *   2. Every term is truncated toward zero to a multiple of 2^(E - 13). The sum of these is exact.
 *   3. The sum is truncated toward zero to 14 significant bits. A zero is +0.
 * NaN in, or Inf - Inf, or Inf * 0: 0x7FFFFFFF.
 *
 * Source: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv 2512.07004. gpu_fp8_dot.c says how often
 * a GPU's GEMMs have its bits. mma.sync on the same GPU is another unit with other bits. */
#ifndef INGOT_TESTS_OPS_F8_DOT_H
#define INGOT_TESTS_OPS_F8_DOT_H
#include "tensor/f8.h"

enum { F8_DOT_STEP = 32 };      /* products that one instruction adds */

struct f8_dot {
    struct f8_format format_a, format_b;
    const uint8_t *a, *b;       /* [k] codes, contiguous */
    int64_t k;                  /* what lacks to a multiple of F8_DOT_STEP counts as zeros */
    int64_t promote;            /* after so many products (a multiple of F8_DOT_STEP) the accumulator is added to an f32
                                   register, by an IEEE addition, and starts anew; 0: never */
};
float f8_dot(const struct f8_dot *d);
/* rms of the accumulation error over that of the result, for normal numbers and sums of `products` in one accumulator:
 * simulated with this model (test_f8_dot.c). */
double f8_dot_rms(int64_t products);
#endif
