/* Ops on token ids. Included by ops.h; its conventions hold. Nothing looks from one document into another. */
#ifndef INGOT_OPS_OPS_TOKENS_H
#define INGOT_OPS_OPS_TOKENS_H
#include <stdint.h>

enum { TOKEN_NONE = -1 };   /* no token: without learned positions, embed_fwd makes zeros of it and embed_bwd passes it over */

/* out[t] = in[t + k], or `none` where row t + k is not in the document of row t. Multi-token prediction looks ahead with it. */
struct ahead_args {
    const int32_t *in;          /* [rows] */
    int32_t *out;               /* [rows] =; may not alias in */
    int32_t none;
    const int32_t *cu_seqlens;  /* [docs+1] */
    int64_t k, docs, rows;      /* k >= 0 */
};
#endif
