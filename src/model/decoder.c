#include "model/decoder.h"
#include "base/scope.h"
#include "model/hrm.h"
#include "model/mtp.h"
#include "model/stage.h"
#include "parallel/unit_grad.h"

#include <stdio.h>
#include <stdlib.h>

void stream_norm_init(struct norm_block *m, struct params *p, const char *name, const struct model_spec *spec)
{
    norm_init(m, p, name, (enum norm)spec->norm, spec->hidden_size, spec->norm_eps);
    if (spec->norm_zero_centered) norm_center(m, p);
    params_split(p, m->w, SPLIT_PARTIAL_GRAD, NULL, 0);
    if (m->b >= 0) params_split(p, m->b, SPLIT_PARTIAL_GRAD, NULL, 0);
}

/* Notes that a linear reads the output of a norm: its FP8 scale has a bound (parallel/fp8.h). */
static void bind_norm(struct params *p, const struct linear *reader, const struct norm_block *norm)
{
    if (reader) p->rows[reader->w].norm = (struct param_norm){norm->w, norm->b, (float)norm->shift};
}

/* The same of experts, which may be declared after all blocks. */
static void bind_experts(struct params *p, const struct block *m)
{
    if (m->ffn.kind != FFN_MOE) return;
    p->rows[m->ffn.moe.up].norm = (struct param_norm){m->norm2.w, m->norm2.b, (float)m->norm2.shift};
}

void block_init(struct block *m, struct params *p, const struct model_spec *spec, const char *layer_name,
                int64_t layer)
{
    char name[64];
    m->has_engram = model_layer_engram(spec, layer);
    snprintf(name, sizeof name, "%s.engram", layer_name);
    if (m->has_engram) engram_init(&m->engram, p, name, spec, layer);
    snprintf(name, sizeof name, "%s.norm1", layer_name);
    stream_norm_init(&m->norm1, p, name, spec);
    mixer_init(&m->mixer, p, layer_name, spec, layer);
    bind_norm(p, mixer_in(&m->mixer), &m->norm1);
    snprintf(name, sizeof name, "%s.norm2", layer_name);
    stream_norm_init(&m->norm2, p, name, spec);
    ffn_init(&m->ffn, p, layer_name, spec, layer);
    bind_norm(p, ffn_in(&m->ffn), &m->norm2);
    if (p->expert_ranks <= 1) bind_experts(p, m);
}

/* Assigns the blocks to stages in the order of the model. */
static struct pipeline_part part_of(const struct model_spec *spec, const struct mesh *mesh)
{
    struct pipeline_part part = {.chunks = 1, .first = true, .last = true};
    part.layers[0].end = spec->layer_count;
    if (mesh == NULL || mesh->shape.pp == 1) return part;
    const struct mesh_shape *shape = &mesh->shape;
    int64_t at = 0;
    for (int stage = 0; stage < shape->pp * shape->chunks; stage++) {
        const int64_t count = mesh_stage_layers(shape, spec->layer_count, stage);
        if (stage % shape->pp == mesh->pp_rank) {
            part.layers[stage / shape->pp].begin = at;
            part.layers[stage / shape->pp].end = at + count;
        }
        at += count;
    }
    part.chunks = shape->chunks;
    part.first = mesh_first(mesh);
    part.last = mesh_last(mesh);
    return part;
}

/* Units: the embedding, each block, the final norm and head, each MTP module, experts that are sharded, the n-gram
 * tables. A tied table, and one that MTP modules read, is also on the last stage. */
static void mark_units(struct decoder *d)
{
    struct param_unit *u = d->params.units;
    u[0].is_local = d->part.first || (d->part.last && stage_shares_table(&d->spec));
    u[0].is_replica = u[0].is_local && !d->part.first;
    for (int64_t i = 0; i < d->spec.layer_count; i++) {
        u[i + 1].is_local = false;
        for (int c = 0; c < d->part.chunks; c++)
            u[i + 1].is_local |= i >= d->part.layers[c].begin && i < d->part.layers[c].end;
    }
    for (int i = (int)d->spec.layer_count + 1; i < d->params.unit_count; i++)
        u[i].is_local = u[i].block_unit ? u[u[i].block_unit].is_local : d->part.last;
    /* The head on another rank writes the first gradient of a tied table, so here backward adds to zeros. */
    if (d->spec.tied_embeddings && !d->part.last) d->params.rows[d->embed.table].gemm_overwrites_grad = false;
}

