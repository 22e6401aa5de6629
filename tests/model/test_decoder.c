/* Goal: the decoder's backward is the derivative of its loss, for every model family and every parameter. Method: f64 on the oracle; the
 * central difference of the loss along a random direction u of each parameter against <gradient, u>; h = 1e-5: 1e-10 of the loss. */
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
#include "bias_alone.h"
#include "base/rng.h"
#include "model/decoder.h"
#include "model/hrm.h"
#include "model/init.h"
#include "model/master_weights.h"

enum { N = 24, VOCAB = 29 };

struct fixture {
    struct decoder d;
    struct activations a;
    struct arena param, grad, optim, act, scratch;
    struct ops ops;
    struct exec run;
    struct step_scalars scalars;
    int32_t tokens[N], targets[N], positions[N], cu[4];
    struct batch batch;
    double *held; /* hierarchical reasoning: see hold_states */
};

static struct model_spec base_spec(void)
{
    struct model_spec s;
    model_spec_default(&s);
    s.vocab_size = VOCAB;
    s.layer_count = 2;
    s.hidden_size = 16;
    s.ffn_size = 20;
    s.head_count = 4;
    s.head_count_kv = 2;
    s.head_dim = 8;
    s.context_length = 32;
    s.init_std = 0.3;
    return s;
}

static void use_gdn(struct model_spec *s, const char *layers)
{
    snprintf(s->layers, sizeof s->layers, "%s", layers);
    s->gdn_key_heads = 2, s->gdn_value_heads = 4, s->gdn_key_dim = 8, s->gdn_value_dim = 4, s->gdn_conv = 3;
}

static void use_qwen3_next(struct model_spec *s)
{
    use_gdn(s, "gdn,gqa");
    s->attention_gate = s->norm_zero_centered = s->qk_norm = true;
    s->rope_fraction = 0.25;
}

static void use_mla(struct model_spec *s, const char *layers, int64_t q_rank)
{
    snprintf(s->layers, sizeof s->layers, "%s", layers);
    s->mla_heads = 3, s->mla_q_rank = q_rank, s->mla_kv_rank = 8, s->mla_nope_dim = 6, s->mla_rope_dim = 4,
    s->mla_value_dim = 5;
}

static void use_mamba(struct model_spec *s, const char *layers)
{
    snprintf(s->layers, sizeof s->layers, "%s", layers);
    s->mamba_heads = 4, s->mamba_head_dim = 4, s->mamba_groups = 2, s->mamba_state = 8, s->mamba_conv = 3;
}

enum moe_kind { MOE_PLAIN, MOE_GATED, MOE_DEEPSEEK, MOE_CAPACITY };

/* Qwen3, Qwen3-Next, DeepSeek-V3 (a dense layer first), and experts that drop tokens. Where two experts are nearly level, a step of the
 * differences changes a choice: the numbers of experts are such that none is. */
static void use_moe(struct model_spec *s, enum moe_kind kind)
{
    snprintf(s->layers, sizeof s->layers, kind == MOE_DEEPSEEK ? "gqa;gqa/moe" : "gqa/moe");
    s->moe_experts = 6, s->moe_top_k = 2, s->moe_size = 10, s->moe_aux = 0;
    if (kind == MOE_GATED)
        s->moe_experts = 5, s->moe_shared_size = 14, s->moe_shared_gate = true, s->moe_normalize = false;
    if (kind == MOE_DEEPSEEK) {
        s->moe_router = ROUTER_SIGMOID, s->moe_scale = 2.5, s->moe_shared_size = 20;
        s->moe_groups = 3, s->moe_groups_kept = 2;
    }
    if (kind == MOE_CAPACITY) s->moe_capacity = 0.7;
}

static void use_engram(struct model_spec *s, const char *layers)
{
    snprintf(s->engram_layers, sizeof s->engram_layers, "%s", layers);
    s->engram_heads = 2, s->engram_dim = 16, s->engram_base = 11, s->engram_pad = 2;
}

/* Low-level layers first: of `layers` half. */
static void use_hrm(struct model_spec *s, int64_t cycles, int64_t steps, int64_t segments)
{
    s->hrm_cycles = cycles, s->hrm_steps = steps, s->hrm_segments = segments;
}

/* norms at one, biases and convolutions at zero would hide errors: move them, by their names alone */
static void move_constants(struct fixture *f)
{
    const struct params *p = &f->d.params;
    const dtype acc = dtype_acc(p->dt);
    void *masters = p->master ? p->master : malloc((size_t)p->total * sizeof(float));
    if (!p->master) assert_int_equal(master_weights_get(&f->run, masters), STATUS_OK);
    for (const struct param *r = p->rows; r < p->rows + p->count; r++)
        for (int64_t k = 0; k < r->count && (r->rank == 1 || r->zero); k++) {
            const double by = 0.3 * rng_normal(3, RNG_TEST, XXH64(r->name, strlen(r->name), 0), (uint64_t)k);
            dtype_store(masters, r->offset + k, acc, dtype_load(masters, r->offset + k, acc) + by);
        }
    if (!p->master) assert_int_equal(master_weights_put(&f->run, masters), STATUS_OK);
    if (!p->master) free(masters);
}

