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

static double act(const struct mesh_result *r)
{
    return r->stages[0].memory.act;
}

/* Kinds of recompute against the policies that ingot lays out itself: norms' outputs are what selective leaves out of dense layers; all
 * layers are full. */
static void recompute_kinds_keep_less_and_take_longer(void **state)
{
    (void)state;
    const struct spec s = spec_of("7b", 4096, 64);
    struct mesh_variant v = variant(8, 2, 1, 1), cheap = v, full = v;
    cheap.recompute = RECOMPUTE_SELECTIVE, full.recompute = RECOMPUTE_FULL;
    const struct mesh_result none = with(&s, "16xh100", &v, NULL),
                             selective = with(&s, "16xh100", &cheap, NULL),
                             all = with(&s, "16xh100", &full, NULL);
    const struct mesh_result norms = with(&s, "16xh100", &v, "recompute_layernorm=1");
    near(act(&norms), act(&selective), 1e-6);
    assert_true(norms.compute.memory > none.compute.memory && norms.compute.gemms == none.compute.gemms);
    {
        const struct mesh_result other = with(&s, "16xh100", &cheap, "recompute_layernorm=1");
        near(act(&other), act(&selective), 1e-12);
    } /* left out already */
    const struct mesh_result layers = with(&s, "16xh100", &v, "recompute_layers=32");
    near(act(&layers), act(&all), 1e-9);
    near(layers.step, all.step, 1e-9);
    const struct mesh_result half = with(&s, "16xh100", &v, "recompute_layers=16");
    near(act(&half), (act(&none) + act(&all)) / 2, 1e-3);
    near(half.compute.gemms, (none.compute.gemms + all.compute.gemms) / 2, 1e-6);
    const struct mesh_result mlp = with(&s, "16xh100", &v, "recompute_mlp=1");
    const double n = 4096, e = 2, up = 2 * (double)s.model.ffn_size / 2; /* gate and up on a rank of two */
    near(act(&none) - act(&mlp), 32 * n * up * e, 1e-6);
    near((mlp.compute.gemms - none.compute.gemms) * 2, all.compute.gemms - none.compute.gemms, 0.5);
    assert_true(mlp.compute.gemms > none.compute.gemms && mlp.compute.mixing == none.compute.mixing);
    const struct mesh_result core = with(&s, "16xh100", &v, "recompute_core_attn=1");
    near(act(&none) - act(&core), 32 * n * (4096 / 2 * e + 16 * 4), 1e-4);
    near(core.compute.mixing - none.compute.mixing, all.compute.mixing - none.compute.mixing, 1e-9);
    {
        const struct mesh_result other = with(&s, "16xh100", &full, "recompute_mlp=1,recompute_core_attn=1");
        near(act(&other), act(&all), 1e-12);
    }
}

/* Experts go to their ranks again; latent attention's expanded heads are formed again. */
static void experts_and_latents_are_computed_again(void **state)
{
    (void)state;
    struct spec s = spec_of("engram-moe-medium", 2048, 32);
    s.model.engram_layers[0] = 0;
    struct mesh_variant v = variant(8, 1, 1, 1);
    v.mesh.ep = 8;
    const struct mesh_result plain = with(&s, "8xh100", &v, NULL),
                             moe = with(&s, "8xh100", &v, "recompute_moe=1"),
                             shared = with(&s, "8xh100", &v, "recompute_shared_experts=1");
    assert_true(act(&moe) < act(&plain) && moe.ep.seconds > 1.2 * plain.ep.seconds);
    assert_true(moe.compute.gemms > plain.compute.gemms);
    assert_true(s.model.moe_shared_size == 0 || act(&shared) < act(&plain));
    struct spec latent = spec_of("swa-mla-medium", 2048, 32);
    const struct mesh_variant w = variant(8, 1, 1, 1);
    struct mesh_variant cheap = w;
    cheap.recompute = RECOMPUTE_SELECTIVE;
    const struct mesh_result keeps = with(&latent, "8xh100", &w, NULL),
                             again = with(&latent, "8xh100", &w, "recompute_mla_up_proj=1"),
                             both =
                                 with(&latent, "8xh100", &w, "recompute_mla_up_proj=1,recompute_layernorm=1"),
                             selective = with(&latent, "8xh100", &cheap, NULL);
    assert_true(act(&again) < act(&keeps) && again.compute.gemms > keeps.compute.gemms);
    near(act(&both), act(&selective), 1e-6);
}

