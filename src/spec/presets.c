#include "base/text.h"
#include "spec/spec_int.h"

#include <string.h>

void model_spec_default(struct model_spec *m)
{
    *m = (struct model_spec){
#define FIELD(name, type, def, range, unit, text) .name = def,
#define ENUM(name, list, def, text)               .name = list##_##def,
#include "spec/model.def"
#undef FIELD
#undef ENUM
    };
}

void run_spec_default(struct run_spec *r)
{
    *r = (struct run_spec){
#define FIELD(section, name, type, def, range, unit, resume, text) .section##_##name = def,
#define ENUM(section, name, list, def, resume, text)               .section##_##name = list##_##def,
#include "spec/run.def"
#undef FIELD
#undef ENUM
    };
}

static const char *const names[] = {
#define PRESET(name, text, settings) name,
#include "spec/presets.def"
#undef PRESET
};
static const char *const texts[] = {
#define PRESET(name, text, settings) text,
#include "spec/presets.def"
#undef PRESET
};

int preset_count(void)
{
    return (int)(sizeof names / sizeof names[0]);
}

const char *preset_name(int i)
{
    CHECK(i >= 0 && i < preset_count(), "preset %d of %d", i, preset_count());
    return names[i];
}

const char *preset_text(int i)
{
    CHECK(i >= 0 && i < preset_count(), "preset %d of %d", i, preset_count());
    return texts[i];
}

status preset_apply(const char *name, struct model_spec *m)
{
    model_spec_default(m);
#define SET(key, value) m->key = (value);
#define PRESET(word, text, settings)                                                                         \
    if (strcmp(name, word) == 0) { settings return STATUS_OK; }
#include "spec/presets.def"
#undef SET
#undef PRESET
    const char *near = text_nearest(name, names, preset_count());
    return FAIL(STATUS_CONFIG, "unknown preset '%.64s'%s%s%s; `ingot presets` lists them", name,
                near ? "; did you mean '" : "", near ? near : "", near ? "'" : "");
}

status preset_find(const char *name, struct model_spec *m)
{
    TRY(preset_apply(name, m));
    model_spec_resolve(m);
    return STATUS_OK;
}

int64_t model_spec_param_count(const struct model_spec *m, int64_t vocab_size)
{
    struct model_spec r = *m;
    model_spec_resolve(&r);
    int64_t d = r.hidden_size, q = r.head_count * r.head_dim, kv = r.head_count_kv * r.head_dim,
            f = r.ffn_size;
    int64_t norm = r.norm == NORM_LAYERNORM ? 2 * d : d, gates = r.activation == ACT_SWIGLU ? 2 : 1;
    int64_t attention = d * q + 2 * d * kv + q * d;
    if (r.qk_norm) attention += 2 * r.head_dim;
    if (r.qkv_bias) attention += q + 2 * kv;
    if (r.out_bias) attention += d;
    int64_t ffn = (gates + 1) * d * f;
    if (r.mlp_bias) ffn += gates * f + d;
    int64_t tables = vocab_size * d * (r.tied_embeddings ? 1 : 2);
    if (r.position == POS_LEARNED) tables += r.context_length * d;
    return tables + r.layer_count * (attention + ffn + 2 * norm) + norm;
}
