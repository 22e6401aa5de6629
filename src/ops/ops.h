/* The op table: everything a model computes, one argument struct per op, one row per op in OPS.
 *
 * Sets: ops_oracle() is complete and plain, every sum in f64, for any of F64, F32, BF16: the definition. ops_cpu() starts as the
 * oracle and overlays what the machine does fast (SIMD kernels); it serves F32 and BF16 alone. ops_cuda() (ops/cuda/ops_cuda.h)
 * serves F32 and BF16 on a GPU. A NULL slot is an error at start (ops_check).
 *
 * Conventions
 *   dt      type of activations and weights in this call; A = dtype_acc(dt) (F64 for F64, else F32) is the type of statistics,
 *           gradients of parameters, and tables. "[n, d]" is row-major; `_stride` is in elements from row to row.
 *   =, +=   activation gradients are stored, parameter gradients are accumulated.
 *   N       tokens (rows) of the micro-batch; documents lie one after the other, cut by cu_seqlens.
 *   All pointers are to memory of the set's device, also those to scalars (loss_sum, step_scalars): a captured step replays with the
 *   values that lie there. An op may not allocate inside a step: temporary memory is part of its arguments (`scratch`, sized by the
 *   set's *_scratch function), on the stack, or the set's workspace, which the caller lays out once (ops.workspace).
 *   Results do not depend on the number of threads: see base/parallel.h. */
#ifndef INGOT_OPS_OPS_H
#define INGOT_OPS_OPS_H
#include "base/status.h"
#include "ops/accum.h"
#include "ops/ops_gdn.h"
#include "ops/ops_halt.h"
#include "ops/ops_moe.h"
#include "ops/ops_mla.h"
#include "ops/ops_muon.h"
#include "ops/ops_ssm.h"
#include "ops/ops_tables.h"
#include "ops/ops_tokens.h"
#include "ops/ops_vocab.h"
#include "tensor/operand.h"
#include <stdbool.h>

struct stream;                      /* dev/dev.h */
typedef struct stream *dev_stream;  /* where an op is queued; NULL on the CPU: it has run when the call returns */

#define OPS(X)                                                                                                         \
    X(gemm) X(bias_bwd)                                                                                                \
    X(embed_fwd) X(embed_bwd) X(rows_unique) X(ahead) X(ngram) X(ngram_gate_fwd) X(ngram_gate_bwd)                     \
    X(rmsnorm_fwd) X(rmsnorm_bwd) X(layernorm_fwd) X(layernorm_bwd)                                                    \
    X(rope_fwd) X(rope_bwd)                                                                                            \
    X(attn_fwd) X(attn_bwd) X(attn_decode) X(latent_fwd) X(latent_bwd)                                                 \
    X(swiglu_fwd) X(swiglu_bwd) X(gelu_fwd) X(gelu_bwd) X(gate_fwd) X(gate_bwd)                                        \
    X(xent) X(hits) X(xent_part) X(xent_join) X(sum)                                                                   \
    X(update) X(rows_update) X(ortho_unit) X(ortho_poly) X(ortho_step) X(halves) X(fold) X(normal)                       \
    X(conv_fwd) X(conv_bwd) X(gates_fwd) X(gates_bwd) X(delta_fwd) X(delta_bwd) X(gated_norm_fwd) X(gated_norm_bwd)     \
    X(route_fwd) X(route_bwd) X(expert_gemm) X(expert_act_fwd) X(expert_act_bwd) X(combine) X(combine_gate_bwd) X(balance)  \
    X(ssm_in_fwd) X(ssm_in_bwd) X(ssm_out_fwd) X(ssm_out_bwd)                                                          \
    X(halt_fwd) X(halt_stop) X(halt_bwd)

/* What a GEMM does with its result before it stores it. A set supports BIAS and NONE always; for the others ask ops.gemm_supports, which
 * says whether the set fuses this one here and is faster so. Unsupported: the caller runs the GEMM and the other op apart. */
