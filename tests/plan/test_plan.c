/* The decoder's parameter table against the closed formulas of the presets; planned bytes against reserved ones; FLOPs by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "comm/comm_int.h"
#include "model/param_count.h"
#include "plan/param_formula.h"
#include "plan/mfu.h"

static void every_preset_has_the_parameters_of_its_formula(void **state)
{
    (void)state;
    assert_true(preset_count() >= 11);
    for (int i = 0; i < preset_count(); i++) {
        struct model_spec m;
        assert_int_equal(preset_find(preset_name(i), &m), STATUS_OK);
        if (m.vocab_size == 0) m.vocab_size = 4096;
        for (m.mtp_depth = 0; m.mtp_depth <= 2; m.mtp_depth += 2) {
            if (m.mtp_depth)
                snprintf(m.engram_layers, sizeof m.engram_layers, "1,%lld", (long long)m.layer_count / 2);
            m.engram_dim = 64, m.engram_base = 1000;
            struct decoder d;
            assert_int_equal(decoder_init(&d, &m, NULL), STATUS_OK);
            if (d.params.param_count != formula_params(&m, m.vocab_size))
                fail_msg("%s: %lld", preset_name(i), (long long)d.params.param_count);
            assert_true(model_param_count(&m, m.vocab_size) == d.params.param_count);
            assert_true(model_active_count(&m, m.vocab_size) == formula_active(&m, m.vocab_size));
            decoder_fini(&d);
        }
    }
}

/* Method: plan_reserve checks each arena itself; here the sum over arenas of what the system gave equals what a counting pass asks. */
static void reserved_bytes_equal_planned_bytes(void **state)
{
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_FULL; policy++) {
            struct spec s;
            struct decoder d;
            struct rank_state rank;
            struct activations a = {0}, counted = {0};
            struct memory m, plan = {0};
            assert_int_equal(preset_find("nano", &s.model), STATUS_OK);
            run_spec_default(&s.run);
            s.model.vocab_size = 512;
            snprintf(s.model.layers, sizeof s.model.layers, "1*gqa,1*mla");
            s.model.mla_kv_rank = 64;
            s.model.mtp_depth = 1;
            snprintf(s.model.engram_layers, sizeof s.model.engram_layers, "1");
            s.model.engram_dim = 16, s.model.engram_base = 100;
            if (policy == RECOMPUTE_SELECTIVE)
                s.model.mtp_depth = 0, s.model.hrm_cycles = 2, s.model.hrm_segments = 2,
                s.model.hrm_halt = true;
            s.run.train_steps = 1;
            s.run.train_precision = precision;
            s.run.train_recompute = policy;
            spec_resolve(&s);
            struct plan_layout_args args = plan_args(&s, NULL);
            assert_int_equal(decoder_init(&d, &s.model, NULL), STATUS_OK);
            assert_int_equal(plan_layout(&plan, &d, &rank, &counted, &args), STATUS_OK);
            assert_true(d.params.master == NULL);
            activations_fini(&counted);
            assert_int_equal(plan_reserve(&m, &d, &rank, &a, &args), STATUS_OK);
#define X(field, category, text) assert_int_equal(m.field.size, plan.field.peak);
            MEMORY_LIST(X)
#undef X
            assert_true(m.param.sealed);
            activations_fini(&a);
            decoder_fini(&d);
            memory_free(&m);
        }
}

