#include "model/stage.h"
#include "base/scope.h"
#include "model/mtp.h"

#include <stdlib.h>

/* Deferred weight gradients of the rank's blocks: their rows of the parameter table are consecutive (one
 * chunk). */
static status store_layout(struct deferred *q, const struct decoder *d, const struct layout *l)
{
    const struct param_unit *units = d->params.units;
    CHECK(d->part.chunks == 1, "weight gradients are deferred in %d chunks", d->part.chunks);
    return deferred_layout(q, &(struct deferred_layout){.params = &d->params,
                                                        .first = units[d->part.layers[0].begin + 1].first,
                                                        .last = units[d->part.layers[0].end].last,
                                                        .context = l->cp_size,
                                                        .n = l->n,
                                                        .dt = l->dt,
                                                        .a = l->act});
}

/* One set of activations. Every chunk starts at the same address: a set holds one chunk at a time. */
static void set_layout(struct stage_set *set, const struct decoder *d, const struct layout *l)
{
    const size_t begin = arena_mark(l->act);
    const struct layout part = sp_local_layout(l);
    size_t end = begin;
    for (int c = 0; c < d->part.chunks; c++) {
        arena_release(l->act, begin);
        for (int64_t i = d->part.layers[c].begin; i < d->part.layers[c].end; i++) {
            const size_t mark = arena_mark(l->scratch);
            block_layout(&d->blocks[i], &set->blocks[i], l);
            arena_release(l->scratch, mark);
        }
        if (d->part.last && c == d->part.chunks - 1)
            set->s = tensor_take(l->act, "final sum", l->dt, 2, part.n, d->spec.hidden_size);
        if (arena_mark(l->act) > end) end = arena_mark(l->act);
    }
    arena_take(l->act, end - arena_mark(l->act), "a longer chunk's activations");
}

