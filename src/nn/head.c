#include "nn/head.h"
#include "tensor/param_operand.h"

/* Each chunk costs one pass over dW [V, D], so chunks are large; logits_max bounds their memory. */
static int64_t chunk_tokens(int64_t vocab, int64_t logits_max)
{
    int64_t chunk = 16384;
    while (chunk > 64 && chunk * vocab > logits_max) chunk /= 2;
    return chunk;
}

void head_init(struct head *m, struct params *p, const struct model_spec *spec, int tied_to)
{
    *m = (struct head){.d = spec->hidden_size,
                       .halts = spec->hrm_halt,
                       .cap = spec->logit_softcap,
                       .slice = p->tp_rank,
                       .slices = (int)params_tp_size(p),
                       .w = tied_to};
    if (tied_to < 0) {
        m->w = params_add(p, ROLE_HEAD, 0, spec->vocab_size, m->d, "head.weight");
        params_split(p, m->w, SPLIT_COLUMN_PARALLEL, NULL, 0);
    }
    m->vocab = m->width = p->rows[m->w].shape[0];
    if (m->slices == 1) m->width = (m->vocab + HEAD_ALIGN - 1) / HEAD_ALIGN * HEAD_ALIGN;
    p->rows[m->w].room = m->width * m->d;
    p->rows[m->w].gemm_overwrites_grad =
        true; /* a tied table, too: the head's backward comes before the embedding's */
}

void head_layout(const struct head *m, struct head_saved *s, const struct layout *l)
{
    int64_t chunk = chunk_tokens(m->width, l->ops->logits_max), rows = l->n < chunk ? l->n : chunk;
    dtype acc = dtype_acc(l->dt), ldt = l->ops->logits_dt(l->dt);
    *s = (struct head_saved){.loss = tensor_take(l->scratch, "token losses", acc, 1, l->n),
                             .logits = tensor_take(l->scratch, "logits chunk", ldt, 2, rows, m->width)};
    s->dlogits = s->logits;
    s->hits = tensor_take(l->scratch, "token hits", acc, 1, l->n);
    if (l->z_loss) s->z = m->halts ? tensor_take(l->scratch, "token z-losses", acc, 1, l->n) : s->hits;
    if (l->dt != ldt && l->mode == LAYOUT_TRAIN)
        s->dlogits = tensor_take(l->scratch, "logits gradient chunk", l->dt, 2, rows, m->width);
    if (m->slices > 1)
        s->parts =
            tensor_take(l->scratch, "what ranks say of logits", acc, 3, m->slices, rows, (int64_t)XENT_PARTS);
}

static struct tensor rows_of(struct tensor t, int64_t begin, int64_t count)
{
    int64_t width = t.rank == 2 ? t.shape[1] : 1;
    if (t.data) t.data = (char *)t.data + (size_t)(begin * width) * dtype_bytes(t.dt);
    t.shape[0] = count;
    return t;
}

status head_logits(const struct head *m, struct tensor y, struct tensor logits, const struct exec *r)
{
    const int64_t n = logits.shape[1];
    CHECK(n == m->vocab || n == m->width, "logits of %lld columns for %lld ids", (long long)n,
          (long long)m->vocab);
    TRY(r->ops->gemm(&(struct gemm_args){.a = operand_of(y),
                                         .b = params_operand(r->params, m->w, GEMM_FWD),
                                         .c = logits.data,
                                         .m = y.shape[0],
                                         .n = n,
                                         .k = m->d,
                                         .accum = ACCUM_STORE,
                                         .cdt = logits.dt},
                     r->stream));
    if (m->cap == 0) return STATUS_OK;
    return r->ops->softcap(
        &(struct softcap_args){.z = logits.data, .count = y.shape[0] * n, .cap = m->cap, .dt = logits.dt},
        r->stream);
}

/* Whether the terms of the z-loss are summed apart. */
static bool z_apart(const struct head_saved *s, const struct head_loss_args *a)
{
    return s->z.data && a->z_sum && a->z_loss > 0 && (s->z.data != s->hits.data || a->hits == NULL);
}

/* Counts hits before the loss, which may overwrite the logits. */
static status count_hits(const struct head *m, struct head_saved *s, const struct head_loss_args *a,
                         struct tensor logits, int64_t at, const struct exec *r)
{
    return r->ops->top1_correct(
        &(struct top1_correct_args){.logits = logits.data,
                                    .targets = a->targets + at,
                                    .hits = rows_of(s->hits, at, logits.shape[0]).data,
                                    .rows = logits.shape[0],
                                    .vocab = m->width,
                                    .vocab_used = m->vocab,
                                    .dt = a->y.dt,
                                    .ldt = logits.dt},
        r->stream);
}

