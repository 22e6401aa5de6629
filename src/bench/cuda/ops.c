/* Memory-bound ops on a GPU, in bytes read and written per second, compared with a copy of 1 GiB on this
 * GPU in the same run.
 *
 * A case takes its operands from a pool and declares each as read, written or both; the sum is the number
 * of bytes that must move. The pool has several sets of operands, together much larger than the L2 cache,
 * and each call uses the next set. Copies and calls alternate; a sample is one pair of events around enough
 * calls for a millisecond, and the median counts. Data are random: zeros draw less power. */
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/quant.h"
#include "ops/update_rule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 9, CALLS_MAX = 100, POSITIONS = 4096, SETS_MIN = 2 };
static const size_t spread_bytes = (size_t)512 << 20; /* more than four L2 caches of any GPU */
static const size_t copy_bytes = (size_t)1 << 30;
static const int64_t pattern_count = (int64_t)4 << 20; /* random words */
static const double sample_ms = 1;

/* Typical layers of training: rows of a micro-batch, widths, heads. `logits` rows are cut to fit memory. */
struct shape {
    int64_t rows, d, f, heads, heads_kv, head_dim, vocab, logits;
};
static const struct shape shapes[] = {
    {65536, 768, 3072, 12, 12, 64, 50304, 8192},
    {65536, 1024, 2816, 16, 8, 64, 50304, 8192},
    {32768, 2048, 8192, 32, 8, 64, 128256, 4096},
    {16384, 4096, 11008, 32, 8, 128, 32000, 16384},
};

/* What all calls share: in device memory, for all shapes. */
struct sparse_grad {
    int32_t *tokens[sizeof shapes / sizeof *shapes], *positions;
    float *cos, *sin;
    float *scale, *amax; /* of FP8 codes */
    struct step_scalars *scalars;
    struct update_chunk *chunks;
    double embedded[sizeof shapes / sizeof *shapes]; /* number of distinct tokens in a shape */
};
struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops;
    struct event begin, end;
    struct arena fixed, pool;
    struct sparse_grad tables;
    char *pattern, *operands, *copies; /* random numbers; sets of operands; source and target of the copy */
    size_t operand_bytes;
};

enum phase { COUNT, FILL, RUN }; /* bytes of operands; prepare what may not be random; queue the op */
struct call {
    struct gpu *gpu;
    const struct shape *shape;
    dtype dt;
    enum phase phase;
    struct arena memory;
    double bytes; /* minimum traffic */
};
typedef status case_fn(struct call *k);

static void *take(struct call *k, dtype dt, int64_t count, double moved)
{
    k->bytes += moved * (double)dtype_bytes(dt);
    return arena_take(&k->memory, (size_t)count * dtype_bytes(dt), "operand");
}
static void *in(struct call *k, dtype dt, int64_t count)
{
    return take(k, dt, count, (double)count);
}
static void *out(struct call *k, dtype dt, int64_t count)
{
    return take(k, dt, count, (double)count);
}
static void *both(struct call *k, dtype dt, int64_t count)
{
    return take(k, dt, count, 2 * (double)count);
}

#define CALL(op, ...)                                                                                        \
    do {                                                                                                     \
        const struct op##_args args_ = {__VA_ARGS__};                                                        \
        return k->phase == RUN ? k->gpu->ops.op(&args_, &k->gpu->s) : STATUS_OK;                             \
    } while (0)

static status run_rmsnorm_fwd(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(rmsnorm_fwd, .x = in(k, k->dt, n), .branch = in(k, k->dt, n), .w = in(k, k->dt, d),
         .sum = out(k, k->dt, n), .y = out(k, k->dt, n), .rstd = out(k, DTYPE_F32, rows), .rows = rows,
         .d = d, .eps = 1e-5, .dt = k->dt);
}
static status run_rmsnorm_bwd(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(rmsnorm_bwd, .dy = in(k, k->dt, n), .s = in(k, k->dt, n), .w = in(k, k->dt, d),
         .rstd = in(k, DTYPE_F32, rows), .dres = in(k, k->dt, n), .dx = out(k, k->dt, n),
         .dw = both(k, DTYPE_F32, d), .rows = rows, .d = d, .dt = k->dt);
}
static status run_layernorm_fwd(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(layernorm_fwd, .x = in(k, k->dt, n), .branch = in(k, k->dt, n), .w = in(k, k->dt, d),
         .b = in(k, k->dt, d), .sum = out(k, k->dt, n), .y = out(k, k->dt, n),
         .mean = out(k, DTYPE_F32, rows), .rstd = out(k, DTYPE_F32, rows), .rows = rows, .d = d, .eps = 1e-5,
         .dt = k->dt);
}
static status run_layernorm_bwd(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(layernorm_bwd, .dy = in(k, k->dt, n), .s = in(k, k->dt, n), .w = in(k, k->dt, d),
         .mean = in(k, DTYPE_F32, rows), .rstd = in(k, DTYPE_F32, rows), .dres = in(k, k->dt, n),
         .dx = out(k, k->dt, n), .dw = both(k, DTYPE_F32, d), .db = both(k, DTYPE_F32, d), .rows = rows,
         .d = d, .dt = k->dt);
}

