/* The oracle's ops of mixtures of experts against what they mean: choices by hand, the order of slots, GEMMs by plain loops over
 * tokens. Gradients are checked by test_grad. */
#include "base/rng.h"
#include "ops/ops.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define RUN(op, ...) assert_int_equal(oracle.op(&(struct op##_args){__VA_ARGS__}, NULL), STATUS_OK)

static struct ops oracle; /* filled by main, read by the tests */

static void fill(double *x, int64_t count, uint64_t name)
{
    for (int64_t i = 0; i < count; i++) x[i] = rng_normal(11, RNG_TEST, name, (uint64_t)i);
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want)))) fail_msg("%.17g is not %.17g", got, want);
}

enum { N = 23, E = 6, K = 2, ALIGN = 4, SORTED = N * K + E * ALIGN };
struct routes {
    double logits[N * E], weight[N * K];
    int32_t expert[N * K], place[N * K], source[SORTED], offsets[E + 1], counts[E], demand[E];
};

static void route(struct routes *r, const double *bias, struct route_rule rule, int64_t rows,
                  int64_t capacity)
{
    rule.experts = E, rule.top_k = K;
    if (rule.groups == 0) rule.groups = rule.groups_kept = 1;
    if (rule.scale == 0) rule.scale = 1;
    RUN(route_fwd, .logits = r->logits, .bias = bias, .rule = rule, .rows = rows, .capacity = capacity,
        .align = ALIGN, .expert = r->expert, .weight = r->weight, .place = r->place, .source = r->source,
        .offsets = r->offsets, .counts = r->counts, .demand = r->demand, .dt = DTYPE_F64);
}

static void assert_chosen(const struct routes *r, int64_t t, int32_t first, int32_t second)
{
    assert_int_equal(r->expert[t * K], first);
    assert_int_equal(r->expert[t * K + 1], second);
}

static void the_best_experts_are_chosen_and_ties_go_to_the_lower_index(void **state)
{
    (void)state;
    static struct routes r;
    const double logits[] = {1,        3,   2,   3,        0,   1,   /**/ 0, 0,   0,
                             0,        0,   0,   /**/ NAN, 1,   NAN, 2,      NAN, NAN,
                             /**/ NAN, NAN, NAN, NAN,      NAN, NAN};
    memcpy(r.logits, logits, sizeof logits);
    route(&r, NULL, (struct route_rule){.score = ROUTE_SIGMOID, .normalize = true, .scale = 3}, 4, 0);
    assert_chosen(&r, 0, 1, 3);
    assert_chosen(&r, 1, 0, 1);
    assert_chosen(&r, 2, 3, 1);
    assert_chosen(&r, 3, 0, 1);
    assert_near(r.weight[0], 1.5);
    assert_near(r.weight[4], 3 / (1 + (1 + exp(-2)) / (1 + exp(-1))));
    route(&r, NULL, (struct route_rule){.score = ROUTE_SOFTMAX}, 1, 0);
    assert_near(r.weight[0], exp(3) / (2 * exp(3) + exp(2) + 2 * exp(1) + 1));
}

static void the_bias_moves_choices_but_not_weights(void **state)
{
    (void)state;
    static struct routes r;
    const double logits[] = {0, 1, 2, 3, 4, 5}, bias[] = {2, 0, 0, 0, 0, -0.5};
    memcpy(r.logits, logits, sizeof logits);
    route(&r, bias, (struct route_rule){.score = ROUTE_SIGMOID}, 1, 0);
    assert_chosen(&r, 0, 0, 4);
    assert_near(r.weight[0], 0.5);
    assert_near(r.weight[1], 1 / (1 + exp(-4)));
}

/* Groups (0, 1), (2, 3), (4, 5): the first holds the best expert, but the sums of the others are higher. */
static void groups_are_chosen_by_their_two_best(void **state)
{
    (void)state;
    static struct routes r;
    const double logits[] = {1.2, -9, 1, 0.9, 0.9, 1.1};
    memcpy(r.logits, logits, sizeof logits);
    route(&r, NULL, (struct route_rule){.score = ROUTE_SIGMOID, .groups = 3, .groups_kept = 1}, 1, 0);
    assert_chosen(&r, 0, 5, 4);
    route(&r, NULL, (struct route_rule){.score = ROUTE_SIGMOID, .groups = 3, .groups_kept = 2}, 1, 0);
    assert_chosen(&r, 0, 5, 2);
    route(&r, NULL, (struct route_rule){.score = ROUTE_SIGMOID, .groups = 3, .groups_kept = 3}, 1, 0);
    assert_chosen(&r, 0, 0, 5);
}

