/* The ops of multi-head latent attention, and those of generation beside attn_decode: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

RUN_CALL(mla_rope_fwd)
RUN_CALL(mla_rope_bwd)
RUN_CALL(kv_cache_append)
RUN_CALL(per_head_gemm)

void run_latent(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_latent *c = &oc->latent;
    const dtype acc = dtype_acc(p->dt);
    const bool fwd = oc->op == OP_mla_rope_fwd, with_q = !c->k_only, with_k = !c->q_only;
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
        RUN(o, mla_rope_fwd, .q = q_rot, .k_nope = probe_in(p, "k_nope", p->dt, c->rows * nope_stride, 0, 1),
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
    const double tol_sum = 4 * tol_reduce(acc, c->heads) * (double)c->heads;
    RUN(o, mla_rope_bwd, .dq = dq, .dk = with_k ? probe_in(p, "dk", p->dt, c->rows * wide, 0, 1) : NULL,
        .dk_nope = with_k
                       ? probe_out(p, "dk_nope", PROBE_OUT, p->dt, c->rows * (nope_stride + own), TOL_EXACT)
                       : NULL,
        .dk_rope =
            with_k ? probe_out(p, "dk_rope", PROBE_OUT, p->dt, c->rows * (rope_stride + own), tol_sum) : NULL,
        .dq_stride = q_stride, .dk_nope_stride = nope_stride + own, .dk_rope_stride = rope_stride + own,
        .positions = positions, .cos = cosines, .sin = sines, .rows = c->rows, .heads = c->heads,
        .nope = c->nope, .half = c->half, .pos_count = pos_count, .dt = p->dt);
}

/* What was there before, as an input; the result is compared as a whole, so rows that are not written must not change. */
static void *cache_of(struct probe *p, const char *before, const char *name, int64_t count)
{
    const void *old = probe_in(p, before, p->dt, count, 0, 1);
    void *cache = probe_out(p, name, PROBE_OUT, p->dt, count, TOL_EXACT);
    memcpy(cache, old, (size_t)count * dtype_bytes(p->dt));
    return cache;
}

/* docs: lengths. The first array has rows of heads_kv hd, the second of heads_kv hd_v; with `fused` it is beside the first. */
void run_kv_cache_append(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_attn *c = &oc->attn;
    const int64_t batch = c->docs.count, w0 = c->heads_kv * c->head_dim, w1 = c->heads_kv * c->head_dim_v,
                  gap = c->gaps ? 3 : 0;
    const int64_t stride = w0 + (c->fused ? w1 : 0) + gap, x_stride = w0 + w1 + gap;
    int32_t *lengths = probe_ids(p, "lengths", batch, 1);
    int64_t capacity = 0;
    for (int64_t b = 0; b < batch; b++) {
        lengths[b] = c->docs.len[b];
        if (capacity < lengths[b] + b % 2) capacity = lengths[b] + b % 2;
    }
    const char *x = probe_in(p, "x", p->dt, batch * x_stride, 0, 1);
    char *first = cache_of(p, "cache_before", "cache", batch * capacity * stride), *second = NULL;
    if (w1)
        second = c->fused ? first + (size_t)w0 * dtype_bytes(p->dt)
                          : cache_of(p, "cache_2_before", "cache_2", batch * capacity * w1);
    RUN(o, kv_cache_append,
        .part = {{.x = x, .cache = first, .x_stride = x_stride, .stride = stride, .width = w0},
                 {.x = x + (size_t)w0 * dtype_bytes(p->dt),
                  .cache = second,
                  .x_stride = x_stride,
                  .stride = c->fused ? stride : w1,
                  .width = w1}},
        .lengths = lengths, .batch = batch, .capacity = capacity, .dt = p->dt);
}

/* rows and heads; k = nope, n = half; with `k_only` transposed, without it with a tail of half of k. */
void run_per_head_gemm(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_latent *c = &oc->latent;
    const int64_t k = c->nope, n = c->half, tail = c->k_only ? 0 : k / 2, gap = c->gaps ? 3 : 0;
    const int64_t a_head = k + tail + gap, c_head = n + tail, a_stride = c->heads * a_head + gap,
                  c_stride = c->heads * c_head + 2 * gap;
    const void *a = probe_in(p, "a", p->dt, c->rows * a_stride, 0, 1),
               *w = probe_in(p, "w", p->dt, c->heads * k * n, 0, 1);
    RUN(o, per_head_gemm, .a = a, .w = w,
        .c = probe_out(p, "c", PROBE_OUT, p->dt, c->rows * c_stride,
                       4 * tol_reduce(dtype_acc(p->dt), k) * sqrt((double)k)),
        .a_stride = a_stride, .a_head = a_head, .c_stride = c_stride, .c_head = c_head, .rows = c->rows,
        .heads = c->heads, .n = n, .k = k, .tail = tail, .trans = c->k_only, .dt = p->dt);
}
