/* From samples to batches. Never sees a device or a model; what a sample is, and their order: data/load/samples.h.
 *
 * A step takes ranks * micro_count * B samples. Sequence q of micro-batch m of rank r in step s is sample
 *     s * ranks * micro_count * B  +  (m * ranks + r) * B  +  q
 * or, with `blocks`, (r * micro_count + m) * B + q behind the first term,
 * so that a step is the same set of samples for any number of ranks.
 *
 * Threads prefetch steps, micro-batch by micro-batch; what a batch holds does not depend on them. loader_next waits for the step
 * and counts the time it waited. Memory: 16 bytes per token, for 2 steps and as many more as the threads fill at once. */
#ifndef INGOT_DATA_LOAD_LOADER_H
#define INGOT_DATA_LOAD_LOADER_H
#include "data/load/samples.h"

enum {
    LOADER_IGNORE = -100, /* equal to TARGET_IGNORE of ops/ops.h, which this rank may not include */
    LOADER_ALIGN = 256,   /* of each array of a batch that lies in one block */
    LOADER_THREADS_MAX = 64
};

struct batch {    /* one micro-batch */
    int64_t rows; /* tokens: sequences * T */
    int64_t docs;
    int64_t len_max;           /* rows of the longest document at most; docs * len_max == rows: all have this length */
    const int32_t *tokens;     /* [rows] */
    const int32_t *targets;    /* [rows], LOADER_IGNORE where there is none */
    const int32_t *positions;  /* [rows], from 0 in each document (stream packing: in each sequence) */
    const int32_t *cu_seqlens; /* [docs+1]; padding is a document, too */
    /* The four arrays follow each other in one piece of memory that was lent (struct loader_memory), each at a multiple of
     * LOADER_ALIGN, and cu_seqlens goes on with `rows` up to [rows+1] (stream packing: to [docs+1]). */
    bool block;
};
struct step_batch { /* all micro-batches of one optimizer step and rank */
    int64_t step;
    int64_t valid;   /* targets that count, over all micro-batches: the normalisation of the loss (over ranks: their sum) */
    int64_t padding; /* rows that belong to no document */
    int micro_count;
    const struct batch *micro;
};

/* Where the memory of batches comes from: such as pinned memory of a device. Zeroed: malloc. */
struct loader_memory {
    void *ctx;
    status (*open)(void *ctx, size_t bytes, void **out);
    void (*close)(void *ctx, void *memory);
};
struct loader_config {
    int64_t sequences, micro_count; /* B, micro-batches per step and rank */
    int64_t vocab_size;             /* ids at or above it are STATUS_DATA; 0: not checked */
    int rank, ranks;                /* ranks 0: 1 */
    int blocks;                     /* micro-batches of a rank: 0: every ranks-th; 1: as many, one behind the other */
    int threads;                    /* 0: 1 */
    struct loader_memory memory;
};
struct loader;
/* `samples` must outlive the loader. STATUS_FIT when the batches do not fit in memory. */
status loader_open(struct loader **l, const struct samples *samples, const struct loader_config *c,
                   int64_t first_step) WARN_UNUSED;
void loader_close(struct loader *l);
/* The next step's data; valid until the following call. Errors of the threads surface here, at the step they belong to. */
status loader_next(struct loader *l, const struct step_batch **out) WARN_UNUSED;
double loader_wait_s(const struct loader *l); /* seconds that loader_next waited, in all */

/* Sample of sequence q of micro-batch m. */
int64_t loader_sample(const struct loader_config *c, int64_t step, int64_t m, int64_t q);
/* Fills a step without threads: for inspect and tests. Free with step_batch_free. */
status loader_step_at(const struct samples *samples, const struct loader_config *c, int64_t step,
                      struct step_batch **out) WARN_UNUSED;
void step_batch_free(struct step_batch *s);
#endif
