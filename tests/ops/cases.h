/* The table of op cases: shapes that break kernels (1, odd, vector width +-1, ragged documents) and shapes of
 * real models. One row drives the gradient checks, the comparison of every fast set with the oracle and the
 * thread tests; dtypes are the test's choice.
 *
 * Each family of ops has a struct for its rows, and a forward and its backward share one. What a row does not
 * name is 0. These flags mean the same in every family that has them:
 *   in_place    an output lies over an input, where ops.h allows it
 *   in_place_2  the same with the other input, where ops.h allows two
 *   gaps        rows are wider than their contents */
#ifndef INGOT_TESTS_OPS_CASES_H
#define INGOT_TESTS_OPS_CASES_H
#include "ops/ops.h"

enum op_id {
#define X(op) OP_##op,
    OPS(X)
#undef X
        OP_COUNT
};

/* Consecutive documents. */
struct case_docs {
    int64_t count;
    int32_t len[8];
};
#define DOCS(...) {.count = sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), .len = {__VA_ARGS__}}

/* gemm: c[m, n] = a[m, k] b[k, n]. bias_bwd: the bias of such a gemm, from m rows of n. */
struct case_gemm {
    int64_t m, n, k;
    bool trans_a, trans_b;
    bool with_bias;
    bool add_to; /* c is added to */
    bool wide;   /* c has the dtype of sums */
    bool fp8;    /* operands are codes; the rest is for them alone */
    int64_t exp; /* the scale of a is 2^exp times the usual one, that of b 2^-exp times */
    bool e5m2_a, e5m2_b; /* else E4M3 */
    bool with_add;       /* EPILOGUE_ADD */
    bool fast;           /* fast_accum */
    bool zeros;          /* a holds zeros */
    bool subnormal;      /* most codes are subnormal */
};

struct case_embed {
    int64_t rows, d;
    int64_t vocab;      /* rows of the table */
    int64_t first, ids; /* the table has the rows from `first` of a vocabulary of `ids`; ids 0: it has them all */
    bool positions;     /* learned positions are added */
    bool no_tokens;     /* some ids are TOKEN_NONE */
};

/* rmsnorm, layernorm */
struct case_norm {
    int64_t rows, d;
    bool branch;   /* forward is of x + branch */
    bool dres;     /* forward stores its input as sum; backward adds the gradient of that sum */
    bool no_stats; /* rstd and mean are NULL */
    bool shift;    /* the weight is stored around 0 */
    bool in_place, in_place_2, gaps;
    bool quantized, only, no_trans, measured; /* rmsnorm: see struct case_quantize */
};

/* swiglu, gelu, gate */
struct case_act {
    int64_t rows;
    int64_t d;      /* width of the result */
    bool recompute; /* backward gives the forward's result, too */
    bool in_place, in_place_2, gaps;
    bool quantized, only, no_trans, measured; /* swiglu: see struct case_quantize */
};

/* FP8 codes of a tensor. The values are noise of about 1 times the scale's inverse, so that the codes do not depend on
 * `exp`. Cases of other ops that also write codes (`quantized`) compare with the op without them and then the oracle's
 * quantize, byte by byte. Of those, `only` leaves the values unwritten, and `measured` asks for the maximum alone. */
struct case_quantize {
    int64_t rows, n;
    int64_t exp;                       /* of the scale */
    bool e5m2;                         /* else E4M3 */
    bool no_codes, no_trans, no_amax;  /* pointers are NULL */
    bool before;                       /* amax begins above the maximum */
    bool zeros, outlier;               /* x is 0; one element is 448 times the usual */
    bool subnormal, saturated;         /* most codes are subnormal; some values are too large */
    bool not_finite, infinite;         /* NaN and Inf; Inf alone */
    bool gaps;
};

/* fp8_scales: maxima of all sizes. */
struct case_scales {
    int64_t count;
    int64_t ranks;   /* 0: no array of all ranks */
    int64_t margin;
    bool delayed;    /* else current scaling */
    bool e5m2;       /* codes; else E4M3 */
    bool not_finite; /* some maxima are not finite */
    bool zeros;      /* some are 0, their histories are empty */
};

/* Codes with scales of their own. Magnitudes of blocks differ by up to 2^12. */
struct case_blocks {
    int64_t rows, n;
    int64_t format; /* enum block_format */
    bool columns, square, hadamard, stochastic, exact;
    bool no_codes;          /* values alone, as training on a GPU without their GEMMs asks */
    bool no_values;         /* codes alone, as training on a GPU with their GEMMs asks */
    bool zeros, not_finite; /* every third block of 16 x 16 is 0; some elements are NaN or Inf */
};

struct case_bound {
    int64_t d;
    bool with_bias, shift, e5m2;
    bool zeros, not_finite; /* the scale stays */
};

/* sum, normal, split_master, accumulate_tree, muon_normalize, newton_schulz_poly (d x d), muon_apply: rows * d
 * elements; ngram_gate: rows of d */
struct case_rows {
    int64_t rows, d;
    bool not_finite; /* muon_apply: the gradient was not finite */
    bool in_place;
};

struct case_rope {
    int64_t rows, heads, heads_kv, head_dim;
    int64_t half; /* pairs that are rotated */
    bool qk_norm;
    bool shift; /* the weights of qk_norm are stored around 0 */
    bool in_place, gaps;
};

/* Heads of multi-head latent attention; per_head_gemm: support_run_latent.c */
struct case_latent {
    int64_t rows, heads;
    int64_t nope;        /* width of a head's part without position */
    int64_t half;        /* rotated pairs, after that part */
    bool q_only, k_only; /* the other's pointer is NULL */
    bool gaps;
};

/* attn_fwd, attn_bwd, attn_decode; kv_cache_append: support_run_latent.c */
struct case_attn {
    int64_t heads, heads_kv, head_dim;
    int64_t head_dim_v;    /* of values; 0: hd */
    int64_t window;        /* 0: all keys */
    struct case_docs docs; /* attn_decode, kv_cache_append: sequences with their cache lengths */
    bool fused;            /* q, k and v side by side in one row, and their gradients; attn_decode: v is the front of k's rows */
    bool apart;            /* scores rise towards early keys, by more than exp of an f32 holds */
    bool no_stats;         /* lse is NULL */
    bool gaps;
    int64_t ranks, rank;   /* split: queries are what context-parallel rank `rank` of `ranks` has; 0 ranks: all rows */
    int64_t length;        /* of its sequences, none of which a document leaves, a multiple of 2 ranks; 0: all rows */
};

/* xent, hits */
struct case_xent {
    int64_t rows;
    int64_t vocab, used; /* columns, and how many of them take part */
    bool z_loss, cap;    /* cap: softcap before it */
    bool no_grad; /* dlogits is NULL */
    bool in_place;
};

/* vocab_xent_partial, vocab_xent_finish: the vocabulary is cut over ranks. */
struct case_slice {
    int64_t rows;
    int64_t vocab;         /* columns of one slice */
    int64_t slices, slice; /* how many, and which of them */
    bool z_loss, cap;
    bool no_grad; /* dlogits is NULL */
    bool in_place;
};

/* Targets k tokens ahead. */
struct case_shift_tokens {
    int64_t k;
    struct case_docs docs;
};

struct case_ngram {
    int64_t order, heads;
    struct case_docs docs;
    bool mapped; /* ids go through a map */
    bool before; /* the ids before the first document are given */
};

struct case_halt {
    int64_t d;
    int64_t m;        /* halt_bwd: the segment, from 1 */
    int64_t segments; /* halt_stop, halt_bwd */
    struct case_docs docs;
};

struct case_conv {
    int64_t channels, width;
    int64_t dilation; /* 0: 1 */
    struct case_docs docs;
    bool with_bias;
    bool before; /* the rows before the first document are given */
    bool gaps;
};

/* gates, gated_norm, ssm_in, ssm_out */
struct case_heads {
    int64_t rows, heads;
    int64_t d;      /* width of a head; gates have none */
    bool with_skip; /* ssm_in_bwd: x goes around the rule, too */
    bool in_place, gaps;
};

struct case_delta {
    int64_t heads, heads_k, dk, dv;
    struct case_docs docs;
    bool qk_norm;
    bool no_delta; /* the rule of Mamba-2 */
    bool slow;     /* states are kept for hundreds of rows */
    bool state;    /* forward starts from a state and returns the last one */
    bool gaps;
};