/* A row of the projection: q, k and v heads; only q and k are rotated. */
static int64_t rotated(const struct shape *s)
{
    return (s->heads + s->heads_kv) * s->head_dim;
}
static int64_t projected(const struct shape *s)
{
    return rotated(s) + s->heads_kv * s->head_dim;
}
static status rope_fwd(struct call *k, bool norm)
{
    const struct shape *s = k->shape;
    const int64_t moved = s->rows * rotated(s), all = s->rows * projected(s);
    void *qkv = take(k, k->dt, all, (double)moved);
    void *to = norm ? out(k, k->dt, moved) : qkv;
    if (!norm) k->bytes += (double)moved * (double)dtype_bytes(k->dt);
    CALL(rope_fwd, .in = qkv, .out = to, .in_stride = projected(s),
         .out_stride = norm ? rotated(s) : projected(s), .positions = k->gpu->tables.positions,
         .cos = k->gpu->tables.cos, .sin = k->gpu->tables.sin, .qw = norm ? in(k, k->dt, s->head_dim) : NULL,
         .kw = norm ? in(k, k->dt, s->head_dim) : NULL,
         .rstd = norm ? out(k, DTYPE_F32, s->rows * (s->heads + s->heads_kv)) : NULL, .rows = s->rows,
         .heads = s->heads, .heads_kv = s->heads_kv, .head_dim = s->head_dim, .half = s->head_dim / 2,
         .pos_count = POSITIONS, .eps = 1e-6, .dt = k->dt);
}
static status rope_bwd(struct call *k, bool norm)
{
    const struct shape *s = k->shape;
    const int64_t moved = s->rows * rotated(s), all = s->rows * projected(s);
    void *dqkv = take(k, k->dt, all, 2 * (double)moved);
    CALL(rope_bwd, .dout = dqkv, .din = dqkv, .dout_stride = projected(s), .din_stride = projected(s),
         .in = norm ? take(k, k->dt, all, (double)moved) : NULL, .in_stride = projected(s),
         .positions = k->gpu->tables.positions, .cos = k->gpu->tables.cos, .sin = k->gpu->tables.sin,
         .qw = norm ? in(k, k->dt, s->head_dim) : NULL, .kw = norm ? in(k, k->dt, s->head_dim) : NULL,
         .rstd = norm ? in(k, DTYPE_F32, s->rows * (s->heads + s->heads_kv)) : NULL,
         .dqw = norm ? both(k, DTYPE_F32, s->head_dim) : NULL,
         .dkw = norm ? both(k, DTYPE_F32, s->head_dim) : NULL, .rows = s->rows, .heads = s->heads,
         .heads_kv = s->heads_kv, .head_dim = s->head_dim, .half = s->head_dim / 2, .pos_count = POSITIONS,
         .dt = k->dt);
}
static status run_rope_fwd(struct call *k)
{
    return rope_fwd(k, false);
}
static status run_rope_bwd(struct call *k)
{
    return rope_bwd(k, false);
}
/* Heads of 128 + 64 elements, as in DeepSeek-V3: only the 64 are rotated in q. */
enum { NOPE = 128, TAIL = 64 };
static status run_mla_rope_fwd(struct call *k)
{
    const struct sparse_grad *t = &k->gpu->tables;
    const int64_t rows = k->shape->rows, heads = k->shape->heads, n = rows * heads,
                  wide = heads * (NOPE + TAIL);
    CALL(mla_rope_fwd, .q = take(k, k->dt, rows * wide, 2 * (double)(n * TAIL)),
         .k_nope = in(k, k->dt, n * NOPE), .k_rope = in(k, k->dt, rows * TAIL),
         .k = out(k, k->dt, rows * wide), .q_stride = wide, .k_nope_stride = heads * NOPE,
         .k_rope_stride = TAIL, .positions = t->positions, .cos = t->cos, .sin = t->sin, .rows = rows,
         .heads = heads, .nope = NOPE, .half = TAIL / 2, .pos_count = POSITIONS, .dt = k->dt);
}
static status run_mla_rope_bwd(struct call *k)
{
    const struct sparse_grad *t = &k->gpu->tables;
    const int64_t rows = k->shape->rows, heads = k->shape->heads, n = rows * heads,
                  wide = heads * (NOPE + TAIL);
    CALL(mla_rope_bwd, .dq = take(k, k->dt, rows * wide, 2 * (double)(n * TAIL)),
         .dk = in(k, k->dt, rows * wide), .dk_nope = out(k, k->dt, n * NOPE),
         .dk_rope = out(k, k->dt, rows * TAIL), .dq_stride = wide, .dk_nope_stride = heads * NOPE,
         .dk_rope_stride = TAIL, .positions = t->positions, .cos = t->cos, .sin = t->sin, .rows = rows,
         .heads = heads, .nope = NOPE, .half = TAIL / 2, .pos_count = POSITIONS, .dt = k->dt);
}
static status run_rope_norm_fwd(struct call *k)
{
    return rope_fwd(k, true);
}
static status run_rope_norm_bwd(struct call *k)
{
    return rope_bwd(k, true);
}