static void fixture_open(struct fixture *f, const struct model_spec *spec, dtype dt, enum recompute policy)
{
    memset(f, 0, sizeof *f);
    struct arena *all[] = {&f->param, &f->grad, &f->optim, &f->act, &f->scratch};
    for (size_t i = 0; i < 5; i++) assert_int_equal(arena_reserve(all[i], "test", 1 << 22), STATUS_OK);
    if (dt == DTYPE_F64)
        ops_oracle(&f->ops);
    else
        assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    assert_int_equal(decoder_init(&f->d, spec, NULL), STATUS_OK);
    assert_int_equal(decoder_layout_params(
                         &f->d, &(struct decoder_layout_args){.dt = dt,
                                                              .moment_dt = DTYPE_F32,
                                                              .with_grad = 1,
                                                              .moments = 2,
                                                              .positions = 32,
                                                              .arenas = {&f->param, &f->grad, &f->optim}}),
                     STATUS_OK);
    assert_int_equal(activations_layout(&f->a, &f->d,
                                        &(struct layout){.n = N,
                                                         .docs_max = N,
                                                         .len_max = N,
                                                         .ops = &f->ops,
                                                         .dt = dt,
                                                         .mode = LAYOUT_TRAIN,
                                                         .recompute = policy,
                                                         .act = &f->act,
                                                         .scratch = &f->scratch}),
                     STATUS_OK);
    f->scalars = (struct step_scalars){.grad_scale = 0.05, .mtp_scale = 0.02, .halt_scale = 0.03};
    f->run = (struct exec){.ops = &f->ops, .params = &f->d.params, .scalars = &f->scalars};
    assert_int_equal(init_weights(&f->d, &f->run, 7), STATUS_OK);
    move_constants(f);
    for (int32_t i = 0; f->d.token_map.data && i < VOCAB; i++) ((int32_t *)f->d.token_map.data)[i] = i / 3;
    const int32_t cu[] = {0, 7, 8, N};
    memcpy(f->cu, cu, sizeof cu);
    for (int t = 0; t < N; t++) {
        f->tokens[t] = (int32_t)(rng_uniform(1, RNG_TEST, 0, (uint64_t)t) * VOCAB);
        f->targets[t] =
            t % 5 == 3 ? TARGET_IGNORE : (int32_t)(rng_uniform(1, RNG_TEST, 1, (uint64_t)t) * VOCAB);
        f->positions[t] = t < 7 ? t : t < 8 ? 0 : t - 8;
    }
    f->batch = (struct batch){.rows = N,
                              .docs = 3,
                              .len_max = N,
                              .tokens = f->tokens,
                              .targets = f->targets,
                              .positions = f->positions,
                              .cu_seqlens = f->cu};
}

static void fixture_close(struct fixture *f)
{
    free(f->held);
    activations_fini(&f->a);
    decoder_fini(&f->d);
    struct arena *all[] = {&f->param, &f->grad, &f->optim, &f->act, &f->scratch};
    for (size_t i = 0; i < 5; i++) arena_free(all[i]);
}

/* The one-step gradient is the derivative of a loss in which the states before a segment's last two passes
 * are constants: they are saved here, and held_loss starts from them. Per segment: z_L, z_H. */
static void hold_states(struct fixture *f)
{
    enum { WIDTH = 16 };
    const int64_t passes = model_passes(&f->d.spec), segment = passes / model_segments(&f->d.spec);
    assert_int_equal(f->d.spec.hidden_size, WIDTH);
    double *at = f->held = calloc((size_t)(passes / segment), 2 * N * WIDTH * sizeof *at);
    assert_int_equal(decoder_begin(&f->d, &f->a, &f->batch, &f->run), STATUS_OK);
    for (int64_t k = 0; k < passes; k++) {
        if (k % segment == segment - 2 && k > 0) {
            memcpy(at, f->a.hrm->low.data, N * WIDTH * sizeof *at);
            memcpy(at + N * WIDTH, f->a.y.data, N * WIDTH * sizeof *at);
        }
        at += k % segment == segment - 2 ? 2 * N * WIDTH : 0;
        assert_int_equal(decoder_pass(&f->d, &f->a, &f->batch, k, &f->run), STATUS_OK);
    }
}