/* Moments in 8 bits are a byte and a 64th per parameter, of rows padded to blocks. */
static void moments_take_what_their_type_says(void **state)
{
    (void)state;
    static const double bytes[] = {
        [OPTIM_STATE_FP32] = 8, [OPTIM_STATE_BF16] = 4, [OPTIM_STATE_INT8] = 2 + 2. / 64};
    for (int kind = OPTIM_STATE_FP32; kind <= OPTIM_STATE_INT8; kind++) {
        struct spec s;
        struct decoder d;
        struct rank_state rank;
        struct activations a = {0};
        struct memory m = {0};
        assert_int_equal(preset_find("nano", &s.model), STATUS_OK);
        run_spec_default(&s.run);
        s.model.vocab_size = 512;
        s.run.train_steps = 1;
        s.run.optim_state = kind;
        spec_resolve(&s);
        struct plan_layout_args args = plan_args(&s, NULL);
        assert_int_equal(decoder_init(&d, &s.model, NULL), STATUS_OK);
        assert_int_equal(plan_layout(&m, &d, &rank, &a, &args), STATUS_OK);
        const struct params *p = &d.params;
        s.run.optim_master = OPTIM_MASTER_NONE; /* without lower halves */
        struct plan_layout_args alone = plan_args(&s, NULL);
        struct memory less = {0};
        struct decoder e;
        struct activations b = {0};
        assert_int_equal(decoder_init(&e, &s.model, NULL), STATUS_OK);
        assert_int_equal(plan_layout(&less, &e, &rank, &b, &alone), STATUS_OK);
        assert_true(m.param.peak - less.param.peak >= 2 * (size_t)p->total &&
                    m.param.peak - less.param.peak < 2 * (size_t)p->total + ARENA_ALIGN);
        activations_fini(&b);
        decoder_fini(&e);
        const double tables = (double)d.params.chunk_count * sizeof(struct update_chunk),
                     got = ((double)m.optim.peak - tables) / (double)d.params.total;
        if (fabs(got - bytes[kind]) > 0.01) fail_msg("%g bytes for each parameter, not %g", got, bytes[kind]);
        activations_fini(&a);
        decoder_fini(&d);
    }
}

/* The device keeps 6 bytes of a parameter with bf16, and 8 with fp32, whose master weights are the weights; the rest, with bf16 the upper halves
 * of the master weights once more, is the host's, but for slots of three pieces, a sixteenth of the arrays each. What activations take does not change. */
static void an_offloaded_state_is_the_hosts(void **state)
{
    (void)state;
    static const double moments[] = {
        [OPTIM_STATE_FP32] = 8, [OPTIM_STATE_BF16] = 4, [OPTIM_STATE_INT8] = 2 + 2. / 64};
    for (int k = 0; k < 6; k++) {
        struct spec s;
        struct decoder d;
        struct rank_state rank;
        struct activations a = {0};
        struct memory m[2] = {};
        const int kind = k % 3;
        const bool half = k < 3;
        double n = 0;
        assert_int_equal(preset_find("nano", &s.model), STATUS_OK);
        run_spec_default(&s.run);
        s.model.vocab_size = 8192;
        s.run.train_steps = 1;
        s.run.optim_state = kind;
        s.run.train_precision = half ? PRECISION_BF16 : PRECISION_FP32;
        spec_resolve(&s);
        for (int off = 0; off < 2; off++) {
            s.run.memory_offload_optimizer = off;
            struct plan_layout_args args = plan_args(&s, NULL);
            args.kind = DEV_CUDA;
            assert_int_equal(decoder_init(&d, &s.model, NULL), STATUS_OK);
            assert_int_equal(plan_layout(&m[off], &d, &rank, &a, &args), STATUS_OK);
            n = (double)d.params.total;
            activations_fini(&a);
            decoder_fini(&d);
        }
        const double host = (half ? 4 : 0) + moments[kind];
        assert_int_equal(m[0].host.peak, 0);
        assert_true(fabs((double)m[1].host.peak / n - host) < 0.01);
        const double saved = (double)(memory_peak(&m[0]) - memory_peak(&m[1])) / n,
                     want = host - (half ? 2 : 0) - 3. / 16 * host;
        if (fabs(saved - want) > 0.1) fail_msg("%g bytes of a parameter went, not %g", saved, want);
        assert_int_equal(m[0].act.peak, m[1].act.peak);
        assert_int_equal(m[0].grad.peak, m[1].grad.peak);
    }
}

