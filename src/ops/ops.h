/* The op table: one argument struct per op, and one row per op in OPS. A model computes only with these ops.
 *
 * Sets. ops_oracle() is complete and simple: every sum is in f64, for F64, F32 and BF16. It defines the results.
 * ops_cpu() starts as the oracle and overrides it with the SIMD kernels of this machine; it supports F32 and BF16.
 * ops_cuda() (ops/cuda/ops_cuda.h) supports F32 and BF16 on a GPU. A NULL slot is an error at start (ops_check).
 *
 * Conventions
 *   dt      type of activations and weights in this call. A = dtype_acc(dt) (F64 for F64, else F32) is the type of
 *           statistics, parameter gradients and tables.
 *   [n, d]  a row-major shape; `_stride` is in elements from row to row.
 *   =, +=   activation gradients are stored, parameter gradients are accumulated.
 *   N       tokens (rows) of the micro-batch. Documents are consecutive; cu_seqlens holds their boundaries.
 * All pointers are to memory of the set's device, including pointers to scalars (loss_sum, step_scalars): a captured
 * step reads their current values at each replay. An op must not allocate inside a step. Temporary memory is an
 * argument (`scratch`, sized by the set's *_scratch function), is on the stack, or is the set's workspace, which the
 * caller allocates once (ops.workspace). Results do not depend on the number of threads: see base/parallel.h. */
#ifndef INGOT_OPS_OPS_H
#define INGOT_OPS_OPS_H
#include "base/status.h"
#include "ops/accum.h"
#include "ops/ops_gdn.h"
#include "ops/ops_generate.h"
#include "ops/ops_halt.h"
#include "ops/ops_moe.h"
#include "ops/ops_mla.h"
#include "ops/ops_muon.h"
#include "ops/ops_ssm.h"
#include "ops/ops_tables.h"
#include "ops/ops_tokens.h"
#include "ops/ops_vocab.h"
#include "ops/ops_fp8.h"
#include "tensor/operand.h"
#include <stdbool.h>

struct stream;                      /* dev/dev.h */
typedef struct stream *dev_stream;  /* stream of the op; NULL on the CPU: the call returns when the op is complete */

#define OPS(X)                                                                                                         \
    X(gemm) X(bias_bwd) X(quantize) X(fp8_scales) X(fp8_bound) X(quantize_blocks)                                      \
    X(embed_fwd) X(embed_bwd) X(rows_unique) X(shift_tokens) X(ngram) X(ngram_gate_fwd) X(ngram_gate_bwd)              \
    X(rmsnorm_fwd) X(rmsnorm_bwd) X(layernorm_fwd) X(layernorm_bwd)                                                    \
    X(rope_fwd) X(rope_bwd)                                                                                            \
    X(attn_fwd) X(attn_bwd) X(attn_decode) X(mla_rope_fwd) X(mla_rope_bwd) X(kv_cache_append) X(per_head_gemm)         \
    X(swiglu_fwd) X(swiglu_bwd) X(gelu_fwd) X(gelu_bwd) X(gate_fwd) X(gate_bwd)                                        \
    X(softcap) X(xent) X(top1_correct) X(vocab_xent_partial) X(vocab_xent_finish) X(sum)                               \
    X(update) X(rows_update) X(muon_normalize) X(newton_schulz_poly) X(muon_apply) X(split_master)                     \
    X(accumulate_tree) X(normal)                                                                                       \
    X(conv_fwd) X(conv_bwd) X(gates_fwd) X(gates_bwd) X(delta_fwd) X(delta_bwd) X(gated_norm_fwd) X(gated_norm_bwd)    \
    X(route_fwd) X(route_bwd) X(expert_gemm) X(expert_codes) X(expert_act_fwd) X(expert_act_bwd)                       \
    X(combine) X(combine_gate_bwd) X(dispatch_sort) X(balance)                                                         \
    X(ssm_in_fwd) X(ssm_in_bwd) X(ssm_out_fwd) X(ssm_out_bwd)                                                          \
    X(halt_fwd) X(halt_stop) X(halt_bwd)

/* What a GEMM does with its result before it stores it. Every set supports NONE and BIAS. For the other kinds ask
 * ops.gemm_supports: it returns true if the set fuses this epilogue into this call and fusion is faster. If not, the
 * caller runs the GEMM and the other op separately. */
