/* Ops of mixtures of experts (Shazeer et al., arXiv:1701.06538; routers as in Qwen3 and DeepSeek-V3,
 * arXiv:2412.19437). Included by ops.h, whose conventions apply. The host reads nothing here: the row counts of
 * experts stay on the device.
 *
 * Slot t*k + j is the j-th choice of token t. Slots are sorted by expert, then by token:
 *
 *   offsets[e]              offsets[e] + counts[e]     offsets[e+1]          a multiple of `align`
 *   | rows of expert e, by t | padding up to `align`   | rows of expert e+1 ...
 *
 *   expert   [rows, k]        expert of each slot, best first
 *   weight   [rows, k]        A, weight of each slot
 *   place    [rows, k]        sorted row of each slot; -1: dropped by capacity
 *   source   [rows_max]       slot of each sorted row; -1: padding, and from offsets[experts] on
 *   offsets  [experts + 1]    first sorted row of each expert
 *   counts   [experts]        rows of each expert, without padding
 *
 * Arrays "of sorted rows" are [rows_max, ...]. Padding rows of an input do not affect results; padding rows of an
 * output are set to 0. Rows from offsets[experts] on are neither read nor written. */
#ifndef INGOT_OPS_OPS_MOE_H
#define INGOT_OPS_OPS_MOE_H
#include "ops/accum.h"
#include "ops/ops_dispatch.h"
#include "ops/ops_route.h"
#include "tensor/operand.h"
#include "tensor/quantized.h"
#include <stdbool.h>

enum { MOE_EXPERTS_MAX = 512, MOE_TOP_K_MAX = 16 };

/* Upper bound of the sorted rows of `rows` tokens: the last tile of each expert may be nearly empty. */
static inline int64_t moe_rows_max(int64_t rows, int64_t top_k, int64_t experts, int64_t align)
{
    return (rows * top_k + experts * (align - 1) + align - 1) / align * align;
}

/* The GEMMs of all experts; expert e has one matrix b_e [n, k]. row(r) = source[r] / top_k, one row per token, for
 * the operand named by `gather`; else row(r) = r.
 *   FWD    c[r, n] =  a[row(r), k] b_e^T        gather: NONE or A
 *   DGRAD  c[r, k] =  a[row(r), n] b_e          gather: NONE or A
 *   WGRAD  c_e[n, k] = or += sum over the rows r of e of a[row(r), n]^T b[row(r), k]
 *          an expert without rows: zeros with =, unchanged with +=
 *
 * FP8: codes with one scale (SCALES_TENSOR) in both operands, of which not both are E5M2; n and k are multiples of 16.
 * c = the sums of products of codes, times both scales. Both operands are contiguous along the sum:
 *   FWD    a [rows or sorted rows, k]   b [experts n, k]
 *   DGRAD  a [rows or sorted rows, n]   b [k, experts n]: the transpose of all matrices
 *   WGRAD  a of n, b of k columns: transposed codes of sorted rows (below); but the operand named by `gather` is
 *          [rows, n] or [rows, k], which a kernel transposes itself */
