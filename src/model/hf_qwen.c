/* Qwen3-MoE, and Qwen3-Next: Gated DeltaNet and gated attention layers, norm weights stored around 0, a shared expert
 * with a gate. */
#include "model/hf_int.h"

#include <stdlib.h>

/* ---- Gated DeltaNet. ingot: [q | k | v | z | b | a], each over all heads. HF: the same per key head, with b
 * and a apart. */

static bool rows_qkvz(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct gdn *g = &l->block->mixer.gdn;
    const int64_t keys = g->heads_k * g->dk, values = g->heads * g->dv, each = values / g->heads_k;
    t->groups = g->heads_k;
    hf_rows(t, 0, g->dk);
    hf_rows(t, keys, g->dk);
    hf_rows(t, 2 * keys, each);
    hf_rows(t, 2 * keys + values, each);
    return true;
}
static bool rows_ba(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct gdn *g = &l->block->mixer.gdn;
    const int64_t begin = 2 * g->heads_k * g->dk + 2 * g->heads * g->dv, each = g->heads / g->heads_k;
    t->groups = g->heads_k;
    hf_rows(t, begin, each);
    hf_rows(t, begin + g->heads, each);
    return true;
}
static bool channels(const struct hf_layer *l, struct hf_tensor *t)
{
    (void)l;
    return t->channels = true;
}
static const struct hf_entry deltanet[] = {
    {"gdn.in.weight", "linear_attn.in_proj_qkvz.weight", rows_qkvz},
    {"gdn.in.weight", "linear_attn.in_proj_ba.weight", rows_ba},
    {"gdn.conv.weight", "linear_attn.conv1d.weight", channels},
    {"gdn.A_log", "linear_attn.A_log", NULL},
    {"gdn.dt_bias", "linear_attn.dt_bias", NULL},
    {"gdn.norm.weight", "linear_attn.norm.weight", NULL},
    {"gdn.out.weight", "linear_attn.out_proj.weight", NULL},
};
const struct hf_entries hf_deltanet = HF_ENTRIES(deltanet);

/* ---- config.json */

static const struct hf_word next_words[] = {{MIXER_GQA, "full_attention"}, {MIXER_GDN, "linear_attention"}};
static const struct hf_layer_field next_mixers = {"layer_types", HF_MIXER, HF_WORDS(next_words)};

/* MoE layers: every decoder_sparse_step-th, except those in mlp_only_layers. The balancing loss counts only
 * if the config asks for router logits. */
static void read_moe(struct hf_reader *r, struct model_spec *m, struct layer_spec *layers)
{
    const int64_t step = hf_read_int(r, "decoder_sparse_step", 1);
    json_t *dense = hf_value(r->root, "mlp_only_layers"), *each;
    if (step == 0) hf_refuse(r, "decoder_sparse_step", "is 0");
    if (dense && !json_is_array(dense)) hf_refuse(r, "mlp_only_layers", "is no list");
    for (int64_t i = 0; layers && step && i < m->layer_count; i++)
        if (m->moe_experts > 0 && (i + 1) % step == 0) layers[i].ffn = FFN_MOE;
    size_t k;
    json_array_foreach(dense, k, each)
    {
        const int64_t i = json_is_integer(each) ? json_integer_value(each) : -1;
        if (layers && i >= 0 && i < m->layer_count) layers[i].ffn = FFN_MLP;
    }
    bool sparse = false;
    for (int64_t i = 0; layers && i < m->layer_count; i++) sparse = sparse || layers[i].ffn == FFN_MOE;
    if (!sparse) m->moe_experts = 0;
    const double aux = hf_read_real(r, r->root, "router_aux_loss_coef", HF_OPTIONAL, 0.001);
    m->moe_aux = hf_read_bool(r, "output_router_logits", false) ? aux : 0;
}

static void write_moe(json_t *j, const struct model_spec *m)
{
    json_t *dense = json_array();
    for (int64_t i = 0; i < m->layer_count; i++)
        if (model_layer(m, i).ffn == FFN_MLP) json_array_append_new(dense, json_integer(i));
    json_object_set_new(j, "mlp_only_layers", dense);
    hf_set_int(j, "decoder_sparse_step", 1);
    /* transformers fails on router logits if the model has no router */
    const bool balanced = m->moe_aux > 0 && model_ffn_count(m, FFN_MOE) > 0;
    json_object_set_new(j, "output_router_logits", json_boolean(balanced));
    json_object_set_new(j, "router_aux_loss_coef", json_real(m->moe_aux > 0 ? m->moe_aux : 0.001));
}

