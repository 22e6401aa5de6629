/* embed: x = table[token] (+ positions[position]). Each tensor-parallel rank holds a shard of the vocabulary, from id
 * `first` on, and adds zeros for the other ids. x is then a partial sum (sequence_parallel.h); the first rank adds
 * the positions.
 *
 *   tensor  shape   dtype  memory           backward
 *   table   [V, D]  dt     param            dtable += rows of dx at their tokens, A, in token order
 *   pos     [P, D]  dt     param, optional  dpos += rows of dx at their positions, A, in token order
 *   x       [N, D]  dt     act, by caller   dx read */
#ifndef INGOT_NN_EMBED_H
#define INGOT_NN_EMBED_H
#include "data/load/loader.h"
#include "parallel/exec.h"

struct embed {
    int64_t vocab, first, ids;  /* rows of this rank's shard, its first id, ids of the full table */
    int64_t d, positions;
    int table, pos, adds;       /* pos: -1: none; adds: this rank adds the positions in forward */
};

void embed_init(struct embed *m, struct params *p, const struct model_spec *spec);
status embed_fwd(const struct embed *m, const struct batch *b, struct tensor x, const struct exec *r) WARN_UNUSED;
status embed_bwd(const struct embed *m, const struct batch *b, struct tensor dx, const struct exec *r) WARN_UNUSED;
#endif