static status run_swiglu_fwd(struct call *k)
{
    const int64_t rows = k->shape->rows, f = k->shape->f, n = rows * f;
    CALL(swiglu_fwd, .gu = in(k, k->dt, 2 * n), .m = out(k, k->dt, n), .rows = rows, .f = f, .dt = k->dt);
}
static status run_swiglu_bwd(struct call *k)
{
    const int64_t rows = k->shape->rows, f = k->shape->f, n = rows * f;
    CALL(swiglu_bwd, .dm = in(k, k->dt, n), .gu = in(k, k->dt, 2 * n), .dgu = out(k, k->dt, 2 * n),
         .m = out(k, k->dt, n), .rows = rows, .f = f, .dt = k->dt);
}
/* The FP8 form of a tensor of `rows` rows. */
static struct quantized form(struct call *k, dtype dt, int64_t rows, int64_t n, bool codes, bool codes_t)
{
    const struct sparse_grad *t = &k->gpu->tables;
    return (struct quantized){.codes = codes ? out(k, dt, rows * n) : NULL,
                              .codes_t = codes_t ? out(k, dt, n * quantized_ld(rows)) : NULL,
                              .scale = t->scale,
                              .amax = t->amax,
                              .dt = dt,
                              .only = true};
}
static status quantize(struct call *k, bool codes, bool codes_t)
{
    const int64_t rows = k->shape->rows, d = k->shape->d;
    CALL(quantize, .x = in(k, k->dt, rows * d), .q = form(k, DTYPE_F8_E4M3, rows, d, codes, codes_t),
         .rows = rows, .n = d, .dt = k->dt);
}
static status run_quantize(struct call *k)
{
    return quantize(k, true, true);
}
static status run_quantize_codes(struct call *k)
{
    return quantize(k, true, false);
}
static status run_quantize_trans(struct call *k)
{
    return quantize(k, false, true);
}
static status run_quantize_amax(struct call *k)
{
    return quantize(k, false, false);
}
/* As training calls them: y exists as codes alone; the first norm of a model has no branch. */
static status rmsnorm_codes(struct call *k, bool add)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(rmsnorm_fwd, .x = in(k, k->dt, n), .branch = add ? in(k, k->dt, n) : NULL, .w = in(k, k->dt, d),
         .sum = add ? out(k, k->dt, n) : NULL, .y = take(k, k->dt, n, 0), .rstd = out(k, DTYPE_F32, rows),
         .rows = rows, .d = d, .eps = 1e-5, .q = form(k, DTYPE_F8_E4M3, rows, d, true, true), .dt = k->dt);
}
static status run_rmsnorm_codes(struct call *k)
{
    return rmsnorm_codes(k, false);
}
static status run_rmsnorm_fwd_codes(struct call *k)
{
    return rmsnorm_codes(k, true);
}
static status run_rmsnorm_bwd_codes(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    struct quantized q = form(k, DTYPE_F8_E5M2, rows, d, true, true);
    q.only = false;
    CALL(rmsnorm_bwd, .dy = in(k, k->dt, n), .s = in(k, k->dt, n), .w = in(k, k->dt, d),
         .rstd = in(k, DTYPE_F32, rows), .dres = in(k, k->dt, n), .dx = out(k, k->dt, n),
         .dw = both(k, DTYPE_F32, d), .rows = rows, .d = d, .q = q, .dt = k->dt);
}
/* As training calls them: the results exist as codes alone, and m's transpose is made in backward. */
static status run_swiglu_fwd_codes(struct call *k)
{
    const int64_t rows = k->shape->rows, f = k->shape->f, n = rows * f;
    CALL(swiglu_fwd, .gu = in(k, k->dt, 2 * n), .m = take(k, k->dt, n, 0),
         .q = form(k, DTYPE_F8_E4M3, rows, f, true, false), .rows = rows, .f = f, .dt = k->dt);
}
static status run_swiglu_bwd_codes(struct call *k)
{
    const int64_t rows = k->shape->rows, f = k->shape->f, n = rows * f;
    CALL(swiglu_bwd, .dm = in(k, k->dt, n), .gu = in(k, k->dt, 2 * n), .dgu = take(k, k->dt, 2 * n, 0),
         .m = take(k, k->dt, n, 0), .q = form(k, DTYPE_F8_E5M2, rows, 2 * f, true, true),
         .mq = form(k, DTYPE_F8_E4M3, rows, f, false, true), .rows = rows, .f = f, .dt = k->dt);
}
static status run_gelu_fwd(struct call *k)
{
    const int64_t n = k->shape->rows * k->shape->f;
    CALL(gelu_fwd, .x = in(k, k->dt, n), .y = out(k, k->dt, n), .count = n, .dt = k->dt);
}
static status run_gelu_bwd(struct call *k)
{
    const int64_t n = k->shape->rows * k->shape->f;
    CALL(gelu_bwd, .dy = in(k, k->dt, n), .x = in(k, k->dt, n), .dx = out(k, k->dt, n), .y = out(k, k->dt, n),
         .count = n, .dt = k->dt);
}
static status run_gate_fwd(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(gate_fwd, .x = in(k, k->dt, n), .z = in(k, k->dt, n), .y = out(k, k->dt, n), .rows = rows, .d = d,
         .z_stride = d, .dt = k->dt);
}
static status run_gate_bwd(struct call *k)
{
    const int64_t rows = k->shape->rows, d = k->shape->d, n = rows * d;
    CALL(gate_bwd, .dy = in(k, k->dt, n), .x = in(k, k->dt, n), .z = in(k, k->dt, n), .dx = out(k, k->dt, n),
         .dz = out(k, k->dt, n), .y = out(k, k->dt, n), .rows = rows, .d = d, .z_stride = d, .dz_stride = d,
         .dt = k->dt);
}
static status run_bias_bwd(struct call *k)
{
    const int64_t rows = k->shape->rows, f = k->shape->f;
    CALL(bias_bwd, .dy = in(k, k->dt, rows * f), .db = both(k, DTYPE_F32, f), .rows = rows, .n = f,
         .dt = k->dt);
}
static status run_embed_fwd(struct call *k)
{
    const struct shape *s = k->shape;
    CALL(embed_fwd, .tokens = k->gpu->tables.tokens[s - shapes],
         .table = take(k, k->dt, s->vocab * s->d, (double)(s->rows * s->d)),
         .x = out(k, k->dt, s->rows * s->d), .rows = s->rows, .d = s->d, .vocab = s->vocab, .dt = k->dt);
}
static status run_embed_bwd(struct call *k)
{
    const struct shape *s = k->shape;
    const double touched = k->gpu->tables.embedded[s - shapes] * (double)s->d;
    CALL(embed_bwd, .tokens = k->gpu->tables.tokens[s - shapes], .dx = in(k, k->dt, s->rows * s->d),
         .dtable = take(k, DTYPE_F32, s->vocab * s->d, 2 * touched), .rows = s->rows, .d = s->d,
         .vocab = s->vocab, .dt = k->dt);
}
/* As the head calls it: logits and gradient have one type and share a buffer. */
static status run_xent(struct call *k)
{
    const struct shape *s = k->shape;
    void *logits = both(k, k->dt, s->logits * s->vocab);
    CALL(xent, .logits = logits, .dlogits = logits, .targets = k->gpu->tables.tokens[s - shapes],
         .loss = out(k, DTYPE_F32, s->logits), .rows = s->logits, .vocab = s->vocab, .vocab_used = s->vocab,
         .grad_scale = &k->gpu->tables.scalars->grad_scale, .dt = k->dt, .ldt = k->dt);
}
/* The losses of a micro-batch: short, so latency counts. */
static status run_sum(struct call *k)
{
    CALL(sum, .x = in(k, DTYPE_F32, k->shape->rows), .out = &k->gpu->tables.scalars->loss_sum,
         .count = k->shape->rows, .dt = DTYPE_F32);
}
/* Gradients are read twice: the norm needs all of them before the first weight changes. Moments of type
 * `moment_dt`; 8-bit ones with scales. */
