#include "bench/cuda/moe_dispatch.h"
#include "comm/gpu/cuda/p2p_comm.h"

enum { SORT, SEND, MOVE, RETURN, COPY };

static int64_t local_of(const struct dispatch_bench *d)
{
    return d->shape.experts / d->shape.ranks;
}

/* Rows that may arrive. */
static int64_t room(const struct dispatch_bench *d)
{
    const int64_t k = d->shape.top_k < local_of(d) ? d->shape.top_k : local_of(d);
    return d->shape.ranks * d->shape.tokens * k;
}

void dispatch_bench_layout(struct dispatch_bench *d, const struct ops *o, struct arena *a)
{
    const struct moe_bench *b = &d->shape;
    d->align = o->expert_align;
    const int64_t arrived = room(d), wide = moe_rows_max(arrived, 1, local_of(d), d->align);
#define TAKE(to, count) d->to = arena_take(a, sizeof *d->to * (size_t)(count), #to)
    TAKE(sent, d->sorted * b->hidden), TAKE(arrived, arrived * b->hidden), TAKE(outputs, wide * b->hidden);
    TAKE(every, b->ranks * b->experts), TAKE(tokens, d->sorted), TAKE(source, wide), TAKE(place, arrived);
    TAKE(offsets, local_of(d) + 1), TAKE(own, local_of(d) + 1), TAKE(pairs, 2 * b->ranks * b->ranks);
#undef TAKE
}

status dispatch_bench_fill(const struct dispatch_bench *d, struct stream *s)
{
    const size_t row = sizeof *d->every * (size_t)d->shape.experts;
    const int64_t wide = moe_rows_max(room(d), 1, local_of(d), d->align);
    for (int64_t r = 0; r < d->shape.ranks; r++)
        TRY(dev_copy(s, d->every + r * d->shape.experts, d->counts, row));
    return dev_zero(s, d->outputs, sizeof *d->outputs * (size_t)(wide * d->shape.hidden));
}

const char *dispatch_bench_name(int i)
{
    static const char *const names[DISPATCH_PARTS] = {"dispatch: sort", "rows to send", "rows moved",
                                                      "rows back", "copy of rows"};
    return names[i];
}

static status sort(const struct dispatch_bench *d, const struct ops *o, struct stream *s)
{
    return o->dispatch_sort(&(struct dispatch_sort_args){.every = d->every,
                                                         .slots = d->slots,
                                                         .ranks = d->shape.ranks,
                                                         .experts = d->shape.experts,
                                                         .top_k = d->shape.top_k,
                                                         .slot_count = d->sorted,
                                                         .align = d->align,
                                                         .pairs = d->pairs,
                                                         .tokens = d->tokens,
                                                         .source = d->source,
                                                         .place = d->place,
                                                         .offsets = d->offsets,
                                                         .counts = d->own},
                            s);
}

static status move(const struct dispatch_bench *d, struct stream *s)
{
    struct p2p_comm_rows a = {.recv = (char *)d->arrived,
                              .counts = d->pairs,
                              .bytes = sizeof *d->sent * (size_t)d->shape.hidden,
                              .ranks = (int)d->shape.ranks};
    for (int r = 0; r < a.ranks; r++) a.in[r] = (const char *)d->sent;
    return p2p_comm_rows_queue(&a, s);
}

status dispatch_bench_run(const struct dispatch_bench *d, int i, const struct ops *o, struct stream *s)
{
    struct combine_args pick = {.top_k = 1, .d = d->shape.hidden, .dt = DTYPE_BF16, .base_dt = DTYPE_BF16};
    switch (i) {
    case SORT: return sort(d, o, s);
    case MOVE: return move(d, s);
    case SEND: pick.x = d->x, pick.place = d->tokens, pick.y = d->sent, pick.rows = d->sorted; break;
    case RETURN:
        pick.x = d->outputs, pick.place = d->place, pick.y = d->arrived, pick.rows = room(d);
        pick.count = d->own + local_of(d);
        break;
    default:
        return dev_copy(s, d->arrived, d->sent,
                        sizeof *d->sent * (size_t)(d->shape.tokens * d->shape.top_k * d->shape.hidden));
    }
    return o->combine(&pick, s);
}

/* If experts are chosen alike, as many rows arrive as are sent. */
double dispatch_bench_bytes(const struct dispatch_bench *d, int i)
{
    const double rows = (double)(d->shape.tokens * d->shape.top_k), width = (double)(d->shape.hidden * 2);
    return i == SORT ? 0 : 2 * rows * width;
}
