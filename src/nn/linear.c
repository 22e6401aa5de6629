#include "nn/linear.h"
#include "dev/dev.h"
#include "nn/linear_current.h"
#include "nn/sequence_parallel.h"
#include "parallel/fp8.h"
#include "tensor/param_operand.h"

#include <stdlib.h>

void linear_init(struct linear *m, struct params *p, const char *name, enum role role, int64_t out,
                 int64_t in, enum bias bias)
{
    CHECK(out > 0 && in > 0, "%s is [%lld, %lld]", name, (long long)out, (long long)in);
    m->out = out;
    m->in = in;
    m->w = params_add(p, role, 0, out, in, "%s.weight", name);
    p->rows[m->w].gemm_overwrites_grad = p->rows[m->w].linear = true;
    m->b = bias == BIAS_ADD ? params_add(p, ROLE_BIAS, 0, out, 0, "%s.bias", name) : -1;
    m->adds = m->b >= 0;
}

void linear_split(struct linear *m, struct params *p, enum split split, const int64_t *parts, int part_count)
{
    params_split(p, m->w, split, parts, part_count);
    if (m->b >= 0 && split == SPLIT_COLUMN_PARALLEL) params_split(p, m->b, split, parts, part_count);
    m->out = p->rows[m->w].shape[0];
    m->in = p->rows[m->w].shape[1];
    if (split == SPLIT_ROW_PARALLEL) m->adds &= p->tp_rank == 0;
}

static int fp8_of(const struct linear *m, const struct params *p)
{
    return p->fp8.count > 0 && m->w >= 0 && m->out > 0 ? p->rows[m->w].fp8 : -1;
}

/* Rows that pass through a linear, of a micro-batch with n of them on each of `context` ranks. */
static int64_t rows_through(const struct param *row, int64_t n, int context)
{
    return row->all_rows && context > 1 ? n * context : n;
}

void linear_layout(const struct linear *m, struct linear_saved *s, int given, const struct layout *l)
{
    *s = (struct linear_saved){0};
    switch (l->recipe) {
    case RECIPE_PLAIN:
    case RECIPE_CURRENT: return; /* params.current has its memory */
    case RECIPE_FP8: break;
    }
    if (fp8_of(m, l->params) < 0) return;
    const int64_t n = rows_through(&l->params->rows[m->w], l->n, l->cp_size), ld = quantized_ld(n);
    const bool trains = l->mode == LAYOUT_TRAIN;
    if (!(given & LINEAR_X))
        s->x = tensor_take(l->scratch, "FP8 codes of an input", DTYPE_U8, 2, m->in, ld).data;
    if (given & LINEAR_DY || !trains) return;
    s->dy = tensor_take(l->scratch, "FP8 codes of a gradient", DTYPE_U8, 2, n, m->out).data;
    s->dy_t = tensor_take(l->scratch, "FP8 codes of a gradient", DTYPE_U8, 2, m->out, ld).data;
}

bool linear_fp8(const struct linear *m, int64_t rows, const struct exec *r)
{
    return fp8_reads(r->params, fp8_of(m, r->params), rows);
}

bool linear_fp8_all(const struct linear *m, int64_t rows, const struct exec *r)
{
    return fp8_reads_wgrad(r->params, fp8_of(m, r->params), rows);
}

struct quantized linear_quantized(const struct linear *m, enum fp8_tensor t, void *codes, void *codes_t,
                                  const struct params *p)
{
    return fp8_of(m, p) < 0 ? (struct quantized){0} : fp8_quantized(&p->fp8, t, fp8_of(m, p), codes, codes_t);
}

/* ---- operands */

static void check_width(const struct linear *m, struct tensor t, int64_t width)
{
    CHECK(t.shape[1] == width, "a linear of [%lld, %lld] reads %lld columns", (long long)m->out,
          (long long)m->in, (long long)t.shape[1]);
}

