/* The gated delta rule of a micro-batch on a GPU in BF16, forward and backward, with q and k normalised
 * inside. Prints medians in ms, and the rate of the bytes that any algorithm has to move: q, k, v, g, beta
 * and o forward; these, do and the five gradients backward. q, k, v and do are normal random numbers,
 * decays are between 1 and e^-0.1, beta between 0 and 1. */
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "ops/cuda/ops_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct rule {
    bf16 *q, *k, *v, *o, *dq, *dk, *dv, *dout; /* [rows, heads_k dim] or [rows, heads dim] */
    float *g, *beta, *dg, *dbeta;              /* [rows, heads] */
    int32_t *cu_seqlens;
    void *saved, *scratch;
};
struct gpu {
    struct delta_bench bench;
    struct delta_shape shape;
    struct dev dev;
    struct stream s;
    struct ops ops;
    struct event begin, end;
    struct arena memory;
    struct rule r;
};

static void layout(struct gpu *c, struct arena *a)
{
    const struct delta_shape *n = &c->shape;
    const int64_t keys = n->rows * n->heads_k * n->dk, values = n->rows * n->heads * n->dv,
                  each = n->rows * n->heads;
    const size_t fwd = c->ops.delta_bytes(n, DELTA_FWD), bwd = c->ops.delta_bytes(n, DELTA_BWD);
    struct rule *r = &c->r;
#define TAKE(to, count) r->to = arena_take(a, sizeof *r->to * (size_t)(count), #to)
    TAKE(q, keys), TAKE(k, keys), TAKE(dq, keys), TAKE(dk, keys);
    TAKE(v, values), TAKE(o, values), TAKE(dv, values), TAKE(dout, values);
    TAKE(g, each), TAKE(beta, each), TAKE(dg, each), TAKE(dbeta, each), TAKE(cu_seqlens, n->docs + 1);
#undef TAKE
    r->saved = arena_take(a, c->ops.delta_bytes(n, DELTA_SAVED), "saved");
    r->scratch = arena_take(a, fwd > bwd ? fwd : bwd, "scratch");
}

enum kind { NORMAL, DECAY, SHARE };
static float number(enum kind kind, uint64_t stream, int64_t i)
{
    if (kind == NORMAL) return (float)rng_normal(1, RNG_TEST, stream, (uint64_t)i);
    const double u = rng_uniform(1, RNG_TEST, stream, (uint64_t)i);
    return (float)(kind == DECAY ? -0.1 * u : u);
}

