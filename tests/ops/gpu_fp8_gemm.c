/* Goal: a GEMM of FP8 codes keeps the contract of ops.h by every way that it can take: the library, the library after a bias or an addend
 * that was put into c, and the custom kernel. Method: records force each way. Whole numbers, whose sums every order and every accumulator
 * holds exactly, show layout, scales, bias and addend; normal numbers show rounding, against the tensor core's 14 bits. Printed: what was
 * chosen, and its error.
 *
 * Bounds: Hopper truncates the 32 products of an instruction, their partial sum and the result to 2^-13 of the largest, so that after P
 * of K an element is off by at most 34 P/32 2^-13 sum |x y|. P is K with fast accumulation, else 128: partial sums go on in F32. For normal
 * numbers `accumulated` has the error's rms over that of the result, from a simulation of this model; allowed is twice as much. */
#include "base/parallel.h"
#include "base/rng.h"
#include "gpu.h"
#include "ops/cuda/set.h"
#include "ops/gemm_choice.h"
#include "ops/ops.h"
#include "tensor/f8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 256 /* bytes around c that must not be written */, CHECKED = 256 /* rows, the first ones */ };
#define E4  DTYPE_F8_E4M3
#define E5  DTYPE_F8_E5M2
#define BF  DTYPE_BF16
#define F32 DTYPE_F32
enum more { ALONE, WITH_BIAS, WITH_ADD, ADD_TO };
static const char *const more_names[] = {"", " bias", " add", " +="};

