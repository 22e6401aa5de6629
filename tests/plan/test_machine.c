/* Machines by name, traffic between their devices, and published FLOPs. The sizes are worked by hand from the formulas of plan/traffic.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "plan/layer_time.h"
#include "plan/plan.h"
#include "plan/traffic.h"

static void near(double got, double wanted, double relative)
{
    if (fabs(got - wanted) > relative * fabs(wanted)) fail_msg("%.9g, wanted %.9g", got, wanted);
}

static void machines_are_found_by_name(void **state)
{
    (void)state;
    struct cluster c;
    char text[64];
    const struct {
        const char *word, *name;
        int devices, node;
    } good[] = {{"64xB200", "b200", 64, 8},     {"8xh200", "h200", 8, 8},
                {"2x8xH100", "h100", 16, 8},    {"2x4xh100", "h100", 8, 4},
                {"h200", "h200", 1, 1},         {"144xgb200", "gb200", 144, 72},
                {"4xRTX4090", "rtx4090", 4, 4}, {"8xh100-pcie", "h100-pcie", 8, 8},
                {"3xcpu", "cpu", 3, 3},         {"8x1xGH200", "gh200", 8, 1}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(cluster_parse(good[i].word, &c), STATUS_OK);
        assert_string_equal(c.machine->name, good[i].name);
        assert_int_equal(c.devices, good[i].devices);
        assert_int_equal(c.node, good[i].node);
    }
    assert_int_equal(cluster_parse("2x8xh100", &c), STATUS_OK);
    assert_string_equal(cluster_text(text, &c), "16 x h100 in 2 nodes");
    const char *bad[] = {"",       "8x",     "8xh300",   "0xh100",       "-1xh100",          "8x8",
                         "xh100",  "none",   "8xnone",   "8xh100 ",      "99999999999xh100", "2x2x2xh100",
                         "8h100x", "8yh100", "8xLaptop", "1048576x2xcpu"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (cluster_parse(bad[i], &c) != STATUS_CONFIG) fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(status_message(), "gb200"));
    }
    assert_int_equal(cluster_parse("2x16xh100", &c), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "at most 8"));
}

/* Every row that --machine can name has what a plan divides by. */
static void rows_are_complete(void **state)
{
    (void)state;
    const char *names[] = {"h100-pcie", "h100-nvl", "h200-nvl", "h100", "h200", "gb300", "gb200",    "b300",
                           "b200",      "a100",     "rtx4090",  "l40s", "cpu",  "gh200", "gh200-144"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct cluster c;
        assert_int_equal(cluster_parse(names[i], &c), STATUS_OK);
        const struct machine *m = c.machine;
        assert_true(m->memory_bytes > 0 && m->memory_rate >= m->stream_rate && m->stream_rate > 0);
        assert_true(m->peak_bf16 > 0 && m->peak_fp32 > 0 && m->link_rate > 0 && m->net_rate > 0);
        assert_true(m->link_rate >= m->net_rate && m->node > 0 && m->host_rate > 0);
        assert_int_equal(machine_has_fp8(m), strcmp(m->name, "a100") != 0);
        assert_int_equal(m->measured_8, m->sm == 90);
        for (int64_t width = 16; width <= 16384; width *= 2) {
            const double rate = machine_gemm_rate(m, PRECISION_BF16, (double)width);
            assert_true(rate > 0 && rate < m->peak_bf16);
            assert_true(rate <= machine_gemm_rate(m, PRECISION_BF16, (double)width * 2));
            const double fast = machine_fp8_rate(m, (double)width, true),
                         full = machine_fp8_rate(m, (double)width, false);
            if (m->kind == DEV_CPU)
                assert_true(fast == rate && full == rate);
            else if (machine_has_fp8(m))
                assert_true(full > rate && full <= fast && fast < m->peak_fp8 &&
                            fast <= machine_fp8_rate(m, (double)width * 2, true));
            for (int back = 0; back < 2; back++) {
                const double attention = machine_attention_rate(m, PRECISION_BF16, 128, width, back);
                assert_true(attention > 0 && attention < m->peak_bf16);
            }
        }
    }
    assert_null(machine_of_gpu("NVIDIA GeForce RTX 4090 Laptop GPU"));
    assert_null(machine_of_gpu("Tesla T4"));
    assert_string_equal(machine_of_gpu("NVIDIA GB200")->name, "gb200");
    assert_string_equal(machine_of_gpu("NVIDIA GH200 480GB")->name, "gh200");
    assert_string_equal(machine_of_gpu("NVIDIA GH200 144G HBM3e")->name, "gh200-144");
    assert_string_equal(machine_of_gpu("NVIDIA H200")->name, "h200");
    assert_string_equal(machine_of_gpu("NVIDIA H100 80GB HBM3")->name, "h100");
}

