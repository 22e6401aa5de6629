/* Context and expert parallelism in plans: memory, bytes on the wire, time, and a search over all axes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/assume.h"
#include "plan/mesh_fixture.h"

/* Ranks of a sequence: memory as a run lays it out, an equal part of the compute, keys and values on the wire, and a state that dp x cp ranks
 * share. */
static void context_ranks_share_sequences(void **state)
{
    (void)state;
    struct spec s = spec_of("nano", 512, 8);
    struct mesh_variant v = variant(1, 1, 1, 1);
    v.mesh.cp = v.mesh.shard = 2;
    laid_out_as_a_run_does(&s, &v, "cp 2");
    v = variant(1, 1, 2, 1);
    v.mesh.cp = v.mesh.shard = 2;
    laid_out_as_a_run_does(&s, &v, "cp 2 beside pp");

    const char *layers[] = {"swa,gqa", "mla", "gdn,gqa", "mamba2,gqa", "gqa/moe"};
    for (int i = 0; i < 5 * 3 * 2; i++) {
        s = spec_of("nano", 64, 16);
        struct model_spec *m = &s.model;
        snprintf(m->layers, sizeof m->layers, "%s", layers[i % 5]);
        m->vocab_size = 520, m->hidden_size = 256, m->head_count = m->head_count_kv = 8, m->ffn_size = 512;
        m->window = 9, m->mla_kv_rank = 64, m->mla_nope_dim = 32, m->mla_rope_dim = 16, m->mla_value_dim = 32;
        m->gdn_key_heads = m->gdn_value_heads = 4, m->gdn_key_dim = m->gdn_value_dim = 16;
        m->mamba_heads = 16, m->mamba_head_dim = 32, m->mamba_groups = 4, m->mamba_state = 16;
        m->moe_experts = 8, m->moe_top_k = 2, m->moe_size = 64, m->moe_aux = 0;
        v = variant(2, i % 5 == 1 ? 1 : 2, 1 + i / 15,
                    i / 15 ? 1 : 3); /* whole latents are not spread evenly over shards */
        v.mesh.cp = 2, v.mesh.shard = 4, v.mesh.context_kind = (enum context_kind)(i / 5 % 3);
        v.recompute = (enum recompute)(i % 3), v.micro_batch = s.run.train_micro_batch = 2;
        s.run.train_recompute = (int)v.recompute;
        laid_out_as_a_run_does(&s, &v, layers[i % 5]);
    }

    s = spec_of("7b", 8192, 8);
    struct mesh_plan *p = open_plan(&s, "16xh100");
    struct mesh_result without, with;
    v = variant(4, 4, 1, 1);
    assert_int_equal(mesh_plan_one(p, &v, &without), STATUS_OK);
    v = variant(2, 4, 1, 1);
    v.mesh.cp = 2, v.mesh.shard = 4;
    assert_int_equal(mesh_plan_one(p, &v, &with), STATUS_OK);
    assert_int_equal(with.micros, 2 * without.micros); /* of half the tokens */
    near(with.compute.mixing, without.compute.mixing, 1e-9);
    near(with.dp.bytes, without.dp.bytes, 1e-9);
    near(with.stages[0].memory.optim, without.stages[0].memory.optim, 1e-3);
    assert_true(with.stages[0].memory.act < 0.6 * without.stages[0].memory.act);
    /* 32 layers; k and v of 8 heads of 128 in bf16; gathered twice, scattered once; 4 micro-batches */
    near(with.cp.bytes, 4 * 3 * 32 * 2.0 * 8 * 128 * 8192 * 2 / 2, 1e-9);
    assert_true(with.cp.exposed > 0 && with.cp.exposed < 0.2 * with.step && without.cp.bytes == 0);
    near(with.mfu * with.step, without.mfu * without.step, 1e-9);
    /* a ring of two sends as much; heads: q, k, v and output there, q, k, v, output, its gradient and all gradients back */
    v.mesh.context_kind = CONTEXT_RING;
    assert_int_equal(mesh_plan_one(p, &v, &without), STATUS_OK);
    near(without.cp.bytes, with.cp.bytes, 1e-9);
    v.mesh.context_kind = CONTEXT_ULYSSES;
    assert_int_equal(mesh_plan_one(p, &v, &without), STATUS_OK);
    near(without.cp.bytes, 4 * 32 * (3 + 1 + 5 + 3.0) * 8 * 128 * 4096 * 2 / 2, 1e-9);
    mesh_plan_close(p);
}

