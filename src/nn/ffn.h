/* ffn: the feed-forward part of a layer, one row per kind in model.layers. A new kind is a file here with
 *
 *   X_init, X_layout, X_rows, X_fwd, X_bwd   as in a mixer (nn/mixer.h)
 *   X_recompute   recomputes from y what `policy` did not keep, before X_bwd
 *   X_in, X_out   the linear that is the only reader of the values of y, or of dout; NULL: there are others
 *   X_adds        true if X_fwd supports a sink with a sum
 *   X_traits      as in a mixer */
#ifndef INGOT_NN_FFN_H
#define INGOT_NN_FFN_H
#include "nn/mlp.h"
#include "nn/moe.h"
#include "nn/sequence_parallel.h"

/*  value  its file */
#define FFN_TYPES(X) \
    X(MLP, mlp) \
    X(MOE, moe)

struct ffn_block {
    enum ffn kind;
    union {
#define X(value, type) struct type type;
        FFN_TYPES(X)
#undef X
    };
};
struct ffn_saved {
    union {
#define X(value, type) struct type##_saved type;
        FFN_TYPES(X)
#undef X
    };
};

void ffn_init(struct ffn_block *m, struct params *p, const char *layer_name, const struct model_spec *spec,
              int64_t layer);
/* With expert parallelism, call it after the units of all blocks: declares the block's experts as a unit; `of`: the
 * block's unit. */
void ffn_experts_init(struct ffn_block *m, struct params *p, const char *layer_name, int of);
void ffn_layout(const struct ffn_block *m, struct ffn_saved *s, const struct layout *l);
void ffn_rows(const struct ffn_block *m, struct ffn_saved *s, int64_t rows);
status ffn_fwd(const struct ffn_block *m, struct ffn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r) WARN_UNUSED;
status ffn_recompute(const struct ffn_block *m, struct ffn_saved *s, enum recompute policy, struct tensor y,
                     const struct exec *r) WARN_UNUSED;
status ffn_bwd(const struct ffn_block *m, struct ffn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct exec *r) WARN_UNUSED;
const struct linear *ffn_in(const struct ffn_block *m);
const struct linear *ffn_out(const struct ffn_block *m);
/* True if ffn_fwd supports a sink with a sum. */
bool ffn_adds(const struct ffn_block *m, const struct exec *r);
/* SP_OVERLAP if only linears of this part read and write y, out, dout and dy. */
enum sp_mode ffn_how(const struct ffn_block *m);
#endif