/* Each expert's rows are its first tokens in their order; what does not fit has no place; the rest is padding. */
static void slots_are_sorted_by_expert_and_token(void **state)
{
    (void)state;
    static struct routes r;
    for (int64_t capacity = 0; capacity <= 7; capacity += 7) {
        fill(r.logits, N * E, 1);
        for (int t = 0; t < N; t++) r.logits[t * E + 2] += 5, r.logits[t * E + 4] -= 20;
        memset(r.source, 0x55, sizeof r.source);
        route(&r, NULL, (struct route_rule){.score = ROUTE_SOFTMAX}, N, capacity);
        int64_t begin = 0;
        for (int32_t e = 0; e < E; e++) {
            int32_t demand = 0, placed = 0;
            assert_int_equal(r.offsets[e], begin);
            for (int i = 0; i < N * K; i++) {
                if (r.expert[i] != e) continue;
                const bool fits = capacity == 0 || demand < capacity;
                assert_int_equal(r.place[i], fits ? begin + placed : -1);
                if (fits) assert_int_equal(r.source[begin + placed++], i);
                demand++;
            }
            assert_int_equal(r.demand[e], demand);
            assert_int_equal(r.counts[e], placed);
            const int64_t end = begin + (placed + ALIGN - 1) / ALIGN * ALIGN;
            for (int64_t i = begin + placed; i < end; i++) assert_int_equal(r.source[i], -1);
            begin = end;
        }
        assert_int_equal(r.demand[2], N);
        assert_int_equal(r.demand[4], 0);
        assert_int_equal(r.offsets[E], begin);
        for (int64_t i = begin; i < moe_rows_max(N, K, E, ALIGN); i++) assert_int_equal(r.source[i], -1);
    }
}

