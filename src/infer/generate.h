/* Generation with a cache per layer: one sequence, one token at a time after the prompt.
 *
 * What a cache holds is its mixer's matter (nn/mixer.h); the prompt runs through the training forward, each further token through
 * mixer_step. */
#ifndef INGOT_INFER_GENERATE_H
#define INGOT_INFER_GENERATE_H
#include "model/decoder.h"
#include "model/feed.h"

struct generator {
    const struct decoder *decoder;
    const struct exec *run;
    struct activations *acts; /* laid out for at least the prompt's tokens (PLAN_FORWARD or PLAN_TRAIN) */
    struct arena memory;      /* what follows, owned; in the set's memory */
    struct feed feed;
    void *block;              /* the feed's */
    struct block_cache *caches; /* one per visit of a block in a forward (decoder_visits), owned */
    struct tensor length_now; /* [1] i32: tokens in the caches, the new ones included */
    struct tensor last;       /* [1, head.width] f32: logits of the last token, in the set's memory; the first V are ids' */
    struct tensor logits;     /* the same for the host to read; its own memory on a GPU */
    int64_t length, capacity; /* tokens in the cache */
};

/* Positions that the model has: prompt and continuation together. */
int64_t generate_limit(const struct decoder *d);
/* capacity: prompt plus generated tokens; at most the rows of the rope tables or learned positions (STATUS_CONFIG). */
status generate_open(struct generator *g, const struct decoder *d, struct activations *acts, int64_t capacity,
                     const struct exec *run) WARN_UNUSED;
void generate_close(struct generator *g);
/* Appends tokens to the sequence; g->logits are those after the last. Any count on an empty cache up to acts->lay.n, else one by one. */
status generate_append(struct generator *g, const int32_t *tokens, int64_t count) WARN_UNUSED;

struct sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
};
/* A token from logits[0, vocab), a pure function of (logits, sampling, index). Ties go to the smaller id. */
int32_t generate_sample(const float *logits, int64_t vocab, const struct sampling *s, uint64_t index);
#endif