static status update(struct call *k, enum update_rule rule, dtype sdt)
{
    const int64_t n = k->shape->rows * k->shape->d / UPDATE_CHUNK * UPDATE_CHUNK, blocks = n / QUANT_BLOCK;
    const bool two = update_needs(rule).second, codes = sdt == DTYPE_U8;
    float *m_scale = codes ? both(k, DTYPE_F32, blocks) : NULL,
          *v_scale = codes && two ? both(k, DTYPE_F32, blocks) : NULL;
    void *v = two ? both(k, sdt, n) : NULL;
    if (k->phase == FILL && v) /* squares are not negative */
        return v_scale ? dev_zero(&k->gpu->s, v_scale, sizeof *v_scale * (size_t)blocks)
                       : dev_zero(&k->gpu->s, v, dtype_bytes(sdt) * (size_t)n);
    const bool half =
        k->dt == DTYPE_BF16; /* the low halves of the pattern are numbers around 1, like its high halves */
    CALL(update, .rule = rule, .p = half ? NULL : both(k, DTYPE_F32, n),
         .g = take(k, DTYPE_F32, n, 2 * (double)n), .m = both(k, sdt, n), .v = v, .m_scale = m_scale,
         .v_scale = v_scale, .w = half ? both(k, DTYPE_BF16, n) : NULL,
         .master_residual = half ? both(k, DTYPE_BF16, n) : NULL, .chunks = k->gpu->tables.chunks,
         .chunk_count = n / UPDATE_CHUNK, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
         .clip = 1, .scalars = k->gpu->tables.scalars, .moment_dt = sdt);
}
static status run_adamw(struct call *k)
{
    return update(k, UPDATE_ADAMW, DTYPE_F32);
}
static status run_8bit(struct call *k)
{
    return update(k, UPDATE_ADAMW, DTYPE_U8);
}
static status run_lion(struct call *k)
{
    return update(k, UPDATE_LION, DTYPE_F32);
}