static status quantize(struct tensor t, const struct quantized *q, const struct exec *r)
{
    return r->ops->quantize(
        &(struct quantize_args){.x = t.data, .q = *q, .rows = t.shape[0], .n = t.shape[1], .dt = t.dt},
        r->stream);
}

/* Codes of x or dy, contiguous along the k of forward or dgrad; and of their transpose, along that of wgrad. */
static struct operand codes_of(const struct quantized *q)
{
    return operand_codes(q->codes, q->dt, q->scale_inv, false);
}
static struct operand codes_t_of(const struct quantized *q)
{
    return operand_codes(q->codes_t, q->dt, q->scale_inv, false);
}

/* The FP8 form of a whole dy: as the tensor brings it, or made by dgrad or wgrad, whichever is called first, for
 * both. */
static status dy_codes(const struct linear *m, struct linear_saved *s, enum gemm_pass pass, struct tensor dy,
                       struct quantized *out, const struct exec *r)
{
    *out = linear_quantized(m, FP8_DY, s->dy, s->dy_t, r->params);
    if (linear_codes(dy)) {
        *out = *dy.q;
        return STATUS_OK;
    }
    if (s->made == dy.data) {
        CHECK(s->by != pass, "a linear's dgrad or wgrad twice, without the other");
        s->made = NULL;
        return STATUS_OK;
    }
    if (linear_fp8_all(m, dy.shape[0], r))
        s->made = dy.data, s->by = pass;
    else if (linear_fp8(m, dy.shape[0], r))
        out->codes_t = NULL;
    else
        out->codes = out->codes_t = NULL; /* amax alone */
    return quantize(dy, out, r);
}

/* What dgrad reads of all rows of dy. */
static status dy_operand(const struct linear *m, struct linear_saved *s, struct tensor dy,
                         struct operand *out, const struct exec *r)
{
    struct quantized q;
    if (linear_current(m, dy.shape[0], r)) return linear_current_operands(m, GEMM_DGRAD, dy, out, r);
    *out = operand_of(dy);
    if (fp8_of(m, r->params) < 0) return STATUS_OK;
    TRY(dy_codes(m, s, GEMM_DGRAD, dy, &q, r));
    if (linear_fp8(m, dy.shape[0], r)) *out = codes_of(&q);
    return STATUS_OK;
}

static struct operand weight_operand(const struct linear *m, enum gemm_pass pass, int64_t rows,
                                     const struct exec *r)
{
    if (linear_current(m, rows, r)) return linear_current_form(m, pass, FP8_W, rows, r);
    CHECK(r->params->zero < 3 || linear_fp8(m, rows, r) == linear_fp8(m, 0, r),
          "a GEMM of %lld rows reads values of a weight that is all-gathered as codes", (long long)rows);
    return linear_fp8(m, rows, r) ? params_operand_fp8(r->params, m->w, pass)
                                  : params_operand(r->params, m->w, pass);
}

/* dgrad sums up to this depth in the tensor core's 14 bits. That adds 0.12 % error, against 5.9 % from FP8 rounding
 * (docs/NUMERICS.md). wgrad never does. */
enum { FAST_K = 4096 };

static struct gemm_args gemm_of(const struct linear *m, enum gemm_pass pass, struct operand in,
                                struct tensor out, const struct exec *r)
{
    const bool fwd = pass == GEMM_FWD, bias = fwd && m->adds;
    return (struct gemm_args){.a = in,
                              .b = weight_operand(m, pass, out.shape[0], r),
                              .c = out.data,
                              .epilogue = {.kind = bias ? EPILOGUE_BIAS : EPILOGUE_NONE,
                                           .bias = bias ? params_weight(r->params, m->b) : NULL},
                              .m = out.shape[0],
                              .n = fwd ? m->out : m->in,
                              .k = fwd ? m->in : m->out,
                              .cdt = out.dt,
                              .fast_accum = fwd || m->out <= FAST_K};
}

