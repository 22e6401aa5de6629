/* Plans of runs in FP8: laid out as a run does, predicted times, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "plan/mesh_fixture.h"

/* Four layers of the k-th of three patterns, which together have every mixer and experts. */
static void every_part(struct model_spec *m, int k)
{
    static const char *const layers[] = {"gqa", "1*gdn,1*mla", "1*mamba2,1*gqa/moe"};
    snprintf(m->layers, sizeof m->layers, "%s", layers[k]);
    m->layer_count = 4, m->vocab_size = 512, m->hidden_size = 256, m->head_count = m->head_count_kv = 4;
    m->ffn_size = 512;
    m->gdn_key_heads = m->gdn_value_heads = 32, m->gdn_key_dim = m->gdn_value_dim = 16;
    m->mla_kv_rank = 64, m->mla_nope_dim = 32, m->mla_rope_dim = 16, m->mla_value_dim = 32;
    m->mamba_heads = 64, m->mamba_head_dim = 8, m->mamba_groups = 4, m->mamba_state = 16;
    m->moe_experts = 8, m->moe_top_k = 2, m->moe_size = 64, m->moe_shared_size = 128;
}

/* Case i: of each pattern, with each policy, on each of `count` shapes. */
struct laid {
    struct spec s;
    struct mesh_variant v;
    char what[64];
};
static struct laid laid_case(const struct mesh_shape *shapes, int count, int i)
{
    struct laid c = {
        .s = spec_of("nano", 64, 32),
        .v = {.mesh = shapes[i % count], .recompute = (enum recompute)(i / count % 3), .micro_batch = 4}};
    c.v.mesh.shard = c.v.mesh.dp;
    if (c.v.mesh.chunks == 0) c.v.mesh.chunks = 1, c.v.mesh.schedule = PIPELINE_1F1B;
    every_part(&c.s.model, i / count / 3);
    c.s.run.train_recompute = (int)c.v.recompute, c.s.run.train_micro_batch = 4;
    snprintf(c.what, sizeof c.what, "%s, case %d", c.s.model.layers, i);
    return c;
}

/* Codes of weights are whole on every rank, under ZeRO 3 those of its shard. The codes of the stream's gradient have a place of their own
 * without a pipeline, and belong to each linear in one. */
static void fp8_is_laid_out_as_a_run_does(void **state)
{
    (void)state;
    const struct mesh_shape shapes[] = {
        {.pp = 1, .dp = 1, .tp = 1},
        {.pp = 2, .dp = 1, .tp = 1},
        {.pp = 2, .dp = 1, .tp = 1, .chunks = 2, .schedule = PIPELINE_INTERLEAVED},
        {.pp = 1, .dp = 1, .tp = 4},
        {.pp = 1, .dp = 4, .tp = 1, .zero = 1},
        {.pp = 2, .dp = 2, .tp = 1, .zero = 2},
        {.pp = 1, .dp = 4, .tp = 1, .zero = 3},
        {.pp = 2, .dp = 2, .tp = 1, .zero = 3},
        {.pp = 1, .dp = 2, .tp = 2, .zero = 3}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    for (int i = 0; i < 3 * 3 * SHAPES; i++) {
        struct laid c = laid_case(shapes, SHAPES, i);
        c.s.model.mtp_depth = c.v.mesh.pp == 1 && c.v.mesh.tp == 1;
        c.s.run.train_precision = PRECISION_FP8;
        laid_out_as_a_run_does(&c.s, &c.v, c.what);
    }
}

/* Recipes with scales of their own: the operands of a GEMM lie below all other scratch, of every shape and with every policy. */
static void current_is_laid_out_as_a_run_does(void **state)
{
    (void)state;
    const struct mesh_shape shapes[] = {
        {.pp = 1, .dp = 1, .tp = 1},
        {.pp = 2, .dp = 1, .tp = 1},
        {.pp = 2, .dp = 1, .tp = 1, .chunks = 2, .schedule = PIPELINE_INTERLEAVED},
        {.pp = 1, .dp = 4, .tp = 1, .zero = 1},
        {.pp = 1, .dp = 2, .tp = 1, .zero = 3},
        {.pp = 2, .dp = 2, .tp = 1, .zero = 2}};
    const struct {
        enum precision precision;
        enum fp8_recipe recipe;
    } kinds[] = {{PRECISION_FP8, FP8_RECIPE_TENSOR},
                 {PRECISION_FP8, FP8_RECIPE_BLOCK},
                 {PRECISION_MXFP8, 0},
                 {PRECISION_NVFP4, 0}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], KINDS = 4 };
    for (int i = 0; i < 3 * 3 * SHAPES; i++) {
        struct laid c = laid_case(shapes, SHAPES, i);
        c.s.model.mtp_depth = c.v.mesh.pp == 1 && c.v.mesh.zero == 0;
        c.s.run.train_precision = (int)kinds[i % KINDS].precision;
        c.s.run.fp8_recipe = (int)kinds[i % KINDS].recipe;
        if (c.v.mesh.pp == 1 && i % 4 == 3) c.s.run.optim_name = OPTIM_MUON;
        laid_out_as_a_run_does(&c.s, &c.v, c.what);
    }
}

