/* Every backward op against central differences of its forward, in f64 on the oracle.
 *
 * L = sum over the forward's outputs Y of <dY, Y>, with the dY that the backward reads. For each input X with
 * a gradient dX, and a random direction u: (L(X + h u) - L(X - h u)) / 2h must be <dX, u>. With h = 1e-5 the
 * difference formula is off by about h^2 = 1e-10 of the third derivative and by roundoff/h = 1e-11 of L, both
 * far below the bound; a wrong term is of order 1. */
#include "base/parallel.h"
#include "probe.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

static const struct {
    enum op_id bwd, fwd;
} pairs[] = {
    {OP_bias_bwd, OP_gemm},
    {OP_embed_bwd, OP_embed_fwd},
    {OP_rmsnorm_bwd, OP_rmsnorm_fwd},
    {OP_layernorm_bwd, OP_layernorm_fwd},
    {OP_rope_bwd, OP_rope_fwd},
    {OP_attn_bwd, OP_attn_fwd},
    {OP_ngram_gate_bwd, OP_ngram_gate_fwd},
    {OP_mla_rope_bwd, OP_mla_rope_fwd},
    {OP_swiglu_bwd, OP_swiglu_fwd},
    {OP_gelu_bwd, OP_gelu_fwd},
    {OP_gate_bwd, OP_gate_fwd},
    {OP_xent, OP_xent},
    {OP_conv_bwd, OP_conv_fwd},
    {OP_gates_bwd, OP_gates_fwd},
    {OP_delta_bwd, OP_delta_fwd},
    {OP_gated_norm_bwd, OP_gated_norm_fwd},
    {OP_route_bwd, OP_route_fwd},
    {OP_expert_act_bwd, OP_expert_act_fwd},
    {OP_combine_gate_bwd, OP_combine},
    {OP_ssm_in_bwd, OP_ssm_in_fwd},
    {OP_ssm_out_bwd, OP_ssm_out_fwd},
};
static const double STEP = 1e-5;

static struct probe_buf *gradient_of(struct probe *p, const char *name)
{
    char d[64];
    snprintf(d, sizeof d, "d%s", name);
    return probe_find(p, d);
}

/* L at X + step u, and the sum of the sizes of its terms: the scale of its roundoff. */
static double loss(const struct ops *o, const struct op_case *c, struct probe *bwd, const char *nudge,
                   double step, double *size)
{
    struct probe fwd = {.dt = DTYPE_F64, .zero_out = true, .nudge = nudge, .nudge_step = step};
    op_run(o, c, &fwd);
    double sum = 0;
    for (int i = 0; i < fwd.count; i++) {
        const struct probe_buf *y = &fwd.bufs[i],
                               *dy = y->kind == PROBE_OUT ? gradient_of(bwd, y->name) : NULL;
        if (!dy || dy->kind != PROBE_IN) continue;
        assert_int_equal(y->count, dy->count);
        for (int64_t j = 0; j < y->count; j++) {
            double term = ((double *)y->data)[j] * ((double *)dy->data)[j];
            sum += term;
            *size += fabs(term);
        }
    }
    probe_free(&fwd);
    return sum;
}

/* Returns how many gradients were checked. */
static int check_gradients(const struct ops *o, const struct op_case *c, enum op_id fwd_op)
{
    char text[256];
    struct op_case fwd_case = *c;
    fwd_case.op = fwd_op;
    struct probe bwd = {.dt = DTYPE_F64, .zero_out = true};
    op_run(o, c, &bwd);
    probe_guards(&bwd, case_text(c, DTYPE_F64, text));
    int checked = 0;
    for (int i = 0; i < bwd.count; i++) {
        const struct probe_buf *dx = &bwd.bufs[i];
        if (dx->kind != PROBE_OUT && dx->kind != PROBE_ACC) continue;
        if (dx->name[0] != 'd') continue;
        double along = 0, size = 0;
        for (int64_t j = 0; j < dx->count; j++)
            along += ((double *)dx->data)[j] * probe_direction(dx->name + 1, j);
        double up = loss(o, &fwd_case, &bwd, dx->name + 1, STEP, &size),
               down = loss(o, &fwd_case, &bwd, dx->name + 1, -STEP, &size);
        double differences = (up - down) / (2 * STEP);
        double bound = 1e-7 * (1 + fabs(along)) + 4 * tol_round(DTYPE_F64) * size / STEP;
        if (!(fabs(differences - along) <= bound))
            fail_msg("%s: %s along a direction is %.12g, differences give %.12g (allowed %.2g)", text,
                     dx->name, along, differences, bound);
        checked++;
    }
    probe_free(&bwd);
    return checked;
}

static void every_gradient_is_the_slope_of_its_forward(void **state)
{
    (void)state;
    struct ops o;
    ops_oracle(&o);
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        int checked = 0;
        for (int i = 0; i < OP_CASES; i++)
            if (op_cases[i].op == pairs[p].bwd) checked += check_gradients(&o, &op_cases[i], pairs[p].fwd);
        if (checked < 3) fail_msg("%s: only %d gradients were checked", op_name(pairs[p].bwd), checked);
    }
}

/* The test above begins with outputs of zero, where = and += are the same; here they begin as noise. */
static void parameter_gradients_are_added_and_activation_gradients_are_stored(void **state)
{
    (void)state;
    struct ops o;
    ops_oracle(&o);
    for (int c = 0; c < OP_CASES; c++) {
        struct op_case dense = op_cases[c];
        bool *adds = case_flag(&dense, "add_to"), *gaps = case_flag(&dense, "gaps");
        if (strstr(op_name(dense.op), "_bwd") == NULL && !(adds && *adds)) continue;
        if (dense.op == OP_gemm && dense.gemm.fp8) continue; /* its c is F32 at most */
        char text[256];
        case_text(&dense, DTYPE_F64, text);
        const bool rope = dense.op == OP_rope_bwd;
        if (gaps) *gaps = false; /* gaps keep their noise */
        if (rope) dense.rope.in_place = false;
        const int64_t v_width = rope ? dense.rope.heads_kv * dense.rope.head_dim : 0,
                      width =
                          rope ? (dense.rope.heads + dense.rope.heads_kv) * dense.rope.head_dim + v_width : 1;
        struct probe zero = {.dt = DTYPE_F64, .zero_out = true}, noise = {.dt = DTYPE_F64};
        op_run(&o, &dense, &zero);
        op_run(&o, &dense, &noise);
        for (int i = 0; i < zero.count; i++) {
            struct probe_buf *z = &zero.bufs[i], *n = &noise.bufs[i];
            if (z->kind != PROBE_ACC && z->kind != PROBE_OUT) continue;
            struct probe start = {.dt = DTYPE_F64};
            const double *before = probe_out(&start, z->name, z->kind, z->dt, z->count, 0), *zd = z->data,
                         *nd = n->data;
            for (int64_t j = 0; j < z->count; j++) {
                bool untouched = rope && strcmp(z->name, "din") == 0 && j % width >= width - v_width;
                double want = z->kind == PROBE_ACC || untouched ? zd[j] + before[j] : zd[j];
                if (!(fabs(nd[j] - want) <= 1e-12 * (1 + fabs(want))))
                    fail_msg("%s: %s[%lld] is %g, expected %g", text, z->name, (long long)j, nd[j], want);
            }
            probe_free(&start);
        }
        probe_free(&zero);
        probe_free(&noise);
    }
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gradient_is_the_slope_of_its_forward),
        cmocka_unit_test(parameter_gradients_are_added_and_activation_gradients_are_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