static void a_plan_for_the_cpu_refuses_to_offload(void **state)
{
    (void)state;
    struct model_spec spec;
    struct decoder d;
    struct rank_state rank;
    struct activations a = {0};
    struct memory m = {0};
    assert_int_equal(preset_find("nano", &spec), STATUS_OK);
    spec.vocab_size = 512;
    const struct plan_layout_args args = {
        .use = PLAN_TRAIN, .dt = DTYPE_F32, .tokens = 8, .positions = 8, .kind = DEV_CPU, .offload = true};
    assert_int_equal(decoder_init(&d, &spec, NULL), STATUS_OK);
    assert_int_equal(plan_layout(&m, &d, &rank, &a, &args), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "needs a GPU"));
    decoder_fini(&d);
}

/* Method: a machine that holds the plan of n sequences and one byte less than that of the next divisor gets n; one that holds less than
 * one sequence is told so. */
static void the_largest_micro_batch_that_fits_is_chosen(void **state)
{
    (void)state;
    const int64_t divisors[] = {1, 2, 3, 4, 6, 12};
    double bytes[6];
    struct ops ops;
    const struct dev host = {.kind = DEV_CPU};
    ops_oracle(&ops);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 6; i++) {
            struct spec s;
            assert_int_equal(preset_find("nano", &s.model), STATUS_OK);
            run_spec_default(&s.run);
            s.model.vocab_size = 512;
            s.run.train_steps = 1;
            s.run.train_sequence_length = 64;
            s.run.train_batch_tokens = 12 * 64;
            s.run.train_micro_batch = divisors[i];
            spec_resolve(&s);
            if (round == 0) {
                struct decoder d;
                struct rank_state rank;
                struct activations a = {0};
                struct memory m = {0};
                struct plan_layout_args args = plan_args(&s, NULL);
                assert_int_equal(decoder_init(&d, &s.model, NULL), STATUS_OK);
                assert_int_equal(plan_layout(&m, &d, &rank, &a, &args), STATUS_OK);
                bytes[i] = (double)memory_peak(&m);
                activations_fini(&a);
                decoder_fini(&d);
                continue;
            }
            s.run.train_micro_batch = 0;
            s.run.machine_memory_gib = (i < 5 ? bytes[i + 1] - 1 : 2 * bytes[i]) / 1073741824.0;
            assert_int_equal(plan_micro_batch(&s, &ops, &host, NULL), STATUS_OK);
            assert_int_equal(s.run.train_micro_batch, divisors[i]);
            s.run.train_micro_batch = 0;
            s.run.machine_memory_gib = (bytes[0] - 1) / 1073741824.0;
            assert_int_equal(plan_micro_batch(&s, &ops, &host, NULL), STATUS_OUT_OF_MEMORY);
            assert_non_null(strstr(status_message(), "one sequence of 64 tokens needs"));
        }
}

/* Four ranks on two machines, two of them here. */
static void ranks_of_a_host_share_its_memory(void **state)
{
    (void)state;
    struct spec s = {0};
    struct comm world = {.ranks = 4, .local_ranks = 2};
    const struct mesh mesh = {.world = &world};
    const struct dev host = {.kind = DEV_CPU}, gpu = {.kind = DEV_CUDA, .bytes_free = 1 << 30};
    run_spec_default(&s.run);
    assert_true(plan_bytes(&s, &host, NULL) > 0);
    assert_true(2 * plan_bytes(&s, &host, &mesh) == plan_bytes(&s, &host, NULL));
    assert_true(plan_bytes(&s, &gpu, &mesh) == plan_bytes(&s, &gpu, NULL));
    s.run.machine_memory_gib = 1;
    assert_true(plan_bytes(&s, &host, &mesh) == 1073741824.0);
}

