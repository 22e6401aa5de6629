/* Goal: presets have the exact published or designed sizes. Method: the counts as literals, and an independent count that adds up
 * every matrix and vector of a block by name; the library's closed form must agree on random shapes too. */
#include "model/param_count.h"
#include "plan/param_formula.h"
#include "base/rng.h"
#include "spec/spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *name;
    int64_t vocab, count; /* vocab: the one that the count is stated for */
} presets[] = {
    {"nano", 8192, 10244160},
    {"gpt2-124m", 50257, 124439808},
    {"small", 50304, 148759296},
    {"medium", 50304, 400221184},
    {"large", 50304, 786900480},
    {"xl", 50304, 1999259648},
    {"llama-1b", 128256, 1235814400},
    {"7b", 32000, 6738415616},
    {"7b-gqa", 32000, 5933109248},
    {"13b", 32000, 13015864320},
    {"70b", 32000, 68976648192},
    {"deltanet-mla-small", 50304, 151170496},
    {"deltanet-mla-medium", 50304, 395695824},
    {"deltanet-mla-large", 50304, 800472384},
    {"deltanet-mla-xl", 50304, 1974348512},
    {"deltanet-mla-7b", 32000, 6722445824},
    {"deltanet-mla-13b", 32000, 12993363040},
    {"deltanet-mla-70b", 32000, 68760435712},
    {"swa-mla-small", 50304, 150923008},
    {"swa-mla-medium", 50304, 395176704},
    {"swa-mla-large", 50304, 799289856},
    {"swa-mla-xl", 50304, 1972132352},
    {"swa-mla-7b", 32000, 6715363328},
    {"swa-mla-13b", 32000, 12979840000},
    {"swa-mla-70b", 32000, 69196890112},
    {"engram-moe-small", 50304, 868494656},
    {"engram-moe-medium", 50304, 2767403008},
    {"engram-moe-large", 50304, 4873974144},
    {"engram-moe-xl", 50304, 13924008192},
    {"engram-moe-7b", 32000, 54019711552},
    {"engram-moe-13b", 32000, 109773065600},
    {"qwen3-next-tiny", 8192, 19725232},
    {"deepseek-v3-tiny", 8192, 13975744},
    {"hrm-tiny", 8192, 7408384},
};

static int64_t linear(int64_t out, int64_t in, bool bias)
{
    return out * in + (bias ? out : 0);
}

static int64_t attention_by_hand(const struct model_spec *m)
{
    int64_t d = m->hidden_size, n = 0;
    n += linear(m->head_count * m->head_dim, d, m->qkv_bias);
    if (m->attention_gate) n += linear(m->head_count * m->head_dim, d, m->qkv_bias);
    n += linear(m->head_count_kv * m->head_dim, d, m->qkv_bias);
    n += linear(m->head_count_kv * m->head_dim, d, m->qkv_bias);
    if (m->qk_norm) n += m->head_dim + m->head_dim;
    return n + linear(d, m->head_count * m->head_dim, m->out_bias);
}

/* The names of DeepSeek-V3. */
static int64_t mla_by_hand(const struct model_spec *m)
{
    int64_t d = m->hidden_size, n = 0, h = m->mla_heads ? m->mla_heads : m->head_count;
    if (m->mla_q_rank) {
        n += linear(m->mla_q_rank, d, false);                                       /* q_a_proj */
        n += m->mla_q_rank;                                                         /* q_a_layernorm */
        n += linear(h * (m->mla_nope_dim + m->mla_rope_dim), m->mla_q_rank, false); /* q_b_proj */
    } else {
        n += linear(h * (m->mla_nope_dim + m->mla_rope_dim), d, false); /* q_proj */
    }
    n += linear(m->mla_kv_rank + m->mla_rope_dim, d, false);                      /* kv_a_proj_with_mqa */
    n += m->mla_kv_rank;                                                          /* kv_a_layernorm */
    n += linear(h * (m->mla_nope_dim + m->mla_value_dim), m->mla_kv_rank, false); /* kv_b_proj */
    return n + linear(d, h * m->mla_value_dim, false);                            /* o_proj */
}

