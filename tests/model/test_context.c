/* Goal: context-parallel ranks do together what one rank does: losses, hits, and of every parameter the gradient.
 * Method: one process computes the whole micro-batch; each rank computes its part of it with the others, and compares the sums over ranks. Two
 * sequences of packed documents, with a border at every offset; in f64 on the oracle, where a wrong term cannot hide behind rounding, and in
 * f32 on the fast set; with every policy of recomputing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "model/decoder.h"
#include "model/init.h"
#include "model/support_ranks.h"

enum { T = 48, N = 2 * T, VOCAB = 56, RANKS_MAX = 4, SCRATCH = 1 << 20 };

struct variant {
    struct model_spec spec;
    dtype dt;
    enum recompute policy;
    enum context_kind kind;
    double tol;                    /* of what is compared, relatively */
    int borders;                   /* step from one to the next */
    const struct reference *whole; /* [T] by border */
};
struct work {
    struct decoder d;
    struct activations a;
    struct arena param, grad, optim, act, scratch;
    struct ops ops;
    struct exec run;
    struct context context;
    struct step_scalars scalars;
};
static int32_t cu[6], tokens[N], targets[N], positions[N];

/* Under sanitizers, ten times slower, of all borders those at and behind the ends of the chunks of four ranks, and the last: in the second sequence
 * they are at and before them. What is read between is read by the same loops; all are compared without sanitizers. */
static bool looked_at(const struct variant *v, int border)
{
#ifdef __SANITIZE_ADDRESS__
    enum { CHUNK = T / (2 * RANKS_MAX) };
    return v->borders > 1 || border % CHUNK <= 1 || border == T - 1;
#else
    (void)v;
    return border > 0;
#endif
}

/* Borders at b in the first sequence, at T - b in the second, and, with b > 1, one token before. */
static struct batch make_batch(int b)
{
    const int32_t all[] = {0, b, T, N - b - (b > 1 && b < T), N - b, N};
    memcpy(cu, all, sizeof cu);
    for (int t = 0, doc = 0; t < N; t++) {
        while (t >= cu[doc + 1]) doc++;
        positions[t] = t - cu[doc];
        tokens[t] = (int32_t)(rng_uniform(1, RNG_TEST, 0, (uint64_t)t) * VOCAB);
        targets[t] = t % 5 == 3 ? TARGET_IGNORE : (int32_t)(rng_uniform(1, RNG_TEST, 1, (uint64_t)t) * VOCAB);
    }
    return (struct batch){.rows = N,
                          .docs = 5,
                          .len_max = T,
                          .tokens = tokens,
                          .targets = targets,
                          .positions = positions,
                          .cu_seqlens = cu};
}

static bool work_open(struct work *w, const struct variant *v, const struct mesh *mesh)
{
    const int cp = mesh ? mesh_cp(&mesh->shape) : 1;
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
                                               .positions = T,
                                               .arenas = {&w->param, &w->grad, &w->optim}};
    const struct layout layout = {.n = N / cp,
                                  .cp_size = cp,
                                  .context_kind = v->kind,
                                  .docs_max = N / cp,
                                  .len_max = T,
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
    w->run = (struct exec){
        .ops = &w->ops, .params = &w->d.params, .scalars = &w->scalars, .cp = mesh ? mesh->cp : NULL};
    const struct context_shape shape = {.rank = mesh ? mesh->cp_rank : 0,
                                        .ranks = cp,
                                        .length = T,
                                        .rows = N / cp,
                                        .micro_count = 1,
                                        .kind = v->kind};
    return context_open(&w->context, &shape) == STATUS_OK && init_weights(&w->d, &w->run, 7) == STATUS_OK;
}

static void work_close(struct work *w)
{
    context_close(&w->context);
    activations_fini(&w->a);
    decoder_fini(&w->d);
    struct arena *all[] = {&w->param, &w->grad, &w->optim, &w->act, &w->scratch};
    for (size_t i = 0; i < 5; i++) arena_free(all[i]);
}

/* Evaluation's loss and hits, then a step's loss; its gradients begin at zero. */
struct sums {
    double eval, hits, loss, extra, costs;
};
static bool work_do(struct work *w, const struct batch *whole, struct sums *s)
{
    const struct batch *b = context_parts(&w->context, whole, 1);
    const size_t bytes = (size_t)params_grads(&w->d.params) * dtype_bytes(dtype_acc(w->d.params.dt));
    memset(w->d.params.grad, 0, bytes);
    w->scalars = (struct step_scalars){.grad_scale = 0.05, .mtp_scale = 0.02};
    if (decoder_loss(&w->d, &w->a, b, 0, &w->run) != STATUS_OK) return false;
    s->eval = w->scalars.loss_sum, s->hits = w->scalars.hits;
    w->scalars.loss_sum = 0;
    if (decoder_fwd_bwd(&w->d, &w->a, b, 0.01, &w->run) != STATUS_OK) return false;
    s->loss = w->scalars.loss_sum, s->extra = w->scalars.mtp_loss_sum;
    s->costs = w->scalars.aux_sum;
    if (w->run.cp == NULL) return true;
    static char scratch[SCRATCH];
    const int64_t count = params_grads(&w->d.params);
    const dtype acc = dtype_acc(w->d.params.dt);
    return comm_all_reduce_scratch(comm_ranks(w->run.cp), count, acc) <= sizeof scratch &&
           comm_all_reduce_f64(w->run.cp, "sums", (double *)s, sizeof *s / sizeof(double), NULL) ==
               STATUS_OK &&
           comm_all_reduce(w->run.cp, "gradients", w->d.params.grad, count, acc, scratch, NULL) == STATUS_OK;
}

