/* Expert GEMMs with the set's own GEMM, one expert at a time. If rows are stored by token, they are first gathered
 * into the scratch, in the order of the experts. Many experts with few rows each are distributed over the threads
 * whole, because a GEMM of a few rows has too little work for all threads. The result of a GEMM does not depend on
 * the thread that computes it (its chunks depend only on its shape), so neither choice changes a bit.
 *
 * Codes are decoded expert by expert, which is exact, into a buffer of the thread, and go the same way. */
#include "base/parallel.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/workspace.h"
#include "tensor/f8.h"

#include <string.h>

enum { MANY = 16, FEW_ROWS = 256 };

static char *at(const void *p, int64_t index, dtype dt)
{
    return (char *)p + index * (int64_t)dtype_bytes(dt);
}

/* Operands by experts' rows: `a` and `b` have the start of each expert. Gathered ones have no padding. */
struct operands {
    const void *a, *b;
    const int64_t *a_at, *b_at;
};

/* first[e]: rows of the experts before e. */
static void count_rows(const struct expert_gemm_args *a, int64_t *first)
{
    int64_t rows = 0;
    for (int64_t e = 0; e < a->experts; rows += a->counts[e++]) first[e] = rows;
}

static const void *gather(const struct expert_gemm_args *a, const void *from, int64_t width,
                          const int64_t *first)
{
    const size_t bytes = (size_t)width * dtype_bytes(a->dt);
    PARALLEL_CHUNKS(e, a->experts)
    {
        for (int64_t i = 0; i < a->counts[e]; i++)
            memcpy(at(a->scratch, (first[e] + i) * width, a->dt),
                   at(from, a->source[a->offsets[e] + i] / a->top_k * width, a->dt), bytes);
    }
    return a->scratch;
}

static status wgrad(const struct expert_gemm_args *a, const struct operands *o, int64_t e, gemm_fn *gemm)
{
    const dtype acc = dtype_acc(a->dt);
    void *c = at(a->c, e * a->n * a->k, acc);
    const int64_t rows = a->counts[e];
    if (rows == 0) {
        if (a->accum == ACCUM_STORE) memset(c, 0, (size_t)(a->n * a->k) * dtype_bytes(acc));
        return STATUS_OK;
    }
    return gemm(&(struct gemm_args){.a = operand_at(at(o->a, o->a_at[e] * a->n, a->dt), a->dt, true),
                                    .b = operand_at(at(o->b, o->b_at[e] * a->k, a->dt), a->dt, false),
                                    .c = c,
                                    .m = a->n,
                                    .n = a->k,
                                    .k = rows,
                                    .accum = a->accum,
                                    .cdt = acc},
                NULL);
}

static status one(const struct expert_gemm_args *a, const struct operands *o, int64_t e, gemm_fn *gemm)
{
    if (a->pass == EXPERT_WGRAD) return wgrad(a, o, e, gemm);
    const bool fwd = a->pass == EXPERT_FWD;
    const int64_t begin = a->offsets[e], rows = a->counts[e], in = fwd ? a->k : a->n, out = fwd ? a->n : a->k,
                  padding = a->offsets[e + 1] - begin - rows;
    if (padding > 0)
        memset(at(a->c, (begin + rows) * out, a->dt), 0, (size_t)(padding * out) * dtype_bytes(a->dt));
    if (rows == 0) return STATUS_OK;
    return gemm(&(struct gemm_args){.a = operand_at(at(o->a, o->a_at[e] * in, a->dt), a->dt, false),
                                    .b = operand_at(at(o->b, e * a->n * a->k, a->dt), a->dt, fwd),
                                    .c = at(a->c, begin * out, a->dt),
                                    .m = rows,
                                    .n = out,
                                    .k = in,
                                    .accum = ACCUM_STORE,
                                    .cdt = a->dt},
                NULL);
}

/* ---- codes */

/* The values of all codes of an operand, with its scale. */
struct values {
    const uint8_t *codes;
    union {
        bf16 half[256];
        float whole[256];
    };
};