/* The head's halting values; its targets, and which documents count, are in the activations. */
static void held_halt(struct fixture *f, int64_t segment)
{
    double *kept = f->a.hrm->q.data, now[2 * 3], *place = kept + 2 * segment * f->batch.docs, old[2 * 3];
    assert_int_equal(f->batch.docs, 3);
    assert_int_equal(
        f->ops.halt_fwd(&(struct halt_fwd_args){.z = f->a.y.data,
                                                .w = params_weight(&f->d.params, f->d.hrm->halt),
                                                .b = params_weight(&f->d.params, f->d.hrm->halt_bias),
                                                .q = now,
                                                .cu_seqlens = f->cu,
                                                .docs = 3,
                                                .d = f->d.spec.hidden_size,
                                                .dt = DTYPE_F64},
                        NULL),
        STATUS_OK);
    memcpy(old, place, sizeof old);
    memcpy(place, now, sizeof now);
    assert_int_equal(hrm_halt_bwd(&f->d, &f->a, &f->batch, segment, &f->run), STATUS_OK);
    memcpy(place, old, sizeof old);
}

static double held_loss(struct fixture *f)
{
    const struct hrm_saved *h = f->a.hrm;
    const int64_t passes = model_passes(&f->d.spec), segment = passes / model_segments(&f->d.spec),
                  n = tensor_count(f->a.y);
    const double *at = f->held;
    double *in = h->in.data, *high = f->a.y.data;
    const double *x = h->x.data;
    f->scalars.loss_sum = f->scalars.halt_sum = 0;
    assert_int_equal(decoder_begin(&f->d, &f->a, &f->batch, &f->run), STATUS_OK);
    for (int64_t k = segment - 2; k < passes; k += segment) {
        memcpy(h->low.data, at, (size_t)n * sizeof *at);
        /* in the first cycle z_H is 0, and its memory holds what it held */
        if (k > f->d.spec.hrm_steps) memcpy(high, at + n, (size_t)n * sizeof *at);
        for (int64_t i = 0; i < n; i++) in[i] = x[i] + high[i];
        at += 2 * n;
        assert_int_equal(decoder_pass(&f->d, &f->a, &f->batch, k, &f->run), STATUS_OK);
        assert_int_equal(decoder_pass(&f->d, &f->a, &f->batch, k + 1, &f->run), STATUS_OK);
        assert_int_equal(
            head_loss(&f->d.head, &f->a.head,
                      &(struct head_loss_args){.y = f->a.y,
                                               .targets = hrm_targets(&f->d, &f->a, &f->batch, k / segment),
                                               .grad_scale = &f->scalars.grad_scale,
                                               .loss_sum = &f->scalars.loss_sum,
                                               .hits = &f->scalars.hits,
                                               .z_loss = 1e-2},
                      &f->run),
            STATUS_OK);
        if (hrm_halts(&f->d)) held_halt(f, k / segment);
    }
    return f->scalars.loss_sum * f->scalars.grad_scale + f->scalars.halt_sum * f->scalars.halt_scale;
}

/* The function behind the gradients. Needed for MTP, which evaluation skips, and for routers' auxiliary loss. */
static double loss_of(struct fixture *f)
{
    const struct model_spec *m = &f->d.spec;
    if (f->held) return held_loss(f);
    const bool costs = m->moe_aux > 0 || m->moe_z > 0 || m->mtp_depth > 0;
    struct step_scalars *s = &f->scalars;
    s->loss_sum = s->aux_sum = s->mtp_loss_sum = 0;
    assert_int_equal((costs ? decoder_fwd_bwd : decoder_loss)(&f->d, &f->a, &f->batch, 1e-2, &f->run),
                     STATUS_OK);
    return (s->loss_sum + s->aux_sum) * s->grad_scale + s->mtp_loss_sum * s->mtp_scale;
}

