/* Every instruction set that this machine has, on every case, in F32 and BF16: the fast ops agree with the
 * f64 oracle, write nothing else, and give the same bits for any number of threads. */
#include "base/parallel.h"
#include "base/text.h"
#include "ops/quant.h"
#include "probe.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};

/* INGOT_TEST_EVERY=n, for an emulator: of each op only the first case and every n-th behind it. 1: all. */
static int every(void)
{
    const char *text = getenv("INGOT_TEST_EVERY");
    int64_t n = 1;
    if (text) assert_true(text_to_int(text, &n) && n > 0);
    return (int)n;
}

static bool is_left_out(int at)
{
    int before = 0;
    for (int i = 0; i < at; i++) before += op_cases[i].op == op_cases[at].op;
    return before % every() != 0;
}

/* The sets to test; an ISA that the machine lacks is left out. */
static int fast_sets(struct ops sets[3])
{
    int count = 0;
    for (int i = 0; cpu_isa_name(i); i++)
        if (ops_cpu(&sets[count], cpu_isa_name(i)) == STATUS_OK) count++;
    assert_true(count > 0);
    return count;
}

static bool is_oracle(const struct ops *o, enum op_id op)
{
    struct ops oracle;
    ops_oracle(&oracle);
    const bool same[] = {
#define X(name) o->name == oracle.name,
        OPS(X)
#undef X
    };
    return same[op];
}

static void matches_the_oracle(const struct ops *sets, int count, const struct op_case *c, dtype dt,
                               int shift)
{
    struct ops oracle;
    ops_oracle(&oracle);
    char text[256], what[320];
    struct probe want = {.dt = dt, .shift = shift};
    op_run(&oracle, c, &want);
    probe_guards(&want, case_text(c, dt, text));
    for (int s = 0; s < count; s++) {
        if (is_oracle(&sets[s], c->op)) continue; /* not overlaid */
        struct probe got = {.dt = dt, .shift = shift};
        op_run(&sets[s], c, &got);
        snprintf(what, sizeof what, "%s %s", sets[s].name, text);
        probe_guards(&got, what);
        probe_close(&want, &got, what);
        probe_free(&got);
    }
    probe_free(&want);
}

static void one_op(enum op_id op)
{
    struct ops sets[3];
    int count = fast_sets(sets);
    for (int i = 0; i < OP_CASES; i++)
        for (int t = 0; t < 2 && op_cases[i].op == op && !is_left_out(i); t++)
            matches_the_oracle(sets, count, &op_cases[i], dtypes[t],
                               i % 2); /* every other case without alignment */
}

#define X(name)                                                                                              \
    static void name##_matches_the_oracle(void **state)                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        one_op(OP_##name);                                                                                   \
    }
OPS(X)
#undef X

static void results_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    struct ops sets[3];
    int count = fast_sets(sets);
    char text[256], what[320];
    for (int i = 0; i < OP_CASES * 2 * count; i++) {
        const struct op_case *c = &op_cases[i / (2 * count)];
        const struct ops *o = &sets[i / 2 % count];
        if (i / 2 % count > 0 && is_oracle(o, c->op)) continue; /* once is enough */
        if (is_left_out(i / (2 * count))) continue;
        struct probe one = {.dt = dtypes[i % 2]};
        parallel_threads_set(1);
        op_run(o, c, &one);
        for (int threads = 2; threads <= 4; threads++) {
            struct probe more = {.dt = dtypes[i % 2]};
            parallel_threads_set(threads);
            op_run(o, c, &more);
            snprintf(what, sizeof what, "%s %s on %d threads", o->name, case_text(c, more.dt, text), threads);
            probe_same_bits(&one, &more, what);
            probe_free(&more);
        }
        probe_free(&one);
    }
    parallel_threads_set(0);
}