static void values_of(const struct operand *o, dtype dt, struct values *v)
{
    const struct f8_format format = o->dt == DTYPE_F8_E4M3 ? f8_e4m3 : f8_e5m2;
    v->codes = o->data;
    for (int i = 0; i < 256; i++) {
        const float x = f8_decode(format, (uint8_t)i) * *o->scale;
        if (dt == DTYPE_F32)
            v->whole[i] = x;
        else
            v->half[i] = bf16_from_f32(x);
    }
}

static void decode(const struct values *v, int64_t from, int64_t count, void *to, dtype dt)
{
    for (int64_t i = 0; i < count; i++) {
        if (dt == DTYPE_F32)
            ((float *)to)[i] = v->whole[v->codes[from + i]];
        else
            ((bf16 *)to)[i] = v->half[v->codes[from + i]];
    }
}

/* Rows `rows` of `width`, which begin `stride` apart from element `from` on, to `to`. */
struct decoded {
    int64_t from, rows, width, stride;
};
static struct operand decoded(const struct values *v, const struct decoded *d, char *to, dtype dt, bool trans)
{
    PARALLEL_CHUNKS(r, d->rows)
    {
        decode(v, d->from + r * d->stride, d->width, at(to, r * d->width, dt), dt);
    }
    return operand_at(to, dt, trans);
}

/* The expert's rows of a: a GEMM's [rows, in]. */
static struct operand decoded_rows(const struct expert_gemm_args *a, const struct values *v, int64_t e,
                                   int64_t in, char *to)
{
    const int64_t begin = a->offsets[e];
    PARALLEL_CHUNKS(r, a->counts[e])
    {
        const int64_t row = a->gather == EXPERT_GATHER_A ? a->source[begin + r] / a->top_k : begin + r;
        decode(v, row * in, in, at(to, r * in, a->dt), a->dt);
    }
    return operand_at(to, a->dt, false);
}

/* WGRAD: an operand of `width` columns over the expert's rows, transposed: [width, rows]; or if it is gathered, as
 * [rows, width]. */
static struct operand decoded_sum(const struct expert_gemm_args *a, const struct values *v, int64_t e,
                                  enum expert_gather who, char *to)
{
    const int64_t begin = a->offsets[e], rows = a->counts[e], width = who == EXPERT_GATHER_A ? a->n : a->k;
    const bool of_b = who == EXPERT_GATHER_B; /* a GEMM's b is [rows, width] */
    if (a->gather == who) {
        PARALLEL_CHUNKS(r, rows)
        {
            decode(v, a->source[begin + r] / a->top_k * width, width, at(to, r * width, a->dt), a->dt);
        }
        return operand_at(to, a->dt, !of_b);
    }
    PARALLEL_CHUNKS(j, width)
    {
        for (int64_t r = 0, n; r < rows; r += n) { /* a panel's rows */
            const int64_t left = a->ld - (begin + r) % a->ld;
            n = rows - r < left ? rows - r : left;
            decode(v, expert_codes_at(width, a->ld, begin + r, j), n, at(to, j * rows + r, a->dt), a->dt);
        }
    }
    return operand_at(to, a->dt, of_b);
}

/* The GEMM of expert e, of decoded operands. */
static status one_of_codes(const struct expert_gemm_args *a, const struct values *va, const struct values *vb,
                           int64_t e, gemm_fn *gemm)
{
    const dtype acc = dtype_acc(a->dt);
    const bool fwd = a->pass == EXPERT_FWD, wgrad = a->pass == EXPERT_WGRAD;
    const int64_t rows = a->counts[e], begin = a->offsets[e], in = fwd ? a->k : a->n;
    const int64_t of_a = rows * (wgrad ? a->n : in), of_b = wgrad ? rows * a->k : a->n * a->k;
    char *buffer = workspace_get(WORKSPACE_DECODED, (size_t)(of_a + of_b + 1) * dtype_bytes(a->dt)),
         *second = at(buffer, of_a, a->dt);
    struct gemm_args g = {.m = rows, .n = fwd ? a->n : a->k, .k = in, .cdt = a->dt};
    if (wgrad) {
        g = (struct gemm_args){.m = a->n, .n = a->k, .k = rows, .accum = a->accum, .cdt = acc};
        g.c = at(a->c, e * a->n * a->k, acc);
        g.a = decoded_sum(a, va, e, EXPERT_GATHER_A, buffer);
        g.b = decoded_sum(a, vb, e, EXPERT_GATHER_B, second);
        return gemm(&g, NULL);
    }
    const struct decoded w = fwd ? (struct decoded){e * a->n * a->k, a->n, a->k, a->k}
                                 : (struct decoded){e * a->n, a->k, a->n, a->experts * a->n};
    g.c = at(a->c, begin * g.n, a->dt);
    g.a = decoded_rows(a, va, e, in, buffer);
    g.b = decoded(vb, &w, second, a->dt, true);
    return gemm(&g, NULL);
}