/* The names of Qwen3.5. */
static int64_t gdn_by_hand(const struct model_spec *m)
{
    int64_t d = m->hidden_size, n = 0, k = m->gdn_key_heads * m->gdn_key_dim,
            v = m->gdn_value_heads * m->gdn_value_dim;
    n += linear(k + k + v, d, false);                                /* in_proj_qkv */
    n += linear(v, d, false);                                        /* in_proj_z */
    n += 2 * linear(m->gdn_value_heads, d, false);                   /* in_proj_a, in_proj_b */
    n += (k + k + v) * m->gdn_conv;                                  /* conv1d */
    n += m->gdn_value_heads + m->gdn_value_heads + m->gdn_value_dim; /* A_log, dt_bias, norm */
    return n + linear(d, v, false);                                  /* out_proj */
}

static int64_t mixer_by_hand(const struct model_spec *m, int64_t layer)
{
    switch (model_layer(m, layer).mixer) {
    case MIXER_MLA: return mla_by_hand(m);
    case MIXER_GDN: return gdn_by_hand(m);
    default: return attention_by_hand(m);
    }
}

/* The names of Qwen3-Next. */
static int64_t moe_by_hand(const struct model_spec *m)
{
    int64_t d = m->hidden_size, n = linear(m->moe_experts, d, false); /* gate */
    for (int64_t e = 0; e < m->moe_experts; e++)
        n += linear(m->moe_size, d, false) + linear(m->moe_size, d, false) + linear(d, m->moe_size, false);
    n += 2 * linear(m->moe_shared_size, d, false) + linear(d, m->moe_shared_size, false);
    return n + (m->moe_shared_gate ? linear(1, d, false) : 0);
}

/* With the tables' rows as tables_have_the_published_number_of_rows has them; k, v, their norms, the convolution and its norm. */
static int64_t engram_by_hand(const struct model_spec *m, int64_t layer)
{
    int32_t primes[MODEL_ENGRAM_ROWS];
    int64_t d = m->hidden_size, wide = (m->engram_ngram - 1) * m->engram_heads * m->engram_dim;
    if (!model_layer_engram(m, layer)) return 0;
    return model_engram_primes(m, layer, primes) * m->engram_dim + 2 * linear(d, wide, false) + 2 * d +
           4 * d + d;
}

static int64_t count_by_hand(const struct model_spec *m, int64_t vocab)
{
    int64_t d = m->hidden_size, norm = m->norm == NORM_LAYERNORM ? d + d : d, n = 0;
    n += vocab * d;
    if (m->position == POS_LEARNED) n += m->context_length * d;
    for (int64_t layer = 0; layer < m->layer_count; layer++) {
        n += norm;
        n += mixer_by_hand(m, layer) + engram_by_hand(m, layer);
        n += norm;
        if (model_layer(m, layer).ffn == FFN_MOE) {
            n += moe_by_hand(m);
            continue;
        }
        if (m->activation == ACT_SWIGLU) n += linear(m->ffn_size, d, m->mlp_bias);
        n += linear(m->ffn_size, d, m->mlp_bias);
        n += linear(d, m->ffn_size, m->mlp_bias);
    }
    n += norm;
    if (m->hrm_halt) n += linear(2, d, true);
    if (m->hrm_cycles) n += norm + norm; /* of the embedding, after the low-level stack */
    if (!m->tied_embeddings) n += vocab * d;
    return n;
}

static void every_preset_has_its_exact_parameter_count(void **state)
{
    (void)state;
    assert_int_equal(preset_count(), sizeof presets / sizeof presets[0]);
    for (int i = 0; i < preset_count(); i++) {
        struct model_spec m;
        assert_string_equal(preset_name(i), presets[i].name);
        assert_int_equal(preset_find(presets[i].name, &m), STATUS_OK);
        assert_int_equal(model_spec_check(&m), STATUS_OK);
        assert_true(m.vocab_size == presets[i].vocab || m.vocab_size == 0);
        assert_true(count_by_hand(&m, presets[i].vocab) == presets[i].count);
        assert_true(model_param_count(&m, presets[i].vocab) == presets[i].count);
    }
}

