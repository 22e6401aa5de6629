#include "nn/attn_context.h"
#include "dev/dev.h"
#include "parallel/side_stream.h"

/* What attention reads and writes. */
struct attn_place {
    struct attn_heads h;
    struct tensor o, do_;
    const struct batch *batch;    /* of the documents and rows */
    const struct attn_doc *split; /* as in attn_fwd_args */
    int64_t docs, heads, heads_kv;
    int64_t keys; /* with split: their rows */
    bool more;
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
};

static int64_t q_width(const struct attn *m)
{
    return m->heads * m->head_dim;
}
static int64_t kv_width(const struct attn *m)
{
    return m->heads_kv * m->head_dim;
}

static bool ulysses(const struct layout *l)
{
    return l->cp_size > 1 && l->context_kind == CONTEXT_ULYSSES;
}

struct attn_shape attn_context_shape(const struct attn *m, const struct layout *l)
{
    const int64_t ranks = ulysses(l) ? l->cp_size : 1;
    return (struct attn_shape){.rows = l->n * ranks,
                               .docs = l->docs_max * ranks,
                               .len_max = l->len_max * ranks,
                               .heads = m->heads / ranks,
                               .heads_kv = m->heads_kv / ranks,
                               .head_dim = m->head_dim,
                               .head_dim_v = m->head_dim,
                               .window = m->window,
                               .dt = l->dt,
                               .keys = l->cp_size > 1 && !ulysses(l) ? l->n * l->cp_size : 0};
}

static void ring_layout(struct attn_saved *s, int64_t width, const struct layout *l)
{
    s->kv = (struct context_rows){
        .own = tensor_take(l->scratch, "k and v for other ranks", l->dt, 2, l->n, width)};
    s->ring_kv = tensor_take(l->scratch, "k and v of another rank", l->dt, 2, l->n, width);
    if (l->mode != LAYOUT_TRAIN) return;
    s->ring_dkv = tensor_take(l->scratch, "gradients of k and v of a rank", l->dt, 2, l->n, width);
    s->ring_terms =
        tensor_take(l->scratch, "gradients of k and v by rank", l->dt, 2, l->n * l->cp_size, width);
}

void attn_context_layout(const struct attn *m, struct attn_saved *s, const struct layout *l)
{
    if (l->cp_size <= 1) return;
    const int64_t q = q_width(m), kv = kv_width(m), n = l->n * l->cp_size, ranks = l->cp_size;
    const bool train = l->mode == LAYOUT_TRAIN;
    if (l->context_kind == CONTEXT_RING) {
        ring_layout(s, 2 * kv, l);
        return;
    }
    if (!ulysses(l)) {
        context_rows_layout(&s->kv, 2 * kv, l);
        return;
    }
    context_heads_layout(&s->exchange, train ? 3 * q + 2 * kv : q + 2 * kv, l);
    s->heads_qkv = tensor_take(l->scratch, "q, k, v of this rank's heads", l->dt, 2, n, (q + 2 * kv) / ranks);
    s->heads_o = tensor_take(l->scratch, "output of this rank's heads", l->dt, 2, n, q / ranks);
    if (!train) return;
    s->heads_do = tensor_take(l->scratch, "output gradient of this rank's heads", l->dt, 2, n, q / ranks);
    s->heads_dqkv = tensor_take(l->scratch, "dqkv of this rank's heads", l->dt, 2, n, (q + 2 * kv) / ranks);
}

/* ---- all-gather of keys and values */

static status gather_keys(const struct attn *m, struct attn_saved *s, const struct batch *b,
                          const struct exec *r)
{
    const int64_t q = q_width(m), kv = kv_width(m);
    TRY(context_columns_copy(s->kv.own, 0, s->rot, q, kv, r));
    TRY(context_columns_copy(s->kv.own, kv, s->qkv, q + kv, kv, r));
    return context_rows_gather(&s->kv, b->context, r);
}