struct gemm_args linear_gemm(const struct linear *m, enum gemm_pass pass, struct tensor in, struct tensor out,
                             const struct exec *r)
{
    const bool fp8 = linear_fp8(m, in.shape[0], r);
    CHECK(!linear_current(m, in.shape[0], r), "a GEMM of operands that are still to be made");
    check_width(m, in, pass == GEMM_FWD ? m->in : m->out);
    CHECK(!fp8 || linear_codes(in), "a GEMM in FP8 of a tensor without codes");
    return gemm_of(m, pass, fp8 ? codes_of(in.q) : operand_of(in), out, r);
}

/* ---- forward and dgrad */

/* The codes of the rows from `first` on, given the codes of all rows of t. */
static void *codes_at(void *codes, struct tensor t, int64_t first)
{
    return codes ? (char *)codes + first * t.shape[1] : NULL;
}

/* What forward or dgrad reads of some rows of t, from row `first` on: codes, as the tensor brings them or made here for
 * these rows alone. While the linear computes in bf16, the values, and amax is measured if no one else has. `rows` may
 * lie elsewhere than in t: a rank's own rows before they are gathered. */
static status rows_operand(const struct linear *m, const struct linear_saved *s, enum gemm_pass pass,
                           struct tensor t, struct tensor rows, int64_t first, struct operand *out,
                           const struct exec *r)
{
    const enum fp8_tensor what = pass == GEMM_FWD ? FP8_X : FP8_DY;
    struct quantized q =
        linear_quantized(m, what, codes_at(pass == GEMM_FWD ? s->x : s->dy, t, first), NULL, r->params);
    const bool given = linear_codes(t), reads = linear_fp8(m, t.shape[0], r);
    if (linear_current(m, t.shape[0], r)) return linear_current_operands(m, pass, rows, out, r);
    *out = operand_of(rows);
    if (fp8_of(m, r->params) < 0 || (given && !reads)) return STATUS_OK;
    if (given) q = *t.q, q.codes = codes_at(q.codes, t, first);
    if (!reads) q.codes = NULL;
    if (!given) TRY(quantize(rows, &q, r));
    if (reads) *out = codes_of(&q);
    return STATUS_OK;
}

/* dgrad quantized dy block by block. Record that, so wgrad makes the transposed codes itself. */
static void blocks_made(struct linear_saved *s, struct tensor dy)
{
    const bool after_wgrad = s->made == dy.data;
    s->made = after_wgrad ? NULL : dy.data;
    s->by = GEMM_DGRAD;
    s->by_blocks = !after_wgrad;
}

static int64_t first_row(struct tensor all, struct tensor rows)
{
    return ((char *)rows.data - (char *)all.data) / (ptrdiff_t)(dtype_bytes(all.dt) * (size_t)all.shape[1]);
}

/* Computes all rows. With sequence-parallel overlap: block by block, as rows arrive from other ranks or are
 * sent to them. */
static status gemm_rows(const struct linear *m, struct linear_saved *s, enum gemm_pass pass, struct tensor x,
                        struct tensor y, enum accum accum, const struct exec *r)
{
    const int64_t out = pass == GEMM_FWD ? m->out : m->in;
    const int blocks = sp_blocks(x, y, r);
    check_width(m, x, pass == GEMM_FWD ? m->in : m->out);
    CHECK(y.shape[1] == out && y.shape[0] == x.shape[0], "output is [%lld, %lld]", (long long)y.shape[0],
          (long long)y.shape[1]);
    for (int k = 0; k < blocks; k++) {
        struct tensor rows_x = x, rows_y = y;
        struct operand in;
        TRY(sp_block_begin(k, &rows_x, &rows_y, r));
        TRY(blocks == 1 && pass == GEMM_DGRAD
                ? dy_operand(m, s, x, &in, r)
                : rows_operand(m, s, pass, x, rows_x, first_row(y, rows_y), &in, r));
        struct gemm_args g = gemm_of(m, pass, in, rows_y, r);
        g.accum = accum;
        TRY(r->ops->gemm(&g, r->stream));
        TRY(sp_block_end(k, x, y, r));
    }
    if (blocks > 1 && pass == GEMM_DGRAD && linear_fp8_all(m, x.shape[0], r) && x.q == NULL)
        blocks_made(s, x);
    return STATUS_OK;
}

