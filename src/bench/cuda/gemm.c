/* GEMMs of a model's layer on a GPU: the algorithm chosen by the op set's search alternates with the
 * library's first proposal. Both are compared with the best square GEMM (8192^3, forward) of this GPU in
 * the same run. Operands are random (zeros draw less power and run faster) and change from run to run;
 * small GEMMs therefore do not find them in the L2 cache.
 *
 * In FP8 a GEMM has the operands of training (nn/linear.c): both contiguous along k, gradients in E5M2, the
 * rest in E4M3, fast accumulation in forward alone. The head is not measured unless named: it stays in BF16. */
#include "base/clock.h"
#include "base/int_math.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/lasting.h"
#include "ops/cuda/set.h"
#include "spec/spec.h"
#include "tensor/quantized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SQUARE = 8192, COPIES_MAX = 16, ROUNDS_MAX = 99, HEAD_ROWS_MIN = 1024 };
enum { FWD, DGRAD, WGRAD, FORMS };
enum { QKV, OUT, UP, DOWN, HEAD, LAYERS };
enum { SEARCHED, FIRST, SETS };
static const char *const form_names[FORMS] = {"fwd", "dgrad", "wgrad"};
static const char *const layer_names[LAYERS] = {"qkv", "out", "up", "down", "head"};
static const size_t spread_bytes = (size_t)512 << 20; /* more than the largest operands: for copies */
static const size_t logits_bytes = (size_t)1 << 30;   /* the head's rows are cut to fit */
static const double round_ms = 4;
static const int64_t pattern_count = 8388593; /* random numbers; an odd period, so that rows differ */

struct gemm {
    const char *layer, *form;
    struct gemm_args g; /* without pointers */
    size_t a_bytes, b_bytes, c_bytes;
    double median[SETS], best[SETS]; /* FLOP/s */
    struct lasting lasting;          /* of the searched algorithm */
    char algorithm[96];
};

/* Random numbers of a dtype in device memory; FP8: with a scale there. */
struct numbers {
    dtype dt;
    char *data;
    float *scale_inv;
};
enum { VALUES, GRADIENTS, KINDS }; /* two in FP8, else the first alone */

struct gpu {
    struct stream s;
    struct ops ops;
    struct cuda_set sets[SETS];
    struct event begin, end;
    struct power_meter *meter;
    struct arena memory;
    struct numbers in[KINDS];
    char *out;
    size_t in_bytes, out_bytes; /* in_bytes: of each kind */
    bool fp8;
    double search_s;
};

/* ------------------------------------------------------------------ what is measured */

static struct gemm gemm_of(const char *layer, int form, int64_t rows, int64_t out, int64_t in, dtype dt)
{
    const bool fp8 = dt == DTYPE_F8_E4M3;
    struct gemm p = {.layer = layer,
                     .form = form_names[form],
                     .g = {.a = {.dt = dt}, .b = {.dt = dt}, .cdt = fp8 ? DTYPE_BF16 : dt}};
    struct gemm_args *g = &p.g;
    if (form == FWD) {
        g->m = rows, g->n = out, g->k = in, g->b.trans = true;
    } else if (form == DGRAD) {
        g->m = rows, g->n = in, g->k = out;
    } else {
        g->m = out, g->n = in, g->k = fp8 ? quantized_ld(rows) : rows, g->a.trans = true;
        g->accum = ACCUM_ADD, g->cdt = DTYPE_F32;
    }
    if (fp8) {
        g->a.scales = g->b.scales = SCALES_TENSOR;
        g->a.trans = false, g->b.trans = true; /* of copies that are transposed */
        g->a.dt = form == FWD ? DTYPE_F8_E4M3 : DTYPE_F8_E5M2;
        g->fast_accum = form == FWD;
    }
    p.a_bytes = (size_t)(g->m * g->k) * dtype_bytes(dt);
    p.b_bytes = (size_t)(g->k * g->n) * dtype_bytes(dt);
    p.c_bytes = (size_t)(g->m * g->n) * dtype_bytes(g->cdt);
    return p;
}

