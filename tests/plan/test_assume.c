/* What a plan takes for granted: names, ranges, and what each assumption changes. */
#include "plan/mesh_fixture.h"

#include "plan/assume.h"

static void names_and_ranges_are_checked(void **state)
{
    (void)state;
    struct assume a = assume_default();
    char text[ASSUME_TEXT];
    assert_string_equal(assume_text(text, &a), "");
    assert_int_equal(assume_read("network=0.5,imbalance=1.25", &a), STATUS_OK);
    assert_true(a.network == 0.5 && a.imbalance == 1.25 && a.compute == 1);
    assert_string_equal(assume_text(text, &a), "imbalance=1.25,network=0.5");
    struct assume again = assume_default();
    assert_int_equal(assume_read(text, &again), STATUS_OK);
    assert_memory_equal(&a, &again, sizeof a);
    const char *bad[] = {"",           "imbalanced=2", "imbalance",
                         "imbalance=", "imbalance=x",  "imbalance=0.5",
                         "network=0",  "network=1,",   "overlap_tp=nan"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (assume_read(bad[i], &a) != STATUS_CONFIG) fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(assume_read("imbalanced=2", &a), STATUS_CONFIG);
    assert_non_null(
        strstr(status_message(), "the names are compute, attention, memory_ops, fp8_rate, imbalance"));
    assert_int_equal(assume_read("imbalance=0.5", &a), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "write imbalance=NUMBER, from 1 to 512"));
}

static struct mesh_result with(const struct spec *s, const char *machine, const struct mesh_variant *v,
                               const char *assumed)
{
    struct assume a = assume_default();
    struct cluster c;
    struct mesh_plan *p;
    struct mesh_result r;
    assert_int_equal(assumed ? assume_read(assumed, &a) : STATUS_OK, STATUS_OK);
    assert_int_equal(cluster_parse(machine, &c), STATUS_OK);
    c.assume = &a;
    assert_int_equal(mesh_plan_open(&p, s, &c), STATUS_OK);
    assert_int_equal(mesh_plan_one(p, v, &r), STATUS_OK);
    mesh_plan_close(p);
    return r;
}

/* Each assumption changes its part of the step by its factor, and the machine's row stays as it is. */
static void each_changes_its_part(void **state)
{
    (void)state;
    const struct spec s = spec_of("7b", 4096, 64);
    struct mesh_variant v = variant(8, 2, 1, 1);
    const struct mesh_result plain = with(&s, "16xh100", &v, NULL);
    struct mesh_result r = with(&s, "16xh100", &v, "compute=0.5");
    near(r.compute.gemms, 2 * plain.compute.gemms, 1e-9);
    near(r.compute.mixing, 2 * plain.compute.mixing, 1e-9);
    near(r.compute.memory, plain.compute.memory, 1e-9);
    r = with(&s, "16xh100", &v, "attention=0.5");
    near(r.compute.mixing, 2 * plain.compute.mixing, 1e-9);
    near(r.compute.gemms, plain.compute.gemms, 1e-9);
    r = with(&s, "16xh100", &v, "memory_ops=2");
    assert_true(r.compute.memory > 1.5 * plain.compute.memory &&
                r.compute.memory < 2.001 * plain.compute.memory);
    r = with(&s, "16xh100", &v, "overlap_tp=0");
    near(r.tp.exposed, r.tp.seconds, 1e-9);
    assert_true(plain.tp.exposed < 0.9 * r.tp.exposed);
    r = with(&s, "16xh100", &v, "overlap_dp=0");
    near(r.dp.exposed, r.dp.seconds, 1e-9);
    assert_true(plain.dp.exposed < 0.9 * r.dp.exposed);
    r = with(&s, "16xh100", &v, "grad_bytes=2");
    near(r.dp.bytes, plain.dp.bytes * 4 / 6, 1e-3);
    v = variant(16, 1, 1, 1);
    const struct mesh_result far = with(&s, "16xh100", &v, NULL);
    r = with(&s, "16xh100", &v, "network=0.5");
    assert_true(r.dp.seconds > 1.8 * far.dp.seconds && r.dp.seconds < 2.001 * far.dp.seconds);
    assert_true(with(&s, "16xh100", &v, NULL).step == far.step);
}

/* A mixture's experts see few rows each, which costs rate; and all wait for the fullest. */
static void experts_wait_for_the_fullest(void **state)
{
    (void)state;
    struct spec s = spec_of("engram-moe-medium", 2048, 8);
    const struct mesh_variant v = variant(8, 1, 1, 1);
    const struct mesh_result even = with(&s, "8xh100", &v, NULL),
                             full = with(&s, "8xh100", &v, "imbalance=2");
    assert_true(full.compute.gemms > 1.2 * even.compute.gemms && full.compute.gemms < 2 * even.compute.gemms);
    s.model.moe_experts *= 4; /* a quarter of the rows for each: the same FLOPs, but for the router's */
    const struct mesh_result many = with(&s, "8xh100", &v, NULL);
    assert_true(many.compute.gemms > 1.3 * even.compute.gemms);
}

/* Ampere has its own shares: more of its smaller peak, and FlashAttention 2. TFLOP/s. */
static void an_a100_has_its_own_rates(void **state)
{
    (void)state;
    struct cluster c;
    assert_int_equal(cluster_parse("a100", &c), STATUS_OK);
    const double tera = 1e12, wide = machine_gemm_rate(c.machine, PRECISION_BF16, 4096) / tera;
    assert_true(wide > 245 && wide < 271);
    near(machine_attention_rate(c.machine, PRECISION_BF16, 128, 16384, false) / tera, 197, 0.02);
    near(machine_attention_rate(c.machine, PRECISION_BF16, 128, 16384, true) / tera, 186, 0.02);
    near(machine_attention_rate(c.machine, PRECISION_BF16, 64, 16384, false) / tera, 185, 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_ranges_are_checked),
        cmocka_unit_test(each_changes_its_part),
        cmocka_unit_test(experts_wait_for_the_fullest),
        cmocka_unit_test(an_a100_has_its_own_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
