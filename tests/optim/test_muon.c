/* Optimizers beside references (tools/make_optim_fixture.py): AdamW, AdamW with moments in 8 bits, Muon; and what Muon does with matrices
 * that are stacked in one tensor, with all else, and with gradients that are not finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/muon.h"
#include "optim/optim.h"
#include "ops/quant.h"

enum { N = 600, STEPS = 10, ROWS = 60, COLS = 12, MATRIX = ROWS * COLS };
static const int64_t parts[] = {16, 4, 40};

struct reference {
    float p[N], g[STEPS][N], adamw[N], p8[N], m[N], v[N];
    float w[MATRIX], gw[STEPS][MATRIX], muon[MATRIX];
};

struct fixture {
    struct reference ref;
    struct params p;
    struct arena param, grad, optim, work;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
    struct run_spec spec;
};

static void fixture_open(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    FILE *file = fopen(TEST_SOURCE_DIR "/tests/fixtures/optim.bin", "rb");
    assert_non_null(file);
    assert_int_equal(fread(&f->ref, sizeof f->ref, 1, file), 1);
    fclose(file);
    struct arena *all[] = {&f->param, &f->grad, &f->optim, &f->work};
    for (int i = 0; i < 4; i++) assert_int_equal(arena_reserve(all[i], "test", 1 << 18), STATUS_OK);
    assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    f->run = (struct exec){.ops = &f->ops, .params = &f->p, .scalars = &f->scalars};
    run_spec_default(&f->spec);
    f->spec.optim_lr = 1e-2, f->spec.optim_weight_decay = 0.1, f->spec.train_clip = 0, f->spec.run_seed = 5;
}

/* Rows have been added. */
static void fixture_layout(struct fixture *f, enum optim kind, enum optim_state state)
{
    f->spec.optim_name = kind;
    f->spec.optim_state = state;
    if (kind == OPTIM_MUON) assert_int_equal(muon_claim(&f->p), STATUS_OK);
    params_layout(&f->p, &(struct params_layout_args){.dt = DTYPE_F32,
                                                      .moment_dt = optim_moment_dt(state),
                                                      .with_grad = 1,
                                                      .moments = optim_moments(kind),
                                                      .arenas = {&f->param, &f->grad, &f->optim}});
    optim_layout(&f->p, &f->optim);
    if (kind == OPTIM_MUON) muon_layout(&f->p, NULL, &f->work);
    assert_int_equal(optim_chunks(&f->p, &f->spec, NULL, NULL), STATUS_OK);
}

static void fixture_close(struct fixture *f)
{
    params_free(&f->p);
    arena_free(&f->param);
    arena_free(&f->grad);
    arena_free(&f->optim);
    arena_free(&f->work);
}

static void take_step(struct fixture *f, int step)
{
    f->scalars = (struct step_scalars){.lr = f->spec.optim_lr};
    optim_scalars(&f->spec, step, &f->scalars);
    assert_int_equal(optim_step(&f->run, &f->spec, &(struct grad_norm){0}, NULL, 0), STATUS_OK);
}