/* Whether b names the layer, or no layer and it is measured then. */
static bool is_chosen(const struct gemm_bench *b, int layer, dtype dt)
{
    return b->layer ? strcmp(b->layer, layer_names[layer]) == 0 : layer != HEAD || dt != DTYPE_F8_E4M3;
}

/* The GEMMs of one layer of a model and of its head; returns how many. */
static int gemms_of(struct gemm all[], const struct gemm_bench *b, const struct model_spec *m, dtype dt)
{
    const int64_t heads = m->head_count * m->head_dim, kv = m->head_count_kv * m->head_dim;
    const int64_t d = m->hidden_size, f = m->ffn_size, vocab = m->vocab_size ? m->vocab_size : 8192;
    const int64_t sizes[LAYERS][2] = {
        {heads + 2 * kv, d}, {d, heads}, {m->activation == ACT_SWIGLU ? 2 * f : f, d}, {d, f}, {vocab, d}};
    int count = 0;
    for (int i = 0; i < LAYERS * FORMS; i++) {
        const int layer = i / FORMS, form = i % FORMS;
        if (!is_chosen(b, layer, dt)) continue;
        if (b->form && strcmp(b->form, form_names[form]) != 0) continue;
        int64_t rows = b->tokens;
        while (layer == HEAD && rows > HEAD_ROWS_MIN &&
               (size_t)(rows * vocab) * dtype_bytes(dt) > logits_bytes)
            rows = (rows + 1) / 2;
        all[count++] = gemm_of(layer_names[layer], form, rows, sizes[layer][0], sizes[layer][1], dt);
    }
    return count;
}

/* FP8 reads and writes rows in units of 16. */
static status check_units(const struct gemm all[], int count)
{
    for (int i = 0; i < count; i++) {
        const struct gemm_args *g = &all[i].g;
        if (g->m % 16 || g->n % 16 || g->k % 16)
            return FAIL(STATUS_CONFIG,
                        "--dtype=fp8: %s %s is %lld x %lld x %lld: widths and --tokens must be "
                        "multiples of 16",
                        all[i].layer, all[i].form, (long long)g->m, (long long)g->n, (long long)g->k);
    }
    return STATUS_OK;
}

static double flops_of(const struct gemm *p)
{
    return 2.0 * (double)p->g.m * (double)p->g.n * (double)p->g.k;
}

/* ------------------------------------------------------------------ memory */

static size_t aligned(size_t bytes)
{
    return size_round_up(bytes, ARENA_ALIGN);
}

/* Codes are of normal numbers times a power of two; no code saturates. */
static double scale_of(dtype dt)
{
    return dt == DTYPE_F8_E4M3 ? 0x1p6 : dt == DTYPE_F8_E5M2 ? 0x1p12 : 1;
}

static void random_numbers(void *p, dtype dt)
{
    enum { GRAIN = 1 << 16 };
    const double scale = scale_of(dt);
    PARALLEL_CHUNKS(c, chunk_count(pattern_count, GRAIN))
    {
        const struct span at = chunk_span(c, pattern_count, GRAIN);
        for (int64_t i = at.begin; i < at.end; i++) {
            const struct rng_block r = rng_at(1, RNG_TEST, (uint64_t)i, 0);
            float x = 0; /* four uniform numbers make nearly a normal one, of variance 1 */
            for (int u = 0; u < 4; u++) x += (float)(r.u[u] >> 8) * 0x1p-24f - 0.5f;
            x *= 1.7320508f;
            dtype_store(p, i, dt, scale * (double)x);
        }
    }
}

