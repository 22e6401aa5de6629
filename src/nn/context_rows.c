#include "nn/context_rows.h"
#include "dev/dev.h"

void context_rows_layout(struct context_rows *w, int64_t width, const struct layout *l)
{
    const int64_t rows = l->n * l->cp_size;
    const bool train = l->mode == LAYOUT_TRAIN;
    *w = (struct context_rows){
        .name = "keys and values",
        .own = tensor_take(l->scratch, "rows for other ranks", l->dt, 2, l->n, width),
        .all = tensor_take(l->scratch, "rows of all ranks", l->dt, 2, rows, width),
        .dall = tensor_take(l->scratch, "rows of all ranks, unordered", l->dt, 2, rows, width)};
    if (train)
        w->sum = tensor_take(l->scratch, "scratch of the sum of rows", DTYPE_U8, 1,
                             (int64_t)comm_reduce_scatter_scratch(l->cp_size, l->n * width, l->dt));
}

/* Copies between rows by rank and rows by sequence. */
enum direction { TO_SEQUENCES, TO_RANKS };
static status reorder(struct tensor by_rank, struct tensor by_sequence, int64_t length,
                      enum direction direction, const struct exec *r)
{
    const int ranks = comm_ranks(r->cp);
    const int64_t share = length / ranks, sequences = by_rank.shape[0] / length;
    const size_t line = (size_t)by_rank.shape[1] * dtype_bytes(by_rank.dt),
                 bytes = (size_t)(share / 2) * line;
    for (int rank = 0; rank < ranks; rank++)
        for (int half = 0; half < 2; half++) {
            const struct context_chunk c = context_chunk(rank, ranks, length, half);
            char *a = (char *)by_rank.data + (size_t)(rank * sequences * share + c.local) * line,
                 *b = (char *)by_sequence.data + (size_t)c.from * line;
            const size_t stride_a = (size_t)share * line, stride_b = (size_t)length * line;
            const bool to_b = direction == TO_SEQUENCES;
            TRY(dev_copy_lines(r->stream, &(struct dev_lines){.to = to_b ? b : a,
                                                              .from = to_b ? a : b,
                                                              .to_stride = to_b ? stride_b : stride_a,
                                                              .from_stride = to_b ? stride_a : stride_b,
                                                              .bytes = bytes,
                                                              .count = (size_t)sequences}));
        }
    return STATUS_OK;
}

/* A batch may be shorter than the allocation. */
static struct tensor first_rows(struct tensor t, int64_t rows)
{
    tensor_rows(&t, rows);
    return t;
}

status context_rows_gather(struct context_rows *w, const struct context_batch *b, const struct exec *r)
{
    const int64_t n = w->own.shape[0], rows = n * comm_ranks(r->cp);
    const struct tensor by_rank = first_rows(w->dall, rows);
    const size_t bytes = (size_t)tensor_count(w->own) * dtype_bytes(w->own.dt);
    TRY(comm_all_gather(r->cp, w->name, w->own.data, by_rank.data, bytes, r->stream));
    return reorder(by_rank, first_rows(w->all, rows), b->length, TO_SEQUENCES, r);
}

status context_rows_reduce(struct context_rows *w, const struct context_batch *b, const struct exec *r)
{
    const int64_t rows = w->own.shape[0] * comm_ranks(r->cp);
    const struct tensor by_rank = first_rows(w->all, rows);
    TRY(reorder(by_rank, first_rows(w->dall, rows), b->length, TO_RANKS, r));
    return comm_reduce_scatter(r->cp, "gradients of keys and values", by_rank.data, w->own.data,
                               tensor_count(w->own), w->own.dt, w->sum.data, r->stream);
}

status context_rows_take(struct tensor own, struct tensor all, const struct context_batch *b,
                         const struct exec *r)
{
    const int rank = comm_rank(r->cp), ranks = comm_ranks(r->cp);
    const int64_t share = b->length / ranks;
    const size_t element = (size_t)(tensor_count(own) / own.shape[0]) * dtype_bytes(own.dt);
    for (int half = 0; half < 2; half++) {
        const struct context_chunk c = context_chunk(rank, ranks, b->length, half);
        TRY(dev_copy_lines(r->stream,
                           &(struct dev_lines){.to = (char *)own.data + (size_t)c.local * element,
                                               .from = (const char *)all.data + (size_t)c.from * element,
                                               .to_stride = (size_t)share * element,
                                               .from_stride = (size_t)b->length * element,
                                               .bytes = (size_t)(share / 2) * element,
                                               .count = (size_t)(own.shape[0] / share)}));
    }
    return STATUS_OK;
}

status context_columns_copy(struct tensor to, int64_t to_at, struct tensor from, int64_t from_at,
                            int64_t width, const struct exec *r)
{
    const size_t element = dtype_bytes(to.dt);
    return dev_copy_lines(r->stream, &(struct dev_lines){.to = tensor_column(to, to_at),
                                                         .from = tensor_column(from, from_at),
                                                         .to_stride = (size_t)to.shape[1] * element,
                                                         .from_stride = (size_t)from.shape[1] * element,
                                                         .bytes = (size_t)width * element,
                                                         .count = (size_t)to.shape[0]});
}
