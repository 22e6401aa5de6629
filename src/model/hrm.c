#include "model/hrm.h"

#include <stdlib.h>

status hrm_init(struct decoder *d)
{
    if (d->spec.hrm_cycles == 0) return STATUS_OK;
    d->hrm = calloc(1, sizeof *d->hrm);
    if (d->hrm == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of hierarchical reasoning");
    stream_norm_init(&d->hrm->input, &d->params, "hrm.input_norm", &d->spec);
    stream_norm_init(&d->hrm->low, &d->params, "hrm.low_norm", &d->spec);
    d->hrm->halt = d->hrm->halt_bias = -1;
    if (!d->spec.hrm_halt) return STATUS_OK;
    d->hrm->halt = params_add(&d->params, ROLE_HEAD, 0, 2, d->spec.hidden_size, "hrm.halt.weight");
    d->params.rows[d->hrm->halt].zero = true;
    d->hrm->halt_bias = params_add(&d->params, ROLE_BIAS, -5, 2, 0, "hrm.halt.bias");
    return STATUS_OK;
}

status hrm_layout(struct activations *a, const struct decoder *d, const struct layout *l)
{
    const int64_t width = d->spec.hidden_size;
    struct layout kept = *l;
    kept.recompute = RECOMPUTE_NONE; /* keep the norms' outputs and statistics */
    if (d->hrm == NULL) return STATUS_OK;
    a->hrm = calloc(1, sizeof *a->hrm);
    if (a->hrm == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the states of hierarchical reasoning");
    a->hrm->x = tensor_take(l->act, "normed embedding", l->dt, 2, l->n, width);
    a->hrm->in = tensor_take(l->act, "embedding and high-level state", l->dt, 2, l->n, width);
    a->hrm->sum = tensor_take(l->act, "low-level sum", l->dt, 2, l->n, width);
    a->hrm->low = tensor_take(l->act, "low-level state", l->dt, 2, l->n, width);
    norm_layout(&d->hrm->input, &a->hrm->input_norm, &kept);
    norm_layout(&d->hrm->low, &a->hrm->low_norm, &kept);
    if (!hrm_halts(d) || l->mode != LAYOUT_TRAIN) return STATUS_OK;
    const int64_t segments = model_segments(&d->spec);
    a->hrm->q = tensor_take(l->act, "what the halting head says", dtype_acc(l->dt), 2,
                            (segments + 1) * l->docs_max, (int64_t)2);
    a->hrm->stop = tensor_take(l->act, "segments of documents", DTYPE_I32, 1, l->docs_max);
    a->hrm->masked = tensor_take(l->act, "targets of segments", DTYPE_I32, 1, segments * l->n);
    return STATUS_OK;
}

void hrm_rows(struct activations *a, int64_t rows)
{
    struct hrm_saved *s = a->hrm;
    if (s == NULL) return;
    struct tensor *all[] = {&s->x,
                            &s->in,
                            &s->sum,
                            &s->low,
                            &s->input_norm.mean,
                            &s->input_norm.rstd,
                            &s->low_norm.mean,
                            &s->low_norm.rstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
}

status hrm_begin(const struct decoder *d, struct activations *a, const struct exec *r)
{
    const struct tensor none = {0};
    if (d->hrm == NULL) return STATUS_OK;
    return norm_fwd(&d->hrm->input, &a->hrm->input_norm, a->x, none, none, a->hrm->x, r);
}

/* x + z_H. norm_fwd computes the sum; its normed output is not used. */
static status inject(const struct decoder *d, struct activations *a, const struct exec *r)
{
    struct norm_saved unused = {0};
    return norm_fwd(&d->hrm->input, &unused, a->hrm->x, a->y, a->hrm->in, a->branch, r);
}

status hrm_enter(const struct decoder *d, struct activations *a, int64_t k, struct block_io *io,
                 const struct exec *r)
{
    const int64_t steps = d->spec.hrm_steps, in_cycle = k % (steps + 1);
    *io = (struct block_io){.x = a->x, .out = a->branch};
    if (d->hrm == NULL) return STATUS_OK;
    struct hrm_saved *s = a->hrm;
    if (in_cycle == 0 && k > 0) TRY(inject(d, a, r));
    if (in_cycle < steps) { /* L; in the first cycle z_H is 0, in its first pass z_L too */
        io->x = k < steps ? s->x : s->in;
        if (k > 0) io->branch = s->low;
    } else { /* H */
        io->x = s->low;
        if (k > steps) io->branch = a->y;
    }
    return STATUS_OK;
}

status hrm_low_fwd(const struct decoder *d, struct activations *a, const struct block_io *io,
                   const struct exec *r)
{
    struct hrm_saved *s = a->hrm;
    return norm_fwd(&d->hrm->low, &s->low_norm, io->x, io->branch, s->sum, s->low, r);
}

status hrm_low_bwd(const struct decoder *d, struct activations *a, const struct exec *r)
{
    const struct tensor none = {0};
    return norm_bwd(&d->hrm->low, &a->hrm->low_norm, a->hrm->sum, a->grad, none, a->grad, r);
}

status hrm_begin_bwd(const struct decoder *d, struct activations *a, const struct exec *r)
{
    const struct tensor none = {0};
    if (d->hrm == NULL) return STATUS_OK;
    return norm_bwd(&d->hrm->input, &a->hrm->input_norm, a->x, a->grad, none, a->grad, r);
}

/* [docs, 2]: the halting values after segment m. */
static void *said(const struct activations *a, const struct batch *b, int64_t m)
{
    return (char *)a->hrm->q.data + (size_t)(2 * m * b->docs) * dtype_bytes(a->hrm->q.dt);
}

status hrm_look(const struct decoder *d, struct activations *a, const struct batch *b, const struct exec *r)
{
    if (!hrm_halts(d)) return STATUS_OK;
    const int64_t segments = model_segments(&d->spec), passes = model_passes(&d->spec) / segments;
    for (int64_t m = 0; m <= segments; m++) {
        for (int64_t k = m * passes; k < (m + 1) * passes; k++) TRY(decoder_pass(d, a, b, k, r));
        TRY(r->ops->halt_fwd(&(struct halt_fwd_args){.z = a->y.data,
                                                     .w = params_weight(r->params, d->hrm->halt),
                                                     .b = params_weight(r->params, d->hrm->halt_bias),
                                                     .q = said(a, b, m),
                                                     .cu_seqlens = b->cu_seqlens,
                                                     .docs = b->docs,
                                                     .d = d->spec.hidden_size,
                                                     .dt = a->y.dt},
                             r->stream));
    }
    return r->ops->halt_stop(&(struct halt_stop_args){.q = a->hrm->q.data,
                                                      .tokens = b->tokens,
                                                      .targets = b->targets,
                                                      .cu_seqlens = b->cu_seqlens,
                                                      .step = &r->scalars->step,
                                                      .stop = a->hrm->stop.data,
                                                      .masked = a->hrm->masked.data,
                                                      .docs = b->docs,
                                                      .rows = b->rows,
                                                      .segments = segments,
                                                      .explore = d->spec.hrm_explore,
                                                      .dt = a->y.dt},
                             r->stream);
}

const int32_t *hrm_targets(const struct decoder *d, const struct activations *a, const struct batch *b,
                           int64_t segment)
{
    return hrm_halts(d) ? (const int32_t *)a->hrm->masked.data + segment * b->rows : b->targets;
}

status hrm_halt_bwd(const struct decoder *d, struct activations *a, const struct batch *b, int64_t segment,
                    const struct exec *r)
{
    if (!hrm_halts(d)) return STATUS_OK;
    return r->ops->halt_bwd(&(struct halt_bwd_args){.q = said(a, b, segment),
                                                    .q_next = said(a, b, segment + 1),
                                                    .stop = a->hrm->stop.data,
                                                    .targets = hrm_targets(d, a, b, segment),
                                                    .hits = a->head.hits.data,
                                                    .z = a->y.data,
                                                    .w = params_weight(r->params, d->hrm->halt),
                                                    .cu_seqlens = b->cu_seqlens,
                                                    .scale = &r->scalars->halt_scale,
                                                    .loss_sum = &r->scalars->halt_sum,
                                                    .dz = a->dy.data,
                                                    .dw = params_grad(r->params, d->hrm->halt),
                                                    .db = params_grad(r->params, d->hrm->halt_bias),
                                                    .docs = b->docs,
                                                    .d = d->spec.hidden_size,
                                                    .m = segment + 1,
                                                    .segments = model_segments(&d->spec),
                                                    .dt = a->y.dt},
                            r->stream);
}
