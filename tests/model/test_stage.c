/* Stages of a pipeline, all in this process: what they do to two micro-batches is what decoder_fwd_bwd does, bit for bit, for every
 * mixer and feed-forward part, cut into two, three and interleaved stages, under every recompute policy, at once or with GEMMs put off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/init.h"
#include "model/stage.h"

enum { N = 24, VOCAB = 29, MICROS = 2, RANKS_MAX = 4, WIDTH = 16 };

static struct model_spec base_spec(void)
{
    struct model_spec s;
    model_spec_default(&s);
    s.layer_count = 5, s.hidden_size = WIDTH, s.head_count = 4, s.head_count_kv = 2, s.head_dim = 4,
    s.ffn_size = 20, s.vocab_size = VOCAB, s.context_length = 32, s.tied_embeddings = false;
    s.init_std = 0.2;
    return s;
}

struct family {
    const char *name, *layers;
};
static const struct family FAMILIES[] = {{"llama", "gqa"},
                                         {"qwen3", "gqa"},
                                         {"gpt2 tied", "gqa"},
                                         {"gated deltanet", "2*gdn,1*gqa"},
                                         {"latent attention", "1*gqa,2*mla"},
                                         {"mamba2", "2*mamba2,1*gqa"},
                                         {"experts", "gqa/moe"},
                                         {"engram", "gqa"}};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof FAMILIES[0] };

static struct model_spec family_spec(int family)
{
    struct model_spec s = base_spec();
    snprintf(s.layers, sizeof s.layers, "%s", FAMILIES[family].layers);
    if (family == 1) s.qk_norm = true;
    if (family == 2)
        s.norm = NORM_LAYERNORM, s.activation = ACT_GELU, s.position = POS_LEARNED,
        s.qkv_bias = s.out_bias = s.mlp_bias = s.tied_embeddings = true, s.head_count_kv = 4;
    s.gdn_key_heads = 2, s.gdn_value_heads = 4, s.gdn_key_dim = 4, s.gdn_value_dim = 4, s.gdn_conv = 3;
    s.mla_heads = 3, s.mla_q_rank = 10, s.mla_kv_rank = 8, s.mla_nope_dim = 6, s.mla_rope_dim = 4,
    s.mla_value_dim = 5;
    s.mamba_heads = 4, s.mamba_head_dim = 4, s.mamba_groups = 2, s.mamba_state = 8, s.mamba_conv = 3;
    s.moe_experts = 6, s.moe_top_k = 2, s.moe_size = 10, s.moe_shared_size = 14, s.moe_aux = 0.1;
    if (family == 7) {
        snprintf(s.engram_layers, sizeof s.engram_layers, "1,3-4");
        s.engram_heads = 2, s.engram_dim = 16, s.engram_base = 11, s.engram_pad = 2;
    }
    return s;
}

struct data {
    int32_t tokens[N], targets[N], positions[N], cu[4];
    struct batch batch;
};

static void data_fill(struct data *b, uint64_t micro)
{
    const int32_t cu[] = {0, 7, 8, N};
    memcpy(b->cu, cu, sizeof cu);
    for (int t = 0; t < N; t++) {
        b->tokens[t] = (int32_t)(rng_uniform(1, RNG_TEST, 2 * micro, (uint64_t)t) * VOCAB);
        b->targets[t] = t % 5 == 3 ? TARGET_IGNORE
                                   : (int32_t)(rng_uniform(1, RNG_TEST, 2 * micro + 1, (uint64_t)t) * VOCAB);
        b->positions[t] = t < 7 ? t : t < 8 ? 0 : t - 8;
    }
    b->batch = (struct batch){.rows = N,
                              .docs = 3,
                              .len_max = N,
                              .tokens = b->tokens,
                              .targets = b->targets,
                              .positions = b->positions,
                              .cu_seqlens = b->cu};
}

struct rank {
    struct decoder d;
    struct activations a;
    struct arena param, grad, optim, act, scratch;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
};

struct how {
    dtype dt;
    enum recompute policy;
    int sets, stores;
};

static void rank_open(struct rank *k, const struct model_spec *spec, const struct mesh *mesh,
                      const struct how *how)
{
    memset(k, 0, sizeof *k);
    struct arena *all[] = {&k->param, &k->grad, &k->optim, &k->act, &k->scratch};
    for (size_t i = 0; i < 5; i++) assert_int_equal(arena_reserve(all[i], "test", 1 << 22), STATUS_OK);
    assert_int_equal(ops_cpu(&k->ops, NULL), STATUS_OK);
    assert_int_equal(decoder_init(&k->d, spec, mesh), STATUS_OK);
    assert_int_equal(decoder_layout_params(
                         &k->d, &(struct decoder_layout_args){.dt = how->dt,
                                                              .moment_dt = DTYPE_F32,
                                                              .with_grad = 1,
                                                              .positions = 32,
                                                              .arenas = {&k->param, &k->grad, &k->optim}}),
                     STATUS_OK);
    assert_int_equal(activations_layout(&k->a, &k->d,
                                        &(struct layout){.n = N,
                                                         .docs_max = N,
                                                         .len_max = N,
                                                         .ops = &k->ops,
                                                         .dt = how->dt,
                                                         .mode = LAYOUT_TRAIN,
                                                         .recompute = how->policy,
                                                         .sets = how->sets,
                                                         .stores = how->stores,
                                                         .act = &k->act,
                                                         .scratch = &k->scratch}),
                     STATUS_OK);
    k->scalars = (struct step_scalars){.grad_scale = 0.05};
    k->run = (struct exec){.ops = &k->ops, .params = &k->d.params, .scalars = &k->scalars};
    assert_int_equal(init_weights(&k->d, &k->run, 7), STATUS_OK);
}

static void rank_close(struct rank *k)
{
    activations_fini(&k->a);
    decoder_fini(&k->d);
    struct arena *all[] = {&k->param, &k->grad, &k->optim, &k->act, &k->scratch};
    for (size_t i = 0; i < 5; i++) arena_free(all[i]);
}

static size_t message_bytes(const struct rank *k)
{
    return (size_t)N * WIDTH * dtype_bytes(k->a.x.dt);
}

/* All micro-batches forward, then all backward, stage after stage. */
static void run_stages(struct rank *ranks, int pp, int chunks, const struct data *data)
{
    char message[MICROS][N * WIDTH * sizeof(double)];
    for (int m = 0; m < MICROS; m++) {
        for (int stage = 0; stage < pp * chunks; stage++) {
            struct rank *k = &ranks[stage % pp];
            const struct stage_at s = {
                .decoder = &k->d, .acts = &k->a, .chunk = stage / pp, .set = m * chunks + stage / pp};
            if (!stage_first(&s)) memcpy(k->a.x.data, message[m], message_bytes(k));
            assert_int_equal(stage_fwd(&s, &data[m].batch, &k->run), STATUS_OK);
            memcpy(message[m], k->a.x.data, message_bytes(k));
        }
    }
    for (int stage = pp * chunks - 1; stage >= 0; stage--) {
        struct rank *k = &ranks[stage % pp];
        struct stages *all = k->a.stages;
        for (int m = 0; m < MICROS; m++) {
            const struct stage_at s = {
                .decoder = &k->d, .acts = &k->a, .chunk = stage / pp, .set = m * chunks + stage / pp};
            if (!stage_last(&s)) memcpy(k->a.grad.data, message[m], message_bytes(k));
            k->run.accum = m == 0 ? ACCUM_STORE : ACCUM_ADD;
            k->run.defer = all->store_count ? &all->stores[m] : NULL;
            assert_int_equal(stage_bwd(&s, &data[m].batch, &(struct stage_bwd){.z_loss = 1e-2}, &k->run),
                             STATUS_OK);
            memcpy(message[m], k->a.grad.data, message_bytes(k));
        }
        for (int m = 0; m < all->store_count; m++) {
            k->run.accum = m == 0 ? ACCUM_STORE : ACCUM_ADD;
            k->run.defer = NULL;
            assert_int_equal(deferred_flush(&all->stores[m], 0, k->d.params.count, &k->run), STATUS_OK);
            deferred_empty(&all->stores[m]);
        }
    }
}

