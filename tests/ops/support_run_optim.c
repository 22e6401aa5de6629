/* The ops between the products of Muon's step. */
#include "run.h"
#include <math.h>

RUN_CALL(ortho_unit)
RUN_CALL(ortho_poly)
RUN_CALL(ortho_step)

/* Elements are about 1 / sqrt(count). */
void run_ortho_unit(const struct ops *o, const struct op_case *c, struct probe *p)
{
    const int64_t count = c->rows * c->d;
    const double size = 1 / sqrt((double)(count > 0 ? count : 1));
    const void *g = probe_in(p, "g", dtype_acc(p->dt), count, 0, 3);
    RUN(o, ortho_unit, .g = g, .x = probe_out(p, "x", PROBE_OUT, p->dt, count, size * tol_reduce(p->dt, 1)),
        .count = count, .eps = 1e-7, .dt = p->dt);
}

void run_ortho_poly(const struct ops *o, const struct op_case *c, struct probe *p)
{
    const int64_t count = c->d * c->d;
    const void *x = probe_in(p, "x", p->dt, count, 0, 1), *xx = NULL;
    void *y = probe_out(p, "y", PROBE_OUT, p->dt, count, 8 * tol_reduce(p->dt, 1));
    if (c->flags & IN_PLACE)
        xx = y;
    else
        xx = probe_in(p, "xx", p->dt, count, 0, 1);
    RUN(o, ortho_poly, .x = x, .xx = xx, .y = y, .n = c->d, .a = 3.4445, .b = -4.775, .c = 2.0315,
        .dt = p->dt);
}

/* With NO_CLIP: after a gradient that is not finite. */
void run_ortho_step(const struct ops *o, const struct op_case *c, struct probe *p)
{
    const int64_t count = c->rows * c->d;
    const double tol = tol_reduce(DTYPE_F32, 1);
    struct step_scalars *s =
        probe_out(p, "scalars", PROBE_OUT, DTYPE_F64, sizeof *s / sizeof(double), TOL_EXACT);
    *s = (struct step_scalars){.lr = 1e-2, .clip_factor = c->flags & NO_CLIP ? 0 : 0.5};
    RUN(o, ortho_step, .x = probe_in(p, "x", p->dt, count, 0, 1),
        .p = probe_out(p, "p", PROBE_OUT, DTYPE_F32, count, tol),
        .w = p->dt == DTYPE_BF16 ? probe_out(p, "w", PROBE_OUT, DTYPE_BF16, count, tol) : NULL,
        .count = count, .scale = 3, .weight_decay = 0.1, .scalars = s, .dt = p->dt);
}
