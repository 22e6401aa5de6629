#include "parallel/context.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS, TARGETS, POSITIONS, COLUMNS }; /* then cu_seqlens */

/* Elements of the arrays of a micro-batch. */
static int64_t columns_count(const struct context_shape *s)
{
    return (COLUMNS + 1) * s->rows + 1;
}

status context_open(struct context *c, const struct context_shape *shape)
{
    *c = (struct context){.shape = *shape};
    if (shape->ranks <= 1) return STATUS_OK;
    CHECK(shape->length % (2 * shape->ranks) == 0, "%lld tokens for %d ranks", (long long)shape->length,
          shape->ranks);
    const size_t micros = (size_t)shape->micro_count;
    c->micro = calloc(micros, sizeof *c->micro);
    c->more = calloc(micros, sizeof *c->more);
    c->docs = calloc(micros * (size_t)shape->rows, sizeof *c->docs);
    c->columns = calloc(micros * (size_t)columns_count(shape), sizeof *c->columns);
    if (c->micro && c->more && c->docs && c->columns) return STATUS_OK;
    context_close(c);
    return FAIL(STATUS_FIT, "no memory for %d micro-batches of %lld tokens of this rank", shape->micro_count,
                (long long)shape->rows);
}

void context_close(struct context *c)
{
    free(c->micro);
    free(c->more);
    free(c->docs);
    free(c->columns);
    *c = (struct context){0};
}

/* Rows [begin, end) of the micro-batch that lie in a chunk of this rank, as queries of the document that begins at
 * `key`. */
static struct attn_queries queries_of(const struct context_shape *s, int64_t key, int64_t end, int half)
{
    const int64_t sequence = key / s->length, chunk = s->length / (2 * s->ranks);
    const struct context_chunk c = context_chunk(s->rank, s->ranks, s->length, half);
    const int64_t from = sequence * s->length + c.from;
    const int64_t first = key > from ? key : from, last = end < from + chunk ? end : from + chunk;
    if (first >= last) return (struct attn_queries){0};
    return (struct attn_queries){.row = (int32_t)(sequence * (s->length / s->ranks) + c.local + first - from),
                                 .rows = (int32_t)(last - first),
                                 .shift = (int32_t)(first - key)};
}

/* The documents with rows of this rank; keys end at the last row that is here. Returns how many. */
static int64_t split_docs(const struct context_shape *s, const struct batch *b, struct attn_doc *docs)
{
    int64_t count = 0;
    for (int64_t i = 0; i < b->docs; i++) {
        const int32_t key = b->cu_seqlens[i], end = b->cu_seqlens[i + 1];
        if (key == end) continue;
        CHECK(key / s->length == (end - 1) / s->length, "document %lld lies in two sequences", (long long)i);
        struct attn_doc d = {.key = key};
        for (int half = 0; half < 2; half++) d.part[half] = queries_of(s, key, end, half);
        for (int half = 0; half < 2; half++)
            if (d.part[half].rows > 0) d.keys = d.part[half].shift + d.part[half].rows;
        if (d.keys > 0) docs[count++] = d;
    }
    return count;
}

static void take_column(const struct context_shape *s, const int32_t *from, int64_t rows, int32_t *to)
{
    const int64_t chunk = s->length / (2 * s->ranks);
    for (int64_t row = 0; row < rows; row += s->length)
        for (int half = 0; half < 2; half++, to += chunk)
            memcpy(to, from + row + context_chunk(s->rank, s->ranks, s->length, half).from,
                   (size_t)chunk * sizeof *to);
}

static int order_of_rows(const void *x, const void *y)
{
    const int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* The documents as runs of local rows. */
static int64_t local_docs(const struct context_batch *m, int64_t rows, int32_t *cu)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m->count; i++)
        for (int half = 0; half < 2; half++)
            if (m->docs[i].part[half].rows > 0) cu[count++] = m->docs[i].part[half].row;
    qsort(cu, (size_t)count, sizeof *cu, order_of_rows);
    cu[count] = (int32_t)rows;
    return count;
}

static void take_part(struct context *c, const struct batch *b, int i)
{
    const struct context_shape *s = &c->shape;
    const int64_t rows = b->rows / s->ranks;
    int32_t *column = c->columns + (int64_t)i * columns_count(s), *cu = column + COLUMNS * s->rows;
    struct attn_doc *docs = c->docs + (int64_t)i * s->rows;
    CHECK(rows <= s->rows && b->rows % s->length == 0, "%lld rows in sequences of %lld for %d ranks",
          (long long)b->rows, (long long)s->length, s->ranks);
    c->more[i] = (struct context_batch){docs, split_docs(s, b, docs), s->length, b};
    take_column(s, b->tokens, b->rows, column + TOKENS * s->rows);
    if (b->targets) take_column(s, b->targets, b->rows, column + TARGETS * s->rows);
    take_column(s, b->positions, b->rows, column + POSITIONS * s->rows);
    c->micro[i] = (struct batch){.rows = rows,
                                 .docs = local_docs(&c->more[i], rows, cu),
                                 .len_max = b->len_max < rows ? b->len_max : rows,
                                 .tokens = column + TOKENS * s->rows,
                                 .targets = b->targets ? column + TARGETS * s->rows : NULL,
                                 .positions = column + POSITIONS * s->rows,
                                 .cu_seqlens = cu,
                                 .context = &c->more[i]};
}

const struct batch *context_parts(struct context *c, const struct batch *micro, int count)
{
    if (c->shape.ranks <= 1) return micro;
    CHECK(count <= c->shape.micro_count, "%d micro-batches, laid out for %d", count, c->shape.micro_count);
    for (int i = 0; i < count; i++) take_part(c, &micro[i], i);
    return c->micro;
}
