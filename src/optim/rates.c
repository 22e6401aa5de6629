#include "optim/rates.h"
#include "spec/factors.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static bool is_matrix(const struct param *row)
{
    return row->role == ROLE_MATRIX || row->role == ROLE_RESIDUAL || row->role == ROLE_CONV;
}

/* Whether a part of the name, such as "mlp", is one of a feed-forward layer or of an n-gram memory. */
static bool has_part(const struct param *row, const char *part)
{
    return strstr(row->name, part) != NULL;
}

static bool is_ffn(const struct param *row)
{
    return has_part(row, ".mlp.") || has_part(row, ".moe.");
}

/* Matrices of blocks are of mixers, of feed-forward parts, of n-gram memories, or bring MTP's two inputs together. */
static bool is_mixer(const struct param *row)
{
    return !is_ffn(row) && !has_part(row, ".engram.") && !has_part(row, ".e_proj.") &&
           !has_part(row, ".h_proj.");
}

static bool belongs(const struct param *row, const struct factor *e)
{
    switch (e->group) {
    case FACTOR_EMBEDDING: return row->role == ROLE_EMBED || row->role == ROLE_POSITION;
    case FACTOR_HEAD: return row->role == ROLE_HEAD;
    case FACTOR_MATRICES: return is_matrix(row);
    case FACTOR_MIXERS: return is_matrix(row) && is_mixer(row);
    case FACTOR_FFN: return is_matrix(row) && is_ffn(row);
    case FACTOR_NORMS: return row->role == ROLE_NORM;
    case FACTOR_BIASES: return row->role == ROLE_BIAS || row->role == ROLE_RATE || row->role == ROLE_STEP;
    case FACTOR_TABLES: return row->role == ROLE_TABLE;
    case FACTOR_PATTERN: break;
    }
    return row->role != ROLE_BALANCE && fnmatch(e->pattern, row->name, 0) == 0;
}

/* Roles that decay without optim.decay_scale. */
static bool decays(const struct run_spec *spec, enum role role)
{
    switch (role) {
    case ROLE_MATRIX:
    case ROLE_CONV:
    case ROLE_RESIDUAL: return true;
    case ROLE_EMBED:
    case ROLE_POSITION:
    case ROLE_HEAD: return spec->optim_decay_embeddings;
    case ROLE_TABLE:
    case ROLE_RATE:
    case ROLE_STEP:
    case ROLE_NORM:
    case ROLE_BIAS:
    case ROLE_BALANCE:
    case ROLE_COUNT: break;
    }
    return false;
}

/* A group without a weight is no mistake: a file may name tables for a model that has none. A pattern is. */
static status apply(struct params *p, const struct factors *f, const char *key, bool decay)
{
    for (int k = 0; k < f->count; k++) {
        const struct factor *e = &f->entry[k];
        bool any = e->group != FACTOR_PATTERN;
        for (int i = 0; i < p->count; i++) {
            struct param *row = &p->rows[i];
            if (!belongs(row, e)) continue;
            any = true;
            if (decay && row->role == ROLE_TABLE && e->value > 0)
                return FAIL(STATUS_CONFIG, "%s: '%s' would decay %s: rows of n-gram tables do not", key,
                            e->pattern, row->name);
            *(decay ? &row->decay : &row->lr_scale) = e->value;
        }
        if (!any)
            return FAIL(STATUS_CONFIG, "%s: '%s' matches no weight; names are such as %s and %s", key,
                        e->pattern, p->rows[0].name, p->rows[p->count - 1].name);
    }
    return STATUS_OK;
}

status rates_set(struct params *p, const struct run_spec *spec)
{
    struct factors f;
    for (int i = 0; i < p->count; i++) {
        p->rows[i].lr_scale = 1;
        p->rows[i].decay = decays(spec, p->rows[i].role);
    }
    TRY(factors_read(&f, "optim.lr_scale", spec->optim_lr_scale, false));
    TRY(apply(p, &f, "optim.lr_scale", false));
    TRY(factors_read(&f, "optim.decay_scale", spec->optim_decay_scale, true));
    return apply(p, &f, "optim.decay_scale", true);
}

/* Whether a row goes with a run: decay counts only where there is some, and momentum alone has neither. */
static bool goes_with(const struct update_run *run, const struct param *row)
{
    if (row->muon) return true;
    return run->lr_scale == row->lr_scale && (row->decay == 0 || run->decay == 0 || run->decay == row->decay);
}

status rates_runs(struct params *p, const int64_t *pieces)
{
    int64_t chunk = 0;
    free(p->runs);
    p->run_count = 0;
    p->runs = calloc((size_t)p->count + 1, sizeof *p->runs);
    if (p->runs == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the optimizer's runs of chunks");
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        struct update_run *last = p->runs + p->run_count - 1;
        if (pieces[i] == 0) continue;
        if (p->run_count == 0 || !goes_with(last, row))
            p->runs[p->run_count++] =
                (struct update_run){chunk, row->muon ? 1 : row->lr_scale, row->muon ? 0 : row->decay};
        else if (last->decay == 0 && !row->muon)
            last->decay = row->decay;
        chunk += pieces[i];
    }
    return STATUS_OK;
}

status rates_update(const struct exec *r, const struct update_args *a)
{
    const struct params *p = r->params;
    if (a->phase != UPDATE_APPLY || p->run_count == 0) return r->ops->update(a, r->stream);
    const int64_t from = a->chunks - p->chunks, to = from + a->chunk_count;
    for (int64_t k = 0; k < p->run_count; k++) {
        const struct update_run *run = &p->runs[k];
        const int64_t end = k + 1 < p->run_count ? run[1].chunk : p->chunk_count,
                      first = run->chunk > from ? run->chunk : from, last = end < to ? end : to;
        if (first >= last) continue;
        struct update_args part = *a;
        part.chunks = p->chunks + first;
        part.chunk_count = last - first;
        part.rate = (a->rate > 0 ? a->rate : 1) * run->lr_scale;
        part.row_rate = a->row_rate * run->lr_scale;
        part.weight_decay = a->weight_decay * run->decay;
        TRY(r->ops->update(&part, r->stream));
    }
    return STATUS_OK;
}
