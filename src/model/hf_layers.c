/* Kinds of layers: config.json has one entry per layer, ingot a pattern. */
#include "model/hf_int.h"

#include <stdlib.h>
#include <string.h>

struct layer_spec *hf_layers_begin(const struct model_spec *m)
{
    char why[SPEC_TEXT];
    const struct spec s = {.model = *m};
    if (!key_in_range(key_row(KEY_AT_model_layer_count), &s, why)) return NULL;
    struct layer_spec *layers = malloc((size_t)m->layer_count * sizeof *layers);
    MEMORY_CHECK(layers != NULL, "no memory for %lld layers", (long long)m->layer_count);
    for (int64_t i = 0; i < m->layer_count; i++) layers[i] = (struct layer_spec){MIXER_GQA, FFN_MLP};
    return layers;
}

void hf_layers_store(struct hf_reader *r, struct model_spec *m, struct layer_spec *layers)
{
    if (layers && r->st == STATUS_OK && !model_layers_set(m, layers))
        hf_refuse(
            r, "layer_types",
            "and what else says of which kind each layer is make no pattern that model.layers can hold");
    free(layers);
}

static void set_part(struct layer_spec *l, enum hf_layer_part part, int value)
{
    if (part == HF_MIXER)
        l->mixer = (enum mixer)value;
    else
        l->ffn = (enum ffn)value;
}

static void refuse_word(struct hf_reader *r, const struct hf_layer_field *f, const char *word, int64_t layer)
{
    char known[200] = "";
    for (int k = 0; k < f->count; k++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", k ? ", " : "",
                 f->words[k].word);
    hf_refuse(r, f->name, "is '%.40s' for layer %lld; ingot has %s here", word ? word : "", (long long)layer,
              known);
}

void hf_layer_field_read(struct hf_reader *r, const struct hf_layer_field *f, struct layer_spec *layers,
                         int64_t layer_count)
{
    json_t *list = hf_value(r->root, f->name);
    if (layers == NULL || list == NULL) return;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != layer_count) {
        hf_refuse(r, f->name, "is no list of one entry per layer");
        return;
    }
    for (int64_t i = 0; i < layer_count; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        int k = 0;
        while (k < f->count && (word == NULL || strcmp(word, f->words[k].word) != 0)) k++;
        if (k == f->count) {
            refuse_word(r, f, word, i);
            return;
        }
        set_part(&layers[i], f->part, f->words[k].value);
    }
}

void hf_layer_field_write(json_t *j, const struct model_spec *m, const struct hf_layer_field *f)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < m->layer_count; i++) {
        struct layer_spec l = model_layer(m, i);
        if (l.mixer == MIXER_GQA && model_layer_window(m, i)) l.mixer = MIXER_SWA;
        const char *word = f->part == HF_MIXER ? mixer_word(l.mixer) : ffn_word(l.ffn);
        const int value = f->part == HF_MIXER ? (int)l.mixer : (int)l.ffn;
        for (int k = 0; k < f->count; k++)
            if (f->words[k].value == value) word = f->words[k].word;
        json_array_append_new(list, json_string(word));
    }
    json_object_set_new(j, f->name, list);
}