/* Experts have units of their own where ranks share them out: they are data parallel over fewer ranks. */
static void experts_init(struct decoder *d)
{
    char name[32];
    for (int i = 0; i < (int)d->spec.layer_count && d->params.expert_ranks > 1; i++) {
        snprintf(name, sizeof name, "layers.%d", i);
        ffn_experts_init(&d->blocks[i].ffn, &d->params, name, i + 1);
        bind_experts(&d->params, &d->blocks[i]);
    }
    for (int i = 0; i < (int)d->spec.mtp_depth && d->params.expert_ranks > 1; i++) {
        snprintf(name, sizeof name, "mtp.%d", i);
        ffn_experts_init(&d->mtp[i].block.ffn, &d->params, name, d->mtp[i].unit);
        bind_experts(&d->params, &d->mtp[i].block);
    }
}

static void engram_tables_init(struct decoder *d)
{
    char name[64];
    for (int i = 0; i < (int)d->spec.layer_count; i++) {
        snprintf(name, sizeof name, "layers.%d.engram", i);
        if (d->blocks[i].has_engram)
            engram_table_init(&d->blocks[i].engram, &d->params, name, &d->spec, i + 1);
    }
}

status decoder_init(struct decoder *d, const struct model_spec *spec, const struct mesh *mesh)
{
    *d = (struct decoder){.spec = *spec, .part = part_of(spec, mesh)};
    if (mesh) {
        const int copies = mesh_copies(mesh), ep = mesh_ep(&mesh->shape);
        d->params.tp_size = mesh->shape.tp, d->params.tp_rank = mesh->tp_rank;
        d->params.expert_ranks = ep, d->params.expert_rank = mesh->ep_rank;
        d->params.expert_shards = mesh->shape.shard / ep, d->params.expert_shard = mesh->edp_rank / copies;
        d->params.zero = mesh->shape.zero, d->params.shards = mesh->shape.shard,
        d->params.shard = mesh_shard_rank(mesh);
    }
    params_unit(&d->params);
    d->blocks = calloc((size_t)spec->layer_count, sizeof *d->blocks);
    if (d->blocks == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld block descriptions",
                    (long long)spec->layer_count);
    embed_init(&d->embed, &d->params, spec);
    for (int64_t i = 0; i < spec->layer_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%lld", (long long)i);
        params_unit(&d->params);
        block_init(&d->blocks[i], &d->params, spec, name, i);
    }
    params_unit(&d->params);
    stream_norm_init(&d->norm, &d->params, "norm", spec);
    head_init(&d->head, &d->params, spec, spec->tied_embeddings ? d->embed.table : -1);
    TRY(mtp_init(d));
    TRY(hrm_init(d));
    experts_init(d);
    engram_tables_init(d);
    mark_units(d);
    return STATUS_OK;
}

void decoder_fini(struct decoder *d)
{
    free(d->blocks);
    free(d->mtp);
    free(d->hrm);
    params_free(&d->params);
    *d = (struct decoder){0};
}

status decoder_layout_params(struct decoder *d, const struct decoder_layout_args *a)
{
    params_layout(&d->params, &(struct params_layout_args){.dt = a->dt,
                                                           .moment_dt = a->moment_dt,
                                                           .with_grad = a->with_grad,
                                                           .moments = a->moments,
                                                           .arenas = a->arenas});
    if (d->spec.engram_fold && d->spec.engram_layers[0])
        d->token_map = tensor_take(a->arenas.param, "map of tokens", DTYPE_I32, 1, d->spec.vocab_size);
    for (int64_t i = 0; i < d->spec.layer_count; i++)
        if (d->blocks[i].has_engram) d->blocks[i].engram.map = d->token_map.data;
    return rope_layout(&d->rope, &d->spec,
                       &(struct rope_layout_args){.dims = mixer_rope_dims(&d->spec),
                                                  .positions = a->positions,
                                                  .dt = a->dt,
                                                  .perm = a->arenas.param,
                                                  .stream = a->stream});
}

/* Whether a norm writes the codes of its output, for the linear that reads it. With sequence parallelism rows of other
 * ranks come as values. */
static bool norm_writes_codes(const struct norm_block *norm, const struct linear *reader,
                              const struct layout *l)
{
    return l->recipe == RECIPE_FP8 && norm->kind == NORM_RMSNORM && l->tp_size <= 1 && reader &&
           l->params->rows[reader->w].fp8 >= 0;
}