static status upload(struct gpu *c, void *to, dtype dt, int64_t count, enum kind kind, uint64_t stream)
{
    enum { GRAIN = 1 << 16 };
    void *numbers = malloc((size_t)count * dtype_bytes(dt));
    if (numbers == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for random numbers");
    PARALLEL_CHUNKS(i, chunk_count(count, GRAIN))
    {
        const struct span at = chunk_span(i, count, GRAIN);
        for (int64_t n = at.begin; n < at.end; n++)
            if (dt == DTYPE_BF16)
                ((bf16 *)numbers)[n] = bf16_from_f32(number(kind, stream, n));
            else
                ((float *)numbers)[n] = number(kind, stream, n);
    }
    status st = dev_upload(&c->s, to, numbers, (size_t)count * dtype_bytes(dt));
    if (st == STATUS_OK) st = dev_sync(&c->s);
    free(numbers);
    return st;
}

static status documents_upload(struct gpu *c)
{
    int32_t *cu = malloc((size_t)(c->shape.docs + 1) * sizeof *cu);
    if (cu == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for documents");
    for (int64_t i = 0; i <= c->shape.docs; i++) cu[i] = (int32_t)(i * c->bench.length);
    status st = dev_upload(&c->s, c->r.cu_seqlens, cu, (size_t)(c->shape.docs + 1) * sizeof *cu);
    if (st == STATUS_OK) st = dev_sync(&c->s);
    free(cu);
    return st;
}

static status memory_open(struct gpu *c)
{
    const struct delta_shape *n = &c->shape;
    struct arena count = {.name = "bench delta"};
    layout(c, &count);
    const size_t workspace = c->ops.workspace(n->rows);
    TRY(dev_arena_reserve(&c->dev, &c->memory, "bench delta", count.peak + workspace + 2 * ARENA_ALIGN));
    layout(c, &c->memory);
    ops_cuda_workspace(&c->s, arena_take(&c->memory, workspace, "workspace"), workspace);
    const int64_t keys = n->rows * n->heads_k * n->dk, values = n->rows * n->heads * n->dv,
                  each = n->rows * n->heads;
    TRY(upload(c, c->r.q, DTYPE_BF16, keys, NORMAL, 1));
    TRY(upload(c, c->r.k, DTYPE_BF16, keys, NORMAL, 2));
    TRY(upload(c, c->r.v, DTYPE_BF16, values, NORMAL, 3));
    TRY(upload(c, c->r.dout, DTYPE_BF16, values, NORMAL, 4));
    TRY(upload(c, c->r.g, DTYPE_F32, each, DECAY, 5));
    TRY(upload(c, c->r.beta, DTYPE_F32, each, SHARE, 6));
    return documents_upload(c);
}

static status forward(struct gpu *c)
{
    const struct rule *r = &c->r;
    const struct delta_shape *n = &c->shape;
    return c->ops.delta_fwd(&(struct delta_fwd_args){.q = r->q,
                                                     .k = r->k,
                                                     .v = r->v,
                                                     .g = r->g,
                                                     .beta = r->beta,
                                                     .o = r->o,
                                                     .saved = r->saved,
                                                     .q_stride = n->heads_k * n->dk,
                                                     .k_stride = n->heads_k * n->dk,
                                                     .v_stride = n->heads * n->dv,
                                                     .cu_seqlens = r->cu_seqlens,
                                                     .shape = *n,
                                                     .scale = 1 / sqrt((double)n->dk),
                                                     .normalize = true,
                                                     .scratch = r->scratch},
                            &c->s);
}

static status backward(struct gpu *c)
{
    const struct rule *r = &c->r;
    const struct delta_shape *n = &c->shape;
    const int64_t keys = n->heads_k * n->dk, values = n->heads * n->dv;
    return c->ops.delta_bwd(&(struct delta_bwd_args){.q = r->q,
                                                     .k = r->k,
                                                     .v = r->v,
                                                     .g = r->g,
                                                     .beta = r->beta,
                                                     .do_ = r->dout,
                                                     .saved = r->saved,
                                                     .dq = r->dq,
                                                     .dk = r->dk,
                                                     .dv = r->dv,
                                                     .dg = r->dg,
                                                     .dbeta = r->dbeta,
                                                     .q_stride = keys,
                                                     .k_stride = keys,
                                                     .v_stride = values,
                                                     .dq_stride = keys,
                                                     .dk_stride = keys,
                                                     .dv_stride = values,
                                                     .cu_seqlens = r->cu_seqlens,
                                                     .shape = *n,
                                                     .scale = 1 / sqrt((double)n->dk),
                                                     .normalize = true,
                                                     .scratch = r->scratch},
                            &c->s);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef status pass_fn(struct gpu *);
static status measure(struct gpu *c, pass_fn *pass, double *median)
{
    double ms[DELTA_BENCH_RUNS];
    TRY(pass(c));
    TRY(pass(c));
    for (int64_t i = 0; i < c->bench.runs; i++) {
        TRY(dev_event_record(&c->s, &c->begin));
        TRY(pass(c));
        TRY(dev_event_record(&c->s, &c->end));
        TRY(dev_event_ms(&c->dev, &c->begin, &c->end, &ms[i]));
    }
    qsort(ms, (size_t)c->bench.runs, sizeof *ms, ascending);
    *median = ms[c->bench.runs / 2];
    return STATUS_OK;
}

static void print_row(const struct gpu *c, const char *name, double ms, double bytes)
{
    const struct delta_bench *b = &c->bench;
    if (b->json)
        printf("{\"bench\":\"delta\",\"set\":\"cuda\",\"device\":\"%s\",\"docs\":%lld,\"length\":%lld,\"key_"
               "heads\":%lld,"
               "\"heads\":%lld,\"dim\":%lld,\"part\":\"%s\",\"ms\":%.4f,\"gb_s\":%.0f}\n",
               c->dev.name, (long long)b->docs, (long long)b->length, (long long)b->heads_k,
               (long long)b->heads, (long long)b->dim, name, ms, bytes / ms * 1e-6);
    else
        printf("  %-10s %9.3f ms %7.0f GB/s\n", name, ms, bytes / ms * 1e-6);
    fflush(stdout);
}

static status report(struct gpu *c)
{
    const struct delta_shape *n = &c->shape;
    const double keys = 2.0 * (double)(n->rows * n->heads_k * n->dk), rows = (double)(n->rows * n->heads),
                 values = 2.0 * rows * (double)n->dv;
    double fwd, bwd;
    TRY(measure(c, forward, &fwd));
    TRY(measure(c, backward, &bwd));
    print_row(c, "forward", fwd, 2 * keys + 2 * values + 8 * rows);
    print_row(c, "backward", bwd, 4 * keys + 3 * values + 16 * rows);
    print_row(c, "both", fwd + bwd, 6 * keys + 5 * values + 24 * rows);
    return STATUS_OK;
}

static status run_all(struct gpu *c)
{
    const struct delta_bench *b = &c->bench;
    TRY(dev_stream_open(&c->dev, &c->s));
    TRY(dev_event_open(&c->dev, &c->begin));
    TRY(dev_event_open(&c->dev, &c->end));
    TRY(ops_cuda(&c->ops, &c->s, &(struct cuda_options){0}));
    TRY(memory_open(c));
    if (!b->json)
        printf("%s bf16: %lld documents of %lld rows, heads %lld/%lld of %lld; medians of %lld\n",
               c->dev.name, (long long)b->docs, (long long)b->length, (long long)b->heads_k,
               (long long)b->heads, (long long)b->dim, (long long)b->runs);
    return report(c);
}

status cuda_bench_delta(const struct delta_bench *b)
{
    struct gpu c = {.bench = *b};
    c.shape = (struct delta_shape){.docs = b->docs,
                                   .rows = b->docs * b->length,
                                   .heads = b->heads,
                                   .heads_k = b->heads_k,
                                   .dk = b->dim,
                                   .dv = b->dim,
                                   .dt = DTYPE_BF16};
    TRY(dev_open(&c.dev, DEV_CUDA));
    const status st = run_all(&c);
    arena_free(&c.memory);
    if (c.s.queue) {
        ops_cuda_close(&c.s);
        dev_event_close(&c.dev, &c.begin);
        dev_event_close(&c.dev, &c.end);
        dev_stream_close(&c.s);
    }
    dev_close(&c.dev);
    return st;
}
