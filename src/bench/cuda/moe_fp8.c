#include "bench/cuda/moe_fp8.h"
#include "dev/dev.h"

#include <string.h>

/* The data are a tenth of a normal distribution: this scale leaves E4M3 room for 2^11 times their deviation. */
enum { SCALE_EXPONENT = 7, SCALES = 3 * FP8_SCALE_STRIDE };

static void take(struct fp8_bench_codes *c, struct arena *a, int64_t rows, int64_t trans, int64_t width)
{
    c->rows = rows ? arena_take(a, (size_t)(rows * width), "codes") : NULL;
    c->trans = trans ? arena_take(a, (size_t)(trans * width), "transposed codes") : NULL;
}

void fp8_bench_layout(struct fp8_bench *f, struct arena *a)
{
    const struct moe_bench *b = &f->shape;
    const int64_t two = 2 * b->size;
    take(&f->cx, a, b->tokens, 0, b->hidden);
    take(&f->cdy, a, b->tokens, 0, b->hidden);
    take(&f->cm, a, f->sorted, f->sorted, b->size);
    take(&f->cdup, a, f->sorted, f->sorted, two);
    take(&f->cup_w, a, b->experts * two, b->experts * two, b->hidden);
    take(&f->cdown_w, a, b->experts * b->hidden, b->experts * b->hidden, b->size);
    f->scales = arena_take(a, SCALES * sizeof *f->scales, "scales");
}

static struct quantized form(const struct fp8_bench *f, dtype dt, void *codes, void *codes_t)
{
    return (struct quantized){.codes = codes,
                              .codes_t = codes_t,
                              .scale = f->scales,
                              .scale_inv = f->scales + FP8_SCALE_STRIDE,
                              .amax = f->scales + 2 * (int)FP8_SCALE_STRIDE,
                              .dt = dt};
}

static status quantize(const struct fp8_bench *f, const bf16 *x, const struct quantized *q, int64_t rows,
                       int64_t n, const struct ops *o, struct stream *s)
{
    (void)f;
    return o->quantize(&(struct quantize_args){.x = x, .q = *q, .rows = rows, .n = n, .dt = DTYPE_BF16}, s);
}

status fp8_bench_open(const struct fp8_bench *f, const struct ops *o, struct stream *s)
{
    const struct moe_bench *b = &f->shape;
    float scales[SCALES] = {0};
    scales[0] = 1 << SCALE_EXPONENT;
    scales[FP8_SCALE_STRIDE] = 1 / scales[0];
    TRY(dev_upload(s, f->scales, scales, sizeof scales));
    TRY(dev_sync(s));
    const struct quantized up = form(f, DTYPE_F8_E4M3, f->cup_w.rows, f->cup_w.trans),
                           down = form(f, DTYPE_F8_E4M3, f->cdown_w.rows, f->cdown_w.trans);
    TRY(quantize(f, f->up_w, &up, b->experts * 2 * b->size, b->hidden, o, s));
    return quantize(f, f->down_w, &down, b->experts * b->hidden, b->size, o, s);
}

/* ---- the parts, in the order of a step */

static status act_fwd(const struct fp8_bench *f, const struct ops *o, struct stream *s)
{
    struct quantized m = form(f, DTYPE_F8_E4M3, f->cm.rows, NULL);
    m.only = true;
    return o->expert_act_fwd(&(struct expert_act_fwd_args){.up = f->up,
                                                           .m = f->m,
                                                           .weight = f->weight,
                                                           .source = f->source,
                                                           .offsets = f->offsets,
                                                           .q = m,
                                                           .rows = f->shape.tokens,
                                                           .top_k = f->shape.top_k,
                                                           .experts = f->shape.experts,
                                                           .f = f->shape.size,
                                                           .align = f->align,
                                                           .ld = expert_codes_ld(f->align, f->sorted),
                                                           .dt = DTYPE_BF16},
                             s);
}

static status act_bwd(const struct fp8_bench *f, const struct ops *o, struct stream *s)
{
    struct quantized dup = form(f, DTYPE_F8_E5M2, f->cdup.rows, f->cdup.trans),
                     m = form(f, DTYPE_F8_E4M3, NULL, f->cm.trans);
    dup.only = m.only = true;
    m.amax = NULL;
    return o->expert_act_bwd(&(struct expert_act_bwd_args){.dm = f->dm,
                                                           .up = f->up,
                                                           .weight = f->weight,
                                                           .source = f->source,
                                                           .offsets = f->offsets,
                                                           .dup = f->dup,
                                                           .m = f->m,
                                                           .dweight = f->dweight,
                                                           .q = dup,
                                                           .mq = m,
                                                           .rows = f->shape.tokens,
                                                           .top_k = f->shape.top_k,
                                                           .experts = f->shape.experts,
                                                           .f = f->shape.size,
                                                           .align = f->align,
                                                           .ld = expert_codes_ld(f->align, f->sorted),
                                                           .dt = DTYPE_BF16},
                             s);
}

