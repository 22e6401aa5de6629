#include "model/mtp.h"
#include "base/scope.h"

#include <stdio.h>
#include <stdlib.h>

static void module_init(struct mtp *m, struct params *p, const struct model_spec *spec, int64_t index)
{
    char layer[32], name[64];
    const int64_t d = spec->hidden_size;
    m->unit = p->unit_count;
    params_unit(p);
    snprintf(layer, sizeof layer, "mtp.%lld", (long long)index);
    struct {
        struct norm_block *norm;
        const char *name;
    } const norms[] = {{&m->enorm, "enorm"}, {&m->hnorm, "hnorm"}, {&m->norm, "norm"}};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.%s", layer, norms[i].name);
        stream_norm_init(norms[i].norm, p, name, spec);
    }
    snprintf(name, sizeof name, "%s.e_proj", layer);
    linear_init(&m->e, p, name, ROLE_MATRIX, d, d, BIAS_NONE);
    linear_split(&m->e, p, SPLIT_PARTIAL_GRAD, NULL, 0);
    snprintf(name, sizeof name, "%s.h_proj", layer);
    linear_init(&m->h, p, name, ROLE_MATRIX, d, d, BIAS_NONE);
    linear_split(&m->h, p, SPLIT_PARTIAL_GRAD, NULL, 0);
    block_init(&m->block, p, spec, layer, spec->layer_count + index);
}