static status fill(struct gpu *c, const struct numbers *to)
{
    size_t done = (size_t)pattern_count * dtype_bytes(to->dt);
    const float scale_inv = (float)(1 / scale_of(to->dt));
    void *pattern = malloc(done);
    if (pattern == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %zu bytes of random numbers", done);
    random_numbers(pattern, to->dt);
    if (done > c->in_bytes) done = c->in_bytes;
    status st = dev_upload(&c->s, to->data, pattern, done);
    if (st == STATUS_OK) st = dev_upload(&c->s, to->scale_inv, &scale_inv, sizeof scale_inv);
    if (st == STATUS_OK) st = dev_sync(&c->s);
    free(pattern);
    for (size_t more; st == STATUS_OK && done < c->in_bytes; done += more) {
        more = done < c->in_bytes - done ? done : c->in_bytes - done;
        st = dev_copy(&c->s, to->data + done, to->data, more);
    }
    return st;
}

static status gpu_memory(struct gpu *c, const struct gemm all[], int count)
{
    for (int i = 0; i < count; i++) {
        const size_t in = aligned(all[i].a_bytes) + aligned(all[i].b_bytes), out = aligned(all[i].c_bytes);
        if (in > c->in_bytes) c->in_bytes = in;
        if (out > c->out_bytes) c->out_bytes = out;
    }
    c->in_bytes += spread_bytes;
    c->out_bytes += spread_bytes;
    const int kinds = c->fp8 ? KINDS : 1;
    TRY(dev_arena_reserve(c->s.dev, &c->memory, "bench gemm",
                          (size_t)kinds * c->in_bytes + c->out_bytes + CUDA_WORKSPACE + 8 * ARENA_ALIGN));
    for (int i = 0; i < kinds; i++) {
        c->in[i].data = arena_take(&c->memory, c->in_bytes, "operands");
        c->in[i].scale_inv = arena_take(&c->memory, sizeof(float), "scale");
    }
    c->out = arena_take(&c->memory, c->out_bytes, "results");
    void *workspace = arena_take(&c->memory, CUDA_WORKSPACE, "workspace");
    for (int i = 0; i < SETS; i++) {
        c->sets[i].workspace = workspace;
        c->sets[i].workspace_bytes = CUDA_WORKSPACE;
    }
    for (int i = 0; i < kinds; i++) TRY(fill(c, &c->in[i]));
    return STATUS_OK;
}

/* ------------------------------------------------------------------ measuring */

static void set_operand(struct operand *o, const struct gpu *c, size_t at)
{
    const struct numbers *from = &c->in[o->dt == DTYPE_F8_E5M2 ? GRADIENTS : VALUES];
    o->data = from->data + at;
    o->scale = c->fp8 ? from->scale_inv : NULL;
}

/* The GEMM on the i-th copy of its operands, by one of the two op sets. */
static status run_once(struct gpu *c, const struct gemm *p, int set, int64_t i)
{
    const size_t in = aligned(p->a_bytes) + aligned(p->b_bytes), out = aligned(p->c_bytes);
    size_t copies = c->in_bytes / in < c->out_bytes / out ? c->in_bytes / in : c->out_bytes / out;
    if (copies > COPIES_MAX) copies = COPIES_MAX;
    const size_t at = (size_t)i % copies;
    struct gemm_args g = p->g;
    set_operand(&g.a, c, at * in);
    set_operand(&g.b, c, at * in + aligned(p->a_bytes));
    g.c = c->out + at * out;
    c->s.ops = &c->sets[set];
    return c->ops.gemm(&g, &c->s);
}

/* Milliseconds of one of `repeat` runs. */
static status run_timed(struct gpu *c, const struct gemm *p, int set, int repeat, double *ms)
{
    TRY(dev_event_record(&c->s, &c->begin));
    for (int i = 0; i < repeat; i++) TRY(run_once(c, p, set, i));
    TRY(dev_event_record(&c->s, &c->end));
    TRY(dev_event_ms(c->s.dev, &c->begin, &c->end, ms));
    *ms /= repeat;
    return STATUS_OK;
}

struct lasting_run {
    struct gpu *c;
    const struct gemm *p;
};
static status run_lasting(void *context, int64_t i)
{
    const struct lasting_run *r = context;
    return run_once(r->c, r->p, SEARCHED, i);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status measure(struct gpu *c, struct gemm *p, int64_t rounds, int64_t seconds)
{
    double times[SETS][ROUNDS_MAX], ms = 0;
    const double flops = flops_of(p), begin = clock_s();
    TRY(run_once(c, p, SEARCHED, 0));
    TRY(dev_sync(&c->s));
    c->search_s += clock_s() - begin;
    struct gemm_args g = p->g; /* copies are aligned like arena pointers */
    set_operand(&g.a, c, 0);
    set_operand(&g.b, c, 0);
    g.c = c->out;
    cuda_gemm_text(&c->s, &g, p->algorithm, sizeof p->algorithm);
    TRY(run_once(c, p, FIRST, 0));
    for (int set = 0; set < SETS; set++) TRY(run_timed(c, p, set, 3, &ms));
    const int repeat = ms > round_ms / 2 ? 2 : ms > round_ms / 50 ? (int)(round_ms / ms) : 50;
    for (int64_t r = 0; r < rounds; r++)
        for (int set = 0; set < SETS; set++) TRY(run_timed(c, p, set, repeat, &times[set][r]));
    for (int set = 0; set < SETS; set++) {
        qsort(times[set], (size_t)rounds, sizeof times[set][0], ascending);
        p->median[set] = 1e3 * flops / times[set][rounds / 2];
        p->best[set] = 1e3 * flops / times[set][0];
    }
    if (seconds == 0) return STATUS_OK;
    return lasting_measure(&c->s, c->meter, (double)seconds,
                           &(struct lasting_work){run_lasting, &(struct lasting_run){c, p}}, &p->lasting);
}

/* ------------------------------------------------------------------ printing */

static const struct lasting_unit flop = {"TFLOP/s", "FLOP", "tflops", 1e12};

static void print_json(const struct gpu *c, const struct gemm *p, double square)
{
    printf("{\"bench\":\"gemm\",\"set\":\"cuda\",\"device\":\"%s\",\"dtype\":\"%s\",\"layer\":\"%s\","
           "\"form\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"tflops\":%.1f,\"best_tflops\":%.1f,"
           "\"first_tflops\":%.1f,\"first_best_tflops\":%.1f,\"square_tflops\":%.1f,\"algorithm\":\"%s\"",
           c->s.dev->name, dtype_name(p->g.a.dt), p->layer, p->form, (long long)p->g.m, (long long)p->g.n,
           (long long)p->g.k, p->median[SEARCHED] / 1e12, p->best[SEARCHED] / 1e12, p->median[FIRST] / 1e12,
           p->best[FIRST] / 1e12, square / 1e12, p->algorithm);
    lasting_print(&p->lasting, &flop, flops_of(p), true);
    printf("}\n");
}

static void print_row(const struct gemm *p, double square)
{
    printf("  %-5s %-6s %6lld x %6lld x %6lld  %7.1f, best %7.1f: %3.0f%% of square   first %7.1f, best "
           "%7.1f   %s",
           p->layer, p->form, (long long)p->g.m, (long long)p->g.n, (long long)p->g.k,
           p->median[SEARCHED] / 1e12, p->best[SEARCHED] / 1e12, 100 * p->best[SEARCHED] / square,
           p->median[FIRST] / 1e12, p->best[FIRST] / 1e12, p->algorithm);
    lasting_print(&p->lasting, &flop, flops_of(p), false);
    printf("\n");
}

static void print_all(const struct gpu *c, const struct gemm all[], int count, double square,
                      const struct gemm_bench *b)
{
    double flops = 0, time[SETS] = {0};
    if (!b->json)
        printf("%s %s%s, %s, %lld tokens: square GEMM of %d %.1f TFLOP/s; TFLOP/s, median and best of "
               "%lld\n",
               c->s.dev->name, c->fp8 ? "FP8" : dtype_name(c->in[VALUES].dt),
               c->sets[0].options.math == CUDA_MATH_TF32 ? " as TF32" : "", b->preset, (long long)b->tokens,
               SQUARE, square / 1e12, (long long)b->runs);
    for (int i = 0; i < count; i++) {
        const double work = flops_of(&all[i]);
        flops += work;
        for (int set = 0; set < SETS; set++) time[set] += work / all[i].median[set];
        if (b->json)
            print_json(c, &all[i], square);
        else
            print_row(&all[i], square);
    }
    if (!b->json && count > 0)
        printf("  together %.1f TFLOP/s; first proposals %.1f; choosing took %.2f s\n",
               flops / time[SEARCHED] / 1e12, flops / time[FIRST] / 1e12, c->search_s);
    fflush(stdout);
}

/* ------------------------------------------------------------------ the benchmark */

static status gpu_setup(struct gpu *c, const struct dev *d, enum cuda_math math, int64_t seconds)
{
    if (seconds > 0 && power_open(&c->meter, d) != STATUS_OK) log_warn("%s", status_message());
    TRY(dev_stream_open(d, &c->s));
    TRY(dev_event_open(d, &c->begin));
    TRY(dev_event_open(d, &c->end));
    cuda_gemm_slots(&c->ops); /* GEMMs only: other libraries are not opened */
    for (int i = 0; i < SETS; i++) {
        c->sets[i] = (struct cuda_set){.options = {.math = math, .gemm_candidates = i == FIRST},
                                       .sm = d->sm,
                                       .multiprocessors = d->multiprocessors};
        TRY(cuda_gemm_open(&c->sets[i]));
    }
    return STATUS_OK;
}

static void gpu_teardown(struct gpu *c)
{
    power_close(c->meter);
    if (c->s.dev == NULL) return;
    for (int i = 0; i < SETS; i++) cuda_gemm_close(&c->sets[i]);
    dev_event_close(c->s.dev, &c->begin);
    dev_event_close(c->s.dev, &c->end);
    arena_free(&c->memory);
    dev_stream_close(&c->s);
}

/* GEMMs[0] is the square one, measured before and after the others. */
static status measure_all(struct gpu *c, struct gemm gemms[], int count, const struct gemm_bench *b,
                          double *square)
{
    *square = 0;
    TRY(gpu_memory(c, gemms, count));
    for (int i = 0; i <= count; i++) {
        struct gemm *p = &gemms[i < count ? i : 0];
        TRY(measure(c, p, b->runs, b->seconds));
        if (p == gemms) {
            if (p->best[SEARCHED] > *square) *square = p->best[SEARCHED];
            c->search_s = i == 0 ? 0 : c->search_s;
        }
    }
    return STATUS_OK;
}

static status type_of(const struct gemm_bench *b, dtype *dt, enum cuda_math *math)
{
    const char *word = b->dt ? b->dt : "bf16";
    *dt = strcmp(word, "bf16") == 0 ? DTYPE_BF16 : strcmp(word, "fp8") == 0 ? DTYPE_F8_E4M3 : DTYPE_F32;
    *math = strcmp(word, "tf32") == 0 ? CUDA_MATH_TF32 : CUDA_MATH_FP32;
    if (*dt == DTYPE_F32 && *math == CUDA_MATH_FP32 && strcmp(word, "f32") != 0)
        return FAIL(STATUS_CONFIG, "--dtype=%s: fp8, bf16, tf32 or f32 on a GPU", word);
    return STATUS_OK;
}

status cuda_bench_gemm(const struct gemm_bench *b)
{
    struct gemm gemms[1 + LAYERS * FORMS];
    struct model_spec model;
    struct gpu c = {.in = {[GRADIENTS] = {.dt = DTYPE_F8_E5M2}}};
    struct dev d;
    dtype dt;
    enum cuda_math math;
    double square;
    TRY(type_of(b, &dt, &math));
    TRY(preset_find(b->preset, &model));
    c.in[VALUES].dt = dt;
    c.fp8 = dt == DTYPE_F8_E4M3;
    gemms[0] = gemm_of("", FWD, SQUARE, SQUARE, SQUARE, dt);
    const int count = gemms_of(gemms + 1, b, &model, dt);
    if (count == 0)
        return FAIL(STATUS_CONFIG,
                    "no such GEMM: --layer is qkv, out, up, down or head, --form fwd, dgrad or wgrad");
    if (c.fp8) TRY(check_units(gemms + 1, count));
    TRY(dev_open(&d, DEV_CUDA));
    if (c.fp8 && d.sm < 89) log_warn("%s has no FP8 tensor cores: a slow kernel is measured", d.name);
    status st = gpu_setup(&c, &d, math, b->seconds);
    if (st == STATUS_OK) st = measure_all(&c, gemms, 1 + count, b, &square);
    if (st == STATUS_OK) print_all(&c, gemms + 1, count, square, b);
    gpu_teardown(&c);
    dev_close(&d);
    return st;
}