/* The gradients of the rows that a rank stores. A tied table has one part of its gradient on the first rank and one on the last. */
static void check_rows(const char *name, const struct rank *whole, const struct rank *ranks, int pp)
{
    for (int i = 0; i < whole->d.params.count; i++) {
        const struct param *row = &whole->d.params.rows[i];
        const float *want = params_grad(&whole->d.params, i);
        int holders = 0;
        for (int r = 0; r < pp; r++) {
            const float *got = params_grad(&ranks[r].d.params, i);
            if (got == NULL) continue;
            holders++;
            if (whole->d.spec.tied_embeddings && row->unit == 0) continue;
            if (memcmp(got, want, (size_t)row->count * sizeof *got) != 0)
                fail_msg("%s: %s differs on rank %d of %d", name, row->name, r, pp);
        }
        const bool tied = whole->d.spec.tied_embeddings && row->unit == 0;
        assert_int_equal(holders, tied ? 2 : 1);
        const float *first = params_grad(&ranks[0].d.params, i),
                    *last = params_grad(&ranks[pp - 1].d.params, i);
        for (int64_t k = 0; k < row->count && tied; k++)
            if (fabsf(first[k] + last[k] - want[k]) > 1e-5f * (1 + fabsf(want[k])))
                fail_msg("%s: %s[%lld]: %g + %g, expected %g", name, row->name, (long long)k,
                         (double)first[k], (double)last[k], (double)want[k]);
    }
}

