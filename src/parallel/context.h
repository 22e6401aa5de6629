/* context: context parallelism: cp ranks work on the same micro-batch, and each holds T / cp tokens of every sequence.
 *
 * A sequence is 2 cp chunks of C = T / (2 cp) tokens. Rank r holds chunks r and 2 cp - 1 - r (zigzag), so in causal
 * attention every rank has the same work:
 *
 *     cp = 2     chunk   0   1   2   3
 *                rank    0   1   1   0
 *
 * A rank's rows are, for each sequence in order, its first chunk, then its second. Whatever works on rows alone sees a
 * micro-batch of T / cp tokens per sequence; attention reads the keys of all ranks (nn/context_rows.h). */
#ifndef INGOT_PARALLEL_CONTEXT_H
#define INGOT_PARALLEL_CONTEXT_H
#include "data/load/loader.h"
#include "ops/ops.h"
#include "spec/spec.h"

/* batch.context of a rank's part of a micro-batch: its documents. Keys are rows of the whole micro-batch, queries are
 * rows of this rank. Documents of which this rank has no rows are omitted. */
struct context_docs { const struct attn_doc *docs; int64_t count; };
struct context_batch {
    const struct attn_doc *docs; /* [count] */
    int64_t count;
    int64_t length;              /* T */
    const struct batch *full;    /* the whole micro-batch; not owned */
    /* With CONTEXT_RING: [2 ranks]. ring[2 * s + half]: documents whose keys are chunk `half` of rank s, as row indices
     * of that rank. If s is this rank, half 1 has the queries of both chunks with their own chunk's keys, and half 0
     * the second chunk's queries with the first chunk's keys. */
    const struct context_docs *ring;
};
static inline const struct batch *context_full_batch(const struct batch *b) { return b->context ? b->context->full
                                                                                                : b; }

struct context_shape {
    int rank, ranks;
    int64_t length;             /* T, a multiple of 2 ranks */
    int64_t rows;               /* maximum number of this rank's rows in a micro-batch */
    int micro_count;            /* maximum number of micro-batches in one call of context_parts */
    enum context_kind kind;
};
struct context {
    struct context_shape shape;
    struct batch *micro;        /* [micro_count] this rank's parts; owned, as are all arrays below */
    struct context_batch *more; /* [micro_count] */
    struct attn_doc *docs;
    struct context_docs *ring;
    int32_t *columns;
};

/* A contiguous range of a sequence's rows that one rank holds. */
struct context_chunk { int64_t from, local; }; /* its first row in the sequence, and in the rank's part of it */
static inline struct context_chunk context_chunk(int rank, int ranks, int64_t length, int half)
{
    const int64_t chunk = length / (2 * ranks);
    return (struct context_chunk){(half ? 2 * ranks - 1 - rank : rank) * chunk, half * chunk};
}

/* Whether any query in chunk q attends to a key in chunk k; a chunk has `chunk` tokens. window 0: no limit. */
static inline bool context_sees(int q, int k, int64_t chunk, int64_t window)
{
    return k <= q && (window == 0 || k == q || (q - k - 1) * chunk + 1 < window);
}
/* Whether any rank attends to a key of the rank that is `step` before it on the ring. */
bool context_step_needed(int ranks, int step, int64_t chunk, int64_t window);

/* Allocates the arrays; nothing for one rank. STATUS_OUT_OF_MEMORY if memory is short. */
status context_open(struct context *c, const struct context_shape *shape) WARN_UNUSED;
void context_close(struct context *c);
/* This rank's parts of `count` micro-batches, valid until the next call; with one rank `micro` itself. */
const struct batch *context_parts(struct context *c, const struct batch *micro, int count);
#endif