/* Not one byte is promised for a model that the device cannot run. */
static void a_plan_for_a_gpu_refuses_keys_without_a_kernel(void **state)
{
    (void)state;
    struct spec s = {0};
    model_spec_default(&s.model);
    run_spec_default(&s.run);
    s.model.vocab_size = 64, s.model.layer_count = 2, s.model.hidden_size = 16, s.model.ffn_size = 16;
    s.model.head_count = 2, s.model.context_length = 8, s.model.gdn_key_heads = s.model.gdn_value_heads = 2;
    snprintf(s.model.layers, sizeof s.model.layers, "gdn,gqa");
    for (int i = 0; i < 4; i++) {
        const bool gpu = i % 2, wide = i / 2;
        s.model.gdn_key_dim = wide ? DELTA_KEYS_CUDA_MAX + 16 : DELTA_KEYS_CUDA_MAX;
        struct decoder d;
        struct rank_state rank;
        struct activations a = {0};
        struct memory m = {0};
        struct plan_layout_args args = {.use = PLAN_TRAIN,
                                        .dt = DTYPE_F32,
                                        .tokens = 8,
                                        .positions = 8,
                                        .kind = gpu ? DEV_CUDA : DEV_CPU};
        assert_int_equal(decoder_init(&d, &s.model, NULL), STATUS_OK);
        assert_int_equal(plan_layout(&m, &d, &rank, &a, &args), gpu && wide ? STATUS_CONFIG : STATUS_OK);
        if (gpu && wide) assert_non_null(strstr(status_message(), "model.gdn_key_dim 272"));
        activations_fini(&a);
        decoder_fini(&d);
    }
}

static void a_plan_for_a_gpu_refuses_heads_without_a_kernel(void **state)
{
    (void)state;
    struct model_spec spec;
    model_spec_default(&spec);
    spec.vocab_size = 64, spec.layer_count = 2, spec.hidden_size = 16, spec.ffn_size = 16,
    spec.head_count = 2;
    spec.context_length = 8, spec.mla_kv_rank = 512;
    snprintf(spec.layers, sizeof spec.layers, "mla");
    for (int wide = 0; wide < 2; wide++) {
        struct decoder d;
        struct rank_state rank;
        struct activations a = {0};
        struct memory m = {0};
        struct plan_layout_args args = {
            .use = PLAN_TRAIN, .dt = DTYPE_BF16, .tokens = 8, .positions = 8, .kind = DEV_CUDA};
        spec.mla_kv_rank += wide;
        assert_int_equal(decoder_init(&d, &spec, NULL), STATUS_OK);
        assert_int_equal(plan_layout(&m, &d, &rank, &a, &args), wide ? STATUS_CONFIG : STATUS_OK);
        if (wide) assert_non_null(strstr(status_message(), "a row of the cache, = 577"));
        activations_fini(&a);
        decoder_fini(&d);
    }
}

/* Parameters of one layer of HF's Mamba2Mixer at these sizes, and its GEMMs, by hand. */
static void mamba2_has_the_parameters_and_gemms_of_its_formula(void **state)
{
    (void)state;
    struct model_spec m;
    struct decoder d;
    model_spec_default(&m);
    m.vocab_size = 100, m.layer_count = 2, m.hidden_size = 16, m.ffn_size = 24, m.head_count = 2,
    m.context_length = 8;
    m.mamba_heads = 4, m.mamba_head_dim = 6, m.mamba_groups = 2, m.mamba_state = 5, m.mamba_conv = 4;
    snprintf(m.layers, sizeof m.layers, "mamba2");
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    assert_int_equal(decoder_init(&d, &m, NULL), STATUS_OK);
    const int64_t in = 16 * (24 + 24 + 10 + 10 + 4), conv = (24 + 20) * (4 + 1), heads = 3 * 4, norm = 24,
                  out = 24 * 16;
    const int64_t all = 100 * 16 + 16 + 2 * (in + conv + heads + norm + out + 3 * 16 * 24 + 2 * 16);
    assert_true(d.params.param_count == all);
    assert_true(formula_params(&m, 100) == all);
    decoder_fini(&d);
    const struct flops f = plan_flops(&m, 8);
    assert_true(f.qkv == 2.0 * 2 * (double)in && f.out == 2.0 * 2 * (double)out);
    assert_true(f.scores == 2.0 * 4 * (4 * 5 * 6 + 2 * 64 * (5 + 6)));
}