enum epilogue_kind {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,              /* c = a b + bias */
    EPILOGUE_ADD,               /* c = a b + add: the residual add; ACCUM_STORE alone */
    EPILOGUE_SWIGLU_FWD,        /* c = gu = a b, and m = swiglu_fwd(gu).   b: up's weight [2f, d], trans */
    EPILOGUE_SWIGLU_BWD,        /* dm = a b is not stored: gu, dm -> dgu, m as swiglu_bwd.   b: down's weight [d, f]; c is NULL */
    EPILOGUE_ROPE               /* c = qkv = a b, heads of q and k rotated in place as by rope_fwd.   b: qkv's weight, trans */
};
struct epilogue_swiglu {
    const void *gu;             /* BWD: [m, 2f] dt, of forward */
    void *dgu;                  /* BWD: [m, 2f] dt =; may be gu */
    void *act;                  /* [m, f] dt =: swiglu of gu */
};
/* RoPE of whole heads: pair (i, i + hd / 2) of a row at position p is rotated by the angle whose cos and sin are in the tables at [p, i]. */
struct rotation {
    const int32_t *positions;   /* [rows] */
    const void *cos, *sin;      /* [positions, hd / 2] A */
};
struct epilogue_rope {
    struct rotation rotation;
    int64_t heads, heads_kv, hd;    /* n = (heads + 2 heads_kv) hd: q, k, v; all of q and k rotates */
};
struct epilogue {
    enum epilogue_kind kind;
    const void *bias;               /* BIAS: [n] dt */
    const void *add;                /* ADD: [m, n] cdt, not c */
    struct epilogue_swiglu swiglu;
    struct epilogue_rope rope;
};

/* c = op(a) op(b), or c +=, and an epilogue.  op(a) is [m, k], op(b) is [k, n], c is [m, n] with row stride n (contiguous).
 * Memory: a is [m, k] row-major, or [k, m] with a.trans; b is [k, n], or [n, k] with b.trans. So for a linear layer with W [out, in]:
 *   y  = x W^T       a = x  [N, in],  b = W [out, in] trans        forward
 *   dx = dy W        a = dy [N, out], b = W [out, in]              dgrad
 *   dW += dy^T x     a = dy [N, out] trans, b = x [N, in], c in A, ACCUM_ADD      wgrad
 * Sums are formed in A whatever the operands' dtype is, and rounded once. (On a GPU the library may round a BF16 result before it adds the bias.) */
struct gemm_args {
    struct operand a, b;    /* of one dtype, dt; no scales in any set yet */
    void *c;                /* cdt */
    struct epilogue epilogue;
    int64_t m, n, k;
    enum accum accum;       /* ACCUM_ADD: only with cdt == A, and NONE or BIAS */
    dtype cdt;              /* dt or A */
};

static inline dtype gemm_dt(const struct gemm_args *g) { return operands_dt(g->a, g->b); }
/* The bias or the addend of a GEMM; NULL: it has none. */
static inline const void *gemm_bias(const struct gemm_args *g) { return g->epilogue.kind == EPILOGUE_BIAS ? g->epilogue.bias : NULL; }
static inline const void *gemm_addend(const struct gemm_args *g) { return g->epilogue.kind == EPILOGUE_ADD ? g->epilogue.add : NULL; }

/* db[n] += sum over rows of dy. */
struct bias_bwd_args {
    const void *dy;         /* [rows, n] dt */
    void *db;               /* [n] A, += */
    int64_t rows, n;
    dtype dt;
};

/* x[t] = table[token[t]] (+ pos_table[position[t]]). Token ids were checked by the loader; an id outside [0, ids) that is not
 * TOKEN_NONE aborts on the CPU. A table of some ids alone (the others are on other ranks) reads as zeros for the others. */
