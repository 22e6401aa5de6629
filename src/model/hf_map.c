/* Names: which rows of which parameter each Hugging Face tensor is. */
#include "model/hf.h"

#include <stdlib.h>
#include <string.h>

struct list {
    struct hf_tensor *rows;
    int count, capacity;
    const struct decoder *d;
};

/* Rows [begin, begin + rows) of parameter OURS as HF; skipped when the model has no such parameter. rows 0: all. */
struct entry {
    const char *ours, *hf;
    int64_t begin, rows;
    bool transposed;
};

static void add(struct list *l, int64_t layer, const struct entry *e)
{
    char ours[112];
    if (layer >= 0)
        snprintf(ours, sizeof ours, "layers.%lld.%s", (long long)layer, e->ours);
    else
        snprintf(ours, sizeof ours, "%s", e->ours);
    int param = params_find(&l->d->params, ours);
    if (param < 0) return;
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? l->capacity * 2 : 256;
        l->rows = realloc(l->rows, (size_t)l->capacity * sizeof *l->rows);
        CHECK(l->rows != NULL, "no memory for %d tensor names", l->capacity);
    }
    struct hf_tensor *t = &l->rows[l->count++];
    *t = (struct hf_tensor){.param = param,
                            .begin = e->begin,
                            .rows = e->rows ? e->rows : l->d->params.rows[param].shape[0],
                            .transposed = e->transposed};
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, e->hf[0] == 'h' ? "transformer.h.%lld.%s" : "model.layers.%lld.%s",
                 (long long)layer, e->hf + 1);
    else
        snprintf(t->name, sizeof t->name, "%s", e->hf);
}

static void add_all(struct list *l, int64_t layer, const struct entry *e, size_t count)
{
    for (size_t i = 0; i < count; i++) add(l, layer, &e[i]);
}

/* In the layer tables the first letter says under which prefix the name stands: h "transformer.h.I.", m "model.layers.I." */
static void map_gpt2(struct list *l)
{
    static const struct entry top[] = {
        {.ours = "embed.weight", .hf = "transformer.wte.weight"},
        {.ours = "positions.weight", .hf = "transformer.wpe.weight"},
        {.ours = "norm.weight", .hf = "transformer.ln_f.weight"},
        {.ours = "norm.bias", .hf = "transformer.ln_f.bias"},
        {.ours = "head.weight", .hf = "lm_head.weight"},
    };
    static const struct entry layer[] = {
        {.ours = "norm1.weight", .hf = "hln_1.weight"},
        {.ours = "norm1.bias", .hf = "hln_1.bias"},
        {.ours = "attn.qkv.weight", .hf = "hattn.c_attn.weight", .transposed = true},
        {.ours = "attn.qkv.bias", .hf = "hattn.c_attn.bias"},
        {.ours = "attn.out.weight", .hf = "hattn.c_proj.weight", .transposed = true},
        {.ours = "attn.out.bias", .hf = "hattn.c_proj.bias"},
        {.ours = "norm2.weight", .hf = "hln_2.weight"},
        {.ours = "norm2.bias", .hf = "hln_2.bias"},
        {.ours = "mlp.up.weight", .hf = "hmlp.c_fc.weight", .transposed = true},
        {.ours = "mlp.up.bias", .hf = "hmlp.c_fc.bias"},
        {.ours = "mlp.down.weight", .hf = "hmlp.c_proj.weight", .transposed = true},
        {.ours = "mlp.down.bias", .hf = "hmlp.c_proj.bias"},
    };
    add_all(l, -1, top, sizeof top / sizeof top[0]);
    for (int64_t i = 0; i < l->d->spec.layer_count; i++) add_all(l, i, layer, sizeof layer / sizeof layer[0]);
}

/* llama, mistral, qwen2 and qwen3 share their names; biases and QK-norms are there when the parameters are. */
static void map_llama(struct list *l)
{
    static const struct entry top[] = {
        {.ours = "embed.weight", .hf = "model.embed_tokens.weight"},
        {.ours = "norm.weight", .hf = "model.norm.weight"},
        {.ours = "head.weight", .hf = "lm_head.weight"},
    };
    add_all(l, -1, top, sizeof top / sizeof top[0]);
    for (int64_t i = 0; i < l->d->spec.layer_count; i++) {
        const struct attn *a = &l->d->blocks[i].mixer.attn;
        int64_t q = a->heads * a->hd, kv = a->heads_kv * a->hd, f = l->d->spec.ffn_size;
        const struct entry layer[] = {
            {.ours = "norm1.weight", .hf = "minput_layernorm.weight"},
            {.ours = "attn.qkv.weight", .hf = "mself_attn.q_proj.weight", .begin = 0, .rows = q},
            {.ours = "attn.qkv.weight", .hf = "mself_attn.k_proj.weight", .begin = q, .rows = kv},
            {.ours = "attn.qkv.weight", .hf = "mself_attn.v_proj.weight", .begin = q + kv, .rows = kv},
            {.ours = "attn.qkv.bias", .hf = "mself_attn.q_proj.bias", .begin = 0, .rows = q},
            {.ours = "attn.qkv.bias", .hf = "mself_attn.k_proj.bias", .begin = q, .rows = kv},
            {.ours = "attn.qkv.bias", .hf = "mself_attn.v_proj.bias", .begin = q + kv, .rows = kv},
            {.ours = "attn.q_norm.weight", .hf = "mself_attn.q_norm.weight"},
            {.ours = "attn.k_norm.weight", .hf = "mself_attn.k_norm.weight"},
            {.ours = "attn.out.weight", .hf = "mself_attn.o_proj.weight"},
            {.ours = "attn.out.bias", .hf = "mself_attn.o_proj.bias"},
            {.ours = "norm2.weight", .hf = "mpost_attention_layernorm.weight"},
            {.ours = "mlp.up.weight", .hf = "mmlp.gate_proj.weight", .begin = 0, .rows = f},
            {.ours = "mlp.up.weight", .hf = "mmlp.up_proj.weight", .begin = f, .rows = f},
            {.ours = "mlp.up.bias", .hf = "mmlp.gate_proj.bias", .begin = 0, .rows = f},
            {.ours = "mlp.up.bias", .hf = "mmlp.up_proj.bias", .begin = f, .rows = f},
            {.ours = "mlp.down.weight", .hf = "mmlp.down_proj.weight"},
            {.ours = "mlp.down.bias", .hf = "mmlp.down_proj.bias"},
        };
        add_all(l, i, layer, sizeof layer / sizeof layer[0]);
    }
}

status hf_map(const struct decoder *d, struct hf_tensor **list, int *count)
{
    const char *family;
    struct list l = {.d = d};
    TRY(hf_family(&d->spec, &family));
    if (strcmp(family, "gpt2") == 0)
        map_gpt2(&l);
    else
        map_llama(&l);
    int64_t covered = 0;
    for (int i = 0; i < l.count; i++) {
        const struct param *p = &d->params.rows[l.rows[i].param];
        covered += l.rows[i].rows * (p->rank == 2 ? p->shape[1] : 1);
    }
    CHECK(covered == d->params.unique, "%s: the names cover %lld of %lld parameters", family,
          (long long)covered, (long long)d->params.unique);
    *list = l.rows;
    *count = l.count;
    return STATUS_OK;
}