enum epilogue_kind {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,              /* c = a b + bias */
    EPILOGUE_ADD,               /* c = a b + add: the residual add; ACCUM_STORE only */
    EPILOGUE_SWIGLU_FWD,        /* c = gu = a b, and act = swiglu(gu). b: weight of `up` [2f, d], trans */
    EPILOGUE_SWIGLU_BWD,        /* dact = a b is not stored; computes dgu and act from gu and dact, as swiglu_bwd. b:
                                   weight of `down` [d, f]; c NULL */
    EPILOGUE_ROPE               /* c = qkv = a b, with the heads of q and k rotated as in rope_fwd. b: weight of qkv,
                                   trans */
};
struct epilogue_swiglu {
    const void *gu;             /* BWD: [m, 2f] dt, from forward */
    void *dgu;                  /* BWD: [m, 2f] dt =; may be gu */
    void *act;                  /* [m, f] dt =: swiglu(gu) */
    struct quantized q;         /* FWD with FP8 operands: the FP8 form of act, codes alone */
};
/* RoPE over whole heads: pair (i, i + hd / 2) of a row at position p is rotated; the tables hold cos and sin of its
 * angle at [p, i]. */
struct rotation {
    const int32_t *positions;   /* [rows] */
    const void *cos, *sin;      /* [positions, hd / 2] A */
};
struct epilogue_rope {
    struct rotation rotation;
    int64_t heads, heads_kv, head_dim; /* n = (heads + 2 heads_kv) hd: q, k, v; all of q and k is rotated */
};
struct epilogue {
    enum epilogue_kind kind;
    const void *bias;               /* BIAS: [n] dt */
    const void *add;                /* ADD: [m, n] cdt; must not be c */
    struct epilogue_swiglu swiglu;
    struct epilogue_rope rope;
};

/* c = op(a) op(b), or c +=, and an epilogue. op(a) is [m, k], op(b) is [k, n], c is [m, n] with row stride n
 * (contiguous). Memory: a is [m, k] row-major, or [k, m] with a.trans; b is [k, n], or [n, k] with b.trans. A linear
 * layer with W [out, in] uses:
 *   y  = x W^T       a = x  [N, in],  b = W [out, in] trans        forward
 *   dx = dy W        a = dy [N, out], b = W [out, in]              dgrad
 *   dW += dy^T x     a = dy [N, out] trans, b = x [N, in], c in A, ACCUM_ADD      wgrad
 * Sums are in A for every operand dtype, and are rounded once. (On a GPU the library may round a BF16 result before
 * it adds the bias.) */
struct gemm_args {
    struct operand a, b;    /* both plain with dtype dt, or both codes: see below */
    void *c;                /* cdt */
    struct epilogue epilogue;
    int64_t m, n, k;
    enum accum accum;       /* ACCUM_ADD: only with cdt == A, and epilogue NONE or BIAS */
    dtype cdt;              /* dt or A; with codes: BF16 or F32 */
    bool fast_accum;        /* FP8: the set may keep sums in the 14 bits of Hopper's tensor core */
};
/* FP8 with SCALES_TENSOR (a.dt, b.dt: F8_E4M3 or F8_E5M2, not both E5M2): c = (a_codes b_codes) a.scale b.scale. a is
 * not transposed and b is, so that both operands are contiguous along k. k and n are multiples of 16. On a GPU m should
 * be one too, or the GEMM is slow. Epilogues: NONE, BIAS, ADD, and SWIGLU_FWD where gemm_supports says so.
 *
 * SCALES_BLOCKS (where ops.reads_blocks says so): both operands are contiguous along k and have the same format. */

/* True if the operands are codes; false if they are plain. */
static inline bool gemm_fp8(const struct gemm_args *g)
{
    switch (g->a.scales) {
    case SCALES_NONE: break;
    case SCALES_TENSOR:
    case SCALES_BLOCKS:
        CHECK(g->b.scales == g->a.scales, "operands of a GEMM with different scales");
        return true;
    }
    return false;
}
static inline dtype gemm_dt(const struct gemm_args *g) { return operands_dt(g->a, g->b); }
/* The dtype of a bias. */
static inline dtype gemm_bias_dt(const struct gemm_args *g) { return gemm_fp8(g) ? DTYPE_BF16 : g->a.dt; }
/* The bias and the addend of a GEMM; NULL: none. */
static inline const void *gemm_bias(const struct gemm_args *g)
{
    return g->epilogue.kind == EPILOGUE_BIAS ? g->epilogue.bias : NULL;
}
static inline const void *gemm_addend(const struct gemm_args *g)
{
    return g->epilogue.kind == EPILOGUE_ADD ? g->epilogue.add : NULL;
}

/* db[n] += sum over rows of dy. */
struct bias_bwd_args {
    const void *dy;         /* [rows, n] dt */
    void *db;               /* [n] A, += */
    int64_t rows, n;
    dtype dt;
};

