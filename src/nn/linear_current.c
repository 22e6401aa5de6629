#include "nn/linear_current.h"

#include <string.h>
#include <xxhash.h>

bool linear_current(const struct linear *m, int64_t rows, const struct exec *r)
{
    return r->params->current.count > 0 && m->w >= 0 && m->out > 0 && r->params->rows[m->w].current &&
           rows % 16 == 0;
}

/* Where random rounding of a gradient begins in the stream of its weight: apart for every micro-batch, dgrad and wgrad.
 */
static uint64_t random_first(enum gemm_pass pass, const struct exec *r)
{
    return (uint64_t)r->micro << 41 | (uint64_t)(pass == GEMM_WGRAD) << 40;
}

/* W, and x of a weight gradient, are the GEMM's b. */
static bool is_second(enum gemm_pass pass, enum fp8_tensor what)
{
    return what == FP8_W || (pass == GEMM_WGRAD && what == FP8_X);
}

static enum block_format current_format(const struct current_linears *c, enum fp8_tensor what)
{
    return what == FP8_X ? c->x : what == FP8_W ? c->w : c->dy;
}

static bool reads_codes(const struct linear *m, enum gemm_pass pass, int64_t rows, const struct exec *r)
{
    const bool wgrad = pass == GEMM_WGRAD;
    return r->ops->reads_blocks && r->ops->reads_blocks(r->params->current.x, wgrad ? m->out : rows,
                                                        pass == GEMM_FWD ? m->out : m->in,
                                                        wgrad              ? rows
                                                        : pass == GEMM_FWD ? m->in
                                                                           : m->out,
                                                        r->stream);
}

struct operand linear_current_form(const struct linear *m, enum gemm_pass pass, enum fp8_tensor what,
                                   int64_t rows, const struct exec *r)
{
    const struct current_linears *c = &r->params->current;
    const enum block_format f = current_format(c, what);
    const bool second = is_second(pass, what);
    const int64_t count = what == FP8_W ? m->out * m->in : rows * (what == FP8_X ? m->in : m->out);
    char *to = (char *)(second ? c->b : c->a);
    CHECK(count <= (second ? c->b_count : c->a_count), "an operand of %lld elements", (long long)count);
    if (!reads_codes(m, pass, rows, r))
        return operand_at(to, DTYPE_BF16, second ? pass == GEMM_FWD : pass == GEMM_WGRAD);
    return (struct operand){.data = to,
                            .dt = f == BLOCKS_NV     ? DTYPE_U8
                                  : f == BLOCKS_E5M2 ? DTYPE_F8_E5M2
                                                     : DTYPE_F8_E4M3,
                            .scales = block_length(f) ? SCALES_BLOCKS : SCALES_TENSOR,
                            .scale = block_tensor_scale(f) ? c->scale + (second ? 8 : 4) : NULL,
                            .trans = second,
                            .blocks = to + count, /* codes have a byte at most; sizes are multiples of 128 */
                            .format = f,
                            .square = what == FP8_W && c->square};
}

status linear_current_make(const struct linear *m, enum gemm_pass pass, enum fp8_tensor what, struct tensor t,
                           int64_t rows, struct operand *out, const struct exec *r)
{
    const struct current_linears *c = &r->params->current;
    const char *name = r->params->rows[m->w].name;
    const bool dy = what == FP8_DY, w = what == FP8_W, wgrad = pass == GEMM_WGRAD;
    *out = linear_current_form(m, pass, what, rows, r);
    void *to = (void *)out->data;
    const bool codes = out->scales != SCALES_NONE;
    return r->ops->quantize_blocks(
        &(struct quantize_blocks_args){.x = t.data,
                                       .values = codes ? NULL : to,
                                       .codes = codes ? to : NULL,
                                       .scales = out->scales == SCALES_BLOCKS ? (void *)out->blocks : NULL,
                                       .tensor = c->scale +
                                                 (is_second(pass, what) ? 7 : 3), /* its scale at 16 bytes */
                                       .rows = t.shape[0],
                                       .n = t.shape[1],
                                       .format = current_format(c, what),
                                       .columns = wgrad || (w && pass == GEMM_DGRAD),
                                       .square = w && c->square,
                                       .hadamard = wgrad && c->hadamard,
                                       .stochastic = dy && c->stochastic,
                                       .seed = c->seed ^ XXH64(name, strlen(name), 0),
                                       .first = random_first(pass, r),
                                       .scalars = r->scalars,
                                       .dt = t.dt},
        r->stream);
}

status linear_current_operands(const struct linear *m, enum gemm_pass pass, struct tensor t,
                               struct operand *out, const struct exec *r)
{
    struct operand second;
    const struct tensor w = {
        .data = params_weight(r->params, m->w), .dt = r->params->dt, .rank = 2, .shape = {m->out, m->in}};
    TRY(linear_current_make(m, pass, pass == GEMM_FWD ? FP8_X : FP8_DY, t, t.shape[0], out, r));
    return linear_current_make(m, pass, FP8_W, w, t.shape[0], &second, r);
}