struct embed_fwd_args {
    const int32_t *tokens;      /* [rows] */
    const int32_t *positions;   /* [rows]; read only with pos_table */
    const void *table;          /* [vocab, d] dt: of the ids from `first` on */
    const void *pos_table;      /* [pos_count, d] dt; NULL: none */
    void *x;                    /* [rows, d] dt */
    int64_t rows, d, vocab, pos_count;
    int64_t first, ids;         /* ids 0: the table is whole */
    dtype dt;
};
/* dtable[token[t]] += dx[t] and dpos[position[t]] += dx[t], summed in token order t = 0, 1, ... : deterministic. */
struct embed_bwd_args {
    const int32_t *tokens, *positions;
    const void *dx;             /* [rows, d] dt */
    void *dtable;               /* [vocab, d] A, += */
    void *dpos;                 /* [pos_count, d] A, +=; NULL: none */
    int64_t rows, d, vocab, pos_count;
    int64_t first, ids;         /* as forward */
    dtype dt;
};

/* Residual add and RMSNorm in one pass (Zhang & Sennrich, arXiv:1910.07467).
 *   s = x + branch;  rstd = 1/sqrt(mean(s^2) + eps);  y = (s rstd) (w + shift)
 * In BF16, s is rounded to bf16 once, and the norm reads the rounded value, so that backward sees the same s. shift: 0, or 1 where the
 * weight is stored around 0 (Gemma, Qwen3-Next); w + shift is formed in A and y rounded once. */
struct rmsnorm_fwd_args {
    const void *x;          /* [rows, d] dt, x_stride */
    const void *branch;     /* [rows, d] dt; NULL: s = x */
    const void *w;          /* [d] dt */
    void *sum;              /* [rows, d] dt = s; may alias x or branch; NULL only when branch is NULL */
    void *y;                /* [rows, d] dt, y_stride; no alias */
    void *rstd;             /* [rows] A; NULL: not saved (inference) */
    int64_t rows, d;
    int64_t x_stride, y_stride; /* elements from row to row; 0: d */
    double eps, shift;
    dtype dt;
};
/* g = (w + shift) dy; xh = s rstd; dx = rstd (g - xh mean(g xh)) + dres;  dw += sum over rows of dy xh.
 * dres is the gradient that reaches s along the residual stream (Pre-LN block), added in the same pass. */
struct rmsnorm_bwd_args {
    const void *dy;         /* [rows, d] dt, dy_stride */
    const void *s;          /* [rows, d] dt, s_stride: the saved sum (or x) */
    const void *w;          /* [d] dt */
    const void *rstd;       /* [rows] A */
    const void *dres;       /* [rows, d] dt; NULL: nothing to add */
    void *dx;               /* [rows, d] dt =, dx_stride; may alias dy or dres (whose stride is d) where it has their stride */
    void *dw;               /* [d] A, += */
    int64_t rows, d, dy_stride, s_stride, dx_stride;    /* strides: 0: d */
    double shift;
    dtype dt;
};

/* Residual add and LayerNorm (Ba et al., arXiv:1607.06450): y = (s - mean) rstd w + b. */
struct layernorm_fwd_args {
    const void *x, *branch, *w, *b;     /* as rmsnorm; b [d] dt */
    void *sum, *y;
    void *mean, *rstd;                  /* [rows] A; NULL: not saved */
    int64_t rows, d;
    double eps;
    dtype dt;
};
struct layernorm_bwd_args {
    const void *dy, *s, *w, *mean, *rstd, *dres;
    void *dx, *dw, *db;                 /* dw, db [d] A, += */
    int64_t rows, d;
    dtype dt;
};

/* QK-norm (optional) and rotary embedding of the q and k heads, in one pass over the fused projection.
 *   in  row: [q: heads x hd | k: heads_kv x hd | v: heads_kv x hd], row stride in_stride; v is not touched
 *   out row: [q: heads x hd | k: heads_kv x hd], row stride out_stride; out may be `in` itself when there is no norm
 * QK-norm: RMSNorm over hd with one weight for all q heads and one for all k heads (Qwen3), + shift as in rmsnorm. Then the first 2*half dims of each head
 * are rotated: pair (i, i+half) by the angle whose cos and sin stand in the tables at [position, i]  (half layout, Llama/HF);
 * dims from 2*half to hd pass through. half == 0: no rotation (GPT-2). */
