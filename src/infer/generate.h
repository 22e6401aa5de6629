/* Generation with one cache per layer: one sequence, one token at a time after the prompt.
 *
 * The mixer defines the contents of its cache (nn/mixer.h). The prompt runs through the training forward, each
 * further token through mixer_step. */
#ifndef INGOT_INFER_GENERATE_H
#define INGOT_INFER_GENERATE_H
#include "model/decoder.h"
#include "model/feed.h"

struct generator {
    const struct decoder *decoder;
    const struct exec *run;
    struct activations *acts; /* laid out for at least the prompt's tokens (PLAN_FORWARD or PLAN_TRAIN) */
    struct arena memory;      /* memory of the fields below; owned; in the device memory of the op set */
    struct feed feed;
    void *block;              /* memory of the feed */
    struct block_cache *caches; /* one per visit of a block in a forward (decoder_visits), owned */
    struct tensor length_now; /* [1] i32: tokens in the caches, including the new ones */
    /* [1, head.width] f32: logits of the last token, in the op set's memory; the first V belong to ids */
    struct tensor last;
    struct tensor logits;     /* the same in host memory; a separate copy on a GPU */
    int64_t length, capacity; /* tokens in the cache */
};

/* Maximum sequence length of the model: prompt and continuation together. */
int64_t generate_limit(const struct decoder *d);
/* `capacity` is the number of prompt and generated tokens. STATUS_CONFIG when it exceeds the rows of the rope tables
 * or of the learned positions. */
status generate_open(struct generator *g, const struct decoder *d, struct activations *acts, int64_t capacity,
                     const struct exec *run) WARN_UNUSED;
void generate_close(struct generator *g);
/* Appends tokens to the sequence; g->logits are then those after the last token. An empty cache accepts up to
 * acts->lay.n tokens at once; after that, one at a time. */
status generate_append(struct generator *g, const int32_t *tokens, int64_t count) WARN_UNUSED;

struct sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
};
/* Samples a token from logits[0, vocab): a pure function of (logits, sampling, index). The smaller id wins ties. */
int32_t generate_sample(const float *logits, int64_t vocab, const struct sampling *s, uint64_t index);
#endif
