/* A layer of experts on a GPU in BF16, forward and backward: router, expert GEMMs, and the ops between
 * them. It is measured part by part, and as one captured graph, and compared with dense GEMMs of the same
 * FLOPs (the rows of all slots times one matrix, the op set's gemm). Data are normal random numbers (zeros
 * draw less power and run faster); experts therefore get about equally many rows. Medians. */
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/cuda/moe_dispatch.h"
#include "bench/cuda/moe_fp8.h"
#include "ops/cuda/ops_cuda.h"

#include <stdio.h>
#include <stdlib.h>

enum { RUNS_MAX = 99 };
static const int64_t pattern_count = 4194301; /* random numbers; an odd period, so that rows differ */

/* The layer's tensors, as in nn/moe.c. Tensors of sorted rows are also operands of the dense GEMMs. */
struct layer {
    struct moe_bench shape;
    struct route_rule rule;
    int64_t align, sorted;
    bf16 *x, *dy, *dx, *router, *up_w, *down_w;                /* [N, D]; [E, D], [E 2I, D], [E D, I] */
    bf16 *up, *dup, *m, *y_rows, *dm, *y, *dlogits, *dx_route; /* sorted rows; [N, D]; [N, E]; [N, D] */
    float *logits, *weight, *dweight, *drouter, *dup_w, *ddown_w;
    int32_t *expert, *place, *source, *offsets, *counts, *demand;
    void *scratch;
};

struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops;
    struct event begin, end;
    struct arena memory;
    bf16 *pattern;
    struct layer l;
    struct dispatch_bench dispatch; /* with shape.ranks */
    struct fp8_bench fp8;           /* with shape.fp8 */
};

/* ------------------------------------------------------------------ memory */

static void layout(struct layer *l, const struct ops *o, struct arena *a)
{
    const struct moe_bench *b = &l->shape;
    const int64_t slots = b->tokens * b->top_k, tokens = b->tokens * b->hidden, r = l->sorted;
    const struct moe_shape shape = {.rows = b->tokens,
                                    .experts = b->experts,
                                    .top_k = b->top_k,
                                    .d = b->hidden,
                                    .f = b->size,
                                    .dt = DTYPE_BF16};
#define TAKE(to, count) l->to = arena_take(a, sizeof *l->to * (size_t)(count), #to)
    TAKE(x, tokens), TAKE(dy, tokens), TAKE(dx, tokens), TAKE(y, tokens), TAKE(dx_route, tokens);
    TAKE(router, b->experts * b->hidden), TAKE(drouter, b->experts * b->hidden);
    TAKE(up_w, b->experts * 2 * b->size * b->hidden), TAKE(dup_w, b->experts * 2 * b->size * b->hidden);
    TAKE(down_w, b->experts * b->size * b->hidden), TAKE(ddown_w, b->experts * b->size * b->hidden);
    TAKE(up, r * 2 * b->size), TAKE(dup, r * 2 * b->size), TAKE(m, r * b->size), TAKE(dm, r * b->size),
        TAKE(y_rows, r * b->hidden);
    TAKE(logits, b->tokens * b->experts), TAKE(dlogits, b->tokens * b->experts);
    TAKE(weight, slots), TAKE(dweight, slots), TAKE(expert, slots), TAKE(place, slots), TAKE(source, r);
    TAKE(offsets, b->experts + 1), TAKE(counts, b->experts), TAKE(demand, b->experts);
#undef TAKE
    l->scratch = arena_take(a, o->moe_scratch(&shape, MOE_ROUTE_FWD), "scratch");
}

static status fill(struct gpu *c, bf16 *to, int64_t count)
{
    for (int64_t done = 0, more; done < count; done += more) {
        more = count - done < pattern_count ? count - done : pattern_count;
        TRY(dev_copy(&c->s, to + done, c->pattern, sizeof *to * (size_t)more));
    }
    return STATUS_OK;
}

