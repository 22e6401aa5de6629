/* Goal: the GPU's GEMMs keep the contract of ops.h on every shape, type and alignment; searching for an algorithm changes nothing;
 * recorded choices give the same bits; a graph is never captured around a search. Method: random cases against the oracle, integers that
 * are exact in every order. */
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/gpu_set.h"

enum { GUARD = 64 }; /* elements before and after c that must not be written */

/* A GEMM with its operands on the host. */
struct work {
    struct gemm_args g; /* host pointers */
    void *a, *b, *bias, *add, *c, *want;
    int64_t shift;
    size_t a_count, b_count, c_count;
};

static double draw(uint64_t seed, int64_t i, bool whole)
{
    const double u = 2 * rng_uniform(seed, RNG_TEST, (uint64_t)i, 0) - 1;
    return whole ? (double)(int)(4 * u) : u;
}

static void *numbers(size_t count, dtype dt, uint64_t seed, bool whole)
{
    void *p = malloc((count + 1) * dtype_bytes(dt));
    assert_non_null(p);
    for (size_t i = 0; i < count; i++) dtype_store(p, (int64_t)i, dt, draw(seed, (int64_t)i, whole));
    return p;
}

enum addend { ALONE, WITH_BIAS, WITH_ADD };

static void work_open(struct work *w, const struct gemm_args *g, enum addend more, bool whole, int64_t shift)
{
    struct ops oracle;
    ops_oracle(&oracle);
    *w = (struct work){.g = *g, .shift = shift};
    w->a_count = (size_t)(g->m * g->k);
    w->b_count = (size_t)(g->k * g->n);
    w->c_count = (size_t)(g->m * g->n);
    w->g.a.data = w->a = numbers(w->a_count, g->a.dt, 1, whole);
    w->g.b.data = w->b = numbers(w->b_count, g->a.dt, 2, whole);
    w->bias = numbers((size_t)g->n, g->a.dt, 3, whole);
    if (more == WITH_BIAS) w->g.epilogue = (struct epilogue){.kind = EPILOGUE_BIAS, .bias = w->bias};
    w->add = numbers(w->c_count, g->cdt, 5, whole);
    if (more == WITH_ADD) w->g.epilogue = (struct epilogue){.kind = EPILOGUE_ADD, .add = w->add};
    w->c = numbers(w->c_count + 2 * GUARD, g->cdt, 4, whole);
    if (g->accum == ACCUM_STORE)
        for (size_t i = 0; i < w->c_count; i++) dtype_store(w->c, (int64_t)i + GUARD, g->cdt, (double)NAN);
    size_t bytes = (w->c_count + 2 * GUARD) * dtype_bytes(g->cdt);
    w->want = malloc(bytes);
    memcpy(w->want, w->c, bytes);
    w->g.c = (char *)w->want + GUARD * dtype_bytes(g->cdt);
    assert_int_equal(oracle.gemm(&w->g, NULL), STATUS_OK);
}

static void work_close(struct work *w)
{
    free(w->a);
    free(w->b);
    free(w->bias);
    free(w->add);
    free(w->c);
    free(w->want);
}

/* Device memory for `count` elements, off by w->shift elements, and its contents. */
static void *place(struct gpu *g, const void *from, size_t count, dtype dt, int64_t shift)
{
    char *p = arena_take(&g->memory, (count + 8) * dtype_bytes(dt), "operand");
    p += (size_t)shift * dtype_bytes(dt);
    assert_int_equal(dev_upload(&g->s, p, from, count * dtype_bytes(dt)), STATUS_OK);
    return p;
}