/* y_t = sum of the slots' w B_e silu(gate) up by plain loops, compared with the three GEMMs in sequence. */
static void the_gemms_are_those_of_each_token_with_its_experts(void **state)
{
    (void)state;
    enum { D = 5, F = 3 };
    static struct routes r;
    static double x[N * D], up_w[E * 2 * F * D], down_w[E * D * F], up[SORTED * 2 * F], m[SORTED * F],
        yp[SORTED * D], y[N * D];
    fill(r.logits, N * E, 2), fill(x, N * D, 3), fill(up_w, E * 2 * F * D, 4), fill(down_w, E * D * F, 5);
    route(&r, NULL, (struct route_rule){.score = ROUTE_SOFTMAX, .normalize = true}, N, 0);
#define GEMM(n_, k_, ...)                                                                                    \
    RUN(expert_gemm, __VA_ARGS__, .source = r.source, .offsets = r.offsets, .counts = r.counts, .rows = N,   \
        .top_k = K, .experts = E, .n = n_, .k = k_, .align = ALIGN, .dt = DTYPE_F64)
    GEMM(2 * F, D, .pass = EXPERT_FWD, .gather = EXPERT_GATHER_A, .a = operand_at(x, DTYPE_F64, false),
         .b = operand_at(up_w, DTYPE_F64, false), .c = up);
    RUN(expert_act_fwd, .up = up, .m = m, .weight = r.weight, .source = r.source, .offsets = r.offsets,
        .rows = N, .top_k = K, .experts = E, .f = F, .align = ALIGN, .dt = DTYPE_F64);
    GEMM(D, F, .pass = EXPERT_FWD, .a = operand_at(m, DTYPE_F64, false),
         .b = operand_at(down_w, DTYPE_F64, false), .c = yp);
    RUN(combine, .x = yp, .place = r.place, .y = y, .rows = N, .top_k = K, .d = D, .dt = DTYPE_F64,
        .base_dt = DTYPE_F64);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < D; i++) {
            double want = 0;
            for (int j = 0; j < K; j++)
                for (int f = 0; f < F; f++) {
                    const int e = r.expert[t * K + j];
                    double gate = 0, value = 0;
                    for (int k = 0; k < D; k++) {
                        gate += x[t * D + k] * up_w[(e * 2 * F + f) * D + k];
                        value += x[t * D + k] * up_w[(e * 2 * F + F + f) * D + k];
                    }
                    want +=
                        r.weight[t * K + j] * gate / (1 + exp(-gate)) * value * down_w[(e * D + i) * F + f];
                }
            assert_near(y[t * D + i], want);
        }
    /* <c, A B> = <c B^T, A> = <c^T A, B>: the other two GEMMs are this one's transposes. */
    static double c[SORTED * 2 * F], da[SORTED * D], db[E * 2 * F * D];
    fill(c, SORTED * 2 * F, 6);
    double forward = 0, to_a = 0, to_b = 0;
    GEMM(2 * F, D, .pass = EXPERT_DGRAD, .a = operand_at(c, DTYPE_F64, false),
         .b = operand_at(up_w, DTYPE_F64, false), .c = da);
    GEMM(2 * F, D, .pass = EXPERT_WGRAD, .gather = EXPERT_GATHER_B, .a = operand_at(c, DTYPE_F64, false),
         .b = operand_at(x, DTYPE_F64, false), .c = db);
    for (int s = 0; s < r.offsets[E]; s++) {
        for (int i = 0; i < 2 * F && r.source[s] >= 0; i++) forward += c[s * 2 * F + i] * up[s * 2 * F + i];
        for (int i = 0; i < D && r.source[s] >= 0; i++) to_a += da[s * D + i] * x[r.source[s] / K * D + i];
        for (int i = 0; i < D && r.source[s] < 0; i++) assert_true(da[s * D + i] == 0 && yp[s * D + i] == 0);
    }
    for (int i = 0; i < E * 2 * F * D; i++) to_b += db[i] * up_w[i];
    assert_near(to_a, forward);
    assert_near(to_b, forward);
    /* WGRAD with either operand gathered and with none: the same numbers. */
    static double cx[N * 2 * F], sorted_c[SORTED * 2 * F], sorted_x[SORTED * D], other[E * 2 * F * D];
    fill(cx, N * 2 * F, 7);
    for (int s = 0; s < r.offsets[E]; s++) {
        for (int i = 0; i < 2 * F && r.source[s] >= 0; i++)
            sorted_c[s * 2 * F + i] = cx[r.source[s] / K * 2 * F + i];
        for (int i = 0; i < D && r.source[s] >= 0; i++) sorted_x[s * D + i] = x[r.source[s] / K * D + i];
    }
    GEMM(2 * F, D, .pass = EXPERT_WGRAD, .a = operand_at(sorted_c, DTYPE_F64, false),
         .b = operand_at(sorted_x, DTYPE_F64, false), .c = db);
    GEMM(2 * F, D, .pass = EXPERT_WGRAD, .gather = EXPERT_GATHER_A, .a = operand_at(cx, DTYPE_F64, false),
         .b = operand_at(sorted_x, DTYPE_F64, false), .c = other);
    assert_memory_equal(db, other, sizeof db);
    GEMM(2 * F, D, .pass = EXPERT_WGRAD, .gather = EXPERT_GATHER_B,
         .a = operand_at(sorted_c, DTYPE_F64, false), .b = operand_at(x, DTYPE_F64, false), .c = other);
    assert_memory_equal(db, other, sizeof db);
#undef GEMM
}

/* Values of codes, which the plain ops read. */
static void decoded(double *to, const uint8_t *codes, int64_t count, dtype dt, double scale_inv)
{
    for (int64_t i = 0; i < count; i++) to[i] = dtype_load(codes, i, dt) * scale_inv;
}