static void check_gradients(const char *name, const struct model_spec *spec)
{
    struct fixture *f = malloc(sizeof *f);
    fixture_open(f, spec, DTYPE_F64, RECOMPUTE_NONE);
    assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 1e-2, &f->run), STATUS_OK);
    const double sum = (f->scalars.loss_sum + f->scalars.aux_sum) * 0.05 + f->scalars.mtp_loss_sum * 0.02 +
                       f->scalars.halt_sum * 0.03;
    double *grad = malloc((size_t)f->d.params.total * sizeof *grad);
    memcpy(grad, f->d.params.grad, (size_t)f->d.params.total * sizeof *grad);
    if (model_passes(spec) > 2) hold_states(f); /* with two, all of it has a gradient */
    double base = loss_of(f);
    assert_true(fabs(base - sum) < 1e-12 * fabs(base));
    for (int i = 0; i < f->d.params.count; i++) {
        if (f->d.params.rows[i].role == ROLE_BALANCE) continue; /* counts tokens */
        double *w = params_master(&f->d.params, i), *g = grad + f->d.params.rows[i].offset;
        int64_t n = f->d.params.rows[i].count;
        double *keep = malloc((size_t)n * sizeof *keep), want = 0, norm = 0;
        memcpy(keep, w, (size_t)n * sizeof *keep);
        /* four points, exact to h^4: the short vectors that l2 norms divide by make third derivatives of 1e4 */
        const double h = 3e-5, at[] = {h, -h, 2 * h, -2 * h};
        double side[4];
        for (int s = 0; s < 4; s++) {
            for (int64_t k = 0; k < n; k++)
                w[k] = keep[k] + at[s] * rng_normal(9, RNG_TEST, (uint64_t)i, (uint64_t)k);
            side[s] = loss_of(f);
        }
        memcpy(w, keep, (size_t)n * sizeof *keep);
        for (int64_t k = 0; k < n; k++) {
            want += g[k] * rng_normal(9, RNG_TEST, (uint64_t)i, (uint64_t)k);
            norm += g[k] * g[k];
        }
        double got = (8 * (side[0] - side[1]) - (side[2] - side[3])) / (12 * h);
        /* a gradient that is exactly zero would pass any relative test: only the qkv bias of k may vanish (softmax is shift invariant) */
        if (norm == 0) fail_msg("%s: %s has no gradient", name, f->d.params.rows[i].name);
        if (!(fabs(got - want) < 1e-7 * (sqrt(norm) + 1e-3)))
            fail_msg("%s: %s: difference %.12g, gradient %.12g", name, f->d.params.rows[i].name, got, want);
        free(keep);
    }
    fixture_close(f);
    free(grad);
    free(f);
}

static void gradients_match_finite_differences_in_every_family(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    check_gradients("llama tied", &s);
    s.tied_embeddings = false;
    check_gradients("llama untied", &s);
    s.rope_scaling = SCALING_YARN, s.rope_factor = 4, s.rope_original = 8, s.rope_fraction = 0.5;
    check_gradients("yarn, partial rotary", &s);
    s = base_spec();
    s.window = 4, s.window_layers[0] = '1', s.window_layers[1] = 0;
    check_gradients("mistral window in one layer", &s);
    s = base_spec(), s.qkv_bias = true;
    check_gradients("qwen2", &s);
    s = base_spec(), s.qk_norm = true;
    check_gradients("qwen3", &s);
    s.logit_softcap = 1.5;
    check_gradients("logits with a soft-cap", &s);
    s = base_spec();
    s.norm = NORM_LAYERNORM, s.activation = ACT_GELU, s.position = POS_LEARNED, s.head_count_kv = 4,
    s.head_dim = 4;
    s.qkv_bias = s.out_bias = s.mlp_bias = true;
    check_gradients("gpt2", &s);
    s = base_spec();
    use_gdn(&s, "gdn,gqa");
    check_gradients("gated deltanet and attention", &s);
    use_qwen3_next(&s);
    check_gradients("qwen3-next", &s);
    s.qkv_bias = s.out_bias = true, s.qk_norm = false;
    check_gradients("gate without QK-norm", &s);
    s = base_spec();
    use_mla(&s, "mla,swa", 0);
    s.window = 4;
    check_gradients("latent attention, queries without a rank", &s);
    use_mla(&s, "mla", 10);
    s.window = 0, s.norm_zero_centered = true;
    s.rope_scaling = SCALING_YARN, s.rope_factor = 4, s.rope_original = 8,
    s.rope_mscale = s.rope_mscale_all_dim = 0.9;
    check_gradients("latent attention, a rank of queries, yarn", &s);
    s = base_spec();
    use_mamba(&s, "mamba2,gqa");
    check_gradients("mamba2 and attention", &s);
    s = base_spec();
    use_engram(&s, "0-1");
    check_gradients("engram in both layers", &s);
    s.engram_fold = true;
    s.engram_ngram = 4, s.engram_heads = 1;
    use_gdn(&s, "gdn,gqa");
    snprintf(s.engram_layers, sizeof s.engram_layers, "1");
    check_gradients("engram behind a gated deltanet", &s);
}

static void gradients_match_finite_differences_of_hierarchical_reasoning(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    use_hrm(&s, 1, 1, 1);
    check_gradients("one pass over each stack", &s);
    use_hrm(&s, 2, 1, 1);
    check_gradients("two cycles", &s);
    use_hrm(&s, 1, 3, 1);
    check_gradients("three low-level passes", &s);
    s.layer_count = 3, s.hrm_low_layers = 2, s.tied_embeddings = false;
    use_hrm(&s, 2, 2, 3);
    check_gradients("three segments", &s);
    use_hrm(&s, 1, 1, 2);
    s.norm = NORM_LAYERNORM, s.position = POS_LEARNED;
    check_gradients("two segments of one pass, LayerNorm", &s);
    s = base_spec();
    use_hrm(&s, 2, 2, 2);
    s.hrm_halt = true, s.hrm_segments = 3, s.hrm_explore = 0.5;
    check_gradients("a head that halts", &s);
    s.hrm_halt = false, s.hrm_segments = 2;
    use_gdn(&s, "gdn,gqa/moe");
    s.moe_experts = 6, s.moe_top_k = 2, s.moe_size = 10, s.moe_aux = 0;
    use_engram(&s, "0");
    check_gradients("a delta rule below, experts above, n-grams", &s);
}

