/* Memory-bound ops, in bytes read and written once per second, compared with a plain copy on the same
 * threads. Copy and op alternate, and each is the median of its runs; a noisy neighbour affects both.
 * Arrays are much larger than the caches of a core (64 MB in F32). */
#include "base/clock.h"
#include "base/parallel.h"
#include "bench/bench.h"
#include "base/flags.h"
#include "ops/ops.h"
#include "ops/quant.h"
#include "ops/update_rule.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4096, D = 4096, COUNT = ROWS * D, HD = 128, VOCAB = 50304, ARRAYS = 5, RUNS = 5 };

/* Arguments that all cases share: arrays of COUNT floats, used as F32 or BF16; vectors for weights and their
 * gradients. */
struct setup {
    struct ops ops;
    void *x[ARRAYS];
    float *dw, *db, *mean, *rstd, *cos, *sin;
    void *w, *b;
    int32_t *ids;
    struct update_chunk chunks[COUNT / UPDATE_CHUNK];
};

typedef status case_fn(struct setup *s, dtype dt);

static status run_bias_bwd(struct setup *s, dtype dt)
{
    return s->ops.bias_bwd(
        &(struct bias_bwd_args){.dy = s->x[0], .db = s->db, .rows = ROWS, .n = D, .dt = dt}, NULL);
}
static status run_embed_fwd(struct setup *s, dtype dt)
{
    return s->ops.embed_fwd(
        &(struct embed_fwd_args){
            .tokens = s->ids, .table = s->x[0], .x = s->x[1], .rows = ROWS, .d = D, .vocab = ROWS, .dt = dt},
        NULL);
}
static status run_embed_bwd(struct setup *s, dtype dt)
{
    return s->ops.embed_bwd(&(struct embed_bwd_args){.tokens = s->ids,
                                                     .dx = s->x[0],
                                                     .dtable = s->x[1],
                                                     .rows = ROWS,
                                                     .d = D,
                                                     .vocab = ROWS,
                                                     .dt = dt},
                            NULL);
}
static status run_rmsnorm_fwd(struct setup *s, dtype dt)
{
    return s->ops.rmsnorm_fwd(&(struct rmsnorm_fwd_args){.x = s->x[0],
                                                         .branch = s->x[1],
                                                         .w = s->w,
                                                         .sum = s->x[2],
                                                         .y = s->x[3],
                                                         .rstd = s->rstd,
                                                         .rows = ROWS,
                                                         .d = D,
                                                         .eps = 1e-5,
                                                         .dt = dt},
                              NULL);
}
static status run_rmsnorm_bwd(struct setup *s, dtype dt)
{
    return s->ops.rmsnorm_bwd(&(struct rmsnorm_bwd_args){.dy = s->x[0],
                                                         .s = s->x[1],
                                                         .w = s->w,
                                                         .rstd = s->rstd,
                                                         .dres = s->x[2],
                                                         .dx = s->x[3],
                                                         .dw = s->dw,
                                                         .rows = ROWS,
                                                         .d = D,
                                                         .dt = dt},
                              NULL);
}
static status run_layernorm_fwd(struct setup *s, dtype dt)
{
    return s->ops.layernorm_fwd(&(struct layernorm_fwd_args){.x = s->x[0],
                                                             .branch = s->x[1],
                                                             .w = s->w,
                                                             .b = s->b,
                                                             .sum = s->x[2],
                                                             .y = s->x[3],
                                                             .mean = s->mean,
                                                             .rstd = s->rstd,
                                                             .rows = ROWS,
                                                             .d = D,
                                                             .eps = 1e-5,
                                                             .dt = dt},
                                NULL);
}
static status run_layernorm_bwd(struct setup *s, dtype dt)
{
    return s->ops.layernorm_bwd(&(struct layernorm_bwd_args){.dy = s->x[0],
                                                             .s = s->x[1],
                                                             .w = s->w,
                                                             .mean = s->mean,
                                                             .rstd = s->rstd,
                                                             .dres = s->x[2],
                                                             .dx = s->x[3],
                                                             .dw = s->dw,
                                                             .db = s->db,
                                                             .rows = ROWS,
                                                             .d = D,
                                                             .dt = dt},
                                NULL);
}
static status run_rope_fwd(struct setup *s, dtype dt)
{
    return s->ops.rope_fwd(&(struct rope_fwd_args){.in = s->x[0],
                                                   .out = s->x[1],
                                                   .in_stride = D,
                                                   .out_stride = D,
                                                   .positions = s->ids,
                                                   .cos = s->cos,
                                                   .sin = s->sin,
                                                   .rows = ROWS,
                                                   .heads = D / HD - 8,
                                                   .heads_kv = 8,
                                                   .head_dim = HD,
                                                   .half = HD / 2,
                                                   .pos_count = ROWS,
                                                   .dt = dt},
                           NULL);
}
static status run_rope_norm_fwd(struct setup *s, dtype dt)
{
    return s->ops.rope_fwd(&(struct rope_fwd_args){.in = s->x[0],
                                                   .out = s->x[1],
                                                   .in_stride = D,
                                                   .out_stride = D,
                                                   .positions = s->ids,
                                                   .cos = s->cos,
                                                   .sin = s->sin,
                                                   .qw = s->w,
                                                   .kw = s->b,
                                                   .rows = ROWS,
                                                   .heads = D / HD - 8,
                                                   .heads_kv = 8,
                                                   .head_dim = HD,
                                                   .half = HD / 2,
                                                   .pos_count = ROWS,
                                                   .eps = 1e-6,
                                                   .dt = dt},
                           NULL);
}
static status run_rope_norm_bwd(struct setup *s, dtype dt)
{
    return s->ops.rope_bwd(&(struct rope_bwd_args){.dout = s->x[0],
                                                   .din = s->x[1],
                                                   .dout_stride = D,
                                                   .din_stride = D,
                                                   .in = s->x[2],
                                                   .in_stride = D,
                                                   .positions = s->ids,
                                                   .cos = s->cos,
                                                   .sin = s->sin,
                                                   .qw = s->w,
                                                   .kw = s->b,
                                                   .rstd = s->x[3],
                                                   .dqw = s->dw,
                                                   .dkw = s->db,
                                                   .rows = ROWS,
                                                   .heads = D / HD - 8,
                                                   .heads_kv = 8,
                                                   .head_dim = HD,
                                                   .half = HD / 2,
                                                   .pos_count = ROWS,
                                                   .dt = dt},
                           NULL);
}
static status run_swiglu_fwd(struct setup *s, dtype dt)
{
    return s->ops.swiglu_fwd(
        &(struct swiglu_fwd_args){.gu = s->x[0], .m = s->x[1], .rows = ROWS, .f = D / 2, .dt = dt}, NULL);
}
static status run_swiglu_bwd(struct setup *s, dtype dt)
{
    return s->ops.swiglu_bwd(
        &(struct swiglu_bwd_args){
            .dm = s->x[0], .gu = s->x[1], .dgu = s->x[2], .m = s->x[0], .rows = ROWS, .f = D / 2, .dt = dt},
        NULL);
}
static status run_gate_fwd(struct setup *s, dtype dt)
{
    return s->ops.gate_fwd(
        &(struct gate_fwd_args){
            .x = s->x[0], .z = s->x[1], .y = s->x[2], .rows = ROWS, .d = D, .z_stride = D, .dt = dt},
        NULL);
}
static status run_gate_bwd(struct setup *s, dtype dt)
{
    return s->ops.gate_bwd(&(struct gate_bwd_args){.dy = s->x[0],
                                                   .x = s->x[1],
                                                   .z = s->x[2],
                                                   .dx = s->x[0],
                                                   .dz = s->x[3],
                                                   .y = s->x[1],
                                                   .rows = ROWS,
                                                   .d = D,
                                                   .z_stride = D,
                                                   .dz_stride = D,
                                                   .dt = dt},
                           NULL);
}
static status run_gelu_fwd(struct setup *s, dtype dt)
{
    return s->ops.gelu_fwd(&(struct gelu_fwd_args){.x = s->x[0], .y = s->x[1], .count = COUNT, .dt = dt},
                           NULL);
}
static status run_gelu_bwd(struct setup *s, dtype dt)
{
    return s->ops.gelu_bwd(
        &(struct gelu_bwd_args){
            .dy = s->x[0], .x = s->x[1], .dx = s->x[2], .y = s->x[0], .count = COUNT, .dt = dt},
        NULL);
}
static status run_xent(struct setup *s, dtype dt)
{
    const double grad_scale = 1e-3;
    return s->ops.xent(&(struct xent_args){.logits = s->x[0],
                                           .dlogits = s->x[1],
                                           .targets = s->ids,
                                           .loss = s->mean,
                                           .rows = COUNT / VOCAB,
                                           .vocab = VOCAB,
                                           .vocab_used = VOCAB - 47,
                                           .grad_scale = &grad_scale,
                                           .ldt = DTYPE_F32,
                                           .dt = dt},
                       NULL);
}
/* 8-bit codes are contiguous in one array, their scales in another. */
static status run_update(struct setup *s, dtype dt, enum update_rule rule, dtype sdt)
{
    struct step_scalars scalars = {.lr = 1e-3, .correction1 = 0.1, .correction2 = 0.05};
    const bool codes = sdt == DTYPE_U8;
    return s->ops.update(
        &(struct update_args){.rule = rule,
                              .p = dt == DTYPE_BF16 ? NULL : s->x[0],
                              .g = s->x[1],
                              .m = s->x[2],
                              .v = !update_needs(rule).second ? NULL
                                   : codes                    ? (char *)s->x[2] + COUNT
                                                              : s->x[3],
                              .m_scale = codes ? s->x[3] : NULL,
                              .v_scale = codes ? (float *)s->x[3] + COUNT / QUANT_BLOCK : NULL,
                              .w = dt == DTYPE_BF16 ? s->x[4] : NULL,
                              .master_residual = dt == DTYPE_BF16 ? s->x[0] : NULL,
                              .chunks = s->chunks,
                              .chunk_count = COUNT / UPDATE_CHUNK,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .clip = 1,
                              .scalars = &scalars,
                              .moment_dt = sdt},
        NULL);
}
static status run_adamw(struct setup *s, dtype dt)
{
    return run_update(s, dt, UPDATE_ADAMW, DTYPE_F32);
}
static status run_8bit(struct setup *s, dtype dt)
{
    return run_update(s, dt, UPDATE_ADAMW, DTYPE_U8);
}
static status run_lion(struct setup *s, dtype dt)
{
    return run_update(s, dt, UPDATE_LION, DTYPE_F32);
}

