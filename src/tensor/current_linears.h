/* current_linears: the linears of a model whose GEMMs read operands of current scaling: rounded to codes with scales of
 * their own (tensor/block_format.h) when the GEMM is called. There is no state. A part of struct params; parallel/fp8.h
 * claims them, nn/linear.c makes the operands. */
#ifndef INGOT_TENSOR_CURRENT_LINEARS_H
#define INGOT_TENSOR_CURRENT_LINEARS_H
#include "tensor/block_format.h"
#include "tensor/dtype.h"

struct current_linears {
    enum block_format x, w, dy; /* formats of inputs, of weights, and of gradients of outputs */
    bool square;                /* blocks of weights are squares, so that both GEMM directions read the same codes */
    bool hadamard;              /* a Hadamard transform rotates the operands of weight gradients along tokens */
    bool stochastic;            /* gradients are rounded stochastically */
    bool wgrad_bf16;            /* GEMMs of weight gradients read the tensors themselves */
    double keep;                /* fraction of the blocks, the last ones, that stay in bf16, and with them all linears
                                   outside of blocks; 0: none */
    uint64_t seed;              /* seed of stochastic rounding */
    int count;                  /* number of linears with param.current; 0: the model computes in another precision */
    bf16 *a, *b;                /* operands of the GEMM in progress, shared by all linears: `a_count` and `b_count`
                                   elements. Codes take at most half of that; their scales follow them */
    int64_t a_count, b_count;
    float *scale;               /* quantize_blocks_args.tensor: of a from [3] on, of b from [7] on */
};
#endif
