#include "model/master_weights.h"
#include "base/parallel.h"
#include "dev/dev.h"
#include "ops/rounding.h"
#include "parallel/derived.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20, GRAIN = 65536 }; /* elements per transfer; elements per thread */

/* Upper and lower halves in transfer, at most [PIECE] each. */
struct pieces {
    uint16_t *upper, *low;
};
static status pieces_open(struct pieces *b, int64_t count)
{
    const size_t n = (size_t)(count < PIECE ? count : PIECE);
    b->upper = malloc(2 * n * sizeof *b->upper);
    if (b->upper == NULL && n > 0) return FAIL(STATUS_FIT, "no memory for weights on their way");
    b->low = n > 0 ? b->upper + n : NULL;
    return STATUS_OK;
}

static void split(const float *x, const struct pieces *b, int64_t count)
{
    PARALLEL_CHUNKS(c, chunk_count(count, GRAIN))
    {
        const struct span span = chunk_span(c, count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            const struct half_pair h = rounding_halves(bits);
            b->upper[i] = h.upper;
            b->low[i] = h.low;
        }
    }
}

static void join(const struct pieces *b, float *x, int64_t count)
{
    PARALLEL_CHUNKS(c, chunk_count(count, GRAIN))
    {
        const struct span span = chunk_span(c, count, GRAIN);
        for (int64_t i = span.begin; i < span.end; i++) {
            const uint32_t bits = rounding_joined(b->upper[i], b->low[i]);
            memcpy(&x[i], &bits, sizeof bits);
        }
    }
}

status master_weights_put_row(const struct exec *r, int row, const float *from)
{
    const struct params *p = r->params;
    const struct param_held held = params_held(p, row);
    const int64_t count = held.to - held.from;
    struct pieces b;
    CHECK(params_halves(p), "master weights that are whole");
    TRY(pieces_open(&b, count));
    status st = STATUS_OK;
    for (int64_t at = 0; at < count && st == STATUS_OK; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        const size_t bytes = (size_t)n * sizeof *b.upper;
        split(from + at, &b, n);
        st = dev_upload(r->stream, (bf16 *)p->weight + held.weight + at, b.upper, bytes);
        if (st == STATUS_OK && p->low) st = dev_upload(r->stream, p->low + held.master + at, b.low, bytes);
    }
    if (st == STATUS_OK)
        st = derived_refresh(&(struct derived_refresh){.event = DERIVED_HOST,
                                                       .params = p,
                                                       .ops = r->ops,
                                                       .stream = r->stream,
                                                       .row = row,
                                                       .values = from});
    free(b.upper);
    return st;
}

static status get_row(const struct exec *r, int row, float *to)
{
    const struct params *p = r->params;
    const struct param_held held = params_held(p, row);
    const int64_t count = held.to - held.from;
    struct pieces b;
    if (p->masterless && p->rows[row].role == ROLE_BALANCE)
        return dev_download(r->stream, to, params_f32(p, row) + held.from, (size_t)count * sizeof *to);
    TRY(pieces_open(&b, count));
    status st = STATUS_OK;
    for (int64_t at = 0; at < count && st == STATUS_OK; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        const size_t bytes = (size_t)n * sizeof *b.upper;
        st = dev_download(r->stream, b.upper, (bf16 *)p->weight + held.weight + at, bytes);
        if (st == STATUS_OK && p->low) st = dev_download(r->stream, b.low, p->low + held.master + at, bytes);
        if (p->low == NULL) memset(b.low, 0, bytes);
        if (st == STATUS_OK) st = dev_sync(r->stream);
        if (st == STATUS_OK) join(&b, to + at, n);
    }
    free(b.upper);
    return st;
}

/* Master weights that live in host memory pass through the gradients' buffer, which is as large. */
static status round_weights(const struct exec *r)
{
    const struct params *p = r->params;
    for (int u = 0; u < p->unit_count; u++) {
        const struct param_unit *unit = &p->units[u];
        const int64_t count = p->zero ? unit->count / unit->shards : unit->count,
                      at = p->zero ? unit->own : unit->begin,
                      to = p->zero == 1 || p->zero == 2 ? unit->begin + unit->shard * count : at;
        if (!unit->here) continue;
        TRY(r->ops->halves(&(struct halves_args){.way = HALVES_SPLIT,
                                                 .x = (float *)p->grad + at,
                                                 .upper = (bf16 *)p->weight + to,
                                                 .count = count},
                           r->stream));
    }
    return STATUS_OK;
}

static size_t master_bytes(const struct params *p)
{
    const bool whole = p->dt != DTYPE_BF16 && p->zero < 3;
    return (size_t)(whole ? p->total : p->own) * dtype_bytes(dtype_acc(p->dt));
}

status master_weights_put(const struct exec *r, const float *from)
{
    const struct params *p = r->params;
    for (int i = 0; params_halves(p) && i < p->count; i++) {
        const struct param_held held = params_held(p, i);
        if (held.to > held.from) TRY(master_weights_put_row(r, i, from + held.master));
    }
    if (params_halves(p)) return STATUS_OK;
    if (from != p->master)
        TRY(dev_upload(params_host_master(p) ? NULL : r->stream, p->master, from, master_bytes(p)));
    if (!params_host_master(p)) return STATUS_OK;
    TRY(dev_upload(r->stream, p->grad, p->master, master_bytes(p)));
    TRY(round_weights(r));
    TRY(derived_refresh(&(struct derived_refresh){
        .event = DERIVED_MASTER, .params = p, .ops = r->ops, .stream = r->stream, .values = p->grad}));
    return dev_zero(r->stream, p->grad, master_bytes(p));
}

status master_weights_get(const struct exec *r, float *to)
{
    const struct params *p = r->params;
    CHECK(!params_halves(p) || p->low || p->masterless, "halves of master weights that are lost");
    for (int i = 0; params_halves(p) && i < p->count; i++) {
        const struct param_held held = params_held(p, i);
        if (held.to > held.from) TRY(get_row(r, i, to + held.master));
    }
    if (params_halves(p)) return dev_sync(r->stream);
    TRY(dev_download(params_host_master(p) ? NULL : r->stream, to, p->master, master_bytes(p)));
    return dev_sync(r->stream);
}
