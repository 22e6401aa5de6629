/* Goal: the ranks of a tensor-parallel group do together what one rank does: losses, hits, and of every parameter the gradient.
 * Method: one rank's decoder first; then processes with slices of its weights, each of which compares the gradient of its slice with that
 * of the whole. In f64 on the oracle, where a wrong term cannot hide behind rounding, and in f32 on the fast set; with every policy of
 * recomputing, packed documents, and a head that works in chunks; exchanges between the GEMMs, and beside them as on GPUs, block by
 * block, but each at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <xxhash.h>
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

enum { N = 96, VOCAB = 56, RANKS_MAX = 4 };

struct work {
    struct decoder d;
    struct activations a;
    struct arena param, grad, optim, act, scratch;
    struct ops ops;
    struct exec run;
    struct tp_grad share;
    struct side_stream side_stream;
    struct sp_overlap way;
    struct step_scalars scalars;
};
static const int32_t cu[] = {0, 7, 8, 60, N};
static int32_t tokens[N], targets[N], positions[N];

static struct batch make_batch(void)
{
    for (int t = 0, doc = 0; t < N; t++) {
        if (t == cu[doc + 1]) doc++;
        positions[t] = t - cu[doc];
        tokens[t] = (int32_t)(rng_uniform(1, RNG_TEST, 0, (uint64_t)t) * VOCAB);
        targets[t] = t % 5 == 3 ? TARGET_IGNORE : (int32_t)(rng_uniform(1, RNG_TEST, 1, (uint64_t)t) * VOCAB);
    }
    return (struct batch){.rows = N,
                          .docs = 4,
                          .len_max = N,
                          .tokens = tokens,
                          .targets = targets,
                          .positions = positions,
                          .cu_seqlens = cu};
}

struct variant {
    struct model_spec spec;
    dtype dt;
    enum recompute policy;
    enum sp_mode how;
    double tol; /* of what is compared, relatively */
};

/* Weights are left as init_weights makes them. False: something failed. */
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
    w->ops.logits_max = 1; /* chunks of 64 rows */
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
    w->scalars = (struct step_scalars){.grad_scale = 0.05, .mtp_scale = 0.02};
    w->run = (struct exec){
        .ops = &w->ops, .params = &w->d.params, .scalars = &w->scalars, .tp = mesh ? mesh->tp : NULL};
    if (side_stream_open(&w->side_stream, NULL) != STATUS_OK ||
        sp_overlap_open(&w->way, &w->side_stream, w->run.tp) != STATUS_OK)
        return false;
    if (w->way.side_stream && v->how == SP_OVERLAP) w->run.sp_overlap = &w->way;
    return init_weights(&w->d, &w->run, 7) == STATUS_OK;
}

/* Evaluation's hits and loss, then a step's loss and gradients. */
struct sums {
    double eval, hits, loss, cost, extra;
};
static bool work_do(struct work *w, struct sums *s)
{
    const struct batch b = make_batch();
    if (decoder_loss(&w->d, &w->a, &b, 0, &w->run) != STATUS_OK) return false;
    s->eval = w->scalars.loss_sum, s->hits = w->scalars.hits;
    w->scalars.loss_sum = 0;
    if (decoder_fwd_bwd(&w->d, &w->a, &b, 0.01, &w->run) != STATUS_OK) return false;
    s->loss = w->scalars.loss_sum, s->cost = w->scalars.aux_sum, s->extra = w->scalars.mtp_loss_sum;
    return true;
}

static void work_close(struct work *w)
{
    activations_fini(&w->a);
    decoder_fini(&w->d);
    struct arena *all[] = {&w->param, &w->grad, &w->optim, &w->act, &w->scratch};
    for (size_t i = 0; i < 5; i++) arena_free(all[i]);
}

static bool near(const char *what, double got, double want, double tol)
{
    if (fabs(got - want) <= tol * fabs(want)) return true;
    fprintf(stderr, "%s: %.17g, one rank has %.17g\n", what, got, want);
    return false;
}

/* Takes this rank's slice of the full weights, and checks that init_weights drew the same. */
static bool take_weights(struct work *w, const struct work *whole)
{
    const dtype acc = dtype_acc(w->d.params.dt);
    bool same = true;
    for (int i = 0; i < w->d.params.count; i++) {
        const bool drawn = w->d.params.rows[i].rank == 2 && !w->d.params.rows[i].zero;
        for (int64_t k = 0; k < w->d.params.rows[i].count; k++) {
            const int64_t from = params_line(&w->d.params, i, w->d.params.tp_rank, k).global;
            const double v = dtype_load(params_master(&whole->d.params, i), from, acc);
            same &= !drawn || dtype_load(params_master(&w->d.params, i), k, acc) == v;
            dtype_store(params_master(&w->d.params, i), k, acc, v);
        }
        if (!same) fprintf(stderr, "%s begins otherwise\n", w->d.params.rows[i].name);
    }
    return same;
}