/* Goal: a segment continues where the last one stopped. Method: two segments of one cycle equal one of two. */
static void segments_carry_their_states(void **state)
{
    (void)state;
    double loss[2];
    for (int i = 0; i < 2; i++) {
        struct model_spec s = base_spec();
        struct fixture *f = malloc(sizeof *f);
        use_hrm(&s, i ? 1 : 2, 2, i ? 2 : 1);
        fixture_open(f, &s, DTYPE_F64, RECOMPUTE_NONE);
        assert_int_equal(decoder_loss(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
        loss[i] = f->scalars.loss_sum;
        fixture_close(f);
        free(f);
    }
    assert_true(loss[0] == loss[1] && loss[0] > 0);
}

/* Goal: documents that stop have no loss in later segments, and those that do not are as without a head. Method: a head that never stops
 * gives the loss without one; one that stops at once gives that of one segment. */
static void a_head_that_halts_decides_which_losses_count(void **state)
{
    (void)state;
    const double halts[] = {-5, 50};
    for (int now = 0; now < 2; now++) {
        double loss[2];
        for (int head = 0; head < 2; head++) {
            struct model_spec s = base_spec();
            struct fixture *f = malloc(sizeof *f);
            use_hrm(&s, 2, 1, head || !now ? 3 : 1);
            s.hrm_halt = head, s.hrm_explore = 0;
            fixture_open(f, &s, DTYPE_F64, RECOMPUTE_NONE);
            if (head) {
                memset(params_master(&f->d.params, f->d.hrm->halt), 0, 32 * sizeof(double));
                double *bias = params_master(&f->d.params, f->d.hrm->halt_bias);
                bias[0] = halts[now], bias[1] = 0;
            }
            assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
            loss[head] = f->scalars.loss_sum;
            const int32_t *stop = head ? f->a.hrm->stop.data : NULL;
            for (int i = 0; head && i < 3; i++) assert_int_equal(stop[i], now ? 1 : 3);
            fixture_close(f);
            free(f);
        }
        assert_true(loss[0] == loss[1] && loss[0] > 0);
    }
}

/* Goal: the fast ops give the oracle's gradients. Method: relative error of F32's and BF16's against F64's. */
static void gradients_of_hierarchical_reasoning_agree_with_the_oracle(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.init_std = 0.1;
    use_hrm(&s, 2, 2, 2);
    struct fixture *exact = malloc(sizeof *exact), *f = malloc(sizeof *f);
    fixture_open(exact, &s, DTYPE_F64, RECOMPUTE_NONE);
    assert_int_equal(decoder_fwd_bwd(&exact->d, &exact->a, &exact->batch, 0, &exact->run), STATUS_OK);
    for (int precision = 0; precision < 2; precision++) {
        const double *want = exact->d.params.grad;
        double error = 0, norm = 0;
        fixture_open(f, &s, precision ? DTYPE_BF16 : DTYPE_F32, RECOMPUTE_NONE);
        assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
        const float *got = f->d.params.grad;
        for (int64_t i = 0; i < f->d.params.total; i++) {
            error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            norm += want[i] * want[i];
        }
        error = sqrt(error / norm);
        if (!(error < (precision ? 3e-2 : 1e-5)))
            fail_msg("%s: relative error %g", precision ? "bf16" : "f32", error);
        fixture_close(f);
    }
    fixture_close(exact);
    free(exact);
    free(f);
}

static void gradients_match_finite_differences_of_extra_predictions(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.mtp_depth = 1;
    check_gradients("one extra prediction, tied", &s);
    s.mtp_depth = 2, s.tied_embeddings = false, s.norm = NORM_LAYERNORM, s.position = POS_LEARNED;
    check_gradients("two extra predictions, learned positions", &s);
    s = base_spec();
    use_gdn(&s, "2*gqa,1*gdn");
    s.mtp_depth = 3; /* the pattern repeats: gdn, gqa, gqa */
    check_gradients("three extra predictions of two kinds", &s);
}

static void gradients_match_finite_differences_in_mixtures_of_experts(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    use_moe(&s, MOE_PLAIN);
    check_gradients("qwen3-moe", &s);
    s.moe_aux = 0.5, s.moe_z = 0.1;
    check_gradients("auxiliary loss and z-loss", &s);
    s = base_spec();
    use_moe(&s, MOE_GATED);
    check_gradients("a gated shared expert", &s);
    s = base_spec();
    use_moe(&s, MOE_DEEPSEEK);
    check_gradients("deepseek-v3", &s);
    s.moe_aux = 0.5, s.moe_aux_kind = AUX_SEQUENCE;
    check_gradients("auxiliary loss per document", &s);
    s = base_spec();
    use_moe(&s, MOE_CAPACITY);
    check_gradients("dropped tokens", &s);
}

/* Goal: tokens that the map makes one are one to the memory. Method: with a map of pairs, tokens that change within their pair leave the ids of
 * all rows alone, and those that leave it do not; without a map each changes them. And the multipliers of a seed are these numbers: a
 * checkpoint holds tables for them. */
static void a_map_folds_the_tokens_that_are_hashed(void **state)
{
    (void)state;
    for (int fold = 0; fold < 2; fold++) {
        struct model_spec s = base_spec();
        struct fixture *f = malloc(sizeof *f);
        use_engram(&s, "1");
        s.engram_base = 1009, s.engram_fold = fold, s.engram_seed = 5;
        fixture_open(f, &s, DTYPE_F64, RECOMPUTE_NONE);
        const struct tensor ids = f->a.blocks[1].engram.ids;
        const size_t bytes = (size_t)tensor_count(ids) * sizeof(int32_t);
        void *first = malloc(bytes);
        for (int move = 0; move < 3; move++) {
            for (int t = 0; t < N; t++) f->tokens[t] = t % 3 * 6 + (move == 1) + 3 * (move == 2);
            assert_int_equal(decoder_fwd(&f->d, &f->a, &f->batch, &f->run), STATUS_OK);
            if (move == 0) memcpy(first, ids.data, bytes);
            assert_int_equal(memcmp(first, ids.data, bytes) == 0, move == 0 || (move == 1 && fold));
        }
        const int64_t *a = f->d.blocks[1].engram.hash.multipliers;
        const int64_t want[] = {48458837300213799, 251967907796820903, 156886902860740293};
        for (int k = 0; k < 3; k++)
            if (a[k] != want[k]) fail_msg("multiplier %d is %lld", k, (long long)a[k]);
        free(first);
        fixture_close(f);
        free(f);
    }
}

/* Goal: recompute changes memory, never numbers; in F64 nor does who adds the stream. Method: gradients and losses are the same bytes. */
static void recompute_policies_give_the_same_bits(void **state)
{
    (void)state;
    for (int family = 0; family < 12; family++) {
        for (int precision = 0; precision < 3; precision++) {
            const dtype dt = (const dtype[]){DTYPE_F64, DTYPE_F32, DTYPE_BF16}[precision];
            struct model_spec s = base_spec();
            s.layer_count = 5;
            if (family == 1)
                s.norm = NORM_LAYERNORM, s.activation = ACT_GELU, s.position = POS_LEARNED, s.qk_norm = true;
            if (family == 2) use_gdn(&s, "2*gdn,1*gqa");
            if (family == 3) use_qwen3_next(&s);
            if (family == 4 || family == 5) use_mla(&s, "1*gqa,2*mla", family == 4 ? 0 : 10);
            if (family == 6) use_mamba(&s, "2*mamba2,1*gqa");
            if (family == 7) use_moe(&s, MOE_GATED);
            if (family == 8) use_moe(&s, MOE_DEEPSEEK);
            if (family == 9) s.mtp_depth = 2;
            if (family == 10) use_engram(&s, "1,3-4");
            if (family == 11) use_hrm(&s, 2, 2, 2), s.hrm_halt = true;
            void *first = NULL;
            double first_loss = 0;
            size_t act_bytes[3];
            for (int way = 0; way < (dt == DTYPE_F64 ? 6 : 3); way++) {
                struct fixture *f = malloc(sizeof *f);
                fixture_open(f, &s, dt, (enum recompute)(way % 3));
                if (way >= 3) f->ops.gemm_supports = fuses_bias_alone;
                assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
                const size_t bytes = (size_t)f->d.params.total * dtype_bytes(dtype_acc(dt));
                act_bytes[way % 3] = f->act.peak;
                if (way == 0) {
                    first = malloc(bytes);
                    memcpy(first, f->d.params.grad, bytes);
                    first_loss = f->scalars.loss_sum;
                } else {
                    assert_memory_equal(&f->scalars.loss_sum, &first_loss, sizeof first_loss);
                    assert_memory_equal(f->d.params.grad, first, bytes);
                }
                fixture_close(f);
                free(f);
            }
            assert_true(act_bytes[2] < act_bytes[1] && act_bytes[1] < act_bytes[0]);
            free(first);
        }
    }
}

/* Goal: a packed batch and its gradients are sums over its documents. Method: one batch per document. */
static void check_packed(const struct model_spec *s)
{
    struct fixture *f = malloc(sizeof *f);
    fixture_open(f, s, DTYPE_F64, RECOMPUTE_NONE);
    const int64_t total = f->d.params.total;
    double *grad = f->d.params.grad, *packed = malloc((size_t)total * sizeof *packed), norm = 0;
    assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
    const double loss = f->scalars.loss_sum + f->scalars.aux_sum;
    memcpy(packed, grad, (size_t)total * sizeof *packed);
    memset(grad, 0, (size_t)total * sizeof *grad);
    f->scalars.loss_sum = f->scalars.aux_sum = 0;
    f->run.accum = ACCUM_ADD;
    for (int doc = 0; doc < 3; doc++) {
        int at = f->cu[doc];
        int32_t cu[2] = {0, f->cu[doc + 1] - at};
        struct batch b = {.rows = cu[1],
                          .docs = 1,
                          .len_max = cu[1],
                          .tokens = f->tokens + at,
                          .targets = f->targets + at,
                          .positions = f->positions + at,
                          .cu_seqlens = cu};
        assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &b, 0, &f->run), STATUS_OK);
    }
    const double single = f->scalars.loss_sum + f->scalars.aux_sum;
    assert_true(fabs(loss - single) < 1e-12 * fabs(loss));
    for (int64_t i = 0; i < total; i++) norm += packed[i] * packed[i];
    for (int64_t i = 0; i < total; i++)
        if (!(fabs(packed[i] - grad[i]) < 1e-12 * sqrt(norm)))
            fail_msg("gradient %lld is %.17g packed, %.17g alone", (long long)i, packed[i], grad[i]);
    fixture_close(f);
    free(packed);
    free(f);
}