static const struct {
    const char *name;
    case_fn *run;
} cases[] = {
    {"rmsnorm_fwd", run_rmsnorm_fwd},
    {"rmsnorm_bwd", run_rmsnorm_bwd},
    {"rmsnorm+codes", run_rmsnorm_codes},
    {"rmsnorm_fwd+codes", run_rmsnorm_fwd_codes},
    {"rmsnorm_bwd+codes", run_rmsnorm_bwd_codes},
    {"layernorm_fwd", run_layernorm_fwd},
    {"layernorm_bwd", run_layernorm_bwd},
    {"rope_fwd", run_rope_fwd},
    {"rope_bwd", run_rope_bwd},
    {"rope_fwd+norm", run_rope_norm_fwd},
    {"rope_bwd+norm", run_rope_norm_bwd},
    {"latent_fwd", run_mla_rope_fwd},
    {"latent_bwd", run_mla_rope_bwd},
    {"swiglu_fwd", run_swiglu_fwd},
    {"swiglu_bwd", run_swiglu_bwd},
    {"swiglu_fwd+codes", run_swiglu_fwd_codes},
    {"swiglu_bwd+codes", run_swiglu_bwd_codes},
    {"quantize", run_quantize},
    {"quantize_codes", run_quantize_codes},
    {"quantize_trans", run_quantize_trans},
    {"quantize_amax", run_quantize_amax},
    {"gelu_fwd", run_gelu_fwd},
    {"gelu_bwd", run_gelu_bwd},
    {"gate_fwd", run_gate_fwd},
    {"gate_bwd", run_gate_bwd},
    {"bias_bwd", run_bias_bwd},
    {"embed_fwd", run_embed_fwd},
    {"embed_bwd", run_embed_bwd},
    {"xent", run_xent},
    {"sum", run_sum},
    {"adamw", run_adamw},
    {"8bit_adamw", run_8bit},
    {"lion", run_lion},
};

/* ------------------------------------------------------------------ memory */

