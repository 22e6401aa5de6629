/* Log-likelihoods of given continuations: texts side by side as documents of one forward, so that a batch is full
 * whatever their lengths. */
#ifndef INGOT_INFER_SCORE_H
#define INGOT_INFER_SCORE_H
#include "model/decoder.h"
#include "model/feed.h"

/* What a forward needs; all borrowed. The feed takes documents of any length; rows: tokens of a batch, at most
 * acts->layout.n, at least count - 1 of the longest request, with `next` count. */
struct scorer {
    const struct decoder *decoder;
    struct activations *acts;
    struct feed *feed;
    const struct exec *run;
    int64_t rows;
};
struct score_likely { int32_t id; double nats; };
struct score_request {
    const int32_t *tokens; /* [count] */
    int64_t count, first;  /* tokens [first, count) are scored, each given all before it; 1 <= first < count, with
                              `next` <= count */
    double *each;          /* [count - first] nats of each token; NULL: not wanted */
    /* [count - first, 1 + likely_count]: each token, then the most likely ones at its place, from the same logits
     * (score_likely); NULL: not wanted. On one rank of tensor parallelism. */
    struct score_likely *likely;
    int64_t likely_count;
    float *next;           /* [vocab] logits behind the last token; NULL: not wanted. On one rank, too */
    double loglik;         /* out: their sum */
    bool greedy;           /* out: each was the most likely token */
};
/* Scores requests[0, count), as many as fit in one batch. `tick` (NULL: none) is called after each batch; a failure of
 * it ends the work. STATUS_DATA: an id outside the model's vocabulary. STATUS_NUMERIC: a sum is not finite. */
struct score_tick { status (*fn)(void *ctx, int64_t done, int64_t count); void *ctx; };
status score(const struct scorer *s, struct score_request *requests, int64_t count,
             const struct score_tick *tick) WARN_UNUSED;
/* Of the logits at a place [vocab]: out[0] is `id`, out[1, count] the most likely ids; of equal logits the smaller id
 * is first. count < vocab. Nats are those of a softmax over all, summed in float64. */
void score_likely(const float *logits, int64_t vocab, int32_t id, struct score_likely *out, int64_t count);
#endif