static struct tensor norm_output_layout(struct quantized *q, const struct norm_block *norm,
                                        const struct linear *reader, const struct layout *l)
{
    const int64_t n = sp_local_layout(l).n, d = norm->d;
    const bool codes = norm_writes_codes(norm, reader, l);
    struct arena *keep = layout_arena(l, RECOMPUTE_SELECTIVE);
    struct tensor y = tensor_take(codes ? l->scratch : keep, "norm output", l->dt, 2, n, d), row,
                  transposed = {0};
    *q = (struct quantized){0};
    if (!codes) return y;
    row = tensor_take(l->scratch, "FP8 codes of a norm's output", DTYPE_U8, 2, n, d);
    if (l->mode == LAYOUT_TRAIN)
        transposed = tensor_take(keep, "FP8 codes of a norm's output", DTYPE_U8, 2, d, quantized_ld(n));
    *q = linear_quantized(reader, FP8_X, row.data, transposed.data, l->params);
    y.q = q;
    return y;
}

/* The FP8 form of G for `reader`, the linear that reads it next; empty: that linear makes its own. */
static struct quantized dout_quantized(const struct linear *reader, const struct layout *l)
{
    if (!l->codes_dout || reader == NULL) return (struct quantized){0};
    return linear_quantized(reader, FP8_DY, l->dout_codes, l->dout_codes_t, l->params);
}

/* Layout options for a branch: whether its input and its output gradient already carry FP8 codes. */
static struct layout branch_layout(const struct layout *l, const struct tensor *y,
                                   const struct linear *dout_reader)
{
    struct layout branch = *l;
    branch.codes_y = y->q != NULL;
    branch.codes_dout = l->codes_dout && dout_reader && l->params->rows[dout_reader->w].fp8 >= 0;
    return branch;
}

void block_layout(const struct block *m, struct block_saved *s, const struct layout *l)
{
    const struct layout part = sp_local_layout(l);
    const int64_t d = m->norm1.d, n = part.n;
    struct arena *keep_sum = layout_arena(l, RECOMPUTE_FULL);
    struct layout branch;
    if (m->has_engram) engram_layout(&m->engram, &s->engram, l); /* first: see engram_layout */
    s->s1 = tensor_take(l->mode == LAYOUT_TRAIN ? l->act : l->scratch, "block input", l->dt, 2, n, d);
    s->y1 = norm_output_layout(&s->y1_q, &m->norm1, mixer_in(&m->mixer), l);
    s->mixer_dout_q = dout_quantized(mixer_out(&m->mixer), l);
    norm_layout(&m->norm1, &s->norm1, &part);
    branch = branch_layout(l, &s->y1, mixer_out(&m->mixer));
    mixer_layout(&m->mixer, &s->mixer, &branch);
    s->act_mixer = arena_mark(l->act);
    s->s2 = tensor_take(keep_sum, "sum after the mixer", l->dt, 2, n, d);
    s->y2 = norm_output_layout(&s->y2_q, &m->norm2, ffn_in(&m->ffn), l);
    s->ffn_dout_q = dout_quantized(ffn_out(&m->ffn), l);
    norm_layout(&m->norm2, &s->norm2, &part);
    branch = branch_layout(l, &s->y2, ffn_out(&m->ffn));
    ffn_layout(&m->ffn, &s->ffn, &branch);
    sp_layout(&s->seq_par, d, l);
    s->act_end = arena_mark(l->act);
}

/* With `once`, x, y and grad share one buffer: each is written after the last read of the one before it. So
 * does dy, if branch does not need it. MTP modules, segments and pipelines go back and forth, so they cannot
 * share. */
static void stream_layout(struct activations *a, const struct layout *l, int64_t n, int64_t width, bool once)
{
    a->x = tensor_take(l->act, once ? "stream, then its gradient" : "embedding output", l->dt, 2, n, width);
    a->branch = tensor_take(l->act, "output of a branch", l->dt, 2, n, width);
    a->y = once ? a->x : tensor_take(l->act, "final norm output", l->dt, 2, n, width);
    if (l->mode != LAYOUT_TRAIN) return;
    a->grad = once ? a->x : tensor_take(l->act, "stream gradient", l->dt, 2, n, width);
    a->dy = once ? a->branch : tensor_take(l->act, "branch gradient", l->dt, 2, n, width);
}

bool activations_stream_codes(const struct decoder *d, const struct layout *l)
{
    return l->recipe == RECIPE_FP8 && l->mode == LAYOUT_TRAIN && d->norm.kind == NORM_RMSNORM &&
           l->tp_size <= 1 && l->sets == 0 && d->hrm == NULL;
}

