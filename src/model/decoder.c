#include "model/decoder.h"
#include "base/scope.h"

#include <stdio.h>
#include <stdlib.h>

static void block_init(struct block *m, struct params *p, const struct model_spec *spec, int64_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%lld.norm1", (long long)layer);
    norm_init(&m->norm1, p, name, (enum norm)spec->norm, spec->hidden_size, spec->norm_eps);
    snprintf(name, sizeof name, "layers.%lld.attn", (long long)layer);
    attn_init(&m->attn, p, name, spec, layer);
    snprintf(name, sizeof name, "layers.%lld.norm2", (long long)layer);
    norm_init(&m->norm2, p, name, (enum norm)spec->norm, spec->hidden_size, spec->norm_eps);
    snprintf(name, sizeof name, "layers.%lld.mlp", (long long)layer);
    mlp_init(&m->mlp, p, name, spec);
}

status decoder_init(struct decoder *d, const struct model_spec *spec)
{
    *d = (struct decoder){.spec = *spec};
    d->blocks = calloc((size_t)spec->layer_count, sizeof *d->blocks);
    if (d->blocks == NULL)
        return FAIL(STATUS_FIT, "no memory for %lld block descriptions", (long long)spec->layer_count);
    embed_init(&d->embed, &d->params, spec);
    for (int64_t i = 0; i < spec->layer_count; i++) block_init(&d->blocks[i], &d->params, spec, i);
    norm_init(&d->norm, &d->params, "norm", (enum norm)spec->norm, spec->hidden_size, spec->norm_eps);
    head_init(&d->head, &d->params, spec, spec->tied_embeddings ? d->embed.table : -1);
    return STATUS_OK;
}

void decoder_fini(struct decoder *d)
{
    free(d->blocks);
    params_free(&d->params);
    *d = (struct decoder){0};
}

status decoder_lay_params(struct decoder *d, const struct decoder_lay_args *a)
{
    params_lay(&d->params, &(struct params_lay_args){.dt = a->dt,
                                                     .moment_dt = a->moment_dt,
                                                     .with_grad = a->with_grad,
                                                     .moments = a->moments,
                                                     .arenas = a->arenas});
    return rope_lay(
        &d->rope, &d->spec,
        &(struct rope_lay_args){
            .positions = a->positions, .dt = a->dt, .perm = a->arenas.param, .stream = a->stream});
}

static void block_lay(const struct block *m, struct block_saved *s, const struct lay *l)
{
    int64_t d = m->norm1.d;
    struct arena *keep_sum = lay_place(l, RECOMPUTE_FULL), *keep_norm = lay_place(l, RECOMPUTE_SELECTIVE);
    s->s1 = tensor_take(l->mode == LAY_TRAIN ? l->act : l->scratch, "block input", l->dt, 2, l->n, d);
    s->y1 = tensor_take(keep_norm, "norm output", l->dt, 2, l->n, d);
    norm_lay(&m->norm1, &s->norm1, l);
    attn_lay(&m->attn, &s->attn, l);
    s->s2 = tensor_take(keep_sum, "sum after attention", l->dt, 2, l->n, d);
    s->y2 = tensor_take(keep_norm, "norm output", l->dt, 2, l->n, d);
    norm_lay(&m->norm2, &s->norm2, l);
    mlp_lay(&m->mlp, &s->mlp, l);
}

status activations_lay(struct activations *a, const struct decoder *d, const struct lay *l)
{
    int64_t width = d->spec.hidden_size;
    *a = (struct activations){.lay = *l};
    a->blocks = calloc((size_t)d->spec.layer_count, sizeof *a->blocks);
    if (a->blocks == NULL)
        return FAIL(STATUS_FIT, "no memory for %lld layers of activations", (long long)d->spec.layer_count);
    a->workspace =
        tensor_take(l->act, "workspace of the op set", DTYPE_U8, 1, (int64_t)l->ops->workspace(l->n));
    a->x = tensor_take(l->act, "embedding output", l->dt, 2, l->n, width);
    a->branch = tensor_take(l->act, "branch output", l->dt, 2, l->n, width);
    a->s = tensor_take(l->act, "final sum", l->dt, 2, l->n, width);
    a->y = tensor_take(l->act, "final norm output", l->dt, 2, l->n, width);
    if (l->mode == LAY_TRAIN) {
        a->grad = tensor_take(l->act, "stream gradient", l->dt, 2, l->n, width);
        a->dy = tensor_take(l->act, "branch gradient", l->dt, 2, l->n, width);
    }
    for (int64_t i = 0; i < d->spec.layer_count; i++) {
        size_t mark = arena_mark(l->scratch);
        block_lay(&d->blocks[i], &a->blocks[i], l);
        arena_release(l->scratch, mark);
    }
    size_t mark = arena_mark(l->scratch);
    struct lay final = *l;
    final.recompute = RECOMPUTE_NONE; /* used at once: there is nothing to recompute */
    norm_lay(&d->norm, &a->norm, &final);
    head_lay(&d->head, &a->head, l);
    arena_release(l->scratch, mark);
    return STATUS_OK;
}

void activations_fini(struct activations *a)
{
    free(a->blocks);
    *a = (struct activations){0};
}

