/* operand: one input matrix of a GEMM: an array of one dtype; codes with one scale; or codes with a scale per block.
 *
 * Another format of blocks is a value of enum block_format (tensor/block_format.h), no new kind of scales. A new kind
 * is a value of enum scales: every `switch (operand.scales)` then fails to compile until it has a case: here, in
 * ops/ops.h and ops/ops_moe.h. ops/cuda/gemm_cublaslt.c asks by ifs: `grep SCALES_`. An operand never owns memory. */
#ifndef INGOT_TENSOR_OPERAND_H
#define INGOT_TENSOR_OPERAND_H
#include "base/status.h"
#include "tensor/block_format.h"
#include "tensor/tensor.h"
#include <stdbool.h>

enum scales {
    SCALES_NONE,                /* `data` holds the values; scale is NULL */
    SCALES_TENSOR,              /* `data` holds FP8 codes; value = code * scale[0] (quantized.scale_inv) */
    SCALES_BLOCKS               /* `data` holds codes of `format`; value = code * block scale * scale[0] (NULL: 1) */
};
struct operand {
    const void *data;           /* dt, row-major */
    dtype dt;
    enum scales scales;
    const float *scale;
    bool trans;                 /* memory holds the transpose of the matrix that the GEMM reads */
    const void *blocks;         /* SCALES_BLOCKS: the scales of the blocks along the GEMM's k (tensor/block_format.h) */
    enum block_format format;   /* dt is U8 for E2M1 */
    bool square;
};

/* How the operands of a model's GEMMs are made from tensors. ops/precision.h selects the recipe, nn/linear.c applies
 * it. */
enum recipe {
    RECIPE_PLAIN,               /* an operand is the tensor itself */
    RECIPE_FP8,                 /* codes with one scale per tensor: tensor/quantized.h */
    RECIPE_CURRENT              /* codes with scales of their own: tensor/current_linears.h */
};
/* The three GEMMs of a linear: y = x W^T, dx = dy W, dW = dy^T x. */
enum gemm_pass { GEMM_FWD, GEMM_DGRAD, GEMM_WGRAD };

static inline struct operand operand_at(const void *data, dtype dt, bool trans)
{
    struct operand o = {data, dt, SCALES_NONE, NULL, trans, NULL, BLOCKS_E4M3, false};
    return o;
}
static inline struct operand operand_of(struct tensor t) { return operand_at(t.data, t.dt, false); }
/* FP8 codes with one scale: SCALES_TENSOR. */
static inline struct operand operand_codes(const void *data, dtype dt, const float *scale, bool trans)
{
    struct operand o = operand_at(data, dt, trans);
    o.scales = SCALES_TENSOR;
    o.scale = scale;
    return o;
}
static inline struct operand operand_trans(struct operand o)
{
    o.trans = !o.trans;
    return o;
}
/* The operand that begins `elements` later. */
static inline struct operand operand_from(struct operand o, int64_t elements)
{
    switch (o.scales) {
    case SCALES_NONE:
    case SCALES_TENSOR: break; /* one scale for all elements */
    case SCALES_BLOCKS: CHECK(false, "a part of an operand with scales of blocks");
    }
    o.data = (const char *)o.data + (size_t)elements * dtype_bytes(o.dt);
    return o;
}
/* The dtype of both operands, for a set without support for scales. Every op with operands calls this before it reads
 * their data. A new kind of scales needs a case here, or a set that handles it first. */
static inline dtype operands_dt(struct operand a, struct operand b)
{
    switch (a.scales) {
    case SCALES_NONE: break;
    case SCALES_TENSOR:
    case SCALES_BLOCKS: CHECK(false, "operands with scales in a GEMM that reads none");
    }
    CHECK(a.dt == b.dt && a.scales == b.scales, "operands of different types: %s and %s", dtype_name(a.dt),
          dtype_name(b.dt));
    return a.dt;
}
#endif