/* Sums of squares: of this rank's slice of a gradient minus the full one's, and of the full one's. */
struct distance {
    double error, size;
};
static struct distance distance(const struct work *w, const struct work *whole, int row)
{
    const dtype acc = dtype_acc(w->d.params.dt);
    struct distance d = {0};
    for (int64_t k = 0; k < whole->d.params.rows[row].count; k++)
        d.size += pow(dtype_load(params_grad(&whole->d.params, row), k, acc), 2);
    for (int64_t k = 0; k < w->d.params.rows[row].count; k++) {
        const int64_t from = params_line(&w->d.params, row, w->d.params.tp_rank, k).global;
        d.error += pow(dtype_load(params_grad(&w->d.params, row), k, acc) -
                           dtype_load(params_grad(&whole->d.params, row), from, acc),
                       2);
    }
    return d;
}

static bool within(const char *what, const struct distance *d, double tol)
{
    if (d->size > 0 && d->error <= tol * tol * d->size) return true;
    fprintf(stderr, "gradient of %s: off by %.3g of its length\n", what, sqrt(d->error / d->size));
    return false;
}

/* All gradients together within `tol` of their length, and each row, which may be a small rest of large terms, within four times as much. */
static bool same_gradients(const struct work *w, const struct work *whole, double tol)
{
    struct distance all = {0};
    bool same = true;
    for (int i = 0; i < w->d.params.count; i++) {
        const struct distance d = distance(w, whole, i);
        same &= within(w->d.params.rows[i].name, &d, 4 * tol);
        all.error += d.error, all.size += d.size;
    }
    return same & within("all parameters", &all, tol);
}

struct whole_run {
    const struct variant *v;
    struct work *work;
    struct sums sums;
};

/* A rank's part; true: as in the whole model. */
static bool rank_part(struct comm *c, const void *arg)
{
    const struct whole_run *whole = arg;
    const struct mesh_shape shape = {.pp = 1, .dp = 1, .tp = comm_ranks(c), .chunks = 1, .shard = 1};
    const double tol = whole->v->tol;
    struct mesh mesh;
    struct work w;
    struct sums s;
    if (mesh_open(&mesh, &shape, c) != STATUS_OK || !work_open(&w, whole->v, &mesh)) return false;
    bool good = take_weights(&w, whole->work);
    if (!work_do(&w, &s)) return false;
    char scratch[1 << 14];
    for (int i = 0; i < w.d.params.count && whole->v->dt == DTYPE_F64; i++) {
        const int64_t from = params_summed(&w.d.params, i), count = w.d.params.rows[i].count - from;
        if (count == 0) continue;
        if (comm_all_reduce_scratch(shape.tp, count, DTYPE_F64) > sizeof scratch ||
            comm_all_reduce(mesh.tp, "row", (double *)params_grad(&w.d.params, i) + from, count, DTYPE_F64,
                            scratch, NULL) != STATUS_OK)
            return false;
    }
    if (whole->v->dt == DTYPE_F32 && tp_grad_all_reduce(&w.share, &w.d.params, NULL) != STATUS_OK)
        return false;
    good &= near("evaluation", s.eval, whole->sums.eval, tol) & near("hits", s.hits, whole->sums.hits, 0) &
            near("loss", s.loss, whole->sums.loss, tol) & near("costs", s.cost, whole->sums.cost, tol) &
            near("extra predictions", s.extra, whole->sums.extra, tol);
    good &= same_gradients(&w, whole->work, tol);
    work_close(&w);
    return good;
}

static void check(const struct model_spec *spec, double tol_f32)
{
    for (int i = 0; i < 8; i++) {
        const dtype dt = i < 6 ? DTYPE_F64 : DTYPE_F32;
        const struct variant v = {.spec = *spec,
                                  .dt = dt,
                                  .policy = (enum recompute)(i / 2 % 3),
                                  .how = (enum sp_mode)(i % 2),
                                  .tol = dt == DTYPE_F64 ? 1e-12 : tol_f32};
        struct work *w = malloc(sizeof *w);
        struct whole_run whole = {.v = &v, .work = w};
        assert_non_null(w);
        assert_true(work_open(w, &v, NULL));
        /* Norms at one, biases and what else begins at zero would hide errors: they are moved, by their names alone. */
        for (int r = 0; r < w->d.params.count; r++)
            for (int64_t k = 0; k < w->d.params.rows[r].count; k++) {
                if (w->d.params.rows[r].rank == 2 && !w->d.params.rows[r].zero) break;
                void *at = params_master(&w->d.params, r);
                const dtype acc = dtype_acc(v.dt);
                const uint64_t key = XXH64(w->d.params.rows[r].name, strlen(w->d.params.rows[r].name), 0);
                dtype_store(at, k, acc,
                            dtype_load(at, k, acc) + 0.3 * rng_normal(4, RNG_TEST, key, (uint64_t)k));
            }
        assert_true(work_do(w, &whole.sums));
        for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2) expect_ranks(ranks, rank_part, &whole);
        work_close(w);
        free(w);
    }
}