/* A window in all layers or in none. */
static void read_qwen_moe(struct hf_reader *r, struct model_spec *m)
{
    struct layer_spec *layers = hf_layers_begin(m);
    read_moe(r, m, layers);
    hf_layers_store(r, m, layers);
    hf_llama_read(r, m);
    if (!hf_read_bool(r, "use_sliding_window", false)) m->window = 0;
}

static void write_qwen_moe(json_t *j, const struct model_spec *m)
{
    write_moe(j, m);
    hf_rope_write(j, m);
    json_object_set_new(j, "use_sliding_window", json_boolean(m->window > 0));
}

static const struct hf_field qwen_moe[] = {
    HF_LLAMA_FIELDS,
    HF_NULL(head_count_kv, "num_key_value_heads", "4", "0"),
    HF_NULL(head_dim, "head_dim", "0", "0"),
    HF_NULL(window, "sliding_window", "4096", "0"),
    HF_ATTENTION_BIAS,
    HF_ALWAYS(qk_norm, "true"),
    HF_MOE_FIELDS("128", "8", "768"),
    HF_KEY(moe_normalize, "norm_topk_prob", "false"),
};
const struct hf_family hf_qwen3_moe = {.name = "qwen3_moe",
                                       .architecture = "Qwen3MoeForCausalLM",
                                       HF_FIELDS(qwen_moe),
                                       .read = read_qwen_moe,
                                       .write = write_qwen_moe,
                                       .map = hf_map_llama};

enum { NEXT_HEAD_DIM = 256 }; /* of transformers, where config.json does not say it */

static void read_next(struct hf_reader *r, struct model_spec *m)
{
    struct layer_spec *layers = hf_layers_begin(m);
    const int64_t interval = hf_read_int(r, "full_attention_interval", 4);
    if (interval == 0) hf_refuse(r, "full_attention_interval", "is 0");
    for (int64_t i = 0; layers && interval && i < m->layer_count; i++)
        layers[i].mixer = (i + 1) % interval ? MIXER_GDN : MIXER_GQA;
    hf_layer_field_read(r, &next_mixers, layers, m->layer_count);
    read_moe(r, m, layers);
    hf_layers_store(r, m, layers);
    if (r->st == STATUS_OK && layers) m->attention_gate = model_mixer_count(m, MIXER_GQA) > 0;
    hf_rope_read(r, m, 0.25);
}

static void write_next(json_t *j, const struct model_spec *m)
{
    /* without full attention: transformers refuses a head width of null, and its cache fails */
    if (m->head_dim == 0) hf_set_int(j, "head_dim", NEXT_HEAD_DIM);
    if (model_mixer_count(m, MIXER_GQA) == 0) json_object_set_new(j, "use_cache", json_false());
    hf_layer_field_write(j, m, &next_mixers);
    write_moe(j, m);
    hf_rope_write(j, m);
    json_object_set_new(j, "partial_rotary_factor",
                        json_real(m->rope_fraction)); /* differs from the value that an absent field means */
    json_object_set_new(json_object_get(j, "rope_parameters"), "partial_rotary_factor",
                        json_real(m->rope_fraction));
}

static const struct hf_field next[] = {
    HF_LLAMA_FIELDS,
    HF_NULL(head_count_kv, "num_key_value_heads", "2", "0"),
    HF_NULL(head_dim, "head_dim", "256", "0"),
    HF_ATTENTION_BIAS,
    HF_KEY(gdn_conv, "linear_conv_kernel_dim", "4"),
    HF_KEY(gdn_key_dim, "linear_key_head_dim", "128"),
    HF_KEY(gdn_value_dim, "linear_value_head_dim", "128"),
    HF_KEY(gdn_key_heads, "linear_num_key_heads", "16"),
    HF_KEY(gdn_value_heads, "linear_num_value_heads", "32"),
    HF_ALWAYS(qk_norm, "true"),
    HF_ALWAYS(attention_gate, "true"),
    HF_ALWAYS(norm_zero_centered, "true"),
    HF_MOE_FIELDS("512", "10", "512"),
    HF_KEY(moe_normalize, "norm_topk_prob", "true"),
    HF_KEY(moe_shared_size, "shared_expert_intermediate_size", "512"),
    HF_ALWAYS(moe_shared_gate, "true"),
};
const struct hf_family hf_qwen3_next = {.name = "qwen3_next",
                                        .architecture = "Qwen3NextForCausalLM",
                                        HF_FIELDS(next),
                                        .read = read_next,
                                        .write = write_next,
                                        .map = hf_map_llama,
                                        .left_out = "mtp."};