static double largest_difference(const float *a, const float *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static struct fixture adamw_run(enum optim_state state)
{
    struct fixture f;
    fixture_open(&f);
    params_add(&f.p, ROLE_EMBED, 0, N, 0, "w");
    fixture_layout(&f, OPTIM_ADAMW, state);
    memcpy(params_master(&f.p, 0), f.ref.p, sizeof f.ref.p);
    for (int step = 0; step < STEPS; step++) {
        memcpy(params_grad(&f.p, 0), f.ref.g[step], sizeof f.ref.g[step]);
        take_step(&f, step);
    }
    return f;
}

static void adamw_is_torchs(void **state)
{
    (void)state;
    struct fixture f = adamw_run(OPTIM_STATE_FP32);
    const double moved = largest_difference(f.ref.p, f.ref.adamw, N),
                 off = largest_difference(params_master(&f.p, 0), f.ref.adamw, N);
    if (!(off < 1e-5 * moved)) fail_msg("%g of a movement of %g", off, moved);
    fixture_close(&f);
}

/* A code that f32 arithmetic rounds to the other side makes its element another one for the rest of the run: few may do that. */
static void adamw_in_8_bits_has_the_codes_of_its_reference(void **state)
{
    (void)state;
    struct fixture f = adamw_run(OPTIM_STATE_INT8);
    const double moved = largest_difference(f.ref.p, f.ref.p8, N);
    const uint8_t *m = f.p.m, *v = f.p.v;
    const float *p = params_master(&f.p, 0);
    int codes = 0, weights = 0;
    for (int i = 0; i < N; i++) {
        codes += m[i] != (int)f.ref.m[i];
        codes += v[i] != (int)f.ref.v[i];
        weights += !(fabsf(p[i] - f.ref.p8[i]) < 1e-4 * moved);
    }
    if (codes > N / 50 || weights > N / 50) fail_msg("%d codes and %d weights differ", codes, weights);
    if (!(largest_difference(p, f.ref.adamw, N) < 1.5 * moved))
        fail_msg("far from AdamW with moments in fp32");
    fixture_close(&f);
}

static void muon_is_its_reference(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    params_add(&f.p, ROLE_MATRIX, 0, ROWS, COLS, "w");
    f.p.rows[0].gemm_overwrites_grad = true;
    params_split(&f.p, 0, SPLIT_NONE, parts, 3);
    fixture_layout(&f, OPTIM_MUON, OPTIM_STATE_FP32);
    assert_int_equal(f.p.total_v, 0);
    memcpy(params_master(&f.p, 0), f.ref.w, sizeof f.ref.w);
    for (int step = 0; step < STEPS; step++) {
        memcpy(params_grad(&f.p, 0), f.ref.gw[step], sizeof f.ref.gw[step]);
        take_step(&f, step);
    }
    const double moved = largest_difference(f.ref.w, f.ref.muon, MATRIX),
                 off = largest_difference(params_master(&f.p, 0), f.ref.muon, MATRIX);
    if (!(off < 1e-4 * moved)) fail_msg("%g of a movement of %g", off, moved);
    fixture_close(&f);
}

/* Two experts of two matrices each, stacked, and the same as four rows of the table. */
static void stacked_matrices_move_as_they_would_apart(void **state)
{
    (void)state;
    struct fixture f;
    float *stacked, *apart[4];
    fixture_open(&f);
    const int64_t two[] = {10, 20};
    params_add(&f.p, ROLE_MATRIX, 0, 60, COLS, "stacked");
    params_split(&f.p, 0, SPLIT_NONE, two, 2);
    for (int i = 0; i < 4; i++) params_add(&f.p, ROLE_RESIDUAL, 0, two[i % 2], COLS, "apart.%d", i);
    for (int i = 0; i < 5; i++) f.p.rows[i].gemm_overwrites_grad = true;
    assert_int_equal(params_matrix_count(&f.p.rows[0]), 4);
    fixture_layout(&f, OPTIM_MUON, OPTIM_STATE_FP32);
    stacked = params_master(&f.p, 0);
    for (int step = 0; step < 3; step++) {
        memcpy(params_grad(&f.p, 0), f.ref.gw[step], sizeof f.ref.gw[step]);
        for (int i = 0, at = 0; i < 4; at += (int)two[i++ % 2] * COLS)
            memcpy(params_grad(&f.p, i + 1), f.ref.gw[step] + at, (size_t)two[i % 2] * COLS * sizeof(float));
        take_step(&f, step);
    }
    for (int i = 0, at = 0; i < 4; at += (int)two[i++ % 2] * COLS) {
        apart[i] = params_master(&f.p, i + 1);
        assert_memory_equal(stacked + at, apart[i], (size_t)two[i % 2] * COLS * sizeof(float));
        assert_true(apart[i][0] != 0);
    }
    fixture_close(&f);
}

/* AdamW's parameters beside a matrix: updated as by AdamW alone with adam_rate times the rate; the norm is
 * that of all. */
static void what_is_no_matrix_goes_to_adamw(void **state)
{
    (void)state;
    struct fixture f[2];
    for (int kind = 0; kind < 2; kind++) {
        fixture_open(&f[kind]);
        params_add(&f[kind].p, ROLE_MATRIX, 0, ROWS, COLS, "matrix");
        params_add(&f[kind].p, ROLE_EMBED, 0, 20, 10, "embed");
        params_add(&f[kind].p, ROLE_MATRIX, 0, 20, 10, "router");
        params_add(&f[kind].p, ROLE_NORM, 1, 200, 0, "norm");
        for (int i = 0; i < 4; i++) f[kind].p.rows[i].gemm_overwrites_grad = true;
        f[kind].p.rows[2].rowwise = true;
        f[kind].spec.train_clip = 1;
        if (kind == 0) f[kind].spec.optim_lr *= 0.5;
        f[kind].spec.optim_adam_rate = 0.5;
        fixture_layout(&f[kind], kind == 0 ? OPTIM_ADAMW : OPTIM_MUON, OPTIM_STATE_FP32);
        for (int step = 0; step < 3; step++) {
            memcpy(params_grad(&f[kind].p, 0), f[kind].ref.gw[step], sizeof f[kind].ref.gw[step]);
            for (int i = 1; i < 4; i++)
                memcpy(params_grad(&f[kind].p, i), f[kind].ref.g[step], 200 * sizeof(float));
            take_step(&f[kind], step);
        }
    }
    assert_int_equal(f[1].p.total_v, f[0].p.total_v - 768); /* the matrix in whole blocks */
    assert_true(f[0].scalars.grad_norm == f[1].scalars.grad_norm);
    for (int i = 1; i < 4; i++)
        assert_memory_equal(params_master(&f[0].p, i), params_master(&f[1].p, i), 200 * sizeof(float));
    assert_memory_not_equal(params_master(&f[0].p, 0), params_master(&f[1].p, 0), sizeof f[0].ref.w);
    fixture_close(&f[0]);
    fixture_close(&f[1]);
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    params_add(&f.p, ROLE_MATRIX, 0, ROWS, COLS, "matrix");
    f.p.rows[0].gemm_overwrites_grad = true;
    fixture_layout(&f, OPTIM_MUON, OPTIM_STATE_INT8);
    memcpy(params_master(&f.p, 0), f.ref.w, sizeof f.ref.w);
    memcpy(params_grad(&f.p, 0), f.ref.gw[0], sizeof f.ref.gw[0]);
    ((float *)params_grad(&f.p, 0))[7] = INFINITY;
    take_step(&f, 0);
    assert_int_equal(optim_find_nonfinite_grad(&f.run, NULL), STATUS_NUMERIC);
    assert_memory_equal(params_master(&f.p, 0), f.ref.w, sizeof f.ref.w);
    assert_true(f.p.m_scale[0] == 0);
    fixture_close(&f);
}

/* Momentum in 8 bits: after ten steps a few percent off. */
static void muon_with_momentum_in_8_bits_is_near_its_reference(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    params_add(&f.p, ROLE_MATRIX, 0, ROWS, COLS, "w");
    f.p.rows[0].gemm_overwrites_grad = true;
    params_split(&f.p, 0, SPLIT_NONE, parts, 3);
    fixture_layout(&f, OPTIM_MUON, OPTIM_STATE_INT8);
    memcpy(params_master(&f.p, 0), f.ref.w, sizeof f.ref.w);
    for (int step = 0; step < STEPS; step++) {
        memcpy(params_grad(&f.p, 0), f.ref.gw[step], sizeof f.ref.gw[step]);
        take_step(&f, step);
    }
    const double moved = largest_difference(f.ref.w, f.ref.muon, MATRIX),
                 off = largest_difference(params_master(&f.p, 0), f.ref.muon, MATRIX);
    if (!(off < 0.05 * moved)) fail_msg("%g of a movement of %g", off, moved);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_is_torchs),
        cmocka_unit_test(adamw_in_8_bits_has_the_codes_of_its_reference),
        cmocka_unit_test(muon_is_its_reference),
        cmocka_unit_test(muon_with_momentum_in_8_bits_is_near_its_reference),
        cmocka_unit_test(stacked_matrices_move_as_they_would_apart),
        cmocka_unit_test(what_is_no_matrix_goes_to_adamw),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