status stages_layout(struct activations *a, const struct decoder *d, const struct layout *l)
{
    struct stages *s = calloc(1, sizeof *s);
    if (s == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a stage's description");
    a->stages = s;
    s->sets = calloc((size_t)l->sets, sizeof *s->sets);
    s->stores = calloc((size_t)l->stores + 1, sizeof *s->stores);
    if (s->sets == NULL || s->stores == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d sets of activations", l->sets);
    for (; s->set_count < l->sets; s->set_count++) {
        struct stage_set *set = &s->sets[s->set_count];
        set->blocks = calloc((size_t)d->spec.layer_count, sizeof *set->blocks);
        if (set->blocks == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld layers of activations",
                        (long long)d->spec.layer_count);
        set_layout(set, d, l);
    }
    for (; s->store_count < l->stores; s->store_count++) TRY(store_layout(&s->stores[s->store_count], d, l));
    return STATUS_OK;
}

void stages_fini(struct activations *a)
{
    struct stages *s = a->stages;
    if (s == NULL) return;
    for (int i = 0; s->sets && i < s->set_count; i++) free(s->sets[i].blocks);
    for (int i = 0; s->stores && i < s->store_count; i++) deferred_fini(&s->stores[i]);
    free(s->sets);
    free(s->stores);
    free(s);
    a->stages = NULL;
}

bool stage_first(const struct stage_at *s)
{
    return s->decoder->part.first && s->chunk == 0;
}

bool stage_last(const struct stage_at *s)
{
    return s->decoder->part.last && s->chunk == s->decoder->part.chunks - 1;
}

status stage_fwd(const struct stage_at *s, const struct batch *b, const struct exec *r)
{
    const struct decoder *d = s->decoder;
    struct activations *a = s->acts;
    struct stage_set *set = &a->stages->sets[s->set];
    const struct layer_ctx c = {.rope = &d->rope, .batch = b};
    const int64_t begin = d->part.layers[s->chunk].begin, end = d->part.layers[s->chunk].end;
    CHECK(b->rows == a->layout.n, "%lld tokens in a pipeline for %lld", (long long)b->rows,
          (long long)a->layout.n);
    if (stage_first(s)) {
        SCOPE("embed.fwd", -1);
        TRY(params_unshard(r->params, 0, UNIT_FORWARD));
        TRY(decoder_embed_fwd(d, a, b, r));
    }
    struct block_io io = {.x = a->x, .out = a->branch};
    for (int64_t i = begin; i < end; i++) {
        SCOPE("block.fwd", i);
        TRY(params_unshard(r->params, i + 1, UNIT_FORWARD));
        io.next = block_next(d, set->blocks, i, end, stage_last(s) ? set->s : a->x);
        TRY(block_fwd(&d->blocks[i], &set->blocks[i], &c, &io, r));
    }
    SCOPE("norm.fwd", -1);
    if (stage_last(s)) {
        TRY(params_unshard(r->params, d->spec.layer_count + 1, UNIT_FORWARD));
        return norm_fwd(&d->norm, &a->norm, io.x, io.branch, set->s, a->y, r);
    }
    if (io.branch.data == NULL) return STATUS_OK; /* the output is in a->x already */
    /* Only the sum is needed: any norm computes it. */
    struct norm_saved unused = {0};
    return norm_fwd(&d->blocks[end - 1].norm2, &unused, io.x, io.branch, a->x, a->y, r);
}

/* A head reads the tied table, MTP modules read it for tokens; else only the first stage enters its unit. */
static status enter_table(const struct stage_at *s, const struct exec *r)
{
    return stage_shares_table(&s->decoder->spec) ? params_unshard(r->params, 0, UNIT_FORWARD) : STATUS_OK;
}

/* Weight gradients of MTP modules are not deferred: their unit ends here. */
static status modules_fwd_bwd(const struct stage_at *s, const struct batch *b, struct tensor stream,
                              const struct exec *r)
{
    struct exec here = *r;
    here.defer = NULL;
    return mtp_fwd_bwd(s->decoder, s->acts, b, stream, &here);
}

/* The loss, and the gradient down to the residual stream. */
static status loss_bwd(const struct stage_at *s, const struct batch *b, const struct stage_bwd *how,
                       const struct exec *r)
{
    const struct decoder *d = s->decoder;
    struct activations *a = s->acts;
    const struct tensor sum = a->stages->sets[s->set].s, none = {0};
    const int64_t end = d->spec.layer_count + 1; /* the unit of norm and head */
    const bool shared = stage_shares_table(&d->spec), more = d->spec.mtp_depth > 0;
    TRY(enter_table(s, r));
    if (shared) TRY(params_unshard(r->params, 0, UNIT_BACKWARD));
    TRY(params_unshard(r->params, end, UNIT_BACKWARD));
    if (more) TRY(modules_fwd_bwd(s, b, sum, r));
    if (!how->fresh) TRY(norm_fwd(&d->norm, &a->norm, sum, none, none, a->y, r));
    {
        SCOPE("head.loss", -1);
        struct head_loss_args loss = decoder_loss_args(a, b->targets, a->dy, r);
        loss.z_loss = how->z_loss;
        loss.accum = more ? ACCUM_ADD : r->accum;
        TRY(decoder_head(d, a, &loss, r));
    }
    SCOPE("norm.bwd", -1);
    TRY(norm_bwd(&d->norm, &a->norm, sum, a->dy, more ? a->grad : none, a->grad, r));
    TRY(params_reshard(r->params, end));
    return shared ? params_reshard(r->params, 0) : STATUS_OK;
}

status stage_bwd(const struct stage_at *s, const struct batch *b, const struct stage_bwd *how,
                 const struct exec *r)
{
    const struct decoder *d = s->decoder;
    struct activations *a = s->acts;
    struct stage_set *set = &a->stages->sets[s->set];
    const struct layer_ctx c = {.rope = &d->rope, .batch = b};
    if (stage_last(s)) TRY(loss_bwd(s, b, how, r));
    for (int64_t i = d->part.layers[s->chunk].end - 1; i >= d->part.layers[s->chunk].begin; i--) {
        SCOPE("block.bwd", i);
        TRY(params_unshard(r->params, i + 1, UNIT_BACKWARD));
        TRY(block_recompute(&d->blocks[i], &set->blocks[i], a->layout.recompute, &c, a->branch, r));
        TRY(block_bwd(&d->blocks[i], &set->blocks[i], &c, a->grad, a->dy, NULL, r));
        TRY(params_reshard(r->params, i + 1));
    }
    if (!stage_first(s)) return STATUS_OK;
    SCOPE("embed.bwd", -1);
    TRY(params_unshard(r->params, 0, UNIT_BACKWARD));
    TRY(decoder_embed_bwd(d, a, b, r));
    return params_reshard(r->params, 0);
}

status stage_loss(const struct stage_at *s, const struct batch *b, const struct exec *r)
{
    SCOPE("head.loss", -1);
    TRY(enter_table(s, r));
    struct head_loss_args loss = decoder_loss_args(s->acts, b->targets, (struct tensor){0}, r);
    loss.hits = &r->scalars->hits;
    return decoder_head(s->decoder, s->acts, &loss, r);
}
