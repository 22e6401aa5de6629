#include "nn/mixer.h"
#include "spec/layer_traits.h"

#include <stdio.h>

/* Calls the function of the kind with its members of the unions. */
#define DISPATCH(m, call)                                                                                    \
    switch ((m)->kind) {                                                                                     \
        MIXER_TYPES(call)                                                                                    \
    }

const struct layer_traits *mixer_traits(enum mixer mixer)
{
    switch (mixer) {
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return &type##_traits;
        MIXER_TYPES(CALL)
#undef CALL
    }
    CHECK(false, "mixer %d", (int)mixer);
}

struct rope_dims mixer_rope_dims(const struct model_spec *m)
{
    struct rope_dims dims = {0};
#define WORD(prefix, value, word)                                                                            \
    if (model_mixer_count(m, prefix##_##value) > 0 && mixer_traits(prefix##_##value)->rope_dims)             \
        mixer_traits(prefix##_##value)->rope_dims(m, &dims);
    MIXER_WORDS(WORD)
#undef WORD
    return dims;
}

void mixer_init(struct mixer_block *m, struct params *p, const char *layer_name,
                const struct model_spec *spec, int64_t layer)
{
    char name[96];
    m->kind = model_layer(spec, layer).mixer;
#define CALL(value, type)                                                                                    \
    case MIXER_##value:                                                                                      \
        snprintf(name, sizeof name, "%s." #type, layer_name);                                                \
        type##_init(&m->type, p, name, spec, layer);                                                         \
        break;
    DISPATCH(m, CALL)
#undef CALL
}

void mixer_layout(const struct mixer_block *m, struct mixer_saved *s, const struct layout *l)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: type##_layout(&m->type, &s->type, l); break;
    DISPATCH(m, CALL)
#undef CALL
}

void mixer_rows(const struct mixer_block *m, struct mixer_saved *s, int64_t rows)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: type##_rows(&s->type, rows); break;
    DISPATCH(m, CALL)
#undef CALL
}

status mixer_fwd(const struct mixer_block *m, struct mixer_saved *s, const struct layer_ctx *c,
                 struct tensor y, struct branch_dst out, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return type##_fwd(&m->type, &s->type, c, y, out, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}

const struct linear *mixer_in(const struct mixer_block *m)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return type##_in(&m->type);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}

const struct linear *mixer_out(const struct mixer_block *m)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return &m->type.out;
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}

bool mixer_adds(const struct mixer_block *m, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return linear_adds(&m->type.out, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}

status mixer_bwd(const struct mixer_block *m, struct mixer_saved *s, const struct layer_ctx *c,
                 struct tensor y, struct tensor dout, struct tensor dy, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return type##_bwd(&m->type, &s->type, c, y, dout, dy, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}

void mixer_cache_layout(const struct mixer_block *m, struct mixer_cache *k, const struct cache_layout *l)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: type##_cache_layout(&m->type, &k->type, l); break;
    DISPATCH(m, CALL)
#undef CALL
}

status mixer_cache_fill(const struct mixer_block *m, const struct mixer_saved *s, struct mixer_cache *k,
                        const struct cache_at *at, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return type##_cache_fill(&m->type, &s->type, &k->type, at, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}

status mixer_step(const struct mixer_block *m, struct mixer_saved *s, struct mixer_cache *k,
                  const struct layer_ctx *c, const struct cache_at *at, struct tensor y, struct tensor out,
                  const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case MIXER_##value: return type##_step(&m->type, &s->type, &k->type, c, at, y, out, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "mixer %d", (int)m->kind);
}
