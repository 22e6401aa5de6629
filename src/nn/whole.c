#include "nn/whole.h"
#include "dev/dev.h"

struct lay whole_part(const struct lay *l)
{
    struct lay part = *l;
    CHECK(l->shares <= 1 || l->n % l->shares == 0, "%lld rows for %d ranks", (long long)l->n, l->shares);
    if (l->shares > 1) part.n = l->n / l->shares;
    return part;
}

void whole_lay(struct whole *w, int64_t d, const struct lay *l)
{
    *w = (struct whole){.shares = l->shares > 1 ? l->shares : 1};
    if (w->shares == 1) return;
    w->in = tensor_take(l->scratch, "rows of all ranks", l->dt, 2, l->n, d);
    w->out = tensor_take(l->scratch, "sums over ranks", l->dt, 2, l->n, d);
}

void whole_rows(struct whole *w, int64_t rows)
{
    tensor_rows(&w->in, rows);
    tensor_rows(&w->out, rows);
}

static size_t bytes_of(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_bytes(t.dt);
}

status whole_gather(struct tensor to, struct tensor part, struct tensor *all, const struct run *r)
{
    *all = to.rank ? to : part;
    if (to.rank == 0) return STATUS_OK;
    CHECK(to.shape[0] == part.shape[0] * comm_ranks(r->tp), "%lld rows of %d ranks with %lld",
          (long long)to.shape[0], comm_ranks(r->tp), (long long)part.shape[0]);
    return comm_all_gather(r->tp, "rows of the stream", part.data, to.data, bytes_of(part), r->stream);
}

status whole_sum(const struct whole *w, struct tensor part, const struct run *r)
{
    if (w->out.rank == 0) return STATUS_OK;
    const int64_t count = tensor_count(part);
    CHECK(comm_reduce_scratch(comm_ranks(r->tp), count, part.dt) <= bytes_of(w->in), "no room for %lld sums",
          (long long)count);
    return comm_reduce_scatter(r->tp, "sums of a branch", w->out.data, part.data, count, part.dt, w->in.data,
                               r->stream);
}

struct tensor whole_own(struct tensor all, const struct run *r)
{
    const int ranks = comm_ranks(r->tp);
    CHECK(all.shape[0] % ranks == 0, "%lld rows for %d ranks", (long long)all.shape[0], ranks);
    all.shape[0] /= ranks;
    all.data = (char *)all.data + (size_t)comm_rank(r->tp) * bytes_of(all);
    return all;
}

status whole_fill(struct tensor all, const char *name, const struct run *r)
{
    const struct tensor own = whole_own(all, r);
    return r->tp ? comm_all_gather(r->tp, name, own.data, all.data, bytes_of(own), r->stream) : STATUS_OK;
}

status whole_keep(const struct whole *w, struct tensor part, const struct run *r)
{
    if (w->out.rank == 0) return STATUS_OK;
    return dev_copy(r->stream, part.data, whole_own(w->out, r).data, bytes_of(part));
}