/* x[t] = table[token[t]] (+ pos_table[position[t]]). The loader has checked the token ids; an id outside [0, ids)
 * other than TOKEN_NONE aborts on the CPU. If the table is a vocabulary shard, x is zero for the ids of other ranks. */
struct embed_fwd_args {
    const int32_t *tokens;      /* [rows] */
    const int32_t *positions;   /* [rows]; read only with pos_table */
    const void *table;          /* [vocab, d] dt: rows of the ids `first`, first + 1, ... */
    const void *pos_table;      /* [pos_count, d] dt; NULL: none */
    void *x;                    /* [rows, d] dt */
    int64_t rows, d, vocab, pos_count;
    int64_t first, ids;         /* ids: number of ids of the full table; 0: the table is not sharded */
    dtype dt;
};
/* dtable[token[t]] += dx[t] and dpos[position[t]] += dx[t], summed in token order t = 0, 1, ...: deterministic. */
struct embed_bwd_args {
    const int32_t *tokens, *positions;
    const void *dx;             /* [rows, d] dt */
    void *dtable;               /* [vocab, d] A, += */
    void *dpos;                 /* [pos_count, d] A, +=; NULL: none */
    int64_t rows, d, vocab, pos_count;
    int64_t first, ids;         /* as in forward */
    dtype dt;
};

/* Residual add and RMSNorm in one pass (Zhang & Sennrich, arXiv:1910.07467).
 *   s = x + branch;  rstd = 1/sqrt(mean(s^2) + eps);  y = (s rstd) (w + shift)
 * In BF16, s is rounded to bf16 once and the norm reads the rounded value; backward reads the same s. shift is 0, or
 * 1 if the weight is stored around 0 (Gemma, Qwen3-Next); w + shift is computed in A, and y is rounded once. */
struct rmsnorm_fwd_args {
    const void *x;          /* [rows, d] dt, x_stride */
    const void *branch;     /* [rows, d] dt; NULL: s = x */
    const void *w;          /* [d] dt */
    void *sum;              /* [rows, d] dt = s; may alias x or branch; NULL only when branch is NULL */
    void *y;                /* [rows, d] dt, y_stride; must not alias an input */
    void *rstd;             /* [rows] A; NULL: not saved (inference) */
    int64_t rows, d;
    int64_t x_stride, y_stride; /* elements from row to row; 0: d */
    double eps, shift;
    struct quantized q;     /* FP8 form of y (y_stride 0 or d) */
    dtype dt;
};
/* g = (w + shift) dy; xh = s rstd; dx = rstd (g - xh mean(g xh)) + dres; dw += sum over rows of dy xh. dres is the
 * gradient of s from the residual stream (Pre-LN block), added in the same pass. */