enum expert_pass { EXPERT_FWD, EXPERT_DGRAD, EXPERT_WGRAD };
enum expert_gather { EXPERT_GATHER_NONE, EXPERT_GATHER_A, EXPERT_GATHER_B /* WGRAD only */ };
struct expert_gemm_args {
    enum expert_pass pass;
    enum expert_gather gather;
    struct operand a, b;            /* dt, or codes; trans is ignored: `pass` determines the layouts */
    void *c;                        /* dt; WGRAD: A */
    const int32_t *source, *offsets, *counts;
    int64_t rows, top_k, experts;   /* rows: tokens; there are at most moe_rows_max sorted rows */
    int64_t n, k, align;
    int64_t ld;                     /* WGRAD of codes: rows in a panel of the transposed operands */
    bool fast_accum;                /* codes: the set may keep sums in the 14 bits of Hopper's tensor core */
    enum accum accum;               /* WGRAD; else ACCUM_STORE */
    void *scratch;                  /* moe_scratch(MOE_GEMM) */
    dtype dt;
};
/* True for codes, after checking that they are as above; false: both operands are plain. */
static inline bool expert_gemm_fp8(const struct expert_gemm_args *a)
{
    switch (a->a.scales) {
    case SCALES_NONE: return false;
    case SCALES_BLOCKS: CHECK(false, "experts' operands with scales of blocks");
    case SCALES_TENSOR: break;
    }
    CHECK(a->b.scales == SCALES_TENSOR && (a->a.dt == DTYPE_F8_E4M3 || a->b.dt == DTYPE_F8_E4M3),
          "operands of experts in %s and %s", dtype_name(a->a.dt), dtype_name(a->b.dt));
    CHECK(a->n % 16 == 0 && a->k % 16 == 0, "codes of experts of %lld x %lld: multiples of 16", (long long)a->n,
          (long long)a->k);
    CHECK(a->pass != EXPERT_WGRAD || (a->ld > 0 && a->ld % 16 == 0), "codes of sorted rows in panels of %lld",
          (long long)a->ld);
    return true;
}
/* Returns dt after checking that both operands have it. A set calls this before it reads their data. */
static inline dtype expert_gemm_dt(const struct expert_gemm_args *a)
{
    const dtype dt = operands_dt(a->a, a->b);
    CHECK(dt == a->dt, "operands of experts in %s, their GEMM in %s", dtype_name(dt), dtype_name(a->dt));
    return dt;
}

/* Transposed codes of sorted rows are in panels of `ld` rows, [n, ld] each. Of whole tiles (MOE_PANEL) all codes that a
 * GEMM reads at a time are then beside each other. Where column j of row r is: */
enum { MOE_PANEL = 128 };
static inline int64_t expert_codes_at(int64_t n, int64_t ld, int64_t r, int64_t j)
{
    return (r / ld * n + j) * ld + r % ld;
}
/* ld for at most `rows` sorted rows: panels where experts begin at their edges, else all rows. */
static inline int64_t expert_codes_ld(int64_t align, int64_t rows)
{
    return align % MOE_PANEL == 0 ? (int64_t)MOE_PANEL : quantized_ld(rows);
}

/* FP8 codes of sorted rows, for GEMMs of experts. x: sorted rows [n] dt; or with `gather` codes of rows [rows, n], of
 * which sorted row r has row source[r] / top_k. Writes what of q is not NULL:
 *   codes     sorted rows [n] =: round(x * scale), as `quantize` makes them. Without gather.
 *   codes_t   the transpose, in panels of `ld` rows; of x with gather. Columns of padding rows, and those behind
 *             offsets[experts] up to the next multiple of 16, are 0; others are not written.
 *   amax      of the sorted rows of x. Without gather.
 * Padding rows of x are 0. With codes, n is a multiple of 16; ld is, too, and it is expert_codes_ld's or at least the
 * number of rows. */
struct expert_codes_args {
    const void *x;
    struct quantized q;             /* q.only is ignored; with gather dt is also that of x */
    const int32_t *source, *offsets;
    int64_t rows, top_k, experts, n, align, ld;
    bool gather;
    dtype dt;                       /* of x without gather: BF16 or F32 (F64 in the oracle) */
};
/* Checks what every set asks. */
static inline void expert_codes_check(const struct expert_codes_args *a)
{
    const struct quantized *q = &a->q;
    CHECK(q->dt == DTYPE_F8_E4M3 || q->dt == DTYPE_F8_E5M2, "codes of experts' rows in %s", dtype_name(q->dt));
    CHECK(!quantized_any(q) || a->n % 16 == 0, "codes of experts' rows of %lld", (long long)a->n);
    CHECK(a->gather || !quantized_any(q) || q->scale, "codes of experts' rows without a scale");
    CHECK(!a->gather || (q->codes == NULL && q->amax == NULL), "gathered codes are transposed alone");
    CHECK(q->codes_t == NULL || (a->ld > 0 && a->ld % 16 == 0), "codes of experts' rows in panels of %lld",
          (long long)a->ld);
}