static void packed_documents_equal_single_documents(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    use_qwen3_next(&s);
    use_engram(&s, "1");
    check_packed(&s);
    s = base_spec();
    use_mla(&s, "mla", 10);
    check_packed(&s);
    s = base_spec();
    use_mamba(&s, "mamba2,gqa");
    check_packed(&s);
    use_moe(&s, MOE_GATED);
    check_packed(&s);
    use_moe(&s, MOE_DEEPSEEK);
    s.moe_aux = 0.5, s.moe_aux_kind = AUX_SEQUENCE, s.moe_z = 0.1;
    check_packed(&s);
    s = base_spec();
    use_hrm(&s, 2, 2, 2);
    use_gdn(&s, "gdn,gqa");
    s.hrm_halt = true, s.hrm_explore = 0.5;
    check_packed(&s);
}

/* Goal: what auxiliary losses do does not depend on how a step is cut. Method: the loss of two equal micro-batches is that of one,
 * twice; so are its gradients, and each expert's tokens. */
static void auxiliary_losses_are_shared_by_micro_batches(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    use_moe(&s, MOE_DEEPSEEK);
    s.moe_aux = 0.5, s.moe_z = 0.1;
    struct fixture *f = malloc(sizeof *f);
    fixture_open(f, &s, DTYPE_F64, RECOMPUTE_NONE);
    const int64_t total = f->d.params.total;
    double *grad = f->d.params.grad, *once = malloc((size_t)total * sizeof *once);
    assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
    const double cost = f->scalars.aux_sum;
    assert_true(cost > 0);
    memcpy(once, grad, (size_t)total * sizeof *once);
    f->run.accum = ACCUM_ADD;
    assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
    assert_true(fabs(f->scalars.aux_sum - 2 * cost) < 1e-12 * cost);
    for (int64_t i = 0; i < total; i++)
        assert_true(fabs(grad[i] - 2 * once[i]) <= 1e-12 * (1 + fabs(once[i])));
    const int bias = params_find(&f->d.params, "layers.1.moe.router.bias");
    double counted = 0;
    for (int64_t e = 0; e < s.moe_experts; e++) counted += ((double *)params_grad(&f->d.params, bias))[e];
    assert_true(counted == (double)(2 * N * s.moe_top_k));
    fixture_close(f);
    free(once);
    free(f);
}

