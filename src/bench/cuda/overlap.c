/* GEMMs beside the traffic of a collective, on one GPU. The GEMMs are those of a backward pass: dgrad and wgrad of every
 * linear of a model's layers, by the algorithms that are fastest on their multiprocessors. The traffic stands in for the
 * ring all-reduce of the layers' FP32 gradients: n - 1 parts of n are read twice and written once (reduce-scatter), then
 * read and written (all-gather), with as many thread blocks as multiprocessors are asked for, no faster than the links
 * between the ranks. Both are queued layer by layer, and begin together.
 *
 *   streams   two streams, as training has them: that of the traffic has the higher priority
 *   target    the same, and the library makes the GEMMs for the multiprocessors that the traffic leaves
 *   green     two green contexts: the traffic has its multiprocessors, the GEMMs have the others
 *
 * Times are those of the GPU's own clock, from stamps on both streams. Sums are checked element by element; results of
 * GEMMs beside traffic must be those without, bit for bit. */
#include "base/clock.h"
#include "base/int_math.h"
#include "base/log.h"
#include "bench/bench.h"
#include "bench/cuda/green.h"
#include "bench/cuda/overlap_kernels.h"
#include "bench/cuda/p2p_kernels.h"
#include "dev/power.h"
#include "ops/cuda/set.h"
#include "spec/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINEARS = 4, GEMMS = 2 * LINEARS };
enum { GEMMS_BEGIN, GEMMS_END, TRAFFIC_BEGIN, TRAFFIC_END, STAMPS };

/* A pass: milliseconds; 0: it was not part of the pass. */
struct times {
    double gemms, traffic, both;
    double watts; /* 0: not measured */
};

/* The two streams of a way, and the op set of its GEMMs. */
struct way {
    const char *name;
    struct stream *gemms, *traffic;
    struct cuda_set *set;
    int sms; /* of the GEMMs */
};

struct overlap {
    const struct overlap_bench *b;
    const struct dev *dev;
    struct power_meter *meter;
    struct stream s, side;
    struct ops ops;
    struct arena memory;
    struct gemm_args gemm[GEMMS]; /* without pointers */
    size_t result_at[GEMMS], result_bytes;
    char *operands, *results, *reference;
    bool has_reference;
    float *own, *in, *sum, *out;
    void *workspace;
    int64_t layers, moved; /* moved: floats of a half ring per layer */
    double flops;          /* of a pass */
    unsigned long long *stamps;
    unsigned long long *wrong;
    struct p2p_wrong *wrong_sums;
};

/* ------------------------------------------------------------------ what runs */

static void gemms_of(struct overlap *o, const struct model_spec *m)
{
    const int64_t heads = m->head_count * m->head_dim, kv = m->head_count_kv * m->head_dim;
    const int64_t d = m->hidden_size, f = m->ffn_size, t = o->b->tokens;
    const int64_t sizes[LINEARS][2] = {
        {heads + 2 * kv, d}, {d, heads}, {m->activation == ACT_SWIGLU ? 2 * f : f, d}, {d, f}};
    int64_t weights = 0;
    for (int i = 0; i < LINEARS; i++) {
        const int64_t out = sizes[i][0], in = sizes[i][1];
        struct gemm_args *dgrad = &o->gemm[2 * i], *wgrad = dgrad + 1;
        *dgrad = (struct gemm_args){.m = t, .n = in, .k = out, .cdt = DTYPE_BF16};
        *wgrad = (struct gemm_args){.m = out, .n = in, .k = t, .cdt = DTYPE_F32};
        wgrad->a.trans = true;
        weights += out * in;
    }
    for (int i = 0; i < GEMMS; i++) {
        struct gemm_args *g = &o->gemm[i];
        g->a.dt = g->b.dt = DTYPE_BF16;
        o->result_at[i] = o->result_bytes;
        o->result_bytes += size_round_up((size_t)(g->m * g->n) * dtype_bytes(g->cdt), ARENA_ALIGN);
    }
    o->layers = o->b->layers ? o->b->layers : m->layer_count;
    o->flops = 4.0 * (double)weights * (double)t * (double)o->layers;
    o->moved = weights * (o->b->ranks - 1) / o->b->ranks / 4 * 4;
}

/* The GEMM with operands and its result's place. */
static struct gemm_args gemm_at(const struct overlap *o, int i)
{
    struct gemm_args g = o->gemm[i];
    g.a.data = o->operands;
    g.b.data = o->operands + size_round_up((size_t)(g.m * g.k) * dtype_bytes(DTYPE_BF16), ARENA_ALIGN);
    g.c = o->results + o->result_at[i];
    return g;
}