/* A result too large for the caches is written around them; its rows by halves are small enough not to be. */
static void a_huge_gemm_has_the_bits_of_its_halves(void **state)
{
    (void)state;
    if (every() > 1) skip();
    enum { M = 40, N = 419856, K = 33, COUNT = M * N };
    struct ops sets[3];
    const int count = fast_sets(sets);
    bf16 *a = malloc(M * K * sizeof *a), *b = malloc((size_t)N * K * sizeof *b);
    float *c[2] = {aligned_alloc(64, COUNT * sizeof(float)), aligned_alloc(64, COUNT * sizeof(float))};
    assert_true(a && b && c[0] && c[1]);
    for (int i = 0; i < M * K; i++) a[i] = bf16_from_f32((float)(i * 7 % 31) / 16 - 1);
    for (int i = 0; i < N * K; i++) b[i] = bf16_from_f32((float)(i % 1009) / 512 - 1);
    for (int s = 0; s < count; s++) {
        struct gemm_args g = {.a = operand_at(a, DTYPE_BF16, false),
                              .b = operand_at(b, DTYPE_BF16, true),
                              .c = c[0],
                              .m = M,
                              .n = N,
                              .k = K,
                              .cdt = DTYPE_F32};
        for (int i = 0; i < COUNT; i++) c[0][i] = c[1][i] = NAN;
        assert_int_equal(sets[s].gemm(&g, NULL), STATUS_OK);
        g.m = M / 2;
        for (int half = 0; half < 2; half++) {
            g.a.data = a + half * g.m * K;
            g.c = c[1] + half * g.m * N;
            assert_int_equal(sets[s].gemm(&g, NULL), STATUS_OK);
        }
        assert_false(isnan(c[1][COUNT - 1]));
        assert_memory_equal(c[0], c[1], COUNT * sizeof(float));
    }
    free(a);
    free(b);
    free(c[0]);
    free(c[1]);
}

#define CHUNK(at, n)                                                                                         \
    {                                                                                                        \
        .begin = (at), .count = (n), .first = (at)                                                           \
    }

/* The tolerance of a bf16 would hide other random numbers. Rounded by the same numbers, moments differ only where f32 arithmetic
 * crosses a border that f64's does not: once in thousands. Cut otherwise, the elements have the same bits. */
static void stochastic_rounding_draws_the_same_numbers_in_every_set(void **state)
{
    (void)state;
    enum { COUNT = 20000, CUT = 4096 };
    static const struct update_chunk whole[] = {{.count = UPDATE_CHUNK},
                                                CHUNK(UPDATE_CHUNK, COUNT - UPDATE_CHUNK)},
                                     parts[] = {
                                         {.count = CUT}, CHUNK(CUT, CUT + 7), CHUNK(2 * CUT + 16, CUT)};
    struct ops sets[4];
    const int count = fast_sets(sets + 1) + 1;
    float *p = calloc(COUNT, sizeof *p), *g = malloc(COUNT * sizeof *g);
    bf16 *m[2] = {malloc(COUNT * sizeof(bf16)), malloc(COUNT * sizeof(bf16))}, *want = m[0];
    assert_true(p && g && m[0] && m[1]);
    ops_oracle(&sets[0]);
    struct step_scalars scalars = {.lr = 1e-3, .step = 1000};
    for (int i = 0; i < COUNT; i++) g[i] = (float)(i % 1009) / 512 - 1;
    for (int s = 0; s < 2 * count; s++) {
        bf16 *got = m[s > 0];
        for (int i = 0; i < COUNT; i++) got[i] = bf16_from_f32((float)(i % 127) / 64 - 1);
        const struct update_args a = {.rule = UPDATE_LION,
                                      .p = p,
                                      .g = g,
                                      .m = got,
                                      .chunks = s % 2 ? parts : whole,
                                      .chunk_count = s % 2 ? 3 : 2,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .scalars = &scalars,
                                      .seed = 3,
                                      .moment_dt = DTYPE_BF16};
        assert_int_equal(sets[s / 2].update(&a, NULL), STATUS_OK);
        int differ = 0, compared = 0;
        for (int c = 0; c < a.chunk_count; c++)
            for (int64_t i = a.chunks[c].begin; i < a.chunks[c].begin + a.chunks[c].count; i++, compared++)
                differ += got[i] != want[i];
        if (differ > (s < 2 ? 0 : compared / 1000))
            fail_msg("%s: %d of %d moments differ", sets[s / 2].name, differ, compared);
    }
    free(p);
    free(g);
    free(m[0]);
    free(m[1]);
}

