/* attn_context: the attention core of a layer, from q, k and v to o. With context parallelism, by
 * parallel.context_kind:
 *
 *   all_gather   own queries; keys and values of all ranks (nn/context_rows.h)
 *   ring         own queries; keys and values of one rank after the other (Ring Attention, arXiv:2310.01889):
 *                step k takes in those of the rank k before it; a step that no window reaches is left out
 *   ulysses      queries, keys, values and outputs of all rows, for this rank's part of the heads
 *                (nn/context_heads.h) */
#ifndef INGOT_NN_ATTN_CONTEXT_H
#define INGOT_NN_ATTN_CONTEXT_H
#include "nn/attn.h"

void attn_context_lay(const struct attn *m, struct attn_saved *s, const struct lay *l);
/* What attention computes at once, for the op set's scratch. */
struct attn_shape attn_context_shape(const struct attn *m, const struct lay *l);
/* Fills s->o and s->lse. */
status attn_context_fwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                        const struct exec *r) WARN_UNUSED;
/* Before s->do_ is computed: all_gather then begins to fetch keys and values, beside that. */
status attn_context_bwd_begin(const struct attn *m, struct attn_saved *s, const struct batch *b,
                              const struct exec *r) WARN_UNUSED;
/* From s->do_ to q, k and v of s->dqkv. *rotated: `rope` has been undone. */
status attn_context_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b, const struct rotation *rope,
                        bool *rotated, const struct exec *r) WARN_UNUSED;
#endif