/* Bytes that must move per element of COUNT: in the type of the call, and in f32 regardless of it. */
static const struct {
    const char *name;
    case_fn *run;
    double per_dt, fixed;
} cases[] = {
    {"bias_bwd", run_bias_bwd, 1, 0},
    {"embed_fwd", run_embed_fwd, 2, 0},
    {"embed_bwd", run_embed_bwd, 1, 8},
    {"rmsnorm_fwd", run_rmsnorm_fwd, 4, 0},
    {"rmsnorm_bwd", run_rmsnorm_bwd, 4, 0},
    {"layernorm_fwd", run_layernorm_fwd, 4, 0},
    {"layernorm_bwd", run_layernorm_bwd, 4, 0},
    {"rope_fwd", run_rope_fwd, 2, 0},
    {"rope_fwd+norm", run_rope_norm_fwd, 2, 0},
    {"rope_bwd+norm", run_rope_norm_bwd, 3, 0},
    {"swiglu_fwd", run_swiglu_fwd, 1.5, 0},
    {"swiglu_bwd", run_swiglu_bwd, 3, 0},
    {"gelu_fwd", run_gelu_fwd, 2, 0},
    {"gelu_bwd", run_gelu_bwd, 4, 0},
    {"gate_fwd", run_gate_fwd, 3, 0},
    {"gate_bwd", run_gate_bwd, 6, 0},
    {"xent", run_xent, 1, 4},
    {"adamw", run_adamw, 0, 32},
    {"8bit_adamw", run_8bit, 0, 20 + 16. / QUANT_BLOCK},
    {"lion", run_lion, 0, 24},
};