/* Hits, loss and dlogits of the chunk that begins at row `at`. dlogits without data: loss only. */
static status chunk_loss(const struct head *m, struct head_saved *s, const struct head_loss_args *a,
                         struct tensor logits, struct tensor dlogits, int64_t at, const struct exec *r)
{
    const int64_t rows = logits.shape[0];
    if (a->hits) TRY(count_hits(m, s, a, logits, at, r));
    return r->ops->xent(&(struct xent_args){.logits = logits.data,
                                            .dlogits = dlogits.data,
                                            .targets = a->targets + at,
                                            .loss = rows_of(s->loss, at, rows).data,
                                            .z_term = z_apart(s, a) ? rows_of(s->z, at, rows).data : NULL,
                                            .rows = rows,
                                            .vocab = m->width,
                                            .vocab_used = m->vocab,
                                            .grad_scale = a->grad_scale,
                                            .z_loss = a->z_loss,
                                            .cap = m->cap,
                                            .dt = a->y.dt,
                                            .ldt = logits.dt},
                        r->stream);
}

/* The same with a vocabulary sharded over ranks. */
static status chunk_loss_join(const struct head *m, struct head_saved *s, const struct head_loss_args *a,
                              struct tensor logits, struct tensor dlogits, int64_t at, const struct exec *r)
{
    const int64_t rows = logits.shape[0];
    const size_t bytes = (size_t)(rows * XENT_PARTS) * dtype_bytes(s->parts.dt);
    char *mine = (char *)s->parts.data + (size_t)m->slice * bytes;
    TRY(r->ops->vocab_xent_partial(&(struct vocab_xent_partial_args){.logits = logits.data,
                                                                     .targets = a->targets + at,
                                                                     .part = mine,
                                                                     .rows = rows,
                                                                     .vocab = m->vocab,
                                                                     .slice = m->slice,
                                                                     .slices = m->slices,
                                                                     .dt = a->y.dt,
                                                                     .ldt = logits.dt},
                                   r->stream));
    TRY(comm_all_gather(r->tp, "sums of logits", mine, s->parts.data, bytes, r->stream));
    return r->ops->vocab_xent_finish(
        &(struct vocab_xent_finish_args){.logits = logits.data,
                                         .dlogits = dlogits.data,
                                         .targets = a->targets + at,
                                         .parts = s->parts.data,
                                         .loss = rows_of(s->loss, at, rows).data,
                                         .z_term = z_apart(s, a) ? rows_of(s->z, at, rows).data : NULL,
                                         .hits = a->hits ? rows_of(s->hits, at, rows).data : NULL,
                                         .rows = rows,
                                         .vocab = m->vocab,
                                         .slice = m->slice,
                                         .slices = m->slices,
                                         .grad_scale = a->grad_scale,
                                         .z_loss = a->z_loss,
                                         .cap = m->cap,
                                         .dt = a->y.dt,
                                         .ldt = logits.dt},
        r->stream);
}

static status chunk_bwd(const struct head *m, struct tensor dlogits, struct tensor y, struct tensor dy,
                        enum accum accum, const struct exec *r)
{
    TRY(r->ops->gemm(&(struct gemm_args){.a = operand_of(dlogits),
                                         .b = params_operand(r->params, m->w, GEMM_DGRAD),
                                         .c = dy.data,
                                         .m = y.shape[0],
                                         .n = m->d,
                                         .k = m->width,
                                         .accum = ACCUM_STORE,
                                         .cdt = dy.dt},
                     r->stream));
    return r->ops->gemm(&(struct gemm_args){.a = operand_trans(operand_of(dlogits)),
                                            .b = operand_of(y),
                                            .c = params_grad(r->params, m->w),
                                            .m = m->width,
                                            .n = m->d,
                                            .k = y.shape[0],
                                            .accum = accum,
                                            .cdt = dtype_acc(y.dt)},
                        r->stream);
}

status head_loss(const struct head *m, struct head_saved *s, const struct head_loss_args *a,
                 const struct exec *r)
{
    int64_t n = a->y.shape[0], chunk = s->logits.shape[0];
    const bool train = a->dy.data != NULL;
    for (int64_t at = 0; at < n; at += chunk) {
        int64_t rows = n - at < chunk ? n - at : chunk;
        struct tensor y = rows_of(a->y, at, rows), logits = rows_of(s->logits, 0, rows),
                      dlogits = train ? rows_of(s->dlogits, 0, rows) : (struct tensor){0};
        TRY(head_logits(m, y, logits, r));
        if (m->slices > 1)
            TRY(chunk_loss_join(m, s, a, logits, dlogits, at, r));
        else
            TRY(chunk_loss(m, s, a, logits, dlogits, at, r));
        if (train) TRY(chunk_bwd(m, dlogits, y, rows_of(a->dy, at, rows), at == 0 ? a->accum : ACCUM_ADD, r));
    }
    if (a->hits)
        TRY(r->ops->sum(&(struct sum_args){.x = s->hits.data, .out = a->hits, .count = n, .dt = s->hits.dt},
                        r->stream));
    if (z_apart(s, a))
        TRY(r->ops->sum(&(struct sum_args){.x = s->z.data, .out = a->z_sum, .count = n, .dt = s->z.dt},
                        r->stream));
    return r->ops->sum(
        &(struct sum_args){.x = s->loss.data, .out = a->loss_sum, .count = n, .dt = s->loss.dt}, r->stream);
}
