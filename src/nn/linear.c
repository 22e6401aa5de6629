#include "nn/linear.h"
#include "dev/dev.h"
#include "nn/sequence_parallel.h"

#include <stdlib.h>

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

void linear_lay(const struct linear *m, struct linear_saved *s, const struct lay *l)
{
    (void)m;
    switch (l->recipe) {
    case RECIPE_PLAIN:
    case RECIPE_FP8: *s = (struct linear_saved){.recipe = RECIPE_PLAIN}; break;
    }
}

/* What GEMMs read of x and dy: of forward, dgrad, and the two of wgrad. */
enum side { SIDE_X, SIDE_DY, SIDE_X_WGRAD, SIDE_DY_WGRAD };

static int64_t side_width(const struct linear *m, enum side side)
{
    return side == SIDE_X || side == SIDE_X_WGRAD ? m->in : m->out;
}

/* The form of an operand, without data: what linear_wgrad reads and deferred_lay counts. */
static struct operand operand_form(enum recipe recipe, enum side side, dtype dt)
{
    switch (recipe) {
    case RECIPE_PLAIN:
    case RECIPE_FP8: break;
    }
    return operand_at(NULL, dt, side == SIDE_DY_WGRAD);
}

/* The operand of an activation or its gradient. */
static struct operand operand_for(const struct linear *m, const struct linear_saved *s, enum side side,
                                  struct tensor t)
{
    CHECK(t.shape[1] == side_width(m, side), "a linear of [%lld, %lld] reads %lld columns", (long long)m->out,
          (long long)m->in, (long long)t.shape[1]);
    struct operand o = operand_form(s->recipe, side, t.dt);
    switch (s->recipe) {
    case RECIPE_PLAIN:
    case RECIPE_FP8: o.data = t.data; break;
    }
    return o;
}

struct gemm_args linear_gemm(const struct linear *m, const struct linear_saved *s, enum gemm_pass pass,
                             struct tensor in, struct tensor out, const struct exec *r)
{
    const bool fwd = pass == GEMM_FWD, bias = fwd && m->adds;
    return (struct gemm_args){.a = operand_for(m, s, fwd ? SIDE_X : SIDE_DY, in),
                              .b = params_operand(r->params, m->w, pass),
                              .c = out.data,
                              .epilogue = {.kind = bias ? EPILOGUE_BIAS : EPILOGUE_NONE,
                                           .bias = bias ? params_weight(r->params, m->b) : NULL},
                              .m = in.shape[0],
                              .n = fwd ? m->out : m->in,
                              .k = fwd ? m->in : m->out,
                              .cdt = out.dt};
}

/* Computes all rows. With sequence-parallel overlap: block by block, as rows arrive from other ranks or are
 * sent to them. */
static status gemm_rows(const struct linear *m, const struct linear_saved *s, enum gemm_pass pass,
                        struct tensor x, struct tensor y, enum accum accum, const struct exec *r)
{
    const int64_t out = pass == GEMM_FWD ? m->out : m->in;
    CHECK(y.shape[1] == out && y.shape[0] == x.shape[0], "output is [%lld, %lld]", (long long)y.shape[0],
          (long long)y.shape[1]);
    for (int k = 0, blocks = sp_blocks(x, y, r); k < blocks; k++) {
        struct tensor rows_x = x, rows_y = y;
        TRY(sp_block_begin(k, &rows_x, &rows_y, r));
        struct gemm_args g = linear_gemm(m, s, pass, rows_x, rows_y, r);
        g.accum = accum;
        TRY(r->ops->gemm(&g, r->stream));
        TRY(sp_block_end(k, x, y, r));
    }
    return STATUS_OK;
}

status linear_fwd(const struct linear *m, const struct linear_saved *s, struct tensor x, struct tensor y,
                  const struct exec *r)
{
    return gemm_rows(m, s, GEMM_FWD, x, y, ACCUM_STORE, r);
}

bool linear_adds(const struct linear *m, const struct exec *r)
{
    const struct gemm_args add = {.b = params_operand(r->params, m->w, GEMM_FWD),
                                  .epilogue.kind = EPILOGUE_ADD};
    return m->b < 0 && params_slices(r->params) == 1 && r->ops->gemm_supports(&add, r->stream);
}

status linear_last(const struct linear *m, const struct linear_saved *s, struct tensor x, struct sink out,
                   const struct exec *r)
{
    if (out.sum.data == NULL) return linear_fwd(m, s, x, out.to, r);
    CHECK(linear_adds(m, r), "a branch that cannot add");
    struct gemm_args g = linear_gemm(m, s, GEMM_FWD, x, out.to, r);
    g.epilogue = (struct epilogue){.kind = EPILOGUE_ADD, .add = out.sum.data};
    return r->ops->gemm(&g, r->stream);
}

status linear_dgrad(const struct linear *m, const struct linear_saved *s, struct tensor dy, struct tensor dx,
                    const struct exec *r)
{
    return gemm_rows(m, s, GEMM_DGRAD, dy, dx, ACCUM_STORE, r);
}