static void place_keys(const struct attn *m, const struct attn_saved *s, const struct batch *b,
                       struct attn_place *at)
{
    const int64_t kv = kv_width(m);
    at->split = b->context->docs, at->docs = b->context->count;
    at->h.k = s->kv.all.data, at->h.v = tensor_column(s->kv.all, kv);
    at->h.k_stride = at->h.v_stride = s->kv.all.shape[1];
    at->keys = b->context->full->rows;
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
    const struct batch *whole = b->context->full;
    *at = (struct attn_place){.h = {.q = s->heads_qkv.data,
                                    .k = tensor_column(s->heads_qkv, q),
                                    .v = tensor_column(s->heads_qkv, q + kv),
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
                              .dk = tensor_column(s->heads_dqkv, q),
                              .dv = tensor_column(s->heads_dqkv, q + kv),
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
                              .dk = tensor_column(s->dqkv, q_width(m)),
                              .dv = tensor_column(s->dqkv, q_width(m) + kv_width(m)),
                              .dq_stride = stride,
                              .dk_stride = stride,
                              .dv_stride = stride};
}

static bool exchanges(const struct attn_saved *s, const struct batch *b)
{
    return b->context && s->exchange.sent.rank > 0;
}

static status attend(const struct attn *m, const struct attn_saved *s, const struct attn_place *at,
                     const struct exec *r)
{
    return r->ops->attn_fwd(&(struct attn_fwd_args){.q = at->h.q,
                                                    .k = at->h.k,
                                                    .v = at->h.v,
                                                    .o = at->o.data,
                                                    .lse = s->lse.data,
                                                    .q_stride = at->h.q_stride,
                                                    .k_stride = at->h.k_stride,
                                                    .v_stride = at->h.v_stride,
                                                    .cu_seqlens = at->batch->cu_seqlens,
                                                    .cp_docs = at->split,
                                                    .keys = at->keys,
                                                    .more = at->more,
                                                    .docs = at->docs,
                                                    .rows = at->batch->rows,
                                                    .heads = at->heads,
                                                    .heads_kv = at->heads_kv,
                                                    .head_dim = m->head_dim,
                                                    .head_dim_v = m->head_dim,
                                                    .window = m->window,
                                                    .len_max = at->batch->len_max,
                                                    .scale = m->scale,
                                                    .scratch = s->scratch_fwd.data,
                                                    .dt = s->o.dt},
                            r->stream);
}

/* `rope` NULL: dq and dk stay rotated. */
static status attend_bwd(const struct attn *m, const struct attn_saved *s, const struct attn_place *at,
                         const struct rotation *rope, bool *rotated, const struct exec *r)
{
    struct attn_bwd_args a = {.q = at->h.q,
                              .k = at->h.k,
                              .v = at->h.v,
                              .o = at->o.data,
                              .do_ = at->do_.data,
                              .lse = s->lse.data,
                              .dq = at->dq,
                              .dk = at->dk,
                              .dv = at->dv,
                              .q_stride = at->h.q_stride,
                              .k_stride = at->h.k_stride,
                              .v_stride = at->h.v_stride,
                              .dq_stride = at->dq_stride,
                              .dk_stride = at->dk_stride,
                              .dv_stride = at->dv_stride,
                              .cu_seqlens = at->batch->cu_seqlens,
                              .cp_docs = at->split,
                              .keys = at->keys,
                              .more = at->more,
                              .docs = at->docs,
                              .rows = at->batch->rows,
                              .heads = at->heads,
                              .heads_kv = at->heads_kv,
                              .head_dim = m->head_dim,
                              .head_dim_v = m->head_dim,
                              .window = m->window,
                              .scale = m->scale,
                              .len_max = at->batch->len_max,
                              .scratch = s->scratch_bwd.data,
                              .scratch_bytes = (size_t)tensor_count(s->scratch_bwd),
                              .dt = s->o.dt};
    a.rope = rope;
    *rotated = rope && m->rope_alone && r->ops->attn_bwd_supports && r->ops->attn_bwd_supports(&a, r->stream);
    if (!*rotated) a.rope = NULL;
    return r->ops->attn_bwd(&a, r->stream);
}

/* ---- a ring */

static int source_of(int step, const struct exec *r)
{
    return (comm_rank(r->cp) - step + comm_ranks(r->cp)) % comm_ranks(r->cp);
}

static bool step_needed(const struct attn *m, const struct batch *b, int step, const struct exec *r)
{
    const int ranks = comm_ranks(r->cp);
    return context_step_needed(ranks, step, b->context->length / (2 * ranks), m->window);
}

static status ring_pack(const struct attn *m, const struct attn_saved *s, const struct exec *r)
{
    const int64_t q = q_width(m), kv = kv_width(m);
    TRY(context_columns_copy(s->kv.own, 0, s->rot, q, kv, r));
    return context_columns_copy(s->kv.own, kv, s->qkv, q + kv, kv, r);
}

/* Keys and values of the rank `step` before this one; of this rank: step 0. */
static status ring_keys(const struct attn *m, const struct attn_saved *s, struct attn_place *at, int step,
                        const struct exec *r)
{
    const struct tensor kv = step ? s->ring_kv : s->kv.own;
    at->h.k = kv.data, at->h.v = tensor_column(kv, kv_width(m));
    at->h.k_stride = at->h.v_stride = kv.shape[1];
    if (step == 0) return STATUS_OK;
    return comm_ring_shift(r->cp, "keys and values", step, s->kv.own.data, s->ring_kv.data,
                           (size_t)tensor_count(kv) * dtype_bytes(kv.dt), r->stream);
}

/* The first list of a step: of this rank that of equal chunks, which has every query. */
static void ring_list(const struct batch *b, struct attn_place *at, int step, int i, const struct exec *r)
{
    const struct context_docs *list = &b->context->ring[2 * source_of(step, r) + (step == 0 ? 1 - i : i)];
    at->split = list->docs, at->docs = list->count;
    at->more = step > 0 || i > 0;
}

static status ring_fwd(const struct attn *m, const struct attn_saved *s, const struct batch *b,
                       struct attn_place *at, const struct exec *r)
{
    TRY(ring_pack(m, s, r));
    for (int step = 0; step < comm_ranks(r->cp); step++) {
        if (step > 0 && !step_needed(m, b, step, r)) continue;
        TRY(ring_keys(m, s, at, step, r));
        for (int i = 0; i < 2; i++) {
            ring_list(b, at, step, i, r);
            TRY(attend(m, s, at, r));
        }
    }
    return STATUS_OK;
}

/* dq, and the gradients of k and v of a step's rank from the queries here, in d. */
static status ring_step_bwd(const struct attn *m, const struct attn_saved *s, const struct batch *b,
                            struct attn_place *at, int step, struct tensor d, const struct exec *r)
{
    bool rotated;
    at->dk = d.data, at->dv = tensor_column(d, kv_width(m));
    at->dk_stride = at->dv_stride = d.shape[1];
    TRY(dev_zero(r->stream, d.data, (size_t)tensor_count(d) * dtype_bytes(d.dt)));
    for (int i = 0; i < 2; i++) {
        ring_list(b, at, step, i, r);
        TRY(attend_bwd(m, s, at, NULL, &rotated, r));
    }
    return STATUS_OK;
}

static struct tensor term_of(const struct attn_saved *s, int rank, const struct exec *r)
{
    struct tensor t = s->ring_terms;
    t.shape[0] = s->kv.own.shape[0];
    t.data = (char *)t.data + (size_t)rank * (size_t)tensor_count(t) * dtype_bytes(t.dt);
    CHECK(rank < comm_ranks(r->cp), "rank %d", rank);
    return t;
}

static status ring_bwd(const struct attn *m, const struct attn_saved *s, const struct batch *b,
                       struct attn_place *at, const struct exec *r)
{
    const int ranks = comm_ranks(r->cp), rank = comm_rank(r->cp);
    const struct tensor own = s->kv.own;
    const size_t bytes = (size_t)tensor_count(own) * dtype_bytes(own.dt);
    const int64_t q = q_width(m), kv = kv_width(m);
    TRY(ring_pack(m, s, r));
    TRY(dev_zero(r->stream, s->ring_terms.data, (size_t)ranks * bytes));
    for (int step = 0; step < ranks; step++) {
        if (step > 0 && !step_needed(m, b, step, r)) continue;
        TRY(ring_keys(m, s, at, step, r));
        TRY(ring_step_bwd(m, s, b, at, step, step ? s->ring_dkv : term_of(s, rank, r), r));
        if (step > 0)
            TRY(comm_ring_shift(r->cp, "gradients of keys and values", ranks - step, s->ring_dkv.data,
                                term_of(s, (rank + step) % ranks, r).data, bytes, r->stream));
    }
    TRY(comm_reduce_scatter_finish(r->cp, s->ring_terms.data, term_of(s, rank, r).data, own.data,
                                   tensor_count(own), own.dt, r->stream));
    TRY(context_columns_copy(s->dqkv, q, own, 0, kv, r));
    return context_columns_copy(s->dqkv, q + kv, own, kv, kv, r);
}

/* ---- */

static bool rings(const struct attn_saved *s, const struct batch *b)
{
    return b->context && s->ring_kv.rank > 0;
}

status attn_context_fwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                        const struct exec *r)
{
    struct attn_place at;
    struct context_part parts[3];
    place_rows(m, s, b, &at);
    if (rings(s, b)) return ring_fwd(m, s, b, &at, r);
    if (exchanges(s, b)) {
        place_heads(m, s, b, &at, r);
        const int count = heads_parts(m, s->rot, s->qkv, s->heads_qkv, parts, r);
        TRY(context_heads_exchange(&s->exchange, parts, count, CONTEXT_TO_HEADS, b->context, r));
    } else if (b->context) {
        TRY(gather_keys(m, s, b, r));
        place_keys(m, s, b, &at);
    }
    TRY(attend(m, s, &at, r));
    if (!exchanges(s, b)) return STATUS_OK;
    parts[0] = (struct context_part){.rows = s->o, .all = s->heads_o, .width = q_width(m)};
    return context_heads_exchange(&s->exchange, parts, 1, CONTEXT_TO_ROWS, b->context, r);
}

