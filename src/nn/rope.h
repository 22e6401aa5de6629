/* RoPE tables (Su et al., arXiv:2104.09864) with the context extensions linear, llama3 and yarn (arXiv:2309.00071).
 *
 * angle(p, i) = p inv_i, inv_i = theta^(-2i/R) scaled by the type, i = 0..R/2-1; R: rotated dims of a head. Tables
 * are computed in double and hold cos and sin, times the attention factor of yarn. */
#ifndef INGOT_NN_ROPE_H
#define INGOT_NN_ROPE_H
#include "parallel/exec.h"
#include "spec/layer_traits.h"

struct rope_table {
    int64_t half;               /* R/2: rotated pairs per head; 0: no rotation */
    struct tensor cos, sin;     /* [positions, half] A */
};
struct rope {
    int64_t positions;          /* rows of the tables */
    struct rope_table heads;    /* for gqa and swa; half 0 with learned positions */
    struct rope_table tails;    /* for mla, R = mla_rope_dim */
};

/* Allocates the tables for `positions` rows from the arena and fills them if the arena is real. */
struct rope_layout_args {
    struct rope_dims dims; /* mixer_rope_dims */
    int64_t positions;
    dtype dt;
    struct arena *perm;
    struct stream *stream; /* of the arena's device; NULL: the host */
};
status rope_layout(struct rope *r, const struct model_spec *m, const struct rope_layout_args *a) WARN_UNUSED;

/* inv [half] after rope_scaling; returns the factor on cos and sin. */
double rope_frequencies(const struct model_spec *m, double *inv, int64_t half);

/* DeepSeek also multiplies the scale of the scores by (0.1 mscale_all_dim ln factor + 1)^2 if rope is scaled and
 * mscale_all_dim is set. */
double rope_softmax_factor(const struct model_spec *m);
#endif