static void check_family(int family, const struct how *how, int pp, int chunks)
{
    static struct data data[MICROS];
    const struct model_spec spec = family_spec(family);
    struct rank *whole = malloc(sizeof *whole), *ranks = malloc(RANKS_MAX * sizeof *ranks);
    for (uint64_t m = 0; m < MICROS; m++) data_fill(&data[m], m);
    rank_open(whole, &spec, NULL, &(struct how){.dt = how->dt});
    for (int m = 0; m < MICROS; m++) {
        whole->run.accum = m == 0 ? ACCUM_STORE : ACCUM_ADD;
        assert_int_equal(decoder_fwd_bwd(&whole->d, &whole->a, &data[m].batch, 1e-2, &whole->run), STATUS_OK);
    }
    struct how part = *how;
    part.sets = MICROS * chunks, part.stores *= MICROS;
    double loss = 0, aux = 0;
    for (int r = 0; r < pp; r++) {
        const struct mesh mesh = mesh_place(&(struct mesh_shape){pp, 1, 1, .chunks = chunks, .shard = 1}, r);
        rank_open(&ranks[r], &spec, &mesh, &part);
    }
    run_stages(ranks, pp, chunks, data);
    for (int r = 0; r < pp; r++) loss += ranks[r].scalars.loss_sum, aux += ranks[r].scalars.aux_sum;
    assert_true(loss == whole->scalars.loss_sum);
    assert_true(fabs(aux - whole->scalars.aux_sum) <= 1e-12 * fabs(aux));
    check_rows(FAMILIES[family].name, whole, ranks, pp);
    for (int r = 0; r < pp; r++) rank_close(&ranks[r]);
    rank_close(whole);
    free(ranks);
    free(whole);
}

static void stages_do_what_one_rank_does(void **state)
{
    (void)state;
    for (int family = 0; family < FAMILY_COUNT; family++) {
        for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_FULL; policy++) {
            struct how how = {.dt = DTYPE_F32, .policy = (enum recompute)policy};
            check_family(family, &how, 2, 1);
            check_family(family, &how, 2, 2);
            how.dt = DTYPE_BF16;
            check_family(family, &how, 3, 1);
        }
    }
}

static void deferred_gemms_give_the_same_bits(void **state)
{
    (void)state;
    for (int family = 0; family < FAMILY_COUNT; family++) {
        for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_FULL; policy++) {
            struct how how = {.dt = DTYPE_F32, .policy = (enum recompute)policy, .stores = 1};
            check_family(family, &how, 2, 1);
            how.dt = DTYPE_BF16;
            check_family(family, &how, 4, 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_do_what_one_rank_does),
        cmocka_unit_test(deferred_gemms_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
