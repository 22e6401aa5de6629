#include "model/master_weights.h"
#include "base/parallel.h"
#include "dev/dev.h"
#include "ops/rounding.h"
#include "parallel/derived.h"

#include <stdlib.h>
#include <string.h>

/* Elements per transfer; per thread; of a block whose halves are copied one after the other. */
enum { PIECE = 1 << 20, GRAIN = 65536, BLOCK = 1 << 18 };

/* Upper and lower halves in transfer, at most [PIECE] each. */
struct pieces {
    uint16_t *upper, *low;
};
static status pieces_open(struct pieces *b, int64_t count)
{
    const size_t n = (size_t)(count < PIECE ? count : PIECE);
    b->upper = malloc(2 * n * sizeof *b->upper);
    if (b->upper == NULL && n > 0) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for weights on their way");
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
    const struct param_local_range held = params_local_range(p, row);
    const int64_t count = held.to - held.from;
    struct pieces b;
    CHECK(params_split_master(p), "master weights that are whole");
    TRY(pieces_open(&b, count));
    status st = STATUS_OK;
    for (int64_t at = 0; at < count && st == STATUS_OK; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        const size_t bytes = (size_t)n * sizeof *b.upper;
        split(from + at, &b, n);
        st = dev_upload(r->stream, (bf16 *)p->weight + held.weight + at, b.upper, bytes);
        if (st == STATUS_OK && p->master_residual)
            st = dev_upload(r->stream, p->master_residual + held.master + at, b.low, bytes);
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
    const struct param_local_range held = params_local_range(p, row);
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
        if (st == STATUS_OK && p->master_residual)
            st = dev_download(r->stream, b.low, p->master_residual + held.master + at, bytes);
        if (p->master_residual == NULL) memset(b.low, 0, bytes);
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
                      at = p->zero ? unit->shard_offset : unit->begin,
                      to = p->zero == 1 || p->zero == 2 ? unit->begin + unit->shard * count : at;
        if (!unit->is_local) continue;
        TRY(r->ops->split_master(&(struct split_master_args){.way = MASTER_SPLIT,
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
    for (int i = 0; params_split_master(p) && i < p->count; i++) {
        const struct param_local_range held = params_local_range(p, i);
        if (held.to > held.from) TRY(master_weights_put_row(r, i, from + held.master));
    }
    if (params_split_master(p)) return STATUS_OK;
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
    CHECK(!params_split_master(p) || p->master_residual || p->masterless,
          "halves of master weights that are lost");
    for (int i = 0; params_split_master(p) && i < p->count; i++) {
        const struct param_local_range held = params_local_range(p, i);
        if (held.to > held.from) TRY(get_row(r, i, to + held.master));
    }
    if (params_split_master(p)) return dev_sync(r->stream);
    TRY(dev_download(params_host_master(p) ? NULL : r->stream, to, p->master, master_bytes(p)));
    return dev_sync(r->stream);
}

/* ---- in two parts: a row of n elements arrives as blocks, each of upper halves and then of low ones */

/* Whether a row is one of whole numbers among split ones. */
static bool is_whole(const struct params *p, int row)
{
    return p->masterless && p->rows[row].role == ROLE_BALANCE;
}

/* `low`: 0 upper halves, 1 low ones. */
static status queue_halves(struct stream *side, uint16_t *to, const uint16_t *from, int64_t count, int low)
{
    const int64_t blocks = count / BLOCK, left = count % BLOCK;
    const size_t bytes = BLOCK * sizeof *to;
    TRY(dev_copy_lines(side, &(struct dev_lines){.to = to + low * BLOCK,
                                                 .from = from,
                                                 .to_stride = 2 * bytes,
                                                 .from_stride = bytes,
                                                 .bytes = bytes,
                                                 .count = (size_t)blocks}));
    return dev_download(side, to + blocks * 2 * BLOCK + low * left, from + blocks * BLOCK,
                        (size_t)left * sizeof *to);
}

static status queue_row(const struct exec *r, struct stream *side, int row, float *to)
{
    const struct params *p = r->params;
    const struct param_local_range held = params_local_range(p, row);
    const int64_t count = held.to - held.from;
    if (is_whole(p, row))
        return dev_download(side, to, params_f32(p, row) + held.from, (size_t)count * sizeof *to);
    TRY(queue_halves(side, (uint16_t *)to, (const uint16_t *)p->weight + held.weight, count, 0));
    return p->master_residual ? queue_halves(side, (uint16_t *)to, p->master_residual + held.master, count, 1)
                              : STATUS_OK;
}

status master_weights_queue(const struct exec *r, struct stream *side, float *to)
{
    const struct params *p = r->params;
    CHECK(!params_host_master(p), "master weights that are in host memory");
    CHECK(!params_split_master(p) || p->master_residual || p->masterless,
          "halves of master weights that are lost");
    if (!params_split_master(p)) return dev_download(side, to, p->master, master_bytes(p));
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range held = params_local_range(p, i);
        if (held.to > held.from) TRY(queue_row(r, side, i, to + held.master));
    }
    return STATUS_OK;
}

/* Blocks of a row that arrived as halves; `spare` [2 * BLOCK]. */
static void join_block(float *x, int64_t count, bool low, uint16_t *spare)
{
    memcpy(spare, x, (size_t)count * sizeof *x);
    if (!low) memset(spare + count, 0, (size_t)count * sizeof *spare);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = rounding_joined(spare[i], spare[count + i]);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

status master_weights_join(const struct exec *r, float *to)
{
    const struct params *p = r->params;
    _Atomic bool refused = false;
    if (!params_split_master(p)) return STATUS_OK;
#pragma omp parallel
    {
        uint16_t *spare = malloc(2 * BLOCK * sizeof *spare);
        if (spare == NULL) refused = true;
        for (int i = 0; i < p->count; i++) {
            const struct param_local_range held = params_local_range(p, i);
            const int64_t count = held.to - held.from;
            if (is_whole(p, i)) continue;
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t b = 0; b < chunk_count(count, BLOCK); b++) {
                const struct span span = chunk_span(b, count, BLOCK);
                if (spare)
                    join_block(to + held.master + span.begin, span.end - span.begin,
                               p->master_residual != NULL, spare);
            }
        }
        free(spare);
    }
    return refused ? FAIL(STATUS_OUT_OF_MEMORY, "no memory to put weights together") : STATUS_OK;
}
