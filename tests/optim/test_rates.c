/* Rates and decay by group: every element moves as AdamW in float64 moves it with the rate and the decay of its group,
 * as torch.optim.AdamW does with one param_group for each; clipped by the norm of all groups together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "optim/optim.h"
#include "optim/rates.h"

enum { ROWS = 7, STEPS = 5, MOST = 256 };
static const struct {
    const char *name;
    enum role role;
    int64_t out, in;
    double rate, decay; /* of the lists below */
} table[ROWS] = {
    {"embed.weight", ROLE_EMBED, 8, 6, 0.25, 0},
    {"layers.0.norm1.weight", ROLE_NORM, 6, 0, 3, 0.5},
    {"layers.0.attn.qkv.weight", ROLE_MATRIX, 9, 6, 2, 1},
    {"layers.0.attn.qkv.bias", ROLE_BIAS, 9, 0, 1, 0},
    {"layers.0.mlp.up.weight", ROLE_MATRIX, 12, 6, 0.5, 3},
    {"layers.1.mlp.up.weight", ROLE_MATRIX, 12, 6, 7, 3}, /* the later pattern counts */
    {"head.weight", ROLE_HEAD, 8, 6, 1, 1},
};
static const char lr_scale[] = "embedding:0.25, norms:3,mixers:2,ffn:0.5,layers.1.*:7",
                  decay_scale[] = "embedding:0,norms:0.5,ffn:3";

struct fixture {
    struct params p;
    struct arena param, grad, optim;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
    double w[ROWS][MOST], m[ROWS][MOST], v[ROWS][MOST], g[ROWS][MOST]; /* the reference */
};

static void fixture_open(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    struct arena *all[] = {&f->param, &f->grad, &f->optim};
    for (int i = 0; i < 3; i++) assert_int_equal(arena_reserve(all[i], "test", 65536), STATUS_OK);
    for (int i = 0; i < ROWS; i++)
        params_add(&f->p, table[i].role, 0, table[i].out, table[i].in, "%s", table[i].name);
    params_layout(&f->p, &(struct params_layout_args){.dt = DTYPE_F32,
                                                      .moment_dt = DTYPE_F32,
                                                      .with_grad = 1,
                                                      .moments = 2,
                                                      .arenas = {&f->param, &f->grad, &f->optim}});
    optim_layout(&f->p, &f->optim);
    assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    f->run = (struct exec){.ops = &f->ops, .params = &f->p, .scalars = &f->scalars};
    for (int i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < f->p.rows[i].count; k++)
            f->w[i][k] = ((float *)params_master(&f->p, i))[k] = (float)sin(1 + (double)(i * 97 + k));
}

static void fixture_close(struct fixture *f)
{
    params_free(&f->p);
    arena_free(&f->param);
    arena_free(&f->grad);
    arena_free(&f->optim);
}

static void put_gradients(struct fixture *f, int64_t step)
{
    for (int i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < f->p.rows[i].count; k++)
            f->g[i][k] = ((float *)params_grad(&f->p, i))[k] =
                (float)cos((double)(step * 31 + i * 7 + k) * 0.7);
}

/* One step of AdamW for each group, in float64, behind one clip factor. */
static void reference_step(struct fixture *f, const struct run_spec *r, double lr, int64_t step)
{
    double squares = 0;
    for (int i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < f->p.rows[i].count; k++) squares += f->g[i][k] * f->g[i][k];
    const double factor = fmin(1, r->train_clip / (sqrt(squares) + 1e-6)), b1 = r->optim_beta1,
                 b2 = r->optim_beta2, c1 = 1 - pow(b1, (double)step + 1), c2 = 1 - pow(b2, (double)step + 1);
    for (int i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < f->p.rows[i].count; k++) {
            const double g = f->g[i][k] * factor, rate = lr * table[i].rate,
                         decay = r->optim_weight_decay * table[i].decay;
            f->m[i][k] = b1 * f->m[i][k] + (1 - b1) * g;
            f->v[i][k] = b2 * f->v[i][k] + (1 - b2) * g * g;
            f->w[i][k] *= 1 - rate * decay;
            f->w[i][k] -= rate * (f->m[i][k] / c1) / (sqrt(f->v[i][k] / c2) + r->optim_eps);
        }
}