/* PCIe is slower than the memory behind it; NVLink-C2C is faster than half of LPDDR5X, which two GPUs of a GB200 share. */
static void the_slower_of_link_and_host_memory_decides(void **state)
{
    (void)state;
    struct cluster c;
    const struct {
        const char *name;
        double rate;
    } hosts[] = {{"h200", 0.91 * 55.5e9}, {"gh200", 250e9}, {"gb200", 125e9}, {"gb300", 125e9}};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        assert_int_equal(cluster_parse(hosts[i].name, &c), STATUS_OK);
        near(machine_host_both(c.machine), hosts[i].rate, 1e-9);
    }
    assert_true(machine_host_both(NULL) == 0);
}

/* NCCL's own model of its rings: 32 us for 8 ranks, 0.30 ms for 64 on 8 nodes, 2.4 for 512, 19 for 4096. */
static void a_ring_starts_as_late_as_nccl_says(void **state)
{
    (void)state;
    const struct {
        int ranks;
        double ms;
    } rings[] = {{8, 0.032}, {64, 0.30}, {512, 2.4}, {4096, 19.3}};
    for (size_t i = 0; i < 4; i++) {
        char word[32];
        struct cluster c;
        snprintf(word, sizeof word, "%dxh100", rings[i].ranks);
        assert_int_equal(cluster_parse(word, &c), STATUS_OK);
        const struct axis a = traffic_axis(&c, rings[i].ranks, 1);
        assert_int_equal(a.inside, 8);
        near(a.latency * 1e3, rings[i].ms, 0.02);
        assert_true(a.rate == c.machine->link_rate || rings[i].ranks > 8);
    }
}

/* A group with g members in a node has g NICs; neighbours of a stride beyond half a node are on another one. */
static void the_place_of_an_axis_decides_its_rate(void **state)
{
    (void)state;
    struct cluster c;
    assert_int_equal(cluster_parse("64xh100", &c), STATUS_OK);
    assert_true(traffic_axis(&c, 8, 1).rate == c.machine->link_rate);
    assert_true(traffic_axis(&c, 8, 8).rate == c.machine->net_rate);
    assert_true(traffic_axis(&c, 16, 4).rate == 2 * c.machine->net_rate);
    assert_int_equal(traffic_axis(&c, 16, 4).inside, 2);
    assert_true(traffic_axis(&c, 1, 64).ranks == 1);
    assert_true(traffic_all_gather_s(&(struct axis){.ranks = 1, .rate = 1}, 1e9) == 0);
    const struct axis inside = traffic_axis(&c, 2, 4), across = traffic_axis(&c, 8, 8);
    near(traffic_send_s(&c, &inside, 36e9) - c.machine->latency_base, 36e9 / c.machine->link_rate, 1e-12);
    assert_true(traffic_send_s(&c, &across, 45e9) > 1);
}

/* Groups of 16 in domains of 72: the fifth has 8 ranks in one domain and 8 in the next. In domains of 64 none is cut. Of stages 4 apart in nodes
 * of 8, each second message leaves its node. */
static void a_group_across_a_domains_border_uses_the_network(void **state)
{
    (void)state;
    struct cluster c;
    assert_int_equal(cluster_parse("128xgb200", &c), STATUS_OK);
    struct axis a = traffic_axis(&c, 16, 1);
    assert_int_equal(a.nodes, 2);
    assert_int_equal(a.inside, 8);
    near(a.rate, 8 * c.machine->net_rate, 1e-12);
    a = traffic_axis(&c, 8, 16); /* 0 16 32 48 64 | 80 96 112 */
    assert_int_equal(a.inside, 3);
    assert_int_equal(cluster_parse("64xgb200", &c), STATUS_OK);
    assert_int_equal(traffic_axis(&c, 16, 1).nodes, 1); /* no group of a smaller cluster is cut */
    assert_int_equal(cluster_parse("2x64xgb200", &c), STATUS_OK);
    assert_int_equal(traffic_axis(&c, 16, 1).nodes, 1);
    assert_int_equal(traffic_axis(&c, 8, 16).inside, 4);
    assert_int_equal(cluster_parse("64xh100", &c), STATUS_OK);
    assert_int_equal(traffic_axis(&c, 16, 4).nodes, 8);
    a = traffic_axis(&c, 3, 4); /* 0 4 | 8 */
    assert_int_equal(a.inside, 1);
}