static void flops_match_a_hand_count(void **state)
{
    (void)state;
    struct model_spec m;
    model_spec_default(&m);
    m.vocab_size = 100, m.layer_count = 2, m.hidden_size = 8, m.ffn_size = 16, m.head_count = 4,
    m.head_count_kv = 2, m.head_dim = 2, m.context_length = 10;
    struct flops f = plan_flops(&m, 9);
    assert_true(f.qkv == 2 * 2 * 8 * (8 + 2 * 4));
    assert_true(f.scores == 2 * 4 * 8 * 5.0); /* (9 + 1) / 2 keys on average */
    assert_true(f.out == 2 * 2 * 8 * 8);
    assert_true(f.mlp == 2 * 6 * 8 * 16);
    struct model_spec moe = m;
    snprintf(moe.layers, sizeof moe.layers, "gqa;gqa/moe");
    moe.moe_experts = 5, moe.moe_top_k = 2, moe.moe_size = 3, moe.moe_shared_size = 4,
    moe.moe_shared_gate = true;
    assert_true(plan_flops(&moe, 9).mlp == 6 * 8 * 16 + 6 * 8 * (2 * 3 + 4) + 2 * 8 * (5 + 1));
    assert_true(f.head == 2 * 8 * 100);
    m.window = 3; /* keys seen: 1, 2, 3, 3, 3, 3, 3, 3, 3: mean 24/9 */
    assert_true(fabs(plan_flops(&m, 9).scores - 2 * 4 * 8 * 24.0 / 9) < 1e-9);
}

static void flops_of_latent_attention_match_a_hand_count(void **state)
{
    (void)state;
    struct model_spec m;
    model_spec_default(&m);
    m.vocab_size = 100, m.layer_count = 2, m.hidden_size = 8, m.ffn_size = 16, m.head_count = 4,
    m.context_length = 10;
    m.layers[0] = 'm', m.layers[1] = 'l', m.layers[2] = 'a', m.layers[3] = 0;
    m.mla_heads = 3, m.mla_kv_rank = 6, m.mla_nope_dim = 5, m.mla_rope_dim = 2, m.mla_value_dim = 4;
    struct flops f = plan_flops(&m, 9);
    assert_true(f.qkv == 2 * 2 * (8 * 3 * 7 + 8 * (6 + 2) + 6 * 3 * (5 + 4)));
    assert_true(f.out == 2 * 2 * 3 * 4 * 8);
    assert_true(f.scores == 2 * 2 * 3 * (7 + 4) * 5.0);
    m.mla_q_rank = 9;
    assert_true(plan_flops(&m, 9).qkv == 2 * 2 * (8 * 9 + 9 * 3 * 7 + 8 * (6 + 2) + 6 * 3 * (5 + 4)));
    struct model_spec none = m;
    none.layer_count = 1; /* one layer less: the full square of scores, and the rest of a layer */
    struct flops one = plan_flops(&none, 9);
    assert_true(mfu_flops_full(&m, 9) - mfu_flops_full(&none, 9) ==
                3 * (one.qkv + one.out + one.mlp + 2 * 3 * (7 + 4) * 9));
}

/* Two layers below go through 3 x 2 passes of each of 2 segments, one above through 3; backward is of one visit per segment. */
static void flops_of_hierarchical_reasoning_count_visits(void **state)
{
    (void)state;
    struct model_spec m;
    model_spec_default(&m);
    m.vocab_size = 100, m.layer_count = 3, m.hidden_size = 8, m.ffn_size = 16, m.head_count = 4,
    m.head_count_kv = 2, m.head_dim = 2, m.context_length = 10;
    const double head = 2 * 8 * 100, layer = 2 * 8 * (8 + 2 * 4) + 2 * 8 * 8 + 6 * 8 * 16, scores = 4 * 8 * 5;
    m.hrm_cycles = 3, m.hrm_steps = 2, m.hrm_segments = 2, m.hrm_low_layers = 2;
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    assert_true(decoder_visits(&m) == 2 * 12 + 6);
    const struct flops f = plan_flops(&m, 9);
    assert_true(f.qkv == (2 * 12 + 6) * 2 * 8 * (8 + 2 * 4) && f.head == head);
    const double times = 2 * (12 + 2 * 2) + (6 + 2 * 2);
    assert_true(plan_model_flops(&m, 9) == times * (layer + scores) + 3 * 2 * head);
    assert_true(mfu_flops_full(&m, 9) == times * (layer + 4 * 8 * 9) + 3 * 2 * head);
    m.hrm_halt = true; /* three segments more, forward, of what one has: 6 and 3 visits */
    assert_true(plan_model_flops(&m, 9) == (times + 2 * 18 + 9) * (layer + scores) + 3 * 2 * head);
}

