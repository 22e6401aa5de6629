/* Schedules at their corners, decay by role, the clip factor, and the name of a parameter whose gradient is not finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "optim/optim.h"
#include "optim/lr_schedule.h"
#include "spec/keys.h"

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want) + 1e-15)) fail_msg("%.15g, expected %.15g", got, want);
}

/* What each schedule is behind its warmup; a new word stops the compiler here. */
static void check_corners(const struct run_spec *r)
{
    switch ((enum schedule)r->optim_schedule) {
    case SCHEDULE_COSINE:
    case SCHEDULE_LINEAR:
        near(schedule_lr(r, 60, 110), 2 * 0.55);
        near(schedule_lr(r, 110, 110), 0.2);
        break;
    case SCHEDULE_WSD:
        near(schedule_lr(r, 88, 110), 2);
        near(schedule_lr(r, 99, 110), 2 * 0.55);
        near(schedule_lr(r, 110, 110), 0.2);
        break;
    case SCHEDULE_CONSTANT: near(schedule_lr(r, 109, 110), 2); break;
    }
}

static void schedules_reach_their_corners(void **state)
{
    (void)state;
    struct run_spec r;
    run_spec_default(&r);
    r.optim_lr = 2, r.optim_warmup_steps = 10, r.optim_min_ratio = 0.1, r.optim_decay_fraction = 0.2;
    const int words = key_row(KEY_AT_optim_schedule)->word_count;
    assert_true(words >= 4);
    for (int kind = 0; kind < words; kind++) {
        r.optim_schedule = kind;
        near(schedule_lr(&r, 0, 110), 0.2); /* the first step already moves */
        near(schedule_lr(&r, 9, 110), 2);
        near(schedule_lr(&r, 10, 110), 2);
        check_corners(&r);
    }
}

struct fixture {
    struct params p;
    struct arena param, grad, optim;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
};

static void fixture_open(struct fixture *f, dtype moment_dt)
{
    memset(f, 0, sizeof *f);
    struct arena *all[] = {&f->param, &f->grad, &f->optim};
    for (int i = 0; i < 3; i++) assert_int_equal(arena_reserve(all[i], "test", 65536), STATUS_OK);
    params_add(&f->p, ROLE_EMBED, 0, 4, 4, "embed");
    params_add(&f->p, ROLE_MATRIX, 0, 3, 5, "matrix");
    params_add(&f->p, ROLE_NORM, 1, 5, 0, "norm");
    params_add(&f->p, ROLE_BIAS, 0, 3, 0, "bias");
    params_add(&f->p, ROLE_BALANCE, 0, 3, 0, "router");
    f->p.rows[1].gemm_overwrites_grad = true;
    params_layout(&f->p, &(struct params_layout_args){.dt = DTYPE_F32,
                                                      .moment_dt = moment_dt,
                                                      .with_grad = 1,
                                                      .moments = 2,
                                                      .arenas = {&f->param, &f->grad, &f->optim}});
    optim_layout(&f->p, &f->optim);
    assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    f->run = (struct exec){.ops = &f->ops, .params = &f->p, .scalars = &f->scalars};
    for (int i = 0; i < f->p.count; i++)
        for (int64_t k = 0; k < f->p.rows[i].count; k++) ((float *)params_master(&f->p, i))[k] = 1;
}

static void fixture_close(struct fixture *f)
{
    params_free(&f->p);
    arena_free(&f->param);
    arena_free(&f->grad);
    arena_free(&f->optim);
}

static void take_step(struct fixture *f, const struct run_spec *r, int64_t step)
{
    assert_int_equal(optim_chunks(&f->p, r, NULL, NULL), STATUS_OK);
    f->scalars = (struct step_scalars){.lr = 0.1};
    optim_scalars(r, step, &f->scalars);
    assert_int_equal(optim_step(&f->run, r, &(struct grad_norm){0}, NULL, 0), STATUS_OK);
}

static void only_matrices_and_tables_decay(void **state)
{
    (void)state;
    for (int decay_tables = 0; decay_tables < 2; decay_tables++) {
        struct fixture f;
        struct run_spec r;
        fixture_open(&f, DTYPE_F32);
        run_spec_default(&r);
        r.optim_weight_decay = 0.5;
        r.optim_decay_embeddings = decay_tables;
        take_step(&f, &r, 0); /* zero gradients: decay alone */
        const float kept = 1, decayed = 0.95f;
        assert_true(fabsf(*(float *)params_master(&f.p, 0) - (decay_tables ? decayed : kept)) < 1e-6f);
        assert_true(fabsf(*(float *)params_master(&f.p, 1) - decayed) < 1e-6f);
        assert_true(*(float *)params_master(&f.p, 2) == kept);
        assert_true(*(float *)params_master(&f.p, 3) == kept);
        fixture_close(&f);
    }
}

