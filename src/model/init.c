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

/* Elements [from, to) of a rank's slice of a row, to go to `at`. */
struct stretch {
    int row;
    int64_t from, to;
    char *at;
};

static status fill(const struct params *p, const struct stretch *part, uint64_t seed, const struct run *r)
{
    const struct param *row = &p->rows[part->row];
    const dtype acc = dtype_acc(p->dt);
    const size_t bytes = (size_t)(part->to - part->from) * dtype_bytes(acc);
    void *values = malloc(bytes);
    if (values == NULL) return FAIL(STATUS_FIT, "no memory for the initial values of %s", row->name);
    const uint64_t key = name_key(row);
    for (int64_t k = part->from; k < part->to; k++)
        dtype_store(values, k - part->from, acc,
                    initial(row, seed, key, params_line(p, part->row, p->slice, k).global));
    status st = dev_upload(r->stream, part->at, values, bytes);
    if (st == STATUS_OK) st = dev_sync(r->stream);
    free(values);
    return st;
}

/* At once where whole lines are together in the slice, too; else line by line. */
static status draw_block(const struct params *p, const struct stretch *part, const struct param_block *b,
                         double std, uint64_t seed, const struct run *r)
{
    const dtype acc = dtype_acc(p->dt);
    for (int64_t k = 0, lines; k < b->rows; k += lines) {
        const int64_t line = b->local + k * b->pitch, line_end = line + b->width,
                      begin = line > part->from ? line : part->from,
                      end = line_end < part->to ? line_end : part->to, whole = (part->to - line) / b->width;
        lines = 1;
        if (begin == line && b->pitch == b->width && whole > 1)
            lines = whole < b->rows - k ? whole : b->rows - k;
        if (begin >= end) continue;
        TRY(r->ops->normal(
            &(struct normal_args){.x = part->at + (size_t)(begin - part->from) * dtype_bytes(acc),
                                  .count = end - begin + (lines - 1) * b->width,
                                  .first = b->global + k * b->stride + begin - line,
                                  .width = b->width,
                                  .stride = b->stride,
                                  .std = std,
                                  .seed = seed,
                                  .key = name_key(&p->rows[part->row]),
                                  .dt = acc},
            r->stream));
    }
    return STATUS_OK;
}

static status draw(const struct params *p, const struct stretch *part, double std, uint64_t seed,
                   const struct run *r)
{
    struct param_block blocks[PARAM_PARTS];
    const int count = params_blocks(p, part->row, p->slice, blocks);
    for (int b = 0; b < count; b++) TRY(draw_block(p, part, &blocks[b], std, seed, r));
    return STATUS_OK;
}

static status begin_part(struct decoder *d, const struct stretch *part, uint64_t seed, const struct run *r)
{
    const struct params *p = &d->params;
    const struct param *row = &p->rows[part->row];
    if (row->role == ROLE_NORM || row->role == ROLE_BIAS || row->role == ROLE_RATE ||
        row->role == ROLE_STEP || row->role == ROLE_BALANCE)
        return fill(p, part, seed, r);
    double std = d->spec.init_std;
    if (row->zero) std = 0;
    if (row->role == ROLE_RESIDUAL) std /= sqrt(2.0 * (double)d->spec.layer_count);
    return draw(p, part, std, seed, r);
}

/* Where this rank's part of the master weights is on the device: in the place of the gradients, which is as large and free before the first
 * step, when the host keeps them. */
static float *on_device(const struct params *p)
{
    return params_host_master(p) ? p->grad : p->master;
}

status init_weights(struct decoder *d, const struct run *r, uint64_t seed)
{
    struct params *p = &d->params;
    for (int i = 0; i < p->count; i++) {
        const struct param_held held = params_held(p, i);
        const size_t element = dtype_bytes(dtype_acc(p->dt));
        const struct stretch part = {i, held.from, held.to,
                                     (char *)on_device(p) + (size_t)held.master * element};
        if (held.from < held.to) TRY(begin_part(d, &part, seed, r));
    }
    if (params_host_master(p))
        TRY(dev_download(r->stream, p->master, p->grad, (size_t)p->own * sizeof(float)));
    return init_sync(d, r);
}

/* What is read in fp32, out of master weights that are whole (else parallel/zero.h gathers it). */
static status copy_exact(const struct params *p, const struct run *r)
{
    for (int i = 0; i < p->count && p->zero == 0; i++) {
        const struct param *row = &p->rows[i];
        if (row->exact && p->units[row->unit].here)
            TRY(dev_copy(r->stream, p->exact + row->exact_at, on_device(p) + row->offset,
                         (size_t)row->count * sizeof(float)));
    }
    return STATUS_OK;
}

static status round_weights(const struct params *p, const struct run *r)
{
    struct cast_args a = {
        .x = on_device(p), .y = p->weight, .count = p->own, .from = DTYPE_F32, .to = DTYPE_BF16};
    if (p->zero == 0 || p->zero == 3) return r->ops->cast(&a, r->stream);
    for (int u = 0; u < p->unit_count; u++) {
        const struct param_unit *unit = &p->units[u];
        a.count = unit->count / p->shards;
        a.x = on_device(p) + unit->begin / p->shards;
        a.y = (bf16 *)p->weight + unit->begin + p->shard * a.count;
        if (unit->here) TRY(r->ops->cast(&a, r->stream));
    }
    return STATUS_OK;
}

status init_sync(struct decoder *d, const struct run *r)
{
    const struct params *p = &d->params;
    const size_t bytes = (size_t)p->own * sizeof(float);
    if (p->dt != DTYPE_BF16) return STATUS_OK;
    if (!params_host_master(p)) return round_weights(p, r);
    TRY(dev_upload(r->stream, p->grad, p->master, bytes));
    TRY(round_weights(p, r));
    TRY(copy_exact(p, r));
    return dev_zero(r->stream, p->grad, bytes);
}
