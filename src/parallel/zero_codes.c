#include "parallel/zero_codes.h"
#include "dev/dev.h"

#include <stdlib.h>

static bool reads_codes(const struct params *p, int row)
{
    return p->rows[row].fp8 >= 0 && p->fp8.use[p->rows[row].fp8] != FP8_USE_BF16;
}

enum zero_form zero_codes_form(const struct params *p, int unit)
{
    const struct param_unit *u = &p->units[unit];
    int codes = 0, values = 0;
    for (int i = u->first; i < u->last && p->fp8.count > 0; i++)
        if (p->rows[i].fp8 >= 0) *(reads_codes(p, i) ? &codes : &values) += 1;
    if (codes == 0) return ZERO_VALUES;
    return values == 0 && u->moves_codes ? ZERO_CODES_MOVED : ZERO_CODES_MADE;
}

struct zero_codes_sum zero_codes_sum(const struct params *p)
{
    struct zero_codes_sum sum = {0};
    for (int u = 0; u < p->unit_count; u++) {
        const struct param_unit *unit = &p->units[u];
        bool fp8 = false;
        for (int i = unit->first; i < unit->last; i++) fp8 |= p->rows[i].fp8 >= 0;
        if (!fp8 || !unit->is_local) continue;
        const bool moved = zero_codes_form(p, u) == ZERO_CODES_MOVED;
        sum.units++;
        sum.moved += moved;
        sum.codes += moved ? unit->count : 0;
        sum.values += moved ? 0 : unit->count * (int64_t)dtype_bytes(p->dt);
    }
    return sum;
}

static int64_t rows_most(const struct params *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->count; i++)
        if (p->rows[i].fp8 >= 0 && p->rows[i].shape[0] > most) most = p->rows[i].shape[0];
    return most;
}

/* Bytes of `staging`. */
static int64_t staging_bytes(const struct params *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->count; i++) {
        const struct param_unit *u = &p->units[p->rows[i].unit];
        const int64_t room = 2 * params_room(&p->rows[i]);
        if (p->rows[i].fp8 < 0 || !u->is_local) continue;
        if (room > most) most = room;
        if (u->moves_codes && u->count > most) most = u->count;
    }
    return most;
}

void zero_codes_layout(struct zero_codes *c, const struct params *p, struct arena *a)
{
    if (p->fp8.count == 0) return;
    c->staging = arena_take(a, (size_t)staging_bytes(p), "FP8 codes of a unit, while they are gathered");
    c->order = arena_take(a, (size_t)rows_most(p) * sizeof *c->order, "order of rows");
    c->ends = arena_take(a, 2 * (size_t)p->fp8.count * sizeof *c->ends, "numbers of rows");
}

status zero_codes_open(const struct zero_codes *c, const struct params *p, dev_stream s)
{
    const int64_t rows = rows_most(p), ends = 2 * (int64_t)p->fp8.count, most = rows > ends ? rows : ends;
    if (p->fp8.count == 0) return STATUS_OK;
    int32_t *values = malloc((size_t)most * sizeof *values);
    if (values == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the order of %lld rows", (long long)rows);
    for (int64_t i = 0; i < rows; i++) values[i] = (int32_t)i;
    status st = dev_upload(s, c->order, values, (size_t)rows * sizeof *values);
    if (st == STATUS_OK && s) st = dev_sync(s);
    for (int i = 0; i < p->fp8.count; i++)
        values[2 * i] = 0, values[2 * i + 1] = (int32_t)p->rows[p->fp8.row[i]].shape[0];
    if (st == STATUS_OK) st = dev_upload(s, c->ends, values, (size_t)ends * sizeof *values);
    if (st == STATUS_OK && s) st = dev_sync(s);
    free(values);
    return st;
}

/* Where a row's values or codes are in the slot. */
static char *place_of(const struct zero_codes_at *at, int row)
{
    const struct params *p = at->params;
    return (char *)at->slot + (size_t)(p->rows[row].offset - p->units[at->unit].begin) * dtype_bytes(p->dt);
}

status zero_codes_gather(const struct zero_codes *c, const struct zero_codes_at *at, struct comm *shards)
{
    const struct params *p = at->params;
    const struct param_unit *u = &p->units[at->unit];
    TRY(comm_all_gather(shards, "weights in FP8", (const char *)p->derived[DERIVED_F8].data + u->codes_at,
                        c->staging, (size_t)(u->count / u->shards), at->stream));
    for (int i = u->first; i < u->last; i++)
        if (p->rows[i].fp8 >= 0)
            TRY(dev_copy(at->stream, place_of(at, i),
                         (const char *)c->staging + (p->rows[i].offset - u->begin),
                         (size_t)p->rows[i].count));
    return STATUS_OK;
}

/* The op that transposes gathered rows of codes, of all rows in their order. */
static status transpose_row(const struct zero_codes *c, const struct zero_codes_at *at, int row)
{
    const struct param *w = &at->params->rows[row];
    char *codes = place_of(at, row);
    struct quantized q = fp8_quantized(&at->params->fp8, FP8_W, w->fp8, NULL, codes + params_room(w));
    q.amax = NULL;
    return at->ops->expert_codes(&(struct expert_codes_args){.x = codes,
                                                             .q = q,
                                                             .source = c->order,
                                                             .offsets = c->ends + 2 * w->fp8,
                                                             .rows = w->shape[0],
                                                             .top_k = 1,
                                                             .experts = 1,
                                                             .n = w->shape[1],
                                                             .align = 1,
                                                             .ld = quantized_ld(w->shape[0]),
                                                             .gather = true},
                                 at->stream);
}

status zero_codes_transpose(const struct zero_codes *c, const struct zero_codes_at *at)
{
    const struct param_unit *u = &at->params->units[at->unit];
    for (int i = u->first; i < u->last; i++)
        if (at->params->rows[i].fp8 >= 0) TRY(transpose_row(c, at, i));
    return STATUS_OK;
}

status zero_codes_make(const struct zero_codes *c, const struct zero_codes_at *at)
{
    const struct params *p = at->params;
    const struct param_unit *u = &p->units[at->unit];
    for (int i = u->first; i < u->last; i++) {
        const struct param *w = &p->rows[i];
        const int64_t room = params_room(w);
        if (!reads_codes(p, i)) continue;
        struct quantized q = fp8_quantized(&p->fp8, FP8_W, w->fp8, c->staging, (char *)c->staging + room);
        q.amax = NULL;
        TRY(at->ops->quantize(
            &(struct quantize_args){
                .x = place_of(at, i), .q = q, .rows = w->shape[0], .n = w->shape[1], .dt = p->dt},
            at->stream));
        TRY(dev_copy(at->stream, place_of(at, i), c->staging, (size_t)(2 * room)));
    }
    return STATUS_OK;
}