struct rope_fwd_args {
    const void *in;             /* dt */
    void *out;                  /* dt */
    int64_t in_stride, out_stride;
    const int32_t *positions;   /* [rows] */
    const void *cos, *sin;      /* [pos_count, half] A */
    const void *qw, *kw;        /* [hd] dt, both or neither; NULL: no QK-norm */
    void *rstd;                 /* [rows, heads + heads_kv] A, with QK-norm; NULL: not saved */
    int64_t rows, heads, heads_kv, hd, half, pos_count;
    double eps, shift;
    dtype dt;
};
/* From dout (gradients of the rotated heads) to din (gradients of the projection's q and k parts; v's part is not touched).
 * din may alias dout. dqw, dkw += over tokens and heads. */
struct rope_bwd_args {
    const void *dout;
    void *din;
    int64_t dout_stride, din_stride;
    const void *in;             /* the forward's in: read only with QK-norm */
    int64_t in_stride;
    const int32_t *positions;
    const void *cos, *sin, *qw, *kw, *rstd;
    void *dqw, *dkw;            /* [hd] A, +=; NULL without QK-norm */
    int64_t rows, heads, heads_kv, hd, half, pos_count;
    double shift;
    dtype dt;
};

/* Causal attention over packed documents, grouped query heads, optional sliding window (models.md: scores s<q,k>, softmax, PV); heads of
 * q and k are hd wide, those of v and o hd_v.
 * Row t of document d sees row u iff u is in d, u <= t and (window == 0 or t - u < window). Query head h reads kv head
 * h / (heads/heads_kv). Online softmax in blocks: no [T, T] matrix exists.  (Dao, arXiv:2307.08691) */
struct attn_fwd_args {
    const void *q, *k, *v;              /* dt, rows of heads x hd (v: hd_v); row strides below */
    void *o;                            /* [rows, heads*hd_v] dt contiguous */
    void *lse;                          /* heads*rows of A: log sum exp of the scaled scores, [heads, rows] on the CPU, on a GPU in
                                           the order its backward reads; NULL: not saved */
    int64_t q_stride, k_stride, v_stride;
    const int32_t *cu_seqlens;          /* [docs+1], cu[0] = 0, cu[docs] = rows, non-decreasing */
    int64_t docs, rows, heads, heads_kv, hd, hd_v, window;
    int64_t len_max;                    /* no document is longer; docs * len_max == rows says that all have this length */
    double scale;
    void *scratch;                      /* attn_scratch(ATTN_FWD) bytes */
    dtype dt;
};
struct attn_bwd_args {
    const void *q, *k, *v, *o, *do_, *lse;  /* o, do_: [rows, heads*hd_v] contiguous */
    void *dq, *dk, *dv;                     /* dt, =; strides below */
    const struct rotation *rope;            /* epilogue: dq and dk are rotated back, in A, as by rope_bwd; only where ops.attn_bwd_supports; NULL: none */
    int64_t q_stride, k_stride, v_stride, dq_stride, dk_stride, dv_stride;
    const int32_t *cu_seqlens;
    int64_t docs, rows, heads, heads_kv, hd, hd_v, window, len_max;
    double scale;
    void *scratch;                          /* attn_scratch(ATTN_BWD) bytes of a shape that this call does not exceed */
    size_t scratch_bytes;                   /* GPU: how many those are; what takes more for a smaller call goes the way that takes less */
    dtype dt;
};
/* What attention needs beside its operands depends on the set: the CPU keeps delta = <do, o> [heads, rows] for backward, cuDNN its
 * workspace. `docs` is the largest number of documents. Pure: the planner asks it for machines that it does not run on. */