/* route, expert_gemm, expert_act, combine, combine_gate_bwd. All but the last route their rows first. */
struct case_moe {
    int64_t rows, experts, top_k, align;
    int64_t groups, groups_kept; /* groups 0: one */
    int64_t capacity;            /* 0: no limit */
    int64_t n, k;                /* expert_gemm, as in ops_moe.h */
    int64_t f;                   /* expert_act: width of its result */
    int64_t d;                   /* combine: width of a row */
    struct case_docs docs;       /* route, with `sequence` */
    int64_t ranks, rank;         /* route: the rows are those of context-parallel rank `rank` of `ranks`, and docs those of
                                    all of them; 0 ranks: all rows */
    int64_t length;              /* of their sequences, a multiple of 2 ranks */
    bool sigmoid;                /* scores; else softmax */
    bool with_bias;              /* of scores, for the choice */
    bool normalize;              /* weights of a token sum to 1 */
    bool aux, sequence;          /* an auxiliary loss, and that by document */
    bool z_loss;
    bool no_stats; /* route_bwd: cost and load are NULL */
    bool hot;      /* an expert that all tokens choose */
    bool empty;    /* experts that none chooses */
    bool dgrad, wgrad; /* expert_gemm; else its forward */
    bool gather_a, gather_b;
    bool add_to;    /* expert_gemm: c is added to */
    bool with_base; /* combine: adds to a base */
    bool wide;      /* combine: the base has the dtype of sums */
    bool gated;     /* combine: the base has a gate */
    bool in_place;
    bool fp8;       /* expert_gemm: of codes; the rest is for it and for expert_codes alone */
    bool e5m2;      /* expert_gemm: those of a */
    bool fast;
    bool no_codes, no_trans, no_amax; /* expert_codes, of rows of n; and expert_act with `quantized` */
    bool quantized; /* expert_act: with FP8 forms */
    bool only;      /* without the values */
};

struct case_dispatch { /* dispatch_sort */
    int64_t ranks, rank;
    int64_t experts, top_k; /* experts of all ranks */
    int64_t most;           /* rows of a rank for an expert, below this; every third pair has none */
    int64_t align;          /* at least */
};

struct case_balance {
    int64_t routers, experts;
    bool not_finite; /* the norm of the gradients */
};

struct case_update {
    int64_t rows, d; /* rows * d elements */
    bool lion;       /* else AdamW */
    bool moments_bf16, moments_8;
    bool no_clip;    /* the norm is not clipped, and the rate is halved */
    bool table_rows; /* pieces are rows of tables, some of them untouched */
};

struct case_unique {
    int64_t count; /* ids */
    int64_t vocab; /* they are below it */
    bool no_tokens; /* some are TOKEN_NONE or too large */
    bool in_place;
};

/* rows_update */
struct case_table {
    int64_t slots, used; /* rows of sums, and how many of them belong to a row of the table */
    int64_t d;
    int64_t vocab; /* rows of the full table */
    int64_t first; /* the rows before it are elsewhere */
    bool lion, moments_bf16;
    bool not_finite; /* the gradient was */
};

enum case_family {
    CASE_gemm, CASE_embed, CASE_norm, CASE_act, CASE_rows, CASE_rope, CASE_latent, CASE_attn, CASE_xent,
    CASE_slice, CASE_shift_tokens, CASE_ngram, CASE_halt, CASE_conv, CASE_heads, CASE_delta, CASE_moe, CASE_dispatch,
    CASE_balance, CASE_update, CASE_unique, CASE_table, CASE_quantize, CASE_scales, CASE_bound,
    CASE_blocks, CASE_FAMILIES
};
enum case_family case_family(enum op_id op);

struct op_case {
    enum op_id op;
    union { /* case_family(op) selects the member */
        struct case_gemm gemm;
        struct case_embed embed;
        struct case_norm norm;
        struct case_act act;
        struct case_rows rows;
        struct case_rope rope;
        struct case_latent latent;
        struct case_attn attn;
        struct case_xent xent;
        struct case_slice slice;
        struct case_shift_tokens shift_tokens;
        struct case_ngram ngram;
        struct case_halt halt;
        struct case_conv conv;
        struct case_heads heads;
        struct case_delta delta;
        struct case_moe moe;
        struct case_dispatch dispatch;
        struct case_balance balance;
        struct case_update update;
        struct case_unique unique;
        struct case_table table;
        struct case_quantize quantize;
        struct case_scales scales;
        struct case_bound bound;
        struct case_blocks blocks;
    };
};

/* A row's flags follow its numbers: a family without such a field does not compile. */
#define TRANS_A .trans_a = true
#define TRANS_B .trans_b = true
#define WITH_BIAS .with_bias = true
#define ADD_TO .add_to = true
#define WIDE .wide = true
#define IN_PLACE .in_place = true
#define IN_PLACE_2 .in_place_2 = true
#define GAPS .gaps = true
#define POSITIONS .positions = true
#define NO_TOKENS .no_tokens = true
#define BRANCH .branch = true
#define DRES .dres = true
#define NO_STATS .no_stats = true
#define SHIFT .shift = true
#define RECOMPUTE .recompute = true
#define NOT_FINITE .not_finite = true
#define QK_NORM .qk_norm = true
#define Q_ONLY .q_only = true
#define K_ONLY .k_only = true
#define FUSED .fused = true
#define APART .apart = true
#define Z_LOSS .z_loss = true
#define CAPPED .cap = true
#define NO_GRAD .no_grad = true
#define MAPPED .mapped = true
#define BEFORE .before = true
#define WITH_SKIP .with_skip = true
#define NO_DELTA .no_delta = true
#define SLOW .slow = true
#define STATE .state = true
#define SIGMOID .sigmoid = true
#define NORMALIZE .normalize = true
#define AUX .aux = true
#define SEQUENCE .sequence = true
#define HOT .hot = true
#define EMPTY .empty = true
#define DGRAD .dgrad = true
#define WGRAD .wgrad = true
#define GATHER_A .gather_a = true
#define GATHER_B .gather_b = true
#define WITH_BASE .with_base = true
#define GATED .gated = true
#define LION .lion = true
#define MOMENTS_BF16 .moments_bf16 = true
#define MOMENTS_8 .moments_8 = true
#define NO_CLIP .no_clip = true
#define TABLE_ROWS .table_rows = true
#define E5M2 .e5m2 = true
#define E5M2_A .e5m2_a = true
#define E5M2_B .e5m2_b = true
#define WITH_ADD .with_add = true
#define FAST .fast = true
#define ZEROS .zeros = true
#define OUTLIER .outlier = true
#define SUBNORMAL .subnormal = true
#define SATURATED .saturated = true
#define INFINITE .infinite = true
#define NO_CODES .no_codes = true
#define NO_VALUES .no_values = true
#define NO_TRANS .no_trans = true
#define NO_AMAX .no_amax = true
#define QUANTIZED .quantized = true
#define ONLY .only = true
#define MEASURED .measured = true
#define DELAYED .delayed = true
#define COLUMNS .columns = true
#define SQUARE .square = true
#define HADAMARD .hadamard = true
#define STOCHASTIC .stochastic = true
#define EXACT .exact = true

/* clang-format off */
/* The last number and the flags arrive as __VA_ARGS__. */
#define GEMM(m_, n_, ...) {.op = OP_gemm, .gemm = {.m = m_, .n = n_, .k = __VA_ARGS__}}
/* FP8 operands: k and n are multiples of 16 */
#define GEMM_FP8(m_, n_, ...) {.op = OP_gemm, .gemm = {.m = m_, .n = n_, TRANS_B, .fp8 = true, .k = __VA_ARGS__}}
#define QUANTIZE(rows_, n_, ...) {.op = OP_quantize, .quantize = {.rows = rows_, .n = n_, .exp = __VA_ARGS__}}
#define SCALES(count_, ranks_, ...) {.op = OP_fp8_scales, .scales = {.count = count_, .ranks = ranks_, .margin = __VA_ARGS__}}
#define BOUND(...) {.op = OP_fp8_bound, .bound = {.d = __VA_ARGS__}}
#define BLOCKS(rows_, n_, ...) {.op = OP_quantize_blocks, .blocks = {.rows = rows_, .n = n_, .format = __VA_ARGS__}}
#define BLOCKS_OF(...) \
    BLOCKS(1, 16, __VA_ARGS__), BLOCKS(17, 48, __VA_ARGS__), BLOCKS(144, 272, __VA_ARGS__, COLUMNS), \
    BLOCKS(130, 144, __VA_ARGS__, ZEROS), BLOCKS(33, 96, __VA_ARGS__, COLUMNS, ZEROS, NO_CODES), \
    BLOCKS(130, 272, __VA_ARGS__, ZEROS, NO_VALUES), BLOCKS(272, 144, __VA_ARGS__, COLUMNS, ZEROS, NO_VALUES)
