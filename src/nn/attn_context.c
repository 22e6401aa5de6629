#include "nn/attn_context.h"
#include "dev/dev.h"

static int64_t q_width(const struct attn *m)
{
    return m->heads * m->hd;
}
static int64_t kv_width(const struct attn *m)
{
    return m->heads_kv * m->hd;
}
static void *column(struct tensor t, int64_t at)
{
    return t.data ? (char *)t.data + (size_t)at * dtype_bytes(t.dt) : NULL;
}

static bool ulysses(const struct lay *l)
{
    return l->context > 1 && l->context_kind == CONTEXT_ULYSSES;
}

struct attn_shape attn_context_shape(const struct attn *m, const struct lay *l)
{
    const int64_t ranks = ulysses(l) ? l->context : 1;
    return (struct attn_shape){.rows = l->n * ranks,
                               .docs = l->docs_max * ranks,
                               .len_max = l->len_max * ranks,
                               .heads = m->heads / ranks,
                               .heads_kv = m->heads_kv / ranks,
                               .hd = m->hd,
                               .hd_v = m->hd,
                               .window = m->window,
                               .dt = l->dt};
}

void attn_context_lay(const struct attn *m, struct attn_saved *s, const struct lay *l)
{
    if (l->context <= 1) return;
    const int64_t q = q_width(m), kv = kv_width(m), n = l->n * l->context, ranks = l->context;
    if (!ulysses(l)) {
        context_rows_lay(&s->kv, 2 * kv, l);
        return;
    }
    const bool train = l->mode == LAY_TRAIN;
    context_heads_lay(&s->exchange, train ? 3 * q + 2 * kv : q + 2 * kv, l);
    s->heads_qkv = tensor_take(l->scratch, "q, k, v of this rank's heads", l->dt, 2, n, (q + 2 * kv) / ranks);
    s->heads_o = tensor_take(l->scratch, "output of this rank's heads", l->dt, 2, n, q / ranks);
    if (!train) return;
    s->heads_do = tensor_take(l->scratch, "output gradient of this rank's heads", l->dt, 2, n, q / ranks);
    s->heads_dqkv = tensor_take(l->scratch, "dqkv of this rank's heads", l->dt, 2, n, (q + 2 * kv) / ranks);
}

/* ---- all-gather of keys and values */

/* Between columns of a projection and their place in the rows that ranks exchange. */
static status copy_columns(struct tensor to, int64_t to_at, struct tensor from, int64_t from_at,
                           int64_t width, const struct exec *r)
{
    const size_t element = dtype_bytes(to.dt);
    return dev_copy_lines(r->stream, &(struct dev_lines){.to = column(to, to_at),
                                                         .from = column(from, from_at),
                                                         .to_stride = (size_t)to.shape[1] * element,
                                                         .from_stride = (size_t)from.shape[1] * element,
                                                         .bytes = (size_t)width * element,
                                                         .count = (size_t)to.shape[0]});
}

static status gather_keys(const struct attn *m, struct attn_saved *s, const struct batch *b,
                          struct attn_place *at, const struct exec *r)
{
    const int64_t q = q_width(m), kv = kv_width(m);
    TRY(copy_columns(s->kv.own, 0, s->rot, q, kv, r));
    TRY(copy_columns(s->kv.own, kv, s->qkv, q + kv, kv, r));
    TRY(context_rows_gather(&s->kv, b->context, r));
    at->split = b->context->docs, at->docs = b->context->count;
    at->h.k = s->kv.all.data, at->h.v = column(s->kv.all, kv);
    at->h.k_stride = at->h.v_stride = s->kv.all.shape[1];
    return STATUS_OK;
}

/* ---- exchange of rows against heads */

/* q, k and v of the layer in `rows` (k and q: `rotated`), and of this rank's heads in `all`. */
static int heads_parts(const struct attn *m, struct tensor rotated, struct tensor rows, struct tensor all,
                       struct context_part out[3], const struct exec *r)
{
    const int64_t ranks = comm_ranks(r->cp), q = q_width(m), kv = kv_width(m);
    out[0] = (struct context_part){rotated, 0, all, 0, q};
    out[1] = (struct context_part){rotated, q, all, q / ranks, kv};
    out[2] = (struct context_part){rows, q + kv, all, (q + kv) / ranks, kv};
    return 3;
}