struct product {
    enum expert_pass pass;
    enum expert_gather gather;
    const uint8_t *a, *b;
    void *c;
    int64_t n, k;
};
static status product(const struct fp8_bench *f, const struct product *p, const struct ops *o,
                      struct stream *s)
{
    const float *inv = f->scales + FP8_SCALE_STRIDE;
    const dtype dt = p->pass == EXPERT_FWD ? DTYPE_F8_E4M3 : DTYPE_F8_E5M2;
    return o->expert_gemm(
        &(struct expert_gemm_args){.pass = p->pass,
                                   .gather = p->gather,
                                   .a = operand_codes(p->a, dt, inv, false),
                                   .b = operand_codes(p->b, DTYPE_F8_E4M3, inv, p->pass != EXPERT_WGRAD),
                                   .c = p->c,
                                   .source = f->source,
                                   .offsets = f->offsets,
                                   .counts = f->counts,
                                   .rows = f->shape.tokens,
                                   .top_k = f->shape.top_k,
                                   .experts = f->shape.experts,
                                   .n = p->n,
                                   .k = p->k,
                                   .align = f->align,
                                   .ld = expert_codes_ld(f->align, f->sorted),
                                   .fast_accum = p->pass != EXPERT_WGRAD,
                                   .dt = DTYPE_BF16},
        s);
}

/* Of the FLOPs of all expert GEMMs, in ninths. Bytes per token and width D, and per sorted row and width I, or D. */
static const struct part {
    const char *name;
    double ninths, token, size, hidden;
} parts[FP8_BENCH_PARTS] = {
    {"fp8 codes of x", 0, 3, 0, 0}, {"fp8 fc1", 2, 0, 0, 0},         {"fp8 activation", 0, 0, 5, 0},
    {"fp8 fc2", 1, 0, 0, 0},        {"fp8 codes of dy", 0, 3, 0, 0}, {"fp8 fc2 dgrad", 1, 0, 0, 0},
    {"fp8 act bwd", 0, 0, 11, 0},   {"fp8 fc2 wgrad", 1, 0, 0, 0},   {"fp8 x again", 0, 3, 0, 0},
    {"fp8 fc1 wgrad", 2, 0, 0, 0},  {"fp8 fc1 dgrad", 2, 0, 0, 0}};

const char *fp8_bench_name(int i)
{
    return parts[i].name;
}
double fp8_bench_ninths(int i)
{
    return parts[i].ninths;
}
double fp8_bench_bytes(const struct fp8_bench *f, int i)
{
    const struct moe_bench *b = &f->shape;
    const double tokens = (double)b->tokens, d = (double)b->hidden, slots = tokens * (double)b->top_k;
    return parts[i].token * tokens * d + slots * (parts[i].size * (double)b->size + parts[i].hidden * d);
}

static status pass(const struct fp8_bench *f, int i, const struct ops *o, struct stream *s)
{
    const struct moe_bench *b = &f->shape;
    const struct quantized x = form(f, DTYPE_F8_E4M3, f->cx.rows, NULL),
                           dy = form(f, DTYPE_F8_E5M2, f->cdy.rows, NULL);
    switch (i) {
    case 0:
    case 8: return quantize(f, f->x, &x, b->tokens, b->hidden, o, s);
    case 2: return act_fwd(f, o, s);
    case 4: return quantize(f, f->dy, &dy, b->tokens, b->hidden, o, s);
    default: return act_bwd(f, o, s);
    }
}

status fp8_bench_run(const struct fp8_bench *f, int i, const struct ops *o, struct stream *s)
{
    const int64_t d = f->shape.hidden, size = f->shape.size;
    const enum expert_gather none = EXPERT_GATHER_NONE, a = EXPERT_GATHER_A, b = EXPERT_GATHER_B;
    const struct product products[FP8_BENCH_PARTS] = {
        [1] = {EXPERT_FWD, a, f->cx.rows, f->cup_w.rows, f->up, 2 * size, d},
        [3] = {EXPERT_FWD, none, f->cm.rows, f->cdown_w.rows, f->y_rows, d, size},
        [5] = {EXPERT_DGRAD, a, f->cdy.rows, f->cdown_w.trans, f->dm, d, size},
        [7] = {EXPERT_WGRAD, a, f->cdy.rows, f->cm.trans, f->ddown_w, d, size},
        [9] = {EXPERT_WGRAD, b, f->cdup.trans, f->cx.rows, f->dup_w, 2 * size, d},
        [10] = {EXPERT_DGRAD, none, f->cdup.rows, f->cup_w.trans, f->y_rows, 2 * size, d}};
    return parts[i].ninths > 0 ? product(f, &products[i], o, s) : pass(f, i, o, s);
}