status linear_fwd(const struct linear *m, struct linear_saved *s, struct tensor x, struct tensor y,
                  const struct exec *r)
{
    return gemm_rows(m, s, GEMM_FWD, x, y, ACCUM_STORE, r);
}

bool linear_adds(const struct linear *m, const struct exec *r)
{
    const struct gemm_args add = {.b = weight_operand(m, GEMM_FWD, 0, r), .epilogue.kind = EPILOGUE_ADD};
    return m->b < 0 && params_tp_size(r->params) == 1 && r->ops->gemm_supports(&add, r->stream);
}

status linear_last(const struct linear *m, struct linear_saved *s, struct tensor x, struct branch_dst out,
                   const struct exec *r)
{
    struct operand in;
    if (out.residual.data == NULL) return linear_fwd(m, s, x, out.dst, r);
    CHECK(linear_adds(m, r), "a branch that cannot add");
    check_width(m, x, m->in);
    TRY(rows_operand(m, s, GEMM_FWD, x, x, 0, &in, r));
    struct gemm_args g = gemm_of(m, GEMM_FWD, in, out.dst, r);
    g.epilogue = (struct epilogue){.kind = EPILOGUE_ADD, .add = out.residual.data};
    return r->ops->gemm(&g, r->stream);
}

status linear_dgrad(const struct linear *m, struct linear_saved *s, struct tensor dy, struct tensor dx,
                    const struct exec *r)
{
    return gemm_rows(m, s, GEMM_DGRAD, dy, dx, ACCUM_STORE, r);
}

status linear_dgrad_add(const struct linear *m, struct linear_saved *s, struct tensor dy, struct tensor dx,
                        const struct exec *r)
{
    return gemm_rows(m, s, GEMM_DGRAD, dy, dx, ACCUM_ADD, r);
}

/* ---- wgrad */

static status weight_gradient(const struct linear *m, struct operand x, struct operand dy, int64_t k,
                              const struct exec *r)
{
    return r->ops->gemm(&(struct gemm_args){.a = dy,
                                            .b = x,
                                            .c = params_grad(r->params, m->w),
                                            .m = m->out,
                                            .n = m->in,
                                            .k = k,
                                            .accum = r->accum,
                                            .cdt = dtype_acc(r->params->dt)},
                        r->stream);
}

static status bias_gradient(const struct linear *m, const void *dy, int64_t rows, const struct exec *r)
{
    if (m->b < 0) return STATUS_OK;
    return r->ops->bias_bwd(
        &(struct bias_bwd_args){
            .dy = dy, .db = params_grad(r->params, m->b), .rows = rows, .n = m->out, .dt = r->params->dt},
        r->stream);
}

/* dW from plain tensors, and db. */
static status wgrad(const struct linear *m, const void *x, const void *dy, int64_t rows, const struct exec *r)
{
    const dtype dt = r->params->dt;
    TRY(weight_gradient(m, operand_at(x, dt, false), operand_at(dy, dt, true), rows, r));
    return bias_gradient(m, dy, rows, r);
}

/* The transposed codes of dy, when dgrad has made codes of its blocks of rows alone. */
static status dy_transposed(const struct linear *m, struct linear_saved *s, struct tensor dy,
                            struct quantized *q, const struct exec *r)
{
    *q = linear_quantized(m, FP8_DY, NULL, s->dy_t, r->params);
    s->made = NULL;
    s->by_blocks = false;
    return quantize(dy, q, r);
}

