/* current_linears: the linears of a model whose GEMMs read operands of current scaling: rounded to codes with scales of
 * their own (tensor/block_format.h) when the GEMM is called. There is no state. A part of struct params; parallel/fp8.h
 * claims them, nn/linear.c makes the operands. */
#ifndef INGOT_TENSOR_CURRENT_LINEARS_H
#define INGOT_TENSOR_CURRENT_LINEARS_H
#include "tensor/block_format.h"
#include "tensor/dtype.h"

struct current_linears {
    enum block_format x, w, dy; /* of inputs, weights, gradients of outputs */
    bool square;                /* blocks of weights are squares: both directions have the same codes */
    bool hadamard;              /* operands of weight gradients are rotated along tokens */
    bool stochastic;            /* gradients are rounded at random */
    bool wgrad_bf16;            /* GEMMs of weight gradients read the tensors themselves */
    double keep;                /* share of the blocks, the last ones, that stay in bf16, and with them all linears
                                   outside of blocks; 0: none */
    uint64_t seed;              /* of random rounding */
    int count;                  /* claimed linears, param.current; 0: the model computes in another precision */
    bf16 *a, *b;                /* operands of the GEMM that runs, of all linears; `a_count`, `b_count` elements. Codes
                                   take a half of that at most, and their scales lie behind them */
    int64_t a_count, b_count;
    float *scale;               /* quantize_blocks_args.tensor of a from [3] on, of b from [7] on */
};
#endif