/* All layers share one FP8 buffer for the residual-stream gradient G. */
static struct layout stream_codes_layout(const struct decoder *d, const struct layout *l)
{
    struct layout blocks = *l;
    blocks.codes_dout = activations_stream_codes(d, l);
    if (!blocks.codes_dout) return blocks;
    const int64_t width = d->spec.hidden_size, ld = quantized_ld(l->n);
    blocks.dout_codes =
        tensor_take(l->act, "FP8 codes of the stream gradient", DTYPE_U8, 2, l->n, width).data;
    blocks.dout_codes_t =
        tensor_take(l->act, "FP8 codes of the stream gradient", DTYPE_U8, 2, width, ld).data;
    return blocks;
}

status activations_layout(struct activations *a, const struct decoder *d, const struct layout *given)
{
    struct layout with_shares = *given;
    with_shares.tp_size = (int)params_tp_size(&d->params);
    with_shares.params = &d->params;
    const struct layout *l = &with_shares, part = sp_local_layout(l);
    const int64_t width = d->spec.hidden_size, n = part.n;
    *a = (struct activations){.layout = *l};
    a->blocks = calloc((size_t)d->spec.layer_count, sizeof *a->blocks);
    if (a->blocks == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld layers of activations",
                    (long long)d->spec.layer_count);
    a->workspace =
        tensor_take(l->act, "workspace of the op set", DTYPE_U8, 1, (int64_t)l->ops->workspace(l->n));
    stream_layout(a, l, n, width, l->mode == LAYOUT_TRAIN && activations_once(&d->spec) && l->sets == 0);
    const struct layout blocks = stream_codes_layout(d, l);
    a->act_front = arena_mark(l->act);
    if (l->sets > 0) TRY(stages_layout(a, d, l));
    for (int64_t i = 0; i < d->spec.layer_count && l->sets == 0; i++) {
        size_t mark = arena_mark(l->scratch);
        block_layout(&d->blocks[i], &a->blocks[i], &blocks);
        arena_release(l->scratch, mark);
    }
    if (l->sets == 0) /* behind the blocks: the head's gradients may overwrite their scratch */
        a->s = tensor_take(l->act, "final sum", l->dt, 2, n, width);
    TRY(mtp_layout(a, d, l));
    TRY(hrm_layout(a, d, &part));
    size_t mark = arena_mark(l->scratch);
    struct layout final = part;
    final.recompute = RECOMPUTE_NONE; /* read at once: nothing to recompute */
    norm_layout(&d->norm, &a->norm, &final);
    head_layout(&d->head, &a->head, l);
    sp_layout(&a->seq_par_embed_head, width, l);
    arena_release(l->scratch, mark);
    return STATUS_OK;
}

void activations_fini(struct activations *a)
{
    stages_fini(a);
    free(a->blocks);
    free(a->mtp);
    free(a->hrm);
    *a = (struct activations){0};
}

/* A batch may have fewer rows than the layout (the last one of an evaluation, a prompt): only the views
 * shrink. */
void block_rows(const struct block *m, struct block_saved *s, int64_t n)
{
    const int64_t part = n / s->seq_par.tp_size;
    struct tensor *all[] = {&s->s1,         &s->y1,         &s->s2,         &s->y2,
                            &s->norm1.mean, &s->norm1.rstd, &s->norm2.mean, &s->norm2.rstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], part);
    sp_rows(&s->seq_par, n);
    mixer_rows(&m->mixer, &s->mixer, n);
    ffn_rows(&m->ffn, &s->ffn, n);
    if (m->has_engram) engram_rows(&s->engram, n, part);
}
static void activations_rows(struct activations *a, const struct decoder *d, int64_t n)
{
    CHECK(n > 0 && n <= a->layout.n, "%lld tokens in a layout for %lld", (long long)n,
          (long long)a->layout.n);
    const int64_t part = n / a->seq_par_embed_head.tp_size;
    CHECK(n % a->seq_par_embed_head.tp_size == 0, "%lld tokens for %d ranks", (long long)n,
          a->seq_par_embed_head.tp_size);
    if (a->x.shape[0] == part) return;
    struct tensor *all[] = {&a->x, &a->branch, &a->grad, &a->s, &a->y, &a->dy, &a->norm.mean, &a->norm.rstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], part);
    sp_rows(&a->seq_par_embed_head, n);
    for (int64_t i = 0; i < d->spec.layer_count; i++) block_rows(&d->blocks[i], &a->blocks[i], n);
    mtp_rows(a, d, n);
    hrm_rows(a, part);
}

