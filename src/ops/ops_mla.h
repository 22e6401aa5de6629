/* Ops of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), except GEMMs, norms and attention. Included by
 * ops.h, whose conventions apply.
 *
 * Heads of q and k are [nope | 2 half] elements. The first part has no position. In the tail, RoPE rotates pair (2i,
 * 2i+1) by the angle whose cos and sin are in the tables at [position, i] (interleaved layout; rope_fwd pairs i and
 * i+half). All k heads share one tail. */
#ifndef INGOT_OPS_OPS_MLA_H
#define INGOT_OPS_OPS_MLA_H
#include "tensor/dtype.h"

/* k_h = [k_nope_h | RoPE(k_rope)]; rotates the tails of q in place. */
struct mla_rope_fwd_args {
    void *q;                    /* [rows, heads x (nope + 2 half)] dt, q_stride: in place; NULL: only keys */
    const void *k_nope;         /* [rows, heads x nope] dt, k_nope_stride; not read when nope is 0 */
    const void *k_rope;         /* [rows, 2 half] dt, k_rope_stride */
    void *k;                    /* [rows, heads x (nope + 2 half)] dt contiguous, =; NULL: only queries */
    int64_t q_stride, k_nope_stride, k_rope_stride;
    const int32_t *positions;   /* [rows] */
    const void *cos, *sin;      /* [pos_count, half] A */
    int64_t rows, heads, nope, half, pos_count;
    dtype dt;
};
/* Backward: rotates the tails of dq back in place; dk_nope = the first parts of dk; dk_rope = the sum over heads of
 * dk's tails, rotated back and rounded once. */
struct mla_rope_bwd_args {
    void *dq;                   /* as q, dq_stride; NULL: only keys */
    const void *dk;             /* [rows, heads x (nope + 2 half)] dt contiguous; NULL: only queries */
    void *dk_nope, *dk_rope;    /* dt =; strides below; must not alias dk */
    int64_t dq_stride, dk_nope_stride, dk_rope_stride;
    const int32_t *positions;
    const void *cos, *sin;
    int64_t rows, heads, nope, half, pos_count;
    dtype dt;
};
#endif
