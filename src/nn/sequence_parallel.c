#include "nn/sequence_parallel.h"
#include "dev/dev.h"

struct layout sp_local_layout(const struct layout *l)
{
    struct layout part = *l;
    CHECK(l->tp_size <= 1 || l->n % l->tp_size == 0, "%lld rows for %d ranks", (long long)l->n, l->tp_size);
    if (l->tp_size > 1) part.n = l->n / l->tp_size;
    return part;
}

void sp_layout(struct sp *w, int64_t d, const struct layout *l)
{
    *w = (struct sp){.tp_size = l->tp_size > 1 ? l->tp_size : 1};
    if (w->tp_size == 1) return;
    w->in = tensor_take(l->scratch, "rows of all ranks", l->dt, 2, l->n, d);
    w->out = tensor_take(l->scratch, "sums over ranks", l->dt, 2, l->n, d);
    w->parts = w->in;
    if (l->mode == LAYOUT_TRAIN)
        w->parts = tensor_take(l->scratch, "parts of other ranks", l->dt, 2, l->n, d);
}

void sp_rows(struct sp *w, int64_t rows)
{
    tensor_rows(&w->in, rows);
    tensor_rows(&w->out, rows);
    tensor_rows(&w->parts, rows);
}

static size_t bytes_of(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_bytes(t.dt);
}

status sp_all_gather(struct tensor to, struct tensor part, struct tensor *all, const struct exec *r)
{
    *all = to.rank ? to : part;
    if (to.rank == 0) return STATUS_OK;
    CHECK(to.shape[0] == part.shape[0] * comm_ranks(r->tp), "%lld rows of %d ranks with %lld",
          (long long)to.shape[0], comm_ranks(r->tp), (long long)part.shape[0]);
    return comm_all_gather(r->tp, "rows of the stream", part.data, to.data, bytes_of(part), r->stream);
}

/* Rows of rank `of`. */
static struct tensor rows_of(struct tensor all, int of, int ranks)
{
    CHECK(all.shape[0] % ranks == 0, "%lld rows for %d ranks", (long long)all.shape[0], ranks);
    all.shape[0] /= ranks;
    all.data = (char *)all.data + (size_t)of * bytes_of(all);
    return all;
}

struct tensor sp_local_rows(struct tensor all, const struct exec *r)
{
    return rows_of(all, comm_rank(r->tp), comm_ranks(r->tp));
}

/* All parts of w->out have been sent during the GEMM: adds up the parts that arrived. */
static status end_sum(struct tensor part, const struct exec *r)
{
    struct sp_overlap *overlap = r->sp_overlap;
    const struct sp *w = overlap->leaving;
    CHECK(overlap->formed == overlap->ranks, "%d of %d parts of a sum are formed", overlap->formed,
          overlap->ranks);
    CHECK(overlap->coming[0].all.data == NULL && overlap->coming[1].all.data == NULL,
          "nobody waited for rows");
    overlap->leaving = NULL;
    TRY(side_stream_join(overlap->side_stream));
    return comm_reduce_scatter_finish(r->tp, w->parts.data, sp_local_rows(w->out, r).data, part.data,
                                      tensor_count(part), part.dt, r->stream);
}

status sp_reduce_scatter(const struct sp *w, struct tensor part, const struct exec *r)
{
    if (w->out.rank == 0) return STATUS_OK;
    if (r->sp_overlap && r->sp_overlap->leaving == w) return end_sum(part, r);
    const int64_t count = tensor_count(part);
    CHECK(comm_reduce_scatter_scratch(comm_ranks(r->tp), count, part.dt) <= bytes_of(w->parts),
          "no room for %lld sums", (long long)count);
    return comm_reduce_scatter(r->tp, "sums of a branch", w->out.data, part.data, count, part.dt,
                               w->parts.data, r->stream);
}

status sp_all_gather_in_place(struct tensor all, const char *name, const struct exec *r)
{
    const struct tensor own = sp_local_rows(all, r);
    return r->tp ? comm_all_gather(r->tp, name, own.data, all.data, bytes_of(own), r->stream) : STATUS_OK;
}

status sp_keep_local(const struct sp *w, struct tensor part, const struct exec *r)
{
    if (w->out.rank == 0) return STATUS_OK;
    return dev_copy(r->stream, part.data, sp_local_rows(w->out, r).data, bytes_of(part));
}

/* ---- overlapped with GEMMs */

status sp_overlap_open(struct sp_overlap *w, struct side_stream *side, const struct comm *tp)
{
    *w = (struct sp_overlap){.rank = comm_rank(tp), .ranks = comm_ranks(tp)};
    if (w->ranks == 1 || w->ranks > SP_RANKS_MAX) return STATUS_OK;
    w->side_stream = side;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < w->ranks; k++) TRY(side_stream_event_open(side, &w->coming[i].came[k]));
    return STATUS_OK;
}

void sp_overlap_close(struct sp_overlap *w)
{
    for (int i = 0; i < 2 && w->side_stream; i++)
        for (int k = 0; k < w->ranks; k++) side_stream_event_close(w->side_stream, &w->coming[i].came[k]);
    *w = (struct sp_overlap){0};
}