struct rmsnorm_bwd_args {
    const void *dy;         /* [rows, d] dt, dy_stride */
    const void *s;          /* [rows, d] dt, s_stride: the saved sum (or x) */
    const void *w;          /* [d] dt */
    const void *rstd;       /* [rows] A */
    const void *dres;       /* [rows, d] dt; NULL: none */
    void *dx;               /* [rows, d] dt =, dx_stride; may alias dy or dres (row stride d) if the strides are
                               equal */
    void *dw;               /* [d] A, += */
    int64_t rows, d, dy_stride, s_stride, dx_stride;    /* strides: 0 means d */
    double shift;
    struct quantized q;     /* FP8 form of dx (dx_stride 0 or d); q.only is false. With it a GPU adds the rows of dw in
                               another fixed order: dx has the same bits, dw not */
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

/* Optional QK-norm and RoPE of the q and k heads, in one pass over the fused projection.
 *   in  row: [q: heads x hd | k: heads_kv x hd | v: heads_kv x hd], row stride in_stride; v is not touched
 *   out row: [q: heads x hd | k: heads_kv x hd], row stride out_stride; out may be `in` if there is no norm
 * QK-norm: RMSNorm over hd with one weight for all q heads and one for all k heads (Qwen3), + shift as in rmsnorm.
 * Then RoPE rotates the first 2*half dims of each head: pair (i, i+half) by the angle whose cos and sin are in the
 * tables at [position, i] (half layout, Llama/HF). Dims from 2*half to hd are copied. half == 0: no rotation
 * (GPT-2). */
struct rope_fwd_args {
    const void *in;             /* dt */
    void *out;                  /* dt */
    int64_t in_stride, out_stride;
    const int32_t *positions;   /* [rows] */
    const void *cos, *sin;      /* [pos_count, half] A */
    const void *qw, *kw;        /* [hd] dt, both or none; NULL: no QK-norm */
    void *rstd;                 /* [rows, heads + heads_kv] A, with QK-norm; NULL: not saved */
    int64_t rows, heads, heads_kv, head_dim, half, pos_count;
    double eps, shift;
    dtype dt;
};
/* From dout (gradients of the rotated heads) to din (gradients of the q and k columns of the projection; the v
 * columns are not touched). din may alias dout. dqw and dkw += over tokens and heads. */
struct rope_bwd_args {
    const void *dout;
    void *din;
    int64_t dout_stride, din_stride;
    const void *in;             /* the input of forward; read only with QK-norm */
    int64_t in_stride;
    const int32_t *positions;
    const void *cos, *sin, *qw, *kw, *rstd;
    void *dqw, *dkw;            /* [hd] A, +=; NULL without QK-norm */
    int64_t rows, heads, heads_kv, head_dim, half, pos_count;
    double shift;
    dtype dt;
};

/* Causal attention over packed documents, grouped query heads, optional sliding window (docs/MODELS.md: scores
 * s<q,k>, softmax, PV). Heads of q and k have width hd, heads of v and o width hd_v. Row t of document d attends to
 * row u iff u is in d, u <= t and (window == 0 or t - u < window). Query head h reads kv head h / (heads/heads_kv).
 * Online softmax in blocks: no [T, T] matrix is stored (Dao, arXiv:2307.08691).
 *
 * Context parallelism (parallel/context.h) has queries and keys in different rows. struct attn_doc is one document's
 * keys, and the one or two contiguous ranges of its queries that this rank owns. Query row + i attends to key key + j
 * iff 0 <= j < keys, j <= i + shift, and (window == 0 or i + shift - j < window). A query without keys has o = 0 and
 * lse = -infinity. */
struct attn_queries { int32_t row, rows, shift; };
struct attn_doc { int32_t key, keys; struct attn_queries part[2]; };    /* the second part may have no rows */
/* A GPU's kernels search the list of documents, so there it is sorted: documents by key, and their parts, in that
 * order, by row. The first row is 0, and every query sees a key. Unused documents come last, with .key = keys of the
 * call and .part[1].row = rows of the call. */

struct attn_fwd_args {
    const void *q, *k, *v;              /* dt, rows of heads x hd (v: hd_v); row strides below */
    void *o;                            /* [rows, heads*hd_v] dt contiguous */
    void *lse;                          /* heads*rows of A: log-sum-exp of the scaled scores; [heads, rows] on the
                                           CPU, in the backend's own order on a GPU; NULL: not saved */
    int64_t q_stride, k_stride, v_stride;
    const int32_t *cu_seqlens;          /* [docs+1], cu[0] = 0, cu[docs] = rows, non-decreasing */
    const struct attn_doc *cp_docs;     /* [docs], replaces cu_seqlens: each query is in one part, no key is in two
                                           documents; `rows` is the number of queries. NULL: cu_seqlens applies */
    int64_t keys;                       /* with cp_docs, on a GPU: number of rows of k and v */
    bool more;                          /* with cp_docs, CPU only: o and lse already hold partial attention over other
                                           keys; the new result is merged into them */
    int64_t docs, rows, heads, heads_kv, head_dim, head_dim_v, window;
    int64_t len_max;                    /* upper bound of document lengths; if docs * len_max == rows, all lengths
                                           are equal */
    double scale;
    void *scratch;                      /* attn_scratch(ATTN_FWD) bytes */
    dtype dt;
};
struct attn_bwd_args {
    const void *q, *k, *v, *o, *do_, *lse;  /* o, do_: [rows, heads*hd_v] contiguous */
    void *dq, *dk, *dv;                     /* dt, =; strides below */
    const struct rotation *rope;            /* fuses rope_bwd: dq and dk are rotated back in A; only where
                                               ops.attn_bwd_supports says so; NULL: not fused */
    int64_t q_stride, k_stride, v_stride, dq_stride, dk_stride, dv_stride;
    const int32_t *cu_seqlens;
    const struct attn_doc *cp_docs;         /* as in attn_fwd_args. dk, dv of keys outside every document are
                                               unspecified: the CPU keeps them, a GPU may write 0. A GPU may also write
                                               0 for keys that no query attends to */
    int64_t keys;
    bool more;                              /* with cp_docs, CPU only: dq, dk, dv += */
    int64_t docs, rows, heads, heads_kv, head_dim, head_dim_v, window, len_max;
    double scale;
    void *scratch;                          /* attn_scratch(ATTN_BWD) bytes for a shape at least as large as this
                                               call's */
    size_t scratch_bytes;                   /* GPU: bytes of `scratch`. A smaller shape can need more scratch; the call
                                               then takes a path that needs less */
    dtype dt;
};
/* The shape for ops.attn_scratch. How much scratch attention needs depends on the set: the CPU stores delta = <do, o>
 * [heads, rows] for backward, cuDNN has a workspace. `docs` is the maximum number of documents. attn_scratch depends on
 * its arguments alone: the planner calls it for machines that it does not run on. */
enum attn_pass { ATTN_FWD, ATTN_BWD };
enum { HEAD_CUDA_MAX = 576 };   /* largest head on a GPU: DeepSeek's compressed latent cache has 512 + 64 */
struct attn_shape {
    int64_t rows, docs, len_max, heads, heads_kv, head_dim, head_dim_v, window;
    dtype dt;
    int64_t keys;               /* with cp_docs: number of rows of k and v; else 0 */
};

/* One new token per sequence against its cache (generation). q is [batch, heads, hd]; the caches are [batch,
 * capacity] rows of heads_kv x hd (v: hd_v). Each has `lengths` valid rows including the newest token, and the window
 * counts back from that token. Values may be a part of the key rows (multi-head latent attention). A GPU's bits depend
 * on batch and capacity (they decide how keys are divided over thread blocks), not on the other sequences. */
struct attn_decode_args {
    const void *q, *k_cache, *v_cache;
    void *o;                                /* [batch, heads*hd_v] contiguous */
    int64_t q_stride;                       /* elements from sequence to sequence; 0: heads hd */
    int64_t k_stride, v_stride;             /* elements from cache row to cache row */
    const int32_t *lengths;                 /* [batch] */
    int64_t batch, capacity, heads, heads_kv, head_dim, head_dim_v, window;
    double scale;
    dtype dt;
};

/* m = silu(gate) up with gu = [gate: f | up: f] per row (Shazeer, arXiv:2002.05202). */
struct swiglu_fwd_args {
    const void *gu;         /* [rows, 2f] dt */
    void *m;                /* [rows, f] dt */
    struct quantized q;     /* FP8 form of m */
    int64_t rows, f;
    dtype dt;
};
struct swiglu_bwd_args {
    const void *dm, *gu;
    void *dgu;              /* [rows, 2f] dt =; may alias gu */
    void *m;                /* [rows, f] dt =: recomputed forward result, same bits; may be dm's memory; NULL: not
                               stored */
    struct quantized q, mq; /* FP8 forms of dgu and of m; with `mq`, m is not NULL */
    int64_t rows, f;
    dtype dt;
};
/* GELU, tanh form ("gelu_new"): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
struct gelu_fwd_args {
    const void *x;
    void *y;                /* must not alias x: backward reads x */
    int64_t count;
    dtype dt;
};
struct gelu_bwd_args {
    const void *dy, *x;
    void *dx;               /* =; may alias dy or x */
    void *y;                /* =: recomputed forward result, same bits; may alias dy if dx does not; NULL: not stored */
    int64_t count;
    dtype dt;
};

