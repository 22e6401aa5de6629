/* Goal: generation with caches computes what the training forward computes. Method: logits after every prefix of a token sequence, token by
 * token through the cache, alone and in a batch, against one forward of the whole sequence; then sampling rules on hand-made logits, and
 * against their definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "infer/generate.h"
#include "model/init.h"
#include "plan/plan.h"

enum { N = 20, VOCAB = 50, SEQUENCES = 3, MOST = 2000 };

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

/* One of the sequences that are generated side by side. */
static void tokens_of(int sequence, int32_t tokens[N])
{
    for (int t = 0; t < N; t++) tokens[t] = (t * 7 + 3 + sequence * 11) % VOCAB;
}

static void check_logits(const float *got, const float *want, int sequence, int64_t tokens)
{
    for (int k = 0; k < VOCAB; k++)
        if (!(fabsf(got[k] - want[k]) <= 2e-5f))
            fail_msg("sequence %d after %lld tokens: logit %d is %g, forward has %g", sequence,
                     (long long)tokens, k, (double)got[k], (double)want[k]);
}

/* From `prompt` tokens on, token by token, against the forward's logits of all sequences; then, the first sequence has
 * the bits that it has alone. */
static void check_sequences(const struct decoder *d, struct activations *a, const struct exec *run,
                            int64_t prompt, int64_t sequences, float (*want)[N][VOCAB])
{
    struct generator g;
    int32_t all[SEQUENCES][N], next[SEQUENCES * N];
    static float alone[N][VOCAB];
    ok(generate_open(&g, d, a, &(struct generate_layout){.sequences = sequences, .capacity = N}, run));
    for (int b = 0; b < sequences; b++) tokens_of(b, all[b]);
    for (int64_t t = prompt; t <= N; t++) {
        const int64_t from = t == prompt ? 0 : t - 1;
        for (int64_t b = 0; b < sequences; b++)
            memcpy(next + b * (t - from), all[b] + from, (size_t)(t - from) * sizeof *next);
        ok(generate_append(&g, next, t - from));
        for (int b = 0; b < sequences; b++)
            check_logits((const float *)g.logits.data + b * g.logits.shape[1], want[b][t - 1], b, t);
        if (sequences > 1) assert_memory_equal(g.logits.data, alone[t - 1], sizeof alone[0]);
        memcpy(alone[t - 1], g.logits.data, sizeof alone[0]);
    }
    generate_close(&g);
}

/* Prompts of different lengths side by side, each until it has N tokens; the longer ones are idle from then on. On a CPU
 * the bits are those of the sequence alone. */
static void check_ragged(const struct decoder *d, struct activations *a, const struct exec *run,
                         int64_t prompt, float (*want)[N][VOCAB])
{
    struct generator g;
    int32_t all[SEQUENCES][N], next[SEQUENCES];
    const int32_t *prompts[SEQUENCES];
    int64_t counts[SEQUENCES];
    static float alone[SEQUENCES][N][VOCAB];
    for (int only = SEQUENCES - 1; only >= -1; only--) { /* each alone, then all */
        const int first = only < 0 ? 0 : only, n = only < 0 ? SEQUENCES : 1;
        ok(generate_open(&g, d, a, &(struct generate_layout){.sequences = n, .capacity = N}, run));
        for (int b = 0; b < n; b++) {
            tokens_of(first + b, all[b]);
            prompts[b] = all[b];
            counts[b] = prompt + 2 * (first + b) < N ? prompt + 2 * (first + b) : N;
        }
        ok(generate_prompts(&g, prompts, counts));
        for (int left = n; left > 0;) {
            left = 0;
            for (int b = 0; b < n; b++) {
                const float *got = (const float *)g.logits.data + b * g.logits.shape[1];
                float *bits = alone[first + b][counts[b] - 1];
                next[b] = -1; /* not read while it is idle */
                if (g.lengths[b] == GENERATE_IDLE) continue;
                check_logits(got, want[first + b][counts[b] - 1], first + b, counts[b]);
                if (only < 0) assert_memory_equal(got, bits, sizeof alone[0][0]);
                memcpy(bits, got, sizeof alone[0][0]);
                if (counts[b] == N)
                    generate_idle(&g, b);
                else
                    next[b] = all[b][counts[b]++], left++;
            }
            if (left > 0) ok(generate_append(&g, next, 1));
        }
        generate_close(&g);
    }
}

