#include "nn/moe_dispatch.h"
#include "base/int_math.h"
#include "base/scope.h"

#include <math.h>

/* ---- memory */

static int64_t local_experts(const struct dispatch_shape *s)
{
    return s->experts / s->ranks;
}

/* Rows that an expert takes of each rank's tokens; 0: all. */
static int64_t capacity_of(const struct dispatch_shape *s)
{
    const double even = (double)(s->top_k * s->n * (s->context > 1 ? s->context : 1)) / (double)s->experts;
    return s->capacity > 0 ? (int64_t)ceil(s->capacity * even) : 0;
}

int64_t dispatch_rows_max(const struct dispatch_shape *s)
{
    const int64_t local = local_experts(s), capacity = capacity_of(s),
                  all = s->n * int64_min(s->top_k, local);
    return s->ranks * (capacity > 0 ? int64_min(all, local * capacity) : all);
}

int64_t dispatch_sorted_max(const struct dispatch_shape *s, int64_t align)
{
    return moe_rows_max(dispatch_rows_max(s), 1, local_experts(s), align);
}

void dispatch_layout(struct dispatch *s, const struct dispatch_shape *shape, const struct layout *l)
{
    struct arena *keep = layout_arena(l, RECOMPUTE_FULL),
                 *always = l->mode == LAYOUT_TRAIN ? l->act : l->scratch;
    const dtype acc = dtype_acc(l->dt);
    const int64_t rows = dispatch_rows_max(shape), slots = shape->n * shape->top_k,
                  local = local_experts(shape), ranks = shape->ranks;
    *s = (struct dispatch){.shape = *shape};
    s->every = tensor_take(always, "rows of experts", DTYPE_I32, 2, ranks, shape->experts);
    s->pairs = tensor_take(always, "rows between ranks", DTYPE_I64, 2, 2 * ranks, ranks);
    s->source = tensor_take(always, "sources of sorted rows", DTYPE_I32, 1,
                            dispatch_sorted_max(shape, l->ops->expert_align));
    s->place = tensor_take(always, "places of arrived rows", DTYPE_I32, 1, rows);
    s->offsets = tensor_take(always, "offsets of own experts", DTYPE_I32, 1, local + 1);
    s->counts = tensor_take(always, "rows of own experts", DTYPE_I32, 1, local + 1);
    s->tokens = tensor_take(always, "tokens of rows", DTYPE_I32, 1, slots);
    s->weight = tensor_take(always, "weights of arrived rows", acc, 1, rows);
    s->rows = tensor_take(keep, "arrived rows", l->dt, 2, rows, shape->d);
    s->back = tensor_take(l->scratch, "rows of experts in order of arrival", l->dt, 2, rows, shape->d);
    s->sent = tensor_take(l->scratch, "rows for experts", l->dt, 2, slots, shape->d);
    s->sent_weight = tensor_take(l->scratch, "weights of rows", acc, 1, slots);
    if (l->mode == LAYOUT_TRAIN)
        s->dweight = tensor_take(l->scratch, "gradients of arrived weights", acc, 1, rows);
}

/* ---- rows */

const int32_t *dispatch_count(const struct dispatch *s)
{
    return (const int32_t *)s->counts.data + local_experts(&s->shape);
}

int64_t dispatch_arrived(const struct dispatch *s, const struct exec *r)
{
    return r->stream ? dispatch_rows_max(&s->shape) : *dispatch_count(s);
}

/* to [i] = x [place[i]], rows of d elements; count: as in combine_args. */
struct picking {
    const void *x;
    void *to;
    const int32_t *place, *count;
    int64_t rows, d;
    dtype dt;
};
static status pick(const struct picking *p, const struct exec *r)
{
    return r->ops->combine(&(struct combine_args){.x = p->x,
                                                  .place = p->place,
                                                  .y = p->to,
                                                  .count = p->count,
                                                  .rows = p->rows,
                                                  .top_k = 1,
                                                  .d = p->d,
                                                  .dt = p->dt,
                                                  .base_dt = p->dt},
                           r->stream);
}

/* ---- exchanges */