static void the_closed_form_agrees_on_random_shapes(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200; i++) {
        struct rng_block a = rng_at(1, RNG_TEST, i, 0), b = rng_at(1, RNG_TEST, i, 1);
        struct model_spec m;
        model_spec_default(&m);
        m.layer_count = 1 + a.u[0] % 9;
        m.head_count_kv = 1 + a.u[1] % 4;
        m.head_count = m.head_count_kv * (1 + a.u[2] % 5);
        m.head_dim = 2 * (1 + a.u[3] % 40);
        m.hidden_size = 1 + b.u[0] % 500;
        m.ffn_size = 1 + b.u[1] % 900;
        m.context_length = 1 + b.u[2] % 100;
        uint32_t bits = b.u[3];
        m.norm = bits & 1 ? NORM_RMSNORM : NORM_LAYERNORM;
        m.activation = bits & 2 ? ACT_SWIGLU : ACT_GELU;
        m.position = bits & 4 ? POS_ROPE : POS_LEARNED;
        m.qk_norm = bits & 8;
        m.qkv_bias = bits & 16;
        m.out_bias = bits & 32;
        m.mlp_bias = bits & 64;
        m.tied_embeddings = bits & 128;
        m.attention_gate = bits & 256;
        assert_int_equal(model_spec_check(&m), STATUS_OK);
        assert_true(model_param_count(&m, 1000) == count_by_hand(&m, 1000));
        assert_true(formula_params(&m, 1000) == count_by_hand(&m, 1000));
    }
}

/* What a token passes names the sizes; the backbones are transformers' deepseek_v3 of these sizes. */
static void models_with_tables_pass_and_rest_on_the_designed_number_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t backbone, active;
    } sizes[] = {{"engram-moe-small", 712185600, 149307648},  {"engram-moe-medium", 2350626816, 404877312},
                 {"engram-moe-large", 4043021824, 799404544}, {"engram-moe-xl", 11845763072, 2010148864},
                 {"engram-moe-7b", 43490807808, 6768685056},  {"engram-moe-13b", 88747709440, 13196569600}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct model_spec m;
        assert_int_equal(preset_find(sizes[i].name, &m), STATUS_OK);
        assert_true(formula_active(&m, m.vocab_size) == sizes[i].active);
        assert_true(model_active_count(&m, m.vocab_size) == sizes[i].active);
        m.engram_layers[0] = 0;
        assert_true(model_param_count(&m, m.vocab_size) == sizes[i].backbone);
    }
}

/* DeepSeek-V3 and Qwen3-Next-80B as published, without heads for further tokens; counts of transformers' modules. */
static void mixtures_of_experts_have_the_published_sizes(void **state)
{
    (void)state;
    struct model_spec m;
    model_spec_default(&m);
    m.vocab_size = 129280, m.layer_count = 61, m.hidden_size = 7168, m.ffn_size = 18432, m.head_count = 128,
    m.context_length = 4096;
    snprintf(m.layers, sizeof m.layers, "3*mla;mla/moe");
    m.mla_q_rank = 1536, m.mla_kv_rank = 512, m.tied_embeddings = false;
    m.moe_experts = 256, m.moe_top_k = 8, m.moe_size = m.moe_shared_size = 2048;
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    assert_true(model_param_count(&m, m.vocab_size) == 671026404352);
    assert_true(count_by_hand(&m, m.vocab_size) == 671026404352);
    assert_true(model_active_count(&m, m.vocab_size) == 671026404352 - 58 * 248 * (3LL * 7168 * 2048));

    model_spec_default(&m);
    m.vocab_size = 151936, m.layer_count = 48, m.hidden_size = 2048, m.head_count = 16, m.head_count_kv = 2,
    m.head_dim = 256, m.context_length = 4096;
    snprintf(m.layers, sizeof m.layers, "3*gdn/moe,1*gqa/moe");
    m.gdn_key_heads = 16, m.gdn_value_heads = 32, m.tied_embeddings = false;
    m.attention_gate = m.qk_norm = m.norm_zero_centered = true, m.rope_fraction = 0.25;
    m.moe_experts = 512, m.moe_top_k = 10, m.moe_size = m.moe_shared_size = 512, m.moe_shared_gate = true;
    assert_int_equal(model_spec_check(&m), STATUS_OK);
    assert_true(model_param_count(&m, m.vocab_size) == 79674391296);
    assert_true(count_by_hand(&m, m.vocab_size) == 79674391296);
}

