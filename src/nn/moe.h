/* moe: a mixture of experts instead of an mlp (Shazeer et al., arXiv:1701.06538): y_t = sum of w_te f_e(h_t) over the
 * chosen experts e, plus the shared expert, which processes every token. With model.moe_shared_gate its output is
 * multiplied by sigmoid(<h, gate>) (Qwen3-Next; DeepSeek has no gate). Experts are SwiGLU of width I. S: sorted rows
 * of all experts; ops/ops_moe.h defines the order and the routing.
 *
 *   tensor  shape          dtype  memory                     backward
 *   y       [N, D]         dt     act, by caller             dy =  (may be dout's memory: it is written last)
 *   logits  [N, E]         A      act; scratch under full    the router is a GEMM of dt with a result in A
 *   routing [N, k] ...     i32, A act                        never recomputed: backward uses the choices of forward
 *   up      [S, 2I]        dt     act; scratch under full    [gate | up] per row; overwritten by its gradient
 *   m       [S, I]         dt     scratch                    includes the slot's weight: expert outputs are not kept
 *   sorted  [S, D]         dt     scratch                    outputs of the experts; in backward their input gradients
 *   codes                  u8     scratch                    FP8: of y, m, dout and dup (nn/moe_fp8.h)
 *   shared  [N, 2 shared]  ...    as in an mlp
 *   shared_out [N, D]      dt     act; scratch under full    with a gate; overwritten by its gradient
 *   gate    [N, 1]         A      act; scratch under full
 *   out     [N, D]         dt     scratch, by caller         dout read
 *   wide    [N, D]         A      scratch                    dy of router, shared expert and gate before rounding
 *
 * With expert parallelism the experts are those of this rank, which gets rows from others: nn/moe_dispatch.h. S is
 * what it is there, and combine reads dispatch.sent in place of sorted. Router and shared expert see this rank's
 * tokens. Rows go to the experts while the shared expert computes, forward and backward (exec.side).
 *
 * With context parallelism a rank routes its own tokens. Auxiliary losses and the capacity count the choices of the
 * whole micro-batch, which ranks all-gather: [N cp, k] i32, in forward with a capacity, in backward with a loss.
 *
 * With tensor parallelism, I and the shared width are those of a rank, and its output is a partial sum. Every rank
 * has all rows and makes the same choices.
 *
 * Parameters under NAME: router.weight [E, D], router.bias [E] (role BALANCE), experts.up.weight [E 2I, D] (per
 * expert: gate rows, then up rows), experts.down.weight [E D, I], shared.up.weight, shared.down.weight,
 * shared_gate.weight [1, D]. FLOPs per token: 2 D E + 6 D (k I + shared) forward, twice that backward. */
#ifndef INGOT_NN_MOE_H
#define INGOT_NN_MOE_H
#include "nn/context_rows.h"
#include "nn/layer_ctx.h"
#include "nn/mlp.h"
#include "nn/moe_dispatch.h"
#include "nn/moe_fp8.h"

struct moe {
    struct route_rule rule;
    int64_t d, f;
    int bias, up, down;             /* parameter rows */
    int ranks;                      /* number of expert-parallel ranks */
    enum route_aux aux_kind;
    double aux, z, capacity;        /* capacity: 0: dropless */
    struct linear router, gate;     /* gate.w = -1: none */
    struct mlp shared;              /* shared.f = 0: none */
};
struct moe_saved {
    struct tensor logits, expert, weight, place, source, offsets, counts, demand, up, m, sorted;
    struct moe_codes codes;         /* FP8: nn/moe_fp8.h */
    struct dispatch dispatch;       /* with m->ranks > 1 */
    struct context_rows choices;    /* context parallelism: the choices of the whole micro-batch, to be counted; own =
                                       expert */
    struct mlp_saved shared;
    struct tensor shared_out, gate;
    struct tensor wide, dweight, dlogits, cost, dgate;      /* scratch of backward */
    struct tensor scratch_fwd, scratch_bwd, scratch_gemm; /* sized by the op set */
    int64_t align, experts, top_k;
    bool apart;                     /* expert parallelism: experts are on several ranks */
    bool train;                     /* allocated for backward */
    struct linear_saved router_saved, gate_saved;
};

/* Rows in a panel of the transposed codes of sorted rows. */
static inline int64_t moe_codes_ld(const struct moe_saved *s) { return expert_codes_ld(s->align, s->sorted.shape[0]); }

extern const struct layer_traits moe_traits; /* spec/layer_traits.h */
void moe_init(struct moe *m, struct params *p, const char *name, const struct model_spec *spec);
/* With expert parallelism: declares the experts in a unit of their own; moe_init does not. `of` as in
 * params_experts. */
void moe_experts_init(struct moe *m, struct params *p, const char *name, int of);
/* There is no such linear: both router and experts read y and dout. */
static inline const struct linear *moe_in(const struct moe *m) { (void)m; return NULL; }
static inline const struct linear *moe_out(const struct moe *m) { (void)m; return NULL; }
void moe_layout(const struct moe *m, struct moe_saved *s, const struct layout *l);
void moe_rows(struct moe_saved *s, int64_t rows);
status moe_fwd(const struct moe *m, struct moe_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r) WARN_UNUSED;
/* Under full: recomputes logits, up and the shared expert. */
status moe_recompute(const struct moe *m, struct moe_saved *s, enum recompute policy, struct tensor y,
                     const struct exec *r) WARN_UNUSED;
bool moe_adds(const struct moe *m, const struct exec *r);
status moe_bwd(const struct moe *m, struct moe_saved *s, const struct layer_ctx *c, struct tensor y, struct tensor dout,
               struct tensor dy, const struct exec *r) WARN_UNUSED;
#endif
