#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

#include <stdlib.h>

enum { COLUMNS = 16 }; /* per chunk of embed_bwd */

static int64_t row_checked(const int32_t *ids, int64_t t, int64_t count, const char *what)
{
    CHECK(ids[t] >= 0 && ids[t] < count, "%s %d of row %lld is outside [0, %lld)", what, ids[t], (long long)t,
          (long long)count);
    return ids[t];
}

/* The table row of a token; -1: on another rank. `ids` 0: the table is not sharded. */
static int64_t row_here(const int32_t *tokens, int64_t t, int64_t first, int64_t vocab, int64_t ids)
{
    const int64_t row = row_checked(tokens, t, ids ? ids : vocab, "token") - first;
    return row >= 0 && row < vocab ? row : -1;
}

static status embed_fwd(const struct embed_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(t, a->rows)
    {
        bool none = a->tokens[t] == TOKEN_NONE && !a->pos_table;
        int64_t token = none ? -1 : row_here(a->tokens, t, a->first, a->vocab, a->ids);
        int64_t position = a->pos_table ? row_checked(a->positions, t, a->pos_count, "position") : 0;
        for (int64_t j = 0; j < a->d; j++) {
            double v = token < 0 ? 0 : get(a->table, token * a->d + j, a->dt);
            if (a->pos_table) v += get(a->pos_table, position * a->d + j, a->dt);
            put(a->x, t * a->d + j, a->dt, v);
        }
    }
    return STATUS_OK;
}

/* Chunks are column ranges, so each sees all rows in token order. */
static status embed_bwd(const struct embed_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(c, chunk_count(a->d, COLUMNS))
    {
        struct span cols = chunk_span(c, a->d, COLUMNS);
        for (int64_t t = 0; t < a->rows; t++) {
            bool none = a->tokens[t] == TOKEN_NONE && !a->dpos;
            int64_t token = none ? -1 : row_here(a->tokens, t, a->first, a->vocab, a->ids);
            int64_t position = a->dpos ? row_checked(a->positions, t, a->pos_count, "position") * a->d : 0;
            for (int64_t j = cols.begin; j < cols.end; j++) {
                double dx = get(a->dx, t * a->d + j, a->dt);
                if (token >= 0)
                    put(a->dtable, token * a->d + j, acc, get(a->dtable, token * a->d + j, acc) + dx);
                if (a->dpos) put(a->dpos, position + j, acc, get(a->dpos, position + j, acc) + dx);
            }
        }
    }
    return STATUS_OK;
}

static int by_id(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static status rows_unique(const struct rows_unique_args *a, dev_stream s)
{
    (void)s;
    uint64_t *pairs = a->scratch; /* id and position */
    int64_t some = 0, found = 0;
    for (int64_t i = 0; i < a->count; i++) {
        const int32_t id = a->ids[i];
        if (id >= 0 && id < a->table_rows) pairs[some++] = (uint64_t)id << 32 | (uint64_t)i;
        a->slots[i] = TOKEN_NONE;
    }
    qsort(pairs, (size_t)some, sizeof *pairs, by_id);
    for (int64_t i = 0; i < some; i++) {
        const int32_t id = (int32_t)(pairs[i] >> 32);
        if (found == 0 || a->rows[found - 1] != id) {
            CHECK(found < a->room, "more than %lld rows", (long long)a->room);
            a->rows[found++] = id;
        }
        a->slots[pairs[i] & UINT32_MAX] = (int32_t)(found - 1);
    }
    while (found < a->room) a->rows[found++] = TOKEN_NONE;
    return STATUS_OK;
}

void oracle_embed(struct ops *o)
{
    o->embed_fwd = embed_fwd;
    o->embed_bwd = embed_bwd;
    o->rows_unique = rows_unique;
}
