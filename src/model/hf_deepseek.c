/* DeepSeek-V3: multi-head latent attention; dense layers first, then mixtures of experts. */
#include "model/hf_int.h"

#include <stdlib.h>

/* ---- Latent attention. ingot: in = [q_a, or q if there is no query rank | c | k_rope], kv = [k_nope of all
 * heads | v of all heads]. HF: kv_b_proj = [k_nope | v] head by head. Both rotate neighbouring pairs. */

static const struct mla *mla_of(const struct hf_layer *l)
{
    return &l->block->mixer.mla;
}
static int64_t query_width(const struct mla *m)
{
    return m->heads * (m->nope + m->rope);
}

static bool rows_q_a(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    if (m->q_rank) hf_rows(t, 0, m->q_rank);
    return m->q_rank > 0;
}
static bool rows_q(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    if (m->q_rank == 0) hf_rows(t, 0, query_width(m));
    return m->q_rank == 0;
}
static bool rows_kv_a(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    hf_rows(t, m->q_rank ? m->q_rank : query_width(m), m->rank + m->rope);
    return true;
}
static bool rows_kv_b(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    t->groups = m->heads;
    hf_rows(t, 0, m->nope);
    hf_rows(t, m->heads * m->nope, m->value);
    return true;
}
static const struct hf_entry latent[] = {
    {"mla.in.weight", "self_attn.q_a_proj.weight", rows_q_a},
    {"mla.in.weight", "self_attn.q_proj.weight", rows_q},
    {"mla.in.weight", "self_attn.kv_a_proj_with_mqa.weight", rows_kv_a},
    {"mla.q_norm.weight", "self_attn.q_a_layernorm.weight", NULL},
    {"mla.q.weight", "self_attn.q_b_proj.weight", NULL},
    {"mla.kv_norm.weight", "self_attn.kv_a_layernorm.weight", NULL},
    {"mla.kv.weight", "self_attn.kv_b_proj.weight", rows_kv_b},
    {"mla.out.weight", "self_attn.o_proj.weight", NULL},
};
const struct hf_entries hf_latent = HF_ENTRIES(latent);

/* ---- config.json */

/* MoE fields only. transformers knows no balancing loss here: the sequence loss has DeepSeek's own names, the
 * rest ours. */
static const struct hf_field v3_moe[] = {
    HF_KEY(moe_experts, "n_routed_experts", "256"),
    HF_KEY(moe_top_k, "num_experts_per_tok", "8"),
    HF_KEY(moe_size, "moe_intermediate_size", "2048"),
    HF_KEY(moe_normalize, "norm_topk_prob", "true"),
    HF_KEY(moe_scale, "routed_scaling_factor", "2.5"),
    HF_ALWAYS(moe_router, "sigmoid"),
    HF_ALWAYS(moe_shared_gate, "false"),
    HF_ALWAYS(moe_capacity, "0"),
    HF_KEY(moe_aux, "aux_loss_alpha", "0"),
    HF_KEY(moe_z, "moe_z", "0"),
    HF_KEY(moe_balance_rate, "moe_balance_rate", "0"),
    HF_ONLY("scoring_func", "\"sigmoid\""),
    HF_ONLY("topk_method", "\"noaux_tc\""),
    HF_ONLY("moe_layer_freq", "1"),
};
enum { V3_MOE = sizeof v3_moe / sizeof v3_moe[0] };

/* One group means no groups. */
static void read_moe(struct hf_reader *r, struct model_spec *m)
{
    hf_fields_read(r, m, v3_moe, V3_MOE);
    m->moe_shared_size = hf_read_int(r, "n_shared_experts", 1) * m->moe_size;
    m->moe_groups = hf_read_int(r, "n_group", 8);
    m->moe_groups_kept = hf_read_int(r, "topk_group", 4);
    if (m->moe_groups == 1) m->moe_groups = m->moe_groups_kept = 0;
    m->moe_aux_kind = hf_read_bool(r, "seq_aux", false) ? AUX_SEQUENCE : AUX_SWITCH;
}

static void write_moe(json_t *j, const struct model_spec *m)
{
    hf_fields_write(j, m, v3_moe, V3_MOE);
    hf_set_int(j, "n_shared_experts", m->moe_size ? m->moe_shared_size / m->moe_size : 0);
    hf_set_int(j, "n_group", m->moe_groups ? m->moe_groups : 1);
    hf_set_int(j, "topk_group", m->moe_groups ? m->moe_groups_kept : 1);
    json_object_set_new(j, "seq_aux", json_boolean(m->moe_aux_kind == AUX_SEQUENCE));
}

static void read_v3(struct hf_reader *r, struct model_spec *m)
{
    const int64_t heads = hf_read_int(r, "num_key_value_heads", m->head_count),
                  dense = hf_read_int(r, "first_k_dense_replace", 3);
    if (heads != m->head_count)
        hf_refuse(r, "num_key_value_heads", "is %lld; ingot has %lld alone, all heads", (long long)heads,
                  (long long)m->head_count);
    struct layer_spec *layers = hf_layers_begin(m);
    for (int64_t i = 0; layers && i < m->layer_count; i++)
        layers[i] = (struct layer_spec){MIXER_MLA, i < dense ? FFN_MLP : FFN_MOE};
    hf_layers_store(r, m, layers);
    if (dense < m->layer_count) read_moe(r, m);
    hf_rope_read(r, m, 1);
    if (m->rope_fraction != 1)
        hf_refuse(r, "partial_rotary_factor", "is %g; ingot has 1 alone in this family", m->rope_fraction);
}

static void write_v3(json_t *j, const struct model_spec *m)
{
    int64_t dense = 0;
    while (dense < m->layer_count && model_layer(m, dense).ffn == FFN_MLP) dense++;
    hf_set_int(j, "num_key_value_heads", m->head_count);
    hf_set_int(j, "head_dim", m->mla_rope_dim); /* transformers derives rope from these */
    hf_set_int(j, "qk_head_dim", m->mla_nope_dim + m->mla_rope_dim);
    hf_set_int(j, "first_k_dense_replace", dense);
    hf_set_int(j, "num_nextn_predict_layers", 0);
    if (dense < m->layer_count) write_moe(j, m);
    hf_rope_write(j, m);
}

static const struct hf_field v3[] = {
    HF_LLAMA_FIELDS,
    HF_ALWAYS(mla_heads, "0"),
    HF_NULL(mla_q_rank, "q_lora_rank", "1536", "0"),
    HF_KEY(mla_kv_rank, "kv_lora_rank", "512"),
    HF_KEY(mla_nope_dim, "qk_nope_head_dim", "128"),
    HF_KEY(mla_rope_dim, "qk_rope_head_dim", "64"),
    HF_KEY(mla_value_dim, "v_head_dim", "128"),
    HF_ONLY("rope_interleave", "true"),
    HF_ONLY("attention_bias", "false"),
};
/* DeepSeek-V3 stores its MTP weights as one more layer after the last. */
const struct hf_family hf_deepseek_v3 = {.name = "deepseek_v3",
                                         .architecture = "DeepseekV3ForCausalLM",
                                         HF_FIELDS(v3),
                                         .read = read_v3,
                                         .write = write_v3,
                                         .map = hf_map_llama,
                                         .left_out = "model.layers.61."};
