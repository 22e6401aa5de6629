/* norm: s = x + branch, y = RMSNorm(s) or LayerNorm(s): the residual add and the norm in one pass, forward and
 * backward.
 *
 *   tensor  shape   dtype  memory            backward
 *   x       [N, D]  dt     act, by caller    -
 *   branch  [N, D]  dt     scratch, caller   - (data NULL: s = x)
 *   s       [N, D]  dt     act, by caller    read; its gradient is dx = (norm's part + dres). Without a branch
 *                                             s is x
 *   y       [N, D]  dt     act, by caller    dy read
 *   w, b    [D]     dt     param             dw +=, db +=, A
 *   stats   [N] x2  A      act, saved here   rstd, and mean for LayerNorm
 *
 * RMSNorm also writes the FP8 form of y, and of dx, where these tensors have one (tensor.q).
 *
 * Memory bound: forward moves 4 N D elements, backward 4 N D. (RMSNorm: arXiv:1910.07467; LayerNorm:
 * arXiv:1607.06450) */
#ifndef INGOT_NN_NORM_H
#define INGOT_NN_NORM_H
#include "parallel/exec.h"

struct norm_block { enum norm kind; int64_t d; double eps, shift; int w, b; };  /* shift: added to w */
struct norm_saved { struct tensor mean, rstd; };

void norm_init(struct norm_block *m, struct params *p, const char *name, enum norm kind, int64_t d, double eps);
/* RMSNorm only: after this call the weight is stored around 0, is initialised to 0, and acts as 1 + w. */
void norm_center(struct norm_block *m, struct params *p);
/* Allocates the statistics. They are small, so every recompute policy except full keeps them. */
void norm_layout(const struct norm_block *m, struct norm_saved *s, const struct layout *l);
status norm_fwd(const struct norm_block *m, struct norm_saved *s, struct tensor x, struct tensor branch,
                struct tensor sum, struct tensor y, const struct exec *r) WARN_UNUSED;
status norm_bwd(const struct norm_block *m, const struct norm_saved *s, struct tensor sum, struct tensor dy,
                struct tensor dres, struct tensor dx, const struct exec *r) WARN_UNUSED;
#endif