static bool near(const char *what, int border, double got, double want, double tol)
{
    if (fabs(got - want) <= tol * fabs(want)) return true;
    fprintf(stderr, "border %d: %s: %.17g, one rank has %.17g\n", border, what, got, want);
    return false;
}

/* What one rank computes: made before ranks are forked, so that each of them has it. */
struct reference {
    struct sums sums;
    char *gradients; /* row by row; owned */
};
static void reference_make(struct reference *r, struct work *whole, int border)
{
    const struct params *params = &whole->d.params;
    const size_t bytes = dtype_bytes(dtype_acc(params->dt));
    const struct batch b = make_batch(border);
    assert_true(work_do(whole, &b, &r->sums));
    r->gradients = malloc((size_t)params_grads(params) * bytes);
    assert_non_null(r->gradients);
    size_t at = 0;
    for (int i = 0; i < params->count; i++) {
        const size_t row = (size_t)params->rows[i].count * bytes;
        assert_true(at + row <= (size_t)params_grads(params) * bytes);
        memcpy(r->gradients + at, params_grad(params, i), row);
        at += row;
    }
}

/* All gradients together within `tol` of their length, and each row, which may be a small rest of large terms, within four times as much. */
static bool same_gradients(const struct work *w, const struct reference *whole, int border, double tol)
{
    const dtype acc = dtype_acc(w->d.params.dt);
    double error = 0, size = 0;
    int64_t begin = 0; /* of the row */
    bool same = true;
    for (int i = 0; i < w->d.params.count; i++) {
        double row_error = 0, row_size = 0;
        for (int64_t k = 0; k < w->d.params.rows[i].count; k++) {
            const double want = dtype_load(whole->gradients, begin + k, acc);
            row_error += pow(dtype_load(params_grad(&w->d.params, i), k, acc) - want, 2);
            row_size += want * want;
        }
        begin += w->d.params.rows[i].count;
        same &=
            near(w->d.params.rows[i].name, border, sqrt(row_error) + sqrt(row_size), sqrt(row_size), 4 * tol);
        error += row_error, size += row_size;
    }
    return same & near("all parameters", border, sqrt(error) + sqrt(size), sqrt(size), tol);
}

/* A rank's part; true: as in the whole model. */
static bool rank_part(struct comm *c, const void *arg)
{
    const struct variant *v = arg;
    const struct mesh_shape shape = {.pp = 1, .dp = 1, .tp = 1, .cp = comm_ranks(c), .chunks = 1, .shard = 1};
    struct mesh mesh;
    struct work w;
    bool good = mesh_open(&mesh, &shape, c) == STATUS_OK && work_open(&w, v, &mesh);
    if (!good) return false;
    for (int border = 1; border < T; border += v->borders) {
        if (!looked_at(v, border)) continue;
        const struct batch b = make_batch(border);
        const struct reference whole = v->whole[border];
        const struct sums all = whole.sums;
        struct sums mine;
        if (!work_do(&w, &b, &mine)) return false;
        good &= near("evaluation", border, mine.eval, all.eval, v->tol) &
                near("hits", border, mine.hits, all.hits, 0) &
                near("loss", border, mine.loss, all.loss, v->tol) &
                near("extra predictions", border, mine.extra, all.extra, v->tol) &
                near("costs of routers", border, mine.costs, all.costs, v->tol) &
                same_gradients(&w, &whole, border, v->tol);
    }
    work_close(&w);
    return good;
}