/* Words whose halves are both valid BF16: random as F32 and as BF16. */
static void random_words(uint32_t *words)
{
    enum { GRAIN = 1 << 16 };
    PARALLEL_CHUNKS(c, chunk_count(pattern_count, GRAIN))
    {
        const struct span at = chunk_span(c, pattern_count, GRAIN);
        for (int64_t i = at.begin; i < at.end; i++) {
            const struct rng_block r = rng_at(1, RNG_TEST, (uint64_t)i, 0);
            float x[2];
            for (int h = 0; h < 2; h++) /* two uniform numbers each: triangular, of deviation 1 */
                x[h] = ((float)(r.u[2 * h] >> 8) - (float)(r.u[2 * h + 1] >> 8)) * 0x1p-24f * 2.4494897f;
            words[i] = (uint32_t)bf16_from_f32(x[0]) << 16 | bf16_from_f32(x[1]);
        }
    }
}

static status tokens_of(struct gpu *c, int i)
{
    const struct shape *s = &shapes[i];
    int32_t *tokens = malloc((size_t)s->rows * sizeof *tokens);
    char *seen = calloc((size_t)s->vocab, 1);
    status st = STATUS_OK;
    if (!tokens || !seen)
        TRY_OUT(FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld tokens", (long long)s->rows));
    for (int64_t t = 0; t < s->rows; t++) {
        tokens[t] = (int32_t)(rng_uniform(2, RNG_TEST, (uint64_t)t, 0) * (double)s->vocab);
        c->tables.embedded[i] += !seen[tokens[t]];
        seen[tokens[t]] = 1;
    }
    TRY_OUT(dev_upload(&c->s, c->tables.tokens[i], tokens, (size_t)s->rows * sizeof *tokens));
    TRY_OUT(dev_sync(&c->s));
out:
    free(seen);
    free(tokens);
    return st;
}

enum { ROWS_MAX = 65536, CHUNKS_MAX = 65536 * 1024 / UPDATE_CHUNK, HALF_MAX = 64 };

/* Operands in host memory, before the upload. */
struct upload {
    int32_t positions[ROWS_MAX];
    struct update_chunk chunks[CHUNKS_MAX];
    float cos[POSITIONS * HALF_MAX], sin[POSITIONS * HALF_MAX];
    struct step_scalars scalars;
    float scale, amax;
};

static status sparse_grad_fill(struct gpu *c, struct upload *u)
{
    struct sparse_grad *t = &c->tables;
    for (int i = 0; i < ROWS_MAX; i++) u->positions[i] = i % POSITIONS;
    for (int i = 0; i < CHUNKS_MAX; i++)
        u->chunks[i] = (struct update_chunk){.begin = (int64_t)i * UPDATE_CHUNK,
                                             .count = UPDATE_CHUNK,
                                             .flags = UPDATE_DECAY,
                                             .first = (int64_t)i * UPDATE_CHUNK};
    for (int i = 0; i < POSITIONS * HALF_MAX; i++) u->cos[i] = cosf((float)i), u->sin[i] = sinf((float)i);
    u->scalars =
        (struct step_scalars){.grad_scale = 1e-3, .lr = 1e-5, .correction1 = 0.1, .correction2 = 0.05};
    TRY(dev_upload(&c->s, t->positions, u->positions, sizeof u->positions));
    TRY(dev_upload(&c->s, t->chunks, u->chunks, sizeof u->chunks));
    TRY(dev_upload(&c->s, t->cos, u->cos, sizeof u->cos));
    TRY(dev_upload(&c->s, t->sin, u->sin, sizeof u->sin));
    u->scale = 32, u->amax = 0;
    TRY(dev_upload(&c->s, t->scalars, &u->scalars, sizeof u->scalars));
    TRY(dev_upload(&c->s, t->scale, &u->scale, sizeof u->scale));
    TRY(dev_upload(&c->s, t->amax, &u->amax, sizeof u->amax));
    return dev_sync(&c->s);
}

static void sparse_grad_take(struct gpu *c)
{
    struct sparse_grad *t = &c->tables;
    t->positions = arena_take(&c->fixed, sizeof((struct upload *)0)->positions, "positions");
    t->chunks = arena_take(&c->fixed, sizeof((struct upload *)0)->chunks, "chunks");
    t->cos = arena_take(&c->fixed, sizeof((struct upload *)0)->cos, "cos");
    t->sin = arena_take(&c->fixed, sizeof((struct upload *)0)->sin, "sin");
    t->scalars = arena_take(&c->fixed, sizeof *t->scalars, "scalars");
    t->scale = arena_take(&c->fixed, sizeof *t->scale, "scale");
    t->amax = arena_take(&c->fixed, sizeof *t->amax, "amax");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        t->tokens[i] = arena_take(&c->fixed, (size_t)shapes[i].rows * sizeof **t->tokens, "tokens");
    c->pattern = arena_take(&c->fixed, sizeof(uint32_t) * (size_t)pattern_count, "random numbers");
}

static status fixed_open(struct gpu *c)
{
    const size_t workspace = c->ops.workspace(ROWS_MAX);
    struct arena count = {.name = "bench ops"};
    c->fixed = count;
    sparse_grad_take(c);
    (void)arena_take(&c->fixed, workspace, "workspace");
    const size_t size = c->fixed.peak;
    TRY(dev_arena_reserve(&c->dev, &c->fixed, "bench ops", size));
    sparse_grad_take(c);
    ops_cuda_workspace(&c->s, arena_take(&c->fixed, workspace, "workspace"), workspace);
    struct upload *u = malloc(sizeof *u);
    uint32_t *words = malloc(sizeof *words * (size_t)pattern_count);
    status st = STATUS_OK;
    if (!u || !words) TRY_OUT(FAIL(STATUS_OUT_OF_MEMORY, "no memory for tables"));
    TRY_OUT(sparse_grad_fill(c, u));
    random_words(words);
    TRY_OUT(dev_upload(&c->s, c->pattern, words, sizeof *words * (size_t)pattern_count));
    TRY_OUT(dev_sync(&c->s));
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) TRY_OUT(tokens_of(c, i));
out:
    free(words);
    free(u);
    return st;
}