/* What one layer's mixer adds: the counts of HF's modules at these sizes. */
static void a_hybrids_blocks_have_the_sizes_of_their_sources(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t gdn, mla;
    } rows[] = {{"deltanet-mla-small", 3166352, 2113792},
                {"deltanet-mla-xl", 16859296, 13763072},
                {"deltanet-mla-7b", 67403968, 39061504}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_spec m, less;
        assert_int_equal(preset_find(rows[i].preset, &m), STATUS_OK);
        for (int64_t layer = 2; layer < 4; layer++) {
            m.layer_count = layer + 1;
            less = m;
            less.layer_count = layer;
            int64_t rest = 3 * m.hidden_size * m.ffn_size + 2 * m.hidden_size,
                    mixer = model_param_count(&m, 100) - model_param_count(&less, 100) - rest;
            assert_true(mixer == (layer == 2 ? rows[i].gdn : rows[i].mla));
        }
    }
}

static void gpt2_differs_from_llama_in_every_switch(void **state)
{
    (void)state;
    struct model_spec g, l;
    assert_int_equal(preset_find("gpt2-124m", &g), STATUS_OK);
    assert_int_equal(preset_find("llama-1b", &l), STATUS_OK);
    assert_int_equal(g.norm, NORM_LAYERNORM);
    assert_int_equal(g.activation, ACT_GELU);
    assert_int_equal(g.position, POS_LEARNED);
    assert_true(g.qkv_bias && g.out_bias && g.mlp_bias && g.tied_embeddings);
    assert_true(g.norm_eps == 1e-5);
    assert_int_equal(l.norm, NORM_RMSNORM);
    assert_int_equal(l.rope_scaling, SCALING_LLAMA3);
    assert_true(l.rope_theta == 5e5 && l.rope_factor == 32 && l.rope_low_freq == 1 && l.rope_high_freq == 4);
    assert_int_equal(l.rope_original, 8192);
    assert_int_equal(l.context_length, 131072);
    assert_false(l.qkv_bias || l.out_bias || l.mlp_bias);
}

/* Rows of both layers of each engram-moe size; and DeepSeek-V4.1's, of three orders. */
static void tables_have_the_published_number_of_rows(void **state)
{
    (void)state;
    static const struct {
        int64_t base, ngram, layers, rows[2];
        const char *at;
    } sizes[] = {
        {150912, 3, 12, {2415998, 2419172}, "1,6"},       {201216, 3, 20, {3221574, 3224794}, "1,10"},
        {402432, 3, 20, {6440726, 6444264}, "1,10"},      {503040, 3, 28, {8050938, 8054056}, "1,14"},
        {2048000, 3, 32, {32769806, 32773340}, "1,16"},   {4096000, 3, 40, {65538244, 65542104}, "1,20"},
        {16000000, 4, 40, {384006168, 384016682}, "1,14"}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct model_spec m;
        int32_t primes[MODEL_ENGRAM_ROWS];
        model_spec_default(&m);
        m.layer_count = sizes[i].layers, m.engram_base = sizes[i].base, m.engram_ngram = sizes[i].ngram;
        snprintf(m.engram_layers, sizeof m.engram_layers, "%s", sizes[i].at);
        int found = 0;
        for (int64_t l = 0; l < m.layer_count; l++)
            if (model_layer_engram(&m, l))
                assert_true(model_engram_primes(&m, l, primes) == sizes[i].rows[found++]);
        assert_int_equal(found, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_have_the_published_number_of_rows),
        cmocka_unit_test(every_preset_has_its_exact_parameter_count),
        cmocka_unit_test(models_with_tables_pass_and_rest_on_the_designed_number_of_parameters),
        cmocka_unit_test(mixtures_of_experts_have_the_published_sizes),
        cmocka_unit_test(the_closed_form_agrees_on_random_shapes),
        cmocka_unit_test(a_hybrids_blocks_have_the_sizes_of_their_sources),
        cmocka_unit_test(gpt2_differs_from_llama_in_every_switch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
