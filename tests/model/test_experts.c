/* Goal: ranks that shard the experts of a mixture (parallel.expert) do together what one rank does: losses, and of every parameter the
 * gradient.
 * Method: one rank's decoder goes through a micro-batch per rank; then processes with a part of the experts each, every one with its own
 * micro-batch. Gradients of experts need no sum where each expert is on one rank; all others are summed here. In f64 on the oracle, where a
 * wrong term cannot hide behind rounding, and in f32 on the fast set; with slices of each expert and without; every policy of recomputing;
 * dropless and with a capacity. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "model/decoder.h"
#include "model/init.h"
#include "model/support_ranks.h"
#include "parallel/tp_grad.h"

enum { N = 48, VOCAB = 56, RANKS_MAX = 4 };
static const int32_t cu[] = {0, 7, 8, 30, N};

struct work {
    struct decoder d;
    struct activations a;
    struct arena param, grad, optim, act, scratch;
    struct ops ops;
    struct exec run;
    struct tp_grad share;
    struct step_scalars scalars;
};
struct variant {
    struct model_spec spec;
    dtype dt;
    enum recompute policy;
    int ep, tp;
    double tol;
};

static bool work_open(struct work *w, const struct variant *v, const struct mesh *mesh)
{
    memset(w, 0, sizeof *w);
    struct arena *all[] = {&w->param, &w->grad, &w->optim, &w->act, &w->scratch};
    for (size_t i = 0; i < 5; i++)
        if (arena_reserve(all[i], "test", 1 << 23) != STATUS_OK) return false;
    if (v->dt == DTYPE_F64)
        ops_oracle(&w->ops);
    else if (ops_cpu(&w->ops, NULL) != STATUS_OK)
        return false;
    const struct decoder_layout_args params = {.dt = v->dt,
                                               .moment_dt = DTYPE_F32,
                                               .with_grad = 1,
                                               .positions = N,
                                               .arenas = {&w->param, &w->grad, &w->optim}};
    const struct layout layout = {.n = N,
                                  .docs_max = N,
                                  .len_max = N,
                                  .ops = &w->ops,
                                  .dt = v->dt,
                                  .mode = LAYOUT_TRAIN,
                                  .recompute = v->policy,
                                  .act = &w->act,
                                  .scratch = &w->scratch};
    if (decoder_init(&w->d, &v->spec, mesh) != STATUS_OK ||
        decoder_layout_params(&w->d, &params) != STATUS_OK ||
        activations_layout(&w->a, &w->d, &layout) != STATUS_OK)
        return false;
    tp_grad_layout(&w->share, &w->d.params, mesh, &w->grad);
    w->scalars = (struct step_scalars){.grad_scale = 0.05};
    w->run = (struct exec){.ops = &w->ops,
                           .params = &w->d.params,
                           .scalars = &w->scalars,
                           .tp = mesh ? mesh->tp : NULL,
                           .ep = mesh ? mesh->ep : NULL};
    return init_weights(&w->d, &w->run, 7) == STATUS_OK;
}

static void work_close(struct work *w)
{
    struct arena *all[] = {&w->param, &w->grad, &w->optim, &w->act, &w->scratch};
    for (size_t i = 0; i < 5; i++) arena_free(all[i]);
    activations_fini(&w->a);
    decoder_fini(&w->d);
}

/* Micro-batch number `micro`. Tokens of few kinds: some experts get much, some nothing. */
static bool work_do(struct work *w, int micro, enum accum accum)
{
    int32_t tokens[N], targets[N], positions[N];
    for (int t = 0, doc = 0; t < N; t++) {
        if (t == cu[doc + 1]) doc++;
        positions[t] = t - cu[doc];
        tokens[t] = (int32_t)(rng_uniform(1, RNG_TEST, (uint64_t)micro, (uint64_t)t) * (micro ? VOCAB : 3));
        targets[t] = (int32_t)(rng_uniform(2, RNG_TEST, (uint64_t)micro, (uint64_t)t) * VOCAB);
    }
    const struct batch b = {.rows = N,
                            .docs = 4,
                            .len_max = N,
                            .tokens = tokens,
                            .targets = targets,
                            .positions = positions,
                            .cu_seqlens = cu};
    w->run.accum = accum;
    return decoder_fwd_bwd(&w->d, &w->a, &b, 0.01, &w->run) == STATUS_OK;
}

static bool near(const char *what, double x, double want, double tol)
{
    if (fabs(x - want) <= tol * fabs(want) + 1e-300) return true;
    fprintf(stderr, "%s: %.17g, whole %.17g\n", what, x, want);
    return false;
}

/* Weights begin as the whole model's, and what this rank has of a gradient is that of the whole one. */
static bool same_row(const struct work *w, const struct work *whole, int row, double tol)
{
    const struct params *p = &w->d.params;
    const char *name = p->rows[row].name;
    const int other = params_find(&whole->d.params, name);
    const dtype acc = dtype_acc(p->dt);
    double error = 0, size = 0;
    for (int64_t k = 0; k < p->rows[row].count; k++) {
        const int64_t from = params_line(p, row, params_place(p), k).global;
        const double g = dtype_load(params_grad(&whole->d.params, other), from, acc);
        if (dtype_load(params_master(p, row), k, acc) !=
            dtype_load(params_master(&whole->d.params, other), from, acc)) {
            fprintf(stderr, "%s begins otherwise\n", name);
            return false;
        }
        error += pow(dtype_load(params_grad(p, row), k, acc) - g, 2), size += g * g;
    }
    if (error <= tol * tol * size) return true;
    fprintf(stderr, "gradient of %s: off by %.3g of its length\n", name, sqrt(error / size));
    return false;
}