/* Whether the norms leave out the values of y1 and y2, because all that reads them in this pass reads codes. */
static void leave_values(const struct block *m, struct block_saved *s, const struct exec *r)
{
    if (s->y1.q) s->y1_q.only = linear_fp8_all(mixer_in(&m->mixer), s->y1.shape[0], r);
    if (s->y2.q) s->y2_q.only = linear_fp8_all(ffn_in(&m->ffn), s->y2.shape[0], r);
}

/* G, with its FP8 form if it has one. */
static struct tensor with_codes(struct tensor g, const struct quantized *q)
{
    g.q = q && q->codes ? q : NULL;
    return g;
}

/* The first addend of the first norm: the block's input, or engram's output. */
static status block_enter(const struct block *m, struct block_saved *s, const struct layer_ctx *c,
                          const struct block_io *io, const struct exec *r)
{
    struct tensor x = io->x, branch = io->branch;
    if (m->has_engram) {
        TRY(engram_fwd(&m->engram, &s->engram, c, x, branch, &s->seq_par, r));
        x = s->engram.sum, branch = s->engram.out;
    }
    return norm_fwd(&m->norm1, &s->norm1, x, branch, s->s1, s->y1, r);
}

/* The two branches of a block. Each reads a norm's output and adds to the residual stream; sequence parallelism
 * all-gathers its input and reduce-scatters its output. */
enum branch { BRANCH_MIXER, BRANCH_FFN };

static struct tensor branch_in(const struct block_saved *s, enum branch which)
{
    return which == BRANCH_MIXER ? s->y1 : s->y2;
}
static enum sp_mode branch_mode(const struct block *m, enum branch which)
{
    return which == BRANCH_MIXER ? SP_OVERLAP : ffn_how(&m->ffn);
}

static status branch_fwd(const struct block *m, struct block_saved *s, enum branch which,
                         const struct layer_ctx *c, struct branch_dst out, const struct exec *r)
{
    const enum sp_mode how = branch_mode(m, which);
    struct tensor y;
    TRY(sp_all_gather_begin(s->seq_par.in, branch_in(s, which), how, &y, r));
    const struct branch_dst here = {sp_reduce_scatter_begin(&s->seq_par, out.dst, how, r), out.residual};
    TRY(which == BRANCH_MIXER ? mixer_fwd(&m->mixer, &s->mixer, c, y, here, r)
                              : ffn_fwd(&m->ffn, &s->ffn, c, y, here, r));
    return sp_reduce_scatter(&s->seq_par, out.dst, r);
}

/* From dout, the gradient of the branch's output, to dy, that of its input. */
static status branch_bwd(const struct block *m, struct block_saved *s, enum branch which,
                         const struct layer_ctx *c, struct tensor dout, struct tensor dy,
                         const struct exec *r)
{
    const enum sp_mode how = branch_mode(m, which);
    struct tensor y, all_dout;
    TRY(sp_all_gather_begin(s->seq_par.out, dout, how, &all_dout, r));
    TRY(sp_all_gather_begin(s->seq_par.in, branch_in(s, which), how, &y, r));
    const struct tensor here = sp_reduce_scatter_begin(&s->seq_par, dy, how, r);
    TRY(which == BRANCH_MIXER ? mixer_bwd(&m->mixer, &s->mixer, c, y, all_dout, here, r)
                              : ffn_bwd(&m->ffn, &s->ffn, c, y, all_dout, here, r));
    return sp_reduce_scatter(&s->seq_par, dy, r);
}

/* Forward from y1 to s2 and y2: the mixer, and the norm behind it, which also adds the residual. */
static status block_mix(const struct block *m, struct block_saved *s, const struct layer_ctx *c,
                        struct tensor branch, const struct exec *r)
{
    const struct tensor none = {0};
    if (mixer_adds(&m->mixer, r)) {
        TRY(branch_fwd(m, s, BRANCH_MIXER, c, (struct branch_dst){s->s2, s->s1}, r));
        return norm_fwd(&m->norm2, &s->norm2, s->s2, none, s->s2, s->y2, r);
    }
    TRY(branch_fwd(m, s, BRANCH_MIXER, c, (struct branch_dst){.dst = branch}, r));
    return norm_fwd(&m->norm2, &s->norm2, s->s1, branch, s->s2, s->y2, r);
}

status block_fwd(const struct block *m, struct block_saved *s, const struct layer_ctx *c, struct block_io *io,
                 const struct exec *r)
{
    leave_values(m, s, r);
    TRY(block_enter(m, s, c, io, r));
    TRY(block_mix(m, s, c, io->out, r));
    if (io->next.data && ffn_adds(&m->ffn, r)) {
        *io = (struct block_io){.x = io->next, .out = io->out};
        return branch_fwd(m, s, BRANCH_FFN, c, (struct branch_dst){io->x, s->s2}, r);
    }
    *io = (struct block_io){.x = s->s2, .branch = io->out, .out = io->out};
    return branch_fwd(m, s, BRANCH_FFN, c, (struct branch_dst){.dst = io->out}, r);
}

