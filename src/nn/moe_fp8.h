/* moe_fp8: the operands of a mixture's expert GEMMs. With RECIPE_FP8 those of `up` and `down` read codes, once
 * params.fp8.use says so, with one scale for the tensors of all experts of a layer. X and DY of a matrix are as those
 * of a linear (tensor/fp8_linears.h):
 *
 *   tensor    codes        made by                          read by
 *   y         [N, D]       quantize                         up's forward and wgrad, gathered
 *   m         [S, I]       expert_act_fwd                   down's forward
 *   dout      [N, D]       quantize                         down's dgrad and wgrad, gathered
 *   dup       [S, 2I]      expert_act_bwd                   up's dgrad
 *   m, dup    transposed   expert_act_bwd                   wgrad (ops_moe.h: in panels)
 *
 * All is scratch: backward makes the codes of y and m again, from what it keeps or computes in any case. A matrix that
 * computes in bf16 reads the values, and the ops measure amax alone. */
#ifndef INGOT_NN_MOE_FP8_H
#define INGOT_NN_MOE_FP8_H
#include "parallel/exec.h"

struct moe;
struct moe_saved;
struct moe_codes { void *y, *dout, *m, *dup, *dup_t; };
/* Input of this rank's experts: its own tokens, or rows that have arrived. */
struct expert_rows {
    struct tensor y, dout;      /* dout: in backward */
    const void *weight;
    void *dweight;
    const int32_t *source, *offsets, *counts;
    const int32_t *count;       /* rows of y and dout that exist, as in combine_args; NULL: all */
    int64_t rows, top_k, experts;
};

/* `tokens`, `sorted`: number of rows of y and of s->sorted. */
void moe_codes_layout(const struct moe *m, struct moe_saved *s, int64_t tokens, int64_t sorted, const struct layout *l);
/* The weight operand of the GEMMs of `row`, which is m->up or m->down. */
struct operand moe_matrices(int row, enum gemm_pass pass, const struct exec *r);
/* Their operand that has a row per token: t = FP8_X: y, for up; FP8_DY: dout, for down. */
status moe_tokens(const struct moe *m, const struct moe_saved *s, enum fp8_tensor t, const struct expert_rows *x,
                  struct operand *out, const struct exec *r) WARN_UNUSED;
/* Their operand that has sorted rows: t = FP8_X: m, for down; FP8_DY: dup, for up. */
struct operand moe_sorted(const struct moe *m, const struct moe_saved *s, enum fp8_tensor t, const struct exec *r);
/* The FP8 forms of the activation that an op writes: of m in forward; in backward of dup, and of m for wgrad alone. */
struct quantized moe_act_codes(const struct moe *m, const struct moe_saved *s, const struct exec *r);
struct quantized moe_dup_codes(const struct moe *m, const struct moe_saved *s, const struct exec *r);
struct quantized moe_act_codes_t(const struct moe *m, const struct moe_saved *s, const struct exec *r);
/* The operands of wgrad where moe_wgrad_reads, else it reads the values. Call it after moe_tokens for dout and the
 * backward of the activation. */
bool moe_wgrad_reads(int row, const struct exec *r);
status moe_wgrad(const struct moe *m, const struct moe_saved *s, int row, const struct expert_rows *x,
                 struct operand *dy, struct operand *in, const struct exec *r) WARN_UNUSED;
#endif
