/* embed: x = table[token] (+ positions[position]). Of several ranks each has the rows of vocab ids, from `first` on, and adds zeros for
 * the others: x is a part of a sum (sequence_parallel.h), to which the first rank adds the positions.
 *
 *   tensor  shape   dtype  lives            backward
 *   table   [V, D]  dt     param            dtable += rows of dx at their tokens, A, in token order
 *   pos     [P, D]  dt     param, optional  dpos += likewise
 *   x       [N, D]  dt     act, by caller   dx read */
#ifndef INGOT_NN_EMBED_H
#define INGOT_NN_EMBED_H
#include "data/load/loader.h"
#include "parallel/exec.h"

struct embed {
    int64_t vocab, first, ids;  /* rows that are here, of which id on, of how many */
    int64_t d, positions;
    int table, pos, adds;       /* pos = -1: none; adds: forward adds positions here */
};

void embed_init(struct embed *m, struct params *p, const struct model_spec *spec);
status embed_fwd(const struct embed *m, const struct batch *b, struct tensor x, const struct exec *r) WARN_UNUSED;
status embed_bwd(const struct embed *m, const struct batch *b, struct tensor dx, const struct exec *r) WARN_UNUSED;
#endif