static void an_all_to_all_uses_links_and_nics_at_once(void **state)
{
    (void)state;
    struct cluster c;
    assert_int_equal(cluster_parse("4x8xh100", &c), STATUS_OK);
    struct machine m = *c.machine;
    c.machine = &m;
    m.latency_base = m.latency_hop = m.latency_net = 0;
    const struct axis inside = traffic_axis(&c, 8, 1), all = traffic_axis(&c, 32, 1);
    near(traffic_all_to_all_s(&c, &inside, 8e9, 0), 7e9 / m.link_rate, 1e-12);
    near(traffic_all_to_all_s(&c, &all, 32e9, 0), 24e9 / m.net_rate,
         1e-12); /* a NIC carries what leaves the node */
    near(traffic_all_to_all_s(&c, &all, 32e9, 0.5), 12e9 / m.net_rate,
         1e-12); /* rows cross it half as often: of 3 / 4 */
    m.net_rate = 10 * m.link_rate;
    near(traffic_all_to_all_s(&c, &all, 32e9, 0), 7e9 / m.link_rate, 1e-12);
    m.rails = true; /* to the NIC of its place first */
    near(traffic_all_to_all_s(&c, &all, 32e9, 0), 31e9 / m.link_rate, 1e-12);
    assert_true(traffic_all_to_all_s(&c, &(struct axis){.ranks = 1}, 1e9, 0) == 0);
    m = *c.machine;
    near(traffic_ring_shift_s(&c, &inside, 3, 1e9), 1e9 / m.link_rate, 1e-12);
    near(traffic_ring_shift_s(&c, &all, 3, 1e9), 1e9 / m.net_rate, 1e-12);
}

/* Worked sizes of Llama3-70B and 8B at 370 GB/s: bytes exactly, seconds to two digits. */
static void traffic_has_its_worked_sizes(void **state)
{
    (void)state;
    const struct axis block = {.ranks = 8, .rate = 370e9}, tp = {.ranks = 4, .rate = 371e9},
                      dp = {.ranks = 64, .rate = 370e9};
    struct state_traffic t = traffic_state(3, 0.856e9, 2); /* one block, sharded over 8 */
    near(t.gather / 2, 1.712e9, 1e-12);
    near(t.scatter, 3.424e9, 1e-12);
    assert_true(t.each_micro);
    near(traffic_all_gather_s(&block, t.gather / 2), 4.63e-3 * 7 / 8, 2e-3);
    near(traffic_all_gather_s(&block, t.scatter), 9.25e-3 * 7 / 8, 2e-3);
    const double stream = 2.0 * 8192 * 8192; /* one sequence of 8192 tokens, width 8192, bf16: 134 MB */
    near(traffic_tensor_bytes(&tp, stream), 1.01e9, 5e-3);
    near(traffic_tensor_bytes(&tp, stream) / tp.rate, 2.7e-3, 1e-2);
    near(traffic_stage_bytes(stream, 4), 33.6e6, 5e-3);
    near(traffic_stage_bytes(stream, 4) / 45e9, 0.75e-3, 1e-2);
    t = traffic_state(1, 8.03e9, 2);
    assert_false(t.each_micro);
    near(traffic_all_gather_bytes(&dp, t.scatter), 31.6e9, 2e-3);
    near(traffic_all_gather_bytes(&dp, t.gather), 15.8e9, 2e-3);
    near(traffic_all_gather_s(&dp, t.scatter), 85e-3, 1e-2);
    near(traffic_all_gather_s(&dp, t.gather), 43e-3, 1e-2);
    assert_true(traffic_state(0, 1e9, 2).gather == 0);
    near(traffic_all_reduce_s(&dp, 1e9), 2 * traffic_all_gather_s(&dp, 1e9), 1e-12);
}

struct published {
    const char *name;
    double gflop; /* per trained token: TFLOP/s over tokens/s of NVIDIA's tables */
    struct model_spec m;
    int64_t sequence;
};

