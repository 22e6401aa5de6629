#include "parallel/derived.h"
#include "dev/dev.h"

/* ---- DERIVED_F32 */

static bool has_f32(const struct params *p, int row)
{
    return p->rows[row].derived[DERIVED_F32] && p->units[p->rows[row].unit].is_local;
}

/* Between elements [from, to) of a row's copy, which this rank holds, and the halves of the master weights. */
static status move_halves(const struct derived_refresh *a, int row, enum split_master_way way)
{
    const struct params *p = a->params;
    const struct param_local_range h = params_local_range(p, row);
    return a->ops->split_master(
        &(struct split_master_args){.way = way,
                                    .x = params_f32(p, row) + h.from,
                                    .upper = (bf16 *)p->weight + h.weight,
                                    .master_residual =
                                        p->master_residual ? p->master_residual + h.master : NULL,
                                    .count = h.to - h.from},
        a->stream);
}

static status f32_from_host(const struct derived_refresh *a)
{
    const struct param_local_range h = params_local_range(a->params, a->row);
    if (!has_f32(a->params, a->row) || h.to == h.from) return STATUS_OK;
    return dev_upload(a->stream, params_f32(a->params, a->row) + h.from, a->values,
                      (size_t)(h.to - h.from) * sizeof *a->values);
}

/* From fp32 values of elements [begin, end) of the flat arrays. Of a piece without routers' biases: the step moves them
 * later. */
static status f32_from_device(const struct derived_refresh *a, int64_t begin, int64_t end)
{
    const struct params *p = a->params;
    for (int i = 0; i < p->count && p->zero == 0; i++) {
        const struct param *row = &p->rows[i];
        if (!has_f32(p, i) || (a->event == DERIVED_PIECE && row->role == ROLE_BALANCE)) continue;
        const int64_t from = row->offset > begin ? row->offset : begin;
        const int64_t to = row->offset + row->count < end ? row->offset + row->count : end;
        if (from >= to) continue;
        TRY(dev_copy(a->stream, params_f32(p, i) + from - row->offset, a->values + from - begin,
                     (size_t)(to - from) * sizeof *a->values));
    }
    return STATUS_OK;
}

/* A master in host memory has sent its pieces before: only routers' biases are left, and go back to it. */
static status f32_after_step(const struct derived_refresh *a)
{
    const struct params *p = a->params;
    for (int i = 0; i < p->count && p->zero == 0; i++) {
        const struct param *row = &p->rows[i];
        const bool bias = row->role == ROLE_BALANCE;
        if (!has_f32(p, i)) continue;
        if (params_host_master(p) && bias)
            TRY(dev_download(a->stream, (float *)p->master + row->offset, params_f32(p, i),
                             (size_t)row->count * sizeof(float)));
        if (bias || params_split_master(p)) TRY(move_halves(a, i, bias ? MASTER_SPLIT : MASTER_JOIN));
    }
    return STATUS_OK;
}

/* The part of this rank stays in place, where nothing else holds all 32 bits. */
static bool stays_f32(const struct params *p, int row)
{
    return p->masterless && p->rows[row].role == ROLE_BALANCE;
}

static status clear_f32(const struct derived_refresh *a)
{
    const struct params *p = a->params;
    const struct param_copies *copies = &p->derived[DERIVED_F32];
    if (!p->masterless) return dev_zero(a->stream, copies->data, (size_t)copies->bytes);
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range h = params_local_range(p, i);
        const int64_t from = stays_f32(p, i) ? h.from : 0, to = stays_f32(p, i) ? h.to : 0;
        float *exact = params_f32(p, i);
        if (!has_f32(p, i)) continue;
        TRY(dev_zero(a->stream, exact, (size_t)from * sizeof *exact));
        TRY(dev_zero(a->stream, exact + to, (size_t)(p->rows[i].count - to) * sizeof *exact));
    }
    return STATUS_OK;
}

/* All-reduces the copies: each rank contributes the part that it holds, and zeros. Routers' biases are updated in the
 * copy, so their halves are split from it first. */
static status gather_f32(const struct derived_refresh *a)
{
    const struct params *p = a->params;
    const struct param_copies *copies = &p->derived[DERIVED_F32];
    for (int i = 0; i < p->count && params_split_master(p); i++) {
        const struct param_local_range h = params_local_range(p, i);
        if (p->rows[i].role == ROLE_BALANCE && h.to > h.from) TRY(move_halves(a, i, MASTER_SPLIT));
    }
    TRY(clear_f32(a));
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range h = params_local_range(p, i);
        if (!p->rows[i].derived[DERIVED_F32] || h.to == h.from || stays_f32(p, i)) continue;
        if (params_split_master(p))
            TRY(move_halves(a, i, MASTER_JOIN));
        else
            TRY(dev_copy(a->stream, params_f32(p, i) + h.from, (const float *)p->master + h.master,
                         (size_t)(h.to - h.from) * sizeof(float)));
    }
    return comm_all_reduce(a->shards, "weights in fp32", copies->data, copies->bytes / (int64_t)sizeof(float),
                           DTYPE_F32, a->scratch, a->stream);
}

