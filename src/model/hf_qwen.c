/* Qwen3-Next: Gated DeltaNet beside gated attention, norms around 0. */
#include "model/hf_int.h"

#include <stdlib.h>

/* ---- Gated DeltaNet. Ours: [q | k | v | z | b | a], each over all heads; HF's: the same per key head, with b and a apart. */

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

/* Layers whose feed-forward part is a mixture of experts: every decoder_sparse_step-th, but for those of mlp_only_layers. */
static void read_sparse(struct hf_reader *r, const struct model_spec *m, int64_t experts)
{
    const int64_t step = hf_read_int(r, "decoder_sparse_step", 1);
    json_t *dense = hf_value(r->root, "mlp_only_layers"), *each;
    if (step == 0) hf_refuse(r, "decoder_sparse_step", "is 0");
    if (dense && !json_is_array(dense)) hf_refuse(r, "mlp_only_layers", "is no list");
    int64_t count = step ? m->layer_count / step : 0;
    size_t i;
    json_array_foreach(dense, i, each) count -= step && (json_integer_value(each) + 1) % step == 0;
    if (experts > 0 && count > 0)
        hf_refuse(r, "num_experts", "is %lld; ingot has 0 alone", (long long)experts);
}

static void write_sparse(json_t *j, const struct model_spec *m)
{
    json_t *dense = json_array();
    for (int64_t i = 0; i < m->layer_count; i++)
        if (model_layer(m, i).ffn == FFN_MLP) json_array_append_new(dense, json_integer(i));
    json_object_set_new(j, "mlp_only_layers", dense);
    hf_set_int(j, "decoder_sparse_step", 1);
    hf_set_int(j, "num_experts", 0);
}

static void read_next(struct hf_reader *r, struct model_spec *m)
{
    struct layer_spec *layers = hf_layers_begin(m);
    const int64_t interval = hf_read_int(r, "full_attention_interval", 4);
    if (interval == 0) hf_refuse(r, "full_attention_interval", "is 0");
    for (int64_t i = 0; layers && interval && i < m->layer_count; i++)
        layers[i].mixer = (i + 1) % interval ? MIXER_GDN : MIXER_GQA;
    hf_layer_field_read(r, &next_mixers, layers, m->layer_count);
    hf_layers_store(r, m, layers);
    read_sparse(r, m, hf_read_int(r, "num_experts", 512));
    hf_rope_read(r, m, 0.25);
}

static void write_next(json_t *j, const struct model_spec *m)
{
    hf_layer_field_write(j, m, &next_mixers);
    write_sparse(j, m);
    hf_rope_write(j, m);
    json_object_set_new(j, "partial_rotary_factor",
                        json_real(m->rope_fraction)); /* 1 is not what its absence says */
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
};
const struct hf_family hf_qwen3_next = {.name = "qwen3_next",
                                        .architecture = "Qwen3NextForCausalLM",
                                        HF_FIELDS(next),
                                        .read = read_next,
                                        .write = write_next,
                                        .map = hf_map_llama,
                                        .left_out = "mtp."};
