/* context_heads: context-parallel ranks (parallel/context.h) exchange rows for heads, by one all-to-all (DeepSpeed
 * Ulysses, arXiv:2309.14509):
 *
 *     [n, W]   this rank's rows, all heads  --- CONTEXT_TO_HEADS -->  [N, W / cp]   all rows, this rank's heads
 *                                            <-- CONTEXT_TO_ROWS ----
 *
 * N = n cp, in the order of sequences. What needs a whole sequence, such as a recurrence, then runs as without context
 * parallelism. Columns consist of parts (q, k, v ...); each part is divided over the ranks separately. */
#ifndef INGOT_NN_CONTEXT_HEADS_H
#define INGOT_NN_CONTEXT_HEADS_H
#include "parallel/context.h"
#include "parallel/exec.h"

struct context_heads {
    struct tensor sent, received; /* [N, W / cp], scratch; not allocated: no exchange */
};
/* One part: `rows` has the columns of all heads from `at` on, `all` has those of this rank's heads from `all_at` on. */
struct context_part {
    struct tensor rows;
    int64_t at;
    struct tensor all;
    int64_t all_at;
    int64_t width;                /* number of columns of all heads */
};
enum context_way { CONTEXT_TO_HEADS, CONTEXT_TO_ROWS };

/* `width`: W of the widest exchange. */
void context_heads_layout(struct context_heads *w, int64_t width, const struct layout *l);
status context_heads_exchange(const struct context_heads *w, const struct context_part *parts, int count,
                              enum context_way way, const struct context_batch *b, const struct exec *r) WARN_UNUSED;
#endif