/* Bytes of one set of operands, and how many sets a case takes. */
static size_t set_bytes(struct call *k, case_fn *run)
{
    k->phase = COUNT;
    k->bytes = 0;
    k->memory = (struct arena){.name = "bench ops"};
    CHECK(run(k) == STATUS_OK, "counting cannot fail");
    return (k->memory.peak + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}
static int64_t set_count(size_t bytes)
{
    const int64_t sets = (int64_t)((spread_bytes + bytes - 1) / bytes);
    return sets < SETS_MIN ? SETS_MIN : sets;
}

static bool chosen(const struct ops_bench *b, const char *name, dtype dt)
{
    return (!b->op || strncmp(b->op, name, strlen(b->op)) == 0) &&
           (!b->dt || (strcmp(b->dt, "bf16") == 0) == (dt == DTYPE_BF16));
}

/* Calls `visit` for every chosen case, shape and type. */
typedef status visit_fn(struct gpu *c, struct call *k, size_t i, void *context);
static status each_call(struct gpu *c, const struct ops_bench *b, visit_fn *visit, void *context)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int t = 0; t < 2; t++) {
                struct call k = {.gpu = c, .shape = &shapes[s], .dt = t ? DTYPE_F32 : DTYPE_BF16};
                if (chosen(b, cases[i].name, k.dt)) TRY(visit(c, &k, i, context));
            }
    return STATUS_OK;
}

static status measure_pool(struct gpu *c, struct call *k, size_t i, void *context)
{
    (void)context;
    const size_t set = set_bytes(k, cases[i].run), bytes = set * (size_t)set_count(set);
    if (bytes > c->operand_bytes) c->operand_bytes = bytes;
    return STATUS_OK;
}

/* ------------------------------------------------------------------ measuring */

/* The i-th call uses the next set of operands. */
static status call_once(struct call *k, case_fn *run, size_t set, int64_t i)
{
    arena_attach(&k->memory, "bench ops", k->gpu->operands + set * (size_t)(i % set_count(set)), set, NULL);
    return run(k);
}

static status random_fill(struct gpu *c, char *to, size_t bytes)
{
    size_t done = sizeof(uint32_t) * (size_t)pattern_count;
    TRY(dev_copy(&c->s, to, c->pattern, done < bytes ? done : bytes));
    for (size_t more; done < bytes; done += more) {
        more = done < bytes - done ? done : bytes - done;
        TRY(dev_copy(&c->s, to + done, to, more));
    }
    return STATUS_OK;
}

static status fill(struct gpu *c, struct call *k, case_fn *run, size_t set)
{
    TRY(random_fill(c, c->operands, set * (size_t)set_count(set)));
    k->phase = FILL;
    for (int64_t i = 0; i < set_count(set); i++) TRY(call_once(k, run, set, i));
    return STATUS_OK;
}