/* Goal: the number of threads changes no bit of a step. Method: gradients and loss with 1 to 3 threads. */
static void check_threads(const struct model_spec *s)
{
    for (int precision = 1; precision < 3; precision++) {
        struct fixture *first = malloc(sizeof *first), *f = malloc(sizeof *f);
        const dtype dt = precision == 1 ? DTYPE_F32 : DTYPE_BF16;
        parallel_threads_set(1);
        fixture_open(first, s, dt, RECOMPUTE_SELECTIVE);
        assert_int_equal(decoder_fwd_bwd(&first->d, &first->a, &first->batch, 0, &first->run), STATUS_OK);
        for (int threads = 2; threads <= 3; threads++) {
            parallel_threads_set(threads);
            fixture_open(f, s, dt, RECOMPUTE_SELECTIVE);
            assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &f->batch, 0, &f->run), STATUS_OK);
            assert_memory_equal(&f->scalars.loss_sum, &first->scalars.loss_sum, sizeof(double));
            assert_memory_equal(f->d.params.grad, first->d.params.grad,
                                (size_t)f->d.params.total * sizeof(float));
            fixture_close(f);
        }
        fixture_close(first);
        free(first);
        free(f);
    }
    parallel_threads_set(0);
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    use_mla(&s, "1*mla,1*gdn", 10);
    s.gdn_key_heads = 2, s.gdn_value_heads = 4, s.gdn_key_dim = 8, s.gdn_value_dim = 4;
    check_threads(&s);
    s = base_spec();
    use_moe(&s, MOE_GATED);
    check_threads(&s);
    s = base_spec();
    use_moe(&s, MOE_DEEPSEEK);
    s.moe_aux = 0.5;
    check_threads(&s);
    s = base_spec();
    use_hrm(&s, 2, 3, 2);
    s.hrm_halt = true;
    check_threads(&s);
}