static struct mesh_result planned(const struct spec *s, const char *machine, int64_t micro)
{
    struct mesh_plan *p = open_plan(s, machine);
    struct mesh_variant v = variant(1, 1, 1, 0);
    struct mesh_result r;
    v.micro_batch = micro;
    if (mesh_plan_one(p, &v, &r) != STATUS_OK) fail_msg("%s", status_message());
    mesh_plan_close(p);
    return r;
}

/* Not measured yet: what energy per FLOP lets expect of an H200, and the order that must hold on every GPU. */
static void fp8_takes_its_predicted_time(void **state)
{
    (void)state;
    const struct {
        const char *preset;
        int64_t batch;
        double least, most; /* ms on an H200 */
    } steps[] = {{"7b-gqa", 4, 190, 200}, {"llama-1b", 8, 345, 366}};
    const char *machines[] = {"h200", "b200", "l40s"};
    for (int i = 0; i < 6; i++) {
        struct spec s = spec_of(steps[i % 2].preset, 4096, steps[i % 2].batch);
        if (i % 2 == 0) s.model.layer_count = 8, s.model.vocab_size = 32000;
        const struct mesh_result bf16_step = planned(&s, machines[i / 2], steps[i % 2].batch);
        s.run.train_precision = PRECISION_FP8;
        const struct mesh_result fp8 = planned(&s, machines[i / 2], steps[i % 2].batch);
        s.run.fp8_wgrad = FP8_WGRAD_BF16;
        const struct mesh_result wgrad = planned(&s, machines[i / 2], steps[i % 2].batch);
        if (i < 2 && (fp8.step * 1e3 < steps[i].least || fp8.step * 1e3 > steps[i].most))
            fail_msg("%s: %.1f ms", steps[i].preset, fp8.step * 1e3);
        assert_true(fp8.step < wgrad.step && wgrad.step < bf16_step.step);
        near(fp8.mfu / bf16_step.mfu, bf16_step.step / fp8.step, 1e-12); /* of the same peak */
        near(fp8.stages[0].memory.weights - fp8.stages[0].codes, bf16_step.stages[0].memory.weights, 1e-4);
        assert_true(bf16_step.stages[0].codes == 0);
        /* All layers out: bf16's GEMMs, and its optimizer without codes of weights. */
        snprintf(s.run.fp8_exclude, sizeof s.run.fp8_exclude, "layers.*");
        const struct mesh_result none = planned(&s, machines[i / 2], steps[i % 2].batch);
        near(none.step, bf16_step.step, 1e-12);
        assert_true(none.stages[0].codes == 0);
    }
}

/* Layers of 64 wide experts: most of what FP8 gains is theirs, and so are most codes of weights, two bytes a parameter. */
static void experts_take_their_time_in_fp8(void **state)
{
    (void)state;
    struct spec s = spec_of("llama-1b", 4096, 8);
    struct model_spec *m = &s.model;
    snprintf(m->layers, sizeof m->layers, "gqa/moe");
    m->layer_count = 2, m->hidden_size = 2048;
    m->moe_experts = 64, m->moe_top_k = 8, m->moe_size = 1024;
    const double plain = planned(&s, "h200", 8).step;
    s.run.train_precision = PRECISION_FP8;
    const struct mesh_result fp8 = planned(&s, "h200", 8);
    s.run.fp8_wgrad = FP8_WGRAD_BF16;
    const double wgrad = planned(&s, "h200", 8).step;
    s.run.fp8_wgrad = FP8_WGRAD_FP8;
    snprintf(s.run.fp8_exclude, sizeof s.run.fp8_exclude, "*.experts.*");
    const struct mesh_result kept = planned(&s, "h200", 8);
    assert_true(fp8.step < wgrad && wgrad < kept.step && kept.step < plain);
    assert_true(kept.step - fp8.step > plain - kept.step);
    near(fp8.stages[0].codes - kept.stages[0].codes, 2.0 * 2 * 3 * 64 * 2048 * 1024, 1e-12);
}

static struct mesh_result planned_as(struct spec s, const char *machine, enum precision precision,
                                     enum fp8_recipe recipe)
{
    s.run.train_precision = (int)precision, s.run.fp8_recipe = (int)recipe;
    return planned(&s, machine, 8);
}