static status pattern_upload(struct gpu *c)
{
    enum { GRAIN = 1 << 16 };
    bf16 *numbers = malloc(sizeof *numbers * (size_t)pattern_count);
    if (numbers == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for random numbers");
    PARALLEL_CHUNKS(i, chunk_count(pattern_count, GRAIN))
    {
        const struct span at = chunk_span(i, pattern_count, GRAIN);
        for (int64_t n = at.begin; n < at.end; n++)
            numbers[n] = bf16_from_f32(0.1f * (float)rng_normal(1, RNG_TEST, (uint64_t)n, 0));
    }
    status st = dev_upload(&c->s, c->pattern, numbers, sizeof *numbers * (size_t)pattern_count);
    if (st == STATUS_OK) st = dev_sync(&c->s);
    free(numbers);
    return st;
}

/* What the other two benches read of the layer. */
static void share(struct gpu *c)
{
    const struct layer *l = &c->l;
    struct fp8_bench *f = &c->fp8;
    c->dispatch.x = l->x, c->dispatch.slots = l->source, c->dispatch.counts = l->counts;
    f->align = l->align;
    f->x = l->x, f->dy = l->dy, f->up_w = l->up_w, f->down_w = l->down_w, f->m = l->m, f->dup = l->dup;
    f->up = l->up, f->dm = l->dm, f->y_rows = l->y_rows, f->dup_w = l->dup_w, f->ddown_w = l->ddown_w;
    f->weight = l->weight, f->dweight = l->dweight;
    f->source = l->source, f->offsets = l->offsets, f->counts = l->counts;
}

static void layout_all(struct gpu *c, struct arena *a)
{
    const struct moe_bench *b = &c->l.shape;
    layout(&c->l, &c->ops, a);
    if (b->ranks > 0) dispatch_bench_layout(&c->dispatch, &c->ops, a);
    if (b->fp8) fp8_bench_layout(&c->fp8, a);
}

static status memory_open(struct gpu *c)
{
    const struct moe_bench *b = &c->l.shape;
    struct arena count = {.name = "bench moe"};
    c->dispatch = (struct dispatch_bench){.shape = *b, .sorted = c->l.sorted};
    c->fp8 = (struct fp8_bench){.shape = *b, .sorted = c->l.sorted};
    layout_all(c, &count);
    const size_t pattern = sizeof *c->pattern * (size_t)pattern_count,
                 workspace = c->ops.workspace(b->tokens * b->top_k);
    TRY(dev_arena_reserve(&c->dev, &c->memory, "bench moe",
                          count.peak + pattern + workspace + 3 * ARENA_ALIGN));
    layout_all(c, &c->memory);
    share(c);
    c->pattern = arena_take(&c->memory, pattern, "random numbers");
    ops_cuda_workspace(&c->s, arena_take(&c->memory, workspace, "workspace"), workspace);
    TRY(pattern_upload(c));
    TRY(fill(c, c->l.x, b->tokens * b->hidden));
    TRY(fill(c, c->l.dy, b->tokens * b->hidden));
    TRY(fill(c, c->l.router, b->experts * b->hidden));
    TRY(fill(c, c->l.up_w, b->experts * 2 * b->size * b->hidden));
    return fill(c, c->l.down_w, b->experts * b->size * b->hidden);
}

/* ------------------------------------------------------------------ the parts, in the order of a step */

static status expert_gemm(struct gpu *c, enum expert_pass what, enum expert_gather gather, const void *a,
                          const void *b, void *to, int64_t n, int64_t k)
{
    const struct layer *l = &c->l;
    const struct expert_gemm_args g = {.pass = what,
                                       .gather = gather,
                                       .a = operand_at(a, DTYPE_BF16, false),
                                       .b = operand_at(b, DTYPE_BF16, false),
                                       .c = to,
                                       .source = l->source,
                                       .offsets = l->offsets,
                                       .counts = l->counts,
                                       .rows = l->shape.tokens,
                                       .top_k = l->shape.top_k,
                                       .experts = l->shape.experts,
                                       .n = n,
                                       .k = k,
                                       .align = l->align,
                                       .dt = DTYPE_BF16};
    return c->ops.expert_gemm(&g, &c->s);
}

static status router_fwd(struct gpu *c)
{
    const struct layer *l = &c->l;
    const struct moe_bench *b = &l->shape;
    return c->ops.gemm(&(struct gemm_args){.a = operand_at(l->x, DTYPE_BF16, false),
                                           .b = operand_at(l->router, DTYPE_BF16, true),
                                           .c = l->logits,
                                           .m = b->tokens,
                                           .n = b->experts,
                                           .k = b->hidden,
                                           .cdt = DTYPE_F32},
                       &c->s);
}
static status router_dgrad(struct gpu *c)
{
    const struct layer *l = &c->l;
    const struct moe_bench *b = &l->shape;
    return c->ops.gemm(&(struct gemm_args){.a = operand_at(l->dlogits, DTYPE_BF16, false),
                                           .b = operand_at(l->router, DTYPE_BF16, false),
                                           .c = l->dx_route,
                                           .m = b->tokens,
                                           .n = b->hidden,
                                           .k = b->experts,
                                           .cdt = DTYPE_BF16},
                       &c->s);
}
static status router_wgrad(struct gpu *c)
{
    const struct layer *l = &c->l;
    const struct moe_bench *b = &l->shape;
    return c->ops.gemm(&(struct gemm_args){.a = operand_at(l->dlogits, DTYPE_BF16, true),
                                           .b = operand_at(l->x, DTYPE_BF16, false),
                                           .c = l->drouter,
                                           .m = b->experts,
                                           .n = b->hidden,
                                           .k = b->tokens,
                                           .cdt = DTYPE_F32},
                       &c->s);
}
static status route(struct gpu *c)
{
    const struct layer *l = &c->l;
    return c->ops.route_fwd(&(struct route_fwd_args){.logits = l->logits,
                                                     .rule = l->rule,
                                                     .rows = l->shape.tokens,
                                                     .align = l->align,
                                                     .expert = l->expert,
                                                     .weight = l->weight,
                                                     .place = l->place,
                                                     .source = l->source,
                                                     .offsets = l->offsets,
                                                     .counts = l->counts,
                                                     .demand = l->demand,
                                                     .scratch = l->scratch,
                                                     .dt = DTYPE_BF16},
                            &c->s);
}
static status route_back(struct gpu *c)
{
    const struct layer *l = &c->l;
    return c->ops.route_bwd(&(struct route_bwd_args){.dweight = l->dweight,
                                                     .logits = l->logits,
                                                     .expert = l->expert,
                                                     .place = l->place,
                                                     .demand = l->demand,
                                                     .rule = l->rule,
                                                     .rows = l->shape.tokens,
                                                     .dlogits = l->dlogits,
                                                     .scratch = l->scratch,
                                                     .dt = DTYPE_BF16},
                            &c->s);
}
static status fc1(struct gpu *c)
{
    const struct layer *l = &c->l;
    return expert_gemm(c, EXPERT_FWD, EXPERT_GATHER_A, l->x, l->up_w, l->up, 2 * l->shape.size,
                       l->shape.hidden);
}
static status act(struct gpu *c)
{
    const struct layer *l = &c->l;
    return c->ops.expert_act_fwd(&(struct expert_act_fwd_args){.up = l->up,
                                                               .m = l->m,
                                                               .weight = l->weight,
                                                               .source = l->source,
                                                               .offsets = l->offsets,
                                                               .rows = l->shape.tokens,
                                                               .top_k = l->shape.top_k,
                                                               .experts = l->shape.experts,
                                                               .f = l->shape.size,
                                                               .align = l->align,
                                                               .dt = DTYPE_BF16},
                                 &c->s);
}
static status fc2(struct gpu *c)
{
    const struct layer *l = &c->l;
    return expert_gemm(c, EXPERT_FWD, EXPERT_GATHER_NONE, l->m, l->down_w, l->y_rows, l->shape.hidden,
                       l->shape.size);
}
static status together(struct gpu *c, const bf16 *base, bf16 *y)
{
    const struct layer *l = &c->l;
    return c->ops.combine(&(struct combine_args){.x = l->y_rows,
                                                 .place = l->place,
                                                 .base = base,
                                                 .y = y,
                                                 .rows = l->shape.tokens,
                                                 .top_k = l->shape.top_k,
                                                 .d = l->shape.hidden,
                                                 .dt = DTYPE_BF16,
                                                 .base_dt = DTYPE_BF16},
                          &c->s);
}
static status combine_fwd(struct gpu *c)
{
    return together(c, NULL, c->l.y);
}
static status fc2_dgrad(struct gpu *c)
{
    const struct layer *l = &c->l;
    return expert_gemm(c, EXPERT_DGRAD, EXPERT_GATHER_A, l->dy, l->down_w, l->dm, l->shape.hidden,
                       l->shape.size);
}
static status act_back(struct gpu *c)
{
    const struct layer *l = &c->l;
    return c->ops.expert_act_bwd(&(struct expert_act_bwd_args){.dm = l->dm,
                                                               .up = l->up,
                                                               .weight = l->weight,
                                                               .source = l->source,
                                                               .offsets = l->offsets,
                                                               .dup = l->dup,
                                                               .m = l->m,
                                                               .dweight = l->dweight,
                                                               .rows = l->shape.tokens,
                                                               .top_k = l->shape.top_k,
                                                               .experts = l->shape.experts,
                                                               .f = l->shape.size,
                                                               .align = l->align,
                                                               .dt = DTYPE_BF16},
                                 &c->s);
}
static status fc2_wgrad(struct gpu *c)
{
    const struct layer *l = &c->l;
    return expert_gemm(c, EXPERT_WGRAD, EXPERT_GATHER_A, l->dy, l->m, l->ddown_w, l->shape.hidden,
                       l->shape.size);
}
static status fc1_wgrad(struct gpu *c)
{
    const struct layer *l = &c->l;
    return expert_gemm(c, EXPERT_WGRAD, EXPERT_GATHER_B, l->dup, l->x, l->dup_w, 2 * l->shape.size,
                       l->shape.hidden);
}
static status fc1_dgrad(struct gpu *c)
{
    const struct layer *l = &c->l;
    return expert_gemm(c, EXPERT_DGRAD, EXPERT_GATHER_NONE, l->dup, l->up_w, l->y_rows, 2 * l->shape.size,
                       l->shape.hidden);
}
static status combine_back(struct gpu *c)
{
    return together(c, c->l.dx_route, c->l.dx);
}

/* share: of the FLOPs of all expert GEMMs, in ninths. bytes: minimum traffic per sorted row and width I or D. */
static const struct part {
    const char *name;
    status (*run)(struct gpu *c);
    double ninths, bytes_size, bytes_hidden;
} parts[] = {{"router", router_fwd, 0, 0, 0},
             {"route", route, 0, 0, 0},
             {"fc1", fc1, 2, 0, 0},
             {"activation", act, 0, 6, 0},
             {"fc2", fc2, 1, 0, 0},
             {"combine", combine_fwd, 0, 0, 2},
             {"fc2 dgrad", fc2_dgrad, 1, 0, 0},
             {"activation bwd", act_back, 0, 12, 0},
             {"fc2 wgrad", fc2_wgrad, 1, 0, 0},
             {"fc1 wgrad", fc1_wgrad, 2, 0, 0},
             {"fc1 dgrad", fc1_dgrad, 2, 0, 0},
             {"route bwd", route_back, 0, 0, 0},
             {"router dgrad", router_dgrad, 0, 0, 0},
             {"router wgrad", router_wgrad, 0, 0, 0},
             {"combine bwd", combine_back, 0, 0, 2}};
enum { PARTS = sizeof parts / sizeof *parts };

static status all_parts(struct gpu *c)
{
    for (int i = 0; i < PARTS; i++) TRY(parts[i].run(c));
    return STATUS_OK;
}

/* Parts [first, end) in FP8. */
static status fp8_parts(struct gpu *c, int first, int end)
{
    for (int i = first; i < end; i++) TRY(fp8_bench_run(&c->fp8, i, &c->ops, &c->s));
    return STATUS_OK;
}
static status whole_fp8(struct gpu *c)
{
    TRY(router_fwd(c));
    TRY(route(c));
    TRY(fp8_parts(c, 0, FP8_BENCH_FORWARD));
    TRY(combine_fwd(c));
    TRY(fp8_parts(c, FP8_BENCH_FORWARD, FP8_BENCH_PARTS));
    TRY(route_back(c));
    TRY(router_dgrad(c));
    TRY(router_wgrad(c));
    return combine_back(c);
}

/* Dense: all slots' rows times one matrix of an expert's size. */
static status dense(struct gpu *c, int which)
{
    const struct layer *l = &c->l;
    const int64_t rows = l->shape.tokens * l->shape.top_k, two = 2 * l->shape.size, d = l->shape.hidden,
                  f = l->shape.size;
    const struct {
        const void *a, *b;
        void *c;
        int64_t m, n, k;
        bool trans_a, trans_b;
    } all[] = {{l->y_rows, l->up_w, l->up, rows, two, d, false, true},
               {l->m, l->down_w, l->y_rows, rows, d, f, false, true},
               {l->y_rows, l->down_w, l->dm, rows, f, d, false, false},
               {l->y_rows, l->m, l->ddown_w, d, f, rows, true, false},
               {l->up, l->y_rows, l->dup_w, two, d, rows, true, false},
               {l->up, l->up_w, l->y_rows, rows, d, two, false, false}};
    const struct gemm_args g = {.a = operand_at(all[which].a, DTYPE_BF16, all[which].trans_a),
                                .b = operand_at(all[which].b, DTYPE_BF16, all[which].trans_b),
                                .c = all[which].c,
                                .m = all[which].m,
                                .n = all[which].n,
                                .k = all[which].k,
                                .cdt = all[which].trans_a ? DTYPE_F32 : DTYPE_BF16};
    return c->ops.gemm(&g, &c->s);
}
enum { DENSE = 6 };

/* ------------------------------------------------------------------ measuring */

/* After the parts: the graph of all of them; then the dense ones, the parts of a dispatch, those in FP8, and a graph of
 * the layer with them. */
enum {
    WHOLE = PARTS,
    GEMMS,
    DISPATCH = GEMMS + DENSE,
    FP8 = DISPATCH + DISPATCH_PARTS,
    WHOLE_FP8 = FP8 + FP8_BENCH_PARTS
};

static status run_once(struct gpu *c, const struct graph *g, int what)
{
    if (what < WHOLE) return parts[what].run(c);
    if (what == WHOLE_FP8) return dev_graph_launch(&c->s, g);
    if (what >= FP8) return fp8_bench_run(&c->fp8, what - FP8, &c->ops, &c->s);
    if (what >= DISPATCH) return dispatch_bench_run(&c->dispatch, what - DISPATCH, &c->ops, &c->s);
    return what == WHOLE ? dev_graph_launch(&c->s, g) : dense(c, what - GEMMS);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status measure(struct gpu *c, const struct graph *g, int what, double *median)
{
    double ms[RUNS_MAX];
    const int64_t runs = c->l.shape.runs;
    TRY(run_once(c, g, what));
    TRY(run_once(c, g, what));
    for (int64_t i = 0; i < runs; i++) {
        TRY(dev_event_record(&c->s, &c->begin));
        TRY(run_once(c, g, what));
        TRY(dev_event_record(&c->s, &c->end));
        TRY(dev_event_ms(&c->dev, &c->begin, &c->end, &ms[i]));
    }
    qsort(ms, (size_t)runs, sizeof *ms, ascending);
    *median = ms[runs / 2];
    return STATUS_OK;
}

static void print_row(const struct gpu *c, const char *name, double ms, double flops, double bytes)
{
    if (c->l.shape.json)
        printf("{\"bench\":\"moe\",\"set\":\"cuda\",\"device\":\"%s\",\"part\":\"%s\",\"ms\":%.4f,"
               "\"tflops\":%.1f,\"gb_s\":%.0f}\n",
               c->dev.name, name, ms, flops / ms * 1e-9, bytes / ms * 1e-6);
    else if (flops > 0)
        printf("  %-16s %9.3f ms %7.0f TFLOP/s\n", name, ms, flops / ms * 1e-9);
    else if (bytes > 0)
        printf("  %-16s %9.3f ms %7.0f GB/s\n", name, ms, bytes / ms * 1e-6);
    else
        printf("  %-16s %9.3f ms\n", name, ms);
    fflush(stdout);
}

static status capture(struct gpu *c, struct graph *g, status (*work)(struct gpu *c))
{
    TRY(dev_graph_begin(&c->s));
    const status st = work(c), ended = dev_graph_end(&c->s, g, st == STATUS_OK);
    return st == STATUS_OK ? ended : st;
}

static status report_fp8(struct gpu *c, double bf16_ms)
{
    const struct moe_bench *b = &c->l.shape;
    const double flops = 18.0 * (double)(b->tokens * b->top_k) * (double)(b->hidden * b->size);
    struct graph g = {0};
    double ms, sum = 0;
    TRY(fp8_bench_open(&c->fp8, &c->ops, &c->s));
    for (int i = 0; i < FP8_BENCH_PARTS; i++) {
        TRY(measure(c, &g, FP8 + i, &ms));
        sum += ms;
        print_row(c, fp8_bench_name(i), ms, flops * fp8_bench_ninths(i) / 9, fp8_bench_bytes(&c->fp8, i));
    }
    print_row(c, "fp8 parts", sum, flops, 0);
    status st = capture(c, &g, whole_fp8);
    if (st == STATUS_OK) st = measure(c, &g, WHOLE_FP8, &ms);
    dev_graph_close(&c->dev, &g);
    TRY(st);
    print_row(c, "fp8 whole layer", ms, flops, 0);
    if (!b->json) printf("  fp8 whole layer / bf16: %.3f\n", ms / bf16_ms);
    return STATUS_OK;
}

static status report(struct gpu *c, const struct graph *g)
{
    const struct moe_bench *b = &c->l.shape;
    const double slots = (double)(b->tokens * b->top_k), flops = 18.0 * slots * (double)(b->hidden * b->size);
    double ms, whole, gemms = 0;
    for (int i = 0; i < PARTS; i++) {
        const struct part *p = &parts[i];
        TRY(measure(c, g, i, &ms));
        print_row(c, p->name, ms, flops * p->ninths / 9,
                  slots * (p->bytes_size * (double)b->size + p->bytes_hidden * (double)b->hidden));
    }
    TRY(measure(c, g, WHOLE, &whole));
    print_row(c, "whole layer", whole, flops, 0);
    for (int i = 0; i < DENSE; i++) {
        TRY(measure(c, g, GEMMS + i, &ms));
        gemms += ms;
    }
    print_row(c, "dense GEMMs", gemms, flops, 0);
    if (!b->json) printf("  whole layer / dense GEMMs: %.3f\n", whole / gemms);
    if (b->fp8) TRY(report_fp8(c, whole));
    if (b->ranks > 0) TRY(dispatch_bench_fill(&c->dispatch, &c->s));
    for (int i = 0; i < DISPATCH_PARTS && b->ranks > 0; i++) {
        TRY(measure(c, g, DISPATCH + i, &ms));
        print_row(c, dispatch_bench_name(i), ms, 0, dispatch_bench_bytes(&c->dispatch, i));
    }
    return STATUS_OK;
}

static status run_all(struct gpu *c)
{
    const struct moe_bench *b = &c->l.shape;
    struct graph g = {0};
    TRY(dev_stream_open(&c->dev, &c->s));
    TRY(dev_event_open(&c->dev, &c->begin));
    TRY(dev_event_open(&c->dev, &c->end));
    TRY(ops_cuda(&c->ops, &c->s, &(struct cuda_options){0}));
    c->l.align = c->ops.expert_align;
    c->l.sorted = moe_rows_max(b->tokens, b->top_k, b->experts, c->l.align);
    TRY(memory_open(c));
    TRY(all_parts(c));
    TRY(dev_sync(&c->s));
    if (!b->json)
        printf("%s bf16: %lld tokens, %lld of %lld experts, D %lld, I %lld; medians of %lld\n", c->dev.name,
               (long long)b->tokens, (long long)b->top_k, (long long)b->experts, (long long)b->hidden,
               (long long)b->size, (long long)b->runs);
    status st = capture(c, &g, all_parts);
    if (st == STATUS_OK) st = report(c, &g);
    dev_graph_close(&c->dev, &g);
    return st;
}

status cuda_bench_moe(const struct moe_bench *b)
{
    struct gpu c = {.l.shape = *b};
    if (b->runs < 1 || b->runs > RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)b->runs, RUNS_MAX);
    c.l.rule = (struct route_rule){.score = ROUTE_SOFTMAX,
                                   .experts = b->experts,
                                   .top_k = b->top_k,
                                   .groups = 1,
                                   .groups_kept = 1,
                                   .normalize = true,
                                   .scale = 1};
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