struct whole_run {
    const struct variant *v;
    struct work *work;
};

/* Sums over dp what every rank holds, and over tp what its ranks compute in part. */
static bool sum_gradients(struct work *w, const struct mesh *mesh)
{
    const struct params *p = &w->d.params;
    const dtype acc = dtype_acc(p->dt);
    static char scratch[1 << 18];
    for (int i = 0; i < p->count; i++) {
        const int64_t from = params_summed(p, i), part = p->rows[i].count - from;
        char *grad = params_grad(p, i);
        if (p->dt == DTYPE_F64 && comm_all_reduce(mesh->tp, "slices", grad + (size_t)from * dtype_bytes(acc),
                                                  part, acc, scratch, NULL) != STATUS_OK)
            return false;
        if (!p->rows[i].experts_sharded &&
            comm_all_reduce(mesh->dp, "row", grad, p->rows[i].count, acc, scratch, NULL) != STATUS_OK)
            return false;
    }
    return p->dt == DTYPE_F64 || tp_grad_all_reduce(&w->share, p, NULL) == STATUS_OK;
}

static bool rank_part(struct comm *c, const void *arg)
{
    const struct whole_run *whole = arg;
    const struct variant *v = whole->v;
    const struct mesh_shape shape = {
        .pp = 1, .dp = v->ep, .tp = v->tp, .chunks = 1, .shard = v->ep, .ep = v->ep};
    struct mesh mesh;
    struct work w;
    if (mesh_open(&mesh, &shape, c) != STATUS_OK || !work_open(&w, v, &mesh)) return false;
    if (!work_do(&w, mesh.dp_rank, ACCUM_STORE) || !sum_gradients(&w, &mesh)) return false;
    double sums[2] = {w.scalars.loss_sum, w.scalars.aux_sum};
    if (comm_all_reduce_f64(mesh.dp, "losses", sums, 2, NULL) != STATUS_OK) return false;
    bool good = near("loss", sums[0], whole->work->scalars.loss_sum, v->tol) &
                near("costs", sums[1], whole->work->scalars.aux_sum, v->tol);
    for (int i = 0; i < w.d.params.count; i++) good &= same_row(&w, whole->work, i, v->tol);
    work_close(&w);
    return good;
}

static void check(const struct model_spec *spec)
{
    static const struct {
        int ep, tp;
    } meshes[] = {{2, 1}, {4, 1}, {2, 2}};
    for (int i = 0; i < 4; i++)
        for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++) {
            const bool exact = i < 3;
            const struct variant v = {.spec = *spec,
                                      .dt = exact ? DTYPE_F64 : DTYPE_F32,
                                      .policy = (enum recompute)(i % 3),
                                      .ep = meshes[k].ep,
                                      .tp = meshes[k].tp,
                                      .tol = exact ? 1e-12 : 1e-6};
            struct work whole;
            assert_true(work_open(&whole, &v, NULL));
            for (int micro = 0; micro < v.ep; micro++)
                assert_true(work_do(&whole, micro, micro ? ACCUM_ADD : ACCUM_STORE));
            expect_ranks(v.ep * v.tp, rank_part, &(struct whole_run){&v, &whole});
            work_close(&whole);
        }
}

static struct model_spec spec_of(int overrides, char *words[])
{
    struct spec s;
    const status st = spec_load(&s, NULL, overrides, words, NULL);
    if (st != STATUS_OK) print_error("%s\n", status_message());
    assert_int_equal(st, STATUS_OK);
    return s.model;
}
#define SMALL                                                                                                \
    "--model.layer_count=2", "--model.hidden_size=32", "--model.head_count=2", "--model.ffn_size=32",        \
        "--model.vocab_size=56", "--model.context_length=48", "--model.moe_experts=8",                       \
        "--model.moe_size=16", "--train.steps=1", "--train.batch_tokens=48", "--train.sequence_length=48"

static void test_softmax(void **state)
{
    (void)state;
    const struct model_spec m = spec_of(
        14, (char *[]){SMALL, "--model.layers=gqa/moe", "--model.moe_top_k=2", "--model.moe_aux=0.01"});
    check(&m);
}
static void test_deepseek(void **state)
{
    (void)state;
    const struct model_spec m = spec_of(
        21, (char *[]){SMALL, "--model.layers=gqa;gqa/moe", "--model.moe_top_k=3",
                       "--model.moe_router=sigmoid", "--model.moe_groups=4", "--model.moe_groups_kept=2",
                       "--model.moe_scale=2.5", "--model.moe_aux_kind=sequence", "--model.moe_aux=1e-3",
                       "--model.moe_z=1e-4", "--model.moe_shared_size=16"});
    struct model_spec gated = m;
    check(&m);
    gated.moe_shared_gate = true;
    check(&gated);
}
static void test_capacity(void **state)
{
    (void)state;
    const struct model_spec m = spec_of(15, (char *[]){SMALL, "--model.layers=gqa/moe", "--model.moe_top_k=4",
                                                       "--model.moe_capacity=0.75", "--model.moe_aux=0.01"});
    check(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_capacity),
    };
    parallel_threads_set(1); /* forked processes have no other threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