static struct model_spec dense(int64_t layers, int64_t width, int64_t heads, int64_t ffn)
{
    struct model_spec m;
    model_spec_default(&m);
    m.layer_count = layers, m.hidden_size = width, m.head_count = heads, m.head_count_kv = 8;
    m.head_dim = 128, m.ffn_size = ffn, m.vocab_size = 128256, m.context_length = 131072;
    return m;
}

static struct model_spec qwen3(int64_t layers, int64_t width, int64_t heads, int64_t expert)
{
    struct model_spec m = dense(layers, width, heads, 0);
    snprintf(m.layers, sizeof m.layers, "gqa/moe");
    m.head_count_kv = 4, m.vocab_size = 151936;
    m.moe_experts = 128, m.moe_top_k = 8, m.moe_size = expert;
    return m;
}

static struct model_spec gpt_oss(void)
{
    struct model_spec m = dense(36, 2880, 64, 0);
    snprintf(m.layers, sizeof m.layers, "1*swa/moe,1*gqa/moe");
    m.head_dim = 64, m.window = 128, m.vocab_size = 201088;
    m.moe_experts = 128, m.moe_top_k = 4, m.moe_size = 2880;
    return m;
}

static struct model_spec deepseek(int64_t mtp)
{
    struct model_spec m = dense(61, 7168, 128, 18432);
    snprintf(m.layers, sizeof m.layers, "3*mla;mla/moe");
    m.vocab_size = 129280, m.mla_heads = 128, m.mla_q_rank = 1536, m.mla_kv_rank = 512;
    m.mla_nope_dim = 128, m.mla_rope_dim = 64, m.mla_value_dim = 128, m.mtp_depth = mtp;
    m.moe_experts = 256, m.moe_top_k = 8, m.moe_size = 2048, m.moe_shared_size = 2048;
    return m;
}

/* Method: the eight rates that NVIDIA publishes with both TFLOP/s and tokens/s. They leave the routers' GEMMs out, which are 0.1 to 0.3 %,
 * and so does the comparison. (Qwen3-30B: 203 TFLOP/s at 8826 tokens/s on H100s; the rates on GB300s say 23.10.) */
static void flops_are_those_of_published_rates(void **state)
{
    (void)state;
    const struct published all[] = {
        {"Llama3-8B", 51.48, dense(32, 4096, 32, 14336), 8192},
        {"Llama3-70B", 449.1, dense(80, 8192, 64, 28672), 8192},
        {"Llama3.1-405B", 2521.5, dense(126, 16384, 128, 53248), 8192},
        {"Qwen3-235B", 148.14, qwen3(94, 4096, 64, 1536), 4096},
        {"Qwen3-30B", 23.00, qwen3(48, 2048, 32, 768), 4096},
        {"GPT-OSS-120B", 32.61, gpt_oss(), 4096},
        {"DeepSeek-V3", 249.7, deepseek(0), 4096},
        {"DeepSeek-V3 with one extra prediction", 260.02, deepseek(1), 4096},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct model_spec *m = &all[i].m;
        assert_int_equal(model_spec_check(m), STATUS_OK);
        const double routers = 6.0 * (double)(model_ffn_count(m, FFN_MOE) * m->hidden_size * m->moe_experts);
        const double gflop = (plan_model_flops(m, all[i].sequence) - routers) * 1e-9;
        if (fabs(gflop - all[i].gflop) > 1.5e-3 * all[i].gflop)
            fail_msg("%s: %.3f GFLOP per token, published %.3f", all[i].name, gflop, all[i].gflop);
    }
}

/* Weights of a layer that a token is multiplied by: read off the parameter table, of which the GEMMs' list knows nothing. */
static double multiplied(const struct model_spec *m, int64_t layer)
{
    struct decoder d;
    double sum = 0;
    assert_int_equal(decoder_init(&d, m, NULL), STATUS_OK);
    const struct param_unit *unit = &d.params.units[layer + 1];
    for (int i = unit->first; i < unit->last; i++) {
        const struct param *row = &d.params.rows[i];
        if (row->experts) sum += (double)(row->count / row->experts * m->moe_top_k);
        if (row->linear) sum += (double)row->count;
    }
    decoder_fini(&d);
    return sum;
}