static void check(const struct model_spec *spec, enum context_kind kind)
{
    const double tol_f32 = kind == CONTEXT_RING ? 2e-6 : 1e-6; /* a ring rounds o and lse after each part */
    for (int i = 0; i < 4; i++) {
        const dtype dt = i < 3 ? DTYPE_F64 : DTYPE_F32;
        struct reference references[T] = {0};
        const struct variant v = {.spec = *spec,
                                  .dt = dt,
                                  .policy = (enum recompute)(i % 3),
                                  .kind = kind,
                                  .tol = dt == DTYPE_F64 ? 1e-12 : tol_f32,
                                  .borders = i == 0 || dt == DTYPE_F32 ? 1 : 11,
                                  .whole = references};
        struct work whole;
        assert_true(work_open(&whole, &v, NULL));
        for (int border = 1; border < T; border += v.borders)
            if (looked_at(&v, border)) reference_make(&references[border], &whole, border);
        work_close(&whole);
        for (int ranks = 2; ranks <= RANKS_MAX; ranks *= 2) expect_ranks(ranks, rank_part, &v);
        for (int border = 1; border < T; border++) free(references[border].gradients);
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
    s.head_count = 4;
    s.head_count_kv = 2;
    s.head_dim = 8;
    s.context_length = T;
    s.init_std = 0.3;
    return s;
}

static void gpt2_on_several_ranks_is_one(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.norm = NORM_LAYERNORM, s.activation = ACT_GELU, s.position = POS_LEARNED, s.tied_embeddings = true;
    s.head_count_kv = 4, s.qkv_bias = s.out_bias = s.mlp_bias = true;
    check(&s, CONTEXT_ALL_GATHER);
}

static void llama_on_several_ranks_is_one(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.tied_embeddings = false;
    check(&s, CONTEXT_ALL_GATHER);
}

static void gates_windows_and_centred_norms_are_shared(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.attention_gate = s.norm_zero_centered = s.qk_norm = true;
    s.rope_fraction = 0.25, s.window = 9;
    snprintf(s.layers, sizeof s.layers, "swa,gqa");
    check(&s, CONTEXT_ALL_GATHER);
}

/* Windows within a chunk, as long as one or several of them, and none. */
static void keys_go_around_a_ring(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    check(&s, CONTEXT_RING);
    s.qk_norm = s.attention_gate = true;
    snprintf(s.layers, sizeof s.layers, "swa,gqa");
    for (s.window = 2; s.window < 20; s.window += 5) check(&s, CONTEXT_RING);
}

static void attention_exchanges_heads(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.head_count = 8, s.head_count_kv = 4;
    s.attention_gate = s.qk_norm = true, s.window = 9;
    snprintf(s.layers, sizeof s.layers, "swa,gqa");
    check(&s, CONTEXT_ULYSSES);
    s.attention_gate = s.qk_norm = false, s.qkv_bias = true;
    check(&s, CONTEXT_ULYSSES);
}

static void latents_are_gathered(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "mla,gqa");
    s.mla_heads = 4, s.mla_q_rank = 12, s.mla_kv_rank = 8, s.mla_nope_dim = 6, s.mla_rope_dim = 4;
    s.mla_value_dim = 5;
    check(&s, CONTEXT_ALL_GATHER);
    s.mla_q_rank = 0;
    check(&s, CONTEXT_ALL_GATHER);
}

static void experts_take_rows(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "gqa/moe");
    s.moe_experts = 6, s.moe_top_k = 2, s.moe_size = 8, s.moe_aux = 0, s.moe_z = 0.1, s.moe_shared_size = 12;
    s.moe_balance_rate = 0.01;
    check(&s, CONTEXT_ALL_GATHER);
}

/* Counts over the micro-batch, and over documents, are of the tokens of all ranks. */
static void choices_are_counted_over_ranks(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "gqa/moe");
    s.moe_experts = 6, s.moe_top_k = 2, s.moe_size = 8, s.moe_aux = 0.1, s.moe_shared_size = 12;
    check(&s, CONTEXT_ALL_GATHER);
    s.moe_aux_kind = AUX_SEQUENCE, s.moe_router = ROUTER_SIGMOID, s.moe_z = 0.1;
    check(&s, CONTEXT_ALL_GATHER);
    s.moe_capacity = 0.7;
    check(&s, CONTEXT_RING);
}

/* N-grams and taps that reach across chunks and ranks. */
static void memories_look_across_ranks(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.engram_layers, sizeof s.engram_layers, "0-1");
    s.engram_heads = 2, s.engram_dim = 16, s.engram_base = 50, s.engram_ngram = 3;
    check(&s, CONTEXT_ALL_GATHER);
}

static void extra_predictions_look_across_ranks(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.mtp_depth = 2, s.tied_embeddings = true;
    check(&s, CONTEXT_ALL_GATHER);
}

static void delta_rules_exchange_heads(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "gdn,gqa");
    s.gdn_key_heads = 4, s.gdn_value_heads = 8, s.gdn_key_dim = 8, s.gdn_value_dim = 4, s.gdn_conv = 3;
    check(&s, CONTEXT_ALL_GATHER);
}

static void states_exchange_heads(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "mamba2,gqa");
    s.mamba_heads = 8, s.mamba_head_dim = 4, s.mamba_groups = 4, s.mamba_state = 6, s.mamba_conv = 3;
    check(&s, CONTEXT_ALL_GATHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_on_several_ranks_is_one),
        cmocka_unit_test(llama_on_several_ranks_is_one),
        cmocka_unit_test(gates_windows_and_centred_norms_are_shared),
        cmocka_unit_test(keys_go_around_a_ring),
        cmocka_unit_test(attention_exchanges_heads),
        cmocka_unit_test(latents_are_gathered),
        cmocka_unit_test(experts_take_rows),
        cmocka_unit_test(choices_are_counted_over_ranks),
        cmocka_unit_test(memories_look_across_ranks),
        cmocka_unit_test(extra_predictions_look_across_ranks),
        cmocka_unit_test(delta_rules_exchange_heads),
        cmocka_unit_test(states_exchange_heads),
    };
    parallel_threads_set(1); /* a process that forks must not have threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
