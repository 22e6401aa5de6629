/* What the tests of plans for many devices share. */
#ifndef INGOT_TESTS_PLAN_MESH_FIXTURE_H
#define INGOT_TESTS_PLAN_MESH_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "plan/mesh_plan.h"

static inline void near(double got, double wanted, double relative)
{
    if (fabs(got - wanted) > relative * fabs(wanted)) fail_msg("%.9g, wanted %.9g", got, wanted);
}

static inline struct spec spec_of(const char *preset, int64_t sequence, int64_t sequences)
{
    struct spec s;
    assert_int_equal(preset_find(preset, &s.model), STATUS_OK);
    run_spec_default(&s.run);
    if (s.model.vocab_size == 0) s.model.vocab_size = 512;
    if (s.model.context_length < sequence) s.model.context_length = sequence;
    s.run.train_steps = 1;
    s.run.train_sequence_length = sequence;
    s.run.train_batch_tokens = sequence * sequences;
    spec_resolve(&s);
    return s;
}

static inline struct mesh_plan *open_plan(const struct spec *s, const char *machine)
{
    struct cluster c;
    struct mesh_plan *p;
    assert_int_equal(cluster_parse(machine, &c), STATUS_OK);
    assert_int_equal(mesh_plan_open(&p, s, &c), STATUS_OK);
    return p;
}

static inline struct mesh_variant variant(int dp, int tp, int pp, int zero)
{
    return (struct mesh_variant){
        .mesh =
            {.dp = dp, .tp = tp, .pp = pp, .chunks = 1, .zero = zero, .shard = dp, .schedule = PIPELINE_1F1B},
        .micro_batch = 1};
}

/* Ranks of every stage of a variant compared with plan_layout: as the search takes them, act and scratch byte for byte,
 * and the state, whose optimizer's tables and tensor-parallel gradient reductions it spreads evenly, nearly; as the
 * plan prints them, every byte. */
static inline void laid_out_as_a_run_does(const struct spec *s, const struct mesh_variant *v,
                                          const char *what)
{
    struct mesh_result r;
    struct ops ops;
    assert_int_equal(ops_cpu(&ops, NULL), STATUS_OK);
    struct mesh_plan *p = open_plan(s, "16xcpu");
    struct mesh_result printed;
    if (mesh_plan_one(p, v, &r) != STATUS_OK) fail_msg("%s: %s", what, status_message());
    printed = r;
    assert_int_equal(mesh_plan_layout(p, &printed), STATUS_OK);
    for (int rank = 0; rank < v->mesh.pp; rank++) {
        const struct mesh mesh = mesh_place(&v->mesh, rank * v->mesh.tp * mesh_dp_cp(&v->mesh));
        const struct mesh_memory *mine = &r.stages[rank].memory;
        struct decoder d;
        struct rank_state state;
        struct activations a = {0};
        struct memory m = {0};
        struct plan_layout_args args = plan_args(s, &mesh);
        args.ops = &ops, args.kind = DEV_CPU;
        if (v->mesh.zero >= 2) args.gradient_groups = plan_micro_count(s); /* as a run resolves them */
        assert_int_equal(decoder_init(&d, &s->model, &mesh), STATUS_OK);
        assert_int_equal(plan_layout(&m, &d, &state, &a, &args), STATUS_OK);
        if (fabs(mine->act - (double)m.act.peak) > 0.5)
            fail_msg("%s, rank %d: act %.0f, plan_layout %zu", what, rank, mine->act, m.act.peak);
        assert_true(fabs(mine->scratch - (double)m.scratch.peak) < 0.5);
        const double state_bytes = mine->weights + mine->grads + mine->optim + mine->buffers;
        const double laid = (double)m.param.peak + (double)m.grad.peak + (double)m.optim.peak;
        if (fabs(state_bytes - laid) > 0.02 * laid)
            fail_msg("%s, rank %d: state %.0f, plan_layout %.0f", what, rank, state_bytes, laid);
        const double whole = laid + (double)(m.act.peak + m.scratch.peak + m.input.peak) + mine->communication;
        if (printed.stages[rank].first_bytes != whole || mesh_memory_sum(&printed.stages[rank].memory) < whole)
            fail_msg("%s, rank %d: printed %.0f, plan_layout %.0f", what, rank, printed.stages[rank].first_bytes,
                     whole);
        activations_fini(&a);
        decoder_fini(&d);
    }
    mesh_plan_close(p);
}
#endif