static struct model_spec base_spec(void)
{
    struct model_spec s;
    model_spec_default(&s);
    s.vocab_size = VOCAB;
    s.layer_count = 2;
    s.hidden_size = 16;
    s.ffn_size = 24;
    s.head_count = 8;
    s.head_count_kv = 4;
    s.head_dim = 8;
    s.context_length = N;
    s.init_std = 0.3;
    return s;
}

static void gpt2_on_several_ranks_is_one(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.norm = NORM_LAYERNORM, s.activation = ACT_GELU, s.position = POS_LEARNED, s.tied_embeddings = true;
    s.head_count_kv = 8, s.qkv_bias = s.out_bias = s.mlp_bias = true;
    check(&s, 1e-6);
}

static void llama_on_several_ranks_is_one(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.tied_embeddings = false;
    check(&s, 1e-6);
}

static void qwen3_on_several_ranks_is_one(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.tied_embeddings = true, s.qk_norm = true;
    check(&s, 1e-6);
}

static void gates_windows_and_centred_norms_are_shared(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.attention_gate = s.norm_zero_centered = s.qk_norm = true;
    s.rope_fraction = 0.25, s.window = 9;
    snprintf(s.layers, sizeof s.layers, "swa,gqa");
    check(&s, 1e-6);
}

static void latent_attention_is_shared_by_heads(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "mla,gqa");
    s.mla_heads = 4, s.mla_q_rank = 12, s.mla_kv_rank = 8, s.mla_nope_dim = 6, s.mla_rope_dim = 4;
    s.mla_value_dim = 5;
    check(&s, 1e-6);
    s.mla_q_rank = 0;
    check(&s, 1e-6);
}

static void delta_rules_are_shared_by_heads(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "gdn,gqa");
    s.gdn_key_heads = 4, s.gdn_value_heads = 8, s.gdn_key_dim = 8, s.gdn_value_dim = 4, s.gdn_conv = 3;
    check(&s, 2e-6); /* the rule divides by lengths of keys */
}

static void states_are_shared_by_groups(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "mamba2,gqa");
    s.mamba_heads = 8, s.mamba_head_dim = 4, s.mamba_groups = 4, s.mamba_state = 6, s.mamba_conv = 3;
    check(&s, 1e-6);
}

/* Every expert's width is shared, tokens choose alike on all ranks, some are dropped, and costs have their gradient once. */
static struct model_spec mixture_spec(void)
{
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "gqa/moe");
    s.moe_experts = 6, s.moe_top_k = 2, s.moe_size = 8, s.moe_aux = 0.5, s.moe_z = 0.1;
    return s;
}

static void experts_are_shared_by_width(void **state)
{
    (void)state;
    struct model_spec s = mixture_spec();
    s.moe_shared_size = 12, s.moe_shared_gate = true, s.moe_capacity = 1.1;
    check(&s, 1e-6);
}

static void grouped_experts_are_shared_by_width(void **state)
{
    (void)state;
    struct model_spec s = mixture_spec();
    s.moe_router = ROUTER_SIGMOID, s.moe_groups = 3, s.moe_groups_kept = 2, s.moe_scale = 2.5;
    s.moe_aux_kind = AUX_SEQUENCE, s.moe_shared_size = 4, s.moe_balance_rate = 0.01;
    check(&s, 1e-6);
}

static void tables_are_shared_by_columns(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.engram_layers, sizeof s.engram_layers, "0,1");
    s.engram_heads = 2, s.engram_dim = 64, s.engram_base = 20;
    check(&s, 2e-6); /* the gate is steep where key and stream have nothing in common */
}

static void extra_predictions_are_shared(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.mtp_depth = 2, s.tied_embeddings = true;
    check(&s, 1e-6);
    s.tied_embeddings = false, s.position = POS_LEARNED, s.norm = NORM_LAYERNORM;
    check(&s, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_on_several_ranks_is_one),
        cmocka_unit_test(llama_on_several_ranks_is_one),
        cmocka_unit_test(qwen3_on_several_ranks_is_one),
        cmocka_unit_test(latent_attention_is_shared_by_heads),
        cmocka_unit_test(delta_rules_are_shared_by_heads),
        cmocka_unit_test(gates_windows_and_centred_norms_are_shared),
        cmocka_unit_test(states_are_shared_by_groups),
        cmocka_unit_test(tables_are_shared_by_columns),
        cmocka_unit_test(extra_predictions_are_shared),
        cmocka_unit_test(experts_are_shared_by_width),
        cmocka_unit_test(grouped_experts_are_shared_by_width),
    };
    parallel_threads_set(1); /* a process that forks must not have threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