static status refresh_f32(const struct derived_refresh *a)
{
    switch (a->event) {
    case DERIVED_DRAWN:
        CHECK(!a->params->rows[a->row].derived[DERIVED_F32], "%s is read in fp32, and drawn where it is not",
              a->params->rows[a->row].name);
        break;
    case DERIVED_HOST: return f32_from_host(a);
    case DERIVED_MASTER: return f32_from_device(a, 0, a->params->total);
    case DERIVED_PIECE: return f32_from_device(a, a->begin, a->end);
    case DERIVED_STEP: return f32_after_step(a);
    case DERIVED_GATHER: return gather_f32(a);
    }
    return STATUS_OK;
}

/* ---- DERIVED_WHOLE: ZeRO 3 alone */

static bool has_whole(const struct params *p, int row)
{
    return p->rows[row].derived[DERIVED_WHOLE] && p->units[p->rows[row].unit].is_local;
}

/* Elements that each rank sends: as many as the rank with the most has. */
static int64_t whole_each(const struct params *p)
{
    int64_t most = 0;
    for (int shard = 0; shard < p->shards; shard++) {
        int64_t sum = 0;
        for (int i = 0; i < p->count; i++) {
            const struct param_local_range h = params_local_range_of(p, i, shard);
            if (has_whole(p, i)) sum += h.to - h.from;
        }
        if (sum > most) most = sum;
    }
    return (most + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
}

/* Between a rank's parts of the rows, one after the other, and where the rows are. */
enum whole_way { WHOLE_PACK, WHOLE_UNPACK };
static status move_whole(const struct derived_refresh *a, int shard, char *packed, enum whole_way way)
{
    const struct params *p = a->params;
    const size_t each = dtype_bytes(p->dt);
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range h = params_local_range_of(p, i, shard);
        const size_t bytes = (size_t)(h.to - h.from) * each;
        if (!has_whole(p, i) || bytes == 0) continue;
        char *row = params_weight(p, i), *own = (char *)p->weight + (size_t)h.weight * each;
        TRY(way == WHOLE_PACK ? dev_copy(a->stream, packed, own, bytes)
                              : dev_copy(a->stream, row + (size_t)h.from * each, packed, bytes));
        packed += bytes;
    }
    return STATUS_OK;
}

static status gather_whole(const struct derived_refresh *a)
{
    const struct params *p = a->params;
    const size_t bytes = (size_t)whole_each(p) * dtype_bytes(p->dt);
    char *all = a->scratch, *mine = all + (size_t)p->shard * bytes;
    TRY(move_whole(a, p->shard, mine, WHOLE_PACK));
    TRY(comm_all_gather(a->shards, "weights beside FP8 codes", mine, all, bytes, a->stream));
    for (int shard = 0; shard < p->shards; shard++)
        TRY(move_whole(a, shard, all + (size_t)shard * bytes, WHOLE_UNPACK));
    return STATUS_OK;
}

/* ---- all copies */

status derived_refresh(const struct derived_refresh *a)
{
    for (enum derived d = 0; d < DERIVED_COUNT; d++) {
        if (a->params->derived[d].bytes == 0) continue;
        switch (d) {
        case DERIVED_F32: TRY(refresh_f32(a)); break;
        case DERIVED_WHOLE: /* after each of the other events under ZeRO */
            if (a->event == DERIVED_GATHER) TRY(gather_whole(a));
            break;
        case DERIVED_F8: /* with its transpose, by one pass */
        case DERIVED_F8_T: break;
        case DERIVED_COUNT: break;
        }
    }
    return STATUS_OK;
}

size_t derived_scratch(const struct params *p)
{
    size_t most = 0;
    for (enum derived d = 0; d < DERIVED_COUNT; d++) {
        size_t bytes = 0;
        switch (d) {
        case DERIVED_F32:
            bytes =
                comm_all_reduce_scratch(p->shards, p->derived[d].bytes / (int64_t)sizeof(float), DTYPE_F32);
            break;
        case DERIVED_WHOLE:
            if (p->derived[d].bytes > 0) bytes = (size_t)(p->shards * whole_each(p)) * dtype_bytes(p->dt);
            break;
        case DERIVED_F8:
        case DERIVED_F8_T:
        case DERIVED_COUNT: break;
        }
        if (bytes > most) most = bytes;
    }
    return most;
}

bool derived_any(const struct params *p)
{
    bool any = false;
    for (int d = 0; d < DERIVED_COUNT; d++) any |= p->derived[d].bytes > 0;
    return any;
}
