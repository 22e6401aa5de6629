/* One canonical form per model. An export compares the model with that of every supported family; keys
 * without effect must not matter. */
#include "spec/keys.h"

#include <stdlib.h>
#include <string.h>

static void reset(struct model_spec *m, const struct key *k)
{
    struct spec s = {.model = *m}, plain;
    model_spec_default(&plain.model);
    key_copy(k, &s, &plain);
    *m = s.model;
}

/* Keys named WORD_... belong to the part `word` of a layer (without the digits at its end). */
static void reset_part(struct model_spec *m, const char *word)
{
    const size_t letters = strcspn(word, "0123456789");
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        if (strcmp(k->section, "model") == 0 && strncmp(k->name, word, letters) == 0 &&
            k->name[letters] == '_')
            reset(m, k);
    }
}

static void reset_parts(struct model_spec *m)
{
#define WORD(prefix, value, word)                                                                            \
    if (model_mixer_count(m, prefix##_##value) == 0) reset_part(m, word);
    MIXER_WORDS(WORD)
#undef WORD
#define WORD(prefix, value, word)                                                                            \
    if (model_ffn_count(m, prefix##_##value) == 0) reset_part(m, word);
    FFN_WORDS(WORD)
#undef WORD
    if (m->engram_layers[0] == 0) reset_part(m, "engram");
    if (m->mtp_depth == 0) reset_part(m, "mtp");
    if (m->hrm_cycles == 0) reset_part(m, "hrm");
}

/* Keys that only gqa and swa read, if there are none; head counts then are mla's. */
static void reset_attention(struct model_spec *m)
{
    static const int keys[] = {KEY_AT_model_head_count_kv, KEY_AT_model_head_dim, KEY_AT_model_rope_fraction,
                               KEY_AT_model_qk_norm,       KEY_AT_model_qkv_bias, KEY_AT_model_out_bias};
    const bool latent = model_mixer_count(m, MIXER_MLA) > 0;
    if (model_mixer_count(m, MIXER_GQA) + model_mixer_count(m, MIXER_SWA) == 0) {
        if (latent && m->mla_heads) m->head_count = m->mla_heads;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) reset(m, key_row(keys[i]));
        model_spec_resolve(m);
    }
    if (latent && m->mla_heads == m->head_count) m->mla_heads = 0;
}

/* The keys that each kind of rope scaling reads. */
static void reset_rope(struct model_spec *m)
{
    const bool none = m->rope_scaling == SCALING_NONE, llama3 = m->rope_scaling == SCALING_LLAMA3,
               yarn = m->rope_scaling == SCALING_YARN;
    const struct {
        int at;
        bool used;
    } keys[] = {
        {KEY_AT_model_rope_factor, !none},
        {KEY_AT_model_rope_original, llama3 || yarn},
        {KEY_AT_model_rope_low_freq, llama3},
        {KEY_AT_model_rope_high_freq, llama3},
        {KEY_AT_model_rope_beta_fast, yarn},
        {KEY_AT_model_rope_beta_slow, yarn},
        {KEY_AT_model_rope_attention_factor, yarn},
        {KEY_AT_model_rope_mscale, yarn},
        {KEY_AT_model_rope_mscale_all_dim, yarn},
        {KEY_AT_model_rope_theta, m->position == POS_ROPE},
        {KEY_AT_model_rope_fraction, m->position == POS_ROPE},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!keys[i].used) reset(m, key_row(keys[i].at));
}

/* Layers by their words; windowed layers by the word swa if only some have a window. A text that is too long
 * is left as it is. */
static void canonical_layers(struct model_spec *m)
{
    struct layer_spec *layers = malloc((size_t)m->layer_count * sizeof *layers);
    MEMORY_CHECK(layers != NULL, "no memory for %lld layers", (long long)m->layer_count);
    int64_t windows = 0;
    for (int64_t i = 0; i < m->layer_count; i++) {
        const bool window = model_layer_window(m, i);
        layers[i] = model_layer(m, i);
        windows += window;
        if (layers[i].mixer == MIXER_GQA || layers[i].mixer == MIXER_SWA)
            layers[i].mixer = window ? MIXER_SWA : MIXER_GQA;
    }
    for (int64_t i = 0; i < m->layer_count && windows == m->layer_count; i++) layers[i].mixer = MIXER_GQA;
    if (model_layers_set(m, layers)) {
        reset(m, key_row(KEY_AT_model_window_layers));
        if (windows == 0) m->window = 0;
    }
    free(layers);
}

/* One group of experts means no groups. */
static void reset_groups(struct model_spec *m)
{
    if (m->moe_groups == 1) m->moe_groups = m->moe_groups_kept = 0;
}

void model_spec_canonical(struct model_spec *m)
{
    model_spec_resolve(m);
    canonical_layers(m);
    reset_parts(m);
    reset_attention(m);
    reset_groups(m);
    reset(m, key_row(KEY_AT_model_gdn_dt_bias)); /* only of its beginning */
    reset_rope(m);
}