/* y = x sigmoid(z): an elementwise gate, for example of attention's output (Qwen3-Next; arXiv:2505.06708). */
struct gate_fwd_args {
    const void *x;          /* [rows, d] dt contiguous */
    const void *z;          /* [rows, d] dt, rows z_stride apart */
    void *y;                /* [rows, d] dt contiguous =; may alias x without a backward */
    int64_t rows, d, z_stride;
    dtype dt;
};
struct gate_bwd_args {
    const void *dy, *x, *z;
    void *dx;               /* [rows, d] dt =; may alias dy */
    void *dz;               /* [rows, d] dt =, rows dz_stride apart; may alias z */
    void *y;                /* [rows, d] dt =: recomputed forward result, same bits; may be x's memory; NULL: not
                               stored */
    int64_t rows, d, z_stride, dz_stride;
    dtype dt;
};

/* Cross-entropy of a chunk of rows, with the gradient in the same pass. target == IGNORE: no loss, zero gradient.
 *   lse = logsumexp(z); loss[t] = lse - z[target] + z_loss lse^2; with z_term the last term goes there instead
 *   dz = grad_scale ((1 + 2 z_loss lse) softmax(z) - onehot(target))
 * Columns [vocab_used, vocab) are padding: they are not in the softmax, and their dz is 0. */
