#include "model/init.h"
#include "base/rng.h"
#include "dev/dev.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static uint64_t name_key(const struct param *row)
{
    return XXH64(row->name, strlen(row->name), 0);
}

/* ln A, A uniform in (0.01, 16): decay rates of a linear mixer (Mamba-2; HF's Qwen3-Next). */
static double rate(uint64_t seed, uint64_t key, int64_t i)
{
    return log(0.01 + 15.99 * rng_uniform(seed, RNG_INIT, key, (uint64_t)i));
}

/* What softplus takes to a step size that is log-uniform in [0.001, 0.1] (Mamba-2). */
static double step(uint64_t seed, uint64_t key, int64_t i)
{
    const double size = exp(log(1e-3) + log(100) * rng_uniform(seed, RNG_INIT, key, (uint64_t)i));
    return size + log(-expm1(-size));
}

static double initial(const struct param *row, uint64_t seed, uint64_t key, int64_t i)
{
    switch (row->role) {
    case ROLE_RATE: return rate(seed, key, i);
    case ROLE_STEP: return step(seed, key, i);
    default: return (double)row->init_value;
    }
}

/* `to`: the slice's elements. */
static status fill(const struct params *p, int index, uint64_t seed, void *to, const struct run *r)
{
    const struct param *row = &p->rows[index];
    const dtype acc = dtype_acc(p->dt);
    const size_t bytes = (size_t)row->count * dtype_bytes(acc);
    void *values = malloc(bytes);
    if (values == NULL) return FAIL(STATUS_FIT, "no memory for the initial values of %s", row->name);
    const uint64_t key = name_key(row);
    for (int64_t k = 0; k < row->count; k++)
        dtype_store(values, k, acc, initial(row, seed, key, params_line(p, index, p->slice, k).global));
    status st = dev_upload(r->stream, to, values, bytes);
    if (st == STATUS_OK) st = dev_sync(r->stream);
    free(values);
    return st;
}

/* At once where its lines are together in the slice, too; else line by line. */
static status draw_block(const struct params *p, int index, const struct param_block *b, double std,
                         uint64_t seed, char *to, const struct run *r)
{
    const dtype acc = dtype_acc(p->dt);
    const int64_t at_once = b->pitch == b->width ? b->rows : 1;
    for (int64_t k = 0; k < b->rows; k += at_once)
        TRY(r->ops->normal(
            &(struct normal_args){.x = to + (size_t)(b->local + k * b->pitch) * dtype_bytes(acc),
                                  .count = at_once * b->width,
                                  .first = b->global + k * b->stride,
                                  .width = b->width,
                                  .stride = b->stride,
                                  .std = std,
                                  .seed = seed,
                                  .key = name_key(&p->rows[index]),
                                  .dt = acc},
            r->stream));
    return STATUS_OK;
}

static status draw(const struct params *p, int index, double std, uint64_t seed, char *to,
                   const struct run *r)
{
    struct param_block blocks[PARAM_PARTS];
    const int count = params_blocks(p, index, p->slice, blocks);
    for (int b = 0; b < count; b++) TRY(draw_block(p, index, &blocks[b], std, seed, to, r));
    return STATUS_OK;
}

static status begin_row(struct decoder *d, int index, uint64_t seed, void *to, const struct run *r)
{
    const struct params *p = &d->params;
    const struct param *row = &p->rows[index];
    if (row->role == ROLE_NORM || row->role == ROLE_BIAS || row->role == ROLE_RATE ||
        row->role == ROLE_STEP || row->role == ROLE_BALANCE)
        return fill(p, index, seed, to, r);
    double std = d->spec.init_std;
    if (row->zero) std = 0;
    if (row->role == ROLE_RESIDUAL) std /= sqrt(2.0 * (double)d->spec.layer_count);
    return draw(p, index, std, seed, to, r);
}

/* A row of which this rank has a part. Memory of the host. */
static status begin_part(struct decoder *d, int index, uint64_t seed, const struct run *r)
{
    const struct params *p = &d->params;
    const struct param_held held = params_held(p, index);
    if (held.from == held.to) return STATUS_OK;
    float *values = malloc((size_t)p->rows[index].count * sizeof *values);
    if (values == NULL)
        return FAIL(STATUS_FIT, "no memory for the initial values of %s", p->rows[index].name);
    status st = begin_row(d, index, seed, values, r);
    if (st == STATUS_OK)
        memcpy((float *)p->master + held.master, values + held.from,
               (size_t)(held.to - held.from) * sizeof *values);
    free(values);
    return st;
}

status init_weights(struct decoder *d, const struct run *r, uint64_t seed)
{
    struct params *p = &d->params;
    for (int i = 0; i < p->count; i++) {
        if (!p->units[p->rows[i].unit].here) continue;
        TRY(p->zero ? begin_part(d, i, seed, r) : begin_row(d, i, seed, params_master(p, i), r));
    }
    return init_sync(d, r);
}

status init_sync(struct decoder *d, const struct run *r)
{
    const struct params *p = &d->params;
    struct cast_args a = {
        .x = p->master, .y = p->weight, .count = p->own, .from = DTYPE_F32, .to = DTYPE_BF16};
    if (p->dt != DTYPE_BF16) return STATUS_OK;
    if (p->zero == 0 || p->zero == 3) return r->ops->cast(&a, r->stream);
    for (int u = 0; u < p->unit_count; u++) {
        const struct param_unit *unit = &p->units[u];
        a.count = unit->count / p->shards;
        a.x = (const float *)p->master + unit->begin / p->shards;
        a.y = (bf16 *)p->weight + unit->begin + p->shard * a.count;
        if (unit->here) TRY(r->ops->cast(&a, r->stream));
    }
    return STATUS_OK;
}