/* Layers without saved activations share buffers. Before a layer with engram, the next layer's sum could
 * overwrite what generation copies. */
struct tensor block_next(const struct decoder *d, const struct block_saved *blocks, int64_t i, int64_t end,
                         struct tensor last)
{
    const struct tensor none = {0};
    if (d->blocks[i].has_engram) return none;
    if (i + 1 == end) return last;
    return d->blocks[i + 1].has_engram ? none : blocks[i + 1].s1;
}

void block_cache_layout(const struct block *m, struct block_cache *k, const struct cache_layout *l)
{
    mixer_cache_layout(&m->mixer, &k->mixer, l);
    if (m->has_engram) engram_cache_layout(&m->engram, &k->engram, l);
}

status block_cache_fill(const struct block *m, const struct block_saved *s, struct block_cache *k,
                        const struct cache_at *at, const struct exec *r)
{
    if (m->has_engram) TRY(engram_cache_fill(&m->engram, &s->engram, &k->engram, at, r));
    return mixer_cache_fill(&m->mixer, &s->mixer, &k->mixer, at, r);
}

status block_step(const struct block *m, struct block_saved *s, struct block_cache *cache,
                  const struct layer_ctx *c, const struct cache_at *at, struct block_io *io,
                  const struct exec *r)
{
    struct tensor x = io->x, branch = io->branch;
    if (m->has_engram) {
        TRY(engram_step(&m->engram, &s->engram, &cache->engram, c, at, x, branch, r));
        x = s->engram.sum, branch = s->engram.out;
    }
    TRY(norm_fwd(&m->norm1, &s->norm1, x, branch, s->s1, s->y1, r));
    TRY(mixer_step(&m->mixer, &s->mixer, &cache->mixer, c, at, s->y1, io->out, r));
    TRY(norm_fwd(&m->norm2, &s->norm2, s->s1, io->out, s->s2, s->y2, r));
    *io = (struct block_io){.x = s->s2, .branch = io->out, .out = io->out};
    return ffn_fwd(&m->ffn, &s->ffn, c, s->y2, (struct branch_dst){.dst = io->out}, r);
}

/* FP8: the values of y1 and y2 are not kept. GEMMs in bf16 read them. */
static status recompute_values(const struct block *m, struct block_saved *s, const struct exec *r)
{
    const struct tensor none = {0};
    if (s->y1.q && !s->y1_q.only) TRY(norm_fwd(&m->norm1, &s->norm1, s->s1, none, none, s->y1, r));
    if (s->y2.q && !s->y2_q.only) TRY(norm_fwd(&m->norm2, &s->norm2, s->s2, none, none, s->y2, r));
    return STATUS_OK;
}

status block_recompute(const struct block *m, struct block_saved *s, enum recompute policy,
                       const struct layer_ctx *c, struct tensor branch, const struct exec *r)
{
    const struct tensor none = {0};
    leave_values(m, s, r);
    if (policy == RECOMPUTE_NONE) return recompute_values(m, s, r);
    if (m->has_engram) TRY(engram_recompute(&m->engram, &s->engram, policy, c, &s->seq_par, r));
    TRY(norm_fwd(&m->norm1, &s->norm1, s->s1, none, none, s->y1, r));
    if (policy == RECOMPUTE_FULL)
        TRY(block_mix(m, s, c, branch, r));
    else
        TRY(norm_fwd(&m->norm2, &s->norm2, s->s2, none, none, s->y2, r));
    struct tensor y = s->y2;
    if (policy == RECOMPUTE_FULL) TRY(sp_all_gather_begin(s->seq_par.in, s->y2, ffn_how(&m->ffn), &y, r));
    return ffn_recompute(&m->ffn, &s->ffn, policy, y, r);
}

