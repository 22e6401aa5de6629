/* quantized: the FP8 form of a tensor x [rows, n], in addition to its values or instead of them.
 *
 *   code = round(x * scale)    nearest even, saturating (tensor/f8.h)
 *   value = code * scale_inv   exact: the scale is a power of two
 *
 * One scale per tensor, so the transposed copy has the same codes. Codes are made from x as the tensor's dtype holds
 * it, in bf16 rounded to bf16: an op that writes codes gives the same bits as the op without them and then `quantize`.
 *
 * With codes, n is a multiple of 16, and the arrays of codes begin at multiples of 16 bytes. Neither rule applies when
 * only amax is recorded. */
#ifndef INGOT_TENSOR_QUANTIZED_H
#define INGOT_TENSOR_QUANTIZED_H
#include "tensor/dtype.h"
#include <stdbool.h>

struct quantized {
    void *codes;                /* [rows, n] dt; NULL: none */
    void *codes_t;              /* [n, quantized_ld(rows)] dt: transpose; columns from `rows` on are 0; NULL: none */
    const float *scale, *scale_inv; /* one value each, in the set's memory */
    float *amax;                /* = max(itself, |x| of all elements); NaN counts as the largest; NULL: not recorded */
    dtype dt;                   /* F8_E4M3 or F8_E5M2 */
    bool only;                  /* an op that writes this tensor may skip its values; their memory is valid */
};

/* Floats from one scale_inv to the next in an array of them: cuBLASLt refuses scales that are not at multiples of 16
 * bytes (measured on an H200, cuBLASLt 13). */
enum { FP8_SCALE_STRIDE = 4 };
/* Elements from row to row of the transpose: a GEMM reads multiples of 16 along k. */
static inline int64_t quantized_ld(int64_t rows) { return (rows + 15) / 16 * 16; }
static inline bool quantized_any(const struct quantized *q) { return q->codes || q->codes_t; }
/* True if codes or amax are wanted. */
static inline bool quantized_asked(const struct quantized *q) { return quantized_any(q) || q->amax; }
#endif