static void clipping_scales_all_gradients_by_one_factor(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f, DTYPE_F32);
    run_spec_default(&r);
    r.train_clip = 1;
    float *stored = params_grad(&f.p, 1), *added = params_grad(&f.p, 0);
    stored[0] = 30, added[4] = -40; /* norm 50 */
    take_step(&f, &r, 0);
    near(f.scalars.grad_norm, 50);
    assert_true(fabs(f.scalars.grad_norm * f.scalars.clip_factor - 1) < 1e-6);
    assert_true(fabs((double)((float *)f.p.m + f.p.rows[1].offset)[0] - 0.1 * 30 / 50) < 1e-6);
    assert_true(added[4] == 0);   /* zeroed for the next step */
    assert_true(stored[0] == 30); /* which stores this one anew */
    fixture_close(&f);
}

/* Its "gradient" counts slots: no part of the norm, no moments, no decay; zero afterwards. */
static void a_routers_bias_moves_by_the_loads_alone(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f, DTYPE_F32);
    run_spec_default(&r);
    float *load = params_grad(&f.p, 4), *bias = params_master(&f.p, 4);
    load[0] = 900, load[1] = 100, load[2] = 500;
    ((float *)params_grad(&f.p, 1))[0] = 3;
    assert_int_equal(optim_chunks(&f.p, &r, NULL, NULL), STATUS_OK);
    f.scalars = (struct step_scalars){.lr = 0.1};
    optim_scalars(&r, 0, &f.scalars);
    assert_int_equal(optim_step(&f.run, &r, &(struct grad_norm){0}, NULL, 0.25), STATUS_OK);
    near(f.scalars.grad_norm, 3);
    assert_true(bias[0] == 0.75f && bias[1] == 1.25f && bias[2] == 1);
    assert_true(load[0] == 0 && load[1] == 0 && load[2] == 0);
    assert_true(((float *)f.p.m + f.p.rows[4].offset)[0] == 0);
    near(f.scalars.load_max, 1.8);
    near(f.scalars.load_min, 0.2);
    assert_int_equal(f.p.param_count, 16 + 15 + 5 + 3);
    fixture_close(&f);
}

static void a_gradient_that_is_not_finite_names_its_parameter(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f, DTYPE_F32);
    run_spec_default(&r);
    ((float *)params_grad(&f.p, 2))[3] = NAN;
    ((float *)params_grad(&f.p, 0))[0] = 1;
    take_step(&f, &r, 0);
    assert_false(isfinite(f.scalars.grad_norm));
    assert_int_equal(optim_find_nonfinite_grad(&f.run, NULL), STATUS_NUMERIC);
    assert_non_null(strstr(status_message(), "norm"));
    assert_true(*(float *)params_master(&f.p, 1) == 1.0f); /* nothing was updated */
    assert_true(*(float *)f.p.m == 0 && *(float *)params_grad(&f.p, 0) == 1);
    assert_true(f.scalars.clip_factor == 0);
    fixture_close(&f);
}

/* A gradient of 1 moves a moment of 0.95 to 0.95 + 0.05 (1 - 0.95), less than half a place of bf16: rounding to nearest would stay
 * for ever, and stochastic rounding comes to 1 in the mean. */
static void moments_in_bf16_move_by_less_than_their_last_place(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f, DTYPE_BF16);
    run_spec_default(&r);
    r.train_clip = 0, r.optim_beta1 = r.optim_beta2 = 0.95;
    const int64_t count = f.p.rows[1].count;
    bf16 *m = (bf16 *)f.p.m + f.p.rows[1].offset;
    float *g = params_grad(&f.p, 1);
    for (int64_t i = 0; i < count; i++) g[i] = 1, m[i] = bf16_from_f32(0.953125f);
    double sum = 0;
    for (int at = 0; at < 200; at++) {
        take_step(&f, &r, at);
        for (int64_t i = 0; i < count && at >= 100; i++) sum += (double)bf16_to_f32(m[i]);
    }
    if (!(fabs(sum / 100 / (double)count - 1) < 1e-3)) fail_msg("mean %g", sum / 100 / (double)count);
    fixture_close(&f);
}

/* The same for a weight of 1 without a master: each of 512 steps subtracts 2^-15 of it, while bf16 resolves
 * 2^-8. */
