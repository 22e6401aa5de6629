#include "nn/linear.h"
#include "dev/dev.h"
#include "nn/sequence_parallel.h"

#include <stdlib.h>

enum way { FORWARD, BACKWARD };

void linear_init(struct linear *m, struct params *p, const char *name, enum role role, int64_t out,
                 int64_t in, enum bias bias)
{
    CHECK(out > 0 && in > 0, "%s is [%lld, %lld]", name, (long long)out, (long long)in);
    m->out = out;
    m->in = in;
    m->w = params_add(p, role, 0, out, in, "%s.weight", name);
    p->rows[m->w].stored = p->rows[m->w].linear = true;
    m->b = bias == BIAS_ADD ? params_add(p, ROLE_BIAS, 0, out, 0, "%s.bias", name) : -1;
    m->adds = m->b >= 0;
}

void linear_split(struct linear *m, struct params *p, enum split split, const int64_t *parts, int part_count)
{
    params_split(p, m->w, split, parts, part_count);
    if (m->b >= 0 && split == SPLIT_OUT) params_split(p, m->b, split, parts, part_count);
    m->out = p->rows[m->w].shape[0];
    m->in = p->rows[m->w].shape[1];
    if (split == SPLIT_IN) m->adds &= p->slice == 0;
}

/* y = x W^T + b (+ add), or (BACKWARD) dx = or += dy W. */
static status product(const struct linear *m, enum way way, struct tensor x, const void *add, struct tensor y,
                      enum accum accum, const struct exec *r)
{
    const bool fwd = way == FORWARD;
    return r->ops->gemm(&(struct gemm_args){.a = x.data,
                                            .b = params_weight(r->params, m->w),
                                            .c = y.data,
                                            .trans_b = fwd,
                                            .bias = fwd && m->adds ? params_weight(r->params, m->b) : NULL,
                                            .add = add,
                                            .m = x.shape[0],
                                            .n = fwd ? m->out : m->in,
                                            .k = fwd ? m->in : m->out,
                                            .accum = accum,
                                            .dt = x.dt,
                                            .cdt = y.dt},
                        r->stream);
}

/* All rows, or block by block as they come from other ranks, or go to them. */
static status products(const struct linear *m, enum way way, struct tensor x, struct tensor y,
                       enum accum accum, const struct exec *r)
{
    const int64_t in = way == FORWARD ? m->in : m->out, out = way == FORWARD ? m->out : m->in;
    CHECK(x.shape[1] == in, "input width %lld, weight takes %lld", (long long)x.shape[1], (long long)in);
    CHECK(y.shape[1] == out && y.shape[0] == x.shape[0], "output is [%lld, %lld]", (long long)y.shape[0],
          (long long)y.shape[1]);
    for (int k = 0, blocks = sp_blocks(x, y, r); k < blocks; k++) {
        struct tensor rows_x = x, rows_y = y;
        TRY(sp_block_begin(k, &rows_x, &rows_y, r));
        TRY(product(m, way, rows_x, NULL, rows_y, accum, r));
        TRY(sp_block_end(k, x, y, r));
    }
    return STATUS_OK;
}

status linear_fwd(const struct linear *m, struct tensor x, struct tensor y, const struct exec *r)
{
    return products(m, FORWARD, x, y, ACCUM_STORE, r);
}

bool linear_adds(const struct linear *m, const struct exec *r)
{
    return r->ops->gemm_adds && m->b < 0 && params_slices(r->params) == 1;
}

status linear_last(const struct linear *m, struct tensor x, struct sink out, const struct exec *r)
{
    if (out.sum.data == NULL) return linear_fwd(m, x, out.to, r);
    CHECK(linear_adds(m, r), "a branch that cannot add");
    return product(m, FORWARD, x, out.sum.data, out.to, ACCUM_STORE, r);
}

status linear_dgrad(const struct linear *m, struct tensor dy, struct tensor dx, const struct exec *r)
{
    return products(m, BACKWARD, dy, dx, ACCUM_STORE, r);
}

