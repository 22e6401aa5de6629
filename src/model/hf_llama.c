/* Llama, Mistral, Qwen2 and Qwen3: dense decoders with grouped-query attention. They differ in biases, QK-norm and
 * windows. */
#include "model/hf_int.h"

void hf_llama_read(struct hf_reader *r, struct model_spec *m)
{
    if (m->window > m->context_length) m->window = m->context_length; /* equal within the context length */
    hf_rope_read(r, m, 1);
    if (m->rope_fraction != 1)
        hf_refuse(r, "partial_rotary_factor", "is %g; ingot has 1 alone in this family", m->rope_fraction);
}

/* Windowed layers: from layer_types, or all from max_window_layers on. */
static const struct hf_word window_words[] = {{MIXER_GQA, "full_attention"},
                                              {MIXER_SWA, "sliding_attention"}};
static const struct hf_layer_field windows = {"layer_types", HF_MIXER, HF_WORDS(window_words)};

static void read_qwen(struct hf_reader *r, struct model_spec *m)
{
    const int64_t window =
        json_object_get(r->root, "sliding_window") ? hf_read_int(r, "sliding_window", 0) : 4096;
    m->window = hf_read_bool(r, "use_sliding_window", false) ? window : 0;
    hf_llama_read(r, m);
    if (m->window == 0) return;
    const int64_t first = hf_read_int(r, "max_window_layers", 28);
    struct layer_spec *layers = hf_layers_begin(m);
    for (int64_t i = first; layers && i < m->layer_count; i++) layers[i].mixer = MIXER_SWA;
    hf_layer_field_read(r, &windows, layers, m->layer_count);
    hf_layers_store(r, m, layers);
    if (r->st == STATUS_OK && layers && model_mixer_count(m, MIXER_SWA) == 0) m->window = 0;
}

static void write_qwen(json_t *j, const struct model_spec *m)
{
    int64_t first = m->layer_count;
    while (first > 0 && model_layer_window(m, first - 1)) first--;
    hf_rope_write(j, m);
    hf_layer_field_write(j, m, &windows);
    json_object_set_new(j, "use_sliding_window", json_boolean(m->window > 0));
    json_object_set_new(j, "sliding_window", m->window ? json_integer(m->window) : json_null());
    hf_set_int(j, "max_window_layers", first);
}

static const struct hf_field llama[] = {
    HF_LLAMA_FIELDS,
    HF_NULL(head_count_kv, "num_key_value_heads", "0", "0"),
    HF_NULL(head_dim, "head_dim", "0", "0"),
    HF_ATTENTION_BIAS,
    HF_KEY(mlp_bias, "mlp_bias", "false"),
};
const struct hf_family hf_llama = {.name = "llama",
                                   .architecture = "LlamaForCausalLM",
                                   HF_FIELDS(llama),
                                   .read = hf_llama_read,
                                   .write = hf_rope_write,
                                   .map = hf_map_llama};

static const struct hf_field mistral[] = {
    HF_LLAMA_FIELDS,
    HF_NULL(head_count_kv, "num_key_value_heads", "8", "0"),
    HF_NULL(head_dim, "head_dim", "0", "0"),
    HF_NULL(window, "sliding_window", "4096", "0"),
};
const struct hf_family hf_mistral = {.name = "mistral",
                                     .architecture = "MistralForCausalLM",
                                     HF_FIELDS(mistral),
                                     .read = hf_llama_read,
                                     .write = hf_rope_write,
                                     .map = hf_map_llama};

static const struct hf_field qwen2[] = {
    HF_LLAMA_FIELDS,
    HF_NULL(head_count_kv, "num_key_value_heads", "32", "0"),
    HF_NULL(head_dim, "head_dim", "0", "0"),
    HF_ALWAYS(qkv_bias, "true"),
};
const struct hf_family hf_qwen2 = {.name = "qwen2",
                                   .architecture = "Qwen2ForCausalLM",
                                   HF_FIELDS(qwen2),
                                   .read = read_qwen,
                                   .write = write_qwen,
                                   .map = hf_map_llama};

static const struct hf_field qwen3[] = {
    HF_LLAMA_FIELDS,
    HF_NULL(head_count_kv, "num_key_value_heads", "32", "0"),
    HF_NULL(head_dim, "head_dim", "128", "0"),
    HF_ATTENTION_BIAS,
    HF_ALWAYS(qk_norm, "true"),
};
const struct hf_family hf_qwen3 = {.name = "qwen3",
                                   .architecture = "Qwen3ForCausalLM",
                                   HF_FIELDS(qwen3),
                                   .read = read_qwen,
                                   .write = write_qwen,
                                   .map = hf_map_llama};