/* Where GEMMs read the codes the recipes order as their rates do, less the passes; elsewhere operands are decoded: bf16's GEMMs and the passes. */
static void recipes_of_blocks_take_their_time(void **state)
{
    (void)state;
    const struct spec s = spec_of("llama-1b", 4096, 8);
    const struct mesh_result bf16_b300 = planned_as(s, "b300", PRECISION_BF16, FP8_RECIPE_BOUND),
                             mx_b300 = planned_as(s, "b300", PRECISION_MXFP8, FP8_RECIPE_BOUND),
                             nv_b300 = planned_as(s, "b300", PRECISION_NVFP4, FP8_RECIPE_BOUND),
                             block_b300 = planned_as(s, "b300", PRECISION_FP8, FP8_RECIPE_BLOCK),
                             tensor_b300 = planned_as(s, "b300", PRECISION_FP8, FP8_RECIPE_TENSOR);
    assert_true(tensor_b300.compute.gemms < mx_b300.compute.gemms &&
                mx_b300.compute.gemms < bf16_b300.compute.gemms);
    assert_true(nv_b300.compute.gemms < mx_b300.compute.gemms);
    assert_true(mx_b300.compute.memory > bf16_b300.compute.memory);
    near(block_b300.compute.gemms, bf16_b300.compute.gemms, 1e-9); /* cuBLASLt has them on Hopper alone */
    const struct mesh_result bf16_h100 = planned_as(s, "h100", PRECISION_BF16, FP8_RECIPE_BOUND),
                             mx_h100 = planned_as(s, "h100", PRECISION_MXFP8, FP8_RECIPE_BOUND),
                             nv_h100 = planned_as(s, "h100", PRECISION_NVFP4, FP8_RECIPE_BOUND),
                             block_h100 = planned_as(s, "h100", PRECISION_FP8, FP8_RECIPE_BLOCK),
                             bound_h100 = planned_as(s, "h100", PRECISION_FP8, FP8_RECIPE_BOUND);
    near(mx_h100.compute.gemms, bf16_h100.compute.gemms, 1e-9);
    assert_true(mx_h100.step > bf16_h100.step && nv_h100.step > bf16_h100.step);
    assert_true(bound_h100.step < block_h100.step && block_h100.compute.gemms < bf16_h100.compute.gemms);
    struct spec odd =
        s; /* 5504 is no multiple of 128 on its own, 8 more are not: those GEMMs read decoded codes */
    odd.model.ffn_size += 16;
    const struct mesh_result mx_odd = planned_as(odd, "b300", PRECISION_MXFP8, FP8_RECIPE_BOUND);
    assert_true(mx_odd.compute.gemms > 1.1 * mx_b300.compute.gemms);
    struct spec none = s;
    snprintf(none.run.fp8_exclude, sizeof none.run.fp8_exclude, "layers.[0-9]*.mlp.*");
    assert_true(planned_as(none, "b300", PRECISION_MXFP8, FP8_RECIPE_BOUND).compute.gemms >
                mx_b300.compute.gemms);
}

/* ZeRO 3 all-gathers the weights of linears as codes, a byte each; gradients and the other weights as in bf16. */
static void zero_3_moves_codes(void **state)
{
    (void)state;
    struct spec s = spec_of("llama-1b", 4096, 8);
    const struct mesh_variant v = variant(2, 1, 1, 3);
    struct mesh_result values, fp8;
    struct mesh_plan *p = open_plan(&s, "2xh200");
    assert_int_equal(mesh_plan_one(p, &v, &values), STATUS_OK);
    mesh_plan_close(p);
    s.run.train_precision = PRECISION_FP8;
    p = open_plan(&s, "2xh200");
    assert_int_equal(mesh_plan_one(p, &v, &fp8), STATUS_OK);
    const double codes = 973078528, sent = 0.5; /* elements; of the other rank, per gather, two gathers */
    const double less = values.dp.bytes - fp8.dp.bytes, want = fp8.micros * 2 * codes * sent;
    assert_true(fabs(less / want - 1) < 0.01);
    mesh_plan_close(p);
}

/* In one line each, before anything is laid out. */
static void what_fp8_cannot_is_refused(void **state)
{
    (void)state;
    struct spec s = spec_of("llama-1b", 4096, 8);
    struct cluster c;
    struct mesh_plan *p;
    struct mesh_result r;
    s.run.train_precision = PRECISION_FP8;
    assert_int_equal(cluster_parse("a100", &c), STATUS_OK);
    assert_int_equal(mesh_plan_open(&p, &s, &c), STATUS_CONFIG);
    assert_string_equal(status_message(), "train.precision fp8: a100 has no FP8; use bf16");
    const struct mesh_variant v = variant(2, 1, 1, 3);
    p = open_plan(&s, "2xh200");
    assert_int_equal(mesh_check_gpu(&s, &v.mesh), STATUS_OK);
    struct mesh_variant deferred = variant(1, 1, 2, 0);
    deferred.mesh.schedule = PIPELINE_ZB_H1;
    assert_int_equal(mesh_plan_one(p, &deferred, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "parallel.schedule zb_h1"));
    mesh_plan_close(p);
    s.model.ffn_size = 8200; /* of 16 */
    p = open_plan(&s, "h200");
    assert_int_equal(mesh_plan_given(p, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "FP8 GEMMs need multiples of 16"));
    mesh_plan_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_is_laid_out_as_a_run_does),
        cmocka_unit_test(current_is_laid_out_as_a_run_does),
        cmocka_unit_test(fp8_takes_its_predicted_time),
        cmocka_unit_test(experts_take_their_time_in_fp8),
        cmocka_unit_test(recipes_of_blocks_take_their_time),
        cmocka_unit_test(zero_3_moves_codes),
        cmocka_unit_test(what_fp8_cannot_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