enum { TARGET_IGNORE = -100 };
struct xent_args {
    const void *logits;     /* [rows, vocab] ldt */
    void *dlogits;          /* [rows, vocab] dt =; may alias logits when dt == ldt; NULL: loss only */
    const int32_t *targets; /* [rows] */
    void *loss;             /* [rows] A =; 0 for ignored rows */
    void *z_term;           /* [rows] A = z_loss lse^2, which loss then leaves out; NULL: loss has it */
    int64_t rows, vocab, vocab_used;
    const double *grad_scale;   /* one value, in the set's memory; read only with dlogits */
    double z_loss;
    double cap;             /* > 0: the logits are softcap's output, and dlogits is the gradient of its input */
    dtype dt, ldt;          /* ldt: A or dt (the set's logits_dt) */
};

/* z = cap tanh(z / cap), in place: the soft-cap of Gemma 2 (arXiv:2408.00118, section 2). Its derivative is
 * 1 - (z / cap)^2 with the new z; xent and vocab_xent_finish multiply by it. */
struct softcap_args {
    void *z;                /* [count] dt */
    int64_t count;
    double cap;             /* > 0 */
    dtype dt;
};

/* hits[t] = 1 if the target's logit is greater than all others, else 0 (also on ties); 0 for ignored rows. */
struct top1_correct_args {
    const void *logits;     /* [rows, vocab] ldt; columns from vocab_used on are padding */
    const int32_t *targets; /* [rows] */
    void *hits;             /* [rows] A = */
    int64_t rows, vocab, vocab_used;
    dtype dt, ldt;          /* as in xent */
};

/* *out += sum over the array, in f64, in a fixed order. */
struct sum_args {
    const void *x;          /* [count] dt (F32 or F64) */
    double *out;            /* in the set's memory */
    int64_t count;
    dtype dt;
};

/* Scalar inputs and outputs of a step: one block in the set's memory, so a captured step needs no other arguments.
 * The trainer writes the inputs before the step and reads the outputs after it. */
struct step_scalars {
    double grad_scale;                              /* 1 / (counted targets of the step * losses of each
                                                       (model_segments)) */
    double mtp_scale;                               /* multi-token prediction: grad_scale weight / depth */
    double halt_scale;                              /* halting heads: 1 / (documents of the step * losses of each) */
    double lr, correction1, correction2;            /* optimizer: c1 = 1 - b1^t, c2 = 1 - b2^t */
    /* The trainer sets these sums to 0 before a step: */
    double loss_sum;                                /* += by the head */
    double aux_sum;                                 /* += by routers: auxiliary losses */
    double mtp_loss_sum;                            /* += by the MTP modules */
    double halt_sum;                                /* += by halting heads */
    double z_sum;                                   /* += by the head: z-loss terms, which loss_sum leaves out */
    double dropped_sum[2];                          /* += by routers: slots dropped by capacity, all slots */
    double hits;                                    /* += by the head in evaluation: targets that were the argmax */
    double grad_squares;                            /* sum of g^2 over the whole model, read by UPDATE_APPLY */
    double grad_norm, clip_factor;                  /* outputs of `update` */
    double load_max, load_min;                      /* outputs of `balance` */
    double fp8_overflow;                            /* set to 0 by the trainer, += by `fp8_scales` */
    uint64_t step;                                  /* number of the step, from 0: seeds stochastic rounding */
};

/* The optimizer step over flat arrays: norm of all gradients, clip factor, AdamW or Lion; one launch on a GPU.
 *   norm = sqrt(sum of g^2) in f64, first within each chunk, then over the chunks in order
 *   factor = clip > 0 ? min(1, clip / (norm + 1e-6)) : 1;   g' = g factor
 *   AdamW (Loshchilov & Hutter, arXiv:1711.05101):  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
 *     p = p (1 - lr wd) - lr (m / c1) / (sqrt(v / c2) + eps)
 *   Lion (Chen et al., arXiv:2302.06675):  u = sign(b1 m + (1-b1) g'), sign(0) = 0;  p = p (1 - lr wd) - lr u
 *     m = b2 m + (1-b2) g'
 *   then w = bf16(p), rounded as in ops/rounding.h, and g = 0 with UPDATE_ZERO.
 * With `master_residual` there is no p: w and master_residual are the split master weights (ops/rounding.h), which the
 * op joins before the rule and splits after it. With neither p nor master_residual, w is the only copy: the op reads it
 * before the rule and rounds it stochastically after it.
 *   UPDATE_MOMENTUM, with either rule: m = momentum m + g', then g = g' + momentum m (Nesterov); g is the input of
 *     Muon (ops_muon.h)
 * If the norm is not finite, no array changes: grad_norm returns it and clip_factor is 0.
 *
 * Moments in BF16 and in 8 bits (ops/quant.h) are rounded stochastically (ops/rounding.h), after p was computed from
 * their exact values. The random bits depend on seed, step, the row's key and the element's index in the full row.
 * They are therefore equal for every set, every division into chunks and every way to shard the row.
 *
 * Sharded gradients need two passes: UPDATE_CHUNK_NORMS, whose sums the ranks add in chunk order, then UPDATE_APPLY
 * with that sum. On the CPU the bits equal those of UPDATE_FUSED; a GPU's fused launch adds in another order. State
 * that passes through the device in parts (optim/offload.h) needs UPDATE_GLOBAL_NORM over all chunks, then UPDATE_APPLY
 * over some chunks at a time: the bits equal those of UPDATE_FUSED. */