/* A batch may be shorter than what was laid out (the last one of an evaluation, a prompt): the views shrink, the memory stays. */
static void set_rows(struct tensor *t, int64_t n)
{
    if (t->rank) t->shape[0] = n;
}
static void block_rows(struct block_saved *s, int64_t n)
{
    struct tensor *all[] = {&s->s1,           &s->y1,         &s->s2,         &s->y2,       &s->norm1.mean,
                            &s->norm1.rstd,   &s->norm2.mean, &s->norm2.rstd, &s->attn.qkv, &s->attn.rot,
                            &s->attn.qk_rstd, &s->attn.o,     &s->attn.dqkv,  &s->attn.do_, &s->mlp.up,
                            &s->mlp.m,        &s->mlp.dm};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) set_rows(all[i], n);
}
static void activations_rows(struct activations *a, const struct decoder *d, int64_t n)
{
    CHECK(n > 0 && n <= a->lay.n, "%lld tokens in a layout for %lld", (long long)n, (long long)a->lay.n);
    if (a->x.shape[0] == n) return;
    struct tensor *all[] = {&a->x, &a->branch, &a->grad, &a->s, &a->y, &a->dy, &a->norm.mean, &a->norm.rstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) set_rows(all[i], n);
    for (int64_t i = 0; i < d->spec.layer_count; i++) block_rows(&a->blocks[i], n);
}

status block_fwd(const struct block *m, struct block_saved *s, const struct rope *rope, const struct batch *b,
                 const struct block_io *io, const struct run *r)
{
    TRY(norm_fwd(&m->norm1, &s->norm1, io->x, io->branch, s->s1, s->y1, r));
    TRY(attn_fwd(&m->attn, &s->attn, rope, b, s->y1, io->out, r));
    TRY(norm_fwd(&m->norm2, &s->norm2, s->s1, io->out, s->s2, s->y2, r));
    return mlp_fwd(&m->mlp, &s->mlp, s->y2, io->out, r);
}

/* What the policy did not keep, computed again from s1: the same ops on the same inputs give the same bits. */
static status block_again(const struct block *m, struct block_saved *s, enum recompute policy,
                          const struct rope *rope, const struct batch *b, struct tensor branch,
                          const struct run *r)
{
    const struct tensor none = {0};
    if (policy == RECOMPUTE_NONE) return STATUS_OK;
    TRY(norm_fwd(&m->norm1, &s->norm1, s->s1, none, none, s->y1, r));
    if (policy == RECOMPUTE_FULL) {
        TRY(attn_fwd(&m->attn, &s->attn, rope, b, s->y1, branch, r));
        TRY(norm_fwd(&m->norm2, &s->norm2, s->s1, branch, s->s2, s->y2, r));
        TRY(linear_fwd(&m->mlp.up, s->y2, s->mlp.up, r));
    } else {
        TRY(norm_fwd(&m->norm2, &s->norm2, s->s2, none, none, s->y2, r));
    }
    return mlp_activate(&m->mlp, &s->mlp, r);
}

/* G: gradient of (s2 + b) in, of (x + b_previous) out. dy: memory for a branch's input gradient. */
static status block_bwd(const struct block *m, struct block_saved *s, const struct rope *rope,
                        const struct batch *b, struct tensor g, struct tensor dy, const struct run *r)
{
    TRY(mlp_bwd(&m->mlp, &s->mlp, s->y2, g, dy, r));
    TRY(norm_bwd(&m->norm2, &s->norm2, s->s2, dy, g, g, r));
    TRY(attn_bwd(&m->attn, &s->attn, rope, b, s->y1, g, dy, r));
    return norm_bwd(&m->norm1, &s->norm1, s->s1, dy, g, g, r);
}

status activations_begin(struct activations *a, const struct decoder *d, const struct batch *b,
                         const struct run *r)
{
    SCOPE("embed.fwd", -1);
    activations_rows(a, d, b->rows);
    return embed_fwd(&d->embed, b, a->x, r);
}

status decoder_fwd(const struct decoder *d, struct activations *a, const struct batch *b, const struct run *r)
{
    TRY(activations_begin(a, d, b, r));
    struct block_io io = {.x = a->x, .out = a->branch};
    for (int64_t i = 0; i < d->spec.layer_count; i++) {
        SCOPE("block.fwd", i);
        TRY(block_fwd(&d->blocks[i], &a->blocks[i], &d->rope, b, &io, r));
        /* Under FORWARD all layers share the place of s2; the next norm reads it before it is overwritten, row by row. */
        io = (struct block_io){.x = a->blocks[i].s2, .branch = a->branch, .out = a->branch};
    }
    SCOPE("norm.fwd", -1);
    return norm_fwd(&d->norm, &a->norm, io.x, io.branch, a->s, a->y, r);
}

status decoder_loss(const struct decoder *d, struct activations *a, const struct batch *b, double z_loss,
                    const struct run *r)
{
    TRY(decoder_fwd(d, a, b, r));
    SCOPE("head.loss", -1);
    return head_loss(&d->head, &a->head, &(struct head_loss_args){.y = a->y, .batch = b, .z_loss = z_loss},
                     r);
}

status decoder_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b, double z_loss,
                       const struct run *r)
{
    CHECK(a->lay.mode == LAY_TRAIN, "backward without saved activations");
    TRY(decoder_fwd(d, a, b, r));
    {
        SCOPE("head.loss", -1);
        TRY(head_loss(&d->head, &a->head,
                      &(struct head_loss_args){.y = a->y, .dy = a->dy, .batch = b, .z_loss = z_loss}, r));
    }
    {
        SCOPE("norm.bwd", -1);
        TRY(norm_bwd(&d->norm, &a->norm, a->s, a->dy, (struct tensor){0}, a->grad, r));
    }
    for (int64_t i = d->spec.layer_count - 1; i >= 0; i--) {
        SCOPE("block.bwd", i);
        TRY(block_again(&d->blocks[i], &a->blocks[i], a->lay.recompute, &d->rope, b, a->branch, r));
        TRY(block_bwd(&d->blocks[i], &a->blocks[i], &d->rope, b, a->grad, a->dy, r));
    }
    SCOPE("embed.bwd", -1);
    return embed_bwd(&d->embed, b, a->grad, r);
}