/* Three steps with moments in 8 bits: every set has the oracle's codes but for once in hundreds, when f32 arithmetic crosses a border
 * that f64's does not (and the coarse codes near 0 carry such a difference into the next step). */
static void moments_in_8_bits_have_the_same_codes_in_every_set(void **state)
{
    (void)state;
    enum { COUNT = 20000, BLOCKS = COUNT / QUANT_BLOCK + 1 };
    static const struct update_chunk whole[] = {{.count = UPDATE_CHUNK},
                                                CHUNK(UPDATE_CHUNK, COUNT - UPDATE_CHUNK)};
    struct ops sets[4];
    const int count = fast_sets(sets + 1) + 1;
    static float p[COUNT], g[COUNT], scale[4][2][BLOCKS];
    static uint8_t codes[4][2][COUNT];
    ops_oracle(&sets[0]);
    for (int s = 0; s < count; s++) {
        for (int step = 0; step < 3; step++) {
            struct step_scalars scalars = {
                .lr = 1e-3, .correction1 = 0.1, .correction2 = 0.05, .step = (uint64_t)step};
            for (int i = 0; i < COUNT; i++)
                g[i] = i % 1009 == 0 ? 0 : expf((float)((i + step) % 997) / 64 - 10) * (i % 2 ? 1.f : -1.f);
            const struct update_args a = {.rule = UPDATE_ADAMW,
                                          .p = p,
                                          .g = g,
                                          .m = codes[s][0],
                                          .v = codes[s][1],
                                          .m_scale = scale[s][0],
                                          .v_scale = scale[s][1],
                                          .chunks = whole,
                                          .chunk_count = 2,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .scalars = &scalars,
                                          .seed = 3,
                                          .moment_dt = DTYPE_U8};
            assert_int_equal(sets[s].update(&a, NULL), STATUS_OK);
        }
        int differ = 0;
        for (int i = 0; i < 2 * COUNT; i++) {
            const int which = i / COUNT, at = i % COUNT;
            differ += codes[s][which][at] != codes[0][which][at];
            if (which == 1 && g[at] != 0) assert_true(codes[s][1][at] > 0);
        }
        if (differ > 2 * COUNT / 300) fail_msg("%s: %d of %d codes differ", sets[s].name, differ, 2 * COUNT);
        for (int i = 0; i < 2 * BLOCKS; i++)
            assert_true(fabsf(scale[s][i / BLOCKS][i % BLOCKS] - scale[0][i / BLOCKS][i % BLOCKS]) <=
                        1e-5f * scale[0][i / BLOCKS][i % BLOCKS]);
    }
}

/* The norm in a separate pass, each half over its own chunks: the bits of the whole. Moments of a slice get
 * the random bits of the full row. */