/* Milliseconds of one of `calls` calls; run NULL: of a copy. */
static status timed(struct gpu *c, struct call *k, case_fn *run, size_t set, int calls, double *ms)
{
    TRY(dev_event_record(&c->s, &c->begin));
    if (run == NULL) TRY(dev_copy(&c->s, c->copies + copy_bytes, c->copies, copy_bytes));
    for (int i = 0; run && i < calls; i++) TRY(call_once(k, run, set, i));
    TRY(dev_event_record(&c->s, &c->end));
    TRY(dev_event_ms(&c->dev, &c->begin, &c->end, ms));
    *ms /= run ? calls : 1;
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_result(const struct call *k, const char *name, bool json, double ms, double copy_ms)
{
    const struct shape *s = k->shape;
    const double rate = k->bytes / ms * 1e-6, copy = 2 * (double)copy_bytes / copy_ms * 1e-6;
    if (json)
        printf("{\"bench\":\"ops\",\"set\":\"cuda\",\"device\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\","
               "\"rows\":%lld,\"d\":%lld,\"f\":%lld,\"us\":%.2f,\"gbs\":%.1f,\"copy_gbs\":%.1f,"
               "\"percent_of_copy\":%.1f}\n",
               k->gpu->dev.name, name, dtype_name(k->dt), (long long)s->rows, (long long)s->d,
               (long long)s->f, 1e3 * ms, rate, copy, 100 * rate / copy);
    else
        printf("%-17s %-4s %6lld x %5lld, f %5lld %9.1f us %8.1f GB/s %6.1f %% of copy at %.0f\n", name,
               dtype_name(k->dt), (long long)s->rows, (long long)s->d, (long long)s->f, 1e3 * ms, rate,
               100 * rate / copy, copy);
    fflush(stdout);
}

static status measure(struct gpu *c, struct call *k, size_t i, void *context)
{
    const struct ops_bench *b = context;
    case_fn *run = cases[i].run;
    double ops[SAMPLES], copies[SAMPLES], ms;
    const size_t set = set_bytes(k, run);
    const double bytes = k->bytes;
    TRY(fill(c, k, run, set));
    k->phase = RUN;
    for (int warm = 0; warm < 2; warm++) TRY(timed(c, k, run, set, SETS_MIN, &ms));
    const int calls = ms < sample_ms / CALLS_MAX ? CALLS_MAX : (int)(sample_ms / ms) + SETS_MIN;
    for (int s = 0; s < SAMPLES; s++) {
        TRY(timed(c, k, NULL, set, 1, &copies[s]));
        TRY(timed(c, k, run, set, calls, &ops[s]));
    }
    qsort(ops, SAMPLES, sizeof *ops, ascending);
    qsort(copies, SAMPLES, sizeof *copies, ascending);
    k->bytes = bytes;
    print_result(k, cases[i].name, b->json, ops[SAMPLES / 2], copies[SAMPLES / 2]);
    return STATUS_OK;
}

static status gpu_setup(struct gpu *c)
{
    TRY(dev_stream_open(&c->dev, &c->s));
    TRY(dev_event_open(&c->dev, &c->begin));
    TRY(dev_event_open(&c->dev, &c->end));
    TRY(ops_cuda(&c->ops, &c->s, &(struct cuda_options){0}));
    return fixed_open(c);
}

static void gpu_teardown(struct gpu *c)
{
    arena_free(&c->pool);
    arena_free(&c->fixed);
    if (c->s.queue == NULL) return;
    dev_event_close(&c->dev, &c->begin);
    dev_event_close(&c->dev, &c->end);
    ops_cuda_close(&c->s);
    dev_stream_close(&c->s);
}

static status pool_open(struct gpu *c, const struct ops_bench *b)
{
    TRY(each_call(c, b, measure_pool, NULL));
    if (c->operand_bytes == 0) return FAIL(STATUS_CONFIG, "no op is named %s", b->op);
    TRY(dev_arena_reserve(&c->dev, &c->pool, "bench ops", c->operand_bytes + 2 * copy_bytes + ARENA_ALIGN));
    c->operands = arena_take(&c->pool, c->operand_bytes, "operands");
    c->copies = arena_take(&c->pool, 2 * copy_bytes, "copies");
    return random_fill(c, c->copies, copy_bytes);
}

status cuda_bench_ops(const struct ops_bench *b)
{
    struct ops_bench context = *b;
    struct gpu c = {0};
    TRY(dev_open(&c.dev, DEV_CUDA));
    status st = gpu_setup(&c);
    if (st == STATUS_OK) st = pool_open(&c, b);
    if (st == STATUS_OK && !b->json)
        printf("%s: bytes that must move per second, medians of %d\n", c.dev.name, (int)SAMPLES);
    if (st == STATUS_OK) st = each_call(&c, b, measure, &context);
    gpu_teardown(&c);
    dev_close(&c.dev);
    return st;
}