status block_bwd(const struct block *m, struct block_saved *s, const struct layer_ctx *c, struct tensor g,
                 struct tensor dy, const struct quantized *next, const struct exec *r)
{
    const struct tensor g_ffn = with_codes(g, &s->ffn_dout_q), g_mixer = with_codes(g, &s->mixer_dout_q);
    const struct params *p = r->params;
    const struct param_unit *u = &p->units[p->rows[m->norm2.w].unit];
    TRY(unit_grad_begin(p, m->norm2.w, u->last, r->stream));
    TRY(branch_bwd(m, s, BRANCH_FFN, c, g_ffn, dy, r));
    TRY(norm_bwd(&m->norm2, &s->norm2, s->s2, dy, g, g_mixer, r));
    TRY(unit_grad_begin(p, u->first, m->norm2.w, r->stream));
    TRY(branch_bwd(m, s, BRANCH_MIXER, c, g_mixer, dy, r));
    TRY(norm_bwd(&m->norm1, &s->norm1, s->s1, dy, g, with_codes(g, next), r));
    return m->has_engram ? engram_bwd(&m->engram, &s->engram, c, g, &s->seq_par, r) : STATUS_OK;
}

status decoder_embed_fwd(const struct decoder *d, struct activations *a, const struct batch *b,
                         const struct exec *r)
{
    TRY(embed_fwd(&d->embed, b, sp_out(&a->seq_par_embed_head, a->x), r));
    return sp_reduce_scatter(&a->seq_par_embed_head, a->x, r);
}

status decoder_embed_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                         const struct exec *r)
{
    struct tensor dx;
    TRY(sp_all_gather(a->seq_par_embed_head.out, a->grad, &dx, r));
    return embed_bwd(&d->embed, b, dx, r);
}

status decoder_head(const struct decoder *d, struct activations *a, const struct head_loss_args *given,
                    const struct exec *r)
{
    struct head_loss_args args = *given;
    TRY(sp_all_gather(a->seq_par_embed_head.in, given->y, &args.y, r));
    if (given->dy.data) args.dy = sp_out(&a->seq_par_embed_head, given->dy);
    TRY(head_loss(&d->head, &a->head, &args, r));
    return given->dy.data ? sp_reduce_scatter(&a->seq_par_embed_head, given->dy, r) : STATUS_OK;
}

struct head_loss_args decoder_loss_args(const struct activations *a, const int32_t *targets, struct tensor dy,
                                        const struct exec *r)
{
    return (struct head_loss_args){.y = a->y,
                                   .dy = dy,
                                   .targets = targets,
                                   .grad_scale = &r->scalars->grad_scale,
                                   .loss_sum = &r->scalars->loss_sum,
                                   .z_sum = dy.data ? &r->scalars->z_sum : NULL};
}

status decoder_begin(const struct decoder *d, struct activations *a, const struct batch *b,
                     const struct exec *r)
{
    SCOPE("embed.fwd", -1);
    activations_rows(a, d, b->rows);
    TRY(params_unshard(r->params, 0, UNIT_FORWARD));
    TRY(decoder_embed_fwd(d, a, b, r));
    if (d->hrm) TRY(params_unshard(r->params, d->spec.layer_count + 1, UNIT_FORWARD)); /* the norms' unit */
    return hrm_begin(d, a, r);
}

int64_t decoder_visits(const struct model_spec *m)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m->layer_count; i++) count += model_visits(m, i);
    return count;
}

/* One pass over layers and the norm behind them. *index counts visits. */
static status walk_pass(const struct decoder *d, struct activations *a, const struct batch *b, int64_t k,
                        const struct visitor *by, int64_t *index, const struct exec *r)
{
    const struct layer_ctx c = {.rope = &d->rope, .batch = b};
    const struct layer_range at = model_pass(&d->spec, k);
    const bool end = at.to == d->spec.layer_count;
    struct block_io io;
    TRY(hrm_enter(d, a, k, &io, r));
    for (int64_t i = at.from; i < at.to; i++) {
        SCOPE("block.fwd", i);
        TRY(params_unshard(r->params, i + 1, UNIT_FORWARD));
        io.next = block_next(d, a->blocks, i, at.to, end ? a->s : (struct tensor){0});
        if (by)
            TRY(by->visit(by->ctx, &(struct visit){.block = i, .index = (*index)++, .ctx = &c, .io = &io}));
        else
            TRY(block_fwd(&d->blocks[i], &a->blocks[i], &c, &io, r));
    }
    SCOPE("norm.fwd", -1);
    if (!end) return hrm_low_fwd(d, a, &io, r);
    TRY(params_unshard(r->params, d->spec.layer_count + 1, UNIT_FORWARD));
    return norm_fwd(&d->norm, &a->norm, io.x, io.branch, a->s, a->y, r);
}

status decoder_pass(const struct decoder *d, struct activations *a, const struct batch *b, int64_t k,
                    const struct exec *r)
{
    return walk_pass(d, a, b, k, NULL, NULL, r);
}