status linear_dgrad_add(const struct linear *m, const struct linear_saved *s, struct tensor dy,
                        struct tensor dx, const struct exec *r)
{
    return gemm_rows(m, s, GEMM_DGRAD, dy, dx, ACCUM_ADD, r);
}

/* dW from the operands of x and dy, and db. */
static status wgrad(const struct linear *m, struct operand x, struct operand dy, int64_t rows,
                    const struct exec *r)
{
    TRY(r->ops->gemm(&(struct gemm_args){.a = dy,
                                         .b = x,
                                         .c = params_grad(r->params, m->w),
                                         .m = m->out,
                                         .n = m->in,
                                         .k = rows,
                                         .accum = r->accum,
                                         .cdt = dtype_acc(x.dt)},
                     r->stream));
    if (m->b < 0) return STATUS_OK;
    switch (dy.scales) { /* db sums values: of codes it needs the tensor that they were made from */
    case SCALES_NONE:
    case SCALES_TENSOR: break;
    }
    return r->ops->bias_bwd(
        &(struct bias_bwd_args){
            .dy = dy.data, .db = params_grad(r->params, m->b), .rows = rows, .n = m->out, .dt = dy.dt},
        r->stream);
}

/* Memory for an operand of `rows` rows in the form of `like`, whatever it consists of; the arena counts or is real. */
static struct operand operand_take(struct arena *a, const struct linear *m, enum side side,
                                   struct operand like, int64_t rows)
{
    like.data = tensor_take(a, side == SIDE_X_WGRAD ? "input" : "output gradient", like.dt, 2, rows,
                            side_width(m, side))
                    .data;
    switch (like.scales) {
    case SCALES_NONE:
    case SCALES_TENSOR: break;
    }
    return like;
}

static status operand_copy(struct operand *to, struct operand from, const struct linear *m, enum side side,
                           int64_t rows, struct arena *a, dev_stream s)
{
    *to = operand_take(a, m, side, from, rows);
    switch (from.scales) {
    case SCALES_NONE:
    case SCALES_TENSOR: break;
    }
    return dev_copy(s, (void *)(uintptr_t)to->data, from.data,
                    (size_t)(rows * side_width(m, side)) * dtype_bytes(from.dt));
}

static status defer(struct deferred *q, const struct linear *m, struct operand x, struct operand dy,
                    int64_t rows, dev_stream s)
{
    CHECK(q->count < q->capacity, "%d weight gradients are deferred, there is room for %d", q->count,
          q->capacity);
    struct deferred_item *item = &q->items[q->count++];
    *item = (struct deferred_item){.m = m, .rows = rows};
    TRY(operand_copy(&item->x, x, m, SIDE_X_WGRAD, rows, &q->copies, s));
    return operand_copy(&item->dy, dy, m, SIDE_DY_WGRAD, rows, &q->copies, s);
}

status linear_wgrad(const struct linear *m, const struct linear_saved *s, struct tensor x, struct tensor dy,
                    const struct exec *r)
{
    CHECK(x.shape[0] == dy.shape[0], "%lld rows of x, %lld of dy", (long long)x.shape[0],
          (long long)dy.shape[0]);
    TRY(sp_wait(x, r));
    TRY(sp_wait(dy, r));
    const struct operand read_x = operand_for(m, s, SIDE_X_WGRAD, x),
                         read_dy = operand_for(m, s, SIDE_DY_WGRAD, dy);
    return r->defer ? defer(r->defer, m, read_x, read_dy, x.shape[0], r->stream)
                    : wgrad(m, read_x, read_dy, x.shape[0], r);
}

/* The memory is borrowed: it is not freed here. */
static void borrowed(void *base, size_t size)
{
    (void)base;
    (void)size;
}

status deferred_lay(struct deferred *q, const struct deferred_lay *l)
{
    struct arena bytes = {.name = "deferred weight gradients"};
    *q = (struct deferred){0};
    for (int i = l->first; i < l->last; i++) {
        const struct param *row = &l->params->rows[i];
        if (!row->linear) continue;
        q->capacity++;
        const struct linear m = {.out = row->shape[0], .in = row->shape[1]};
        for (enum side side = SIDE_X_WGRAD; side <= SIDE_DY_WGRAD; side++)
            (void)operand_take(&bytes, &m, side, operand_form(l->params->recipe, side, l->dt), l->n);
    }
    q->items = calloc((size_t)q->capacity, sizeof *q->items);
    if (q->items == NULL) return FAIL(STATUS_FIT, "no memory to defer %d weight gradients", q->capacity);
    void *base = arena_take(l->a, bytes.used, "deferred weight gradients");
    q->copies = (struct arena){.name = "deferred weight gradients",
                               .base = base,
                               .size = base ? bytes.used : 0,
                               .release = borrowed};
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
        if (item->m->w >= first && item->m->w < last) TRY(wgrad(item->m, item->x, item->dy, item->rows, r));
    }
    return STATUS_OK;
}

void deferred_empty(struct deferred *q)
{
    q->count = 0;
    arena_release(&q->copies, 0);
}