static void place_heads(const struct attn *m, const struct attn_saved *s, const struct batch *b,
                        struct attn_place *at, const struct exec *r)
{
    const int64_t ranks = comm_ranks(r->cp), q = q_width(m) / ranks, kv = kv_width(m) / ranks,
                  stride = s->heads_qkv.shape[1];
    const struct batch *whole = b->context->whole;
    *at = (struct attn_place){.h = {.q = s->heads_qkv.data,
                                    .k = column(s->heads_qkv, q),
                                    .v = column(s->heads_qkv, q + kv),
                                    .q_stride = stride,
                                    .k_stride = stride,
                                    .v_stride = stride},
                              .o = s->heads_o,
                              .do_ = s->heads_do,
                              .batch = whole,
                              .docs = whole->docs,
                              .heads = m->heads / ranks,
                              .heads_kv = m->heads_kv / ranks,
                              .dq = s->heads_dqkv.data,
                              .dk = column(s->heads_dqkv, q),
                              .dv = column(s->heads_dqkv, q + kv),
                              .dq_stride = stride,
                              .dk_stride = stride,
                              .dv_stride = stride};
}

/* ---- */

static void place_rows(const struct attn *m, const struct attn_saved *s, const struct batch *b,
                       struct attn_place *at)
{
    const int64_t stride = s->dqkv.shape[1];
    *at = (struct attn_place){.h = attn_heads(m, s),
                              .o = s->o,
                              .do_ = s->do_,
                              .batch = b,
                              .docs = b->docs,
                              .heads = m->heads,
                              .heads_kv = m->heads_kv,
                              .dq = s->dqkv.data,
                              .dk = column(s->dqkv, q_width(m)),
                              .dv = column(s->dqkv, q_width(m) + kv_width(m)),
                              .dq_stride = stride,
                              .dk_stride = stride,
                              .dv_stride = stride};
}

static bool exchanges(const struct attn_saved *s, const struct batch *b)
{
    return b->context && s->exchange.sent.rank > 0;
}

status attn_context_enter(const struct attn *m, struct attn_saved *s, const struct batch *b,
                          struct attn_place *at, const struct exec *r)
{
    struct context_part parts[3];
    place_rows(m, s, b, at);
    if (b->context == NULL) return STATUS_OK;
    if (!exchanges(s, b)) return gather_keys(m, s, b, at, r);
    place_heads(m, s, b, at, r);
    const int count = heads_parts(m, s->rot, s->qkv, s->heads_qkv, parts, r);
    return context_heads_exchange(&s->exchange, parts, count, CONTEXT_TO_HEADS, b->context, r);
}

status attn_context_leave(const struct attn *m, struct attn_saved *s, const struct batch *b,
                          const struct exec *r)
{
    if (!exchanges(s, b)) return STATUS_OK;
    const struct context_part part = {.rows = s->o, .all = s->heads_o, .width = q_width(m)};
    return context_heads_exchange(&s->exchange, &part, 1, CONTEXT_TO_ROWS, b->context, r);
}

status attn_context_enter_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                              struct attn_place *at, const struct exec *r)
{
    struct context_part parts[5];
    if (exchanges(s, b)) {
        place_heads(m, s, b, at, r);
        int count = heads_parts(m, s->rot, s->qkv, s->heads_qkv, parts, r);
        parts[count++] = (struct context_part){.rows = s->o, .all = s->heads_o, .width = q_width(m)};
        parts[count++] = (struct context_part){.rows = s->do_, .all = s->heads_do, .width = q_width(m)};
        return context_heads_exchange(&s->exchange, parts, count, CONTEXT_TO_HEADS, b->context, r);
    }
    TRY(attn_context_enter(m, s, b, at, r));
    if (b->context == NULL) return STATUS_OK;
    at->dk = s->kv.dall.data, at->dv = column(s->kv.dall, kv_width(m));
    at->dk_stride = at->dv_stride = s->kv.dall.shape[1];
    return dev_zero(r->stream, s->kv.dall.data,
                    (size_t)tensor_count(s->kv.dall) * dtype_bytes(s->kv.dall.dt));
}

status attn_context_leave_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                              const struct exec *r)
{
    const int64_t q = q_width(m), kv = kv_width(m);
    struct context_part parts[3];
    if (b->context == NULL) return STATUS_OK;
    if (exchanges(s, b)) {
        const int count = heads_parts(m, s->dqkv, s->dqkv, s->heads_dqkv, parts, r);
        return context_heads_exchange(&s->exchange, parts, count, CONTEXT_TO_ROWS, b->context, r);
    }
    TRY(context_rows_reduce(&s->kv, b->context, r));
    TRY(copy_columns(s->dqkv, q, s->kv.own, 0, kv, r));
    return copy_columns(s->dqkv, q + kv, s->kv.own, kv, kv, r);
}
