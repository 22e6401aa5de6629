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

/* Documents of a micro-batch in lists: those of all keys; of a ring, those by chunk of keys, where a query is once in
 * each list of two. */
static int64_t docs_count(const struct context_shape *s)
{
    return s->kind == CONTEXT_RING ? (2 * s->ranks + 1) * s->rows : s->rows;
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
    c->docs = calloc(micros * (size_t)docs_count(shape), sizeof *c->docs);
    c->ring = calloc(micros * (size_t)(2 * shape->ranks), sizeof *c->ring);
    c->columns = calloc(micros * (size_t)columns_count(shape), sizeof *c->columns);
    if (c->micro && c->more && c->docs && c->ring && c->columns) return STATUS_OK;
    context_close(c);
    return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d micro-batches of %lld tokens of this rank",
                shape->micro_count, (long long)shape->rows);
}

void context_close(struct context *c)
{
    free(c->micro);
    free(c->more);
    free(c->docs);
    free(c->ring);
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

/* Queries of a document in this rank's chunk `half`, as such of the keys from row `first` of the micro-batch on. None
 * if those are after them. */
static struct attn_queries queries_before(const struct context_shape *s, int64_t key, int64_t end, int half,
                                          int64_t first)
{
    struct attn_queries q = queries_of(s, key, end, half);
    q.shift -= (int32_t)(first - key);
    if (q.rows + q.shift <= 0) q.rows = 0;
    return q;
}

/* The documents whose keys are in rank `source`'s chunk `half`, with queries of this rank: for this rank itself those
 * of the same chunk, or of the other one. */
static int64_t ring_docs(const struct context_shape *s, const struct batch *b, int source, int half,
                         bool same, struct attn_doc *docs)
{
    const int64_t chunk = s->length / (2 * s->ranks);
    const struct context_chunk c = context_chunk(source, s->ranks, s->length, half);
    int64_t count = 0;
    for (int64_t i = 0; i < b->docs; i++) {
        const int64_t key = b->cu_seqlens[i], end = b->cu_seqlens[i + 1], sequence = key / s->length,
                      from = sequence * s->length + c.from, first = key > from ? key : from,
                      last = end < from + chunk ? end : from + chunk;
        if (first >= last) continue;
        struct attn_doc d = {.key = (int32_t)(sequence * (s->length / s->ranks) + c.local + first - from),
                             .keys = (int32_t)(last - first)};
        for (int mine = 0; mine < 2; mine++)
            if (source != s->rank || (mine == half) == same)
                d.part[mine] = queries_before(s, key, end, mine, first);
        if (d.part[0].rows + d.part[1].rows > 0) docs[count++] = d;
    }
    return count;
}

static void ring_lists(const struct context *c, const struct batch *b, struct attn_doc *docs,
                       struct context_docs *ring)
{
    const struct context_shape *s = &c->shape;
    for (int i = 0; i < 2 * s->ranks; i++) {
        const bool own = i / 2 == s->rank;
        int64_t count = 0;
        if (!own) count = ring_docs(s, b, i / 2, i % 2, false, docs);
        if (own && i % 2 == 0) count = ring_docs(s, b, s->rank, 0, false, docs);
        for (int half = 0; own && i % 2 == 1 && half < 2; half++)
            count += ring_docs(s, b, s->rank, half, true, docs + count);
        ring[i] = (struct context_docs){docs, count};
        docs += count;
    }
}

bool context_step_needed(int ranks, int step, int64_t chunk, int64_t window)
{
    for (int rank = 0; rank < ranks; rank++) {
        const int source = (rank - step + ranks) % ranks, mine[] = {rank, 2 * ranks - 1 - rank},
                  keys[] = {source, 2 * ranks - 1 - source};
        for (int i = 0; i < 4; i++)
            if (context_sees(mine[i / 2], keys[i % 2], chunk, window)) return true;
    }
    return false;
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
    struct attn_doc *docs = c->docs + (int64_t)i * docs_count(s);
    struct context_docs *ring = c->ring + (int64_t)i * 2 * s->ranks;
    CHECK(rows <= s->rows && b->rows % s->length == 0, "%lld rows in sequences of %lld for %d ranks",
          (long long)b->rows, (long long)s->length, s->ranks);
    c->more[i] = (struct context_batch){docs, split_docs(s, b, docs), s->length, b, ring};
    if (s->kind == CONTEXT_RING) ring_lists(c, b, docs + s->rows, ring);
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