static void check_family(const struct model_spec *spec, enum plan_use use, int64_t prompt)
{
    struct decoder d;
    struct rank_state rank;
    struct activations a = {0};
    struct memory m;
    struct ops ops;
    ok(ops_cpu(&ops, NULL));
    ok(decoder_init(&d, spec, NULL));
    ok(plan_reserve(
        &m, &d, &rank, &a,
        &(struct plan_layout_args){
            .use = use, .ops = &ops, .dt = DTYPE_F32, .optim = OPTIM_ADAMW, .tokens = N, .positions = N}));
    struct exec run = {.ops = &ops, .params = &d.params};
    ok(init_weights(&d, &run, 5));
    for (int i = 0; i < d.params.count; i++) /* what begins at zero would hide errors */
        for (int64_t k = 0; d.params.rows[i].zero && k < d.params.rows[i].count; k++)
            ((float *)params_master(&d.params, i))[k] = (float)(k % 7) / 9 - 0.3f;
    for (int32_t i = 0; d.token_map.data && i < VOCAB; i++) ((int32_t *)d.token_map.data)[i] = i / 3;
    int32_t tokens[N], positions[N], cu[2] = {0, N};
    static float want[SEQUENCES][N][VOCAB];
    for (int t = 0; t < N; t++) positions[t] = t;
    for (int b = 0; b < SEQUENCES; b++) {
        tokens_of(b, tokens);
        ok(decoder_fwd(
            &d, &a,
            &(struct batch){.rows = N, .docs = 1, .tokens = tokens, .positions = positions, .cu_seqlens = cu},
            &run));
        struct tensor all = {.data = want[b], .dt = DTYPE_F32, .rank = 2, .shape = {N, VOCAB}};
        ok(head_logits(&d.head, a.y, all, &run));
    }
    check_sequences(&d, &a, &run, prompt, 1, want);
    check_sequences(&d, &a, &run, prompt, SEQUENCES, want);
    check_ragged(&d, &a, &run, prompt, want);
    struct generator g;
    assert_int_equal(
        generate_open(&g, &d, &a, &(struct generate_layout){.sequences = 1, .capacity = 1000}, &run),
        STATUS_CONFIG);
    activations_fini(&a);
    decoder_fini(&d);
    memory_free(&m);
}

static void cached_logits_equal_the_forward_in_every_family(void **state)
{
    (void)state;
    struct model_spec s;
    model_spec_default(&s);
    s.vocab_size = VOCAB, s.layer_count = 3, s.hidden_size = 32, s.ffn_size = 48, s.head_count = 4,
    s.head_count_kv = 2, s.head_dim = 8;
    s.context_length = 64, s.init_std = 0.2;
    for (int use = PLAN_TRAIN; use <= PLAN_FORWARD; use++) {
        struct model_spec f = s;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 9);
        f.qk_norm = true;
        check_family(&f, (enum plan_use)use, 5);
        f.window = 4;
        check_family(&f, (enum plan_use)use, 7);
        snprintf(f.engram_layers, sizeof f.engram_layers, "1-2");
        f.engram_dim = 16, f.engram_base = 50, f.engram_heads = 2, f.engram_ngram = 4;
        check_family(&f, (enum plan_use)use, 1);
        f.engram_fold = true;
        check_family(&f, (enum plan_use)use, 2);
        check_family(&f, (enum plan_use)use, 15);
        f = s;
        f.norm = NORM_LAYERNORM, f.activation = ACT_GELU, f.position = POS_LEARNED,
        f.qkv_bias = f.out_bias = f.mlp_bias = true;
        check_family(&f, (enum plan_use)use, 6);
        f = s;
        snprintf(f.layers, sizeof f.layers, "2*gdn,1*gqa");
        f.gdn_key_heads = 2, f.gdn_value_heads = 4, f.gdn_key_dim = 8, f.gdn_value_dim = 16;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 7);
        f.hrm_cycles = 2, f.hrm_low_layers = 2, f.hrm_segments = 2;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 7);
        f = s;
        f.hrm_cycles = 1, f.hrm_steps = 3;
        check_family(&f, (enum plan_use)use, 7);
        f = s;
        snprintf(f.layers, sizeof f.layers, "gqa;gqa/moe");
        f.moe_experts = 6, f.moe_top_k = 2, f.moe_size = 20, f.moe_shared_size = 12, f.moe_shared_gate = true;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 7);
        f = s;
        snprintf(f.layers, sizeof f.layers, "mla;mla,gqa,mla");
        f.mla_heads = 3, f.mla_kv_rank = 12, f.mla_nope_dim = 10, f.mla_rope_dim = 6, f.mla_value_dim = 8;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 8);
        f.mla_q_rank = 20;
        f.rope_scaling = SCALING_YARN, f.rope_factor = 4, f.rope_original = 8, f.rope_mscale_all_dim = 1;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 7);
        f.attention_gate = f.norm_zero_centered = f.qk_norm = true, f.rope_fraction = 0.25;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 7);
        f = s;
        snprintf(f.layers, sizeof f.layers, "2*mamba2,1*gqa");
        f.mamba_heads = 4, f.mamba_head_dim = 16, f.mamba_groups = 2, f.mamba_state = 8;
        check_family(&f, (enum plan_use)use, 1);
        check_family(&f, (enum plan_use)use, 7);
    }
}

