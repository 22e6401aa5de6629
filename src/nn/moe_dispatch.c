#include "nn/moe_dispatch.h"
#include "base/scope.h"

#include <math.h>
#include <string.h>

/* ---- memory */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t local_experts(const struct dispatch_shape *s)
{
    return s->experts / s->ranks;
}

/* Rows that an expert takes of each rank's tokens; 0: all. */
static int64_t capacity_of(const struct dispatch_shape *s)
{
    const double even = (double)(s->top_k * s->n) / (double)s->experts;
    return s->capacity > 0 ? (int64_t)ceil(s->capacity * even) : 0;
}

int64_t dispatch_rows_max(const struct dispatch_shape *s)
{
    const int64_t local = local_experts(s), capacity = capacity_of(s), all = s->n * least(s->top_k, local);
    return s->ranks * (capacity > 0 ? least(all, local * capacity) : all);
}

void dispatch_lay(struct dispatch *s, const struct dispatch_shape *shape, const struct lay *l)
{
    struct arena *keep = lay_place(l, RECOMPUTE_FULL), *always = l->mode == LAY_TRAIN ? l->act : l->scratch;
    const dtype acc = dtype_acc(l->dt);
    const int64_t rows = dispatch_rows_max(shape), slots = shape->n * shape->top_k,
                  local = local_experts(shape), ranks = shape->ranks;
    *s = (struct dispatch){.shape = *shape};
    s->every = tensor_take(always, "rows of experts", DTYPE_I32, 2, ranks, shape->experts);
    s->pairs = tensor_take(always, "rows between ranks", DTYPE_I64, 2, 2 * ranks, ranks);
    s->source = tensor_take(always, "sources of sorted rows", DTYPE_I32, 1, rows);
    s->place = tensor_take(always, "places of arrived rows", DTYPE_I32, 1, rows);
    s->offsets = tensor_take(always, "offsets of own experts", DTYPE_I32, 1, local + 1);
    s->counts = tensor_take(always, "rows of own experts", DTYPE_I32, 1, local);
    s->weight = tensor_take(always, "weights of arrived rows", acc, 1, rows);
    s->rows = tensor_take(keep, "arrived rows", l->dt, 2, rows, shape->d);
    s->back = tensor_take(l->scratch, "rows of experts in order of arrival", l->dt, 2, rows, shape->d);
    s->sent = tensor_take(l->scratch, "rows for experts", l->dt, 2, slots, shape->d);
    s->tokens = tensor_take(l->scratch, "tokens of rows", DTYPE_I32, 1, slots);
    s->sent_weight = tensor_take(l->scratch, "weights of rows", acc, 1, slots);
    if (l->mode == LAY_TRAIN)
        s->dweight = tensor_take(l->scratch, "gradients of arrived weights", acc, 1, rows);
}

/* ---- who sends what */

static int64_t pair(const struct dispatch *s, int from, int to)
{
    return ((const int64_t *)s->pairs.data)[from * s->shape.ranks + to];
}

int64_t dispatch_arrived(const struct dispatch *s, const struct exec *r)
{
    int64_t rows = 0;
    for (int k = 0; k < s->shape.ranks; k++) rows += pair(s, k, comm_rank(r->ep));
    return rows;
}

static int64_t sent(const struct dispatch *s, const struct exec *r)
{
    int64_t rows = 0;
    for (int k = 0; k < s->shape.ranks; k++) rows += pair(s, comm_rank(r->ep), k);
    return rows;
}

static void count_pairs(const struct dispatch *s)
{
    const int ranks = s->shape.ranks;
    const int64_t local = local_experts(&s->shape);
    const int32_t *every = s->every.data;
    int64_t *pairs = s->pairs.data;
    for (int64_t k = 0; k < (int64_t)ranks * ranks; k++) {
        pairs[k] = 0;
        for (int64_t e = 0; e < local; e++) pairs[k] += every[k * local + e];
        pairs[(int64_t)ranks * ranks + k % ranks * ranks + k / ranks] = pairs[k];
    }
}

