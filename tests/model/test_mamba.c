/* Goal: a mamba2 layer is transformers' Mamba2Mixer. Method: its weights, an input and its output (tools/make_mamba2_fixture.py) through the
 * mixer on the oracle in f64. transformers computes in f32: the bound is some of its roundoffs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "nn/mamba.h"

enum { T = 20, D = 16, HEADS = 4, HEAD = 8, STATE = 5, WIDTH = 4, ARENAS = 5 };

/* The next `count` numbers of the fixture. */
static void take(FILE *f, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float x;
        assert_int_equal(fread(&x, sizeof x, 1, f), 1);
        to[i] = (double)x;
    }
}

static void compare(int64_t groups, const char *fixture)
{
    struct model_spec spec;
    struct params p = {0};
    struct mamba m;
    struct mamba_saved saved;
    struct arena arenas[ARENAS] = {0};
    struct ops ops;
    model_spec_default(&spec);
    spec.hidden_size = D, spec.norm_eps = 1e-5;
    spec.mamba_groups = groups;
    spec.mamba_heads = HEADS, spec.mamba_head_dim = HEAD, spec.mamba_state = STATE, spec.mamba_conv = WIDTH;
    ops_oracle(&ops);
    mamba_init(&m, &p, "mamba", &spec, 0);
    for (int i = 0; i < ARENAS; i++) assert_int_equal(arena_reserve(&arenas[i], "test", 1 << 20), STATUS_OK);
    params_layout(&p, &(struct params_layout_args){.dt = DTYPE_F64,
                                                   .moment_dt = DTYPE_F32,
                                                   .with_grad = 1,
                                                   .arenas = {&arenas[0], &arenas[1], &arenas[2]}});
    mamba_layout(&m, &saved,
                 &(struct layout){.n = T,
                                  .docs_max = 1,
                                  .len_max = T,
                                  .ops = &ops,
                                  .dt = DTYPE_F64,
                                  .mode = LAYOUT_TRAIN,
                                  .act = &arenas[3],
                                  .scratch = &arenas[4]});
    FILE *f = fopen(fixture, "rb");
    assert_non_null(f);
    const int rows[] = {m.in.w, m.conv, m.conv_bias, m.a_log, m.dt_bias, m.skip, m.norm, m.out.w};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int64_t count = p.rows[rows[i]].count;
        take(f, params_master(&p, rows[i]), count);
        memcpy(params_weight(&p, rows[i]), params_master(&p, rows[i]), (size_t)count * sizeof(double));
    }
    double x[T * D], want[T * D], got[T * D], largest = 0;
    take(f, x, T * D);
    take(f, want, T * D);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    const int32_t cu[] = {0, T};
    const struct batch batch = {.rows = T, .docs = 1, .len_max = T, .cu_seqlens = cu};
    const struct exec run = {.ops = &ops, .params = &p};
    assert_int_equal(
        mamba_fwd(&m, &saved, &(struct layer_ctx){.batch = &batch},
                  (struct tensor){.data = x, .dt = DTYPE_F64, .rank = 2, .shape = {T, D}},
                  (struct branch_dst){{.data = got, .dt = DTYPE_F64, .rank = 2, .shape = {T, D}}, {0}}, &run),
        STATUS_OK);
    for (int i = 0; i < T * D; i++) largest = fmax(largest, fabs(want[i]));
    assert_true(largest > 1);
    for (int i = 0; i < T * D; i++)
        if (!(fabs(got[i] - want[i]) <= 2e-6 * largest))
            fail_msg("output %d is %.9g, transformers has %.9g", i, got[i], want[i]);
    for (int i = 0; i < ARENAS; i++) arena_free(&arenas[i]);
    params_free(&p);
}

static void the_mixer_computes_what_transformers_computes(void **state)
{
    (void)state;
    compare(1, TEST_SOURCE_DIR "/tests/fixtures/mamba2.bin");
}

static void groups_are_normed_each_by_itself_as_in_transformers(void **state)
{
    (void)state;
    compare(2, TEST_SOURCE_DIR "/tests/fixtures/mamba2_groups.bin");
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mixer_computes_what_transformers_computes),
        cmocka_unit_test(groups_are_normed_each_by_itself_as_in_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
