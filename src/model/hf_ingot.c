/* model_type "ingot" represents every model that ingot can train. It uses transformers' fields and tensor names where
 * they exist, else the keys of model.def and ingot's parameter names. transformers does not load it. It is for models
 * that no family of transformers represents, and for other readers that know the parts. docs/FORMATS.md lists both. */
#include "model/hf_int.h"

#include <string.h>

static const struct hf_field named[] = {
    HF_NEEDED(vocab_size, "vocab_size"),
    HF_NEEDED(hidden_size, "hidden_size"),
    HF_NEEDED(layer_count, "num_hidden_layers"),
    HF_NEEDED(head_count, "num_attention_heads"),
    HF_NULL(head_count_kv, "num_key_value_heads", "0", "0"),
    HF_NULL(head_dim, "head_dim", "0", "0"),
    HF_NEEDED(ffn_size, "intermediate_size"),
    HF_NEEDED(context_length, "max_position_embeddings"),
    HF_KEY(norm_eps, "rms_norm_eps", "1e-6"),
    HF_KEY(init_std, "initializer_range", "0.02"),
    HF_KEY(tied_embeddings, "tie_word_embeddings", "false"),
    HF_NULL(window, "sliding_window", "0", "0"),
};
enum { NAMED = sizeof named / sizeof named[0] };
/* transformers' names for keys of parts that a model may lack. */
static const struct hf_field of_parts[] = {
    HF_NEEDED(gdn_conv, "linear_conv_kernel_dim"),
    HF_NEEDED(gdn_key_dim, "linear_key_head_dim"),
    HF_NEEDED(gdn_value_dim, "linear_value_head_dim"),
    HF_NEEDED(gdn_key_heads, "linear_num_key_heads"),
    HF_NEEDED(gdn_value_heads, "linear_num_value_heads"),
    HF_NEEDED(moe_experts, "num_experts"),
    HF_NEEDED(moe_top_k, "num_experts_per_tok"),
    HF_NEEDED(moe_size, "moe_intermediate_size"),
    HF_NEEDED(moe_normalize, "norm_topk_prob"),
    HF_NEEDED(moe_shared_size, "shared_expert_intermediate_size"),
};

/* Layer kinds. ingot's words come first, then those of transformers, which replace them when written. */
#define WORD(prefix, value, word) {prefix##_##value, word},
static const struct hf_word mixer_words[] = {
    MIXER_WORDS(WORD){MIXER_GQA, "full_attention"},
    {MIXER_SWA, "sliding_attention"},
    {MIXER_GDN, "linear_attention"},
    {MIXER_MLA, "mla_attention"},
};
static const struct hf_word ffn_words[] = {FFN_WORDS(WORD)};
#undef WORD
static const struct hf_layer_field mixers = {"layer_types", HF_MIXER, HF_WORDS(mixer_words)},
                                   ffns = {"ffn_types", HF_FFN, HF_WORDS(ffn_words)};

/* The field of a key that `named`, the layer lists and rope_parameters do not cover; false: they cover it. */
static bool own_field(int at, struct hf_field *f)
{
    const char *name = key_row(at)->name;
    if (strcmp(key_row(at)->section, "model") != 0) return false;
    if (at == KEY_AT_model_layers || at == KEY_AT_model_window_layers || strncmp(name, "rope_", 5) == 0)
        return false;
    for (int i = 0; i < NAMED; i++)
        if (named[i].ours == at) return false;
    *f = (struct hf_field){.ours = at, .name = name};
    for (size_t i = 0; i < sizeof of_parts / sizeof of_parts[0]; i++)
        if (of_parts[i].ours == at) *f = of_parts[i];
    return true;
}

static void read(struct hf_reader *r, struct model_spec *m)
{
    struct hf_field f;
    for (int at = 0; at < KEY_AT_COUNT; at++)
        if (own_field(at, &f) && hf_value(r->root, f.name)) hf_fields_read(r, m, &f, 1);
    struct layer_spec *layers = hf_layers_begin(m);
    hf_layer_field_read(r, &mixers, layers, m->layer_count);
    hf_layer_field_read(r, &ffns, layers, m->layer_count);
    hf_layers_store(r, m, layers);
    hf_rope_read(r, m, 1);
}

/* Defaults are left out. */
static void write(json_t *j, const struct model_spec *m)
{
    struct spec s = {.model = *m}, plain;
    struct hf_field f;
    model_spec_default(&plain.model);
    for (int at = 0; at < KEY_AT_COUNT; at++)
        if (own_field(at, &f) && !key_equal(key_row(at), &s, &plain)) hf_fields_write(j, m, &f, 1);
    hf_layer_field_write(j, m, &mixers);
    hf_layer_field_write(j, m, &ffns);
    hf_rope_write(j, m);
}

/* What the tables of hf_map.c do not name keeps its own name after "model.". */
static void map(struct hf_list *l)
{
    hf_map_llama(l);
    const int named_count = l->count;
    for (int i = 0; i < l->d->params.count; i++) {
        bool there = false;
        for (int k = 0; k < named_count && !there; k++) there = l->rows[k].param == i;
        const char *name = l->d->params.rows[i].name;
        if (!there && l->d->params.rows[i].role != ROLE_BALANCE)
            hf_add(l, NULL, "model.", &(struct hf_entry){name, name, NULL});
    }
}

const struct hf_family hf_ingot = {.name = "ingot",
                                   .architecture = "IngotForCausalLM",
                                   HF_FIELDS(named),
                                   .read = read,
                                   .write = write,
                                   .map = map};