/* Places of arrived rows among those of this rank's experts: by expert, then by rank. */
static void sort_arrived(const struct dispatch *s, int me)
{
    const int64_t local = local_experts(&s->shape);
    const int32_t *every = s->every.data;
    int32_t *offsets = s->offsets.data, *counts = s->counts.data, *source = s->source.data,
            *place = s->place.data, arrived = 0;
    offsets[0] = 0;
    for (int64_t e = 0; e < local; e++) {
        counts[e] = 0;
        for (int k = 0; k < s->shape.ranks; k++) counts[e] += every[k * s->shape.experts + me * local + e];
        offsets[e + 1] = offsets[e] + counts[e];
        counts[e] = 0; /* so far */
    }
    for (int k = 0; k < s->shape.ranks; k++)
        for (int64_t e = 0; e < local; e++)
            for (int32_t i = 0; i < every[k * s->shape.experts + me * local + e]; i++) {
                const int32_t sorted = offsets[e] + counts[e]++;
                source[sorted] = arrived;
                place[arrived++] = sorted;
            }
}

/* ---- exchanges */

/* to [i] = x [place[i]], rows of D elements. */
static status pick(const struct dispatch *s, const void *x, const struct tensor *place, struct tensor to,
                   int64_t rows, const struct exec *r)
{
    return r->ops->combine(&(struct combine_args){.x = x,
                                                  .place = place->data,
                                                  .y = to.data,
                                                  .rows = rows,
                                                  .top_k = 1,
                                                  .d = s->shape.d,
                                                  .dt = to.dt,
                                                  .base_dt = to.dt},
                           r->stream);
}

/* To the experts, or, with the pairs transposed, back from them. */
enum way { TO_EXPERTS, FROM_EXPERTS };
static status exchange(const struct dispatch *s, const char *name, enum way way, const void *from, void *to,
                       size_t bytes, const struct exec *r)
{
    const int64_t *pairs = s->pairs.data, all = (int64_t)s->shape.ranks * s->shape.ranks;
    return comm_all_to_all_rows(r->ep, name, way == TO_EXPERTS ? pairs : pairs + all, from, to, bytes,
                                r->stream);
}

/* Weights of this rank's slots, in the order of the rows. */
static status send_weights(struct dispatch *s, const struct dispatch_route *route, const struct exec *r)
{
    const size_t bytes = dtype_bytes(s->weight.dt);
    for (int64_t i = 0, rows = sent(s, r); i < rows; i++)
        memcpy((char *)s->sent_weight.data + (size_t)i * bytes,
               (const char *)route->weight + (size_t)route->source[i] * bytes, bytes);
    return exchange(s, "weights of rows", TO_EXPERTS, s->sent_weight.data, s->weight.data, bytes, r);
}

status dispatch_begin(struct dispatch *s, const struct dispatch_route *route, const struct exec *r)
{
    CHECK(comm_ranks(r->ep) == s->shape.ranks, "experts of %d ranks, and %d that call", s->shape.ranks,
          comm_ranks(r->ep));
    SCOPE("moe.dispatch", -1);
    TRY(comm_all_gather(r->ep, "rows of experts", route->counts, s->every.data,
                        (size_t)s->shape.experts * sizeof *route->counts, r->stream));
    count_pairs(s);
    sort_arrived(s, comm_rank(r->ep));
    return send_weights(s, route, r);
}

status dispatch_rows(const struct dispatch *s, const struct dispatch_route *route, const char *name,
                     struct tensor x, struct tensor to, const struct exec *r)
{
    SCOPE("moe.dispatch", -1);
    const int64_t rows = sent(s, r);
    int32_t *tokens = s->tokens.data;
    for (int64_t i = 0; i < rows; i++) tokens[i] = route->source[i] / (int32_t)s->shape.top_k;
    TRY(pick(s, x.data, &s->tokens, s->sent, rows, r));
    return exchange(s, name, TO_EXPERTS, s->sent.data, to.data, (size_t)s->shape.d * dtype_bytes(to.dt), r);
}

status dispatch_return(const struct dispatch *s, const char *name, struct tensor sorted, const struct exec *r)
{
    SCOPE("moe.combine", -1);
    TRY(pick(s, sorted.data, &s->place, s->back, dispatch_arrived(s, r), r));
    return exchange(s, name, FROM_EXPERTS, s->back.data, s->sent.data,
                    (size_t)s->shape.d * dtype_bytes(s->sent.dt), r);
}

status dispatch_return_weights(const struct dispatch *s, const struct dispatch_route *route, void *to,
                               const struct exec *r)
{
    const size_t bytes = dtype_bytes(s->weight.dt);
    TRY(exchange(s, "gradients of weights", FROM_EXPERTS, s->dweight.data, s->sent_weight.data, bytes, r));
    for (int64_t i = 0, rows = sent(s, r); i < rows; i++)
        memcpy((char *)to + (size_t)route->source[i] * bytes,
               (const char *)s->sent_weight.data + (size_t)i * bytes, bytes);
    return STATUS_OK;
}