status mtp_init(struct decoder *d)
{
    const int64_t depth = d->spec.mtp_depth;
    if (depth == 0) return STATUS_OK;
    d->mtp = calloc((size_t)depth, sizeof *d->mtp);
    if (d->mtp == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the modules of multi-token prediction");
    for (int64_t i = 0; i < depth; i++) module_init(&d->mtp[i], &d->params, &d->spec, i);
    return STATUS_OK;
}

static void module_layout(const struct mtp *m, struct mtp_saved *s, const struct layout *l)
{
    const struct layout part = sp_local_layout(l);
    const int64_t d = m->norm.d, n = part.n;
    struct arena *cheap = layout_arena(l, RECOMPUTE_SELECTIVE);
    struct layout kept = part;
    kept.recompute = RECOMPUTE_NONE; /* keep the last norm's output and statistics */
    s->tokens = tensor_take(l->act, "tokens ahead", DTYPE_I32, 1, l->n);
    s->targets = tensor_take(l->act, "targets ahead", DTYPE_I32, 1, l->n);
    if (l->cp_size > 1) s->ahead = tensor_take(l->scratch, "ids ahead", DTYPE_I32, 1, l->n * l->cp_size);
    s->s = tensor_take(l->act, "extra prediction's sum", l->dt, 2, n, d);
    s->y = tensor_take(l->act, "extra prediction's norm output", l->dt, 2, n, d);
    norm_layout(&m->norm, &s->norm, &kept);
    s->embedded = tensor_take(cheap, "embedding ahead", l->dt, 2, n, d);
    s->e = tensor_take(cheap, "norm of the embedding ahead", l->dt, 2, n, d);
    s->h = tensor_take(cheap, "norm of the stream", l->dt, 2, n, d);
    linear_layout(&m->e, &s->e_saved, LINEAR_NONE, &part);
    linear_layout(&m->h, &s->h_saved, LINEAR_NONE, &part);
    norm_layout(&m->enorm, &s->enorm, &part);
    norm_layout(&m->hnorm, &s->hnorm, &part);
    block_layout(&m->block, &s->block, l);
}

status mtp_layout(struct activations *a, const struct decoder *d, const struct layout *l)
{
    const int64_t depth = d->spec.mtp_depth;
    if (depth == 0 || l->mode != LAYOUT_TRAIN || !d->part.last) return STATUS_OK;
    a->mtp = calloc((size_t)depth, sizeof *a->mtp);
    if (a->mtp == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the modules of multi-token prediction");
    for (int64_t i = 0; i < depth; i++) {
        size_t mark = arena_mark(l->scratch);
        module_layout(&d->mtp[i], &a->mtp[i], l);
        arena_release(l->scratch, mark);
    }
    return STATUS_OK;
}

void mtp_rows(struct activations *a, const struct decoder *d, int64_t rows)
{
    for (int64_t i = 0; a->mtp && i < d->spec.mtp_depth; i++) {
        struct mtp_saved *s = &a->mtp[i];
        struct tensor *ids[] = {&s->tokens, &s->targets},
                      *all[] = {&s->embedded,   &s->e,          &s->h,          &s->s,
                                &s->y,          &s->enorm.mean, &s->enorm.rstd, &s->hnorm.mean,
                                &s->hnorm.rstd, &s->norm.mean,  &s->norm.rstd};
        for (size_t k = 0; k < sizeof ids / sizeof ids[0]; k++) tensor_rows(ids[k], rows);
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            tensor_rows(all[k], rows / s->block.seq_par.tp_size);
        block_rows(&d->mtp[i].block, &s->block, rows);
    }
}

/* The batch as module `index` embeds it: its own tokens; position embeddings are not added. */
static struct batch seen(const struct batch *b, const struct mtp_saved *s)
{
    struct batch ahead = *b;
    ahead.tokens = s->tokens.data;
    return ahead;
}

static struct embed table_alone(const struct decoder *d)
{
    struct embed e = d->embed;
    e.pos = -1;
    return e;
}

/* The inputs of the two GEMMs: the normed embedding and the normed residual stream `h`. */
static status inputs(const struct decoder *d, const struct mtp *m, struct mtp_saved *s, const struct batch *b,
                     struct tensor h, const struct exec *r)
{
    const struct tensor none = {0};
    const struct batch ahead = seen(b, s);
    const struct embed table = table_alone(d);
    TRY(embed_fwd(&table, &ahead, sp_out(&s->block.seq_par, s->embedded), r));
    TRY(sp_reduce_scatter(&s->block.seq_par, s->embedded, r));
    TRY(norm_fwd(&m->enorm, &s->enorm, s->embedded, none, none, s->e, r));
    return norm_fwd(&m->hnorm, &s->hnorm, h, none, none, s->h, r);
}

/* Ids k tokens ahead; the batch that a context-parallel rank's is a part of has those on other ranks. */
static status ids_ahead(const struct mtp_saved *s, const struct batch *b, int64_t k, const int32_t *ids,
                        int32_t none, struct tensor to, const struct exec *r)
{
    TRY(r->ops->shift_tokens(&(struct shift_tokens_args){.in = ids,
                                                         .out = b->context ? s->ahead.data : to.data,
                                                         .none = none,
                                                         .cu_seqlens = context_full_batch(b)->cu_seqlens,
                                                         .k = k,
                                                         .docs = context_full_batch(b)->docs,
                                                         .rows = context_full_batch(b)->rows},
                             r->stream));
    return b->context ? context_rows_take(to, s->ahead, b->context, r) : STATUS_OK;
}

static status look_ahead(const struct mtp_saved *s, const struct batch *b, int64_t k, const struct exec *r)
{
    const struct batch *whole = context_full_batch(b);
    TRY(ids_ahead(s, b, k, whole->tokens, TOKEN_NONE, s->tokens, r));
    return ids_ahead(s, b, k, whole->targets, TARGET_IGNORE, s->targets, r);
}

/* `stream`: the residual stream that the first module reads. */
static status module_fwd(const struct decoder *d, struct activations *a, int64_t i, const struct layer_ctx *c,
                         struct tensor stream, const struct exec *r)
{
    SCOPE("mtp.fwd", i);
    const struct mtp *m = &d->mtp[i];
    struct mtp_saved *s = &a->mtp[i];
    TRY(params_unshard(r->params, m->unit, UNIT_FORWARD));
    TRY(look_ahead(s, c->batch, i + 1, r));
    TRY(inputs(d, m, s, c->batch, i ? a->mtp[i - 1].s : stream, r));
    TRY(linear_fwd(&m->e, &s->e_saved, s->e, a->x, r));
    TRY(linear_fwd(&m->h, &s->h_saved, s->h, a->branch, r));
    struct block_io io = {.x = a->x, .branch = a->branch, .out = a->branch, .next = s->s};
    TRY(block_fwd(&m->block, &s->block, c, &io, r));
    return norm_fwd(&m->norm, &s->norm, io.x, io.branch, s->s, s->y, r);
}

/* a->grad: the gradient of s->s from the next module, if there is one. out: the gradient of the residual
 * stream that this module read. */
static status module_bwd(const struct decoder *d, struct activations *a, int64_t i, const struct layer_ctx *c,
                         struct tensor stream, const struct exec *r)
{
    SCOPE("mtp.bwd", i);
    const struct mtp *m = &d->mtp[i];
    struct mtp_saved *s = &a->mtp[i];
    const struct tensor none = {0}, h = i ? a->mtp[i - 1].s : stream;
    const bool last = i == d->spec.mtp_depth - 1;
    TRY(params_unshard(r->params, m->unit, UNIT_BACKWARD));
    TRY(decoder_head(d, a,
                     &(struct head_loss_args){.y = s->y,
                                              .dy = a->dy,
                                              .targets = s->targets.data,
                                              .grad_scale = &r->scalars->mtp_scale,
                                              .loss_sum = &r->scalars->mtp_loss_sum,
                                              .accum = last ? r->accum : ACCUM_ADD},
                     r));
    TRY(norm_bwd(&m->norm, &s->norm, s->s, a->dy, last ? none : a->grad, a->grad, r));
    TRY(block_recompute(&m->block, &s->block, a->layout.recompute, c, a->branch, r));
    TRY(block_bwd(&m->block, &s->block, c, a->grad, a->dy, NULL, r));
    if (a->layout.recompute != RECOMPUTE_NONE) TRY(inputs(d, m, s, c->batch, h, r));
    TRY(linear_wgrad(&m->e, &s->e_saved, s->e, a->grad, r));
    TRY(linear_dgrad(&m->e, &s->e_saved, a->grad, a->dy, r));
    TRY(norm_bwd(&m->enorm, &s->enorm, s->embedded, a->dy, none, a->dy, r));
    const struct batch ahead = seen(c->batch, s);
    const struct embed table = table_alone(d);
    struct tensor dx;
    TRY(sp_all_gather(s->block.seq_par.out, a->dy, &dx, r));
    TRY(embed_bwd(&table, &ahead, dx, r));
    TRY(linear_wgrad(&m->h, &s->h_saved, s->h, a->grad, r));
    TRY(linear_dgrad(&m->h, &s->h_saved, a->grad, a->dy, r));
    TRY(norm_bwd(&m->hnorm, &s->hnorm, h, a->dy, none, a->grad, r));
    return params_reshard(r->params, m->unit);
}

status mtp_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                   struct tensor stream, const struct exec *r)
{
    const struct layer_ctx c = {.rope = &d->rope, .batch = b};
    for (int64_t i = 0; i < d->spec.mtp_depth; i++) TRY(module_fwd(d, a, i, &c, stream, r));
    for (int64_t i = d->spec.mtp_depth - 1; i >= 0; i--) TRY(module_bwd(d, a, i, &c, stream, r));
    return STATUS_OK;
}