static void halves_of_an_update_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { COUNT = 40000, CHUNKS = 3, SLICES = 2, WIDTH = 64, ROWS = 48, SLICE = WIDTH * ROWS / SLICES };
    static const struct update_chunk chunks[CHUNKS] = {{.count = UPDATE_CHUNK},
                                                       CHUNK(UPDATE_CHUNK, UPDATE_CHUNK),
                                                       CHUNK(2 * UPDATE_CHUNK, COUNT - 2 * UPDATE_CHUNK)};
    static float p[2][COUNT], g[COUNT];
    static bf16 m[2][COUNT], v[2][COUNT];
    struct ops sets[4];
    const int count = fast_sets(sets + 1) + 1;
    ops_oracle(&sets[0]);
    for (int i = 0; i < COUNT; i++) g[i] = (float)(i % 1009) / 512 - 1;
    for (int s = 0; s < count; s++) {
        struct step_scalars scalars = {.lr = 1e-3, .correction1 = 0.1, .correction2 = 0.05, .step = 7}, whole;
        double squares[CHUNKS];
        memset(p, 0, sizeof p), memset(m, 0, sizeof m), memset(v, 0, sizeof v);
        struct update_args a = {.p = p[0],
                                .g = g,
                                .m = m[0],
                                .v = v[0],
                                .chunks = chunks,
                                .chunk_count = CHUNKS,
                                .squares = squares,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .clip = 1,
                                .scalars = &scalars,
                                .seed = 3,
                                .moment_dt = DTYPE_BF16};
        assert_int_equal(sets[s].update(&a, NULL), STATUS_OK);
        whole = scalars;
        scalars.grad_norm = scalars.clip_factor = 0;
        a.p = p[1], a.m = m[1], a.v = v[1], a.phase = UPDATE_CHUNK_NORMS;
        assert_int_equal(sets[s].update(&a, NULL), STATUS_OK);
        assert_true(p[1][0] == 0 && scalars.grad_norm == 0);
        for (int c = 0; c < CHUNKS; c++) scalars.grad_squares += squares[c];
        a.phase = UPDATE_APPLY, a.chunk_count = 1;
        for (int c = 0; c < CHUNKS; c++, a.chunks++) assert_int_equal(sets[s].update(&a, NULL), STATUS_OK);
        assert_true(scalars.grad_norm == whole.grad_norm && scalars.clip_factor == whole.clip_factor);
        assert_memory_equal(p[0], p[1], sizeof p[0]);
        assert_memory_equal(m[0], m[1], sizeof m[0]);
        assert_memory_equal(v[0], v[1], sizeof v[0]);
        /* The same once more by halves of the columns of [ROWS, WIDTH], which begin at a place of their own. */
        memset(p[1], 0, sizeof p[1]), memset(m[1], 0, sizeof m[1]), memset(v[1], 0, sizeof v[1]);
        float part[SLICE];
        a.g = part;
        for (int k = 0; k < SLICES; k++) {
            const int columns = WIDTH / SLICES; /* two pieces: the second begins inside a row */
            const struct update_chunk cut[] = {
                {.count = columns + 16, .first = k * columns, .width = columns, .stride = WIDTH},
                {.begin = columns + 16,
                 .count = SLICE - columns - 16,
                 .first = WIDTH + k * columns,
                 .width = columns,
                 .stride = WIDTH,
                 .col_offset = 16}};
            for (int i = 0; i < SLICE; i++) part[i] = g[i / columns * WIDTH + k * columns + i % columns];
            a.p = p[1] + k * SLICE, a.m = m[1] + k * SLICE, a.v = v[1] + k * SLICE, a.chunks = cut,
            a.chunk_count = 2;
            assert_int_equal(sets[s].update(&a, NULL), STATUS_OK);
            for (int i = 0; i < SLICE; i++) {
                const int at = i / columns * WIDTH + k * columns + i % columns;
                assert_int_equal(m[1][k * SLICE + i], m[0][at]);
                assert_int_equal(v[1][k * SLICE + i], v[0][at]);
            }
        }
    }
}

static void an_unknown_instruction_set_is_refused(void **state)
{
    (void)state;
    struct ops o;
    assert_int_equal(ops_cpu(&o, "sse9"), STATUS_CONFIG);
    assert_int_equal(ops_cpu(&o, NULL), STATUS_OK);
    assert_int_equal(ops_check(&o), STATUS_OK);
}

/* test_fast_ops [PATTERN]: tests whose names it matches, such as "gemm_*". */
int main(int argc, char **argv)
{
    parallel_threads_set(0);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_instruction_set_is_refused),
#define X(name) cmocka_unit_test(name##_matches_the_oracle),
        OPS(X)
#undef X
            cmocka_unit_test(results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(a_huge_gemm_has_the_bits_of_its_halves),
        cmocka_unit_test(stochastic_rounding_draws_the_same_numbers_in_every_set),
        cmocka_unit_test(halves_of_an_update_have_the_bits_of_the_whole),
        cmocka_unit_test(moments_in_8_bits_have_the_same_codes_in_every_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