/* To the experts, or, with the pairs transposed, back from them. */
enum way { TO_EXPERTS, FROM_EXPERTS };
static status exchange(const struct dispatch *s, const char *name, enum way way, const void *from, void *to,
                       size_t bytes, const struct exec *r)
{
    const int64_t *pairs = s->pairs.data, all = (int64_t)s->shape.ranks * s->shape.ranks;
    return comm_all_to_all_rows(r->ep, name, way == TO_EXPERTS ? pairs : pairs + all, from, to, bytes,
                                r->stream);
}

static status sort_rows(const struct dispatch *s, const struct dispatch_route *route, const struct exec *r)
{
    return r->ops->dispatch_sort(&(struct dispatch_sort_args){.every = s->every.data,
                                                              .slots = route->source,
                                                              .ranks = s->shape.ranks,
                                                              .rank = comm_rank(r->ep),
                                                              .experts = s->shape.experts,
                                                              .top_k = s->shape.top_k,
                                                              .slot_count = route->slots,
                                                              .align = r->ops->expert_align,
                                                              .pairs = s->pairs.data,
                                                              .tokens = s->tokens.data,
                                                              .source = s->source.data,
                                                              .place = s->place.data,
                                                              .offsets = s->offsets.data,
                                                              .counts = s->counts.data},
                                 r->stream);
}

/* Weights of this rank's slots, in the order of the rows. */
static status send_weights(const struct dispatch *s, const struct dispatch_route *route, const struct exec *r)
{
    TRY(pick(&(struct picking){.x = route->weight,
                               .to = s->sent_weight.data,
                               .place = route->source,
                               .rows = route->slots,
                               .d = 1,
                               .dt = s->weight.dt},
             r));
    return exchange(s, "weights of rows", TO_EXPERTS, s->sent_weight.data, s->weight.data,
                    dtype_bytes(s->weight.dt), r);
}

status dispatch_begin(struct dispatch *s, const struct dispatch_route *route, const struct exec *r)
{
    CHECK(comm_ranks(r->ep) == s->shape.ranks, "experts of %d ranks, and %d that call", s->shape.ranks,
          comm_ranks(r->ep));
    SCOPE("moe.dispatch", -1);
    TRY(comm_all_gather(r->ep, "rows of experts", route->counts, s->every.data,
                        (size_t)s->shape.experts * sizeof *route->counts, r->stream));
    TRY(sort_rows(s, route, r));
    return send_weights(s, route, r);
}

status dispatch_rows(const struct dispatch *s, const struct dispatch_route *route, const char *name,
                     struct tensor x, struct tensor to, const struct exec *r)
{
    SCOPE("moe.dispatch", -1);
    TRY(pick(&(struct picking){.x = x.data,
                               .to = s->sent.data,
                               .place = s->tokens.data,
                               .rows = route->slots,
                               .d = s->shape.d,
                               .dt = x.dt},
             r));
    return exchange(s, name, TO_EXPERTS, s->sent.data, to.data, (size_t)s->shape.d * dtype_bytes(to.dt), r);
}

status dispatch_return(const struct dispatch *s, const char *name, struct tensor sorted, const struct exec *r)
{
    SCOPE("moe.combine", -1);
    TRY(pick(&(struct picking){.x = sorted.data,
                               .to = s->back.data,
                               .place = s->place.data,
                               .count = dispatch_count(s),
                               .rows = dispatch_arrived(s, r),
                               .d = s->shape.d,
                               .dt = sorted.dt},
             r));
    return exchange(s, name, FROM_EXPERTS, s->back.data, s->sent.data,
                    (size_t)s->shape.d * dtype_bytes(s->sent.dt), r);
}

status dispatch_return_weights(const struct dispatch *s, const struct dispatch_route *route, void *to,
                               const struct exec *r)
{
    TRY(exchange(s, "gradients of weights", FROM_EXPERTS, s->dweight.data, s->sent_weight.data,
                 dtype_bytes(s->weight.dt), r));
    return pick(&(struct picking){.x = s->sent_weight.data,
                                  .to = to,
                                  .place = route->place,
                                  .rows = route->slots,
                                  .d = 1,
                                  .dt = s->weight.dt},
                r);
}