static void weights_without_masters_move_by_less_than_their_last_place(void **state)
{
    (void)state;
    enum { COUNT = 4096, STEPS = 512 };
    struct ops ops;
    assert_int_equal(ops_cpu(&ops, NULL), STATUS_OK);
    const struct update_chunk chunk = {.count = COUNT};
    struct step_scalars scalars = {.lr = 0x1p-15};
    static float g[COUNT], m[COUNT];
    static bf16 w[COUNT];
    double mean = 0, spread = 0;
    for (int i = 0; i < COUNT; i++) g[i] = 1, w[i] = bf16_from_f32(1);
    for (int step = 0; step < STEPS; step++) {
        scalars.step = (uint64_t)step;
        const struct update_args a = {.rule = UPDATE_LION,
                                      .g = g,
                                      .m = m,
                                      .w = w,
                                      .chunks = &chunk,
                                      .chunk_count = 1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .scalars = &scalars,
                                      .seed = 5,
                                      .moment_dt = DTYPE_F32};
        assert_int_equal(ops.update(&a, NULL), STATUS_OK);
    }
    for (int i = 0; i < COUNT; i++) mean += (double)bf16_to_f32(w[i]) / COUNT;
    for (int i = 0; i < COUNT; i++) spread += pow((double)bf16_to_f32(w[i]) - mean, 2) / COUNT;
    /* 4 places down, each a chance of 1 in 128 a step (below 1 places are 2^-8 apart): variance 4 x 127 / 128 places^2; five deviations of the mean */
    const double place = 0x1p-8, wanted = 1 - STEPS * 0x1p-15, deviation = 2 * place;
    if (!(fabs(mean - wanted) < 5 * deviation / sqrt(COUNT))) fail_msg("mean %g", mean);
    if (!(fabs(sqrt(spread) / deviation - 1) < 0.1)) fail_msg("deviation %g", sqrt(spread));
}

/* Two rows of 64 share a block of moments in 8 bits; the second has no gradient any more. Its moments must die out in the mean, though
 * each step of 5 % is far below the distance of its codes; rounded to nearest they would stay for ever, and so would its steps. */
static void moments_in_8_bits_die_out_beside_lively_ones(void **state)
{
    (void)state;
    enum { COUNT = 128, HALF = 64 };
    struct ops ops;
    assert_int_equal(ops_cpu(&ops, NULL), STATUS_OK);
    const struct update_chunk chunk = {.count = COUNT};
    struct step_scalars scalars = {.lr = 1e-3, .correction1 = 1, .correction2 = 1};
    float p[COUNT], g[COUNT], m_scale = 0, v_scale = 0, moved = 0;
    uint8_t m[COUNT] = {0}, v[COUNT] = {0};
    for (int step = 0; step < 400; step++) {
        for (int i = 0; i < COUNT; i++) g[i] = i < HALF ? 1 : step < 100 ? 0.15f : 0;
        if (step == 200) memset(p, 0, sizeof p);
        scalars.step = (uint64_t)step;
        assert_int_equal(ops.update(&(struct update_args){.rule = UPDATE_ADAMW,
                                                          .p = p,
                                                          .g = g,
                                                          .m = m,
                                                          .v = v,
                                                          .m_scale = &m_scale,
                                                          .v_scale = &v_scale,
                                                          .chunks = &chunk,
                                                          .chunk_count = 1,
                                                          .beta1 = 0.95,
                                                          .beta2 = 0.95,
                                                          .eps = 1e-8,
                                                          .scalars = &scalars,
                                                          .seed = 5,
                                                          .moment_dt = DTYPE_U8},
                                    NULL),
                         STATUS_OK);
    }
    for (int i = HALF; i < COUNT; i++) moved += fabsf(p[i]) / HALF;
    assert_true(fabsf(m_scale - 1) < 0.02f && fabsf(p[0] + 0.2f) < 0.05f);
    /* 1e-3 a step with a gradient, 0.077 of it a hundred steps of sqrt(0.95) later: 3e-3 in all; and 0.2 if they did not die out */
    if (!(moved < 1e-2f)) fail_msg("moved by %g", (double)moved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_reach_their_corners),
        cmocka_unit_test(only_matrices_and_tables_decay),
        cmocka_unit_test(clipping_scales_all_gradients_by_one_factor),
        cmocka_unit_test(a_routers_bias_moves_by_the_loads_alone),
        cmocka_unit_test(a_gradient_that_is_not_finite_names_its_parameter),
        cmocka_unit_test(moments_in_bf16_move_by_less_than_their_last_place),
        cmocka_unit_test(weights_without_masters_move_by_less_than_their_last_place),
        cmocka_unit_test(moments_in_8_bits_die_out_beside_lively_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
