#include "nn/context_heads.h"
#include "dev/dev.h"

void context_heads_layout(struct context_heads *w, int64_t width, const struct layout *l)
{
    *w = (struct context_heads){
        .sent = tensor_take(l->scratch, "heads for other ranks", l->dt, 2, l->n, width),
        .received = tensor_take(l->scratch, "heads of this rank", l->dt, 2, l->n, width)};
}

/* Lines of one part between a tensor and the messages of an exchange. */
struct lines {
    struct tensor of;
    int64_t row, at; /* the first, in the tensor */
    char *message;
    size_t stride; /* of a line of the message */
    int64_t rows, width;
};
enum direction { PACK, UNPACK };
static status move(const struct lines *l, enum direction direction, const struct exec *r)
{
    const size_t element = dtype_bytes(l->of.dt);
    char *tensor = (char *)l->of.data + (size_t)(l->row * l->of.shape[1] + l->at) * element;
    const size_t stride = (size_t)l->of.shape[1] * element;
    const bool pack = direction == PACK;
    return dev_copy_lines(r->stream, &(struct dev_lines){.to = pack ? l->message : tensor,
                                                         .from = pack ? tensor : l->message,
                                                         .to_stride = pack ? l->stride : stride,
                                                         .from_stride = pack ? stride : l->stride,
                                                         .bytes = (size_t)l->width * element,
                                                         .count = (size_t)l->rows});
}

/* The messages [ranks][n, W / cp]: of this rank's rows, the heads of each rank. */
static status heads_of_ranks(char *messages, const struct context_part *parts, int count,
                             enum direction direction, const struct exec *r)
{
    const int ranks = comm_ranks(r->cp);
    const int64_t n = parts[0].rows.shape[0];
    size_t stride = 0, at = 0;
    for (int i = 0; i < count; i++)
        stride += (size_t)(parts[i].width / ranks) * dtype_bytes(parts[i].rows.dt);
    for (int i = 0; i < count; i++) {
        const int64_t width = parts[i].width / ranks;
        for (int rank = 0; rank < ranks; rank++)
            TRY(move(&(struct lines){.of = parts[i].rows,
                                     .at = parts[i].at + rank * width,
                                     .message = messages + (size_t)rank * (size_t)n * stride + at,
                                     .stride = stride,
                                     .rows = n,
                                     .width = width},
                     direction, r));
        at += (size_t)width * dtype_bytes(parts[i].rows.dt);
    }
    return STATUS_OK;
}

/* The messages [ranks][n, W / cp]: of this rank's heads, the rows of each rank. */
static status rows_of_ranks(char *messages, const struct context_part *parts, int count,
                            enum direction direction, int64_t length, const struct exec *r)
{
    const int ranks = comm_ranks(r->cp);
    const int64_t n = parts[0].rows.shape[0], share = length / ranks;
    size_t stride = 0, at = 0;
    for (int i = 0; i < count; i++)
        stride += (size_t)(parts[i].width / ranks) * dtype_bytes(parts[i].rows.dt);
    for (int i = 0; i < count; i++) {
        const int64_t width = parts[i].width / ranks;
        for (int64_t chunk = 0; chunk < 2 * n / share * ranks; chunk++) {
            const int64_t half = chunk % 2, rank = chunk / 2 % ranks, sequence = chunk / 2 / ranks;
            const struct context_chunk c = context_chunk((int)rank, ranks, length, (int)half);
            const size_t line = (size_t)(rank * n + sequence * share + c.local);
            TRY(move(&(struct lines){.of = parts[i].all,
                                     .row = sequence * length + c.from,
                                     .at = parts[i].all_at,
                                     .message = messages + line * stride + at,
                                     .stride = stride,
                                     .rows = share / 2,
                                     .width = width},
                     direction, r));
        }
        at += (size_t)width * dtype_bytes(parts[i].rows.dt);
    }
    return STATUS_OK;
}

status context_heads_exchange(const struct context_heads *w, const struct context_part *parts, int count,
                              enum context_way way, const struct context_batch *b, const struct exec *r)
{
    const int ranks = comm_ranks(r->cp);
    const int64_t n = parts[0].rows.shape[0];
    int64_t width = 0;
    for (int i = 0; i < count; i++) width += parts[i].width / ranks;
    const size_t bytes = (size_t)(n * width) * dtype_bytes(parts[0].rows.dt);
    CHECK(n * width * ranks <= w->sent.shape[0] * w->sent.shape[1],
          "%lld columns to exchange, laid out for %lld", (long long)(width * ranks),
          (long long)w->sent.shape[1]);
    if (way == CONTEXT_TO_HEADS)
        TRY(heads_of_ranks(w->sent.data, parts, count, PACK, r));
    else
        TRY(rows_of_ranks(w->sent.data, parts, count, PACK, b->length, r));
    TRY(comm_all_to_all(r->cp, way == CONTEXT_TO_HEADS ? "heads of rows" : "rows of heads", w->sent.data,
                        w->received.data, bytes, r->stream));
    if (way == CONTEXT_TO_HEADS) return rows_of_ranks(w->received.data, parts, count, UNPACK, b->length, r);
    return heads_of_ranks(w->received.data, parts, count, UNPACK, r);
}
