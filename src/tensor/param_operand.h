/* A weight as operand b of a linear's GEMMs: its values, or FP8 codes. */
#ifndef INGOT_TENSOR_PARAM_OPERAND_H
#define INGOT_TENSOR_PARAM_OPERAND_H
#include "tensor/params.h"

/* A weight [out, in] as operand b of a linear's GEMMs: transposed for y = x W^T, as it is stored for dx = dy W. */
static inline struct operand params_operand(const struct params *p, int row, enum gemm_pass pass)
{
    return operand_at(params_weight(p, row), p->dt, pass == GEMM_FWD);
}
/* The codes of a row with param.fp8, or their transpose. ZeRO 3: in the place of its values, one behind the other
 * (parallel/zero_codes.h). */
static inline void *params_codes(const struct params *p, int row, bool transposed)
{
    const struct param *r = &p->rows[row];
    const enum derived which = transposed ? DERIVED_F8_T : DERIVED_F8;
    if (p->zero < 3) return (char *)p->derived[which].data + r->derived_at[which];
    char *codes = (char *)params_weight(p, row);
    return codes && transposed ? codes + params_room(r) : codes;
}
/* The weight in FP8 as operand b: the codes for forward, their transpose for dgrad. */
static inline struct operand params_operand_fp8(const struct params *p, int row, enum gemm_pass pass)
{
    return operand_codes(params_codes(p, row, pass != GEMM_FWD), DTYPE_F8_E4M3,
                         fp8_scale_inv(&p->fp8, FP8_W, p->rows[row].fp8), true);
}
#endif