static status queue_gemms(const struct overlap *o, const struct way *w)
{
    w->gemms->ops = w->set;
    for (int i = 0; i < GEMMS; i++) {
        const struct gemm_args g = gemm_at(o, i);
        TRY(o->ops.gemm(&g, w->gemms));
    }
    return STATUS_OK;
}

static status queue_traffic(const struct overlap *o, const struct way *w, int blocks)
{
    const double ns = o->b->gbs ? (double)o->moved * sizeof(float) / (double)o->b->gbs : 0;
    struct overlap_traffic t = {o->sum, o->own, o->in, o->moved, ns, blocks};
    TRY(overlap_move(&t, w->traffic));
    t = (struct overlap_traffic){o->out, o->sum, NULL, o->moved, ns, blocks};
    return overlap_move(&t, w->traffic);
}

/* One pass; blocks 0: without traffic. */
static status pass(struct overlap *o, const struct way *w, bool gemms, int blocks, struct times *t)
{
    unsigned long long at[STAMPS] = {0};
    if (blocks) TRY(overlap_stamp(o->stamps + TRAFFIC_BEGIN, w->traffic));
    if (gemms) TRY(overlap_stamp(o->stamps + GEMMS_BEGIN, w->gemms));
    for (int64_t i = 0; i < o->layers; i++) {
        if (blocks) TRY(queue_traffic(o, w, blocks));
        if (gemms) TRY(queue_gemms(o, w));
    }
    if (blocks) TRY(overlap_stamp(o->stamps + TRAFFIC_END, w->traffic));
    if (gemms) TRY(overlap_stamp(o->stamps + GEMMS_END, w->gemms));
    TRY(dev_sync(w->traffic));
    TRY(dev_sync(w->gemms));
    TRY(dev_download(&o->s, at, o->stamps, sizeof at));
    TRY(dev_sync(&o->s));
    *t = (struct times){0};
    if (gemms) t->gemms = 1e-6 * (double)(at[GEMMS_END] - at[GEMMS_BEGIN]);
    if (blocks) t->traffic = 1e-6 * (double)(at[TRAFFIC_END] - at[TRAFFIC_BEGIN]);
    const int first = gemms && (!blocks || at[GEMMS_BEGIN] < at[TRAFFIC_BEGIN]) ? GEMMS_BEGIN : TRAFFIC_BEGIN;
    const int last = gemms && (!blocks || at[GEMMS_END] > at[TRAFFIC_END]) ? GEMMS_END : TRAFFIC_END;
    t->both = 1e-6 * (double)(at[last] - at[first]);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ measuring */

static int ascending(const void *a, const void *b)
{
    const double x = ((const struct times *)a)->both, y = ((const struct times *)b)->both;
    return (x > y) - (x < y);
}

/* The pass of the median time, and the power of passes that go on. */
static status measure(struct overlap *o, const struct way *w, bool gemms, int blocks, struct times *out)
{
    struct times t[OVERLAP_RUNS_MAX], more;
    struct power_draw draw;
    const int64_t runs = o->b->runs;
    TRY(pass(o, w, gemms, blocks, &more));
    for (int64_t i = 0; i < runs; i++) TRY(pass(o, w, gemms, blocks, &t[i]));
    qsort(t, (size_t)runs, sizeof *t, ascending);
    *out = t[runs / 2];
    if (o->b->seconds == 0 || o->meter == NULL) return STATUS_OK;
    power_begin(o->meter);
    status st = STATUS_OK;
    for (const double end = clock_s() + (double)o->b->seconds; st == STATUS_OK && clock_s() < end;)
        st = pass(o, w, gemms, blocks, &more);
    power_end(o->meter, &draw);
    out->watts = draw.watts;
    return st;
}

/* ------------------------------------------------------------------ checks */

/* `near`: the reference is of other algorithms, which round differently. */
static status check_gemms(struct overlap *o, const char *what, bool near)
{
    unsigned long long wrong = 0;
    TRY(dev_zero(&o->s, o->wrong, sizeof wrong));
    for (int i = 0; i < GEMMS; i++) {
        const struct gemm_args *g = &o->gemm[i];
        const struct overlap_pair p = {
            .a = o->reference + o->result_at[i],
            .b = o->results + o->result_at[i],
            .dt = g->cdt,
            .count = g->m * g->n,
            .relative = near ? 0x1p-6f : 0,
            .absolute = near ? 0x1p-8f * sqrtf((float)g->k) : 0,
            .wrong = o->wrong,
        };
        TRY(overlap_compare(&p, &o->s));
    }
    TRY(dev_download(&o->s, &wrong, o->wrong, sizeof wrong));
    TRY(dev_sync(&o->s));
    if (wrong == 0) return STATUS_OK;
    return FAIL(STATUS_NUMERIC, "%s: %llu results of GEMMs are wrong", what, wrong);
}

static status check_traffic(struct overlap *o, const char *what)
{
    struct p2p_wrong wrong;
    const struct p2p_check_args a = {.x = o->out,
                                     .count = o->moved,
                                     .part = o->moved,
                                     .result = P2P_SUMMED,
                                     .numbers = P2P_WHOLE,
                                     .ranks = 2,
                                     .wrong = o->wrong_sums};
    TRY(dev_zero(&o->s, o->wrong_sums, sizeof wrong));
    TRY(p2p_check(&a, &o->s));
    TRY(dev_download(&o->s, &wrong, o->wrong_sums, sizeof wrong));
    TRY(dev_zero(&o->s, o->out, (size_t)o->moved * sizeof(float)));
    TRY(dev_zero(&o->s, o->sum, (size_t)o->moved * sizeof(float)));
    TRY(dev_sync(&o->s));
    if (wrong.count == 0) return STATUS_OK;
    return FAIL(STATUS_NUMERIC, "%s: %llu sums of the traffic are wrong, the first is number %llu", what,
                wrong.count, ~wrong.first_inverse);
}

/* ------------------------------------------------------------------ rows */

static void print_row(const struct overlap *o, const struct way *w, const char *what, int sms,
                      const struct times *t)
{
    const double joules = 1e-3 * t->watts * t->both;
    if (o->b->json) {
        printf("{\"bench\":\"overlap\",\"device\":\"%s\",\"way\":\"%s\",\"what\":\"%s\",\"comm_sms\":%d,"
               "\"gemm_sms\":%d,\"gemms_ms\":%.3f,\"traffic_ms\":%.3f,\"both_ms\":%.3f",
               o->dev->name, w->name, what, sms, w->sms, t->gemms, t->traffic, t->both);
        if (t->watts > 0) printf(",\"watts\":%.1f,\"joules\":%.2f", t->watts, joules);
        printf("}\n");
    } else {
        printf("  %-8s %-8s %3d + %3d SMs  GEMMs %8.2f ms  traffic %8.2f ms  all %8.2f ms", w->name, what,
               sms, w->sms, t->gemms, t->traffic, t->both);
        if (t->watts > 0) printf("  %4.0f W %6.1f J", t->watts, joules);
        printf("\n");
    }
    fflush(stdout);
}

/* GEMMs alone, traffic alone, both; the reference becomes that of this way's algorithms. */
static status measure_way(struct overlap *o, const struct way *w, int sms, struct times *both)
{
    struct times t;
    char what[64];
    snprintf(what, sizeof what, "%s, %d multiprocessors", w->name, sms);
    TRY(measure(o, w, true, 0, &t));
    print_row(o, w, "gemms", sms, &t);
    if (o->has_reference) TRY(check_gemms(o, what, true));
    o->has_reference = true;
    TRY(dev_copy(&o->s, o->reference, o->results, o->result_bytes));
    TRY(dev_zero(&o->s, o->results, o->result_bytes));
    TRY(dev_sync(&o->s));
    TRY(measure(o, w, false, sms, &t));
    print_row(o, w, "traffic", sms, &t);
    TRY(check_traffic(o, what));
    TRY(measure(o, w, true, sms, both));
    print_row(o, w, "both", sms, both);
    TRY(check_gemms(o, what, false));
    return check_traffic(o, what);
}

static void print_gain(const struct overlap *o, int sms, const struct times *streams, const struct times *t,
                       const char *name)
{
    const double gain = 100 * (1 - t->both / streams->both);
    if (o->b->json)
        printf("{\"bench\":\"overlap\",\"way\":\"%s\",\"comm_sms\":%d,\"gain_percent\":%.2f}\n", name, sms,
               gain);
    else
        printf("  %d SMs: %s %s %.2f %% of the time of streams\n", sms, name, gain < 0 ? "loses" : "gains",
               fabs(gain));
}

static status set_open(struct overlap *o, struct cuda_set *set, int sms)
{
    *set = (struct cuda_set){.options = {.gemm_sms = sms < o->dev->multiprocessors ? sms : 0},
                             .sm = o->dev->sm,
                             .multiprocessors = sms,
                             .workspace = o->workspace,
                             .workspace_bytes = CUDA_WORKSPACE};
    return cuda_gemm_open(set);
}

/* A way with a set of its own, for so many multiprocessors. */
static status measure_set(struct overlap *o, struct way w, int sms, struct times *both)
{
    struct cuda_set set = {0};
    w.set = &set;
    status st = set_open(o, &set, w.sms);
    if (st == STATUS_OK) st = measure_way(o, &w, sms, both);
    cuda_gemm_close(&set);
    return st;
}

static status measure_sms(struct overlap *o, struct cuda_set *all, int sms)
{
    struct times streams, target, parted;
    struct green g = {0};
    const struct way way = {"streams", &o->s, &o->side, all, o->dev->multiprocessors};
    if (sms >= o->dev->multiprocessors)
        return FAIL(STATUS_CONFIG, "--comm-sms=%d: %s has %d multiprocessors", sms, o->dev->name,
                    o->dev->multiprocessors);
    TRY(measure_way(o, &way, sms, &streams));
    TRY(measure_set(o, (struct way){"target", &o->s, &o->side, NULL, o->dev->multiprocessors - sms}, sms,
                    &target));
    print_gain(o, sms, &streams, &target, "target");
    status st = green_open(o->dev, sms, &g);
    if (st == STATUS_OK)
        st = measure_set(o, (struct way){"green", &g.rest.stream, &g.few.stream, NULL, g.rest.sms}, g.few.sms,
                         &parted);
    if (st == STATUS_OK) print_gain(o, g.few.sms, &streams, &parted, "green");
    green_close(&g);
    return st;
}

/* ------------------------------------------------------------------ the benchmark */

static status take_memory(struct overlap *o)
{
    size_t operands = 0;
    const size_t moved = (size_t)o->moved * sizeof(float);
    for (int i = 0; i < GEMMS; i++) {
        const struct gemm_args *g = &o->gemm[i];
        const size_t bytes = size_round_up((size_t)(g->m * g->k) * dtype_bytes(DTYPE_BF16), ARENA_ALIGN) +
                             size_round_up((size_t)(g->k * g->n) * dtype_bytes(DTYPE_BF16), ARENA_ALIGN);
        if (bytes > operands) operands = bytes;
    }
    TRY(dev_arena_reserve(o->dev, &o->memory, "bench overlap",
                          operands + 2 * o->result_bytes + 4 * moved + CUDA_WORKSPACE + 16 * ARENA_ALIGN));
    o->operands = arena_take(&o->memory, operands, "operands");
    o->results = arena_take(&o->memory, o->result_bytes, "results");
    o->reference = arena_take(&o->memory, o->result_bytes, "reference");
    o->own = arena_take(&o->memory, moved, "own gradients");
    o->in = arena_take(&o->memory, moved, "received gradients");
    o->sum = arena_take(&o->memory, moved, "sums");
    o->out = arena_take(&o->memory, moved, "gathered sums");
    o->workspace = arena_take(&o->memory, CUDA_WORKSPACE, "workspace");
    o->stamps = arena_take(&o->memory, STAMPS * sizeof *o->stamps, "stamps");
    o->wrong = arena_take(&o->memory, sizeof *o->wrong, "wrong results");
    o->wrong_sums = arena_take(&o->memory, sizeof *o->wrong_sums, "wrong sums");
    TRY(overlap_numbers(o->operands, (int64_t)(operands / dtype_bytes(DTYPE_BF16)), &o->s));
    TRY(p2p_fill(o->own, o->moved, 0, P2P_WHOLE, &o->s));
    TRY(p2p_fill(o->in, o->moved, 1, P2P_WHOLE, &o->s));
    return dev_sync(&o->s);
}

static status run(struct overlap *o, const struct model_spec *model)
{
    struct cuda_set all = {0};
    gemms_of(o, model);
    TRY(dev_stream_open(o->dev, &o->s));
    TRY(dev_stream_open_side(o->dev, &o->side));
    cuda_gemm_slots(&o->ops);
    TRY(take_memory(o));
    if (!o->b->json)
        printf(
            "%s, %s: dgrad and wgrad of %lld layers, %lld tokens, %.1f TFLOP; an all-reduce of %.1f MiB per "
            "layer over %lld ranks at %lld GB/s (0: no limit); medians of %lld\n",
            o->dev->name, o->b->preset, (long long)o->layers, (long long)o->b->tokens, 1e-12 * o->flops,
            (double)o->moved * sizeof(float) / 1048576 * (double)o->b->ranks / (double)(o->b->ranks - 1),
            (long long)o->b->ranks, (long long)o->b->gbs, (long long)o->b->runs);
    status st = set_open(o, &all, o->dev->multiprocessors);
    for (int i = 0; i < o->b->count && st == STATUS_OK; i++) st = measure_sms(o, &all, (int)o->b->sms[i]);
    cuda_gemm_close(&all);
    return st;
}

status cuda_bench_overlap(const struct overlap_bench *b)
{
    struct overlap o = {.b = b};
    struct model_spec model;
    struct dev d;
    TRY(preset_find(b->preset, &model));
    TRY(dev_open(&d, DEV_CUDA));
    o.dev = &d;
    if (b->seconds > 0 && power_open(&o.meter, &d) != STATUS_OK) log_warn("%s", status_message());
    const status st = run(&o, &model);
    power_close(o.meter);
    arena_free(&o.memory);
    dev_stream_close(&o.side);
    dev_stream_close(&o.s);
    dev_close(&d);
    return st;
}