void sp_overlap_reset(struct sp_overlap *w)
{
    w->coming[0].all.data = w->coming[1].all.data = NULL;
    w->leaving = NULL;
}

static struct tensor rows_behind(struct tensor all, int k, const struct sp_overlap *overlap)
{
    return rows_of(all, (overlap->rank + overlap->ranks - k) % overlap->ranks, overlap->ranks);
}

/* Waits for the first `steps` steps of the all-gather. */
static status come(struct sp_gather *c, int steps, const struct exec *r)
{
    struct sp_overlap *overlap = r->sp_overlap;
    const size_t bytes = bytes_of(c->part);
    dev_stream s;
    TRY(side_stream_fork(overlap->side_stream, &s));
    for (; c->begun < steps; c->begun++) {
        const int k = c->begun + 1;
        void *to = rows_behind(c->all, k, overlap).data;
        TRY(k < overlap->ranks ? comm_ring_shift(r->tp, "rows of the stream", k, c->part.data, to, bytes, s)
                               : dev_copy(s, to, c->part.data, bytes));
        TRY(side_stream_record(overlap->side_stream, &c->came[c->begun]));
    }
    return STATUS_OK;
}

status sp_all_gather_begin(struct tensor to, struct tensor part, enum sp_mode how, struct tensor *all,
                           const struct exec *r)
{
    struct sp_overlap *overlap = r->sp_overlap;
    if (to.rank == 0 || overlap == NULL || how == SP_BLOCKING) return sp_all_gather(to, part, all, r);
    struct sp_gather *c = overlap->coming[0].all.data ? &overlap->coming[1] : &overlap->coming[0];
    CHECK(c->all.data == NULL && bytes_of(to) == bytes_of(part) * (size_t)overlap->ranks,
          "rows of others come too early");
    c->all = *all = to;
    c->part = part;
    c->begun = 0;
    return r->stream ? come(c, overlap->ranks, r) : STATUS_OK;
}

struct tensor sp_reduce_scatter_begin(const struct sp *w, struct tensor part, enum sp_mode how,
                                      const struct exec *r)
{
    if (w->out.rank && r->sp_overlap && how == SP_OVERLAP) {
        CHECK(r->sp_overlap->leaving == NULL, "two sums at a time");
        r->sp_overlap->leaving = w;
        r->sp_overlap->formed = 0;
    }
    return sp_out(w, part);
}

static struct sp_gather *coming(struct tensor x, const struct exec *r)
{
    for (int i = 0; i < 2 && r->sp_overlap; i++)
        if (x.data && r->sp_overlap->coming[i].all.data == x.data) return &r->sp_overlap->coming[i];
    return NULL;
}
static bool leaves(struct tensor y, const struct exec *r)
{
    return r->sp_overlap && r->sp_overlap->leaving && r->sp_overlap->leaving->out.data == y.data;
}

int sp_blocks(struct tensor x, struct tensor y, const struct exec *r)
{
    return coming(x, r) || leaves(y, r) ? r->sp_overlap->ranks : 1;
}

static status wait_for(struct sp_gather *c, int steps, const struct exec *r)
{
    if (c->begun < steps) TRY(come(c, steps, r));
    return side_stream_wait(r->sp_overlap->side_stream, &c->came[steps - 1]);
}

status sp_wait(struct tensor x, const struct exec *r)
{
    struct sp_gather *c = coming(x, r);
    if (c == NULL) return STATUS_OK;
    TRY(wait_for(c, r->sp_overlap->ranks, r));
    c->all.data = NULL;
    return STATUS_OK;
}

/* The rows of block k: in order of arrival, or else of sending. */
static int block_of(int k, const struct sp_gather *c, const struct sp_overlap *overlap)
{
    return (c ? overlap->rank + overlap->ranks - k : overlap->rank + 1 + k) % overlap->ranks;
}

status sp_block_begin(int k, struct tensor *x, struct tensor *y, const struct exec *r)
{
    struct sp_gather *c = coming(*x, r);
    if (sp_blocks(*x, *y, r) == 1) return STATUS_OK;
    CHECK(!(c && leaves(*y, r)), "a GEMM waits for rows and sends rows");
    const int block = block_of(k, c, r->sp_overlap), ranks = r->sp_overlap->ranks;
    if (c && k > 0) TRY(wait_for(c, k, r));
    *x = c && k == 0 ? c->part : rows_of(*x, block, ranks);
    *y = rows_of(*y, block, ranks);
    return STATUS_OK;
}

status sp_block_end(int k, struct tensor x, struct tensor y, const struct exec *r)
{
    struct sp_overlap *overlap = r->sp_overlap;
    const bool last = overlap && k == overlap->ranks - 1;
    dev_stream s;
    if (!leaves(y, r)) return last ? sp_wait(x, r) : STATUS_OK;
    CHECK(overlap->formed == k, "block %d of a sum is formed again", k);
    overlap->formed++;
    if (last) return STATUS_OK; /* this rank's own rows */
    const struct tensor sent = rows_of(y, block_of(k, NULL, overlap), overlap->ranks);
    TRY(side_stream_fork(overlap->side_stream, &s));
    return comm_ring_shift(r->tp, "sums of a branch", k + 1, sent.data,
                           rows_behind(overlap->leaving->parts, k + 1, overlap).data, bytes_of(sent), s);
}
