/* Machines of files: what is read, what is refused and in which words; pods of an oversubscribed network; trees. */
#include "plan/mesh_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/assume.h"
#include "plan/machine_file.h"

static const char WHOLE[] =
    "# a GPU that nobody has built\nsm: 90\nmultiprocessors: 100\nnode: 16\nmemory_bytes: "
    "100e9\nmemory_rate: 5e12\n"
    "stream_rate: 4e12\npeak_bf16: 1e15\nshare_16: [0.4, 0.5, 0.6, 0.7, 0.7, 0.7]\nnarrow_forward: 0.5 800\n"
    "narrow_backward: 0.4 800\nwide_forward: 0.6, 400 # share, keys\nwide_backward: 0.5 400\nlatent_forward: "
    "0.6 400\n"
    "latent_backward: 0.5 400\nlinear_forward: 0.2\nlinear_backward: 0.2\nlink_rate: 4e11\nnet_rate: 5e10\n"
    "host_rate: 5e10\nlatency_base: 8e-6\nlatency_hop: 3e-6\nlatency_net: 14e-6\n";

static status parse(const char *text, const char *machine, struct cluster *c)
{
    FILE *f = fopen("my.machine", "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return cluster_parse(machine, c);
}

static void a_file_is_a_machine(void **state)
{
    (void)state;
    struct cluster c, h100;
    char text[64];
    assert_int_equal(parse(WHOLE, "32xmy.machine", &c), STATUS_OK);
    assert_string_equal(cluster_text(text, &c), "32 x my.machine in 2 nodes");
    assert_true(c.machine->multiprocessors == 100 && c.machine->overlap && c.machine->kind == DEV_CUDA);
    near(machine_gemm_rate(c.machine, PRECISION_BF16, 4096), 0.7e15, 1e-12);
    near(machine_attention_rate(c.machine, PRECISION_BF16, 128, 400, false), 0.3e15, 1e-12);
    assert_false(machine_has_fp8(c.machine));
    assert_int_equal(cluster_parse("h100", &h100), STATUS_OK);
    assert_int_equal(parse("like: h100\nnet_rate: 2e10\noverlap: false\n", "2x8x./my.machine", &c),
                     STATUS_OK);
    assert_true(c.machine->net_rate == 2e10 && !c.machine->overlap && c.node == 8 && c.devices == 16);
    assert_true(c.machine->peak_bf16 == h100.machine->peak_bf16 && h100.machine->net_rate == 45e9);

    const struct spec s = spec_of("7b", 4096, 32); /* a plan outlives the file and the cluster */
    struct mesh_plan *p = open_plan(&s, "16xmy.machine");
    const struct mesh_variant v = variant(16, 1, 1, 1);
    struct mesh_result slow, fast;
    assert_int_equal(mesh_plan_one(p, &v, &slow), STATUS_OK);
    mesh_plan_close(p);
    p = open_plan(&s, "16xh100");
    assert_int_equal(mesh_plan_one(p, &v, &fast), STATUS_OK);
    mesh_plan_close(p);
    assert_true(slow.dp.exposed > 1.2 * fast.dp.exposed);
}

static void a_wrong_file_is_one_clear_line(void **state)
{
    (void)state;
    struct cluster c;
    const struct {
        const char *text, *says;
    } bad[] = {
        {"sm: 90\n", "my.machine: multiprocessors is missing: give it, or start from a known machine"},
        {"like: h100\nnet_rates: 4e10\n",
         "my.machine:2: a machine has no 'net_rates' (did you mean 'net_rate'?)"},
        {"like: h100\nnet_rate: fast\n", "my.machine:2: net_rate takes a number above 0"},
        {"like: h100\nnet_rate: -1\n", "net_rate takes a number above 0"},
        {"like: h100\nnet_rate:\n", "net_rate takes a number above 0"},
        {"like: h100\nnode: 2.5\n", "node takes a number above 0, whole"},
        {"like: h100\nshare_16: 0.5 0.5\n", "share_16 takes six numbers above 0"},
        {"like: h100\nwide_forward: 0.5 400 1\n", "wide_forward takes two numbers above 0"},
        {"like: h100\noverlap: 1e3\n", "overlap takes true or false"},
        {"like: h101\n", "my.machine:1: like: there is no machine 'h101'"},
        {"sm: 90\nlike: h100\n", "my.machine:2: like comes before all other lines"},
        {"like: h100\nspine: 0.5\n", "pod is missing"},
        {"like: a100\npeak_fp8: 6e14\nshare_8: 1 1 1 1 1 1\n", "full_8 is missing"},
        {"like h100\n", "my.machine:1: write NAME: VALUE"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse(bad[i].text, "8xmy.machine", &c) != STATUS_CONFIG) fail_msg("%zu was taken", i);
        if (!strstr(status_message(), bad[i].says)) fail_msg("%zu: %s", i, status_message());
    }
    const char *net = strstr(WHOLE, "net_rate");
    char text[sizeof WHOLE];
    snprintf(text, sizeof text, "%.*s%s", (int)(net - WHOLE), WHOLE, strchr(net, '\n') + 1);
    assert_int_equal(parse(text, "8xmy.machine", &c), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "my.machine: net_rate is missing"));
    assert_int_equal(unlink("my.machine"), 0);
    assert_int_not_equal(cluster_parse("8xmy.machine", &c), STATUS_OK);
    assert_non_null(strstr(status_message(), "my.machine"));
}