static void small_models_of_published_parts_generate(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3-next-tiny", "deepseek-v3-tiny", "hrm-tiny"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct model_spec m;
        ok(preset_find(names[i], &m));
        m.vocab_size = VOCAB;
        check_family(&m, PLAN_FORWARD, 7);
    }
}

static void sampling_follows_temperature_top_k_and_top_p(void **state)
{
    (void)state;
    const float logits[] = {0, 2, 1, 2, -1e30f};
    assert_int_equal(generate_sample(logits, 5, &(struct sampling){.temperature = 0, .top_p = 1}, 0),
                     1); /* ties: the smaller id */
    int seen[5] = {0}, top2[5] = {0}, nucleus[5] = {0};
    const int draws = 4000;
    for (int i = 0; i < draws; i++) {
        seen[generate_sample(logits, 5, &(struct sampling){.temperature = 1, .top_p = 1, .seed = 3},
                             (uint64_t)i)]++;
        top2[generate_sample(logits, 5,
                             &(struct sampling){.temperature = 1, .top_k = 2, .top_p = 1, .seed = 3},
                             (uint64_t)i)]++;
        nucleus[generate_sample(logits, 5, &(struct sampling){.temperature = 1, .top_p = 0.85, .seed = 3},
                                (uint64_t)i)]++;
    }
    double z = 1 + 2 * exp(2) + exp(1), p[] = {1 / z, exp(2) / z, exp(1) / z, exp(2) / z, 0};
    for (int k = 0; k < 5; k++) {
        double sigma = sqrt(draws * p[k] * (1 - p[k])) + 1e-9;
        assert_true(fabs(seen[k] - draws * p[k]) < 5 * sigma);
    }
    assert_int_equal(top2[1] + top2[3], draws);
    assert_true(top2[1] > 0 && top2[3] > 0);
    assert_int_equal(nucleus[0] + nucleus[4], 0); /* 1, 3 and 2 together reach 0.85 */
    assert_true(nucleus[2] > 0);
}

struct ranked {
    float logit;
    int32_t id;
};
static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The definition: all candidates sorted, their weights added in that order. */
static int32_t sampled(const float *logits, int64_t vocab, const struct sampling *s, uint64_t index)
{
    static struct ranked c[MOST];
    static double p[MOST];
    for (int64_t i = 0; i < vocab; i++) c[i] = (struct ranked){logits[i], (int32_t)i};
    qsort(c, (size_t)vocab, sizeof *c, by_rank);
    const int64_t count = s->temperature == 0 ? 1 : s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < count; i++) {
        p[i] = s->temperature == 0 ? 1 : exp((double)(c[i].logit - c[0].logit) / s->temperature);
        sum += p[i];
    }
    int64_t n = 0, pick = 0;
    while (n < count && (n == 0 || kept < s->top_p * sum)) kept += p[n++];
    double at = rng_uniform(s->seed, RNG_SAMPLE, 0, index) * kept;
    while (pick + 1 < n && at >= p[pick]) at -= p[pick++];
    return c[pick].id;
}

