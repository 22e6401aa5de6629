#include "parallel/fp8.h"
#include "dev/dev.h"
#include "tensor/param_operand.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 16 }; /* GEMMs read codes of multiples of 16 along k, and write multiples of 16 columns */

/* ---- which linears */

/* The next pattern of a list separated by commas; false: there is none. */
static bool next_pattern(const char **list, char pattern[128])
{
    while (**list == ',' || **list == ' ') ++*list;
    const size_t size = strcspn(*list, ", ");
    if (size == 0) return false;
    snprintf(pattern, 128, "%.*s", (int)size, *list);
    *list += size;
    return true;
}

static bool excluded(const char *list, const char *name)
{
    char pattern[128];
    while (next_pattern(&list, pattern))
        if (fnmatch(pattern, name, 0) == 0) return true;
    return false;
}

/* With scales of their own, experts stay in bf16. */
static bool may_read_codes(const struct params *p, const struct param *row)
{
    return (row->linear && !row->rowwise) || (row->experts > 0 && p->recipe == RECIPE_FP8);
}

static status check_patterns(const struct params *p, const char *list)
{
    char pattern[128];
    while (next_pattern(&list, pattern)) {
        bool any = false;
        for (int i = 0; i < p->count; i++)
            any |= may_read_codes(p, &p->rows[i]) && fnmatch(pattern, p->rows[i].name, 0) == 0;
        if (!any)
            return FAIL(STATUS_CONFIG,
                        "fp8.exclude: '%s' matches no weight of a linear; names are such as "
                        "layers.0.mlp.down.weight",
                        pattern);
    }
    return STATUS_OK;
}

static status check_widths(const struct params *p, const struct param *row)
{
    const int64_t experts = row->experts_sharded && p->expert_ranks > 1 ? row->experts / p->expert_ranks
                                                                        : row->experts,
                  out = experts > 0 ? row->shape[0] / experts : row->shape[0]; /* of one matrix */
    const bool fp8 = p->recipe == RECIPE_FP8; /* else these, MXFP8 or NVFP4 */
    if (row->shape[0] % WIDTH == 0 && out % WIDTH == 0 && row->shape[1] % WIDTH == 0) return STATUS_OK;
    return FAIL(
        STATUS_CONFIG,
        "train.precision%s: %s is %lld x %lld%s; %s need multiples of %d: change the width, or keep this "
        "weight in bf16 with fp8.exclude",
        fp8 ? "=fp8" : "", row->name, (long long)row->shape[0], (long long)row->shape[1],
        row->shape[0] == row->global[0] && row->shape[1] == row->global[1] ? "" : " on each rank",
        fp8 ? "FP8 GEMMs" : "GEMMs of codes", WIDTH);
}

/* Of "layers.7.mlp.up.weight": 7; -1: not in a block. */
static int64_t block_of(const char *name)
{
    return strncmp(name, "layers.", 7) == 0 ? strtoll(name + 7, NULL, 10) : -1;
}

/* The first of the last blocks that stay in bf16; all of them: the number of blocks. */
static int64_t kept_from(const struct params *p)
{
    int64_t blocks = 0;
    for (int i = 0; i < p->count; i++) {
        const int64_t b = block_of(p->rows[i].name);
        if (b >= blocks) blocks = b + 1;
    }
    return blocks - (int64_t)ceil(p->current.keep * (double)blocks);
}

static bool kept(const struct params *p, const char *name)
{
    if (p->current.keep <= 0) return false;
    const int64_t b = block_of(name);
    return b < 0 || b >= kept_from(p);
}

static void claim(struct params *p, int i)
{
    struct param *row = &p->rows[i];
    if (p->recipe == RECIPE_CURRENT) {
        row->current = true;
        p->current.count++;
        return;
    }
    row->fp8 = p->fp8.count;
    row->derived[DERIVED_F8] = row->derived[DERIVED_F8_T] = p->zero < 3;
    p->fp8.row[p->fp8.count++] = i;
}

/* ZeRO 3: whether a unit's codes are all-gathered. Its other rows are then whole on every rank: at most this share. */
enum { WHOLE_SHARE = 8 };
static bool moves_codes(const struct params *p, const struct param_unit *u)
{
    int64_t codes = 0, others = 0;
    for (int i = u->first; i < u->last; i++)
        *(p->rows[i].fp8 < 0 ? &others : &codes) += params_room(&p->rows[i]);
    return codes > 0 && others * WHOLE_SHARE <= codes;
}

/* ZeRO 3: the rows that are whole beside the codes, and norms, of which bounds are computed between steps. Other stages
 * do not read these flags; the planner does. */