/* Pods of 64 with a seventh of the bandwidth between them, as Llama 3's of 3072 (arXiv:2407.21783, section 3.3.1). */
static void a_pods_uplinks_bound_what_crosses_them(void **state)
{
    (void)state;
    struct cluster c;
    assert_int_equal(parse("like: h100\npod: 64\nspine: 0.125\n", "512xmy.machine", &c), STATUS_OK);
    const double net = c.machine->net_rate;
    near(traffic_axis(&c, 64, 1).rate, 8 * net < c.machine->link_rate ? 8 * net : c.machine->link_rate,
         1e-12);
    near(traffic_axis(&c, 512, 1).rate, 8 * net, 1e-12);    /* one ring of 8 NICs; the uplinks are worth 8 */
    near(traffic_axis(&c, 64, 8).rate, net, 1e-12);         /* eight rings of one NIC each */
    near(traffic_axis(&c, 32, 16).rate, 0.5 * net, 1e-12);  /* sixteen rings cross each border */
    near(traffic_axis(&c, 8, 64).rate, 0.125 * net, 1e-12); /* every ring's edges all cross */
    const struct axis far = traffic_axis(&c, 8, 64), near_by = traffic_axis(&c, 64, 8);
    near(traffic_send_s(&c, &far, 45e9 * 0.125) - c.machine->latency_base - c.machine->latency_net, 1, 1e-9);
    near(traffic_send_s(&c, &near_by, 45e9) - c.machine->latency_base - c.machine->latency_net, 1, 1e-9);
    assert_int_equal(unlink("my.machine"), 0);
}

/* A ring around 2048 nodes starts after 2 x 2047 hops; a tree climbs 11 and comes down. Large sums take the ring. */
static void small_sums_over_many_nodes_take_a_tree(void **state)
{
    (void)state;
    struct cluster c;
    struct assume trees = assume_default();
    assert_int_equal(cluster_parse("16384xh100", &c), STATUS_OK);
    const struct axis ring = traffic_axis(&c, 2048, 8);
    near(traffic_all_reduce_s(&ring, 1e3), 2 * traffic_all_gather_s(&ring, 1e3), 1e-12);
    assert_int_equal(assume_read("trees=1", &trees), STATUS_OK);
    c.assume = &trees;
    const struct axis a = traffic_axis(&c, 2048, 8);
    near(traffic_all_reduce_s(&a, 1e3), c.machine->latency_base + 2 * 11 * c.machine->latency_net, 1e-2);
    near(traffic_all_reduce_s(&a, 1e12), 2 * traffic_all_gather_s(&a, 1e12), 1e-12);
    const struct axis inside = traffic_axis(&c, 8, 1);
    near(traffic_all_reduce_s(&inside, 1e3), 2 * traffic_all_gather_s(&inside, 1e3), 1e-12);
}

static int enter(void **state)
{
    char dir[] = "/tmp/machine_file.XXXXXX";
    (void)state;
    return mkdtemp(dir) && chdir(dir) == 0 ? 0 : 1;
}
static int leave(void **state)
{
    char dir[256];
    (void)state;
    return getcwd(dir, sizeof dir) && chdir("/") == 0 && rmdir(dir) == 0 ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_a_machine),
        cmocka_unit_test(a_wrong_file_is_one_clear_line),
        cmocka_unit_test(a_pods_uplinks_bound_what_crosses_them),
        cmocka_unit_test(small_sums_over_many_nodes_take_a_tree),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
