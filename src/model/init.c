#include "model/init.h"
#include "base/rng.h"
#include "dev/dev.h"
#include "model/master_weights.h"
#include "parallel/derived.h"

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

/* The inverse softplus of a step size that is log-uniform in [0.001, 0.1] (Mamba-2). */
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

/* Elements [from, to) of a rank's slice of a row, written to `at`; the low halves of split masters to `low`. */
struct stretch {
    int row;
    int64_t from, to;
    char *at;
    uint16_t *low;
};

/* The dtype in which they are drawn. */
static dtype drawn_dt(const struct params *p)
{
    return params_split_master(p) ? DTYPE_BF16 : dtype_acc(p->dt);
}

static status fill(const struct params *p, const struct stretch *part, uint64_t seed, const struct exec *r)
{
    const struct param *row = &p->rows[part->row];
    const dtype acc = dtype_acc(p->dt);
    const size_t bytes = (size_t)(part->to - part->from) * dtype_bytes(acc);
    void *values = malloc(bytes);
    if (values == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the initial values of %s", row->name);
    const uint64_t key = name_key(row);
    for (int64_t k = part->from; k < part->to; k++)
        dtype_store(values, k - part->from, acc,
                    initial(row, seed, key, params_line(p, part->row, params_place(p), k).global));
    status st = params_split_master(p) ? master_weights_put_row(r, part->row, values)
                                       : dev_upload(r->stream, part->at, values, bytes);
    if (st == STATUS_OK) st = dev_sync(r->stream);
    free(values);
    return st;
}

/* In one go where the slice has consecutive full lines, else line by line. */
static status draw_block(const struct params *p, const struct stretch *part, const struct param_block *b,
                         double std, uint64_t seed, const struct exec *r)
{
    const dtype dt = drawn_dt(p);
    for (int64_t k = 0, lines; k < b->rows; k += lines) {
        const int64_t line = b->local + k * b->pitch, line_end = line + b->width,
                      begin = line > part->from ? line : part->from,
                      end = line_end < part->to ? line_end : part->to, whole = (part->to - line) / b->width;
        lines = 1;
        if (begin == line && b->pitch == b->width && whole > 1)
            lines = whole < b->rows - k ? whole : b->rows - k;
        if (begin >= end) continue;
        TRY(r->ops->normal(
            &(struct normal_args){.x = part->at + (size_t)(begin - part->from) * dtype_bytes(dt),
                                  .master_residual = part->low ? part->low + (begin - part->from) : NULL,
                                  .count = end - begin + (lines - 1) * b->width,
                                  .first = b->global + k * b->stride + begin - line,
                                  .width = b->width,
                                  .stride = b->stride,
                                  .std = std,
                                  .seed = seed,
                                  .key = name_key(&p->rows[part->row]),
                                  .dt = dt},
            r->stream));
    }
    return STATUS_OK;
}

static status draw(const struct params *p, const struct stretch *part, double std, uint64_t seed,
                   const struct exec *r)
{
    struct param_block blocks[PARAM_PARTS];
    const int count = params_blocks(p, part->row, params_place(p), blocks);
    for (int b = 0; b < count; b++) TRY(draw_block(p, part, &blocks[b], std, seed, r));
    return STATUS_OK;
}

static status begin_part(struct decoder *d, const struct stretch *part, uint64_t seed, const struct exec *r)
{
    const struct params *p = &d->params;
    const struct param *row = &p->rows[part->row];
    if (row->role == ROLE_NORM || row->role == ROLE_BIAS || row->role == ROLE_RATE ||
        row->role == ROLE_STEP || row->role == ROLE_BALANCE)
        return fill(p, part, seed, r);
    double std = d->spec.init_std;
    if (row->zero) std = 0;
    if (row->role == ROLE_RESIDUAL) std /= sqrt(2.0 * (double)d->spec.layer_count);
    TRY(draw(p, part, std, seed, r));
    return derived_refresh(&(struct derived_refresh){
        .event = DERIVED_DRAWN, .params = p, .ops = r->ops, .stream = r->stream, .row = part->row});
}

/* Where this rank's part of a row is drawn on the device. If the host keeps the master weights: in the
 * gradients' buffer, which is as large and unused before the first step. */
static struct stretch stretch_of(const struct params *p, int row)
{
    const struct param_local_range held = params_local_range(p, row);
    const bool halves = params_split_master(p);
    char *array = halves ? p->weight : params_host_master(p) ? p->grad : p->master;
    return (struct stretch){row, held.from, held.to,
                            array + (size_t)(halves ? held.weight : held.master) * dtype_bytes(drawn_dt(p)),
                            halves && p->master_residual ? p->master_residual + held.master : NULL};
}

status init_weights(struct decoder *d, const struct exec *r, uint64_t seed)
{
    struct params *p = &d->params;
    for (int i = 0; i < p->count; i++) {
        const struct stretch part = stretch_of(p, i);
        if (part.from < part.to) TRY(begin_part(d, &part, seed, r));
    }
    if (!params_host_master(p)) return STATUS_OK;
    TRY(dev_download(r->stream, p->master, p->grad, (size_t)p->own * sizeof(float)));
    return master_weights_put(r, p->master);
}
