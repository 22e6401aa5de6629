/* Ops on token ids: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

RUN_CALL(shift_tokens)
RUN_CALL(top1_correct)
RUN_CALL(vocab_xent_partial)
RUN_CALL(vocab_xent_finish)
RUN_CALL(ngram)
RUN_CALL(ngram_gate_fwd)
RUN_CALL(ngram_gate_bwd)

void run_shift_tokens(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_shift_tokens *c = &oc->shift_tokens;
    const int32_t *cu = run_cu_seqlens(&c->docs, p);
    const int64_t rows = cu[c->docs.count];
    RUN(o, shift_tokens, .in = probe_ids(p, "in", rows, 1000), .out = probe_out_ids(p, "out", rows),
        .none = -7, .cu_seqlens = cu, .k = c->k, .docs = c->docs.count, .rows = rows);
}

/* Rows of four kinds: as drawn, the target far above, the target equal to another column, ignored. Padding is above everything. */
void run_top1_correct(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_xent *c = &oc->xent;
    const dtype acc = dtype_acc(p->dt), ldt = p->narrow_logits ? p->dt : acc;
    int32_t *targets = probe_ids(p, "targets", c->rows, c->used);
    void *z = probe_in(p, "logits", ldt, c->rows * c->vocab, 0, 1);
    for (int64_t t = 0; t < c->rows; t++) {
        const int64_t at = t * c->vocab;
        for (int64_t j = c->used; j < c->vocab; j++) dtype_store(z, at + j, ldt, 100);
        if (t % 4 == 1 || t % 4 == 2) dtype_store(z, at + targets[t], ldt, 8);
        if (t % 4 == 2) dtype_store(z, at + (targets[t] + 1) % c->used, ldt, 8);
        if (t % 4 == 3) targets[t] = TARGET_IGNORE;
    }
    RUN(o, top1_correct, .logits = z, .targets = targets,
        .hits = probe_out(p, "hits", PROBE_OUT, acc, c->rows, TOL_EXACT), .rows = c->rows, .vocab = c->vocab,
        .vocab_used = c->used, .dt = p->dt, .ldt = ldt);
}

/* Targets of the full vocabulary, some ignored. */
static const int32_t *targets_of(const struct case_slice *c, struct probe *p)
{
    int32_t *targets = probe_ids(p, "targets", c->rows, c->vocab * c->slices);
    for (int64_t t = 2; t < c->rows; t += 5) targets[t] = TARGET_IGNORE;
    return targets;
}

void run_vocab_xent_partial(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_slice *c = &oc->slice;
    const dtype acc = dtype_acc(p->dt), ldt = p->narrow_logits ? p->dt : acc;
    RUN(o, vocab_xent_partial, .logits = probe_in(p, "logits", ldt, c->rows * c->vocab, 0, 3),
        .targets = targets_of(c, p),
        .part = probe_out(p, "part", PROBE_OUT, acc, c->rows * XENT_PARTS,
                          tol_reduce(acc, c->vocab) * sqrt((double)c->vocab)),
        .rows = c->rows, .vocab = c->vocab, .slice = (int)c->slice, .slices = (int)c->slices, .dt = p->dt,
        .ldt = ldt);
}

/* The parts are drawn: no logits belong to those of other ranks. */
void run_vocab_xent_finish(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_slice *c = &oc->slice;
    const double scale = 0.125;
    const dtype acc = dtype_acc(p->dt), ldt = p->narrow_logits ? p->dt : acc,
                out_dt = c->in_place ? ldt : p->dt;
    const int64_t count = c->rows * c->vocab, parts = c->slices * c->rows * XENT_PARTS;
    const double tol = 4 * tol_reduce(acc, 1);
    void *z = probe_in(p, "logits", ldt, count, 0, 1), *part = probe_in(p, "parts", acc, parts, 0, 1);
    for (int64_t i = 0; i < parts; i += XENT_PARTS) {
        dtype_store(part, i + XENT_MAX, acc, 4 + dtype_load(part, i + XENT_MAX, acc));
        dtype_store(part, i + XENT_SUM, acc, 1 + fabs(dtype_load(part, i + XENT_SUM, acc)));
    }
    void *dz = c->no_grad ? NULL : probe_out(p, "dlogits", PROBE_OUT, out_dt, count, scale * tol);
    if (c->in_place) z = memcpy(dz, z, (size_t)count * dtype_bytes(ldt));
    RUN(o, vocab_xent_finish, .logits = z, .dlogits = dz, .targets = targets_of(c, p), .parts = part,
        .loss = probe_out(p, "loss", PROBE_OUT, acc, c->rows, tol),
        .z_term = c->z_loss && c->no_grad ? probe_out(p, "z_term", PROBE_OUT, acc, c->rows, tol) : NULL,
        .hits = dz ? NULL : probe_out(p, "hits", PROBE_OUT, acc, c->rows, TOL_EXACT), .rows = c->rows,
        .vocab = c->vocab, .slice = (int)c->slice, .slices = (int)c->slices,
        .grad_scale = probe_in(p, "grad_scale", DTYPE_F64, 1, scale, 0), .z_loss = c->z_loss ? 1e-2 : 0,
        .cap = c->cap ? 2 : 0, .dt = out_dt, .ldt = ldt);
}