/* The three GEMMs of codes are those of the decoded values: products are exact, and scales powers of two. */
static void gemms_of_codes_are_those_of_their_values(void **state)
{
    (void)state;
    enum { D = 32, F2 = 48, LD = (SORTED + 15) / 16 * 16 };
    static struct routes r;
    static double x[N * D], w[E * F2 * D], g[SORTED * F2], got[SORTED * F2 + E * F2 * D],
        want[SORTED * F2 + E * F2 * D];
    static uint8_t cx[N * D], cx_t[D * LD], cw[E * F2 * D], cw_t[E * F2 * D], cg[SORTED * F2], cg_t[F2 * LD];
    static const float up = 8, up_inv = 0.125f, down = 64, down_inv = 1.0f / 64;
    float amax = 0;
    fill(r.logits, N * E, 8), fill(x, N * D, 9), fill(w, E * F2 * D, 10), fill(g, SORTED * F2, 11);
    route(&r, NULL, (struct route_rule){.score = ROUTE_SOFTMAX}, N, 5);
    for (int i = 0; i < SORTED * F2; i++)
        if (i / F2 >= r.offsets[E] || r.source[i / F2] < 0) g[i] = 0;
#define FORM(codes_, trans_, scale_, dt_)                                                                    \
    {.codes = codes_, .codes_t = trans_, .scale = &scale_, .scale_inv = &scale_##_inv, .dt = dt_}
#define SLOTS                                                                                                \
    .source = r.source, .offsets = r.offsets, .rows = N, .top_k = K, .experts = E, .align = ALIGN, .ld = LD
    RUN(quantize, .x = x, .q = FORM(cx, NULL, up, DTYPE_F8_E4M3), .rows = N, .n = D, .dt = DTYPE_F64);
    RUN(quantize, .x = w, .q = FORM(cw, cw_t, up, DTYPE_F8_E4M3), .rows = E * F2, .n = D, .dt = DTYPE_F64);
    RUN(expert_codes, .x = g, .q = FORM(cg, cg_t, down, DTYPE_F8_E5M2), SLOTS, .n = F2, .dt = DTYPE_F64);
    RUN(expert_codes, .x = g, .q = {.amax = &amax, .dt = DTYPE_F8_E5M2}, SLOTS, .n = F2, .dt = DTYPE_F64);
    RUN(expert_codes, .x = cx, .q = FORM(NULL, cx_t, up, DTYPE_F8_E4M3), SLOTS, .n = D, .gather = true,
        .dt = DTYPE_F64);
    double most = 0;
    for (int i = 0; i < SORTED * F2; i++) most = fmax(most, fabs(g[i]));
    assert_true(amax == (float)most);
    decoded(x, cx, N * D, DTYPE_F8_E4M3, (double)up_inv);
    decoded(w, cw, E * F2 * D, DTYPE_F8_E4M3, (double)up_inv);
    decoded(g, cg, r.offsets[E] * F2, DTYPE_F8_E5M2, (double)down_inv);
#define GEMM(to, ...)                                                                                        \
    RUN(expert_gemm, __VA_ARGS__, SLOTS, .counts = r.counts, .n = F2, .k = D, .c = to, .dt = DTYPE_F64)
#define PLAIN(x_) operand_at(x_, DTYPE_F64, false)
    const struct operand a = operand_codes(cx, DTYPE_F8_E4M3, &up_inv, false),
                         b = operand_codes(cw, DTYPE_F8_E4M3, &up_inv, true),
                         b_t = operand_codes(cw_t, DTYPE_F8_E4M3, &up_inv, true),
                         dy = operand_codes(cg, DTYPE_F8_E5M2, &down_inv, false),
                         dy_t = operand_codes(cg_t, DTYPE_F8_E5M2, &down_inv, true),
                         a_t = operand_codes(cx_t, DTYPE_F8_E4M3, &up_inv, true);
    GEMM(got, .pass = EXPERT_FWD, .gather = EXPERT_GATHER_A, .a = a, .b = b);
    GEMM(want, .pass = EXPERT_FWD, .gather = EXPERT_GATHER_A, .a = PLAIN(x), .b = PLAIN(w));
    assert_memory_equal(got, want, (size_t)(r.offsets[E] * F2) * sizeof *got);
    GEMM(got, .pass = EXPERT_DGRAD, .a = dy, .b = b_t);
    GEMM(want, .pass = EXPERT_DGRAD, .a = PLAIN(g), .b = PLAIN(w));
    assert_memory_equal(got, want, (size_t)(r.offsets[E] * D) * sizeof *got);
    for (int add = 0; add < 2; add++) { /* what is there is added to */
        GEMM(got, .pass = EXPERT_WGRAD, .a = dy_t, .b = a_t, .accum = add ? ACCUM_ADD : ACCUM_STORE);
        GEMM(want, .pass = EXPERT_WGRAD, .gather = EXPERT_GATHER_B, .a = PLAIN(g), .b = PLAIN(x),
             .accum = add ? ACCUM_ADD : ACCUM_STORE);
        for (int i = 0; i < E * F2 * D; i++) assert_near(got[i], want[i]);
    }
    assert_true(want[0] != 0);
#undef PLAIN
#undef GEMM
#undef SLOTS
#undef FORM
}

/* All logits equal: every share is 1, and so is the auxiliary loss of a token, whatever was chosen. */
static void an_even_router_costs_the_coefficient(void **state)
{
    (void)state;
    static struct routes r;
    static double dweight[N * K], dlogits[N * E], cost[N];
    const double grad_scale = 1;
    const int32_t cu[] = {0, 4, 4, N};
    for (int kind = ROUTE_AUX_SWITCH; kind <= ROUTE_AUX_SEQUENCE; kind++) {
        memset(r.logits, 0, sizeof r.logits);
        route(&r, NULL, (struct route_rule){.score = ROUTE_SIGMOID, .normalize = true}, N, 0);
        RUN(route_bwd, .dweight = dweight, .logits = r.logits, .expert = r.expert, .place = r.place,
            .demand = r.demand,
            .rule = {.score = ROUTE_SIGMOID,
                     .experts = E,
                     .top_k = K,
                     .groups = 1,
                     .groups_kept = 1,
                     .normalize = true,
                     .scale = 1},
            .rows = N, .aux_kind = (enum route_aux)kind, .aux = 0.25, .z = 2, .grad_scale = &grad_scale,
            .cu_seqlens = cu, .docs = 3, .dlogits = dlogits, .cost = cost, .dt = DTYPE_F64);
        for (int t = 0; t < N; t++) assert_near(cost[t], 0.25 + 2 * log(E) * log(E));
        for (int t = 0; t < N; t++) /* experts 0 and 1 are the crowded ones */
            assert_true(dlogits[t * E] > dlogits[t * E + 2]);
    }
}

static void balancing_raises_the_idle_and_lowers_the_busy(void **state)
{
    (void)state;
    const struct update_chunk rows[] = {{.begin = 0, .count = 4}, {.begin = 16, .count = 2}};
    float bias[18] = {0, 0, 1, 0}, load[18] = {[0] = 8, [1] = 2, [2] = 4, [3] = 2};
    struct step_scalars s = {.grad_norm = 1};
    RUN(balance, .bias = bias, .load = load, .rows = rows, .row_count = 2, .rate = 0.5, .scalars = &s);
    assert_true(bias[0] == -0.5f && bias[1] == 0.5f && bias[2] == 1 && bias[3] == 0.5f && bias[16] == 0);
    assert_true(s.load_max == 2 && s.load_min == 0.5 && load[0] == 0);
    load[0] = 3, s.grad_norm = NAN;
    RUN(balance, .bias = bias, .load = load, .rows = rows, .row_count = 2, .rate = 0.5, .scalars = &s);
    assert_true(bias[0] == -0.5f && load[0] == 3);
}

int main(void)
{
    ops_oracle(&oracle);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_experts_are_chosen_and_ties_go_to_the_lower_index),
        cmocka_unit_test(the_bias_moves_choices_but_not_weights),
        cmocka_unit_test(groups_are_chosen_by_their_two_best),
        cmocka_unit_test(slots_are_sorted_by_expert_and_token),
        cmocka_unit_test(the_gemms_are_those_of_each_token_with_its_experts),
        cmocka_unit_test(gemms_of_codes_are_those_of_their_values),
        cmocka_unit_test(an_even_router_costs_the_coefficient),
        cmocka_unit_test(balancing_raises_the_idle_and_lowers_the_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