/* Runs it on the GPU; returns the result, guards included, which the caller frees. */
static void *work_run(struct gpu *g, const struct work *w)
{
    const size_t mark = arena_mark(&g->memory), bytes = (w->c_count + 2 * GUARD) * dtype_bytes(w->g.cdt);
    struct gemm_args d = w->g;
    d.a.data = place(g, w->a, w->a_count, d.a.dt, w->shift);
    d.b.data = place(g, w->b, w->b_count, d.a.dt, w->shift);
    if (gemm_bias(&d)) d.epilogue.bias = place(g, w->bias, (size_t)d.n, d.a.dt, w->shift);
    if (gemm_addend(&d)) d.epilogue.add = place(g, w->add, w->c_count, d.cdt, w->shift);
    char *c = place(g, w->c, w->c_count + 2 * GUARD, d.cdt, w->shift);
    d.c = c + GUARD * dtype_bytes(d.cdt);
    if (g->ops.gemm(&d, &g->s) != STATUS_OK) fail_msg("%s", status_message());
    void *got = malloc(bytes);
    assert_int_equal(dev_download(&g->s, got, c, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    arena_release(&g->memory, mark);
    return got;
}

/* Rounded once: half a unit of the type, and what f32 sums of k terms lose. */
static void work_check(const struct work *w, const void *got)
{
    const struct gemm_args *g = &w->g;
    const size_t es = dtype_bytes(g->cdt), guard = GUARD * es;
    const double half = g->cdt == DTYPE_BF16 ? 0x1.01p-8 : 0x1p-22, sum = 0x1p-21 * (double)(g->k + 4);
    assert_memory_equal(got, w->want, guard);
    assert_memory_equal((const char *)got + guard + w->c_count * es,
                        (const char *)w->want + guard + w->c_count * es, guard);
    for (int64_t i = 0; i < (int64_t)w->c_count; i++) {
        const double x = dtype_load(got, i + GUARD, g->cdt), y = dtype_load(w->want, i + GUARD, g->cdt);
        /* the oracle's value is rounded too; cuBLASLt's epilogue may round the GEMM before it adds the bias */
        const double bias = gemm_bias(g) ? fabs(dtype_load(w->bias, i % g->n, g->a.dt)) : 0;
        const double again = gemm_bias(g) ? 2 * half * (fabs(y) + bias) : 0;
        if (!(fabs(x - y) <= 2 * half * fabs(y) + again + sum))
            fail_msg("%lld x %lld x %lld %s->%s ta %d tb %d add %d %d bias %d shift %lld: [%lld] %g, not %g",
                     (long long)g->m, (long long)g->n, (long long)g->k, dtype_name(g->a.dt),
                     dtype_name(g->cdt), g->a.trans, g->b.trans, g->accum == ACCUM_ADD,
                     gemm_addend(g) != NULL, gemm_bias(g) != NULL, (long long)w->shift, (long long)i, x, y);
    }
}

static struct gemm_args random_args(uint64_t i, enum addend *more, int64_t *shift)
{
    static const int64_t sizes[] = {1,  1,  2,  3,  5,  7,  8,   9,   15,  16,  17,  31, 32,
                                    33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 255, 384};
    const struct rng_block r = rng_at(7, RNG_TEST, i, 0), q = rng_at(7, RNG_TEST, i, 1);
    struct gemm_args g = {.m = sizes[r.u[0] % 25], .n = sizes[r.u[1] % 25], .k = sizes[r.u[2] % 25]};
    g.a.trans = q.u[0] & 1;
    g.b.trans = q.u[0] & 2;
    g.a.dt = g.b.dt = q.u[0] & 4 ? DTYPE_BF16 : DTYPE_F32;
    g.cdt = q.u[0] & 8 ? DTYPE_F32 : g.a.dt;
    if (g.cdt == DTYPE_F32 && (q.u[0] & 16)) g.accum = ACCUM_ADD;
    *more = q.u[0] & 32 ? WITH_BIAS : (q.u[0] & 128) && g.accum == ACCUM_STORE ? WITH_ADD : ALONE;
    *shift = q.u[0] & 64 ? 0 : (int64_t)(q.u[1] % 8);
    return g;
}

static void every_shape_agrees_with_the_oracle(void **state)
{
    (void)state;
    struct gpu *g = gpu_set_open((size_t)192 << 20, 2);
    for (uint64_t i = 0; i < 400; i++) {
        struct work w;
        enum addend more;
        int64_t shift;
        const struct gemm_args args = random_args(i, &more, &shift);
        work_open(&w, &args, more, false, shift);
        void *got = work_run(g, &w);
        work_check(&w, got);
        free(got);
        work_close(&w);
    }
    gpu_set_close(g);
}

static void empty_sums_are_the_bias_or_nothing(void **state)
{
    (void)state;
    struct gpu *g = gpu_set_open((size_t)192 << 20, 0);
    for (int i = 0; i < 32; i++) {
        struct gemm_args args = {
            .m = i & 1 ? 0 : 5, .n = i & 2 ? 0 : 70, .a = {.dt = DTYPE_BF16}, .b = {.dt = DTYPE_BF16}};
        args.k = i & 3 ? 4 : 0;
        args.cdt = i & 8 ? DTYPE_F32 : DTYPE_BF16;
        args.accum = (i & 12) == 12 ? ACCUM_ADD : ACCUM_STORE;
        struct work w;
        work_open(&w, &args,
                  i & 16 ? (args.accum == ACCUM_STORE && i % 5 == 0 ? WITH_ADD : WITH_BIAS) : ALONE, false,
                  i % 3);
        void *got = work_run(g, &w);
        work_check(&w, got);
        free(got);
        work_close(&w);
    }
    gpu_set_close(g);
}

/* Small integers: every order of the sums gives the same bits, so an extra run shows. */
static void a_search_adds_nothing(void **state)
{
    (void)state;
    static const int64_t sides[] = {64, 3000}; /* timed into the workspace; into memory of its own */
    struct gpu *g = gpu_set_open((size_t)192 << 20, 0);
    for (int i = 0; i < 2; i++) {
        struct gemm_args args = {.m = sides[i],
                                 .n = sides[i],
                                 .k = 24,
                                 .a = {.trans = true, .dt = DTYPE_BF16},
                                 .b = {.dt = DTYPE_BF16},
                                 .cdt = DTYPE_F32};
        args.accum = ACCUM_ADD;
        struct work w;
        work_open(&w, &args, ALONE, true, 0);
        for (int run = 0; run < 2; run++) { /* with the search, and without */
            void *got = work_run(g, &w);
            assert_memory_equal(got, w.want, (w.c_count + 2 * GUARD) * sizeof(float));
            free(got);
        }
        work_close(&w);
    }
    gpu_set_close(g);
}

static void recorded_choices_give_the_same_bits(void **state)
{
    (void)state;
    struct gpu *g = gpu_set_open((size_t)192 << 20, 0);
    struct gemm_args args = {.m = 512,
                             .n = 320,
                             .k = 2048,
                             .b = {.trans = true, .dt = DTYPE_BF16},
                             .a = {.dt = DTYPE_BF16},
                             .cdt = DTYPE_BF16};
    struct work w;
    work_open(&w, &args, WITH_BIAS, false, 0);
    void *first = work_run(g, &w);
    char *text = cuda_gemm_choices_text(&g->s), name[96];
    assert_non_null(text);
    assert_string_equal(cuda_gemm_text(&g->s, &(struct gemm_args){.m = 3}, name, sizeof name), "none");
    gpu_set_close(g);

    g = gpu_set_open((size_t)192 << 20, 0);
    assert_int_equal(cuda_gemm_choices_load(&g->s, text), STATUS_OK);
    char *before = cuda_gemm_choices_text(&g->s); /* not used yet, not lost either */
    void *second = work_run(g, &w);
    char *after = cuda_gemm_choices_text(&g->s);
    assert_string_equal(before, text);
    assert_string_equal(after, text);
    assert_memory_equal(first, second, (w.c_count + 2 * GUARD) * sizeof(bf16));
    text[strlen(text) / 2] ^= 1;
    assert_int_equal(cuda_gemm_choices_load(&g->s, text), STATUS_CKPT);
    free(first);
    free(second);
    free(before);
    free(after);
    free(text);
    work_close(&w);
    gpu_set_close(g);
}

static void a_capture_never_searches(void **state)
{
    (void)state;
    struct gpu *g = gpu_set_open((size_t)192 << 20, 0);
    struct gemm_args args = {
        .m = 64, .n = 48, .k = 40, .a = {.dt = DTYPE_F32}, .b = {.dt = DTYPE_F32}, .cdt = DTYPE_F32};
    struct work w;
    struct graph graph;
    work_open(&w, &args, ALONE, false, 0);
    struct gemm_args d = args;
    const size_t bytes = w.c_count * sizeof(float);
    d.a.data = place(g, w.a, w.a_count, DTYPE_F32, 0);
    d.b.data = place(g, w.b, w.b_count, DTYPE_F32, 0);
    d.c = place(g, (float *)w.c + GUARD, w.c_count, DTYPE_F32, 0);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    assert_int_equal(dev_graph_begin(&g->s), STATUS_OK);
    assert_int_equal(g->ops.gemm(&d, &g->s), STATUS_INTERNAL);
    assert_int_equal(dev_graph_end(&g->s, &graph, false), STATUS_OK);

    float *eager = malloc(bytes), *replayed = malloc(bytes);
    assert_int_equal(g->ops.gemm(&d, &g->s), STATUS_OK);
    assert_int_equal(dev_download(&g->s, eager, d.c, bytes), STATUS_OK);
    assert_int_equal(dev_zero(&g->s, d.c, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    assert_int_equal(dev_graph_begin(&g->s), STATUS_OK);
    assert_int_equal(g->ops.gemm(&d, &g->s), STATUS_OK);
    assert_int_equal(dev_graph_end(&g->s, &graph, true), STATUS_OK);
    assert_int_equal(dev_graph_launch(&g->s, &graph), STATUS_OK);
    assert_int_equal(dev_download(&g->s, replayed, d.c, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    assert_memory_equal(eager, replayed, bytes);
    dev_graph_close(&g->dev, &graph);
    free(eager);
    free(replayed);
    work_close(&w);
    gpu_set_close(g);
}

int main(void)
{
    enum { NO_GPU = 77 };
    struct dev d;
    if (dev_open(&d, DEV_CUDA) != STATUS_OK) {
        puts(status_message());
        return NO_GPU;
    }
    dev_close(&d);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_agrees_with_the_oracle),
        cmocka_unit_test(empty_sums_are_the_bias_or_nothing),
        cmocka_unit_test(a_search_adds_nothing),
        cmocka_unit_test(recorded_choices_give_the_same_bits),
        cmocka_unit_test(a_capture_never_searches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
