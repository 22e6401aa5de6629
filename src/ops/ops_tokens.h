/* Ops on token ids. Included by ops.h, whose conventions apply. No op reads across a document boundary. */
#ifndef INGOT_OPS_OPS_TOKENS_H
#define INGOT_OPS_OPS_TOKENS_H
#include "tensor/dtype.h"
#include <stdint.h>

enum { TOKEN_NONE = -1 };   /* no token: without learned positions embed_fwd writes zeros for it and embed_bwd skips
                               it */

/* out[t] = in[t + k], or `none` if row t + k is not in the document of row t. Used by multi-token prediction. */
struct shift_tokens_args {
    const int32_t *in;          /* [rows] */
    int32_t *out;               /* [rows] =; must not alias in */
    int32_t none;
    const int32_t *cu_seqlens;  /* [docs+1] */
    int64_t k, docs, rows;      /* k >= 0 */
};

/* Rows of hashed n-gram tables (Engram, arXiv:2601.07372): `heads` rows for each token and order n = 2..order.
 *   x_k = map[token t-k], or map[pad] from the first k on for which row t-k is not in the document of row t
 *   h_n = x_0 a_0 xor ... xor x_{n-1} a_{n-1};    rows[t][i] = h_n mod primes[i] + offsets[i]
 *   i = (n-2) heads + j for head j
 * Products stay below 2^63, because a_k (largest x) does. */
enum { NGRAM_ORDER_MAX = 8, NGRAM_ROWS_MAX = 128 };
struct ngram_hash {
    int64_t multipliers[NGRAM_ORDER_MAX];   /* a_k */
    int32_t primes[NGRAM_ROWS_MAX], offsets[NGRAM_ROWS_MAX];
    int64_t order, heads;                   /* (order - 1) heads <= NGRAM_ROWS_MAX */
    int32_t pad;
};
struct ngram_args {
    const int32_t *tokens;      /* [rows] */
    const int32_t *before;      /* generation: [docs, order - 1], the tokens before the first row of each document,
                                   TOKEN_NONE before its start; more than one document then has one row each. NULL:
                                   the documents start here */
    const int32_t *map;         /* [vocab]; NULL: ids are hashed directly */
    int32_t *out;               /* [rows, (order - 1) heads] = */
    const int32_t *cu_seqlens;
    int64_t docs, rows;
    const struct ngram_hash *hash;  /* in host memory: read before the call returns */
};

/* Engram's gate:
 *   delta = <a, b> / sqrt(d);   alpha = sigmoid(sign(delta) sqrt(max(|delta|, 1e-6)));   u = alpha v;   sum = h + u */
struct ngram_gate_fwd_args {
    const void *a, *b, *v, *h;  /* [rows, d] dt */
    void *u, *sum;              /* [rows, d] dt; sum may alias h */
    void *delta;                /* [rows] A */
    int64_t rows, d;
    dtype dt;
};
/* delta has no gradient if |delta| <= 1e-6. */
struct ngram_gate_bwd_args {
    const void *du, *a, *b, *v; /* du: gradient of u, including that of sum */
    const void *delta;
    void *da, *db, *dv;         /* [rows, d] dt = */
    int64_t rows, d;
    dtype dt;
};
#endif