status decoder_walk(const struct decoder *d, struct activations *a, const struct batch *b,
                    const struct visitor *by, const struct exec *r)
{
    int64_t index = 0;
    TRY(decoder_begin(d, a, b, r));
    for (int64_t k = 0; k < model_passes(&d->spec); k++) TRY(walk_pass(d, a, b, k, by, &index, r));
    return STATUS_OK;
}

status decoder_fwd(const struct decoder *d, struct activations *a, const struct batch *b,
                   const struct exec *r)
{
    return decoder_walk(d, a, b, NULL, r);
}

status decoder_loss(const struct decoder *d, struct activations *a, const struct batch *b, double z_loss,
                    const struct exec *r)
{
    TRY(decoder_fwd(d, a, b, r));
    SCOPE("head.loss", -1);
    struct head_loss_args loss = decoder_loss_args(a, b->targets, (struct tensor){0}, r);
    loss.z_loss = z_loss;
    loss.hits = &r->scalars->hits;
    return decoder_head(d, a, &loss, r);
}

/* Backward from a->y of a pass over the last layers to all gradients. */
static status decoder_bwd(const struct decoder *d, struct activations *a, const struct batch *b,
                          int64_t segment, double z_loss, const struct exec *r)
{
    const bool more = d->spec.mtp_depth > 0;            /* MTP: the gradient from its modules is in a->grad */
    const int64_t end = d->spec.layer_count + 1;        /* the unit of norm and head */
    const bool early = d->spec.tied_embeddings || more; /* the first gradient of the table is written here */
    if (early) TRY(unit_grad_unshard(r->params, 0, r->stream));
    TRY(unit_grad_unshard(r->params, end, r->stream));
    if (more) TRY(mtp_fwd_bwd(d, a, b, a->s, r));
    {
        SCOPE("head.loss", -1);
        struct head_loss_args loss = decoder_loss_args(a, hrm_targets(d, a, b, segment), a->dy, r);
        loss.z_loss = z_loss;
        loss.accum = more ? ACCUM_ADD : r->accum;
        loss.hits = hrm_halts(d) ? &r->scalars->hits : NULL;
        TRY(decoder_head(d, a, &loss, r));
        TRY(hrm_halt_bwd(d, a, b, segment, r));
    }
    {
        SCOPE("norm.bwd", -1);
        TRY(norm_bwd(&d->norm, &a->norm, a->s, a->dy, more ? a->grad : (struct tensor){0},
                     with_codes(a->grad, &a->blocks[d->spec.layer_count - 1].ffn_dout_q), r));
    }
    if (!d->hrm) TRY(params_reshard(r->params, end));
    const struct layer_ctx c = {.rope = &d->rope, .batch = b};
    const int64_t low = d->hrm ? model_pass(&d->spec, 0).to : -1;
    for (int64_t i = d->spec.layer_count - 1; i >= 0; i--) {
        SCOPE("block.bwd", i);
        if (i == low - 1) TRY(hrm_low_bwd(d, a, r));
        TRY(params_unshard(r->params, i + 1, UNIT_BACKWARD));
        TRY(block_recompute(&d->blocks[i], &a->blocks[i], a->layout.recompute, &c, a->branch, r));
        TRY(block_bwd(&d->blocks[i], &a->blocks[i], &c, a->grad, a->dy,
                      i > 0 ? &a->blocks[i - 1].ffn_dout_q : NULL, r));
        TRY(params_reshard(r->params, i + 1));
    }
    SCOPE("embed.bwd", -1);
    if (!early) TRY(unit_grad_unshard(r->params, 0, r->stream));
    TRY(hrm_begin_bwd(d, a, r));
    if (d->hrm) TRY(params_reshard(r->params, end));
    TRY(decoder_embed_bwd(d, a, b, r));
    return params_reshard(r->params, 0);
}

status decoder_fwd_bwd(const struct decoder *d, struct activations *a, const struct batch *b, double z_loss,
                       const struct exec *r)
{
    CHECK(a->layout.mode == LAYOUT_TRAIN, "backward without saved activations");
    const int64_t segments = model_segments(&d->spec), passes = model_passes(&d->spec) / segments;
    struct exec run = *r;
    TRY(decoder_begin(d, a, b, r));
    TRY(hrm_look(d, a, b, r));
    for (int64_t s = 0; s < segments; s++) {
        for (int64_t k = s * passes; k < (s + 1) * passes; k++) TRY(decoder_pass(d, a, b, k, r));
        TRY(decoder_bwd(d, a, b, s, z_loss, &run));
        run.accum = ACCUM_ADD;
    }
    return STATUS_OK;
}
