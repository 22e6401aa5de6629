/* From shards to batches. Never sees a device or a model.
 *
 * Stream packing: the token stream is cut into windows of T+1 tokens with stride T; window i gives T inputs
 * and T targets. Sample order: epoch e visits all windows in the order of a keyed permutation (Feistel
 * network with cycle walking) of (seed, e): a pure function of (seed, sample index), so resume needs no
 * state but the step. The incomplete window at the end is left out.
 *
 * Document packing: the same windows, but attention and positions restart where a document begins
 * (shard_set.eod says before or after which token), and a target that lies in another document than its
 * input is ignored.
 *
 * Evaluation (shuffle 0): windows in order, and every token once: the incomplete window at the end and the
 * samples that fill up the last micro-batch are padded with token 0 and ignored targets. Step
 * ceil(windows / (B * micro_count)) and later ones have no valid target.
 *
 * One thread prefetches whole steps; loader_next waits for it and counts the time it waited. Memory: three
 * steps of 16 bytes per token. */
#ifndef INGOT_DATA_LOADER_H
#define INGOT_DATA_LOADER_H
#include "base/status.h"
#include "data/shard.h"
#include <stdint.h>

enum { LOADER_IGNORE = -100 }; /* equal to TARGET_IGNORE of ops/ops.h, which this rank may not include */

struct batch {    /* one micro-batch */
    int64_t rows; /* tokens: sequences * T */
    int64_t docs;
    int64_t len_max;           /* rows of the longest document at most; docs * len_max == rows: all have this length */
    const int32_t *tokens;     /* [rows] */
    const int32_t *targets;    /* [rows], LOADER_IGNORE where there is none */
    const int32_t *positions;  /* [rows], from 0 in each document (stream packing: in each sequence) */
    const int32_t *cu_seqlens; /* [docs+1] */
};
struct step_batch { /* all micro-batches of one optimizer step */
    int64_t step;
    int64_t valid; /* targets that count, over all micro-batches: the normalisation of the loss */
    int micro_count;
    const struct batch *micro;
};

enum loader_packing { LOADER_STREAM, LOADER_DOCUMENTS }; /* as enum packing of spec.h */
struct loader_config {
    uint64_t seed;
    int64_t sequence_length, sequences, micro_count; /* T, B, micro-batches per step */
    int64_t vocab_size;                              /* ids at or above it are STATUS_DATA; 0: not checked */
    int documents;                                   /* enum loader_packing or enum packing */
    int shuffle;                                     /* 0: windows in order (evaluation) */
    int64_t windows_max;                             /* use the first so many windows; 0: all */
};
struct loader;
/* `set` must outlive the loader. STATUS_DATA when there is not one whole window (evaluation: not two
 * tokens), and for document packing when the set has no end-of-text token. STATUS_FIT when a step does not
 * fit in memory. */
status loader_open(struct loader **l, const struct shard_set *set, const struct loader_config *c,
                   int64_t first_step) WARN_UNUSED;
void loader_close(struct loader *l);
/* The next step's data; valid until the following call. Errors of the prefetch thread surface here, at the
 * step they belong to. */
status loader_next(struct loader *l, const struct step_batch **out) WARN_UNUSED;
double loader_wait_s(const struct loader *l);   /* seconds that loader_next waited, in all */
int64_t loader_windows(const struct loader *l); /* samples per epoch */

/* Windows in `tokens` tokens. */
int64_t loader_window_count(int64_t tokens, int64_t sequence_length, int shuffle);
/* Which window sample `index` (0, 1, ... over all epochs) is: epoch and window. The same function drives
 * the loader and `ingot data inspect`. */
struct sample_place {
    int64_t epoch, window;
};
struct sample_place loader_place(uint64_t seed, int64_t index, int64_t windows, int shuffle);
/* Fills a step without a thread: for inspect and tests. Free with step_batch_free. */
status loader_step_at(const struct shard_set *set, const struct loader_config *c, int64_t step,
                      struct step_batch **out) WARN_UNUSED;
void step_batch_free(struct step_batch *s);
#endif
