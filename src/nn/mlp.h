/* mlp: the feed-forward branch of a block: SwiGLU (Shazeer, arXiv:2002.05202) or GELU (GPT-2).
 *
 *   tensor  shape            dtype  memory                        backward
 *   y       [N, D]           dt     act, by caller                dy =
 *   up      [N, 2F | F]      dt     act; scratch under full       SwiGLU: [gate | up]; its gradient replaces it
 *   m       [N, F]           dt     scratch                       recomputed from up together with dm, and replaces dm
 *   out     [N, D]           dt     scratch, by caller            dout read
 *
 * FLOPs per token: 6 D F (SwiGLU) or 4 D F (GELU) forward, twice that backward. */
#ifndef INGOT_NN_MLP_H
#define INGOT_NN_MLP_H
#include "nn/linear.h"
#include "nn/layer_ctx.h"

struct mlp { enum activation act; int64_t f; struct linear up, down; };
struct mlp_saved {
    struct tensor up, m;
    struct linear_saved up_saved, down_saved;
    /* FP8 with SwiGLU, scratch: the codes that SwiGLU's forward and backward write: of m [N, F] (in backward the
     * transpose), of up's gradient [N, 2F], and its transpose */
    void *m_codes, *up_codes, *up_codes_t;
    struct quantized m_q, up_q;
};

extern const struct layer_traits mlp_traits; /* spec/layer_traits.h */
void mlp_init(struct mlp *m, struct params *p, const char *name, const struct model_spec *spec);
static inline const struct linear *mlp_in(const struct mlp *m) { return &m->up; }
static inline const struct linear *mlp_out(const struct mlp *m) { return &m->down; }
void mlp_layout(const struct mlp *m, struct mlp_saved *s, const struct layout *l);
void mlp_rows(struct mlp_saved *s, int64_t rows);
status mlp_fwd(const struct mlp *m, struct mlp_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r) WARN_UNUSED;
/* Under full: recomputes up. */
status mlp_recompute(const struct mlp *m, struct mlp_saved *s, enum recompute policy, struct tensor y,
                     const struct exec *r) WARN_UNUSED;
bool mlp_adds(const struct mlp *m, const struct exec *r);
/* dy may have type A. */
status mlp_bwd(const struct mlp *m, struct mlp_saved *s, const struct layer_ctx *c, struct tensor y, struct tensor dout,
               struct tensor dy, const struct exec *r) WARN_UNUSED;
#endif