/* Logits of a kind: spread wide and narrow, with ties, all equal, with minus infinity. */
static void logits_of(int kind, float *logits, int64_t vocab)
{
    static const double spread[] = {0.01, 1, 3, 12, 200};
    for (int64_t i = 0; i < vocab; i++) {
        const double x = rng_normal(7, RNG_TEST, (uint64_t)kind, (uint64_t)i);
        if (kind < 5) logits[i] = (float)(spread[kind] * x);
        if (kind == 5) logits[i] = (float)floor(2 * x) / 2;
        if (kind == 6) logits[i] = 1.5f;
        if (kind == 7) logits[i] = i % 3 ? (float)(3 * x) : -INFINITY;
    }
}

static void a_drawn_token_is_that_of_the_definition(void **state)
{
    (void)state;
    enum { KINDS = 8, DRAWS = 3 };
    static float logits[MOST];
    static const int64_t vocabs[] = {1, 4, 77, MOST}, ks[] = {0, 1, 5, 300};
    static const double temperatures[] = {0, 1e-30, 0.3, 0.8, 1, 5, 1e30}, ps[] = {1, 0.95, 0.5, 0.25, 1e-6};
    for (int kind = 0; kind < KINDS; kind++)
        for (int v = 0; v < 4; v++) {
            logits_of(kind, logits, vocabs[v]);
            for (int t = 0; t < 7; t++)
                for (int i = 0; i < 4 * 5; i++)
                    for (uint64_t draw = 0; draw < DRAWS; draw++) {
                        const struct sampling s = {.temperature = temperatures[t],
                                                   .top_k = ks[i % 4],
                                                   .top_p = ps[i / 4],
                                                   .seed = (uint64_t)(kind + 8 * v)};
                        const int32_t want = sampled(logits, vocabs[v], &s, draw),
                                      got = generate_sample(logits, vocabs[v], &s, draw);
                        if (got != want)
                            fail_msg("logits %d of %lld, temperature %g, top-k %lld, top-p %g, draw %d: %d, "
                                     "not %d",
                                     kind, (long long)vocabs[v], s.temperature, (long long)s.top_k, s.top_p,
                                     (int)draw, got, want);
                    }
        }
}

static void a_token_outside_the_vocabulary_is_refused(void **state)
{
    (void)state;
    struct model_spec s;
    model_spec_default(&s);
    s.vocab_size = VOCAB, s.layer_count = 1, s.hidden_size = 16, s.ffn_size = 16, s.head_count = 2,
    s.head_dim = 8, s.context_length = 8;
    struct decoder d;
    struct rank_state rank;
    struct activations a = {0};
    struct memory m;
    struct ops ops;
    struct generator g;
    ok(ops_cpu(&ops, NULL));
    ok(decoder_init(&d, &s, NULL));
    ok(plan_reserve(
        &m, &d, &rank, &a,
        &(struct plan_layout_args){.use = PLAN_FORWARD, .dt = DTYPE_F32, .tokens = 4, .positions = 8}));
    struct exec run = {.ops = &ops, .params = &d.params};
    ok(generate_open(&g, &d, &a, &(struct generate_layout){.sequences = 1, .capacity = 4}, &run));
    const int32_t bad[] = {1, VOCAB};
    assert_int_equal(generate_append(&g, bad, 2), STATUS_DATA);
    generate_close(&g);
    activations_fini(&a);
    decoder_fini(&d);
    memory_free(&m);
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_logits_equal_the_forward_in_every_family),
        cmocka_unit_test(small_models_of_published_parts_generate),
        cmocka_unit_test(sampling_follows_temperature_top_k_and_top_p),
        cmocka_unit_test(a_drawn_token_is_that_of_the_definition),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
