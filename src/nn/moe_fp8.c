#include "nn/moe_fp8.h"
#include "nn/moe.h"
#include "parallel/fp8.h"
#include "tensor/param_operand.h"

/* Number in params.fp8 of an expert matrix; -1: none. */
static int fp8_of(int row, const struct params *p)
{
    return p->fp8.count > 0 ? p->rows[row].fp8 : -1;
}

/* Experts' GEMMs pad the sum over rows themselves. */
static bool reads(int row, const struct exec *r)
{
    return fp8_reads(r->params, fp8_of(row, r->params), 0);
}

bool moe_wgrad_reads(int row, const struct exec *r)
{
    return fp8_reads_wgrad(r->params, fp8_of(row, r->params), 0);
}

/* ---- memory */

static void *codes_take(const struct layout *l, const char *what, int64_t rows, int64_t width)
{
    return tensor_take(l->scratch, what, DTYPE_U8, 2, rows, width).data;
}

void moe_codes_layout(const struct moe *m, struct moe_saved *s, int64_t tokens, int64_t sorted,
                      const struct layout *l)
{
    const int64_t ld = quantized_ld(sorted);
    const bool trains = l->mode == LAYOUT_TRAIN;
    s->codes = (struct moe_codes){0};
    if (l->recipe != RECIPE_FP8) return;
    if (fp8_of(m->up, l->params) >= 0) {
        s->codes.y = codes_take(l, "FP8 codes of experts' input", tokens, m->d);
        if (trains) {
            s->codes.dup = codes_take(l, "FP8 codes of moe up's gradient", sorted, 2 * m->f);
            s->codes.dup_t = codes_take(l, "FP8 codes of moe up's gradient", 2 * m->f, ld);
        }
    }
    if (fp8_of(m->down, l->params) < 0) return;
    s->codes.m = codes_take(l, "FP8 codes of moe activation", m->f, ld); /* of forward, then transposed */
    if (trains) s->codes.dout = codes_take(l, "FP8 codes of experts' gradient", tokens, m->d);
}

/* ---- operands */

struct operand moe_matrices(int row, enum gemm_pass pass, const struct exec *r)
{
    return reads(row, r) ? params_operand_fp8(r->params, row, pass) : params_operand(r->params, row, pass);
}

static struct operand codes_operand(const struct quantized *q, const void *codes)
{
    return operand_codes(codes, q->dt, q->scale_inv, false);
}

status moe_tokens(const struct moe *m, const struct moe_saved *s, enum fp8_tensor t,
                  const struct expert_rows *x, struct operand *out, const struct exec *r)
{
    const bool in = t == FP8_X;
    const int row = in ? m->up : m->down, fp8 = fp8_of(row, r->params);
    const struct tensor values = in ? x->y : x->dout;
    *out = operand_of(values);
    if (fp8 < 0) return STATUS_OK;
    struct quantized q = fp8_quantized(&r->params->fp8, t, fp8, in ? s->codes.y : s->codes.dout, NULL);
    if (reads(row, r))
        *out = codes_operand(&q, q.codes);
    else
        q.codes = NULL; /* amax alone */
    return r->ops->quantize(
        &(struct quantize_args){
            .x = values.data, .q = q, .rows = x->rows, .n = m->d, .dt = values.dt, .count = x->count},
        r->stream);
}

struct operand moe_sorted(const struct moe *m, const struct moe_saved *s, enum fp8_tensor t,
                          const struct exec *r)
{
    const bool in = t == FP8_X;
    const int row = in ? m->down : m->up;
    if (!reads(row, r)) return operand_of(in ? s->m : s->up);
    const struct quantized q =
        fp8_quantized(&r->params->fp8, t, fp8_of(row, r->params), in ? s->codes.m : s->codes.dup, NULL);
    return codes_operand(&q, q.codes);
}

/* ---- what the activation writes */

struct quantized moe_act_codes(const struct moe *m, const struct moe_saved *s, const struct exec *r)
{
    const int fp8 = fp8_of(m->down, r->params);
    if (fp8 < 0) return (struct quantized){0};
    const bool read = reads(m->down, r);
    struct quantized q = fp8_quantized(&r->params->fp8, FP8_X, fp8, read ? s->codes.m : NULL, NULL);
    q.only = read; /* backward forms m again */
    return q;
}

struct quantized moe_dup_codes(const struct moe *m, const struct moe_saved *s, const struct exec *r)
{
    const int fp8 = fp8_of(m->up, r->params);
    if (fp8 < 0) return (struct quantized){0};
    const bool read = reads(m->up, r), wgrad = moe_wgrad_reads(m->up, r);
    struct quantized q = fp8_quantized(&r->params->fp8, FP8_DY, fp8, read ? s->codes.dup : NULL,
                                       wgrad ? s->codes.dup_t : NULL);
    q.only = read && wgrad;
    return q;
}

struct quantized moe_act_codes_t(const struct moe *m, const struct moe_saved *s, const struct exec *r)
{
    if (!moe_wgrad_reads(m->down, r)) return (struct quantized){0};
    struct quantized q = fp8_quantized(&r->params->fp8, FP8_X, fp8_of(m->down, r->params), NULL, s->codes.m);
    q.amax = NULL; /* forward has measured it */
    q.only = true;
    return q;
}

/* ---- wgrad */

static struct operand wgrad_operand(enum fp8_tensor t, int row, void *codes, const struct exec *r)
{
    const struct quantized q = fp8_quantized(&r->params->fp8, t, fp8_of(row, r->params), codes, NULL);
    return codes_operand(&q, q.codes);
}

status moe_wgrad(const struct moe *m, const struct moe_saved *s, int row, const struct expert_rows *x,
                 struct operand *dy, struct operand *in, const struct exec *r)
{
    if (row == m->down) {
        *dy = wgrad_operand(FP8_DY, row, s->codes.dout, r);
        *in = wgrad_operand(FP8_X, row, s->codes.m, r);
        return STATUS_OK;
    }
    *dy = wgrad_operand(FP8_DY, row, s->codes.dup_t, r);
    return moe_tokens(m, s, FP8_X, x, in, r); /* those of forward were in scratch */
}
