/* The table of op cases: shapes that break kernels (1, odd, vector width +-1, ragged documents) and shapes of
 * real models. One row drives the gradient checks, the comparison of every fast set with the oracle and the
 * thread tests; dtypes are the test's choice.
 *
 * A field means the same in every row; what an op does not use stays 0.
 *   rows, d      tokens, width (d also: f of swiglu)
 *   m, n, k      of gemm; bias_bwd has m rows of n
 *   vocab, used  columns, and columns that take part; embed: rows of the table, and ids when it has not all of them, from k on
 *   groups, k    of xent_part and xent_join: ranks, and which of them
 *   hd_v         of attention: 0: hd
 *   docs, len    documents and their lengths (attention); in decode, sequences and their cache lengths
 *   experts ...  of routers and what follows them; n, k of expert_gemm as in ops_moe.h, n: f of expert_act; balance: `rows` routers */
#ifndef INGOT_TESTS_OPS_CASES_H
#define INGOT_TESTS_OPS_CASES_H
#include "ops/ops.h"

enum op_id {
#define X(op) OP_##op,
    OPS(X)
#undef X
        OP_COUNT
};

enum op_flag {
    TRANS_A = 1,
    TRANS_B = 2,
    WITH_BIAS = 4,
    ADD_TO = 8,     /* gemm: accum */
    WIDE = 16,      /* gemm: c in A */
    BRANCH = 32,    /* norms: x + branch; activations' backward: forward's result, too */
    DRES = 64,      /* norms: gradient along the residual stream */
    IN_PLACE = 128, /* the aliasing that ops.h allows for this op */
    QK_NORM = 256,
    NO_STATS = 512,   /* rstd, mean, lse, dlogits are NULL */
    POSITIONS = 1024, /* embed: learned positions */
    GAPS = 2048,      /* rows wider than their contents */
    Z_LOSS = 4096,
    LION = 8192,          /* update */
    MOMENTS_BF16 = 16384, /* update */
    NO_CLIP = 32768,      /* update */
    MOMENTS_8 = 131072,   /* update */
    IN_PLACE_2 = 65536,   /* the aliasing with the other input, where ops.h allows two */
    NO_DELTA = 262144, /* delta: the rule of Mamba-2 */
    SLOW = 524288,     /* delta: states are kept for hundreds of rows */
    SHIFT = 2097152,      /* norms, rope: the weight is stored around 0 */
    FUSED = 131072,       /* attention: q, k and v side by side in one row, and their gradients, as a model has them; decode: v in k's rows */
    NO_TOKENS = 524288,   /* embed: some ids are TOKEN_NONE */
    TABLE_ROWS = 4194304, /* update: rows of d, some of them untouched */
    MAPPED = 1048576,     /* ngram: ids go through a map */
    APART = 262144,       /* attention, forward: scores rise towards early keys, by more than exp of an f32 holds */
    SIGMOID = 1 << 19,    /* routers: scores, else softmax */
    NORMALIZE = 1 << 20,
    AUX = 1 << 21,        /* routers: an auxiliary loss, by document with SEQUENCE */
    SEQUENCE = 1 << 22,
    HOT = 1 << 23,        /* an expert that all tokens choose */
    EMPTY = 1 << 24,      /* experts that none chooses */
    DGRAD = 1 << 25,      /* expert_gemm; else its forward */
    WGRAD = 1 << 26,
    GATHER_A = 1 << 27,
    GATHER_B = 1 << 28,
    GATED = 1 << 29,      /* combine */
};

struct op_case {
    enum op_id op;
    int64_t rows, d, m, n, k, vocab, used, heads, heads_kv, hd, hd_v, half, window;
    int64_t experts, top_k, groups, groups_kept, capacity, align;
    int64_t docs;
    int32_t len[8];
    unsigned flags; /* enum op_flag */
};