static void spec_of(struct run_spec *r)
{
    run_spec_default(r);
    r->optim_weight_decay = 0.3;
    snprintf(r->optim_lr_scale, sizeof r->optim_lr_scale, "%s", lr_scale);
    snprintf(r->optim_decay_scale, sizeof r->optim_decay_scale, "%s", decay_scale);
}

static void each_group_moves_as_a_torch_param_group(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f);
    spec_of(&r);
    assert_int_equal(optim_chunks(&f.p, &r, NULL, NULL), STATUS_OK);
    assert_true(f.p.run_count > 1);
    for (int64_t step = 0; step < STEPS; step++) {
        const double lr = 0.01 * (double)(step + 1);
        put_gradients(&f, step);
        f.scalars = (struct step_scalars){.lr = lr};
        optim_scalars(&r, step, &f.scalars);
        assert_int_equal(optim_step(&f.run, &r, &(struct grad_norm){0}, NULL, 0), STATUS_OK);
        reference_step(&f, &r, lr, step);
        assert_true(f.scalars.clip_factor < 1);
        for (int i = 0; i < ROWS; i++)
            for (int64_t k = 0; k < f.p.rows[i].count; k++) {
                const double got = ((float *)params_master(&f.p, i))[k], want = f.w[i][k];
                /* A step moves a weight by at most rate x lr < 0.35; each rounds a few times in fp32: 2^-24. */
                if (fabs(got - want) > (double)(step + 1) * 8 * ldexp(fmax(1, fabs(want)), -24))
                    fail_msg("step %d, %s[%d]: %.9g, expected %.9g", (int)step, table[i].name, (int)k, got,
                             want);
            }
    }
    fixture_close(&f);
}

/* Without the two keys nothing is cut: one call of the op, as ever. Equal factors are one run. */
static void runs_are_as_long_as_they_can_be(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f);
    run_spec_default(&r);
    assert_int_equal(optim_chunks(&f.p, &r, NULL, NULL), STATUS_OK);
    assert_int_equal(f.p.run_count, 0);
    snprintf(r.optim_lr_scale, sizeof r.optim_lr_scale, "*:2");
    assert_int_equal(optim_chunks(&f.p, &r, NULL, NULL), STATUS_OK);
    assert_int_equal(f.p.run_count, 1); /* what decays and what does not is told by the chunks' flags */
    snprintf(r.optim_lr_scale, sizeof r.optim_lr_scale, "embedding:2");
    assert_int_equal(optim_chunks(&f.p, &r, NULL, NULL), STATUS_OK);
    assert_int_equal(f.p.run_count, 2);
    fixture_close(&f);
}

static void names_of_nothing_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct run_spec r;
    fixture_open(&f);
    static const struct {
        const char *list, *message;
    } bad[] = {
        {"layers.7.*:2", "optim.lr_scale: 'layers.7.*' matches no weight; names are such as embed.weight and "
                         "head.weight"},
        {"mixer:2", "'mixer' is neither a group"},
        {"embedding", "'embedding' is no name with a factor"},
        {"embedding:0", "'embedding:0' has a factor outside of (0, 1000]"},
        {"embedding:x", "'embedding:x' has a factor outside of (0, 1000]"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        run_spec_default(&r);
        snprintf(r.optim_lr_scale, sizeof r.optim_lr_scale, "%s", bad[i].list);
        assert_int_equal(optim_chunks(&f.p, &r, NULL, NULL), STATUS_CONFIG);
        if (!strstr(status_message(), bad[i].message))
            fail_msg("'%s' does not say '%s'", status_message(), bad[i].message);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_group_moves_as_a_torch_param_group),
        cmocka_unit_test(runs_are_as_long_as_they_can_be),
        cmocka_unit_test(names_of_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