/* m = w silu(gate) up per sorted row; a row of up is [gate: f | up: f]; w = weight[source[r]]. */
struct expert_act_fwd_args {
    const void *up;                 /* sorted rows [2 f] dt */
    void *m;                        /* sorted rows [f] dt = */
    const void *weight;             /* [rows, k] A */
    const int32_t *source, *offsets;
    struct quantized q;             /* FP8 form of m, as expert_codes makes it, with ld */
    int64_t rows, top_k, experts, f, align, ld;
    dtype dt;
};
struct expert_act_bwd_args {
    const void *dm, *up, *weight;
    const int32_t *source, *offsets;
    void *dup;                      /* sorted rows [2 f] dt =; may be the memory of up */
    void *m;                        /* sorted rows [f] dt =: recomputed forward result, same bits; may be the memory
                                       of dm */
    void *dweight;                  /* [rows, k] A =; only slots that have a row are written */
    struct quantized q, mq;         /* FP8 forms of dup and of m, as expert_codes makes them, with ld */
    int64_t rows, top_k, experts, f, align, ld;
    dtype dt;
};
/* What expert_codes does for the FP8 forms of these ops: of m; of dup, or of m. */
static inline struct expert_codes_args expert_act_fwd_codes(const struct expert_act_fwd_args *a)
{
    return (struct expert_codes_args){a->m,     a->q, a->source, a->offsets, a->rows, a->top_k,
                                      a->experts, a->f, a->align,  a->ld,      false,   a->dt};
}
static inline struct expert_codes_args expert_act_bwd_codes(const struct expert_act_bwd_args *a, bool of_m)
{
    const struct expert_codes_args dup = {a->dup,     a->q,     a->source, a->offsets, a->rows, a->top_k,
                                          a->experts, 2 * a->f, a->align,  a->ld,      false,   a->dt},
                                   m = {a->m,       a->mq, a->source, a->offsets, a->rows, a->top_k,
                                        a->experts, a->f,  a->align,  a->ld,      false,   a->dt};
    return of_m ? m : dup;
}

/* y[t] = sigmoid(gate[t]) base[t] + x[place[t, 0]] + ... + x[place[t, k-1]], added in this order in A, rounded once.
 * Forward: x = the experts' outputs, base = the shared expert's. Backward: x = the experts' input gradients, base =
 * the other gradients of y. */
struct combine_args {
    const void *x;                  /* sorted rows [d] dt */
    const int32_t *place;           /* [rows, k] */
    const void *base;               /* [rows, d] base_dt; NULL: 0 */
    const void *gate;               /* [rows] A; NULL: 1 */
    void *y;                        /* [rows, d] dt =; may be the memory of base if base_dt is dt */
    const int32_t *count;           /* one value in the set's memory: rows that exist; the others up to `rows` are not
                                       written. NULL: all exist */
    int64_t rows, top_k, d;
    dtype dt, base_dt;              /* base_dt: dt or A */
};
/* Backward of combine's gate: dbase = sigmoid(gate) dy; dgate = sigmoid'(gate) <dy, base>. */
struct combine_gate_bwd_args {
    const void *dy, *base;          /* [rows, d] dt */
    const void *gate;               /* [rows] A */
    void *dbase;                    /* [rows, d] dt =; may be the memory of base */
    void *dgate;                    /* [rows] dt = */
    int64_t rows, d;
    dtype dt;
};

/* Scratch that a set needs during one of these ops. Pure, like attn_scratch. MOE_GEMM: gathered rows have at
 * most d elements. */
enum moe_memory { MOE_ROUTE_FWD, MOE_ROUTE_BWD, MOE_GEMM };
struct moe_shape {
    int64_t rows, experts, top_k, d, f, docs;   /* rows: tokens; d, f: width and inner width; docs: maximum, 0
                                                   without ROUTE_AUX_SEQUENCE */
    int64_t ranks;                              /* that share the documents (route_whole); 0: one */
    dtype dt;
};
#endif