/* The list of GEMMs behind the times is the list behind the FLOPs. */
static void gemms_are_those_that_are_counted(void **state)
{
    (void)state;
    struct model_spec models[] = {dense(2, 4096, 32, 14336), qwen3(2, 2048, 32, 768), deepseek(0), gpt_oss()};
    struct model_spec all[16];
    int count = 4;
    memcpy(all, models, sizeof models);
    const char *presets[] = {"gpt2-124m", "deltanet-mla-small", "swa-mla-small", "qwen3-next-tiny",
                             "deepseek-v3-tiny"};
    for (size_t i = 0; i < 5; i++) assert_int_equal(preset_find(presets[i], &all[count++]), STATUS_OK);
    all[count] = all[0];
    snprintf(all[count].layers, sizeof all[count].layers, "mamba2");
    all[count].mamba_heads = 24, all[count].mamba_groups = 3;
    count++;
    for (int i = 0; i < count; i++)
        for (int64_t layer = 0; layer < all[i].layer_count; layer++) {
            struct layer_gemm p[LAYER_GEMMS_MAX];
            const int n = layer_gemms(&all[i], layer, p);
            double sum = 0;
            for (int k = 0; k < n; k++) sum += 2 * p[k].copies * (double)p[k].in * (double)p[k].out;
            const struct flops f = plan_layer_flops(&all[i], layer, 1024);
            near(sum, f.qkv + f.out + f.mlp, 1e-12);
            near(sum, 2 * multiplied(&all[i], layer), 1e-12);
        }
}

/* A fused epilogue saves a pass: compared with a model whose biases prevent it, the time differs by the bytes
 * computed here. */