static status heads_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                        const struct exec *r)
{
    struct attn_place at;
    struct context_part parts[5];
    bool rotated;
    place_heads(m, s, b, &at, r);
    int count = heads_parts(m, s->rot, s->qkv, s->heads_qkv, parts, r);
    parts[count++] = (struct context_part){.rows = s->o, .all = s->heads_o, .width = q_width(m)};
    parts[count++] = (struct context_part){.rows = s->do_, .all = s->heads_do, .width = q_width(m)};
    TRY(context_heads_exchange(&s->exchange, parts, count, CONTEXT_TO_HEADS, b->context, r));
    TRY(attend_bwd(m, s, &at, NULL, &rotated, r));
    count = heads_parts(m, s->dqkv, s->dqkv, s->heads_dqkv, parts, r);
    return context_heads_exchange(&s->exchange, parts, count, CONTEXT_TO_ROWS, b->context, r);
}

static status gathered_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                           struct attn_place *at, const struct exec *r)
{
    const int64_t q = q_width(m), kv = kv_width(m);
    const struct tensor d = s->kv.dall;
    bool rotated;
    if (r->side) TRY(side_stream_join(r->side));
    place_keys(m, s, b, at);
    at->dk = d.data, at->dv = tensor_column(d, kv);
    at->dk_stride = at->dv_stride = d.shape[1];
    TRY(dev_zero(r->stream, d.data, (size_t)tensor_count(d) * dtype_bytes(d.dt)));
    TRY(attend_bwd(m, s, at, NULL, &rotated, r));
    TRY(context_rows_reduce(&s->kv, b->context, r));
    TRY(context_columns_copy(s->dqkv, q, s->kv.own, 0, kv, r));
    return context_columns_copy(s->dqkv, q + kv, s->kv.own, kv, kv, r);
}

status attn_context_bwd_begin(const struct attn *m, struct attn_saved *s, const struct batch *b,
                              const struct exec *r)
{
    struct exec aside = *r;
    if (b->context == NULL || rings(s, b) || exchanges(s, b)) return STATUS_OK;
    if (r->side) TRY(side_stream_fork(r->side, &aside.stream));
    return gather_keys(m, s, b, &aside);
}

status attn_context_bwd(const struct attn *m, struct attn_saved *s, const struct batch *b,
                        const struct rotation *rope, bool *rotated, const struct exec *r)
{
    struct attn_place at;
    *rotated = false;
    place_rows(m, s, b, &at);
    if (b->context == NULL) return attend_bwd(m, s, &at, rope, rotated, r);
    if (rings(s, b)) return ring_bwd(m, s, b, &at, r);
    return exchanges(s, b) ? heads_bwd(m, s, b, r) : gathered_bwd(m, s, b, &at, r);
}
