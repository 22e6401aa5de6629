/* Parameters of a model by closed formulas, written without looking at the blocks: the independent check of the parameter table. */
#ifndef INGOT_TESTS_PLAN_PARAM_FORMULA_H
#define INGOT_TESTS_PLAN_PARAM_FORMULA_H
#include "spec/spec.h"

static int64_t attention_params(const struct model_spec *m)
{
    const int64_t d = m->hidden_size, q = m->head_count * m->head_dim, kv = m->head_count_kv * m->head_dim;
    const int64_t in = q + 2 * kv + (m->attention_gate ? q : 0);
    return d * in + q * d + (m->qk_norm ? 2 * m->head_dim : 0) + (m->qkv_bias ? in : 0) +
           (m->out_bias ? d : 0);
}

static int64_t gdn_params(const struct model_spec *m)
{
    const int64_t d = m->hidden_size, keys = m->gdn_key_heads * m->gdn_key_dim,
                  values = m->gdn_value_heads * m->gdn_value_dim;
    return d * (2 * keys + 2 * values + 2 * m->gdn_value_heads) + values * d +
           m->gdn_conv * (2 * keys + values) + 2 * m->gdn_value_heads + m->gdn_value_dim;
}

static int64_t mla_params(const struct model_spec *m)
{
    const int64_t d = m->hidden_size, heads = m->mla_heads ? m->mla_heads : m->head_count,
                  q = heads * (m->mla_nope_dim + m->mla_rope_dim), from = m->mla_q_rank ? m->mla_q_rank : d;
    return (m->mla_q_rank ? (d + 1) * m->mla_q_rank : 0) + q * from + d * (m->mla_kv_rank + m->mla_rope_dim) +
           m->mla_kv_rank + heads * (m->mla_nope_dim + m->mla_value_dim) * m->mla_kv_rank +
           heads * m->mla_value_dim * d;
}

static int64_t mamba_params(const struct model_spec *m)
{
    const int64_t d = m->hidden_size, wide = m->mamba_heads * m->mamba_head_dim,
                  channels = wide + 2 * m->mamba_groups * m->mamba_state;
    return d * (wide + channels + m->mamba_heads) + wide * d + (m->mamba_conv + 1) * channels +
           3 * m->mamba_heads + wide;
}

static int64_t mlp_params(const struct model_spec *m)
{
    const int64_t d = m->hidden_size, f = m->ffn_size, gates = m->activation == ACT_SWIGLU ? 2 : 1;
    return (gates + 1) * d * f + (m->mlp_bias ? gates * f + d : 0);
}

/* One expert. */
static int64_t expert_params(const struct model_spec *m)
{
    return 3 * m->hidden_size * m->moe_size;
}

static int64_t moe_params(const struct model_spec *m)
{
    const int64_t d = m->hidden_size;
    return m->moe_experts * (expert_params(m) + d) + 3 * d * m->moe_shared_size +
           (m->moe_shared_gate ? d : 0);
}

static int64_t layer_params(const struct model_spec *m, struct layer_spec l)
{
    int64_t count = 0;
    switch (l.mixer) {
    case MIXER_GQA:
    case MIXER_SWA: count += attention_params(m); break;
    case MIXER_GDN: count += gdn_params(m); break;
    case MIXER_MLA: count += mla_params(m); break;
    case MIXER_MAMBA2: count += mamba_params(m); break;
    }
    switch (l.ffn) {
    case FFN_MLP: count += mlp_params(m); break;
    case FFN_MOE: count += moe_params(m); break;
    }
    return count;
}

static int64_t engram_tables(const struct model_spec *m, int64_t layer)
{
    int32_t primes[MODEL_ENGRAM_ROWS];
    return model_layer_engram(m, layer) ? model_engram_primes(m, layer, primes) * m->engram_dim : 0;
}

/* Tables, projections, norms, convolution. */
static int64_t engram_params(const struct model_spec *m, int64_t layer)
{
    if (!model_layer_engram(m, layer)) return 0;
    const int64_t d = m->hidden_size, width = model_engram_rows(m) * m->engram_dim;
    return engram_tables(m, layer) + 2 * width * d + 7 * d;
}

static int64_t formula_params(const struct model_spec *m, int64_t vocab_size)
{
    struct model_spec r = *m;
    model_spec_resolve(&r);
    const int64_t d = r.hidden_size, norm = r.norm == NORM_LAYERNORM ? 2 * d : d;
    int64_t count = vocab_size * d * (r.tied_embeddings ? 1 : 2) + norm;
    if (r.position == POS_LEARNED) count += r.context_length * d;
    for (int64_t i = 0; i < r.layer_count + r.mtp_depth; i++)
        count += layer_params(&r, model_layer(&r, i)) + 2 * norm + engram_params(&r, i);
    count +=
        r.mtp_depth * (2 * d * d + 3 * norm) + (r.hrm_cycles ? 2 * norm : 0) + (r.hrm_halt ? 2 * (d + 1) : 0);
    return count;
}

static int64_t formula_active(const struct model_spec *m, int64_t vocab_size)
{
    int64_t tables = 0;
    for (int64_t i = 0; i < m->layer_count + m->mtp_depth; i++) tables += engram_tables(m, i);
    return formula_params(m, vocab_size) - tables -
           model_ffn_count(m, FFN_MOE) * (m->moe_experts - m->moe_top_k) * expert_params(m);
}
#endif