enum { UPDATE_CHUNK = 16384 };  /* elements, maximum */
enum update_flag {
    UPDATE_DECAY = 1,           /* weight decay applies */
    UPDATE_ZERO = 2,            /* set g to 0 afterwards: for a gradient that is only accumulated (+=) */
    UPDATE_ROWS = 4,            /* rows of flags / UPDATE_WIDTH elements, a multiple of 16. No token of the step read
                                   a row whose gradient is all zeros: its weights and moments do not change. The
                                   other rows use lr row_rate */
    UPDATE_COPY = 8,            /* a replica, which another rank counts in the norm: UPDATE_CHUNK_NORMS writes 0 */
    UPDATE_MOMENTUM = 16,       /* apply only the momentum: writes m and g; p, w and v do not change */
    UPDATE_WIDTH = 256,
};
struct update_chunk {
    int64_t begin;              /* elements [begin, begin + count). begin is a multiple of 16, or of QUANT_BLOCK with
                                   8-bit moments, where a chunk must end with a block or with its array */
    int32_t count;
    uint32_t flags;
    int64_t v_offset;           /* number of elements before the chunk that have no v: element i has v[i - v_offset]; a
                                   multiple of 16, or of QUANT_BLOCK with 8-bit moments */
    uint64_t key;               /* key of the parameter row that contains the chunk: seeds stochastic rounding */
    int64_t first, stride;      /* element k of the chunk is element first + k of the full row or, if the row is a
                                   slice whose rows have `width` > 0 elements, element
                                   first + (col_offset + k) / width stride + (col_offset + k) % width */
    int32_t width, col_offset;  /* first, stride, width, col_offset are multiples of 4 if moments or weights are
                                   rounded */
};
/* The part of a chunk with `count` elements from element `at` on. */
static inline struct update_chunk update_part(const struct update_chunk *c, int64_t at, int32_t count)
{
    struct update_chunk part = *c;
    part.begin += at;
    part.count = count;
    if (c->width > 0)
        part.col_offset += (int32_t)at;
    else
        part.first += at;
    return part;
}
enum update_rule { UPDATE_ADAMW, UPDATE_LION };
enum update_phase {
    UPDATE_FUSED,
    UPDATE_CHUNK_NORMS,         /* squares = sum of g^2 of each chunk, nothing else */
    UPDATE_APPLY,               /* everything after the norm, which is read from scalars.grad_squares */
    UPDATE_GLOBAL_NORM,         /* only the norm, to scalars.grad_squares: reads no array but g */
};
struct update_args {
    enum update_rule rule;
    enum update_phase phase;
    float *p, *g;                       /* weights, gradients; p NULL: the weights are w and master_residual, or w
                                           alone */
    void *m, *v;                        /* moments, moment_dt; Lion has no v */
    float *m_scale, *v_scale;           /* scales of 8-bit moments: element i has scale [i / QUANT_BLOCK]; not with
                                           UPDATE_ROWS */
    bf16 *w;                            /* p in bf16; NULL in F32 training */
    uint16_t *master_residual;          /* residuals of split master weights; NULL: p has all bits or, without p, w
                                           is the only copy */
    const struct update_chunk *chunks;  /* [chunk_count], in the set's memory, sorted and disjoint; elements outside
                                           do not change */
    int64_t chunk_count;
    double *squares;                    /* [chunk_count], in the set's memory; UPDATE_CHUNK_NORMS only */
    double beta1, beta2, eps, weight_decay, clip;
    double row_rate;                    /* lr factor of UPDATE_ROWS; 0: no chunk has that flag */
    double rate;                        /* lr factor of chunks without UPDATE_ROWS; 0 means 1 */
    double momentum;                    /* for UPDATE_MOMENTUM */
    struct step_scalars *scalars;       /* in the set's memory; reads lr, correction1, correction2, step; writes
                                           grad_norm, clip_factor */
    uint64_t seed;                      /* for stochastic rounding */
    dtype moment_dt;                    /* F32, BF16 or U8 */
};

