/* Log-likelihoods of given continuations: texts side by side as documents of one forward, so that a batch is full
 * whatever their lengths. */
#ifndef INGOT_INFER_SCORE_H
#define INGOT_INFER_SCORE_H
#include "model/decoder.h"
#include "model/feed.h"

/* What a forward needs; all borrowed. The feed takes documents of any length; rows: tokens of a batch, at most
 * acts->lay.n, at least count - 1 of the longest request. */
struct scorer {
    const struct decoder *decoder;
    struct activations *acts;
    struct feed *feed;
    const struct exec *run;
    int64_t rows;
};
struct score_request {
    const int32_t *tokens; /* [count] */
    int64_t count, first;  /* tokens [first, count) are scored, each given all before it; 1 <= first < count */
    double *each;          /* [count - first] nats of each token; NULL: not wanted */
    double loglik;         /* out: their sum */
    bool greedy;           /* out: each was the most likely token */
};
/* Scores requests[0, count), as many as fit in one batch. `tick` (NULL: none) is called after each batch; a failure of
 * it ends the work. STATUS_DATA: an id outside the model's vocabulary. STATUS_NUMERIC: a sum is not finite. */
struct score_tick { status (*fn)(void *ctx, int64_t done, int64_t count); void *ctx; };
status score(const struct scorer *s, struct score_request *requests, int64_t count,
             const struct score_tick *tick) WARN_UNUSED;
#endif