enum attn_pass { ATTN_FWD, ATTN_BWD };
enum { HEAD_CUDA_MAX = 576 };   /* elements of a head on a GPU: the compressed cache of DeepSeek's latent attention has 512 + 64 */
struct attn_shape {
    int64_t rows, docs, len_max, heads, heads_kv, hd, hd_v, window;
    dtype dt;
};

/* One new token per sequence against its cache (generation): q [batch, heads, hd]; caches [batch, capacity] rows of heads_kv x hd (v: hd_v)
 * with `lengths` valid rows each, the newest token included; the window counts back from it. Values may be a part of the keys' rows
 * (multi-head latent attention). */
struct attn_decode_args {
    const void *q, *k_cache, *v_cache;
    void *o;                                /* [batch, heads*hd_v] contiguous */
    int64_t k_stride, v_stride;             /* elements from cache row to cache row */
    const int32_t *lengths;                 /* [batch] */
    int64_t batch, capacity, heads, heads_kv, hd, hd_v, window;
    double scale;
    dtype dt;
};

/* m = silu(gate) up with gu = [gate: f | up: f] per row (Shazeer, arXiv:2002.05202). */
struct swiglu_fwd_args {
    const void *gu;         /* [rows, 2f] dt */
    void *m;                /* [rows, f] dt */
    int64_t rows, f;
    dtype dt;
};
struct swiglu_bwd_args {
    const void *dm, *gu;
    void *dgu;              /* [rows, 2f] dt =; may alias gu */
    void *m;                /* [rows, f] dt =: forward's result once more, the same bits; may be dm's memory; NULL: not wanted */
    int64_t rows, f;
    dtype dt;
};
/* GELU, tanh form ("gelu_new"): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
struct gelu_fwd_args {
    const void *x;
    void *y;                /* may not alias x: backward reads x */
    int64_t count;
    dtype dt;
};
struct gelu_bwd_args {
    const void *dy, *x;
    void *dx;               /* =; may alias dy or x */
    void *y;                /* =: forward's result once more, the same bits; may alias dy where dx does not; NULL: not wanted */
    int64_t count;
    dtype dt;
};

/* y = x sigmoid(z): a gate beside what it lets through, such as attention's output (Qwen3-Next; arXiv:2505.06708). */
struct gate_fwd_args {
    const void *x;          /* [rows, d] dt contiguous */
    const void *z;          /* [rows, d] dt, rows z_stride apart */
    void *y;                /* [rows, d] dt contiguous =; may alias x in forward-only use */
    int64_t rows, d, z_stride;
    dtype dt;
};
struct gate_bwd_args {
    const void *dy, *x, *z;
    void *dx;               /* [rows, d] dt =; may alias dy */
    void *dz;               /* [rows, d] dt =, rows dz_stride apart; may alias z */
    void *y;                /* [rows, d] dt =: forward's result once more, the same bits; may be x's memory; NULL: not wanted */
    int64_t rows, d, z_stride, dz_stride;
    dtype dt;
};

/* Cross-entropy of a chunk of rows, with the gradient in the same pass. target == IGNORE: no loss, zero gradient.
 *   lse = logsumexp(z); loss[t] = lse - z[target] + z_loss lse^2;  dz = grad_scale ((1 + 2 z_loss lse) softmax(z) - onehot(target))
 * Columns [vocab_used, vocab) are padding: they take no part, their dz is 0. */
enum { TARGET_IGNORE = -100 };
struct xent_args {
    const void *logits;     /* [rows, vocab] ldt */
    void *dlogits;          /* [rows, vocab] dt =; may alias logits when dt == ldt; NULL: loss only */
    const int32_t *targets; /* [rows] */
    void *loss;             /* [rows] A =; 0 for ignored rows */
    int64_t rows, vocab, vocab_used;
    const double *grad_scale;   /* one value, in the set's memory; read only with dlogits */
    double z_loss;
    dtype dt, ldt;          /* ldt: A or dt (the set's logits_dt) */
};