/* Applies the rule to some rows of one table, after UPDATE_APPLY has computed the clip factor. sums[k] is the gradient
 * of table row rows[k]. As with UPDATE_ROWS, a row with an all-zero gradient keeps weights and moments; the others
 * use lr row_rate, without weight decay. Sets sums to 0. */
struct rows_update_args {
    struct update_args of;      /* rule, arrays except g, constants, scalars; moment_dt F32 or
                                   BF16 */
    const int32_t *rows;        /* [slots], ascending, then TOKEN_NONE: from rows_unique */
    float *sums;                /* [slots, width]: gradients */
    int64_t slots, width;       /* width: a multiple of 16 */
    int64_t from, to;           /* this rank's rows [from, to): row r is elements [begin + (r - from) width, ... +
                                   width) of the arrays; v begins v_offset earlier */
    int64_t begin, v_offset;    /* multiples of 16 */
    uint64_t key;               /* key of the table, as in update_chunk */
    int64_t first, stride;      /* element k of row r is element first + r stride + k of the full table; multiples of
                                   4 */
};

/* Keeps or adds a partial sum. TREE_KEEP: kept = x, x = 0. TREE_ADD: x = x + kept. */
enum accumulate_what { TREE_KEEP, TREE_ADD };
struct accumulate_tree_args {
    enum accumulate_what what;
    void *x, *kept;         /* [count] dt (F32 or F64); no alias */
    int64_t count;
    dtype dt;
};

/* x[i] = std N(0, 1), drawn at (seed, RNG_INIT, key, first + i / width * stride + i % width): base/rng.h. A slice of
 * a matrix therefore gets the values of the full matrix. Devices agree up to the last bit of logarithm and cosine in
 * f64. With BF16, x gets the upper part of the F32 numbers and `master_residual` the residuals (ops/rounding.h). */
struct normal_args {
    void *x;                /* [count] dt (F32, F64 or BF16) = */
    uint16_t *master_residual; /* [count] =; BF16 only; NULL: the residuals are dropped */
    int64_t count;
    int64_t first, width, stride; /* 0, 0, 0: not a slice */
    double std;
    uint64_t seed, key;
    dtype dt;
};

/* Converts between an F32 array and split master weights (ops/rounding.h): SPLIT reads x, JOIN writes x. */
enum split_master_way { MASTER_SPLIT, MASTER_JOIN };
struct split_master_args {
    enum split_master_way way;
    float *x;               /* [count] */
    bf16 *upper;            /* [count] */
    uint16_t *master_residual; /* [count]; NULL: SPLIT drops it, JOIN reads 0 */
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
    /* True if the set fuses this epilogue into this call and fusion is faster. Always true for NONE and BIAS. For
     * EPILOGUE_ADD the m, n, k fields may be unset. */
    bool (*gemm_supports)(const struct gemm_args *a, dev_stream s);
    bool (*attn_bwd_supports)(const struct attn_bwd_args *a, dev_stream s);        /* true if attn_bwd fuses `rope`;
                                                                                      NULL: never */
    /* True if GEMMs of this size read codes of the format, as operands with SCALES_BLOCKS, or with SCALES_TENSOR for
     * formats without blocks. False, or NULL: they read decoded values. */
    bool (*reads_blocks)(enum block_format f, int64_t m, int64_t n, int64_t k, dev_stream s);
    /* Traits. */
    size_t (*attn_scratch)(const struct attn_shape *shape, enum attn_pass pass);
    size_t (*delta_bytes)(const struct delta_shape *shape, enum delta_memory what);
    size_t (*moe_scratch)(const struct moe_shape *shape, enum moe_memory what);
    int64_t expert_align;                   /* the sorted rows of an expert begin at a multiple of this */
    size_t (*workspace)(int64_t tokens);    /* bytes shared by all ops of a stream, for micro-batches of `tokens`
                                               tokens */
    dtype (*logits_dt)(dtype dt);           /* preferred type of logits in xent: A or dt */
    int64_t logits_max;                     /* maximum number of logits in a chunk; each chunk costs one pass over the
                                               gradient of the head */
};

void ops_oracle(struct ops *o);
/* The fast set for this processor. STATUS_DEVICE below x86-64-v3. `isa_max`: NULL for the best, or a cpu_isa_name() as
 * an upper limit (tests, comparisons). STATUS_CONFIG: the machine lacks that ISA. */
status ops_cpu(struct ops *o, const char *isa_max) WARN_UNUSED;
/* Name of instruction set `index` of this architecture, from the least to the best; NULL after the last. */
const char *cpu_isa_name(int index);
status ops_check(const struct ops *o) WARN_UNUSED;    /* the error names every NULL slot */
#endif