/* clang-format off */
#define GEMM(m_, n_, k_, f_) {.op = OP_gemm, .m = m_, .n = n_, .k = k_, .flags = f_}
#define TABLE(o, n, some, width, count, before, bits) {.op = OP_##o, .rows = n, .used = some, .d = width, .vocab = count, .k = before, .flags = bits}
#define ROWS(op_, rows_, d_, f_) {.op = OP_##op_, .rows = rows_, .d = d_, .flags = f_}
#define NORMS(op_) /* both directions share their shapes */ \
    ROWS(op_##_fwd, 1, 1, 0), ROWS(op_##_fwd, 3, 7, BRANCH), ROWS(op_##_fwd, 5, 8, DRES), \
    ROWS(op_##_fwd, 2, 15, NO_STATS), \
    ROWS(op_##_fwd, 9, 17, BRANCH | IN_PLACE), ROWS(op_##_fwd, 4, 33, BRANCH | NO_STATS), \
    ROWS(op_##_fwd, 67, 768, BRANCH), \
    ROWS(op_##_fwd, 3, 2047, 0), ROWS(op_##_fwd, 130, 320, BRANCH | IN_PLACE), \
    ROWS(op_##_fwd, 0, 16, BRANCH), ROWS(op_##_fwd, 11, 96, BRANCH | IN_PLACE_2), \
    ROWS(op_##_bwd, 11, 96, DRES | IN_PLACE_2), ROWS(op_##_bwd, 6, 31, DRES | IN_PLACE_2), \
    ROWS(op_##_bwd, 1, 1, 0), ROWS(op_##_bwd, 3, 7, DRES), ROWS(op_##_bwd, 5, 8, 0), \
    ROWS(op_##_bwd, 2, 15, DRES | IN_PLACE), \
    ROWS(op_##_bwd, 9, 17, IN_PLACE), ROWS(op_##_bwd, 67, 768, DRES), ROWS(op_##_bwd, 3, 2047, 0), \
    ROWS(op_##_bwd, 130, 320, DRES | IN_PLACE), ROWS(op_##_bwd, 0, 16, 0)
#define ROPE(op_, rows_, h_, kv_, hd_, half_, f_) \
    {.op = OP_##op_, .rows = rows_, .heads = h_, .heads_kv = kv_, .hd = hd_, .half = half_, .flags = f_}
#define ROPES(op_) \
    ROPE(op_, 1, 1, 1, 2, 1, 0), ROPE(op_, 5, 2, 1, 6, 2, QK_NORM), ROPE(op_, 3, 3, 1, 16, 8, IN_PLACE), \
    ROPE(op_, 7, 4, 2, 64, 32, QK_NORM | GAPS), ROPE(op_, 9, 4, 1, 80, 10, GAPS), \
    ROPE(op_, 65, 6, 2, 128, 64, QK_NORM), \
    ROPE(op_, 4, 2, 2, 64, 0, QK_NORM), ROPE(op_, 4, 2, 2, 18, 0, 0), ROPE(op_, 33, 5, 5, 34, 17, QK_NORM), \
    ROPE(op_, 130, 4, 4, 64, 32, IN_PLACE), ROPE(op_, 0, 1, 1, 16, 8, 0)
#define SHIFTED(way) \
    ROWS(rmsnorm_##way, 9, 17, SHIFT), ROWS(rmsnorm_##way, 67, 768, DRES | SHIFT), ROWS(rmsnorm_##way, 5, 128, SHIFT), \
    ROPE(rope_##way, 5, 2, 1, 6, 2, QK_NORM | SHIFT), ROPE(rope_##way, 33, 4, 2, 64, 8, QK_NORM | GAPS | SHIFT), \
    ROPE(rope_##way, 7, 2, 2, 256, 32, QK_NORM | SHIFT)
#define TAILS(op_, rows_, h_, nope_, half_, f_) \
    {.op = OP_##op_, .rows = rows_, .heads = h_, .hd = nope_, .half = half_, .flags = f_}
#define TAILED(op_) /* heads of multi-head latent attention: hd is the part without position */ \
    TAILS(op_, 1, 1, 2, 1, 0), TAILS(op_, 5, 3, 6, 5, GAPS), TAILS(op_, 9, 4, 128, 32, 0), TAILS(op_, 3, 2, 16, 8, GAPS), \
    TAILS(op_, 70, 2, 7, 3, GAPS), TAILS(op_, 4, 1, 0, 32, GAPS), TAILS(op_, 65, 6, 64, 16, 0), TAILS(op_, 0, 2, 8, 4, 0), \
    TAILS(op_, 33, 5, 24, 20, GAPS), TAILS(op_, 6, 2, 8, 16, NO_STATS), TAILS(op_, 6, 3, 8, 64, 0)
#define ATTN(op_, h_, kv_, hd_, w_, f_, docs_, ...) \
    {.op = OP_##op_, .heads = h_, .heads_kv = kv_, .hd = hd_, .window = w_, .flags = f_, .docs = docs_, \
     .len = __VA_ARGS__}
/* values of another width than keys */
#define LATENT(op_, h_, kv_, hd_, hd_v_, w_, f_, docs_, ...) \
    {.op = OP_##op_, .heads = h_, .heads_kv = kv_, .hd = hd_, .hd_v = hd_v_, .window = w_, .flags = f_, .docs = docs_, \
     .len = __VA_ARGS__}
#define ATTNS(op_) \
    ATTN(op_, 1, 1, 16, 0, 0, 1, {1}), ATTN(op_, 2, 1, 16, 0, GAPS, 3, {0, 1, 7}), \
    ATTN(op_, 4, 1, 64, 0, GAPS, 4, {17, 0, 33, 0}), \
    ATTN(op_, 2, 2, 80, 5, 0, 2, {31, 20}), ATTN(op_, 4, 2, 128, 16, GAPS, 2, {65, 3}), \
    ATTN(op_, 2, 2, 64, 1, 0, 1, {19}), \
    ATTN(op_, 2, 1, 64, 40, GAPS, 2, {129, 64}), ATTN(op_, 1, 1, 18, 0, 0, 2, {5, 6}), \
    ATTN(op_, 3, 3, 64, 0, GAPS, 1, {257}), \
    ATTN(op_, 2, 2, 64, 1000, 0, 5, {0, 40, 0, 0, 24}), ATTN(op_, 2, 1, 7, 3, 0, 2, {9, 2}), \
    ATTN(op_, 1, 1, 16, 0, 0, 2, {0, 0}), ATTN(op_, 4, 2, 64, 0, FUSED, 3, {33, 70, 0}), \
    ATTN(op_, 2, 2, 48, 9, FUSED, 1, {50}), \
    LATENT(op_, 2, 2, 192, 128, 0, 0, 2, {67, 5}), LATENT(op_, 3, 1, 24, 16, 0, GAPS, 2, {65, 0}), \
    LATENT(op_, 2, 1, 7, 40, 4, GAPS, 2, {9, 33}), LATENT(op_, 1, 1, 16, 80, 0, 0, 1, {130})
#define XENT(rows_, vocab_, used_, f_) \
    {.op = OP_xent, .rows = rows_, .vocab = vocab_, .used = used_, .flags = f_}

#define HITS(rows_, vocab_, used_) {.op = OP_hits, .rows = rows_, .vocab = vocab_, .used = used_}
#define SLICED(op_, rows_, vocab_, slices_, slice_, f_) \
    {.op = OP_##op_, .rows = rows_, .vocab = vocab_, .groups = slices_, .k = slice_, .flags = f_}
#define AHEAD(k_, docs_, ...) {.op = OP_ahead, .k = k_, .docs = docs_, .len = __VA_ARGS__}
#define CONV(op_, channels_, width_, f_, docs_, ...) \
    {.op = OP_##op_, .d = channels_, .k = width_, .flags = f_, .docs = docs_, .len = __VA_ARGS__}
#define CONVS(op_) \
    CONV(op_, 1, 2, 0, 1, {1}), CONV(op_, 7, 4, GAPS, 3, {5, 0, 2}), CONV(op_, 64, 4, 0, 2, {70, 33}), \
    CONV(op_, 33, 8, GAPS | WITH_BIAS, 2, {3, 19}), CONV(op_, 12, 4, WITH_BIAS, 3, {1, 40, 9}), CONV(op_, 130, 3, 0, 1, {129}), CONV(op_, 8, 4, 0, 2, {0, 0})
#define DILATE(op_, channels_, width_, dilation_, f_, docs_, ...) \
    {.op = OP_##op_, .d = channels_, .k = width_, .m = dilation_, .flags = f_, .docs = docs_, .len = __VA_ARGS__}
#define DILATED(op_) \
    DILATE(op_, 7, 4, 3, GAPS, 3, {5, 0, 40}), DILATE(op_, 64, 4, 3, 0, 2, {70, 133}), DILATE(op_, 17, 8, 8, 0, 2, {3, 130})
#define NGRAM(order_, heads_, f_, docs_, ...) {.op = OP_ngram, .k = order_, .heads = heads_, .flags = f_, .docs = docs_, .len = __VA_ARGS__}
#define HALT(op_, d_, m_, segments_, docs_, ...) {.op = OP_##op_, .d = d_, .m = m_, .k = segments_, .docs = docs_, .len = __VA_ARGS__}
#define HEADS(op_, rows_, heads_, d_, f_) {.op = OP_##op_, .rows = rows_, .heads = heads_, .d = d_, .flags = f_}
#define DELTA(op_, h_, hk_, dk_, dv_, f_, docs_, ...) \
    {.op = OP_##op_, .heads = h_, .heads_kv = hk_, .hd = dk_, .d = dv_, .flags = f_, .docs = docs_, .len = __VA_ARGS__}
#define DELTAS(op_) \
    DELTA(op_, 1, 1, 4, 4, 0, 1, {1}), DELTA(op_, 2, 1, 16, 8, QK_NORM | GAPS, 3, {3, 0, 20}), \
    DELTA(op_, 4, 2, 16, 16, QK_NORM, 2, {63, 65}), DELTA(op_, 2, 2, 32, 16, GAPS, 1, {64}), \
    DELTA(op_, 4, 1, 16, 32, QK_NORM, 1, {150}), DELTA(op_, 2, 1, 16, 16, NO_DELTA, 2, {70, 5}), \
    DELTA(op_, 1, 1, 7, 5, QK_NORM, 1, {9}), DELTA(op_, 1, 1, 16, 16, 0, 2, {0, 0})
#define MOE(op_, rows_, experts_, top_k_, align_, f_, ...) \
    {.op = OP_##op_, .rows = rows_, .experts = experts_, .top_k = top_k_, .align = align_, .flags = f_, __VA_ARGS__}
#define ROUTES(op_) \
    MOE(op_, 1, 1, 1, 1, NORMALIZE), MOE(op_, 1, 4, 4, 1, 0), MOE(op_, 7, 5, 2, 8, SIGMOID | NORMALIZE | WITH_BIAS), \
    MOE(op_, 33, 8, 3, 16, EMPTY | NORMALIZE | AUX), MOE(op_, 65, 16, 4, 1, HOT | SIGMOID | WITH_BIAS | AUX | Z_LOSS), \
    MOE(op_, 40, 12, 5, 32, SIGMOID | NORMALIZE | WITH_BIAS, .groups = 4, .groups_kept = 2), \
    MOE(op_, 29, 6, 2, 4, NORMALIZE | Z_LOSS, .groups = 6, .groups_kept = 3), \
    MOE(op_, 50, 8, 2, 16, HOT | NORMALIZE | AUX, .capacity = 9), MOE(op_, 90, 6, 3, 1, NORMALIZE, .capacity = 100), \
    MOE(op_, 31, 7, 3, 1, AUX | SEQUENCE | SIGMOID | NORMALIZE, .docs = 4, .len = {5, 0, 25, 1}), \
    MOE(op_, 70, 9, 2, 64, AUX | SEQUENCE | EMPTY, .docs = 2, .len = {69, 1}), \
    MOE(op_, 0, 4, 2, 128, NORMALIZE), MOE(op_, 300, 64, 8, 128, NORMALIZE | AUX | Z_LOSS), \
    MOE(op_, 130, 256, 8, 128, SIGMOID | NORMALIZE | WITH_BIAS | AUX, .groups = 8, .groups_kept = 4), \
    MOE(op_, 3, 500, 16, 128, NO_STATS), MOE(op_, 1000, 3, 1, 128, HOT)
#define PRODUCTS(f_) \
    MOE(expert_gemm, 1, 1, 1, 1, f_, .n = 1, .k = 1), MOE(expert_gemm, 7, 5, 2, 8, (f_) | EMPTY, .n = 3, .k = 5), \
    MOE(expert_gemm, 33, 8, 3, 1, (f_) | EMPTY, .n = 17, .k = 31), MOE(expert_gemm, 65, 4, 2, 16, (f_) | HOT, .n = 64, .k = 40), \
    MOE(expert_gemm, 40, 6, 2, 32, (f_) | HOT, .n = 24, .k = 72, .capacity = 11), \
    MOE(expert_gemm, 200, 3, 3, 1, f_, .n = 40, .k = 33), MOE(expert_gemm, 0, 3, 2, 128, f_, .n = 8, .k = 16), \
    MOE(expert_gemm, 300, 16, 4, 128, f_, .n = 128, .k = 96), MOE(expert_gemm, 5, 64, 8, 1, f_, .n = 32, .k = 16)
#define EXPERT_ACTS(op_, f_) \
    MOE(op_, 1, 1, 1, 1, f_, .n = 1), MOE(op_, 7, 5, 2, 8, f_, .n = 7), MOE(op_, 33, 8, 3, 1, (f_) | EMPTY | SIGMOID, .n = 40), \
    MOE(op_, 0, 4, 2, 128, f_, .n = 8), MOE(op_, 70, 6, 2, 128, (f_) | HOT | NORMALIZE, .n = 129)
#define COMBINES(op_, f_) \
    MOE(op_, 1, 1, 1, 1, f_, .d = 1), MOE(op_, 9, 5, 2, 8, f_, .d = 17), MOE(op_, 33, 8, 3, 1, f_, .d = 64), \
    MOE(op_, 50, 6, 2, 128, (f_) | HOT, .d = 130, .capacity = 11), MOE(op_, 0, 4, 2, 1, f_, .d = 8)

static const struct op_case op_cases[] = {
    GEMM(1, 1, 1, 0), GEMM(1, 1, 1, TRANS_B | WITH_BIAS), GEMM(3, 5, 7, 0), GEMM(3, 5, 7, TRANS_A),
    GEMM(3, 5, 7, TRANS_B),
    GEMM(3, 5, 7, TRANS_A | TRANS_B), GEMM(17, 31, 33, TRANS_B | WITH_BIAS), GEMM(1, 257, 64, TRANS_B),
    GEMM(2, 96, 15, TRANS_B),
    GEMM(33, 16, 129, WIDE), GEMM(15, 63, 65, TRANS_A | WIDE | ADD_TO),
    GEMM(64, 17, 31, TRANS_B | WIDE | ADD_TO),
    GEMM(65, 127, 1, TRANS_A | WIDE | ADD_TO), GEMM(1, 300, 129, TRANS_B | WIDE | WITH_BIAS),
    GEMM(0, 8, 4, 0), GEMM(40, 33, 1570, TRANS_B | WITH_BIAS), GEMM(33, 70, 1601, TRANS_A | WIDE | ADD_TO),
    GEMM(192, 384, 768, TRANS_B | WITH_BIAS), GEMM(128, 768, 320, 0),
    GEMM(320, 192, 257, TRANS_A | WIDE | ADD_TO),
    GEMM(20, 50, 11000, TRANS_B | WIDE | WITH_BIAS), GEMM(9, 800, 5500, WIDE | ADD_TO),
    {.op = OP_bias_bwd, .m = 1, .n = 1, .k = 2, .flags = WITH_BIAS},
    {.op = OP_bias_bwd, .m = 7, .n = 17, .k = 3, .flags = WITH_BIAS},
    {.op = OP_bias_bwd, .m = 130, .n = 63, .k = 3, .flags = WITH_BIAS},
    {.op = OP_bias_bwd, .m = 333, .n = 768, .k = 1, .flags = WITH_BIAS},

    {.op = OP_embed_fwd, .rows = 1, .d = 1, .vocab = 1},
    {.op = OP_embed_fwd, .rows = 9, .d = 17, .vocab = 5, .flags = POSITIONS},
    {.op = OP_embed_fwd, .rows = 130, .d = 320, .vocab = 97},
    {.op = OP_embed_fwd, .rows = 65, .d = 768, .vocab = 50, .flags = POSITIONS},
    {.op = OP_embed_bwd, .rows = 1, .d = 1, .vocab = 1},
    {.op = OP_embed_bwd, .rows = 9, .d = 17, .vocab = 5, .flags = POSITIONS},
    {.op = OP_embed_bwd, .rows = 300, .d = 33, .vocab = 3},
    {.op = OP_embed_bwd, .rows = 130, .d = 320, .vocab = 97, .flags = POSITIONS},
    {.op = OP_embed_fwd, .rows = 33, .d = 17, .vocab = 5, .flags = NO_TOKENS},
    {.op = OP_embed_fwd, .rows = 70, .d = 64, .vocab = 40, .flags = NO_TOKENS},
    {.op = OP_embed_bwd, .rows = 33, .d = 17, .vocab = 5, .flags = NO_TOKENS},
    {.op = OP_embed_fwd, .rows = 33, .d = 17, .vocab = 5, .k = 5, .used = 15},
    {.op = OP_embed_fwd, .rows = 70, .d = 64, .vocab = 20, .k = 60, .used = 80, .flags = POSITIONS},
    {.op = OP_embed_fwd, .rows = 70, .d = 64, .vocab = 20, .used = 40, .flags = NO_TOKENS},
    {.op = OP_embed_bwd, .rows = 33, .d = 17, .vocab = 5, .k = 5, .used = 15},
    {.op = OP_embed_bwd, .rows = 300, .d = 64, .vocab = 20, .k = 60, .used = 80, .flags = POSITIONS},
    {.op = OP_embed_bwd, .rows = 70, .d = 64, .vocab = 20, .used = 40, .flags = NO_TOKENS},
    {.op = OP_embed_bwd, .rows = 130, .d = 64, .vocab = 40, .flags = NO_TOKENS},
    NGRAM(3, 8, 0, 3, {5, 0, 40}), NGRAM(2, 1, MAPPED, 4, {1, 2, 3, 1}), NGRAM(4, 8, MAPPED, 1, {70}), NGRAM(3, 2, BRANCH, 1, {1}),
    NGRAM(4, 3, BRANCH | MAPPED, 1, {6}), NGRAM(8, 16, 0, 2, {9, 3}), NGRAM(3, 2, 0, 2, {0, 0}),
    ROWS(ngram_gate_fwd, 1, 1, 0), ROWS(ngram_gate_fwd, 9, 17, 0), ROWS(ngram_gate_fwd, 65, 64, IN_PLACE), ROWS(ngram_gate_fwd, 0, 8, 0),
    ROWS(ngram_gate_bwd, 1, 3, 0), ROWS(ngram_gate_bwd, 9, 17, 0), ROWS(ngram_gate_bwd, 65, 64, 0), ROWS(ngram_gate_bwd, 0, 8, 0),
    HALT(halt_fwd, 1, 0, 0, 1, {1}), HALT(halt_fwd, 17, 0, 0, 4, {5, 0, 2, 40}), HALT(halt_fwd, 64, 0, 0, 2, {0, 0}),
    HALT(halt_stop, 0, 0, 1, 1, {1}), HALT(halt_stop, 0, 0, 5, 4, {5, 0, 2, 40}), HALT(halt_stop, 0, 0, 3, 2, {0, 0}),
    HALT(halt_bwd, 1, 1, 2, 1, {1}), HALT(halt_bwd, 17, 2, 4, 4, {5, 0, 2, 40}), HALT(halt_bwd, 64, 3, 3, 3, {9, 1, 1}), HALT(halt_bwd, 8, 1, 3, 2, {0, 0}),
    AHEAD(1, 1, {1}), AHEAD(2, 4, {5, 0, 2, 40}), AHEAD(0, 2, {7, 70}), AHEAD(3, 5, {3, 300, 0, 0, 2}), AHEAD(1, 2, {0, 0}),

    NORMS(rmsnorm), NORMS(layernorm), ROPES(rope_fwd), ROPES(rope_bwd), ATTNS(attn_fwd), ATTNS(attn_bwd),
    SHIFTED(fwd), SHIFTED(bwd),
    ATTN(attn_fwd, 2, 1, 32, 0, NO_STATS, 1, {21}),
    /* long enough that few heads are shared out by query blocks */
    ATTN(attn_fwd, 2, 1, 64, 0, APART, 1, {700}),
    ATTN(attn_fwd, 2, 1, 18, 0, 0, 2, {70, 1045}), ATTN(attn_fwd, 1, 1, 16, 300, 0, 1, {1100}),
    /* decode: document lengths are cache lengths */
    ATTN(attn_decode, 1, 1, 16, 0, 0, 1, {1}), ATTN(attn_decode, 4, 1, 64, 0, 0, 3, {1, 17, 40}),
    ATTN(attn_decode, 4, 2, 80, 5, 0, 2, {3, 33}), ATTN(attn_decode, 2, 2, 128, 16, 0, 2, {16, 100}),
    ATTN(attn_decode, 6, 2, 18, 0, 0, 1, {9}), LATENT(attn_decode, 4, 2, 24, 16, 0, GAPS, 2, {5, 40}),
    /* values are the front of the keys' rows, as in a compressed cache */
    LATENT(attn_decode, 3, 1, 576, 512, 0, FUSED, 2, {1, 37}), LATENT(attn_decode, 4, 1, 20, 12, 6, FUSED, 1, {30}),

    ROWS(swiglu_fwd, 1, 1, 0), ROWS(swiglu_fwd, 3, 7, 0), ROWS(swiglu_fwd, 5, 16, 0),
    ROWS(swiglu_fwd, 7, 33, 0),
    ROWS(swiglu_fwd, 66, 1031, 0), ROWS(swiglu_bwd, 1, 1, 0), ROWS(swiglu_bwd, 3, 7, IN_PLACE),
    ROWS(swiglu_bwd, 5, 16, 0),
    ROWS(swiglu_bwd, 7, 33, IN_PLACE), ROWS(swiglu_bwd, 66, 1031, 0),
    ROWS(gelu_fwd, 1, 1, 0), ROWS(gelu_fwd, 3, 11, 0), ROWS(gelu_fwd, 70, 1025, 0), ROWS(gelu_fwd, 0, 4, 0),
    ROWS(gelu_bwd, 1, 1, IN_PLACE), ROWS(gelu_bwd, 3, 11, 0), ROWS(gelu_bwd, 70, 1025, IN_PLACE),
    ROWS(swiglu_bwd, 3, 7, BRANCH), ROWS(swiglu_bwd, 9, 64, BRANCH | IN_PLACE), ROWS(swiglu_bwd, 66, 1031, BRANCH | IN_PLACE),
    ROWS(gelu_bwd, 3, 11, BRANCH), ROWS(gelu_bwd, 70, 1025, BRANCH | IN_PLACE), ROWS(gelu_bwd, 9, 64, BRANCH | IN_PLACE | IN_PLACE_2),
    ROWS(gelu_bwd, 5, 21, IN_PLACE_2), ROWS(gelu_bwd, 9, 64, IN_PLACE_2),
    TAILED(latent_fwd), TAILED(latent_bwd), TAILS(latent_fwd, 7, 2, 16, 8, BRANCH),
    ROWS(rmsnorm_fwd, 5, 17, GAPS), ROWS(rmsnorm_fwd, 67, 256, GAPS), ROWS(rmsnorm_fwd, 9, 512, GAPS | SHIFT | NO_STATS),
    ROWS(rmsnorm_bwd, 5, 17, GAPS), ROWS(rmsnorm_bwd, 67, 256, GAPS), ROWS(rmsnorm_bwd, 9, 512, GAPS | SHIFT),
    ROWS(rmsnorm_bwd, 66, 96, GAPS | IN_PLACE), ROWS(rmsnorm_bwd, 3, 33, GAPS | IN_PLACE),
    XENT(1, 1, 1, 0), XENT(3, 7, 5, Z_LOSS), XENT(5, 17, 17, IN_PLACE),
    XENT(9, 64, 63, Z_LOSS | IN_PLACE), XENT(33, 1031, 1000, 0),
    XENT(4, 4096, 4000, Z_LOSS), XENT(6, 33, 33, NO_STATS),
    ROWS(gate_fwd, 1, 1, 0), ROWS(gate_fwd, 7, 33, GAPS), ROWS(gate_fwd, 66, 1024, 0), ROWS(gate_fwd, 5, 48, GAPS),
    ROWS(gate_fwd, 0, 8, 0), ROWS(gate_bwd, 1, 1, 0), ROWS(gate_bwd, 7, 33, GAPS), ROWS(gate_bwd, 66, 1024, BRANCH | IN_PLACE),
    ROWS(gate_bwd, 5, 48, BRANCH | IN_PLACE_2), ROWS(gate_bwd, 9, 17, BRANCH | GAPS | IN_PLACE), ROWS(gate_bwd, 0, 8, 0),
    SLICED(xent_part, 1, 1, 1, 0, 0), SLICED(xent_part, 9, 7, 3, 1, 0), SLICED(xent_part, 33, 1031, 2, 1, 0),
    SLICED(xent_part, 20, 64, 4, 3, 0), SLICED(xent_part, 70, 2, 8, 0, 0),
    SLICED(xent_join, 1, 1, 1, 0, 0), SLICED(xent_join, 9, 7, 3, 1, Z_LOSS), SLICED(xent_join, 33, 1031, 2, 1, IN_PLACE),
    SLICED(xent_join, 20, 64, 4, 3, Z_LOSS | IN_PLACE), SLICED(xent_join, 70, 2, 8, 0, 0), SLICED(xent_join, 9, 33, 2, 0, NO_STATS),
    HITS(1, 1, 1), HITS(3, 7, 5), HITS(33, 1031, 1000), HITS(9, 64, 64), HITS(70, 4, 3),
    ROWS(sum, 1, 1, 0), ROWS(sum, 3, 11, 0), ROWS(sum, 70, 1025, 0), ROWS(sum, 0, 4, 0),
    ROWS(update, 1, 1, 0), ROWS(update, 3, 11, NO_CLIP), ROWS(update, 70, 1025, 0), ROWS(update, 0, 4, 0),
    ROWS(update, 1, 1, LION), ROWS(update, 3, 11, LION), ROWS(update, 70, 1025, LION | NO_CLIP),
    ROWS(update, 3, 11, MOMENTS_BF16), ROWS(update, 70, 1025, MOMENTS_BF16),
    ROWS(update, 40, 16, TABLE_ROWS), ROWS(update, 300, 64, TABLE_ROWS | MOMENTS_BF16), ROWS(update, 7, 32, TABLE_ROWS | LION), ROWS(update, 90, 272, TABLE_ROWS),
    ROWS(update, 5, 13, MOMENTS_BF16 | LION), ROWS(update, 70, 1031, MOMENTS_BF16 | LION),
    ROWS(update, 1, 1, MOMENTS_8), ROWS(update, 3, 11, MOMENTS_8), ROWS(update, 70, 1025, MOMENTS_8 | NO_CLIP), ROWS(update, 64, 512, MOMENTS_8),
    ROWS(update, 5, 13, MOMENTS_8 | LION), ROWS(update, 70, 1031, MOMENTS_8 | LION),
    TABLE(rows_unique, 1, 0, 0, 1, 0, 0), TABLE(rows_unique, 70, 0, 0, 9, 0, NO_TOKENS), TABLE(rows_unique, 300, 0, 0, 5000, 0, IN_PLACE),
    TABLE(rows_unique, 5000, 0, 0, 700, 0, NO_TOKENS | IN_PLACE), TABLE(rows_unique, 0, 0, 0, 9, 0, 0),
    TABLE(rows_update, 1, 1, 16, 1, 0, 0), TABLE(rows_update, 70, 40, 64, 90, 11, 0), TABLE(rows_update, 300, 299, 32, 5000, 700, MOMENTS_BF16),
    TABLE(rows_update, 9, 9, 272, 9, 0, LION), TABLE(rows_update, 40, 33, 48, 77, 0, LION | MOMENTS_BF16), TABLE(rows_update, 9, 5, 16, 9, 3, NO_CLIP),
    TABLE(rows_update, 0, 0, 16, 9, 0, 0), TABLE(rows_update, 9, 0, 16, 9, 0, 0),
    ROWS(ortho_unit, 1, 1, 0), ROWS(ortho_unit, 3, 11, 0), ROWS(ortho_unit, 70, 1025, 0), ROWS(ortho_unit, 0, 4, 0),
    ROWS(ortho_poly, 1, 1, 0), ROWS(ortho_poly, 1, 11, 0), ROWS(ortho_poly, 1, 67, IN_PLACE), ROWS(ortho_poly, 1, 320, 0),
    ROWS(ortho_step, 1, 1, 0), ROWS(ortho_step, 3, 11, 0), ROWS(ortho_step, 70, 1025, 0), ROWS(ortho_step, 3, 11, NO_CLIP),
    ROWS(normal, 1, 1, 0), ROWS(normal, 3, 11, 0), ROWS(normal, 70, 1025, 0), ROWS(normal, 0, 4, 0),
    ROWS(halves, 1, 1, 0), ROWS(halves, 3, 11, 0), ROWS(halves, 0, 4, 0), ROWS(halves, 10, 65536, 0),
    ROWS(fold, 1, 1, 0), ROWS(fold, 3, 11, 0), ROWS(fold, 70, 1025, 0), ROWS(fold, 0, 4, 0),

    CONVS(conv_fwd), CONVS(conv_bwd), DILATED(conv_fwd), DILATED(conv_bwd), DILATE(conv_fwd, 12, 4, 3, BRANCH, 1, {6}), CONV(conv_fwd, 12, 4, BRANCH | WITH_BIAS, 1, {6}), CONV(conv_fwd, 5, 4, BRANCH, 1, {1}),
    HEADS(gates_fwd, 1, 1, 0, 0), HEADS(gates_fwd, 70, 6, 0, GAPS), HEADS(gates_fwd, 0, 2, 0, 0),
    HEADS(gates_bwd, 1, 1, 0, 0), HEADS(gates_bwd, 70, 6, 0, GAPS), HEADS(gates_bwd, 333, 16, 0, 0),
    HEADS(gated_norm_fwd, 1, 1, 4, 0), HEADS(gated_norm_fwd, 9, 3, 17, GAPS), HEADS(gated_norm_fwd, 65, 4, 128, 0),
    HEADS(gated_norm_bwd, 1, 1, 4, 0), HEADS(gated_norm_bwd, 9, 3, 17, GAPS), HEADS(gated_norm_bwd, 65, 4, 128, IN_PLACE),
    HEADS(ssm_in_fwd, 1, 1, 4, 0), HEADS(ssm_in_fwd, 70, 3, 17, GAPS), HEADS(ssm_in_fwd, 65, 6, 64, 0), HEADS(ssm_in_fwd, 0, 2, 8, 0),
    HEADS(ssm_in_bwd, 1, 1, 4, 0), HEADS(ssm_in_bwd, 70, 3, 17, GAPS), HEADS(ssm_in_bwd, 65, 6, 64, 0), HEADS(ssm_in_bwd, 9, 2, 8, BRANCH),
    HEADS(ssm_in_bwd, 333, 20, 16, BRANCH), HEADS(ssm_in_bwd, 70, 3, 17, GAPS | BRANCH), HEADS(ssm_in_bwd, 65, 6, 64, BRANCH),
    HEADS(ssm_out_fwd, 1, 1, 4, 0), HEADS(ssm_out_fwd, 9, 3, 17, GAPS), HEADS(ssm_out_fwd, 65, 4, 64, 0), HEADS(ssm_out_fwd, 0, 2, 8, 0),
    HEADS(ssm_out_bwd, 1, 1, 4, 0), HEADS(ssm_out_bwd, 9, 3, 17, GAPS), HEADS(ssm_out_bwd, 65, 4, 64, IN_PLACE),
    DELTAS(delta_fwd), DELTAS(delta_bwd), DELTA(delta_fwd, 2, 1, 16, 8, QK_NORM | BRANCH, 2, {40, 0}),
    DELTA(delta_fwd, 4, 2, 128, 128, QK_NORM, 1, {100}), DELTA(delta_bwd, 2, 1, 128, 128, QK_NORM, 1, {100}),

    ROUTES(route_fwd), ROUTES(route_bwd),
    PRODUCTS(0), PRODUCTS(GATHER_A), PRODUCTS(DGRAD), PRODUCTS(DGRAD | GATHER_A), PRODUCTS(WGRAD), PRODUCTS(WGRAD | GATHER_A),
    PRODUCTS(WGRAD | GATHER_B | ADD_TO), MOE(expert_gemm, 600, 4, 2, 1, GATHER_A, .n = 256, .k = 320),
    EXPERT_ACTS(expert_act_fwd, 0), EXPERT_ACTS(expert_act_bwd, 0), EXPERT_ACTS(expert_act_bwd, IN_PLACE),
    COMBINES(combine, 0), COMBINES(combine, BRANCH | IN_PLACE), COMBINES(combine, BRANCH | WIDE), COMBINES(combine, BRANCH | GATED),
    COMBINES(combine_gate_bwd, BRANCH | GATED), COMBINES(combine_gate_bwd, BRANCH | GATED | IN_PLACE),
    MOE(balance, 1, 1, 0, 0, 0), MOE(balance, 3, 64, 0, 0, 0), MOE(balance, 40, 500, 0, 0, 0), MOE(balance, 2, 5, 0, 0, NO_STATS),
};
/* clang-format on */

enum { OP_CASES = sizeof op_cases / sizeof op_cases[0] };
#endif