/* What no GEMM writes: padding rows, and the gradient of an expert without rows. */
static void clear_rest(const struct expert_gemm_args *a, int64_t e)
{
    const int64_t begin = a->offsets[e], rows = a->counts[e], out = a->pass == EXPERT_FWD ? a->n : a->k,
                  padding = a->offsets[e + 1] - begin - rows;
    const dtype acc = dtype_acc(a->dt);
    if (a->pass != EXPERT_WGRAD)
        memset(at(a->c, (begin + rows) * out, a->dt), 0, (size_t)(padding * out) * dtype_bytes(a->dt));
    else if (rows == 0 && a->accum == ACCUM_STORE)
        memset(at(a->c, e * a->n * a->k, acc), 0, (size_t)(a->n * a->k) * dtype_bytes(acc));
}

static status codes_by(gemm_fn *gemm, const struct expert_gemm_args *a)
{
    struct values va, vb;
    values_of(&a->a, a->dt, &va);
    values_of(&a->b, a->dt, &vb);
    for (int64_t e = 0; e < a->experts; e++) {
        clear_rest(a, e);
        if (a->counts[e] > 0) TRY(one_of_codes(a, &va, &vb, e, gemm));
    }
    return STATUS_OK;
}

/* ---- all */

static bool few_rows(const struct expert_gemm_args *a, int64_t e)
{
    return a->counts[e] < FEW_ROWS;
}

status expert_gemm_by(gemm_fn *gemm, const struct expert_gemm_args *a)
{
    int64_t sorted[MOE_EXPERTS_MAX], gathered[MOE_EXPERTS_MAX];
    struct operands o = {.a = a->a.data, .b = a->b.data, .a_at = sorted, .b_at = sorted};
    const bool fp8 = expert_gemm_fp8(a);
    CHECK((fp8 ? a->dt : expert_gemm_dt(a)) == DTYPE_F32 || a->dt == DTYPE_BF16, "expert GEMMs in %s",
          dtype_name(a->dt));
    CHECK(a->experts <= MOE_EXPERTS_MAX, "%ld experts", (long)a->experts);
    if (fp8) return codes_by(gemm, a);
    for (int64_t e = 0; e < a->experts; e++) sorted[e] = a->offsets[e];
    count_rows(a, gathered);
    if (a->gather == EXPERT_GATHER_A) {
        o.a = gather(a, a->a.data, a->pass == EXPERT_FWD ? a->k : a->n, gathered);
        o.a_at = gathered;
    }
    if (a->gather == EXPERT_GATHER_B) {
        o.b = gather(a, a->b.data, a->k, gathered);
        o.b_at = gathered;
    }
    int64_t few = 0;
    for (int64_t e = 0; e < a->experts; e++) few += few_rows(a, e);
    const bool deal = few >= MANY;
    for (int64_t e = 0; e < a->experts; e++)
        if (!deal || !few_rows(a, e)) TRY(one(a, &o, e, gemm));
    if (!deal) return STATUS_OK;
    PARALLEL_CHUNKS(e, a->experts)
    {
        status st = few_rows(a, e) ? one(a, &o, e, gemm) : STATUS_OK;
        CHECK(st == STATUS_OK, "a GEMM of %ld rows failed", (long)a->counts[e]);
    }
    return STATUS_OK;
}