/* hits[t] = 1 where the target's logit is above all others, else 0, also where it only equals another; 0 for ignored rows. */
struct hits_args {
    const void *logits;     /* [rows, vocab] ldt; columns from vocab_used on take no part */
    const int32_t *targets; /* [rows] */
    void *hits;             /* [rows] A = */
    int64_t rows, vocab, vocab_used;
    dtype dt, ldt;          /* as xent */
};

/* *out += sum over the array, in f64, in a fixed order. */
struct sum_args {
    const void *x;          /* [count] dt (F32 or F64) */
    double *out;            /* in the set's memory */
    int64_t count;
    dtype dt;
};

/* What goes into a step and comes out of it beside the batch: one block in the set's memory, so that a captured step needs no other
 * arguments. The trainer writes the first part before the step and reads the second after it. */
struct step_scalars {
    double grad_scale;                              /* 1 / targets that count in the whole step, times the losses of each (model_segments) */
    double mtp_scale;                               /* of multi-token prediction: grad_scale weight / depth */
    double halt_scale;                              /* of heads that halt: 1 / documents in the whole step, times the losses of each */
    double lr, correction1, correction2;            /* of the optimizer: c1 = 1 - b1^t, c2 = 1 - b2^t */
    double loss_sum;                                /* zeroed by the trainer, added to by the head */
    double aux_sum;                                 /* likewise, added to by routers: what their tokens cost */
    double mtp_loss_sum;                            /* likewise, of multi-token prediction */
    double halt_sum;                                /* likewise, of heads that halt */
    double hits;                                    /* likewise, of an evaluation: targets that were the likeliest token */
    double grad_squares;                            /* sum of g^2 of the whole model, for UPDATE_RULE */
    double grad_norm, clip_factor;                  /* out: of `update` */
    double load_max, load_min;                      /* out: of `balance` */
    uint64_t step;                                  /* counts from 0: seeds stochastic rounding */
};

/* The optimizer's step over flat arrays: norm of all gradients, clip factor, AdamW or Lion; on a GPU one launch.
 *   norm = sqrt(sum of g^2), in f64, of each chunk, then of the chunks in their order;   factor = clip > 0 ? min(1, clip / (norm + 1e-6)) : 1;   g' = g factor
 *   AdamW (Loshchilov & Hutter, arXiv:1711.05101):  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
 *     p = p (1 - lr wd) - lr (m / c1) / (sqrt(v / c2) + eps)
 *   Lion (Chen et al., arXiv:2302.06675):  u = sign(b1 m + (1-b1) g'), sign(0) = 0;  p = p (1 - lr wd) - lr u;  m = b2 m + (1-b2) g'
 *   then w = bf16(p), rounded as ops/rounding.h says, and g = 0 where UPDATE_ZERO says so.
 * With `low` there is no p: w and low are its halves (ops/rounding.h), joined before the rule and split behind it. With neither, w is all of
 * the weights: read before the rule, and rounded stochastically behind it.
 *   UPDATE_MOMENTUM, with either rule: m = momentum m + g', and g = g' + momentum m (Nesterov), which Muon makes a step of: ops_muon.h.
 * A norm that is not finite changes no array; grad_norm says so and clip_factor is 0.
 * Moments in BF16 and in 8 bits (ops/quant.h) are rounded stochastically (ops/rounding.h) after p has been formed from their exact values:
 * the random bits depend on seed, step, the row's key and the element's index in the whole row, so they are the same for every set, every
 * cut into chunks, and every way in which ranks share the row.
 * Where ranks share the gradients it comes in two halves: UPDATE_SQUARES, whose sums are added up over the ranks, in chunk order too, and
 * UPDATE_RULE with that sum. On the CPU the bits are those of UPDATE_WHOLE; a GPU's fused launch adds up in another order. Where the state
 * passes through the device in parts, UPDATE_NORM over all chunks, then UPDATE_RULE over some at a time: the bits of UPDATE_WHOLE. */
