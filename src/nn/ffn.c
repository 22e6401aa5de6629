#include "nn/ffn.h"
#include "spec/layer_traits.h"

#include <stdio.h>

/* Calls the function of the kind with its members of the unions. */
#define DISPATCH(m, call)                                                                                    \
    switch ((m)->kind) {                                                                                     \
        FFN_TYPES(call)                                                                                      \
    }

const struct layer_traits *ffn_traits(enum ffn ffn)
{
    switch (ffn) {
#define CALL(value, type)                                                                                    \
    case FFN_##value: return &type##_traits;
        FFN_TYPES(CALL)
#undef CALL
    }
    CHECK(false, "feed-forward part %d", (int)ffn);
}

void ffn_init(struct ffn_block *m, struct params *p, const char *layer_name, const struct model_spec *spec,
              int64_t layer)
{
    char name[96];
    m->kind = model_layer(spec, layer).ffn;
#define CALL(value, type)                                                                                    \
    case FFN_##value:                                                                                        \
        snprintf(name, sizeof name, "%s." #type, layer_name);                                                \
        type##_init(&m->type, p, name, spec);                                                                \
        break;
    DISPATCH(m, CALL)
#undef CALL
}

void ffn_experts_init(struct ffn_block *m, struct params *p, const char *layer_name, int of)
{
    char name[96];
    if (m->kind != FFN_MOE) return;
    snprintf(name, sizeof name, "%s.moe", layer_name);
    moe_experts_init(&m->moe, p, name, of);
}

void ffn_layout(const struct ffn_block *m, struct ffn_saved *s, const struct layout *l)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: type##_layout(&m->type, &s->type, l); break;
    DISPATCH(m, CALL)
#undef CALL
}

void ffn_rows(const struct ffn_block *m, struct ffn_saved *s, int64_t rows)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: type##_rows(&s->type, rows); break;
    DISPATCH(m, CALL)
#undef CALL
}

status ffn_fwd(const struct ffn_block *m, struct ffn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct branch_dst out, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: return type##_fwd(&m->type, &s->type, c, y, out, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "feed-forward part %d", (int)m->kind);
}

status ffn_recompute(const struct ffn_block *m, struct ffn_saved *s, enum recompute policy, struct tensor y,
                     const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: return type##_recompute(&m->type, &s->type, policy, y, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "feed-forward part %d", (int)m->kind);
}

status ffn_bwd(const struct ffn_block *m, struct ffn_saved *s, const struct layer_ctx *c, struct tensor y,
               struct tensor dout, struct tensor dy, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: return type##_bwd(&m->type, &s->type, c, y, dout, dy, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "feed-forward part %d", (int)m->kind);
}

const struct linear *ffn_in(const struct ffn_block *m)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: return type##_in(&m->type);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "feed-forward part %d", (int)m->kind);
}

const struct linear *ffn_out(const struct ffn_block *m)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: return type##_out(&m->type);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "feed-forward part %d", (int)m->kind);
}

bool ffn_adds(const struct ffn_block *m, const struct exec *r)
{
#define CALL(value, type)                                                                                    \
    case FFN_##value: return type##_adds(&m->type, r);
    DISPATCH(m, CALL)
#undef CALL
    CHECK(false, "feed-forward part %d", (int)m->kind);
}

enum sp_mode ffn_how(const struct ffn_block *m)
{
    return ffn_traits(m->kind)->sp_overlap ? SP_OVERLAP : SP_BLOCKING;
}