/* Experts that ranks shard: memory as a run lays it out; rows of chosen experts on the wire; the time of an even load, and of one that is not. */
static void expert_ranks_share_experts(void **state)
{
    (void)state;
    for (int i = 0; i < 84; i++) {
        const int pp = 1 + i % 2, tp = 1 + i / 2 % 2, zero = i / 4 % 3 ? (i < 36 ? 1 : 2 + i / 24 % 2) : 0,
                  shard = i / 4 % 3 == 2 ? 4 : 8, cp = i < 60 ? 1 : 2;
        struct spec s = spec_of("nano", 64, 32);
        struct model_spec *m = &s.model;
        struct mesh_variant v = variant(8 / cp, tp, pp, zero);
        char what[32];
        v.mesh.cp = cp;
        snprintf(m->layers, sizeof m->layers, "gqa;gqa/moe");
        m->vocab_size = 520, m->hidden_size = 256, m->head_count = m->head_count_kv = 8, m->ffn_size = 512;
        m->moe_experts = 16, m->moe_top_k = 2, m->moe_size = 64, m->moe_shared_size = 128;
        m->moe_capacity = i % 5 == 0 ? 1.5 : 0,
        m->mtp_depth = tp == 1 ? i / 12 % 2 : 0; /* whole projections are not spread evenly over shards */
        v.mesh.ep = i / 4 % 2 ? 4 : 2, v.mesh.shard = shard;
        v.recompute = (enum recompute)(i / 12 % 3), v.micro_batch = s.run.train_micro_batch = 2;
        s.run.train_recompute = (int)v.recompute;
        if (zero == 0 && i % 3 == 0) s.run.optim_name = OPTIM_MUON;
        snprintf(what, sizeof what, "experts, case %d", i);
        laid_out_as_a_run_does(&s, &v, what);
    }
    struct spec s = spec_of("7b", 4096, 64);
    snprintf(s.model.layers, sizeof s.model.layers, "gqa/moe");
    s.model.moe_experts = 64, s.model.moe_top_k = 8, s.model.moe_size = 1024;
    struct mesh_plan *p = open_plan(&s, "64xh100");
    struct mesh_result whole, shared, uneven;
    struct mesh_variant v = variant(64, 1, 1, 1);
    assert_int_equal(mesh_plan_one(p, &v, &whole), STATUS_OK);
    v.mesh.ep = 8;
    assert_int_equal(mesh_plan_one(p, &v, &shared), STATUS_OK);
    /* 32 layers; 4 exchanges of 8 rows of 4096 in bf16 per token, 2 of 8 weights in fp32, counts of 64 experts of 8 ranks */
    near(shared.ep.bytes, 32 * 7. / 8 * (4 * 4096. * 8 * 4096 * 2 + 2 * 4096. * 8 * 4 + 4 * 64 * 8), 1e-9);
    assert_true(shared.ep.exposed > 0 && shared.ep.exposed == shared.ep.seconds && whole.ep.bytes == 0);
    const double experts = 32 * 3 * 64 * 4096. * 1024;
    near(whole.stages[0].count - shared.stages[0].count, experts * 7 / 8, 1e-3);
    near(shared.stages[0].experts, experts / 8, 1e-3);
    near(shared.stages[0].memory.optim, whole.stages[0].memory.optim,
         1e-2); /* all of dp shards it either way */
    /* gradients and weights of experts go to 8 ranks instead of 64 */
    near(whole.dp.bytes - shared.dp.bytes, 6 * experts * (63. / 64 - 7. / 8 / 8), 1e-2);
    mesh_plan_close(p);
    struct assume assume = assume_default();
    struct cluster c;
    assert_int_equal(cluster_parse("64xh100", &c), STATUS_OK);
    assert_int_equal(assume_read("imbalance=1.5,overlap_ep=0.5", &assume), STATUS_OK);
    c.assume = &assume;
    assert_int_equal(mesh_plan_open(&p, &s, &c), STATUS_OK);
    assert_int_equal(mesh_plan_one(p, &v, &uneven), STATUS_OK);
    near(uneven.ep.bytes, 1.5 * shared.ep.bytes, 1e-3);
    near(uneven.ep.exposed, 0.5 * uneven.ep.seconds, 1e-9);
    assert_true(uneven.compute.gemms > 1.2 * shared.compute.gemms);
    mesh_plan_close(p);
}

/* All five axes in one search: a mixture that no device has room for without sharding its experts. */
static void a_search_goes_over_five_axes(void **state)
{
    (void)state;
    struct spec s = spec_of("7b", 32768, 64);
    snprintf(s.model.layers, sizeof s.model.layers, "gqa/moe");
    s.model.moe_experts = 64, s.model.moe_top_k = 4, s.model.moe_size = 4096, s.model.moe_aux = 0;
    struct mesh_plan *p = open_plan(&s, "64xh100");
    struct mesh_list list;
    bool experts = false, context = false;
    assert_int_equal(mesh_plan_search(p, &list), STATUS_OK);
    for (int i = 0; i < list.count; i++) {
        const struct mesh_shape *m = &list.best[i].variant.mesh;
        assert_int_equal(mesh_ranks(m), 64);
        experts |= mesh_ep(m) > 1, context |= mesh_cp(m) > 1;
    }
    assert_true(experts && context);
    mesh_list_free(&list);
    const struct mesh_asked asked = {.tp = 2, .pp = 4, .ep = 4};
    assert_int_equal(mesh_plan_search_one(p, &asked, &list), STATUS_OK);
    const struct mesh_shape *m = list.count > 0 ? &list.best[0].variant.mesh : &list.least.variant.mesh;
    assert_true(m->tp == 2 && m->pp == 4 && m->cp == 1 && m->ep == 4 && m->dp == 8);
    mesh_list_free(&list);
    mesh_plan_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_ranks_share_sequences),
        cmocka_unit_test(expert_ranks_share_experts),
        cmocka_unit_test(a_search_goes_over_five_axes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