static void offload_moves_bytes_to_the_host(void **state)
{
    (void)state;
    const struct spec s = spec_of("7b", 4096, 64);
    const struct mesh_variant v = variant(8, 2, 1, 1);
    const struct mesh_result plain = with(&s, "16xh100", &v, NULL),
                             half = with(&s, "16xh100", &v, "offload_act=0.5"),
                             all = with(&s, "16xh100", &v, "offload_act=1"),
                             optim = with(&s, "16xh100", &v, "offload_optimizer=1");
    assert_true(act(&all) < act(&half) && act(&half) < act(&plain));
    near(all.stages[0].host, 2 * half.stages[0].host, 1e-9);
    assert_true(plain.stages[0].host == 0 && all.step >= plain.step);
    assert_true(optim.stages[0].memory.optim < 0.05 * plain.stages[0].memory.optim &&
                optim.optim > plain.optim);
    struct spec own = s; /* what ingot has a key for */
    own.run.memory_offload_optimizer = true;
    const struct mesh_result key = with(&own, "16xh100", &v, NULL);
    near(optim.stages[0].host, key.stages[0].host, 1e-3); /* the key's are less the tables of chunks */
    near(optim.optim, key.optim, 1e-3);
}

static void links_are_shared_and_switches_add(void **state)
{
    (void)state;
    const struct spec s = spec_of("7b", 4096, 256);
    struct mesh_variant v = variant(16, 1, 4, 0);
    const struct mesh_result alone = with(&s, "64xh100", &v, NULL),
                             shared = with(&s, "64xh100", &v, "contention=1"),
                             half = with(&s, "64xh100", &v, "contention=0.5");
    assert_true(shared.dp.seconds > half.dp.seconds && half.dp.seconds > alone.dp.seconds);
    assert_true(shared.dp.bytes == alone.dp.bytes && shared.step >= alone.step);
    v = variant(64, 1, 1, 0);
    near(with(&s, "64xh100", &v, "contention=1").step, with(&s, "64xh100", &v, NULL).step, 1e-12);
    const struct mesh_result ring = with(&s, "64xh100", &v, NULL), sharp = with(&s, "64xh100", &v, "sharp=1");
    assert_true(sharp.dp.seconds < ring.dp.seconds && sharp.dp.bytes == ring.dp.bytes);
    /* Of many bytes a ring moves 2 (n - 1) / n S over the network, switches S; with eight NICs in a node its links then bound: 2 (g - 1) / g S. */
    struct assume a = assume_default();
    struct cluster c;
    assert_int_equal(cluster_parse("64xh100", &c), STATUS_OK);
    const double bytes = 1e12, link = c.machine->link_rate,
                 ring_s = 2 * 63 / 64.0 * bytes / fmin(link, 8 * c.machine->net_rate);
    c.assume = &a;
    struct axis x = traffic_axis(&c, 64, 1);
    near(traffic_all_reduce_s(&x, bytes), ring_s, 1e-3);
    a.sharp = 1;
    x = traffic_axis(&c, 64, 1);
    near(traffic_all_reduce_s(&x, bytes), fmax(2 * 7 / 8.0 / link, 1 / (8 * c.machine->net_rate)) * bytes,
         1e-3);
    x = traffic_axis(&c, 8, 8); /* one of each node: the network alone */
    near(traffic_all_reduce_s(&x, bytes), bytes / c.machine->net_rate, 1e-3);
    v = variant(8, 1, 1, 0);
    near(with(&s, "8xh100", &v, "sharp=1").step, with(&s, "8xh100", &v, NULL).step, 1e-12);
}

static void another_programs_gemms(void **state)
{
    (void)state;
    const struct spec s = spec_of("7b", 4096, 64);
    const struct mesh_variant v = variant(8, 2, 1, 1);
    const struct mesh_result plain = with(&s, "16xh100", &v, NULL),
                             twice = with(&s, "16xh100", &v, "gemms=2");
    assert_true(twice.compute.gemms > 0.5 * plain.compute.gemms &&
                twice.compute.gemms < 0.55 * plain.compute.gemms); /* the head */
    near(twice.compute.mixing, plain.compute.mixing, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_ranges_are_checked),
        cmocka_unit_test(each_changes_its_part),
        cmocka_unit_test(experts_wait_for_the_fullest),
        cmocka_unit_test(an_a100_has_its_own_rates),
        cmocka_unit_test(recompute_kinds_keep_less_and_take_longer),
        cmocka_unit_test(experts_and_latents_are_computed_again),
        cmocka_unit_test(offload_moves_bytes_to_the_host),
        cmocka_unit_test(links_are_shared_and_switches_add),
        cmocka_unit_test(another_programs_gemms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