static void joined_passes_move_less(void **state)
{
    (void)state;
    const struct {
        enum precision precision;
        const char *machine;
        int64_t hidden, stream;
        double forward, backward; /* shares of SwiGLU's passes that are not moved */
        bool added;
    } cases[] = {
        {PRECISION_BF16, "h200", 1024, 65536, 0.3, 0.3, true},
        {PRECISION_BF16, "h200", 768, 65536, 0.3, 0, true},
        {PRECISION_BF16, "h200", 512, 65536, 0, 0, true},
        {PRECISION_BF16, "a100", 1024, 65536, 0, 0, true},
        {PRECISION_FP32, "h200", 1024, 65536, 0, 0, true},
        {PRECISION_BF16, "h200", 1024, 32768, 0, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec joined, apart;
        struct cluster c;
        assert_int_equal(preset_find("medium", &joined), STATUS_OK);
        assert_int_equal(cluster_parse(cases[i].machine, &c), STATUS_OK);
        joined.hidden_size = cases[i].hidden;
        apart = joined;
        apart.mlp_bias = true;
        struct layer_shape s = {.machine = c.machine,
                                .precision = cases[i].precision,
                                .tokens = 65536,
                                .sequence = 2048,
                                .stream = cases[i].stream};
        s.model = &joined;
        const struct layer_times less = layer_times_of(&s, 0);
        s.model = &apart;
        const struct layer_times more = layer_times_of(&s, 0);
        const double element =
            (cases[i].precision == PRECISION_BF16 ? 2 : 4) * 65536 / c.machine->stream_rate;
        const double f = (double)joined.ffn_size, d = cases[i].added ? (double)joined.hidden_size : 0;
        near(less.forward.memory + element * (cases[i].forward * 3 * f + d), more.forward.memory, 1e-9);
        near(less.backward.memory + element * cases[i].backward * 6 * f, more.backward.memory, 1e-9);
        near(less.forward.gemms, more.forward.gemms, 1e-12);
    }
}

/* Energy's prediction for the H200: 1190 to 1310 TFLOP/s, fast sums a twentieth above the others. */
static void fp8_has_its_measured_rates(void **state)
{
    (void)state;
    struct cluster c;
    assert_int_equal(cluster_parse("h200", &c), STATUS_OK);
    for (double width = 2048; width <= 4096; width *= 2) {
        const double fast = machine_fp8_rate(c.machine, width, true),
                     full = machine_fp8_rate(c.machine, width, false);
        assert_true(fast > 1213e12 && fast < 1.04 * 1290e12);
        assert_true(full > 1147e12 && full < 1.04 * 1244e12);
        near(full / fast, 1200.0 / 1256, 0.01);
    }
    assert_true(machine_peak(c.machine, PRECISION_FP8) == machine_peak(c.machine, PRECISION_BF16));
}

/* A layer of llama-1b in FP8: what its GEMMs gain, and the bytes that codes add, written down for each tensor. */
static void codes_are_counted(void **state)
{
    (void)state;
    struct model_spec m;
    struct cluster c;
    assert_int_equal(preset_find("llama-1b", &m), STATUS_OK);
    assert_int_equal(cluster_parse("h200", &c), STATUS_OK);
    const double n = 32768, d = 2048, f = 8192, qkv = 3072, rate = c.machine->stream_rate,
                 gap = c.machine->gap;
    struct layer_shape s = {.model = &m,
                            .machine = c.machine,
                            .precision = PRECISION_FP8,
                            .tokens = 32768,
                            .sequence = 4096,
                            .stream = 32768};
    const struct layer_times none = layer_times_of(&s, 0);
    s.precision = PRECISION_BF16;
    const struct layer_times plain = layer_times_of(&s, 0);
    assert_memory_equal(&none, &plain, sizeof none); /* no linear reads codes */
    s.precision = PRECISION_FP8;
    s.fp8 = (struct layer_fp8){.count = 4,
                               .linears = {{2048, 3072, CODES_BY_NORM, CODES_BY_PASS},
                                           {2048, 2048, CODES_BY_PASS, CODES_BY_NORM},
                                           {2048, 16384, CODES_BY_NORM, CODES_BY_SWIGLU},
                                           {8192, 2048, CODES_BY_SWIGLU, CODES_BY_NORM}}};
    for (int wgrad = 0; wgrad < 2; wgrad++) {
        s.fp8.wgrad = wgrad;
        const struct layer_times t = layer_times_of(&s, 0);
        const double flops = 2 * n * (d * qkv + d * d + 3 * d * f),
                     fast = machine_fp8_rate(c.machine, d, true),
                     full = machine_fp8_rate(c.machine, d, false);
        near(t.forward.gemms, flops / fast, 1e-9);
        near(t.wgrad, wgrad ? flops / full : plain.wgrad, 1e-9);
        near(t.backward.gemms, flops / full + t.wgrad, 1e-9);
        near(t.forward.mixing + t.backward.mixing, plain.forward.mixing + plain.backward.mixing, 1e-12);
        /* Forward: y1 and y2 are codes and transposed codes, and values if a bf16 GEMM reads them; attention's output
         * is read once more; m is codes alone. Behind GEMMs of codes two residuals are half hidden, and SwiGLU costs 0.4 of
         * its pass instead of 0.7. */
        const double forward = 2 * d * (wgrad ? 0 : 2) + 3 * d - f - 2 * d - 2 * 0.3 * 3 * f;
        near(t.forward.memory, plain.forward.memory + n * forward / rate + gap, 1e-9);
        /* Backward: dqkv is read once more; the stream's gradient gets both forms of codes twice; m is transposed codes
         * alone; SwiGLU is no epilogue, which spared 0.3 of its pass. bf16 GEMMs read values besides: of dgu and m, and of
         * y1 and y2, which the norms compute again. */
        const double both = 4 * qkv + 2 * 2 * d - f + 3 * d,
                     bf16_wgrad = 3 * qkv + 2 * 2 * d + f + 2 * 2 * f + 2 * 6 * d;
        near(t.backward.memory,
             plain.backward.memory + n * ((wgrad ? both : bf16_wgrad) + 2 * 0.3 * 6 * f) / rate +
                 (wgrad ? 2 : 1) * gap,
             1e-9);
    }
    near(layer_times_codes(c.machine, d * qkv), 6 * d * qkv / rate + 3 * gap, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_are_found_by_name),
        cmocka_unit_test(rows_are_complete),
        cmocka_unit_test(the_slower_of_link_and_host_memory_decides),
        cmocka_unit_test(a_ring_starts_as_late_as_nccl_says),
        cmocka_unit_test(the_place_of_an_axis_decides_its_rate),
        cmocka_unit_test(a_group_across_a_domains_border_uses_the_network),
        cmocka_unit_test(an_all_to_all_uses_links_and_nics_at_once),
        cmocka_unit_test(traffic_has_its_worked_sizes),
        cmocka_unit_test(flops_are_those_of_published_rates),
        cmocka_unit_test(gemms_are_those_that_are_counted),
        cmocka_unit_test(joined_passes_move_less),
        cmocka_unit_test(fp8_has_its_measured_rates),
        cmocka_unit_test(codes_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