/* Goal: an MTP module sees only its document, and evaluation ignores it. Method: sums of a packed batch
 * compared with one batch per document; the loss of evaluation compared with that of training. */
static void extra_predictions_stay_in_their_documents(void **state)
{
    (void)state;
    struct model_spec s = base_spec();
    s.mtp_depth = 2;
    struct fixture *f = malloc(sizeof *f);
    fixture_open(f, &s, DTYPE_F64, RECOMPUTE_NONE);
    loss_of(f);
    const double packed = f->scalars.mtp_loss_sum, head = f->scalars.loss_sum;
    f->scalars.mtp_loss_sum = f->scalars.loss_sum = 0;
    assert_int_equal(decoder_loss(&f->d, &f->a, &f->batch, 1e-2, &f->run), STATUS_OK);
    assert_true(f->scalars.loss_sum == head && f->scalars.mtp_loss_sum == 0);
    for (int doc = 0; doc < 3; doc++) {
        int at = f->cu[doc];
        int32_t cu[2] = {0, f->cu[doc + 1] - at};
        struct batch b = {.rows = cu[1],
                          .docs = 1,
                          .len_max = cu[1],
                          .tokens = f->tokens + at,
                          .targets = f->targets + at,
                          .positions = f->positions + at,
                          .cu_seqlens = cu};
        assert_int_equal(decoder_fwd_bwd(&f->d, &f->a, &b, 0, &f->run), STATUS_OK);
    }
    assert_true(packed > 0);
    assert_true(fabs(packed - f->scalars.mtp_loss_sum) < 1e-12 * packed);
    fixture_close(f);
    free(f);
}

/* Goal: the weight alone decides what the extra predictions do to the model. Method: with scale 0, its gradients are those of a model
 * without them. */
static void without_weight_extra_predictions_change_nothing(void **state)
{
    (void)state;
    struct fixture *with = malloc(sizeof *with), *without = malloc(sizeof *without);
    struct model_spec s = base_spec();
    fixture_open(without, &s, DTYPE_F64, RECOMPUTE_NONE);
    s.mtp_depth = 1;
    fixture_open(with, &s, DTYPE_F64, RECOMPUTE_NONE);
    const struct params *p = &without->d.params, *q = &with->d.params;
    for (int i = 0; i < p->count; i++)
        memcpy(params_master(q, params_find(q, p->rows[i].name)), params_master(p, i),
               (size_t)p->rows[i].count * sizeof(double));
    with->scalars.mtp_scale = 0;
    loss_of(with);
    assert_int_equal(decoder_fwd_bwd(&without->d, &without->a, &without->batch, 1e-2, &without->run),
                     STATUS_OK);
    for (int i = 0; i < p->count; i++) {
        const double *a = params_grad(p, i), *b = params_grad(q, params_find(q, p->rows[i].name));
        for (int64_t k = 0; k < p->rows[i].count; k++)
            if (a[k] != b[k]) fail_msg("%s[%lld]: %g, %g", p->rows[i].name, (long long)k, a[k], b[k]);
    }
    fixture_close(with);
    fixture_close(without);
    free(with);
    free(without);
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences_in_every_family),
        cmocka_unit_test(gradients_match_finite_differences_in_mixtures_of_experts),
        cmocka_unit_test(recompute_policies_give_the_same_bits),
        cmocka_unit_test(packed_documents_equal_single_documents),
        cmocka_unit_test(gradients_match_finite_differences_of_extra_predictions),
        cmocka_unit_test(gradients_match_finite_differences_of_hierarchical_reasoning),
        cmocka_unit_test(a_map_folds_the_tokens_that_are_hashed),
        cmocka_unit_test(segments_carry_their_states),
        cmocka_unit_test(a_head_that_halts_decides_which_losses_count),
        cmocka_unit_test(gradients_of_hierarchical_reasoning_agree_with_the_oracle),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(auxiliary_losses_are_shared_by_micro_batches),
        cmocka_unit_test(extra_predictions_stay_in_their_documents),
        cmocka_unit_test(without_weight_extra_predictions_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