status linear_dgrad_add(const struct linear *m, struct tensor dy, struct tensor dx, const struct exec *r)
{
    return products(m, BACKWARD, dy, dx, ACCUM_ADD, r);
}

static status wgrad(const struct linear *m, struct tensor x, struct tensor dy, const struct exec *r)
{
    TRY(r->ops->gemm(&(struct gemm_args){.a = dy.data,
                                         .trans_a = true,
                                         .b = x.data,
                                         .c = params_grad(r->params, m->w),
                                         .m = m->out,
                                         .n = m->in,
                                         .k = x.shape[0],
                                         .accum = r->accum,
                                         .dt = x.dt,
                                         .cdt = dtype_acc(x.dt)},
                     r->stream));
    if (m->b < 0) return STATUS_OK;
    return r->ops->bias_bwd(
        &(struct bias_bwd_args){
            .dy = dy.data, .db = params_grad(r->params, m->b), .rows = dy.shape[0], .n = m->out, .dt = dy.dt},
        r->stream);
}

static struct tensor like(struct arena *a, const char *what, struct tensor t)
{
    return tensor_take(a, what, t.dt, 2, t.shape[0], t.shape[1]);
}

static size_t tensor_bytes(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_bytes(t.dt);
}

static status defer(struct deferred *q, const struct linear *m, struct tensor x, struct tensor dy,
                    dev_stream s)
{
    CHECK(q->count < q->capacity, "%d products are put off, there is room for %d", q->count, q->capacity);
    struct deferred_item *item = &q->items[q->count++];
    *item = (struct deferred_item){
        .m = m, .x = like(&q->copies, "input", x), .dy = like(&q->copies, "output gradient", dy)};
    TRY(dev_copy(s, item->x.data, x.data, tensor_bytes(x)));
    return dev_copy(s, item->dy.data, dy.data, tensor_bytes(dy));
}

status linear_wgrad(const struct linear *m, struct tensor x, struct tensor dy, const struct exec *r)
{
    CHECK(x.shape[0] == dy.shape[0], "%lld rows of x, %lld of dy", (long long)x.shape[0],
          (long long)dy.shape[0]);
    TRY(sp_wait(x, r));
    TRY(sp_wait(dy, r));
    return r->defer ? defer(r->defer, m, x, dy, r->stream) : wgrad(m, x, dy, r);
}

/* The memory is lent: nobody frees it here. */
static void lent(void *base, size_t size)
{
    (void)base;
    (void)size;
}

status deferred_lay(struct deferred *q, const struct deferred_lay *l)
{
    struct arena bytes = {.name = "products put off"};
    *q = (struct deferred){0};
    for (int i = l->first; i < l->last; i++) {
        const struct param *row = &l->params->rows[i];
        if (!row->linear) continue;
        q->capacity++;
        for (int side = 0; side < 2; side++)
            tensor_take(&bytes, "product put off", l->dt, 2, l->n, row->shape[side]);
    }
    q->items = calloc((size_t)q->capacity, sizeof *q->items);
    if (q->items == NULL) return FAIL(STATUS_FIT, "no memory to put off %d products", q->capacity);
    void *base = arena_take(l->a, bytes.used, "products put off");
    q->copies = (struct arena){
        .name = "products put off", .base = base, .size = base ? bytes.used : 0, .release = lent};
    return STATUS_OK;
}

void deferred_fini(struct deferred *q)
{
    free(q->items);
    *q = (struct deferred){0};
}

status deferred_flush(const struct deferred *q, int first, int last, const struct exec *r)
{
    for (int i = 0; i < q->count; i++) {
        const struct deferred_item *item = &q->items[i];
        if (item->m->w >= first && item->m->w < last) TRY(wgrad(item->m, item->x, item->dy, r));
    }
    return STATUS_OK;
}

void deferred_empty(struct deferred *q)
{
    q->count = 0;
    arena_release(&q->copies, 0);
}