#define BIAS(m_, n_, k_) {.op = OP_bias_bwd, .gemm = {.m = m_, .n = n_, .k = k_, WITH_BIAS}}
#define EMBED(op_, rows_, d_, ...) {.op = OP_##op_, .embed = {.rows = rows_, .d = d_, .vocab = __VA_ARGS__}}
#define UNIQUE(count_, ...) {.op = OP_rows_unique, .unique = {.count = count_, .vocab = __VA_ARGS__}}
#define TABLE(slots_, used_, d_, vocab_, ...) \
    {.op = OP_rows_update, .table = {.slots = slots_, .used = used_, .d = d_, .vocab = vocab_, .first = __VA_ARGS__}}
#define UPDATE(rows_, ...) {.op = OP_update, .update = {.rows = rows_, .d = __VA_ARGS__}}
#define ROWS(op_, rows_, ...) {.op = OP_##op_, .rows = {.rows = rows_, .d = __VA_ARGS__}}
#define ACT(op_, rows_, ...) {.op = OP_##op_, .act = {.rows = rows_, .d = __VA_ARGS__}}
#define NORM(op_, rows_, ...) {.op = OP_##op_, .norm = {.rows = rows_, .d = __VA_ARGS__}}
#define NORMS(op_) /* both directions share their shapes */ \
    NORM(op_##_fwd, 1, 1), NORM(op_##_fwd, 3, 7, BRANCH), NORM(op_##_fwd, 5, 8, DRES), \
    NORM(op_##_fwd, 2, 15, NO_STATS), \
    NORM(op_##_fwd, 9, 17, BRANCH, IN_PLACE), NORM(op_##_fwd, 4, 33, BRANCH, NO_STATS), \
    NORM(op_##_fwd, 67, 768, BRANCH), \
    NORM(op_##_fwd, 3, 2047), NORM(op_##_fwd, 130, 320, BRANCH, IN_PLACE), \
    NORM(op_##_fwd, 0, 16, BRANCH), NORM(op_##_fwd, 11, 96, BRANCH, IN_PLACE_2), \
    NORM(op_##_bwd, 11, 96, DRES, IN_PLACE_2), NORM(op_##_bwd, 6, 31, DRES, IN_PLACE_2), \
    NORM(op_##_bwd, 1, 1), NORM(op_##_bwd, 3, 7, DRES), NORM(op_##_bwd, 5, 8), \
    NORM(op_##_bwd, 2, 15, DRES, IN_PLACE), \
    NORM(op_##_bwd, 9, 17, IN_PLACE), NORM(op_##_bwd, 67, 768, DRES), NORM(op_##_bwd, 3, 2047), \
    NORM(op_##_bwd, 130, 320, DRES, IN_PLACE), NORM(op_##_bwd, 0, 16)
#define NORMS_FP8(op_) \
    NORM(op_, 1, 16, QUANTIZED), NORM(op_, 15, 48, DRES, QUANTIZED), NORM(op_, 16, 272, QUANTIZED, SHIFT), \
    NORM(op_, 17, 48, DRES, IN_PLACE, QUANTIZED), NORM(op_, 129, 272, DRES, QUANTIZED), NORM(op_, 67, 768, DRES, QUANTIZED, NO_TRANS), \
    NORM(op_, 40, 2048, DRES, QUANTIZED), NORM(op_, 9, 17, DRES, MEASURED), NORM(op_, 129, 272, MEASURED), NORM(op_, 0, 16, QUANTIZED)
#define ACTS_FP8(op_, ...) \
    ACT(op_, 1, 16, QUANTIZED, __VA_ARGS__), ACT(op_, 15, 48, QUANTIZED, __VA_ARGS__), ACT(op_, 16, 272, QUANTIZED, __VA_ARGS__), \
    ACT(op_, 129, 272, QUANTIZED, __VA_ARGS__), ACT(op_, 66, 1040, QUANTIZED, NO_TRANS, __VA_ARGS__), ACT(op_, 7, 33, MEASURED, __VA_ARGS__), \
    ACT(op_, 129, 272, MEASURED, __VA_ARGS__), ACT(op_, 0, 16, QUANTIZED, __VA_ARGS__)
#define ROPE(op_, rows_, h_, kv_, head_dim_, ...) \
    {.op = OP_##op_, .rope = {.rows = rows_, .heads = h_, .heads_kv = kv_, .head_dim = head_dim_, .half = __VA_ARGS__}}
#define ROPES(op_) \
    ROPE(op_, 1, 1, 1, 2, 1), ROPE(op_, 5, 2, 1, 6, 2, QK_NORM), ROPE(op_, 3, 3, 1, 16, 8, IN_PLACE), \
    ROPE(op_, 7, 4, 2, 64, 32, QK_NORM, GAPS), ROPE(op_, 9, 4, 1, 80, 10, GAPS), \
    ROPE(op_, 65, 6, 2, 128, 64, QK_NORM), \
    ROPE(op_, 4, 2, 2, 64, 0, QK_NORM), ROPE(op_, 4, 2, 2, 18, 0), ROPE(op_, 33, 5, 5, 34, 17, QK_NORM), \
    ROPE(op_, 130, 4, 4, 64, 32, IN_PLACE), ROPE(op_, 0, 1, 1, 16, 8)
#define SHIFTED(way) \
    NORM(rmsnorm_##way, 9, 17, SHIFT), NORM(rmsnorm_##way, 67, 768, DRES, SHIFT), NORM(rmsnorm_##way, 5, 128, SHIFT), \
    ROPE(rope_##way, 5, 2, 1, 6, 2, QK_NORM, SHIFT), ROPE(rope_##way, 33, 4, 2, 64, 8, QK_NORM, GAPS, SHIFT), \
    ROPE(rope_##way, 7, 2, 2, 256, 32, QK_NORM, SHIFT)
#define TAILS(op_, rows_, h_, nope_, ...) \
    {.op = OP_##op_, .latent = {.rows = rows_, .heads = h_, .nope = nope_, .half = __VA_ARGS__}}
#define TAILED(op_) \
    TAILS(op_, 1, 1, 2, 1), TAILS(op_, 5, 3, 6, 5, GAPS), TAILS(op_, 9, 4, 128, 32), TAILS(op_, 3, 2, 16, 8, GAPS), \
    TAILS(op_, 70, 2, 7, 3, GAPS), TAILS(op_, 4, 1, 0, 32, GAPS), TAILS(op_, 65, 6, 64, 16), TAILS(op_, 0, 2, 8, 4), \
    TAILS(op_, 33, 5, 24, 20, GAPS), TAILS(op_, 6, 2, 8, 16, K_ONLY), TAILS(op_, 6, 3, 8, 64)
#define ATTN(op_, h_, kv_, head_dim_, w_, ...) \
    {.op = OP_##op_, .attn = {.heads = h_, .heads_kv = kv_, .head_dim = head_dim_, .window = w_, .docs = __VA_ARGS__}}
/* values of another width than keys */
#define LATENT(op_, h_, kv_, head_dim_, head_dim_v_, w_, ...) \
    {.op = OP_##op_, .attn = {.heads = h_, .heads_kv = kv_, .head_dim = head_dim_, .head_dim_v = head_dim_v_, .window = w_, .docs = __VA_ARGS__}}
/* queries of one rank of those that share each sequence */
#define PART(op_, h_, kv_, head_dim_, w_, ranks_, rank_, ...) \
    {.op = OP_##op_, .attn = {.heads = h_, .heads_kv = kv_, .head_dim = head_dim_, .window = w_, .ranks = ranks_, .rank = rank_, .docs = __VA_ARGS__}}
#define PARTS(op_) \
    PART(op_, 2, 1, 16, 0, 2, 0, DOCS(8)), PART(op_, 2, 1, 16, 0, 2, 1, DOCS(8), GAPS), \
    PART(op_, 4, 2, 64, 0, 2, 0, DOCS(17, 0, 33, 14)), PART(op_, 4, 2, 64, 0, 2, 1, DOCS(17, 0, 33, 14), GAPS), \
    PART(op_, 1, 1, 18, 5, 4, 2, DOCS(31, 33)), PART(op_, 2, 2, 80, 7, 3, 0, DOCS(50, 10)), \
    PART(op_, 2, 1, 7, 0, 2, 0, DOCS(36, 9, 27), .length = 36), PART(op_, 2, 1, 64, 3, 2, 1, DOCS(36, 9, 27), .length = 36), \
    PART(op_, 1, 1, 64, 0, 4, 3, DOCS(1, 1, 1, 1, 1, 1, 1, 1)), PART(op_, 2, 2, 128, 300, 2, 0, DOCS(260)), \
    PART(op_, 2, 2, 192, 0, 2, 1, DOCS(67, 5), .head_dim_v = 128), PART(op_, 3, 1, 24, 9, 2, 0, DOCS(64), .head_dim_v = 16, GAPS)
#define ATTNS(op_) \
    PARTS(op_), \
    ATTN(op_, 1, 1, 16, 0, DOCS(1)), ATTN(op_, 2, 1, 16, 0, DOCS(0, 1, 7), GAPS), \
    ATTN(op_, 4, 1, 64, 0, DOCS(17, 0, 33, 0), GAPS), \
    ATTN(op_, 2, 2, 80, 5, DOCS(31, 20)), ATTN(op_, 4, 2, 128, 16, DOCS(65, 3), GAPS), \
    ATTN(op_, 2, 2, 64, 1, DOCS(19)), \
    ATTN(op_, 2, 1, 64, 40, DOCS(129, 64), GAPS), ATTN(op_, 1, 1, 18, 0, DOCS(5, 6)), \
    ATTN(op_, 3, 3, 64, 0, DOCS(257), GAPS), \
    ATTN(op_, 2, 2, 64, 1000, DOCS(0, 40, 0, 0, 24)), ATTN(op_, 2, 1, 7, 3, DOCS(9, 2)), \
    ATTN(op_, 1, 1, 16, 0, DOCS(0, 0)), ATTN(op_, 4, 2, 64, 0, DOCS(33, 70, 0), FUSED), \
    ATTN(op_, 2, 2, 48, 9, DOCS(50), FUSED), \
    LATENT(op_, 2, 2, 192, 128, 0, DOCS(67, 5)), LATENT(op_, 3, 1, 24, 16, 0, DOCS(65, 0), GAPS), \
    LATENT(op_, 2, 1, 7, 40, 4, DOCS(9, 33), GAPS), LATENT(op_, 1, 1, 16, 80, 0, DOCS(130))
#define XENT(rows_, vocab_, ...) {.op = OP_xent, .xent = {.rows = rows_, .vocab = vocab_, .used = __VA_ARGS__}}
#define HITS(rows_, vocab_, used_) {.op = OP_top1_correct, .xent = {.rows = rows_, .vocab = vocab_, .used = used_}}
#define SLICED(op_, rows_, vocab_, slices_, ...) \
    {.op = OP_##op_, .slice = {.rows = rows_, .vocab = vocab_, .slices = slices_, .slice = __VA_ARGS__}}
#define AHEAD(k_, ...) {.op = OP_shift_tokens, .shift_tokens = {.k = k_, .docs = __VA_ARGS__}}
#define CONV(op_, channels_, width_, ...) {.op = OP_##op_, .conv = {.channels = channels_, .width = width_, .docs = __VA_ARGS__}}
#define CONVS(op_) \
    CONV(op_, 1, 2, DOCS(1)), CONV(op_, 7, 4, DOCS(5, 0, 2), GAPS), CONV(op_, 64, 4, DOCS(70, 33)), \
    CONV(op_, 33, 8, DOCS(3, 19), GAPS, WITH_BIAS), CONV(op_, 12, 4, DOCS(1, 40, 9), WITH_BIAS), CONV(op_, 130, 3, DOCS(129)), \
    CONV(op_, 8, 4, DOCS(0, 0))
#define DILATE(op_, channels_, width_, dilation_, ...) \
    {.op = OP_##op_, .conv = {.channels = channels_, .width = width_, .dilation = dilation_, .docs = __VA_ARGS__}}
#define DILATED(op_) \
    DILATE(op_, 7, 4, 3, DOCS(5, 0, 40), GAPS), DILATE(op_, 64, 4, 3, DOCS(70, 133)), DILATE(op_, 17, 8, 8, DOCS(3, 130))
#define NGRAM(order_, heads_, ...) {.op = OP_ngram, .ngram = {.order = order_, .heads = heads_, .docs = __VA_ARGS__}}
#define HALT(op_, d_, m_, segments_, ...) {.op = OP_##op_, .halt = {.d = d_, .m = m_, .segments = segments_, .docs = __VA_ARGS__}}
#define HEADS(op_, rows_, heads_, ...) {.op = OP_##op_, .heads = {.rows = rows_, .heads = heads_, .d = __VA_ARGS__}}
#define DELTA(op_, h_, hk_, dk_, dv_, ...) \
    {.op = OP_##op_, .delta = {.heads = h_, .heads_k = hk_, .dk = dk_, .dv = dv_, .docs = __VA_ARGS__}}
#define DELTAS(op_) \
    DELTA(op_, 1, 1, 4, 4, DOCS(1)), DELTA(op_, 2, 1, 16, 8, DOCS(3, 0, 20), QK_NORM, GAPS), \
    DELTA(op_, 4, 2, 16, 16, DOCS(63, 65), QK_NORM), DELTA(op_, 2, 2, 32, 16, DOCS(64), GAPS), \
    DELTA(op_, 4, 1, 16, 32, DOCS(150), QK_NORM), DELTA(op_, 2, 1, 16, 16, DOCS(70, 5), NO_DELTA), \
    DELTA(op_, 1, 1, 7, 5, DOCS(9), QK_NORM), DELTA(op_, 1, 1, 16, 16, DOCS(0, 0))
#define DISPATCH(ranks_, rank_, experts_, top_k_, most_, align_) \
    {.op = OP_dispatch_sort, .dispatch = {.ranks = ranks_, .rank = rank_, .experts = experts_, .top_k = top_k_, .most = most_, .align = align_}}
#define BALANCE(routers_, ...) {.op = OP_balance, .balance = {.routers = routers_, .experts = __VA_ARGS__}}
#define MOE(op_, rows_, experts_, top_k_, ...) \
    {.op = OP_##op_, .moe = {.rows = rows_, .experts = experts_, .top_k = top_k_, .align = __VA_ARGS__}}
#define ROUTES(op_) \
    MOE(op_, 1, 1, 1, 1, NORMALIZE), MOE(op_, 1, 4, 4, 1), MOE(op_, 7, 5, 2, 8, SIGMOID, NORMALIZE, WITH_BIAS), \
    MOE(op_, 33, 8, 3, 16, EMPTY, NORMALIZE, AUX), MOE(op_, 65, 16, 4, 1, HOT, SIGMOID, WITH_BIAS, AUX, Z_LOSS), \
    MOE(op_, 40, 12, 5, 32, .groups = 4, .groups_kept = 2, SIGMOID, NORMALIZE, WITH_BIAS), \
    MOE(op_, 29, 6, 2, 4, .groups = 6, .groups_kept = 3, NORMALIZE, Z_LOSS), \
    MOE(op_, 50, 8, 2, 16, .capacity = 9, HOT, NORMALIZE, AUX), MOE(op_, 90, 6, 3, 1, .capacity = 100, NORMALIZE), \
    MOE(op_, 31, 7, 3, 1, .docs = DOCS(5, 0, 25, 1), AUX, SEQUENCE, SIGMOID, NORMALIZE), \
    MOE(op_, 70, 9, 2, 64, .docs = DOCS(69, 1), AUX, SEQUENCE, EMPTY), \
    MOE(op_, 0, 4, 2, 128, NORMALIZE), MOE(op_, 300, 64, 8, 128, NORMALIZE, AUX, Z_LOSS), \
    MOE(op_, 130, 256, 8, 128, .groups = 8, .groups_kept = 4, SIGMOID, NORMALIZE, WITH_BIAS, AUX), \
    MOE(op_, 3, 500, 16, 128, NO_STATS), MOE(op_, 1000, 3, 1, 128, HOT), \
    MOE(op_, 12, 5, 2, 8, .ranks = 2, .rank = 1, .length = 8, AUX, NORMALIZE), \
    MOE(op_, 60, 8, 3, 1, .ranks = 3, .rank = 0, .length = 60, .capacity = 30, AUX, Z_LOSS, SIGMOID, WITH_BIAS), \
    MOE(op_, 300, 64, 8, 128, .ranks = 4, .rank = 2, .length = 400, .capacity = 160, HOT, NORMALIZE), \
    MOE(op_, 40, 6, 2, 1, .ranks = 2, .rank = 0, .length = 80, .capacity = 1000, .docs = DOCS(1, 0, 50, 29), AUX, SEQUENCE), \
    MOE(op_, 128, 20, 4, 16, .ranks = 4, .rank = 3, .length = 256, .capacity = 70, .docs = DOCS(100, 156, 200, 56), HOT, AUX, SEQUENCE, SIGMOID)
#define GEMMS(...) \
    MOE(expert_gemm, 1, 1, 1, 1, .n = 1, .k = 1, __VA_ARGS__), MOE(expert_gemm, 7, 5, 2, 8, .n = 3, .k = 5, EMPTY, __VA_ARGS__), \
    MOE(expert_gemm, 33, 8, 3, 1, .n = 17, .k = 31, EMPTY, __VA_ARGS__), \
    MOE(expert_gemm, 65, 4, 2, 16, .n = 64, .k = 40, HOT, __VA_ARGS__), \
    MOE(expert_gemm, 40, 6, 2, 32, .n = 24, .k = 72, .capacity = 11, HOT, __VA_ARGS__), \
    MOE(expert_gemm, 200, 3, 3, 1, .n = 40, .k = 33, __VA_ARGS__), MOE(expert_gemm, 0, 3, 2, 128, .n = 8, .k = 16, __VA_ARGS__), \
    MOE(expert_gemm, 300, 16, 4, 128, .n = 128, .k = 96, __VA_ARGS__), MOE(expert_gemm, 5, 64, 8, 1, .n = 32, .k = 16, __VA_ARGS__)
/* FP8 operands: n and k are multiples of 16 */
#define GEMMS_FP8(...) \
    MOE(expert_gemm, 1, 1, 1, 1, .fp8 = true, .n = 16, .k = 16, __VA_ARGS__), \
    MOE(expert_gemm, 7, 5, 2, 8, .fp8 = true, .n = 48, .k = 16, EMPTY, __VA_ARGS__), \
    MOE(expert_gemm, 65, 4, 2, 16, .fp8 = true, .n = 64, .k = 48, HOT, __VA_ARGS__), \
    MOE(expert_gemm, 40, 6, 2, 32, .fp8 = true, .n = 32, .k = 80, .capacity = 11, HOT, __VA_ARGS__), \
    MOE(expert_gemm, 0, 3, 2, 128, .fp8 = true, .n = 16, .k = 16, __VA_ARGS__), \
    MOE(expert_gemm, 150, 8, 2, 1, .fp8 = true, .n = 128, .k = 96, __VA_ARGS__)
#define EXPERT_CODES(...) \
    MOE(expert_codes, 1, 1, 1, 1, .n = 16, __VA_ARGS__), MOE(expert_codes, 7, 5, 2, 8, .n = 48, EMPTY, __VA_ARGS__), \
    MOE(expert_codes, 65, 4, 2, 1, .n = 272, HOT, __VA_ARGS__), MOE(expert_codes, 0, 3, 2, 128, .n = 16, __VA_ARGS__), \
    MOE(expert_codes, 40, 6, 3, 32, .n = 144, .capacity = 11, HOT, __VA_ARGS__)
#define EXPERT_ACTS(op_, ...) \
    MOE(op_, 1, 1, 1, 1, .f = 1, __VA_ARGS__), MOE(op_, 7, 5, 2, 8, .f = 7, __VA_ARGS__), \
    MOE(op_, 33, 8, 3, 1, .f = 40, EMPTY, SIGMOID, __VA_ARGS__), \
    MOE(op_, 0, 4, 2, 128, .f = 8, __VA_ARGS__), MOE(op_, 70, 6, 2, 128, .f = 129, HOT, NORMALIZE, __VA_ARGS__)
/* FP8 forms: experts with 0, 1, 7 and 129 rows, and widths of one square of codes and more */
#define EXPERT_ACTS_FP8(op_, ...) \
    MOE(op_, 1, 1, 1, 1, .f = 16, .quantized = true, __VA_ARGS__), MOE(op_, 7, 5, 2, 8, .f = 48, EMPTY, .quantized = true, __VA_ARGS__), \
    MOE(op_, 0, 4, 2, 128, .f = 16, .quantized = true, __VA_ARGS__), \
    MOE(op_, 129, 2, 1, 128, .f = 144, HOT, NORMALIZE, .quantized = true, __VA_ARGS__), \
    MOE(op_, 7, 6, 1, 128, .f = 272, HOT, .quantized = true, __VA_ARGS__)
#define COMBINES(op_, ...) \
    MOE(op_, 1, 1, 1, 1, .d = 1, __VA_ARGS__), MOE(op_, 9, 5, 2, 8, .d = 17, __VA_ARGS__), \
    MOE(op_, 33, 8, 3, 1, .d = 64, __VA_ARGS__), \
    MOE(op_, 50, 6, 2, 128, .d = 130, .capacity = 11, HOT, __VA_ARGS__), MOE(op_, 0, 4, 2, 1, .d = 8, __VA_ARGS__)

static const struct op_case op_cases[] = {
    GEMM(1, 1, 1), GEMM(1, 1, 1, TRANS_B, WITH_BIAS), GEMM(3, 5, 7), GEMM(3, 5, 7, TRANS_A),
    GEMM(3, 5, 7, TRANS_B),
    GEMM(3, 5, 7, TRANS_A, TRANS_B), GEMM(17, 31, 33, TRANS_B, WITH_BIAS), GEMM(1, 257, 64, TRANS_B),
    GEMM(2, 96, 15, TRANS_B),
    GEMM(33, 16, 129, WIDE), GEMM(15, 63, 65, TRANS_A, WIDE, ADD_TO),
    GEMM(64, 17, 31, TRANS_B, WIDE, ADD_TO),
    GEMM(65, 127, 1, TRANS_A, WIDE, ADD_TO), GEMM(1, 300, 129, TRANS_B, WIDE, WITH_BIAS),
    GEMM(0, 8, 4), GEMM(40, 33, 1570, TRANS_B, WITH_BIAS), GEMM(33, 70, 1601, TRANS_A, WIDE, ADD_TO),
    GEMM(192, 384, 768, TRANS_B, WITH_BIAS), GEMM(128, 768, 320),
    GEMM(320, 192, 257, TRANS_A, WIDE, ADD_TO),
    GEMM(20, 50, 11000, TRANS_B, WIDE, WITH_BIAS), GEMM(9, 800, 5500, WIDE, ADD_TO),
    BIAS(1, 1, 2), BIAS(7, 17, 3), BIAS(130, 63, 3), BIAS(333, 768, 1),

    EMBED(embed_fwd, 1, 1, 1),
    EMBED(embed_fwd, 9, 17, 5, POSITIONS),
    EMBED(embed_fwd, 130, 320, 97),
    EMBED(embed_fwd, 65, 768, 50, POSITIONS),
    EMBED(embed_bwd, 1, 1, 1),
    EMBED(embed_bwd, 9, 17, 5, POSITIONS),
    EMBED(embed_bwd, 300, 33, 3),
    EMBED(embed_bwd, 130, 320, 97, POSITIONS),
    EMBED(embed_fwd, 33, 17, 5, NO_TOKENS),
    EMBED(embed_fwd, 70, 64, 40, NO_TOKENS),
    EMBED(embed_bwd, 33, 17, 5, NO_TOKENS),
    EMBED(embed_fwd, 33, 17, 5, .first = 5, .ids = 15),
    EMBED(embed_fwd, 70, 64, 20, .first = 60, .ids = 80, POSITIONS),
    EMBED(embed_fwd, 70, 64, 20, .ids = 40, NO_TOKENS),
    EMBED(embed_bwd, 33, 17, 5, .first = 5, .ids = 15),
    EMBED(embed_bwd, 300, 64, 20, .first = 60, .ids = 80, POSITIONS),
    EMBED(embed_bwd, 70, 64, 20, .ids = 40, NO_TOKENS),
    EMBED(embed_bwd, 130, 64, 40, NO_TOKENS),
    NGRAM(3, 8, DOCS(5, 0, 40)), NGRAM(2, 1, DOCS(1, 2, 3, 1), MAPPED), NGRAM(4, 8, DOCS(70), MAPPED), NGRAM(3, 2, DOCS(1), BEFORE),
    NGRAM(4, 3, DOCS(6), BEFORE, MAPPED), NGRAM(8, 16, DOCS(9, 3)), NGRAM(3, 2, DOCS(0, 0)), NGRAM(4, 3, DOCS(1, 1, 1), BEFORE, MAPPED),
    ROWS(ngram_gate_fwd, 1, 1), ROWS(ngram_gate_fwd, 9, 17), ROWS(ngram_gate_fwd, 65, 64, IN_PLACE), ROWS(ngram_gate_fwd, 0, 8),
    ROWS(ngram_gate_bwd, 1, 3), ROWS(ngram_gate_bwd, 9, 17), ROWS(ngram_gate_bwd, 65, 64), ROWS(ngram_gate_bwd, 0, 8),
    HALT(halt_fwd, 1, 0, 0, DOCS(1)), HALT(halt_fwd, 17, 0, 0, DOCS(5, 0, 2, 40)), HALT(halt_fwd, 64, 0, 0, DOCS(0, 0)),
    HALT(halt_stop, 0, 0, 1, DOCS(1)), HALT(halt_stop, 0, 0, 5, DOCS(5, 0, 2, 40)), HALT(halt_stop, 0, 0, 3, DOCS(0, 0)),
    HALT(halt_bwd, 1, 1, 2, DOCS(1)), HALT(halt_bwd, 17, 2, 4, DOCS(5, 0, 2, 40)), HALT(halt_bwd, 64, 3, 3, DOCS(9, 1, 1)),
    HALT(halt_bwd, 8, 1, 3, DOCS(0, 0)),
    AHEAD(1, DOCS(1)), AHEAD(2, DOCS(5, 0, 2, 40)), AHEAD(0, DOCS(7, 70)), AHEAD(3, DOCS(3, 300, 0, 0, 2)), AHEAD(1, DOCS(0, 0)),

    NORMS(rmsnorm), NORMS(layernorm), ROPES(rope_fwd), ROPES(rope_bwd), ATTNS(attn_fwd), ATTNS(attn_bwd),
    SHIFTED(fwd), SHIFTED(bwd),
    ATTN(attn_fwd, 2, 1, 32, 0, DOCS(21), NO_STATS),
    /* long enough that few heads are split by query blocks */
    ATTN(attn_fwd, 2, 1, 64, 0, DOCS(700), APART),
    ATTN(attn_fwd, 2, 1, 18, 0, DOCS(70, 1045)), ATTN(attn_fwd, 1, 1, 16, 300, DOCS(1100)),
    /* decode: document lengths are cache lengths */
    ATTN(attn_decode, 1, 1, 16, 0, DOCS(1)), ATTN(attn_decode, 4, 1, 64, 0, DOCS(1, 17, 40)),
    ATTN(attn_decode, 4, 2, 80, 5, DOCS(3, 33)), ATTN(attn_decode, 2, 2, 128, 16, DOCS(16, 100)),
    ATTN(attn_decode, 6, 2, 18, 0, DOCS(9)), LATENT(attn_decode, 4, 2, 24, 16, 0, DOCS(5, 40), GAPS),
    /* values are the front of the keys' rows, as in a compressed cache */
    LATENT(kv_cache_append, 1, 2, 8, 8, 0, DOCS(1)), LATENT(kv_cache_append, 1, 1, 7, 5, 0, DOCS(3, 1, 9), GAPS),
    LATENT(kv_cache_append, 1, 4, 64, 64, 0, DOCS(5, 33)),
    LATENT(kv_cache_append, 1, 1, 512, 64, 0, DOCS(2, 40, 7), FUSED),
    LATENT(kv_cache_append, 1, 3, 24, 0, 0, DOCS(4, 4)),
    LATENT(kv_cache_append, 1, 1, 16, 6, 0, DOCS(6, 2), FUSED, GAPS),
    TAILS(per_head_gemm, 1, 1, 2, 1), TAILS(per_head_gemm, 3, 2, 10, 33, GAPS), TAILS(per_head_gemm, 1, 3, 12, 20), TAILS(per_head_gemm, 9, 4, 64, 128),
    TAILS(per_head_gemm, 1, 2, 128, 512), TAILS(per_head_gemm, 1, 1, 1, 7, K_ONLY), TAILS(per_head_gemm, 3, 2, 33, 10, K_ONLY, GAPS),
    TAILS(per_head_gemm, 9, 4, 128, 64, K_ONLY), TAILS(per_head_gemm, 1, 2, 512, 128, K_ONLY),
    TAILS(per_head_gemm, 0, 2, 8, 4),
    LATENT(attn_decode, 3, 1, 576, 512, 0, DOCS(1, 37), FUSED), LATENT(attn_decode, 4, 1, 20, 12, 6, DOCS(30), FUSED),

    ACT(swiglu_fwd, 1, 1), ACT(swiglu_fwd, 3, 7), ACT(swiglu_fwd, 5, 16),
    ACT(swiglu_fwd, 7, 33),
    ACT(swiglu_fwd, 66, 1031), ACT(swiglu_bwd, 1, 1), ACT(swiglu_bwd, 3, 7, IN_PLACE),
    ACT(swiglu_bwd, 5, 16),
    ACT(swiglu_bwd, 7, 33, IN_PLACE), ACT(swiglu_bwd, 66, 1031),
    ACT(gelu_fwd, 1, 1), ACT(gelu_fwd, 3, 11), ACT(gelu_fwd, 70, 1025), ACT(gelu_fwd, 0, 4),
    ACT(gelu_bwd, 1, 1, IN_PLACE), ACT(gelu_bwd, 3, 11), ACT(gelu_bwd, 70, 1025, IN_PLACE),
    ACT(swiglu_bwd, 3, 7, RECOMPUTE), ACT(swiglu_bwd, 9, 64, RECOMPUTE, IN_PLACE), ACT(swiglu_bwd, 66, 1031, RECOMPUTE, IN_PLACE),
    ACT(gelu_bwd, 3, 11, RECOMPUTE), ACT(gelu_bwd, 70, 1025, RECOMPUTE, IN_PLACE),
    ACT(gelu_bwd, 9, 64, RECOMPUTE, IN_PLACE, IN_PLACE_2),
    ACT(gelu_bwd, 5, 21, IN_PLACE_2), ACT(gelu_bwd, 9, 64, IN_PLACE_2),
    TAILED(mla_rope_fwd), TAILED(mla_rope_bwd), TAILS(mla_rope_fwd, 7, 2, 16, 8, Q_ONLY), TAILS(mla_rope_bwd, 7, 2, 16, 8, Q_ONLY),
    TAILS(mla_rope_bwd, 5, 3, 6, 5, Q_ONLY, GAPS),
    NORM(rmsnorm_fwd, 5, 17, GAPS), NORM(rmsnorm_fwd, 67, 256, GAPS), NORM(rmsnorm_fwd, 9, 512, GAPS, SHIFT, NO_STATS),
    NORM(rmsnorm_bwd, 5, 17, GAPS), NORM(rmsnorm_bwd, 67, 256, GAPS), NORM(rmsnorm_bwd, 9, 512, GAPS, SHIFT),
    NORM(rmsnorm_bwd, 66, 96, GAPS, IN_PLACE), NORM(rmsnorm_bwd, 3, 33, GAPS, IN_PLACE),
    XENT(1, 1, 1), XENT(3, 7, 5, Z_LOSS), XENT(5, 17, 17, IN_PLACE),
    XENT(9, 64, 63, Z_LOSS, IN_PLACE), XENT(33, 1031, 1000),
    XENT(4, 4096, 4000, Z_LOSS), XENT(6, 33, 33, NO_GRAD), XENT(7, 130, 129, NO_GRAD, Z_LOSS),
    XENT(3, 7, 5, CAPPED), XENT(9, 64, 63, CAPPED, Z_LOSS, IN_PLACE), XENT(33, 1031, 1000, CAPPED),
    ROWS(softcap, 1, 1), ROWS(softcap, 3, 11), ROWS(softcap, 70, 1025), ROWS(softcap, 9, 512), ROWS(softcap, 0, 4),
    ACT(gate_fwd, 1, 1), ACT(gate_fwd, 7, 33, GAPS), ACT(gate_fwd, 66, 1024), ACT(gate_fwd, 5, 48, GAPS),
    ACT(gate_fwd, 0, 8), ACT(gate_bwd, 1, 1), ACT(gate_bwd, 7, 33, GAPS), ACT(gate_bwd, 66, 1024, RECOMPUTE, IN_PLACE),
    ACT(gate_bwd, 5, 48, RECOMPUTE, IN_PLACE_2), ACT(gate_bwd, 9, 17, RECOMPUTE, GAPS, IN_PLACE), ACT(gate_bwd, 0, 8),
    SLICED(vocab_xent_partial, 1, 1, 1, 0), SLICED(vocab_xent_partial, 9, 7, 3, 1),
    SLICED(vocab_xent_partial, 33, 1031, 2, 1),
    SLICED(vocab_xent_partial, 20, 64, 4, 3), SLICED(vocab_xent_partial, 70, 2, 8, 0),
    SLICED(vocab_xent_finish, 1, 1, 1, 0), SLICED(vocab_xent_finish, 9, 7, 3, 1, Z_LOSS),
    SLICED(vocab_xent_finish, 33, 1031, 2, 1, IN_PLACE),
    SLICED(vocab_xent_finish, 20, 64, 4, 3, Z_LOSS, IN_PLACE), SLICED(vocab_xent_finish, 70, 2, 8, 0), SLICED(vocab_xent_finish, 9, 33, 2, 0, NO_GRAD), SLICED(vocab_xent_finish, 9, 65, 2, 1, NO_GRAD, Z_LOSS),
    SLICED(vocab_xent_finish, 20, 64, 4, 3, CAPPED, IN_PLACE),
    SLICED(vocab_xent_finish, 33, 1031, 2, 1, CAPPED, Z_LOSS),
    HITS(1, 1, 1), HITS(3, 7, 5), HITS(33, 1031, 1000), HITS(9, 64, 64), HITS(70, 4, 3),
    ROWS(sum, 1, 1), ROWS(sum, 3, 11), ROWS(sum, 70, 1025), ROWS(sum, 0, 4),
    UPDATE(1, 1), UPDATE(3, 11, NO_CLIP), UPDATE(70, 1025), UPDATE(0, 4),
    UPDATE(1, 1, LION), UPDATE(3, 11, LION), UPDATE(70, 1025, LION, NO_CLIP),
    UPDATE(3, 11, MOMENTS_BF16), UPDATE(70, 1025, MOMENTS_BF16),
    UPDATE(40, 16, TABLE_ROWS), UPDATE(300, 64, TABLE_ROWS, MOMENTS_BF16), UPDATE(7, 32, TABLE_ROWS, LION),
    UPDATE(90, 272, TABLE_ROWS),
    UPDATE(5, 13, MOMENTS_BF16, LION), UPDATE(70, 1031, MOMENTS_BF16, LION),
    UPDATE(1, 1, MOMENTS_8), UPDATE(3, 11, MOMENTS_8), UPDATE(70, 1025, MOMENTS_8, NO_CLIP), UPDATE(64, 512, MOMENTS_8),
    UPDATE(5, 13, MOMENTS_8, LION), UPDATE(70, 1031, MOMENTS_8, LION),
    UNIQUE(1, 1), UNIQUE(70, 9, NO_TOKENS), UNIQUE(300, 5000, IN_PLACE),
    UNIQUE(5000, 700, NO_TOKENS, IN_PLACE), UNIQUE(0, 9),
    TABLE(1, 1, 16, 1, 0), TABLE(70, 40, 64, 90, 11), TABLE(300, 299, 32, 5000, 700, MOMENTS_BF16),
    TABLE(9, 9, 272, 9, 0, LION), TABLE(40, 33, 48, 77, 0, LION, MOMENTS_BF16), TABLE(9, 5, 16, 9, 3, NOT_FINITE),
    TABLE(0, 0, 16, 9, 0), TABLE(9, 0, 16, 9, 0),
    ROWS(muon_normalize, 1, 1), ROWS(muon_normalize, 3, 11), ROWS(muon_normalize, 70, 1025), ROWS(muon_normalize, 0, 4),
    ROWS(newton_schulz_poly, 1, 1), ROWS(newton_schulz_poly, 1, 11), ROWS(newton_schulz_poly, 1, 67, IN_PLACE),
    ROWS(newton_schulz_poly, 1, 320),
    ROWS(muon_apply, 1, 1), ROWS(muon_apply, 3, 11), ROWS(muon_apply, 70, 1025), ROWS(muon_apply, 3, 11, NOT_FINITE),
    ROWS(normal, 1, 1), ROWS(normal, 3, 11), ROWS(normal, 70, 1025), ROWS(normal, 0, 4),
    ROWS(split_master, 1, 1), ROWS(split_master, 3, 11), ROWS(split_master, 0, 4), ROWS(split_master, 10, 65536),
    ROWS(accumulate_tree, 1, 1), ROWS(accumulate_tree, 3, 11), ROWS(accumulate_tree, 70, 1025),
    ROWS(accumulate_tree, 0, 4),

    CONVS(conv_fwd), CONVS(conv_bwd), DILATED(conv_fwd), DILATED(conv_bwd), DILATE(conv_fwd, 12, 4, 3, DOCS(6), BEFORE),
    CONV(conv_fwd, 12, 4, DOCS(6), BEFORE, WITH_BIAS), CONV(conv_fwd, 5, 4, DOCS(1), BEFORE),
    HEADS(gates_fwd, 1, 1, 0), HEADS(gates_fwd, 70, 6, 0, GAPS), HEADS(gates_fwd, 0, 2, 0),
    HEADS(gates_bwd, 1, 1, 0), HEADS(gates_bwd, 70, 6, 0, GAPS), HEADS(gates_bwd, 333, 16, 0),
    HEADS(gated_norm_fwd, 1, 1, 4), HEADS(gated_norm_fwd, 9, 3, 17, GAPS), HEADS(gated_norm_fwd, 65, 4, 128),
    HEADS(gated_norm_bwd, 1, 1, 4), HEADS(gated_norm_bwd, 9, 3, 17, GAPS), HEADS(gated_norm_bwd, 65, 4, 128, IN_PLACE),
    HEADS(ssm_in_fwd, 1, 1, 4), HEADS(ssm_in_fwd, 70, 3, 17, GAPS), HEADS(ssm_in_fwd, 65, 6, 64), HEADS(ssm_in_fwd, 0, 2, 8),
    HEADS(ssm_in_bwd, 1, 1, 4), HEADS(ssm_in_bwd, 70, 3, 17, GAPS), HEADS(ssm_in_bwd, 65, 6, 64),
    HEADS(ssm_in_bwd, 9, 2, 8, WITH_SKIP),
    HEADS(ssm_in_bwd, 333, 20, 16, WITH_SKIP), HEADS(ssm_in_bwd, 70, 3, 17, GAPS, WITH_SKIP),
    HEADS(ssm_in_bwd, 65, 6, 64, WITH_SKIP),
    HEADS(ssm_out_fwd, 1, 1, 4), HEADS(ssm_out_fwd, 9, 3, 17, GAPS), HEADS(ssm_out_fwd, 65, 4, 64), HEADS(ssm_out_fwd, 0, 2, 8),
    HEADS(ssm_out_bwd, 1, 1, 4), HEADS(ssm_out_bwd, 9, 3, 17, GAPS), HEADS(ssm_out_bwd, 65, 4, 64, IN_PLACE),
    DELTAS(delta_fwd), DELTAS(delta_bwd), DELTA(delta_fwd, 2, 1, 16, 8, DOCS(40, 0), QK_NORM, STATE),
    DELTA(delta_fwd, 4, 2, 128, 128, DOCS(100), QK_NORM), DELTA(delta_bwd, 2, 1, 128, 128, DOCS(100), QK_NORM),

    ROUTES(route_fwd), ROUTES(route_bwd),
    GEMMS(), GEMMS(GATHER_A), GEMMS(DGRAD), GEMMS(DGRAD, GATHER_A), GEMMS(WGRAD), GEMMS(WGRAD, GATHER_A),
    GEMMS(WGRAD, GATHER_B, ADD_TO), MOE(expert_gemm, 600, 4, 2, 1, .n = 256, .k = 320, GATHER_A),
    GEMMS_FP8(FAST), GEMMS_FP8(GATHER_A), GEMMS_FP8(DGRAD, E5M2), GEMMS_FP8(DGRAD, E5M2, GATHER_A, FAST),
    GEMMS_FP8(WGRAD, E5M2), GEMMS_FP8(WGRAD, E5M2, ADD_TO), GEMMS_FP8(WGRAD, E5M2, GATHER_A), GEMMS_FP8(WGRAD, E5M2, GATHER_A, ADD_TO),
    GEMMS_FP8(WGRAD, E5M2, GATHER_B), GEMMS_FP8(WGRAD, E5M2, GATHER_B, ADD_TO),
    EXPERT_CODES(), EXPERT_CODES(E5M2, NO_AMAX), EXPERT_CODES(E5M2, NO_CODES), EXPERT_CODES(NO_TRANS),
    EXPERT_CODES(NO_CODES, NO_TRANS), EXPERT_CODES(GATHER_A), EXPERT_CODES(GATHER_A, E5M2),
    EXPERT_ACTS(expert_act_fwd), EXPERT_ACTS(expert_act_bwd), EXPERT_ACTS(expert_act_bwd, IN_PLACE),
    EXPERT_ACTS_FP8(expert_act_fwd), EXPERT_ACTS_FP8(expert_act_fwd, NO_TRANS, ONLY), EXPERT_ACTS_FP8(expert_act_fwd, NO_CODES, NO_TRANS),
    EXPERT_ACTS_FP8(expert_act_bwd), EXPERT_ACTS_FP8(expert_act_bwd, IN_PLACE, ONLY), EXPERT_ACTS_FP8(expert_act_bwd, NO_TRANS),
    EXPERT_ACTS_FP8(expert_act_bwd, NO_CODES, NO_AMAX, IN_PLACE), EXPERT_ACTS_FP8(expert_act_bwd, NO_CODES, NO_TRANS),
    COMBINES(combine), COMBINES(combine, WITH_BASE, IN_PLACE), COMBINES(combine, WITH_BASE, WIDE),
    COMBINES(combine, WITH_BASE, GATED), DISPATCH(1, 0, 1, 1, 3, 1), DISPATCH(2, 0, 8, 2, 20, 1), DISPATCH(2, 1, 8, 2, 20, 16),
    DISPATCH(4, 2, 12, 3, 1, 8), DISPATCH(8, 5, 512, 8, 30, 128), DISPATCH(3, 2, 300, 6, 2, 1), DISPATCH(64, 63, 128, 2, 5, 4),
    COMBINES(combine_gate_bwd, WITH_BASE, GATED), COMBINES(combine_gate_bwd, WITH_BASE, GATED, IN_PLACE),
    BALANCE(1, 1), BALANCE(3, 64), BALANCE(40, 500), BALANCE(2, 5, NOT_FINITE),

    QUANTIZE(1, 16, 0), QUANTIZE(15, 48, 6, E5M2), QUANTIZE(16, 272, 3), QUANTIZE(17, 48, -3, GAPS),
    QUANTIZE(129, 272, 0, E5M2, GAPS), QUANTIZE(129, 16, 7, GAPS), QUANTIZE(64, 64, 0, E5M2), QUANTIZE(300, 1040, 1),
    QUANTIZE(0, 16, 0), QUANTIZE(16, 48, 2, ZEROS), QUANTIZE(129, 48, 0, E5M2, ZEROS, GAPS),
    QUANTIZE(17, 272, 0, OUTLIER), QUANTIZE(33, 80, -1, E5M2, OUTLIER), QUANTIZE(33, 80, 0, SUBNORMAL),
    QUANTIZE(15, 272, 0, E5M2, SUBNORMAL), QUANTIZE(129, 272, 120, SUBNORMAL), QUANTIZE(17, 16, 120, E5M2, SUBNORMAL),
    QUANTIZE(16, 48, 126), QUANTIZE(15, 48, -118, E5M2), QUANTIZE(31, 272, 0, SATURATED), QUANTIZE(129, 48, 5, E5M2, SATURATED),
    QUANTIZE(16, 48, 0, NOT_FINITE), QUANTIZE(129, 272, 4, E5M2, NOT_FINITE, GAPS), QUANTIZE(17, 16, 0, INFINITE),
    QUANTIZE(15, 48, 0, E5M2, INFINITE), QUANTIZE(65, 96, 0, NO_TRANS), QUANTIZE(65, 96, 0, E5M2, NO_CODES, GAPS),
    QUANTIZE(65, 96, 0, NO_AMAX), QUANTIZE(40, 32, 0, BEFORE), QUANTIZE(129, 273, 0, NO_CODES, NO_TRANS),
    QUANTIZE(17, 33, 0, E5M2, NO_CODES, NO_TRANS, GAPS), QUANTIZE(3, 7, 0, NO_CODES, NO_TRANS, NOT_FINITE),
    SCALES(1, 0, 0), SCALES(70, 0, 1), SCALES(300, 0, 3, DELAYED), SCALES(70, 2, 6, DELAYED, E5M2), SCALES(33, 8, 0, E5M2),
    SCALES(70, 3, 3, DELAYED, NOT_FINITE), SCALES(70, 0, 0, NOT_FINITE), SCALES(40, 0, 3, DELAYED, ZEROS, E5M2), SCALES(5, 2, 0, ZEROS),
    SCALES(0, 0, 0), BOUND(16), BOUND(7, SHIFT), BOUND(768, WITH_BIAS), BOUND(2047, E5M2, WITH_BIAS, SHIFT), BOUND(4096, SHIFT),
    BOUND(48, ZEROS), BOUND(272, NOT_FINITE), BOUND(272, NOT_FINITE, WITH_BIAS, SHIFT),
    NORMS_FP8(rmsnorm_fwd), NORMS_FP8(rmsnorm_bwd), NORM(rmsnorm_fwd, 17, 48, BRANCH, QUANTIZED, ONLY),
    NORM(rmsnorm_fwd, 129, 272, QUANTIZED, ONLY, NO_TRANS), NORM(rmsnorm_fwd, 67, 768, BRANCH, IN_PLACE_2, QUANTIZED, ONLY, SHIFT),
    NORM(rmsnorm_bwd, 33, 96, DRES, IN_PLACE_2, QUANTIZED), ACTS_FP8(swiglu_fwd), ACTS_FP8(swiglu_bwd), ACTS_FP8(swiglu_bwd, IN_PLACE),
    ACT(swiglu_fwd, 17, 48, QUANTIZED, ONLY), ACT(swiglu_bwd, 17, 48, QUANTIZED, ONLY), ACT(swiglu_bwd, 129, 272, QUANTIZED, ONLY, IN_PLACE),
    GEMM_FP8(1, 16, 16), GEMM_FP8(15, 48, 272), GEMM_FP8(16, 16, 16, E5M2_A), GEMM_FP8(17, 272, 48, WITH_BIAS),
    GEMM_FP8(129, 48, 272, WIDE, ADD_TO, E5M2_A), GEMM_FP8(16, 272, 144, WIDE, E5M2_A), GEMM_FP8(5, 96, 64, WITH_ADD),
    GEMM_FP8(48, 272, 16, E5M2_A), GEMM_FP8(32, 48, 1600, WITH_BIAS, FAST), GEMM_FP8(144, 272, 1600, WITH_ADD),
    GEMM_FP8(64, 80, 48, WIDE, WITH_ADD), GEMM_FP8(16, 304, 144, WIDE, WITH_BIAS), GEMM_FP8(8, 304, 144, WIDE, WITH_BIAS),
    GEMM_FP8(7, 64, 2064, E5M2_B), GEMM_FP8(8, 48, 64, WIDE, ADD_TO), GEMM_FP8(128, 768, 320, FAST),
    GEMM_FP8(192, 384, 768, E5M2_B), GEMM_FP8(320, 192, 272, WIDE, ADD_TO, E5M2_A), GEMM_FP8(32, 64, 96, .exp = 122),
    GEMM_FP8(3, 64, 96, .exp = -122, WIDE), GEMM_FP8(48, 64, 96, .exp = -122, E5M2_A, WIDE, ADD_TO),
    GEMM_FP8(32, 64, 96, SUBNORMAL, WIDE), GEMM_FP8(80, 48, 80, SUBNORMAL, E5M2_A), GEMM_FP8(16, 48, 64, ZEROS, WITH_BIAS),
    GEMM_FP8(0, 16, 16), GEMM_FP8(20, 48, 11008, WIDE, WITH_BIAS), GEMM_FP8(48, 800, 5504, WIDE, ADD_TO, E5M2_A),
    GEMM_FP8(48, 144, 5504, WITH_ADD, FAST),
    BLOCKS_OF(BLOCKS_E4M3), BLOCKS_OF(BLOCKS_E5M2), BLOCKS_OF(BLOCKS_B128), BLOCKS_OF(BLOCKS_B128, SQUARE), BLOCKS_OF(BLOCKS_MX),
    BLOCKS_OF(BLOCKS_NV), BLOCKS_OF(BLOCKS_NV, SQUARE), BLOCKS_OF(BLOCKS_NV, STOCHASTIC), BLOCKS(64, 272, BLOCKS_NV, HADAMARD),
    BLOCKS(160, 144, BLOCKS_NV, HADAMARD, STOCHASTIC, COLUMNS), BLOCKS(130, 144, BLOCKS_NV, EXACT), BLOCKS(300, 400, BLOCKS_MX),
    BLOCKS(300, 400, BLOCKS_B128, SQUARE, COLUMNS), BLOCKS(0, 16, BLOCKS_NV), BLOCKS(40, 160, BLOCKS_E4M3, NOT_FINITE),
    BLOCKS(300, 400, BLOCKS_B128, SQUARE, NO_VALUES), BLOCKS(304, 400, BLOCKS_B128, SQUARE, COLUMNS, NO_VALUES),
    BLOCKS(40, 160, BLOCKS_B128, NOT_FINITE, NO_VALUES), BLOCKS(48, 160, BLOCKS_MX, NOT_FINITE, COLUMNS, NO_VALUES),
    BLOCKS(48, 160, BLOCKS_E5M2, NOT_FINITE, COLUMNS, NO_VALUES),
    BLOCKS(40, 160, BLOCKS_B128, NOT_FINITE), BLOCKS(40, 160, BLOCKS_MX, NOT_FINITE, COLUMNS), BLOCKS(40, 160, BLOCKS_NV, NOT_FINITE),
};
/* clang-format on */

enum { OP_CASES = sizeof op_cases / sizeof op_cases[0] };
#endif
