/* Makes batches from samples. It knows neither devices nor models. Samples and their order: data/load/samples.h.
 *
 * A step takes ranks * micro_count * B samples. Sequence q of micro-batch m of rank r in step s is sample
 *     s * ranks * micro_count * B  +  (m * ranks + r) * B  +  q
 * (with `skips`, s is the batch that the step reads) or, with `blocks`, (r * micro_count + m) * B + q after the first
 * term. With a `batch` ramp the first term is the samples of all steps before. A step is therefore the same set of
 * samples for any number of ranks.
 *
 * Threads prefetch steps, micro-batch by micro-batch; the contents of a batch do not depend on the threads.
 * loader_next waits for the step and counts the waiting time. Memory: 16 bytes per token, for 2 steps and as many
 * more as the threads fill at once. */
#ifndef INGOT_DATA_LOAD_LOADER_H
#define INGOT_DATA_LOAD_LOADER_H
#include "data/load/samples.h"
#include "data/load/skips.h"
#include "spec/ramp.h"

enum {
    LOADER_IGNORE = -100, /* equal to TARGET_IGNORE of ops/ops.h, which this layer may not include */
    LOADER_ALIGN = 256,   /* alignment of each array of a batch in one block */
    LOADER_THREADS_MAX = 64
};

struct context_batch;
struct batch {    /* one micro-batch */
    int64_t rows; /* tokens: sequences * T */
    int64_t docs;
    /* upper bound of the rows of a document; docs * len_max == rows: all documents have this length */
    int64_t len_max;
    const int32_t *tokens;     /* [rows] */
    const int32_t *targets;    /* [rows], LOADER_IGNORE for no target */
    const int32_t *positions;  /* [rows], from 0 in each document (stream packing: in each sequence) */
    const int32_t *cu_seqlens; /* [docs+1]; padding counts as a document */
    /* The four arrays are contiguous in one borrowed block of memory (struct loader_memory), each at a multiple of
     * LOADER_ALIGN, and cu_seqlens is filled with `rows` up to [rows+1] (stream packing: to [docs+1]). */
    bool block;
    /* context parallelism: the rows are a rank's part of a micro-batch (parallel/context.h); NULL: all of it */
    const struct context_batch *context;
};
struct step_batch { /* all micro-batches of one optimizer step and rank */
    int64_t step;
    /* valid targets over all micro-batches: the normalisation of the loss (with several ranks: their sum) */
    int64_t valid;
    int64_t padding; /* rows outside any document */
    int micro_count;
    const struct batch *micro;
};

/* Allocator of batch memory, such as pinned memory of a device. Zeroed: malloc. */
struct loader_memory {
    void *ctx;
    status (*open)(void *ctx, size_t bytes, void **out);
    void (*close)(void *ctx, void *memory);
};
struct loader_config {
    int64_t sequences, micro_count; /* B, micro-batches per step and rank; with a ramp, of its largest step */
    struct ramp batch;              /* sequences of a step, of all ranks, in sequences read; count 0: all equal */
    struct ramp length;             /* tokens of a piece of a sequence, in tokens read; count 0: no pieces */
    int64_t vocab_size;             /* ids at or above it are STATUS_DATA; 0: not checked */
    int rank, ranks;                /* 0 ranks means 1 */
    int blocks;                     /* assignment of micro-batches to a rank: 0: every ranks-th; 1: contiguous */
    int threads;                    /* 0: 1 */
    const struct skips *skips;      /* batches that are left out; must outlive the loader; NULL: none */
    struct loader_memory memory;
};
struct loader;
/* `samples` must outlive the loader. STATUS_OUT_OF_MEMORY when the batches do not fit in memory. */
status loader_open(struct loader **l, const struct samples *samples, const struct loader_config *c,
                   int64_t first_step) WARN_UNUSED;
void loader_close(struct loader *l);
/* Returns the data of the next step, valid until the following call. Errors of the threads are returned at the step
 * they belong to. */
status loader_next(struct loader *l, const struct step_batch **out) WARN_UNUSED;
double loader_wait_s(const struct loader *l); /* total seconds that loader_next waited */

/* Micro-batches of a step and rank. */
int64_t loader_micros(const struct loader_config *c, int64_t step);
/* Sample index of sequence q of micro-batch m. */
int64_t loader_sample(const struct loader_config *c, int64_t step, int64_t m, int64_t q);
/* Fills a step without threads, for inspect and tests. Free it with step_batch_free. */
status loader_step_at(const struct samples *samples, const struct loader_config *c, int64_t step,
                      struct step_batch **out) WARN_UNUSED;
void step_batch_free(struct step_batch *s);
#endif
