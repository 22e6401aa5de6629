/* The ops of multi-head latent attention: support_run.c says how cases become calls. */
#include "run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

RUN_CALL(latent_fwd)
RUN_CALL(latent_bwd)

void run_latent(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_latent *c = &oc->latent;
    const dtype acc = dtype_acc(p->dt);
    const bool fwd = oc->op == OP_latent_fwd, with_q = !c->k_only, with_k = !c->q_only;
    const int64_t gap = c->gaps ? 8 : 0, tail = 2 * c->half, wide = c->heads * (c->nope + tail),
                  pos_count = c->rows + 3;
    /* gradients are paired with inputs by name, and then have their layout */
    const int64_t own = gap && !p->zero_out ? 3 : 0;
    const int64_t q_stride = wide + gap, nope_stride = c->heads * c->nope + 2 * gap, rope_stride = tail + gap;
    const int32_t *positions = probe_ids(p, "positions", c->rows, pos_count);
    void *cosines, *sines;
    run_angles(c->half, p, pos_count, &cosines, &sines);
    const double tol = 4 * tol_reduce(acc, 1);
    if (fwd) {
        const void *q = with_q ? probe_in(p, "q", p->dt, c->rows * q_stride, 0, 1) : NULL;
        void *q_rot = with_q ? probe_out(p, "q_rot", PROBE_OUT, p->dt, c->rows * q_stride, tol) : NULL;
        if (q) memcpy(q_rot, q, (size_t)(c->rows * q_stride) * dtype_bytes(p->dt));
        RUN(o, latent_fwd, .q = q_rot, .k_nope = probe_in(p, "k_nope", p->dt, c->rows * nope_stride, 0, 1),
            .k_rope = probe_in(p, "k_rope", p->dt, c->rows * rope_stride, 0, 1),
            .k = with_k ? probe_out(p, "k", PROBE_OUT, p->dt, c->rows * wide, tol) : NULL,
            .q_stride = q_stride, .k_nope_stride = nope_stride, .k_rope_stride = rope_stride,
            .positions = positions, .cos = cosines, .sin = sines, .rows = c->rows, .heads = c->heads,
            .nope = c->nope, .half = c->half, .pos_count = pos_count, .dt = p->dt);
        return;
    }
    const void *dq_rot = with_q ? probe_in(p, "dq_rot", p->dt, c->rows * q_stride, 0, 1) : NULL;
    void *dq = with_q ? probe_out(p, "dq", PROBE_OUT, p->dt, c->rows * q_stride, tol) : NULL;
    if (dq) memcpy(dq, dq_rot, (size_t)(c->rows * q_stride) * dtype_bytes(p->dt));
    RUN(o, latent_bwd, .dq = dq, .dk = probe_in(p, "dk", p->dt, c->rows * wide, 0, 1),
        .dk_nope = probe_out(p, "dk_nope", PROBE_OUT, p->dt, c->rows * (nope_stride + own), TOL_EXACT),
        .dk_rope = probe_out(p, "dk_rope", PROBE_OUT, p->dt, c->rows * (rope_stride + own),
                             4 * tol_reduce(acc, c->heads) * (double)c->heads),
        .dq_stride = q_stride, .dk_nope_stride = nope_stride + own, .dk_rope_stride = rope_stride + own,
        .positions = positions, .cos = cosines, .sin = sines, .rows = c->rows, .heads = c->heads,
        .nope = c->nope, .half = c->half, .pos_count = pos_count, .dt = p->dt);
}