static void mfu_counts_in_two_conventions(void **state)
{
    (void)state;
    struct model_spec m;
    model_spec_default(&m);
    m.vocab_size = 100, m.layer_count = 2, m.hidden_size = 8, m.ffn_size = 16, m.head_count = 4,
    m.head_count_kv = 2, m.head_dim = 2, m.context_length = 10;
    double n = 2 * (8 * 16 + 8 * 8 + 3 * 8 * 16) + 8 * 100; /* weights that multiply */
    assert_true(mfu_flops_full(&m, 9) == 6 * n + 12 * 2 * 8 * 9);
    assert_true(plan_model_flops(&m, 9) == 6 * n + 12 * 2 * 8 * 5);
    m.window = 3; /* hides keys: the full square does not know */
    assert_true(mfu_flops_full(&m, 9) == 6 * n + 12 * 2 * 8 * 9);
    assert_true(mfu_peak("NVIDIA H200", PRECISION_BF16) == 989.4e12);
    assert_true(mfu_peak("NVIDIA H100 80GB HBM3", PRECISION_TF32) == 494.7e12);
    assert_true(mfu_peak("NVIDIA H100 PCIe", PRECISION_BF16) == 756.5e12);
    assert_true(mfu_peak("NVIDIA A100-SXM4-80GB", PRECISION_FP32) == 19.5e12);
    assert_true(mfu_peak("NVIDIA B200", PRECISION_BF16) == 2250e12);
    assert_true(mfu_peak("NVIDIA GeForce RTX 4090", PRECISION_BF16) == 165.2e12);
    assert_true(mfu_peak("NVIDIA GeForce RTX 4090 Laptop GPU", PRECISION_BF16) == 0);
    assert_true(mfu_peak("NVIDIA L40S", PRECISION_BF16) == 362e12);
    assert_true(mfu_peak("NVIDIA T4", PRECISION_BF16) == 0);
    assert_true(mfu_peak("cpu", PRECISION_FP32) == 0);
    assert_true(mfu_of(98.94e12, 989.4e12) == 0.1);
    assert_true(isnan(mfu_of(1, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_has_the_parameters_of_its_formula),
        cmocka_unit_test(reserved_bytes_equal_planned_bytes),
        cmocka_unit_test(moments_take_what_their_type_says),
        cmocka_unit_test(an_offloaded_state_is_the_hosts),
        cmocka_unit_test(a_plan_for_the_cpu_refuses_to_offload),
        cmocka_unit_test(the_largest_micro_batch_that_fits_is_chosen),
        cmocka_unit_test(ranks_of_a_host_share_its_memory),
        cmocka_unit_test(a_plan_for_a_gpu_refuses_keys_without_a_kernel),
        cmocka_unit_test(a_plan_for_a_gpu_refuses_heads_without_a_kernel),
        cmocka_unit_test(mamba2_has_the_parameters_and_gemms_of_its_formula),
        cmocka_unit_test(flops_match_a_hand_count),
        cmocka_unit_test(flops_of_latent_attention_match_a_hand_count),
        cmocka_unit_test(flops_of_hierarchical_reasoning_count_visits),
        cmocka_unit_test(mfu_counts_in_two_conventions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