static void claim_whole(struct params *p)
{
    for (int u = 0; u < p->unit_count; u++) p->units[u].moves_codes = moves_codes(p, &p->units[u]);
    for (int i = 0; i < p->count; i++) {
        struct param *row = &p->rows[i];
        if (row->fp8 < 0 && p->units[row->unit].moves_codes) row->derived[DERIVED_WHOLE] = true;
        if (row->fp8 >= 0 && row->norm.w >= 0) p->rows[row->norm.w].derived[DERIVED_WHOLE] = true;
        if (row->fp8 >= 0 && row->norm.b >= 0) p->rows[row->norm.b].derived[DERIVED_WHOLE] = true;
    }
}

status fp8_claim(struct params *p, const char *exclude)
{
    if (p->fp8.count > 0 || p->current.count > 0) return STATUS_OK;
    TRY(check_patterns(p, exclude));
    p->fp8.use = calloc((size_t)p->count, sizeof *p->fp8.use);
    p->fp8.row = calloc((size_t)p->count, sizeof *p->fp8.row);
    if (p->fp8.use == NULL || p->fp8.row == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of FP8 linears");
    for (int i = 0; i < p->count; i++) {
        if (!may_read_codes(p, &p->rows[i]) || excluded(exclude, p->rows[i].name)) continue;
        if (kept(p, p->rows[i].name)) continue;
        TRY(check_widths(p, &p->rows[i]));
        claim(p, i);
    }
    if (p->recipe == RECIPE_CURRENT && p->current.count == 0)
        return FAIL(STATUS_CONFIG,
                    "no linear is left that computes with codes: fp8.exclude and nvfp4.keep_bf16 keep all in "
                    "bf16; use train.precision: bf16");
    if (p->recipe == RECIPE_FP8) claim_whole(p);
    return STATUS_OK;
}

void current_layout(struct params *p, int64_t rows, struct arena *a)
{
    struct current_linears *c = &p->current;
    for (int i = 0; i < p->count; i++) {
        const int64_t out = p->rows[i].shape[0], in = p->rows[i].shape[1], wide = out > in ? out : in,
                      w = out * in > rows * in ? out * in : rows * in;
        if (!p->rows[i].current) continue;
        if (rows * wide > c->a_count) c->a_count = rows * wide;
        if (w > c->b_count) c->b_count = w;
    }
    c->a = arena_take(a, (size_t)c->a_count * sizeof *c->a, "operand of a GEMM, rounded to codes");
    c->b = arena_take(a, (size_t)c->b_count * sizeof *c->b, "operand of a GEMM, rounded to codes");
    c->scale = arena_take(a, 12 * sizeof *c->scale, "scales of two tensors");
}

void fp8_layout(struct params *p, int ranks, struct arena *a)
{
    struct fp8_linears *f = &p->fp8;
    const size_t one = (size_t)f->count * sizeof(float), all = FP8_TENSORS * one;
    f->ranks = ranks;
    f->scale = arena_take(a, all, "FP8 scales");
    f->scale_inv = arena_take(a, all * FP8_SCALE_STRIDE, "FP8 scales");
    f->amax = arena_take(a, all, "FP8 amax");
    f->history = arena_take(a, 2 * one * FP8_HISTORY, "FP8 amax history");
    f->all = ranks > 1 ? arena_take(a, all * (size_t)ranks, "FP8 amax of all ranks") : NULL;
}

bool fp8_reads(const struct params *p, int linear, int64_t rows)
{
    return linear >= 0 && p->fp8.use[linear] != FP8_USE_BF16 && rows % WIDTH == 0;
}

bool fp8_reads_wgrad(const struct params *p, int linear, int64_t rows)
{
    return fp8_reads(p, linear, rows) && p->fp8.use[linear] == FP8_USE_ALL;
}

/* ---- scales */

static bool any_reads(const struct fp8_linears *f)
{
    for (int i = 0; i < f->count; i++)
        if (f->use[i] != FP8_USE_BF16) return true;
    return false;
}

/* Amax of `kinds` consecutive tensors of each linear over all ranks, in f->all: [ranks][kinds][count]. */
static status gather_amax(const struct fp8_linears *f, enum fp8_tensor first, int kinds, struct comm *world,
                          dev_stream s)
{
    if (f->ranks == 1) return STATUS_OK;
    return comm_all_gather(world, "FP8 amax", f->amax + fp8_at(f, first, 0), f->all,
                           (size_t)(kinds * f->count) * sizeof(float), s);
}

/* From the amax of `kinds` tensors that were gathered, of which the first is `first`. */
static struct fp8_scales_args scales_of(const struct exec *r, enum fp8_tensor t, enum fp8_tensor first,
                                        int kinds)
{
    const struct fp8_linears *f = &r->params->fp8;
    const int64_t at = fp8_at(f, t, 0);
    return (struct fp8_scales_args){.scaling = t == FP8_W ? FP8_CURRENT : FP8_DELAYED,
                                    .amax = f->amax + at,
                                    .all = f->all ? f->all + fp8_at(f, t, 0) - fp8_at(f, first, 0) : NULL,
                                    .all_stride = (int64_t)kinds * f->count,
                                    .scale = f->scale + at,
                                    .scale_inv = f->scale_inv + at * FP8_SCALE_STRIDE,
                                    .count = f->count,
                                    .ranks = f->ranks,
                                    .scalars = r->scalars,
                                    .dt = t == FP8_DY ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3};
}

/* Gradients have an exponent more than activations, and no bound: twice the margin. */
static int margin_of(enum fp8_tensor t, int margin)
{
    return t == FP8_DY ? 2 * margin : margin;
}

static status delayed_scales(const struct exec *r, int kinds, int margin)
{
    const struct fp8_linears *f = &r->params->fp8;
    for (enum fp8_tensor t = FP8_X; t <= FP8_DY; t++) {
        struct fp8_scales_args a = scales_of(r, t, FP8_X, kinds);
        a.history = f->history + fp8_at(f, t, 0) * FP8_HISTORY;
        a.margin = margin_of(t, margin);
        TRY(r->ops->fp8_scales(&a, r->stream));
    }
    return STATUS_OK;
}

static bool here(const struct params *p, int row)
{
    return p->units[p->rows[row].unit].is_local;
}

/* Outputs of norms: their bound replaces the delayed scale. A norm's row may be on another rank only if its linear is. */
static status bound_scales(const struct exec *r)
{
    const struct params *p = r->params;
    const struct fp8_linears *f = &p->fp8;
    for (int i = 0; i < f->count; i++) {
        const struct param_norm *n = &p->rows[f->row[i]].norm;
        if (n->w < 0 || !here(p, f->row[i])) continue;
        TRY(r->ops->fp8_bound(
            &(struct fp8_bound_args){.w = params_weight(p, n->w),
                                     .b = n->b < 0 ? NULL : params_weight(p, n->b),
                                     .scale = f->scale + fp8_at(f, FP8_X, i),
                                     .scale_inv = f->scale_inv + fp8_at(f, FP8_X, i) * FP8_SCALE_STRIDE,
                                     .d = p->rows[n->w].shape[0],
                                     .shift = n->shift,
                                     .dt = p->dt,
                                     .codes = DTYPE_F8_E4M3},
            r->stream));
    }
    return STATUS_OK;
}

/* ZeRO 3: a pass over this rank's part of one weight: its amax alone, or its codes, if they are all-gathered. */
static status quantize_part(const struct exec *r, int linear, bool codes)
{
    const struct params *p = r->params;
    const int row = p->fp8.row[linear];
    const struct param_unit *u = &p->units[p->rows[row].unit];
    const struct param_local_range h = params_local_range(p, row);
    const int64_t count = h.to - h.from;
    struct quantized q = fp8_quantized(&p->fp8, FP8_W, linear, NULL, NULL);
    if (count == 0 || (codes && !u->moves_codes)) return STATUS_OK;
    CHECK(count % PARAM_ALIGN == 0, "%s: a part of %lld elements", p->rows[row].name, (long long)count);
    if (codes) {
        q.codes = (char *)p->derived[DERIVED_F8].data + u->codes_at + (h.weight - u->shard_offset);
        q.amax = NULL;
    }
    return r->ops->quantize(
        &(struct quantize_args){.x = (const char *)p->weight + (size_t)h.weight * dtype_bytes(p->dt),
                                .q = q,
                                .rows = count / PARAM_ALIGN,
                                .n = PARAM_ALIGN,
                                .dt = p->dt},
        r->stream);
}

/* A pass over one weight: its amax alone, or its codes and their transpose. */
static status quantize_weight(const struct exec *r, int linear, bool codes)
{
    const struct params *p = r->params;
    const int row = p->fp8.row[linear];
    const struct param *w = &p->rows[row];
    struct quantized q = fp8_quantized(&p->fp8, FP8_W, linear, NULL, NULL);
    if (p->zero == 3) return quantize_part(r, linear, codes);
    if (codes) {
        q.codes = params_codes(p, row, false);
        q.codes_t = params_codes(p, row, true);
        q.amax = NULL;
    }
    return r->ops->quantize(
        &(struct quantize_args){
            .x = params_weight(p, row), .q = q, .rows = w->shape[0], .n = w->shape[1], .dt = p->dt},
        r->stream);
}

static status weight_passes(const struct exec *r, bool codes)
{
    const struct params *p = r->params;
    for (int i = 0; i < p->fp8.count; i++)
        if (here(p, p->fp8.row[i])) TRY(quantize_weight(r, i, codes));
    return STATUS_OK;
}

/* From the amax that was gathered: `kinds` tensors from `first` on. */
static status weight_codes(const struct exec *r, enum fp8_tensor first, int kinds)
{
    const struct fp8_scales_args a = scales_of(r, FP8_W, first, kinds);
    TRY(r->ops->fp8_scales(&a, r->stream));
    return weight_passes(r, true);
}

/* One gather of all amax: the maximum over the ranks is taken with the scales. */
status fp8_end(const struct exec *r, const struct mesh *mesh, int margin)
{
    const struct fp8_linears *f = &r->params->fp8;
    const bool reads = any_reads(f);
    const int kinds = reads ? FP8_TENSORS : 2;
    if (f->count == 0) return STATUS_OK;
    if (reads) TRY(weight_passes(r, false));
    TRY(gather_amax(f, FP8_X, kinds, mesh->world, r->stream));
    TRY(delayed_scales(r, kinds, margin));
    TRY(bound_scales(r));
    return reads ? weight_codes(r, FP8_X, kinds) : STATUS_OK;
}

/* ---- before the first step */

/* Scales on the host: [FP8_TENSORS][count], then their inverses, FP8_SCALE_STRIDE apart. */
enum { SCALE_FLOATS = FP8_TENSORS * (1 + FP8_SCALE_STRIDE) };
static void set_scale(const struct fp8_linears *f, float *scales, int64_t at, int exponent)
{
    scales[at] = ldexpf(1, exponent);
    scales[FP8_TENSORS * f->count + at * FP8_SCALE_STRIDE] = ldexpf(1, -exponent);
}

/* Of tensor i of X or DY, from its history. Without one: 1. */
static void scale_from_history(const struct fp8_linears *f, const float *history, float *scales,
                               enum fp8_tensor t, int i, int margin)
{
    const int64_t at = fp8_at(f, t, i);
    float amax = 0;
    for (int k = 0; k < FP8_HISTORY; k++) amax = fmaxf(amax, history[at * FP8_HISTORY + k]);
    const int e = amax > 0 ? fp8_scale_exponent(t == FP8_DY ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3,
                                                ldexp(amax, margin_of(t, margin)))
                           : 0;
    set_scale(f, scales, at, e);
}

static status restore_scales(const struct exec *r, float *history, float *scales, int margin)
{
    const struct fp8_linears *f = &r->params->fp8;
    const size_t bytes = FP8_TENSORS * (size_t)f->count * sizeof(float);
    TRY(dev_download(r->stream, history, f->history, 2 * (size_t)f->count * FP8_HISTORY * sizeof(float)));
    if (r->stream) TRY(dev_sync(r->stream));
    for (int i = 0; i < f->count; i++) {
        scale_from_history(f, history, scales, FP8_X, i, margin);
        scale_from_history(f, history, scales, FP8_DY, i, margin);
        set_scale(f, scales, fp8_at(f, FP8_W, i), 0); /* until weight_codes */
    }
    TRY(dev_upload(r->stream, f->scale, scales, bytes));
    TRY(dev_upload(r->stream, f->scale_inv, scales + FP8_TENSORS * f->count, bytes * FP8_SCALE_STRIDE));
    return r->stream ? dev_sync(r->stream) : STATUS_OK;
}

status fp8_begin(const struct exec *r, const struct mesh *mesh, int margin)
{
    const struct fp8_linears *f = &r->params->fp8;
    if (f->count == 0) return STATUS_OK;
    float *history = malloc(2 * (size_t)f->count * FP8_HISTORY * sizeof *history),
          *scales = calloc(SCALE_FLOATS * (size_t)f->count, sizeof *scales);
    status st = history && scales
                    ? restore_scales(r, history, scales, margin)
                    : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the scales of %d linears", f->count);
    free(history);
    free(scales);
    TRY(st);
    TRY(fp8_forget(r));
    TRY(bound_scales(r));
    if (!any_reads(f)) return STATUS_OK;
    TRY(weight_passes(r, false));
    TRY(gather_amax(f, FP8_W, 1, mesh->world, r->stream));
    return weight_codes(r, FP8_W, 1);
}

status fp8_forget(const struct exec *r)
{
    const struct fp8_linears *f = &r->params->fp8;
    if (f->count == 0) return STATUS_OK;
    return dev_zero(r->stream, f->amax, FP8_TENSORS * (size_t)f->count * sizeof(float));
}