struct row {
    const char *pass;
    int64_t m, n, k;
    dtype a, b, cdt;
    enum more more;
    bool fast;
    int64_t shift; /* elements off a 256-byte line where arrays begin */
};
static const struct row rows[] = {
    {"forward", 256, 384, 4096, E4, E4, BF, ALONE, true, 0},
    {"forward", 256, 384, 4096, E4, E4, BF, WITH_BIAS, true, 0},
    {"forward", 256, 384, 4096, E4, E4, BF, WITH_ADD, true, 0},
    {"forward", 32, 22016, 4096, E4, E4, BF, ALONE, true, 0},
    {"forward", 48, 4096, 11008, E4, E4, BF, WITH_ADD, true, 0},
    {"forward", 64, 4096, 4096, E4, E4, F32, WITH_BIAS, true, 0},
    {"dgrad", 256, 4096, 768, E5, E4, BF, ALONE, false, 0},
    {"dgrad", 32, 4096, 22016, E5, E4, BF, ALONE, false, 0},
    {"dgrad", 32, 11008, 4096, E5, E4, BF, ALONE, false, 0},
    {"wgrad", 256, 4096, 1040, E5, E4, F32, ADD_TO, false, 0},
    {"wgrad", 256, 4096, 1040, E5, E4, F32, ALONE, false, 0},
    {"wgrad", 128, 11008, 4096, E5, E4, F32, ADD_TO, false, 0},
    {"remainder", 64, 128, 16, E4, E4, BF, ALONE, true, 0},
    {"remainder", 16, 16, 48, E4, E4, F32, ADD_TO, false, 0},
    {"remainder", 80, 48, 112, E5, E4, BF, ALONE, false, 0},
    {"remainder", 144, 272, 144, E5, E4, F32, ADD_TO, false, 0},
    {"remainder", 176, 16, 240, E4, E4, BF, WITH_BIAS, true, 0},
    {"remainder", 16, 1008, 4112, E4, E4, F32, ALONE, true, 0},
    {"other types", 128, 256, 512, E4, E5, BF, WITH_ADD, false, 0},
    {"other types", 128, 256, 512, E4, E5, F32, ALONE, false, 0},
    {"by 16 bytes", 64, 128, 256, E4, E4, BF, WITH_ADD, true, 16},
    {"not aligned", 64, 128, 256, E4, E4, BF, WITH_BIAS, true, 1},
    {"not aligned", 64, 128, 256, E5, E4, F32, ADD_TO, false, 3},
    {"odd rows", 17, 96, 320, E4, E4, BF, ALONE, true, 0},
    {"odd rows", 1, 4096, 512, E4, E4, BF, WITH_ADD, true, 0},
    {"odd widths", 48, 100, 328, E4, E4, BF, WITH_BIAS, true, 0},
    {"odd widths", 33, 7, 129, E5, E4, F32, ADD_TO, false, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* ------------------------------------------------------------------ the GPU */

enum way { CHOSEN, APART, OWN, WAYS };
struct gpu {
    struct dev dev;
    struct stream s;
    struct cuda_set sets[WAYS];
    struct ops ops;
    struct arena memory;
    float *scales; /* in device memory; those of a and b are two of them */
};
enum { SCALES_COUNT = 64, AT_A = FP8_SCALE_STRIDE, AT_B = 3 * FP8_SCALE_STRIDE };

static void set_reopen(struct gpu *g, enum way way)
{
    struct cuda_set *set = &g->sets[way];
    cuda_gemm_close(set);
    *set = (struct cuda_set){.sm = g->dev.sm,
                             .multiprocessors = g->dev.multiprocessors,
                             .workspace = set->workspace,
                             .workspace_bytes = CUDA_WORKSPACE};
    if (cuda_gemm_open(set) != STATUS_OK) fail_msg("%s", status_message());
}

static int gpu_open(void **state)
{
    struct gpu *g = *state = calloc(1, sizeof *g);
    assert_non_null(g);
    assert_int_equal(dev_open(&g->dev, DEV_CUDA), STATUS_OK);
    assert_int_equal(dev_stream_open(&g->dev, &g->s), STATUS_OK);
    assert_int_equal(dev_arena_reserve(&g->dev, &g->memory, "test", CUDA_WORKSPACE + ((size_t)256 << 20)),
                     STATUS_OK);
    void *workspace = arena_take(&g->memory, CUDA_WORKSPACE, "workspace");
    g->scales = arena_take(&g->memory, SCALES_COUNT * sizeof(float), "scales");
    cuda_gemm_slots(&g->ops);
    for (enum way way = 0; way < WAYS; way++) {
        g->sets[way].workspace = workspace;
        set_reopen(g, way);
    }
    printf("%s, sm_%d\n", g->dev.name, g->dev.sm);
    return 0;
}

static int gpu_close(void **state)
{
    struct gpu *g = *state;
    for (int way = 0; way < WAYS; way++) cuda_gemm_close(&g->sets[way]);
    arena_free(&g->memory);
    dev_stream_close(&g->s);
    dev_close(&g->dev);
    free(g);
    return 0;
}

static void scales_set(struct gpu *g, float a, float b)
{
    float all[SCALES_COUNT];
    for (int i = 0; i < SCALES_COUNT; i++) all[i] = (float)NAN;
    all[AT_A] = a, all[AT_B] = b;
    assert_int_equal(dev_upload(&g->s, g->scales, all, sizeof all), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
}

/* The choices of the set CHOSEN as a record for the set `way`, which then takes that way. */
static void record(struct gpu *g, enum way way)
{
    char *forced = NULL;
    size_t bytes;
    g->s.ops = &g->sets[CHOSEN];
    char *text = cuda_gemm_choices_text(&g->s);
    FILE *out = open_memstream(&forced, &bytes);
    assert_true(text && out);
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        struct gemm_place place;
        struct gemm_choice c;
        assert_true(gemm_choice_parse(line, (size_t)(end - line), &place, &c));
        c.way = way == OWN ? GEMM_PLAIN : GEMM_UNFUSED;
        if (way == OWN || gemm_key_unfuses(&c.key)) gemm_choice_print(out, &place, &c);
    }
    assert_int_equal(fclose(out), 0);
    g->s.ops = &g->sets[way];
    assert_int_equal(cuda_gemm_choices_load(&g->s, forced), STATUS_OK);
    free(text);
    free(forced);
}

/* ------------------------------------------------------------------ a GEMM on the host */

struct work {
    const struct row *r;
    uint8_t *a, *b;
    bf16 *bias;
    void *add, *c;         /* c: before the GEMM, with guards */
    float *product, *size; /* of the first rows: a b with scales, and the same of magnitudes */
    int64_t checked;
    float scale_a, scale_b;
    bool whole;
};

static double normal(uint64_t seed, int64_t i)
{
    const struct rng_block r = rng_at(seed, RNG_TEST, (uint64_t)i, 0);
    return (((double)r.u[0] + r.u[1] + r.u[2] + r.u[3]) * 0x1p-32 - 2) * 1.7320508075688772;
}

/* One of 0, 1, 2 with a sign; so many zeros that sums over k stay below 256, which BF16 holds. */
static double small(uint64_t seed, int64_t i, int64_t k)
{
    const struct rng_block r = rng_at(seed, RNG_TEST, (uint64_t)i, 1);
    const double dense = fmin(1, sqrt(400 / (double)k));
    if (r.u[0] * 0x1p-32 > dense) return 0;
    return (r.u[1] & 1 ? 1 : -1) * (r.u[1] & 6 ? 1 : 2);
}

/* A pattern of odd length again and again, so that rows differ. */
static uint8_t *codes(int64_t count, dtype dt, uint64_t seed, const struct work *w)
{
    enum { PATTERN = 1000003, GRAIN = 1 << 14 };
    uint8_t *p = malloc((size_t)(count > PATTERN ? count : PATTERN));
    const double unit = w->whole ? 1 : dt == DTYPE_F8_E5M2 ? 0x1p10 : 0x1p6;
    assert_non_null(p);
    PARALLEL_CHUNKS(c, chunk_count(PATTERN, GRAIN))
    {
        const struct span at = chunk_span(c, PATTERN, GRAIN);
        for (int64_t i = at.begin; i < at.end; i++)
            dtype_store(p, i, dt, unit * (w->whole ? small(seed, i, w->r->k) : normal(seed, i)));
    }
    for (int64_t at = PATTERN; at < count; at += PATTERN)
        memcpy(p + at, p, (size_t)(count - at < PATTERN ? count - at : PATTERN));
    return p;
}

/* A bias, an addend or c: whole numbers times 4 as the scales' product is 4. */
static void *numbers(int64_t count, dtype dt, uint64_t seed, const struct work *w)
{
    void *p = malloc((size_t)(count + 1) * dtype_bytes(dt));
    assert_non_null(p);
    for (int64_t i = 0; i < count; i++)
        dtype_store(p, i, dt, w->whole ? 4 * small(seed, i, 1) : 8 * normal(seed, i));
    return p;
}

static void oracle(const struct work *w, const uint8_t *a, const uint8_t *b, float *c)
{
    struct ops o;
    ops_oracle(&o);
    const struct row *r = w->r;
    const struct gemm_args g = {.a = operand_codes(a, r->a, &w->scale_a, false),
                                .b = operand_codes(b, r->b, &w->scale_b, true),
                                .c = c,
                                .m = w->checked,
                                .n = r->n,
                                .k = r->k,
                                .cdt = DTYPE_F32};
    assert_int_equal(o.gemm(&g, NULL), STATUS_OK);
}

static void work_open(struct work *w, const struct row *r, bool whole)
{
    *w = (struct work){.r = r, .checked = r->m < CHECKED ? r->m : CHECKED, .whole = whole};
    w->scale_a = whole ? 0x1p-3f : r->a == E5 ? 0x1p-10f : 0x1p-6f;
    w->scale_b = whole ? 0x1p5f : r->b == E5 ? 0x1p-10f : 0x1p-6f;
    w->a = codes(r->m * r->k, r->a, 1, w);
    w->b = codes(r->n * r->k, r->b, 2, w);
    w->bias = numbers(r->n, DTYPE_BF16, 3, w);
    w->add = numbers(r->m * r->n, r->cdt, 4, w);
    const size_t c_bytes = (size_t)(r->m * r->n) * dtype_bytes(r->cdt);
    w->c = malloc(c_bytes + 2 * GUARD);
    memset(w->c, 0xFF, c_bytes + 2 * GUARD); /* NaN */
    if (r->more == ADD_TO) memcpy((char *)w->c + GUARD, w->add, c_bytes);
    w->product = malloc((size_t)(w->checked * r->n) * sizeof(float));
    w->size = malloc((size_t)(w->checked * r->n) * sizeof(float));
    assert_true(w->product && w->size);
    oracle(w, w->a, w->b, w->product);
    if (whole) return;
    uint8_t *a = malloc((size_t)(w->checked * r->k)), *b = malloc((size_t)(r->n * r->k));
    for (int64_t i = 0; i < w->checked * r->k; i++) a[i] = w->a[i] & 0x7F;
    for (int64_t i = 0; i < r->n * r->k; i++) b[i] = w->b[i] & 0x7F;
    oracle(w, a, b, w->size);
    free(a);
    free(b);
}

static void work_close(struct work *w)
{
    free(w->a);
    free(w->b);
    free(w->bias);
    free(w->add);
    free(w->c);
    free(w->product);
    free(w->size);
}

/* ------------------------------------------------------------------ on the GPU */

static void *place(struct gpu *g, const void *from, size_t bytes, size_t shift)
{
    char *p = arena_take(&g->memory, bytes + shift, "operand");
    assert_int_equal(dev_upload(&g->s, p + shift, from, bytes), STATUS_OK);
    return p + shift;
}

/* The arguments in device memory, of the arena until it is released. */
static struct gemm_args placed(struct gpu *g, const struct work *w)
{
    const struct row *r = w->r;
    const size_t es = dtype_bytes(r->cdt), shift = (size_t)r->shift, c_bytes = (size_t)(r->m * r->n) * es;
    struct gemm_args d = {
        .a = operand_codes(place(g, w->a, (size_t)(r->m * r->k), shift), r->a, g->scales + AT_A, false),
        .b = operand_codes(place(g, w->b, (size_t)(r->n * r->k), shift), r->b, g->scales + AT_B, true),
        .c = (char *)place(g, w->c, c_bytes + 2 * GUARD, shift * es) + GUARD,
        .m = r->m,
        .n = r->n,
        .k = r->k,
        .accum = r->more == ADD_TO ? ACCUM_ADD : ACCUM_STORE,
        .cdt = r->cdt,
        .fast_accum = r->fast};
    if (r->more == WITH_BIAS)
        d.epilogue = (struct epilogue){.kind = EPILOGUE_BIAS,
                                       .bias = place(g, w->bias, (size_t)r->n * sizeof(bf16), shift * 2)};
    if (r->more == WITH_ADD)
        d.epilogue = (struct epilogue){.kind = EPILOGUE_ADD, .add = place(g, w->add, c_bytes, shift * es)};
    scales_set(g, w->scale_a, w->scale_b);
    return d;
}

/* The result, guards included, which the caller frees; says what was chosen. */
static void *work_run(struct gpu *g, const struct work *w, enum way way, char *text, size_t size)
{
    const size_t mark = arena_mark(&g->memory);
    const size_t bytes = (size_t)(w->r->m * w->r->n) * dtype_bytes(w->r->cdt) + 2 * GUARD;
    const struct gemm_args d = placed(g, w);
    g->s.ops = &g->sets[way];
    if (g->ops.gemm(&d, &g->s) != STATUS_OK) fail_msg("%s", status_message());
    void *got = malloc(bytes);
    assert_int_equal(dev_download(&g->s, got, (char *)d.c - GUARD, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    cuda_gemm_text(&g->s, &d, text, size);
    if (strstr(text, "apart")) {
        struct gemm_args rest = d;
        rest.epilogue = (struct epilogue){.kind = EPILOGUE_NONE};
        rest.accum = ACCUM_ADD;
        const size_t used = strlen(text);
        snprintf(text + used, size - used, ", ");
        cuda_gemm_text(&g->s, &rest, text + used + 2, size - used - 2);
    }
    arena_release(&g->memory, mark);
    return got;
}

static const char *row_text(const struct row *r, char text[160])
{
    snprintf(text, 160, "%-11s %3lld x %5lld x %5lld %s %s->%s%s%s%s", r->pass, (long long)r->m,
             (long long)r->n, (long long)r->k, dtype_name(r->a), dtype_name(r->b), dtype_name(r->cdt),
             more_names[r->more], r->fast ? " fast" : "", r->shift ? " shifted" : "");
    return text;
}

static void check_guards(const struct work *w, const char *got)
{
    const size_t end = GUARD + (size_t)(w->r->m * w->r->n) * dtype_bytes(w->r->cdt);
    for (size_t i = 0; i < GUARD; i++) assert_true((uint8_t)got[i] == 0xFF && (uint8_t)got[end + i] == 0xFF);
}

/* What is added to the product. */
static double added(const struct work *w, int64_t i)
{
    switch (w->r->more) {
    case ALONE: return 0;
    case WITH_BIAS: return (double)bf16_to_f32(w->bias[i % w->r->n]);
    case WITH_ADD:
    case ADD_TO: return dtype_load(w->add, i, w->r->cdt);
    }
    return 0;
}

/* Whether this way is another one for the row than what the search may choose. */
static bool differs(const struct row *r, enum way way)
{
    return way != APART || r->more == WITH_BIAS || r->more == WITH_ADD;
}

/* ------------------------------------------------------------------ tests */

static void whole_numbers_are_exact_by_every_way(void **state)
{
    struct gpu *g = *state;
    for (int i = 0; i < ROWS; i++) {
        struct work w;
        work_open(&w, &rows[i], true);
        for (enum way way = 0; way < WAYS; way++) {
            char chosen[256], text[160];
            if (!differs(&rows[i], way)) continue;
            if (way != CHOSEN) record(g, way);
            char *got = work_run(g, &w, way, chosen, sizeof chosen);
            printf("%s: %s\n", row_text(&rows[i], text), chosen);
            if (way == OWN && rows[i].shift % 16 == 0)
                assert_string_equal(chosen, "own kernel"); /* else: "none" */
            if (way == APART && rows[i].shift % 16 == 0) assert_non_null(strstr(chosen, "apart"));
            check_guards(&w, got);
            for (int64_t e = 0; e < w.checked * rows[i].n; e++) {
                const double want = (double)w.product[e] + added(&w, e),
                             x = dtype_load(got + GUARD, e, rows[i].cdt);
                assert_true(fabs((double)w.product[e]) <= 1024); /* or the test is wrong: 4 times 8 bits */
                if (x != want && !(fabs(want) > 1024 && rows[i].cdt == DTYPE_BF16))
                    fail_msg("%s, %s: [%lld, %lld] %g, not %g", text, chosen, (long long)(e / rows[i].n),
                             (long long)(e % rows[i].n), x, want);
            }
            free(got);
        }
        work_close(&w);
    }
}

/* rms of accumulation errors over that of the result; the caller says how many products a 14-bit sum has. */
static double accumulated(int64_t products)
{
    static const struct {
        int64_t products;
        double rms;
    } simulated[] = {{128, 1.3e-4},  {256, 2.1e-4},   {512, 3.5e-4},   {1024, 5e-4},
                     {2048, 8.4e-4}, {4096, 1.16e-3}, {16384, 3.2e-3}, {32768, 4.5e-3}};
    int i = 0;
    while (i < 7 && simulated[i].products < products) i++;
    return simulated[i].rms;
}

struct errors {
    double rms, allowed;   /* relative to the rms of the product */
    double worst, at_most; /* of the element that is nearest to its bound */
};

static struct errors errors_of(const struct work *w, const char *got, bool own)
{
    const struct row *r = w->r;
    const int64_t count = w->checked * r->n, sums = r->fast || r->k < 128 ? r->k : 128;
    const double half =
        r->cdt == DTYPE_BF16 ? 0x1p-8 : 0x1p-24; /* most of a unit of the last bit, over the value */
    double error2 = 0, product2 = 0, value2 = 0;
    struct errors x = {.at_most = 1};
    for (int64_t i = 0; i < count; i++) {
        const double p = (double)w->product[i], want = p + added(w, i);
        const double error = fabs(dtype_load(got + GUARD, i, r->cdt) - want);
        /* the library may round the product before it adds the bias */
        const double most =
            (own ? 0x1p-18 : 34.0 * (double)sums / 32 * 0x1p-13 + 0x1p-16) * (double)w->size[i] +
            half * (fabs(want) + fabs(p)) + 0x1p-30;
        if (!(error * x.at_most <= x.worst * most)) x.worst = error, x.at_most = most;
        error2 += error * error, product2 += p * p, value2 += want * want;
    }
    x.rms = sqrt(error2 / product2);
    /* errors of rounding are uniform; of BF16 twice with a bias */
    x.allowed = (own ? 0x1p-18 : 2 * accumulated(sums)) +
                half / sqrt(3) * (sqrt(value2 / product2) + (r->more == WITH_BIAS ? 1 : 0));
    return x;
}

static void normal_numbers_are_within_the_accumulators_errors(void **state)
{
    struct gpu *g = *state;
    for (int i = 0; i < ROWS; i++) {
        struct work w;
        work_open(&w, &rows[i], false);
        for (enum way way = 0; way < WAYS; way++) {
            char chosen[256], text[160];
            if (!differs(&rows[i], way)) continue;
            char *got = work_run(g, &w, way, chosen, sizeof chosen);
            const struct errors x = errors_of(&w, got, strcmp(chosen, "own kernel") == 0);
            printf("%s: rms %.4f%% of %.4f%%, worst %.2g of %.2g; %s\n", row_text(&rows[i], text),
                   100 * x.rms, 100 * x.allowed, x.worst, x.at_most, chosen);
            check_guards(&w, got);
            if (!(x.rms <= x.allowed)) fail_msg("%s, %s: rms %g, allowed %g", text, chosen, x.rms, x.allowed);
            if (!(x.worst <= x.at_most))
                fail_msg("%s, %s: error %g of at most %g", text, chosen, x.worst, x.at_most);
            free(got);
        }
        work_close(&w);
    }
}

/* Long sums show it: with 14 bits throughout they lose twenty times as much as with promotion to F32. */
static void fast_accumulation_reaches_the_library(void **state)
{
    static const struct row pair[2] = {{"full", 2048, 2048, 11008, E4, E4, F32, ALONE, false, 0},
                                       {"fast", 2048, 2048, 11008, E4, E4, F32, ALONE, true, 0}};
    struct gpu *g = *state;
    double rms[2];
    char chosen[256];
    if (g->dev.sm != 90) skip();
    for (int i = 0; i < 2; i++) {
        struct work w;
        work_open(&w, &pair[i], false);
        char *got = work_run(g, &w, CHOSEN, chosen, sizeof chosen);
        rms[i] = errors_of(&w, got, false).rms;
        printf("%s: rms %.4f%%; %s\n", pair[i].pass, 100 * rms[i], chosen);
        free(got);
        work_close(&w);
    }
    assert_true(rms[1] > 2 * rms[0]);
}

static const struct row few[] = {{"NaN", 64, 128, 256, E4, E4, BF, ALONE, true, 0},
                                 {"NaN", 64, 128, 256, E5, E4, F32, ADD_TO, false, 0}};

/* A code that is no number spoils its row or its column of c, and nothing else. */
static void not_a_number_stays_in_its_row_and_column(void **state)
{
    enum { ROW = 37, COLUMN = 101, AT = 77 };
    struct gpu *g = *state;
    for (int i = 0; i < 4; i++) {
        const enum way way = i % 2 ? OWN : CHOSEN;
        const struct row *r = &few[i / 2];
        char chosen[256];
        struct work w;
        work_open(&w, r, true);
        if (way == OWN) record(g, way);
        char *clean = work_run(g, &w, way, chosen, sizeof chosen);
        w.a[ROW * r->k + AT] = r->a == E5 ? 0x7C : 0x7F; /* Inf, which becomes Inf or NaN; NaN */
        w.b[COLUMN * r->k + AT] = 0xFF;
        char *got = work_run(g, &w, way, chosen, sizeof chosen);
        for (int64_t e = 0; e < r->m * r->n; e++) {
            const double x = dtype_load(got + GUARD, e, r->cdt), was = dtype_load(clean + GUARD, e, r->cdt);
            const bool spoilt = e / r->n == ROW || e % r->n == COLUMN;
            const bool finite = isfinite(x);
            if (spoilt && r->a == E5 && e % r->n != COLUMN) { /* 0 Inf is NaN, so nothing is finite */
                assert_false(finite);
            } else {
                assert_true(spoilt ? isnan(x) : x == was);
            }
        }
        free(clean);
        free(got);
        work_close(&w);
    }
}

/* Scales are read when the kernel runs, also by a captured graph; another call may have others elsewhere. */
static void scales_are_read_when_it_runs(void **state)
{
    struct gpu *g = *state;
    const size_t bytes = (size_t)(few[0].m * few[0].n) * sizeof(bf16);
    for (enum way way = CHOSEN; way <= OWN; way += OWN - CHOSEN) {
        struct work w;
        struct graph graph;
        work_open(&w, &few[0], true);
        if (way == OWN) record(g, way);
        const size_t mark = arena_mark(&g->memory);
        struct gemm_args d = placed(g, &w);
        bf16 *first = malloc(bytes), *got = malloc(bytes);
        g->s.ops = &g->sets[way];
        assert_int_equal(g->ops.gemm(&d, &g->s), STATUS_OK);
        assert_int_equal(dev_download(&g->s, first, d.c, bytes), STATUS_OK);
        assert_int_equal(dev_sync(&g->s), STATUS_OK);
        assert_int_equal(dev_graph_begin(&g->s), STATUS_OK);
        assert_int_equal(g->ops.gemm(&d, &g->s), STATUS_OK);
        assert_int_equal(dev_graph_end(&g->s, &graph, true), STATUS_OK);
        scales_set(g, 8 * w.scale_a, w.scale_b / 2);     /* now 4 times as much */
        float other[2] = {2 * w.scale_a, 8 * w.scale_b}; /* 16 times */
        for (int again = 0; again < 2; again++) {
            if (again)
                d.a.scale = place(g, &other[0], sizeof(float), 0),
                d.b.scale = place(g, &other[1], sizeof(float), 0);
            if (again) assert_int_equal(g->ops.gemm(&d, &g->s), STATUS_OK);
            if (!again) assert_int_equal(dev_graph_launch(&g->s, &graph), STATUS_OK);
            assert_int_equal(dev_download(&g->s, got, d.c, bytes), STATUS_OK);
            assert_int_equal(dev_sync(&g->s), STATUS_OK);
            for (int64_t e = 0; e < few[0].m * few[0].n; e++)
                assert_true(bf16_to_f32(got[e]) == (again ? 16 : 4) * bf16_to_f32(first[e]));
        }
        dev_graph_close(&g->dev, &graph);
        free(first);
        free(got);
        arena_release(&g->memory, mark);
        work_close(&w);
    }
}

/* The line holds the time that was measured: a second search would have another. */
static void recorded_choices_are_taken_again(void **state)
{
    static const int both[] = {1, 6};
    struct gpu *g = *state;
    char chosen[2][256], again[256], *text = NULL;
    void *got[2];
    struct work w[2];
    set_reopen(g, CHOSEN);
    for (int i = 0; i < 2; i++) {
        work_open(&w[i], &rows[both[i]], false);
        got[i] = work_run(g, &w[i], CHOSEN, chosen[i], sizeof chosen[i]);
    }
    text = cuda_gemm_choices_text(&g->s);
    set_reopen(g, OWN);
    g->s.ops = &g->sets[OWN];
    assert_int_equal(cuda_gemm_choices_load(&g->s, text), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        const size_t bytes = (size_t)(w[i].r->m * w[i].r->n) * sizeof(bf16) + 2 * GUARD;
        void *second = work_run(g, &w[i], OWN, again, sizeof again);
        assert_string_equal(again, chosen[i]);
        assert_memory_equal(second, got[i], bytes);
        free(second);
        free(got[i]);
        work_close(&w[i]);
    }
    char *after = cuda_gemm_choices_text(&g->s);
    assert_string_equal(after, text);
    assert_non_null(strstr(text, " dt=F8_E4M3 cdt=BF16 "));
    assert_non_null(strstr(text, " dt=F8_E5M2,F8_E4M3 cdt=BF16 "));
    assert_non_null(strstr(text, " fast=1 "));
    free(text);
    free(after);
}

/* Of custom kernels SWIGLU_FWD alone reads codes (gpu_swiglu.c), and only where it writes the codes of m. */
static void epilogues_that_read_codes_are_known(void **state)
{
    struct gpu *g = *state;
    g->s.ops = &g->sets[CHOSEN];
    g->sets[CHOSEN].tensor_map_encode = g; /* not called: as if the driver had it */
    for (enum epilogue_kind kind = EPILOGUE_NONE; kind <= EPILOGUE_ROPE; kind++) {
        struct gemm_args large = {
            .a = operand_codes(NULL, E4, g->scales, false),
            .b = operand_codes(NULL, E4, g->scales, true),
            .epilogue = {.kind = kind, .rope = {.heads = 32, .heads_kv = 32, .head_dim = 128}},
            .m = 16384,
            .n = 12288,
            .k = 1024,
            .cdt = DTYPE_BF16};
        assert_int_equal(g->ops.gemm_supports(&large, &g->s), kind <= EPILOGUE_ADD);
        large.a = operand_at(NULL, DTYPE_BF16, false);
        large.b = operand_at(NULL, DTYPE_BF16, kind != EPILOGUE_SWIGLU_BWD);
        assert_int_equal(g->ops.gemm_supports(&large, &g->s), kind <= EPILOGUE_ADD || g->dev.sm / 10 == 9);
    }
    g->sets[CHOSEN].tensor_map_encode = NULL;
}

int main(void)
{
    struct dev d;
    if (dev_open(&d, DEV_CUDA) != STATUS_OK) {
        puts(status_message());
        return gpu_missing();
    }
    dev_close(&d);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_are_exact_by_every_way),
        cmocka_unit_test(normal_numbers_are_within_the_accumulators_errors),
        cmocka_unit_test(fast_accumulation_reaches_the_library),
        cmocka_unit_test(not_a_number_stays_in_its_row_and_column),
        cmocka_unit_test(scales_are_read_when_it_runs),
        cmocka_unit_test(recorded_choices_are_taken_again),
        cmocka_unit_test(epilogues_that_read_codes_are_known),
    };
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
