/* model_type "ingot": every model that ingot can train, with transformers' fields and tensor names where it has them and with the keys of
 * model.def and our own names of parameters for the rest. transformers does not load it: it is for what no family there holds, and for
 * other readers that know the parts. docs/FORMATS.md lists both. */
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
    HF_KEY(gdn_conv, "linear_conv_kernel_dim", "4"),
    HF_KEY(gdn_key_dim, "linear_key_head_dim", "128"),
    HF_KEY(gdn_value_dim, "linear_value_head_dim", "128"),
    HF_KEY(gdn_key_heads, "linear_num_key_heads", "0"),
    HF_KEY(gdn_value_heads, "linear_num_value_heads", "0"),
};
enum { NAMED = sizeof named / sizeof named[0] };

/* Kinds of layers by transformers' words where it has one; first the words of model.layers, of which theirs take the place. */
#define WORD(prefix, value, word) {prefix##_##value, word},
static const struct hf_word mixer_words[] = {{MIXER_GQA, "full_attention"},
                                             {MIXER_SWA, "sliding_attention"},
                                             {MIXER_GDN, "linear_attention"},
                                             {MIXER_MLA, "mla_attention"}};
static const struct hf_word ffn_words[] = {FFN_WORDS(WORD)};
#undef WORD
static const struct hf_layer_field mixers = {"layer_types", HF_MIXER, HF_WORDS(mixer_words)},
                                   ffns = {"ffn_types", HF_FFN, HF_WORDS(ffn_words)};

/* Keys that stand in no field of their own: layers say them, rope_parameters, or the table above. */
static bool said_elsewhere(int at)
{
    const char *name = key_row(at)->name;
    if (strcmp(key_row(at)->section, "model") != 0) return true;
    if (at == KEY_AT_model_layers || at == KEY_AT_model_window_layers || strncmp(name, "rope_", 5) == 0)
        return true;
    for (int i = 0; i < NAMED; i++)
        if (named[i].ours == at) return true;
    return false;
}

static void read(struct hf_reader *r, struct model_spec *m)
{
    for (int at = 0; at < KEY_AT_COUNT; at++) {
        const struct hf_field f = {.ours = at, .name = key_row(at)->name};
        if (!said_elsewhere(at) && hf_value(r->root, f.name)) hf_fields_read(r, m, &f, 1);
    }
    struct layer_spec *layers = hf_layers_begin(m);
    hf_layer_field_read(r, &mixers, layers, m->layer_count);
    hf_layer_field_read(r, &ffns, layers, m->layer_count);
    hf_layers_store(r, m, layers);
    hf_rope_read(r, m, 1);
}

static void write(json_t *j, const struct model_spec *m)
{
    for (int at = 0; at < KEY_AT_COUNT; at++) {
        const struct hf_field f = {.ours = at, .name = key_row(at)->name};
        if (!said_elsewhere(at)) hf_fields_write(j, m, &f, 1);
    }
    hf_layer_field_write(j, m, &mixers);
    hf_layer_field_write(j, m, &ffns);
    hf_rope_write(j, m);
}

/* What the tables of hf_map.c do not name keeps its own name behind "model.". */
static void map(struct hf_list *l)
{
    hf_map_llama(l);
    const int named_count = l->count;
    for (int i = 0; i < l->d->params.count; i++) {
        bool there = false;
        for (int k = 0; k < named_count && !there; k++) there = l->rows[k].param == i;
        const char *name = l->d->params.rows[i].name;
        if (!there) hf_add(l, NULL, "model.", &(struct hf_entry){name, name, NULL});
    }
}

const struct hf_family hf_ingot = {.name = "ingot",
                                   .architecture = "IngotForCausalLM",
                                   HF_FIELDS(named),
                                   .read = read,
                                   .write = write,
                                   .map = map};
