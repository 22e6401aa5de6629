/* attn_context: the attention core of a layer, from q, k and v to o. With context parallelism, by
 * parallel.context_kind:
 *
 *   all_gather   this rank's queries attend to the keys and values of all ranks (nn/context_rows.h)
 *   ring         this rank's queries attend to the keys and values of one rank after the other (Ring Attention,
 *                arXiv:2310.01889): in step k to those of the rank k before it. A step that no window reaches is
 *                skipped
 *   ulysses      this rank computes its part of the heads for all rows (nn/context_heads.h) */
#ifndef INGOT_NN_ATTN_CONTEXT_H
#define INGOT_NN_ATTN_CONTEXT_H
#include "nn/attn.h"

void attn_context_layout(const struct attn *m, struct attn_saved *s, const struct layout *l);
/* The largest shape that attention computes in one call: it determines the op set's scratch. */
struct attn_shape attn_context_shape(const struct attn *m, const struct layout *l);
/* Fills s->o and s->lse. */
status attn_context_fwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                        const struct exec *r) WARN_UNUSED;
/* Call before s->do_ is computed: all_gather begins to fetch keys and values meanwhile. */
status attn_context_bwd_begin(const struct attn *m, struct attn_saved *s, const struct batch *b,
                              const struct exec *r) WARN_UNUSED;
/* Computes the q, k and v columns of s->dqkv from s->do_. *rotated: the backward of `rope` is included. */
status attn_context_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b, const struct rotation *rope,
                        bool *rotated, const struct exec *r) WARN_UNUSED;
#endif
