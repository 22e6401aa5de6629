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
#define LAYERS(pattern) memcpy(m->layers, pattern, sizeof pattern);
#define ENGRAM_MOE(size, shared, scale)                                                                      \
    SET(moe_experts, 64)                                                                                     \
    SET(moe_top_k, 6)                                                                                        \
    SET(moe_size, size)                                                                                      \
    SET(moe_shared_size, shared)                                                                             \
    SET(moe_router, ROUTER_SIGMOID)                                                                          \
    SET(moe_scale, scale)                                                                                    \
    SET(moe_aux, 1e-4)                                                                                       \
    SET(moe_aux_kind, AUX_SEQUENCE)                                                                          \
    SET(moe_balance_rate, 1e-3)
#define ENGRAM(at, dim, base)                                                                                \
    SET(engram_fold, true)                                                                                   \
    memcpy(m->engram_layers, at, sizeof at);                                                                 \
    SET(engram_dim, dim)                                                                                     \
    SET(engram_base, base)
#define PRESET(word, text, settings)                                                                         \
    if (strcmp(name, word) == 0) { settings return STATUS_OK; }
#include "spec/presets.def"
#undef SET
#undef LAYERS
#undef ENGRAM_MOE
#undef ENGRAM
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