static status wgrad_fp8(const struct linear *m, struct linear_saved *s, struct tensor x, struct tensor dy,
                        const struct exec *r)
{
    struct quantized qx = linear_quantized(m, FP8_X, NULL, s->x, r->params), qdy;
    if (x.q && x.q->codes_t)
        qx = *x.q;
    else
        TRY(quantize(x, &qx, r));
    TRY(s->by_blocks && s->made == dy.data ? dy_transposed(m, s, dy, &qdy, r)
                                           : dy_codes(m, s, GEMM_WGRAD, dy, &qdy, r));
    TRY(weight_gradient(m, operand_trans(codes_t_of(&qx)), codes_t_of(&qdy), quantized_ld(dy.shape[0]), r));
    return bias_gradient(m, dy.data, dy.shape[0], r);
}

static status wgrad_current(const struct linear *m, struct tensor x, struct tensor dy, const struct exec *r)
{
    const int64_t rows = x.shape[0];
    struct operand made_x, made_dy;
    TRY(linear_current_make(m, GEMM_WGRAD, FP8_X, x, rows, &made_x, r));
    TRY(linear_current_make(m, GEMM_WGRAD, FP8_DY, dy, rows, &made_dy, r));
    TRY(weight_gradient(m, made_x, made_dy, rows, r));
    return bias_gradient(m, dy.data, rows, r);
}

/* ---- deferred wgrad (ZB-H1), of plain tensors: mesh_check refuses it with FP8 */

static void *take_copy(struct arena *a, int64_t rows, int64_t width, dtype dt, bool input)
{
    return tensor_take(a, input ? "input" : "output gradient", dt, 2, rows, width).data;
}

static status defer(struct deferred *q, const struct linear *m, struct tensor x, struct tensor dy,
                    dev_stream s)
{
    CHECK(q->count < q->capacity, "%d weight gradients are deferred, there is room for %d", q->count,
          q->capacity);
    void *copy_x = take_copy(&q->copies, x.shape[0], m->in, x.dt, true),
         *copy_dy = take_copy(&q->copies, x.shape[0], m->out, dy.dt, false);
    q->items[q->count++] = (struct deferred_item){.m = m, .x = copy_x, .dy = copy_dy, .rows = x.shape[0]};
    TRY(dev_copy(s, copy_x, x.data, (size_t)(x.shape[0] * m->in) * dtype_bytes(x.dt)));
    return dev_copy(s, copy_dy, dy.data, (size_t)(x.shape[0] * m->out) * dtype_bytes(dy.dt));
}

status linear_wgrad(const struct linear *m, struct linear_saved *s, struct tensor x, struct tensor dy,
                    const struct exec *r)
{
    CHECK(x.shape[0] == dy.shape[0], "%lld rows of x, %lld of dy", (long long)x.shape[0],
          (long long)dy.shape[0]);
    check_width(m, x, m->in);
    check_width(m, dy, m->out);
    TRY(sp_wait(x, r));
    TRY(sp_wait(dy, r));
    if (linear_fp8_all(m, x.shape[0], r)) return wgrad_fp8(m, s, x, dy, r);
    if (linear_current(m, x.shape[0], r) && !r->params->current.wgrad_bf16) return wgrad_current(m, x, dy, r);
    return r->defer ? defer(r->defer, m, x, dy, r->stream) : wgrad(m, x.data, dy.data, x.shape[0], r);
}

/* The memory is borrowed: it is not freed here. */
static void borrowed(void *base, size_t size)
{
    (void)base;
    (void)size;
}

status deferred_layout(struct deferred *q, const struct deferred_layout *l)
{
    struct arena bytes = {.name = "deferred weight gradients"};
    *q = (struct deferred){0};
    for (int i = l->first; i < l->last; i++) {
        const struct param *row = &l->params->rows[i];
        const int64_t n = rows_through(row, l->n, l->context);
        if (!row->linear) continue;
        q->capacity++;
        (void)take_copy(&bytes, n, row->shape[1], l->dt, true);
        (void)take_copy(&bytes, n, row->shape[0], l->dt, false);
    }
    q->items = calloc((size_t)q->capacity, sizeof *q->items);
    if (q->items == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory to defer %d weight gradients", q->capacity);
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
