/* Ops that mainly move memory: bias gradient, embedding. */
#include "ops/cpu/oracle/oracle.h"
#include "base/parallel.h"
#include "ops/cpu/partial.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vec.h"

enum {
    GRAIN = 32768, /* elements per chunk of the flat ops */
    OWNERS = 32    /* chunks of embed_bwd */
};

static size_t element_bytes(dtype dt)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
    return dt == DTYPE_F32 ? 4 : 2;
}

/* to[0, d) += from[0, d). */
VEC_INLINE void add_into(float *to, const void *from, int64_t at, int64_t d, dtype dt)
{
    for (int64_t j = 0; j < d; j += VEC) {
        int n = vec_n(d - j);
        vec_store(to, j, n, DTYPE_F32, vec_load(to, j, n, DTYPE_F32) + vec_load(from, at + j, n, dt));
    }
}

static void add_row(float *to, const void *from, int64_t at, int64_t d, dtype dt)
{
    if (dt == DTYPE_F32)
        add_into(to, from, at, d, DTYPE_F32);
    else
        add_into(to, from, at, d, DTYPE_BF16);
}

static status bias_bwd(const struct bias_bwd_args *a, dev_stream s)
{
    (void)s;
    element_bytes(a->dt);
    struct partial_buffer buffer;
    const struct partial part = partial_init(&buffer, a->rows, partial_pad(a->n));
    PARALLEL_CHUNKS(c, part.chunks)
    {
        struct span rows = chunk_span(c, a->rows, part.grain);
        float *line = partial_line(&part, c);
        for (int64_t r = rows.begin; r < rows.end; r++) add_row(line, a->dy, r * a->n, a->n, a->dt);
    }
    partial_merge(&part, 0, a->db, a->n);
    return STATUS_OK;
}

static int64_t row_checked(const int32_t *ids, int64_t t, int64_t count, const char *what)
{
    CHECK(ids[t] >= 0 && ids[t] < count, "%s %d of row %lld is outside [0, %lld)", what, ids[t], (long long)t,
          (long long)count);
    return ids[t];
}

VEC_INLINE void sum_row(const void *x, int64_t x_at, const void *y, int64_t y_at, void *out, int64_t at,
                        int64_t d, dtype dt)
{
    for (int64_t j = 0; j < d; j += VEC) {
        int n = vec_n(d - j);
        vec_store(out, at + j, n, dt, vec_load(x, x_at + j, n, dt) + vec_load(y, y_at + j, n, dt));
    }
}

static void embed_row(const struct embed_fwd_args *a, int64_t t, size_t size)
{
    const bool none = a->tokens[t] == TOKEN_NONE && a->pos_table == NULL;
    const int64_t row = none ? -1 : row_checked(a->tokens, t, a->ids ? a->ids : a->vocab, "token") - a->first;
    const bool here = row >= 0 && row < a->vocab;
    const size_t bytes = (size_t)a->d * size;
    int64_t token = row * a->d, at = t * a->d;
    char *x = (char *)a->x + (size_t)at * size;
    if (!here && a->pos_table == NULL) {
        memset(x, 0, bytes);
        return;
    }
    if (a->pos_table == NULL) {
        memcpy(x, (const char *)a->table + (size_t)token * size, bytes);
        return;
    }
    int64_t position = row_checked(a->positions, t, a->pos_count, "position") * a->d;
    if (!here) {
        memcpy(x, (const char *)a->pos_table + (size_t)position * size, bytes);
        return;
    }
    if (a->dt == DTYPE_F32)
        sum_row(a->table, token, a->pos_table, position, a->x, at, a->d, DTYPE_F32);
    else
        sum_row(a->table, token, a->pos_table, position, a->x, at, a->d, DTYPE_BF16);
}

static status embed_fwd(const struct embed_fwd_args *a, dev_stream s)
{
    (void)s;
    const size_t size = element_bytes(a->dt);
    const int64_t grain = a->d < GRAIN ? GRAIN / a->d : 1;
    PARALLEL_CHUNKS(c, chunk_count(a->rows, grain))
    {
        struct span rows = chunk_span(c, a->rows, grain);
        for (int64_t t = rows.begin; t < rows.end; t++) embed_row(a, t, size);
    }
    return STATUS_OK;
}

/* A table of `rows` rows, of ids [first, first + rows) of `count`. */
struct rows_of {
    const int32_t *ids;
    const char *what;
    float *table;
    int64_t first, rows, count;
};

/* Chunk c owns the table rows with id % OWNERS == c and scans all ids for them: every row is summed in token
 * order, and memory moves in whole rows. */
static void scatter(const struct embed_bwd_args *a, const struct rows_of *to)
{
    const int32_t *ids = to->ids;
    PARALLEL_CHUNKS(c, OWNERS)
    {
        for (int64_t t = 0; t < a->rows; t++) {
            if ((uint32_t)ids[t] % OWNERS != (uint32_t)c || (ids[t] == TOKEN_NONE && !a->dpos)) continue;
            const int64_t row = row_checked(ids, t, to->count, to->what) - to->first;
            if (row >= 0 && row < to->rows) add_row(to->table + row * a->d, a->dx, t * a->d, a->d, a->dt);
        }
    }
}

static status embed_bwd(const struct embed_bwd_args *a, dev_stream s)
{
    (void)s;
    element_bytes(a->dt);
    scatter(a, &(struct rows_of){.ids = a->tokens,
                                 .what = "token",
                                 .table = a->dtable,
                                 .first = a->first,
                                 .rows = a->vocab,
                                 .count = a->ids ? a->ids : a->vocab});
    if (a->dpos)
        scatter(a, &(struct rows_of){.ids = a->positions,
                                     .what = "position",
                                     .table = a->dpos,
                                     .rows = a->pos_count,
                                     .count = a->pos_count});
    return STATUS_OK;
}

void SIMD(simd_embed)(struct ops *o)
{
    o->bias_bwd = bias_bwd;
    o->embed_fwd = embed_fwd;
    o->embed_bwd = embed_bwd;
}