static void copy_once(void *to, const void *from)
{
    const int64_t size = (int64_t)sizeof(float) * COUNT, grain = 256 << 10;
    PARALLEL_CHUNKS(c, chunk_count(size, grain))
    {
        struct span span = chunk_span(c, size, grain);
        memcpy((char *)to + span.begin, (const char *)from + span.begin, (size_t)(span.end - span.begin));
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians in seconds of the copy and of the case. */
static status measure(struct setup *s, case_fn *run, dtype dt, double *copy, double *op)
{
    double copies[RUNS], ops[RUNS];
    TRY(run(s, dt)); /* first touch */
    for (int i = 0; i < RUNS; i++) {
        double begin = clock_s();
        copy_once(s->x[ARRAYS - 1], s->x[0]);
        copies[i] = clock_s() - begin;
        begin = clock_s();
        TRY(run(s, dt));
        ops[i] = clock_s() - begin;
    }
    qsort(copies, RUNS, sizeof *copies, by_value);
    qsort(ops, RUNS, sizeof *ops, by_value);
    *copy = copies[RUNS / 2], *op = ops[RUNS / 2];
    return STATUS_OK;
}

/* Numbers around 1 whose two halves are the same BF16, so they are valid as either type: NaNs or subnormals
 * would be slow. */
static void fill(void *x)
{
    uint32_t *bits = x;
    PARALLEL_CHUNKS(r, ROWS)
    {
        for (int64_t i = r * D; i < (r + 1) * D; i++) {
            uint32_t mixed = (uint32_t)i * 2654435761u >> 16, half = 0x3f00u | (mixed & 0x80ffu);
            bits[i] = half << 16 | half;
        }
    }
}

static status setup_init(struct setup *s, const char *isa, void **memory)
{
    const size_t array = sizeof(float) * COUNT, vectors = sizeof(float) * (size_t)ROWS * (7 + HD);
    TRY(ops_cpu(&s->ops, isa));
    char *at = aligned_alloc(64, ARRAYS * array + vectors);
    if (at == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no %zu MB for the arrays", (ARRAYS * array + vectors) >> 20);
    *memory = at;
    memset(at, 0, ARRAYS * array + vectors);
    for (int i = 0; i < ARRAYS; i++, at += array) s->x[i] = at, fill(s->x[i]);
    float *v = (float *)(void *)at;
    s->dw = v, s->db = v + D, s->mean = v + 2 * D, s->rstd = v + 3 * D, s->w = v + 4 * D, s->b = v + 5 * D;
    s->ids = (int32_t *)(void *)(v + 6 * D), s->cos = v + 7 * D, s->sin = s->cos + ROWS * HD / 2;
    for (int64_t i = 0; i < ROWS; i++) s->ids[i] = (int32_t)(i * 1093 % ROWS), s->rstd[i] = 1;
    for (int64_t i = 0; i < COUNT / UPDATE_CHUNK; i++)
        s->chunks[i] = (struct update_chunk){.begin = i * UPDATE_CHUNK,
                                             .count = UPDATE_CHUNK,
                                             .flags = UPDATE_DECAY,
                                             .first = i * UPDATE_CHUNK};
    return STATUS_OK;
}

static bool chosen(const struct ops_bench *b, const char *name, dtype dt)
{
    return (!b->op || strncmp(b->op, name, strlen(b->op)) == 0) &&
           (!b->dt || (strcmp(b->dt, "bf16") == 0) == (dt == DTYPE_BF16));
}

static status run_cases(struct setup *s, const struct ops_bench *b)
{
    bool first = true;
    if (!b->json)
        printf("%-14s %-4s %9s %9s %7s   (%s, %d threads)\n", "op", "dt", "GB/s", "copy GB/s", "ratio",
               s->ops.name, parallel_threads());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 2; t++) {
            const dtype dt = t ? DTYPE_BF16 : DTYPE_F32;
            double copy, op;
            if (!chosen(b, cases[i].name, dt)) continue;
            for (int k = 0; k < ARRAYS; k++) fill(s->x[k]);
            TRY(measure(s, cases[i].run, dt, &copy, &op));
            bool writes_w = dt == DTYPE_BF16 && (cases[i].fixed >= 20 && cases[i].per_dt == 0);
            double bytes = cases[i].per_dt * (double)dtype_bytes(dt) + cases[i].fixed + (writes_w ? 2 : 0);
            double rate = bytes * COUNT / op * 1e-9, copy_rate = 2.0 * sizeof(float) * COUNT / copy * 1e-9;
            if (b->json)
                printf("%s{\"op\": \"%s\", \"dt\": \"%s\", \"gbs\": %.3f, \"copy_gbs\": %.3f}",
                       first ? "[" : ",\n ", cases[i].name, dtype_name(dt), rate, copy_rate);
            else
                printf("%-14s %-4s %9.2f %9.2f %7.2f\n", cases[i].name, dtype_name(dt), rate, copy_rate,
                       rate / copy_rate);
            first = false;
            fflush(stdout);
        }
    if (first) return FAIL(STATUS_CONFIG, "no op is named %s", b->op);
    if (b->json) printf("]\n");
    return STATUS_OK;
}

#if !INGOT_CUDA
status cuda_bench_ops(const struct ops_bench *b)
{
    (void)b;
    return FAIL(STATUS_DEVICE,
                "this ingot was built without CUDA; build it where nvcc is on PATH (cmake --preset cuda)");
}
#endif

static status on_cpu(const struct ops_bench *b, const char *isa)
{
    _Static_assert(COUNT % UPDATE_CHUNK == 0, "whole pieces");
    struct setup s = {0};
    void *memory = NULL;
    status st = setup_init(&s, isa, &memory);
    if (st == STATUS_OK) st = run_cases(&s, b);
    free(memory);
    return st;
}

status bench_ops(struct args *a)
{
    struct ops_bench b = {0};
    const char *isa = NULL, *device = "cpu";
    const struct flag flags[] = {FLAG("device", &device), FLAG("op", &b.op), FLAG("dtype", &b.dt),
                                 FLAG("isa", &isa), FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    if (b.dt && strcmp(b.dt, "f32") != 0 && strcmp(b.dt, "bf16") != 0)
        return FAIL(STATUS_CONFIG, "--dtype=%s: f32 or bf16", b.dt);
    const bool gpu = strcmp(device, "cuda") == 0;
    if (!gpu && strcmp(device, "cpu") != 0) return FAIL(STATUS_CONFIG, "--device=%s: cpu or cuda", device);
    if (gpu && isa) return FAIL(STATUS_CONFIG, "--isa is for the CPU");
    return gpu ? cuda_bench_ops(&b) : on_cpu(&b, isa);
}