enum { UPDATE_CHUNK = 16384 };  /* elements, at most */
enum update_flag {
    UPDATE_DECAY = 1,           /* weight decay applies */
    UPDATE_ZERO = 2,            /* leave zeros in g: a gradient that is formed by += alone */
    UPDATE_ROWS = 4,            /* rows of flags / UPDATE_WIDTH elements, a multiple of 16: one whose gradient is all zeros was not
                                   touched, and keeps weights and moments; the others move at lr row_rate */
    UPDATE_COPY = 8,            /* another rank answers for these elements: UPDATE_SQUARES writes a 0 */
    UPDATE_MOMENTUM = 16,       /* momentum alone: p, w and v are left alone */
    UPDATE_WIDTH = 256,
};
struct update_chunk {
    int64_t begin;              /* elements [begin, begin + count); begin: a multiple of 16, with moments in 8 bits of QUANT_BLOCK; then a
                                   chunk ends with a block or with its array */
    int32_t count;
    uint32_t flags;
    int64_t no_v;               /* elements before it that have no v: element i has v[i - no_v]; likewise a multiple */
    uint64_t key;               /* of the row that it is a piece of. Its element k is element first + k of the whole row, or, of a */
    int64_t first, stride;      /* slice whose rows have `width` > 0 elements, first + (into + k) / width stride + (into + k) % width; */
    int32_t width, into;        /* all multiples of 4 where moments or weights are rounded */
};
/* The part of a chunk from its element `at` on. */
static inline struct update_chunk update_part(const struct update_chunk *c, int64_t at, int32_t count)
{
    struct update_chunk part = *c;
    part.begin += at;
    part.count = count;
    if (c->width > 0)
        part.into += (int32_t)at;
    else
        part.first += at;
    return part;
}
enum update_rule { UPDATE_ADAMW, UPDATE_LION };
enum update_half {
    UPDATE_WHOLE,
    UPDATE_SQUARES,             /* squares = sum of g^2 of each chunk, and nothing else */
    UPDATE_RULE,                /* all but the norm, which comes from scalars.grad_squares */
    UPDATE_NORM,                /* the norm alone, into scalars.grad_squares: reads g, and no other array */
};
struct update_args {
    enum update_rule rule;
    enum update_half half;
    float *p, *g;                       /* weights, gradients; p NULL: `low`, or w alone */
    void *m, *v;                        /* sdt; Lion has no v */
    float *m_scale, *v_scale;           /* U8: element i of an array is in the block of scale [i / QUANT_BLOCK]; no UPDATE_ROWS then */
    bf16 *w;                            /* p in bf16; NULL in F32 training */
    uint16_t *low;                      /* the lower halves; NULL: p holds all of it, or, without p, w does */
    const struct update_chunk *chunks;  /* [chunk_count], in the set's memory, sorted and disjoint; what none covers is left alone */
    int64_t chunk_count;
    double *squares;                    /* [chunk_count], in the set's memory: UPDATE_SQUARES alone */
    double beta1, beta2, eps, weight_decay, clip;
    double row_rate;                    /* of UPDATE_ROWS; 0: no chunk has that flag */
    double rate;                        /* on lr, of chunks without UPDATE_ROWS; 0: 1 */
    double momentum;                    /* of UPDATE_MOMENTUM */
    struct step_scalars *scalars;       /* in the set's memory: reads lr, correction1, correction2, step; writes grad_norm, clip_factor */
    uint64_t seed;                      /* of stochastic rounding */
    dtype sdt;                          /* F32, BF16 or U8 */
};

/* The rule over rows of one table, after UPDATE_RULE, which has left the clip factor: sums[k] is the gradient of its row rows[k]. As with
 * UPDATE_ROWS, a row whose gradient is all zeros keeps weights and moments; the others move at lr row_rate, without decay. sums = 0. */