void run_ngram(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_ngram *c = &oc->ngram;
    enum { VOCAB = 1000 };
    const int32_t *cu = run_cu_seqlens(&c->docs, p);
    const int64_t rows = cu[c->docs.count], width = (c->order - 1) * c->heads;
    struct ngram_hash hash = {.order = c->order, .heads = c->heads, .pad = 3};
    for (int64_t k = 0; k < c->order; k++) hash.multipliers[k] = (INT64_MAX / VOCAB - 977 * k) | 1;
    for (int64_t i = 0; i < width; i++)
        hash.primes[i] = (int32_t)(1009 + 2 * i), hash.offsets[i] = (int32_t)(3000 * i);
    int32_t *before = c->before ? probe_ids(p, "before", c->docs.count * (c->order - 1), VOCAB) : NULL;
    if (before) before[0] = TOKEN_NONE;
    RUN(o, ngram, .tokens = probe_ids(p, "tokens", rows, VOCAB), .before = before,
        .map = c->mapped ? probe_ids(p, "map", VOCAB, VOCAB / 2) : NULL,
        .out = probe_out_ids(p, "out", rows * width), .cu_seqlens = cu, .docs = c->docs.count, .rows = rows,
        .hash = &hash);
}

/* delta is an input of the backward that only a forward can give. h is above u: where they all but cancel, what is left is the
 * rounding of u, which goes either way. */
void run_ngram_gate(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_rows *c = &oc->rows;
    const dtype acc = dtype_acc(p->dt);
    const int64_t count = c->rows * c->d;
    const double tol = 8 * tol_reduce(acc, c->d);
    const void *a = probe_in(p, "a", p->dt, count, 0.2, 1), *b = probe_in(p, "b", p->dt, count, 0.2, 1),
               *v = probe_in(p, "v", p->dt, count, 0, 1);
    if (oc->op == OP_ngram_gate_fwd) {
        const void *h = probe_in(p, "h", p->dt, count, 8, 1);
        void *sum = probe_out(p, "sum", PROBE_OUT, p->dt, count, 4 * tol);
        if (c->in_place && count) h = memcpy(sum, h, (size_t)count * dtype_bytes(p->dt));
        RUN(o, ngram_gate_fwd, .a = a, .b = b, .v = v, .h = h,
            .u = probe_out(p, "u", PROBE_OUT, p->dt, count, 4 * tol), .sum = sum,
            .delta = probe_out(p, "delta", PROBE_OUT, acc, c->rows, tol), .rows = c->rows, .d = c->d,
            .dt = p->dt);
        return;
    }
    void *delta = probe_in(p, "delta", acc, c->rows, 0, 1),
         *u = probe_out(p, "u", PROBE_WORK, p->dt, count, 0),
         *sum = probe_out(p, "sum", PROBE_WORK, p->dt, count, 0);
    GIVEN(ngram_gate_fwd, .a = a, .b = b, .v = v, .h = v, .u = u, .sum = sum, .delta = delta, .rows = c->rows,
          .d = c->d, .dt = p->dt);
    RUN(o, ngram_gate_bwd, .du = probe_in(p, "du", p->dt, count, 0, 1), .a = a, .b = b, .v = v,
        .delta = delta, .da = probe_out(p, "da", PROBE_OUT, p->dt, count, 16 * tol),
        .db = probe_out(p, "db", PROBE_OUT, p->dt, count, 16 * tol),
        .dv = probe_out(p, "dv", PROBE_OUT, p->dt, count, 16 * tol), .rows = c->rows, .d = c->d, .dt = p->dt);
}