struct rows_update_args {
    struct update_args of;      /* rule, arrays but g, constants, scalars; sdt F32 or BF16 */
    const int32_t *rows;        /* [slots], ascending, then TOKEN_NONE: rows_unique */
    float *sums;                /* [slots, width] */
    int64_t slots, width;       /* a multiple of 16 */
    int64_t from, to;           /* rows that are here: row r is elements [begin + (r - from) width, ... + width) of the arrays, of v no_v */
    int64_t begin, no_v;        /* in front; multiples of 16 */
    uint64_t key;               /* where something is rounded, as update_chunk has it: of the table; element k of row r is element */
    int64_t first, stride;      /* first + r stride + k of the whole; multiples of 4 */
};

/* A sum that is formed in parts: FOLD_KEEP: kept = x, x = 0;   FOLD_ADD: x = x + kept. */
enum fold_what { FOLD_KEEP, FOLD_ADD };
struct fold_args {
    enum fold_what what;
    void *x, *kept;         /* [count] dt (F32 or F64); no alias */
    int64_t count;
    dtype dt;
};

/* x[i] = std N(0, 1), drawn at (seed, RNG_INIT, key, first + i / width * stride + i % width): base/rng.h; so a slice of a matrix gets what
 * the whole has there. Devices agree up to the last bit of logarithm and cosine in f64. BF16: x are the upper halves of such numbers in F32
 * (ops/rounding.h). */
struct normal_args {
    void *x;                /* [count] dt (F32, F64 or BF16) = */
    uint16_t *low;          /* [count] =; BF16 alone; NULL: their lower halves are lost */
    int64_t count;
    int64_t first, width, stride; /* 0, 0, 0: the whole */
    double std;
    uint64_t seed, key;
    dtype dt;
};

/* An array in F32 and its halves (ops/rounding.h): SPLIT forms the halves, JOIN the array. */
enum halves_way { HALVES_SPLIT, HALVES_JOIN };
struct halves_args {
    enum halves_way way;
    float *x;               /* [count] */
    bf16 *upper;            /* [count] */
    uint16_t *low;          /* [count]; NULL: SPLIT loses them, JOIN takes them for 0 */
    int64_t count;
};

#define X(op)                                                                                                          \
    struct op##_args;                                                                                                  \
    typedef status op##_fn(const struct op##_args *a, dev_stream s);
OPS(X)
#undef X

struct ops {
    const char *name;       /* "oracle", "cpu-avx512-amx", "cuda-sm90" */
#define X(op) op##_fn *op;
    OPS(X)
#undef X
    /* Does the set fuse this epilogue into this call, and is it faster so? gemm: true for NONE and BIAS; EPILOGUE_ADD is answered without shapes. */
    bool (*gemm_supports)(const struct gemm_args *a, dev_stream s);
    bool (*attn_bwd_supports)(const struct attn_bwd_args *a, dev_stream s);        /* attn_bwd with `rope`; NULL: never */
    /* Traits. */
    size_t (*attn_scratch)(const struct attn_shape *shape, enum attn_pass pass);
    size_t (*delta_bytes)(const struct delta_shape *shape, enum delta_memory what);
    size_t (*moe_scratch)(const struct moe_shape *shape, enum moe_memory what);
    int64_t expert_align;                   /* sorted rows of an expert begin at multiples of it */
    size_t (*workspace)(int64_t tokens);    /* bytes that all ops of a stream share, for micro-batches of `tokens` tokens */
    dtype (*logits_dt)(dtype dt);           /* the type in which xent likes its logits: A or dt */
    int64_t logits_max;                     /* elements of a chunk of logits: each chunk costs a pass over the head's gradient */
};

void ops_oracle(struct ops *o);
/* The fast set for this processor. STATUS_DEVICE below x86-64-v3. `isa_max`: NULL for the best, or "avx2", "avx512", "amx" to cap
 * it (tests, comparisons); an ISA that the machine lacks is STATUS_CONFIG. */
status ops_cpu(struct ops *o, const char *isa_max) WARN_UNUSED;
status ops_check(const struct ops *o) WARN_UNUSED;    /* names every NULL slot */
#endif
