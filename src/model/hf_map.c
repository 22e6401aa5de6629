/* Maps each Hugging Face tensor to rows of a parameter. */
#include "model/hf_int.h"

#include <stdlib.h>
#include <string.h>

int64_t hf_row(const struct hf_tensor *t, int64_t row)
{
    const int64_t each = t->rows / t->groups, group = row / each;
    int64_t at = row % each;
    int i = 0;
    while (at >= t->parts[i].rows) at -= t->parts[i++].rows;
    return t->parts[i].begin + group * t->parts[i].rows + at;
}

void hf_rows(struct hf_tensor *t, int64_t begin, int64_t rows)
{
    CHECK(t->part_count < HF_PARTS_MAX, "%s has too many parts", t->name);
    t->parts[t->part_count].begin = begin;
    t->parts[t->part_count++].rows = rows;
    t->rows += t->groups * rows;
}

static struct hf_tensor *grow(struct hf_list *l)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? l->capacity * 2 : 256;
        l->rows = realloc(l->rows, (size_t)l->capacity * sizeof *l->rows);
        MEMORY_CHECK(l->rows != NULL, "no memory for %d tensor names", l->capacity);
    }
    return &l->rows[l->count];
}

void hf_add(struct hf_list *l, const struct hf_layer *layer, const char *prefix, const struct hf_entry *e)
{
    char ours[112];
    struct hf_tensor t = {.groups = 1};
    if (layer) {
        snprintf(ours, sizeof ours, "layers.%lld.%s", (long long)layer->index, e->ours);
        snprintf(t.name, sizeof t.name, "%s%lld.%s", prefix, (long long)layer->index, e->hf);
    } else {
        snprintf(ours, sizeof ours, "%s", e->ours);
        snprintf(t.name, sizeof t.name, "%s%s", prefix, e->hf);
    }
    t.param = params_find(&l->d->params, ours);
    if (t.param < 0 || (e->rows && !e->rows(layer, &t))) return;
    if (t.part_count == 0) hf_rows(&t, 0, l->d->params.rows[t.param].shape[0]);
    *grow(l) = t;
    l->count++;
}

/* ---- attention */

static const struct attn *attn_of(const struct hf_layer *l)
{
    return &l->block->mixer.attn;
}

/* With gates: [q | gate] head by head. */
static bool rows_q(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct attn *a = attn_of(l);
    t->groups = a->heads;
    hf_rows(t, 0, a->head_dim);
    if (a->gate) hf_rows(t, (a->heads + 2 * a->heads_kv) * a->head_dim, a->head_dim);
    return true;
}
static bool rows_k(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct attn *a = attn_of(l);
    hf_rows(t, a->heads * a->head_dim, a->heads_kv * a->head_dim);
    return true;
}
static bool rows_v(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct attn *a = attn_of(l);
    hf_rows(t, (a->heads + a->heads_kv) * a->head_dim, a->heads_kv * a->head_dim);
    return true;
}
static const struct hf_entry attention[] = {
    {"attn.qkv.weight", "self_attn.q_proj.weight", rows_q},
    {"attn.qkv.weight", "self_attn.k_proj.weight", rows_k},
    {"attn.qkv.weight", "self_attn.v_proj.weight", rows_v},
    {"attn.qkv.bias", "self_attn.q_proj.bias", rows_q},
    {"attn.qkv.bias", "self_attn.k_proj.bias", rows_k},
    {"attn.qkv.bias", "self_attn.v_proj.bias", rows_v},
    {"attn.q_norm.weight", "self_attn.q_norm.weight", NULL},
    {"attn.k_norm.weight", "self_attn.k_norm.weight", NULL},
    {"attn.out.weight", "self_attn.o_proj.weight", NULL},
    {"attn.out.bias", "self_attn.o_proj.bias", NULL},
};

/* ---- feed-forward */

/* Without SwiGLU there is no gate. */
static bool rows_gate(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mlp *m = &l->block->ffn.mlp;
    if (m->act == ACT_SWIGLU) hf_rows(t, 0, m->f);
    return m->act == ACT_SWIGLU;
}
static bool rows_up(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mlp *m = &l->block->ffn.mlp;
    hf_rows(t, m->act == ACT_SWIGLU ? m->f : 0, m->f);
    return true;
}
static const struct hf_entry dense[] = {
    {"mlp.up.weight", "mlp.gate_proj.weight", rows_gate}, {"mlp.up.weight", "mlp.up_proj.weight", rows_up},
    {"mlp.up.bias", "mlp.gate_proj.bias", rows_gate},     {"mlp.up.bias", "mlp.up_proj.bias", rows_up},
    {"mlp.down.weight", "mlp.down_proj.weight", NULL},    {"mlp.down.bias", "mlp.down_proj.bias", NULL},
};

/* ---- all tensors */

static const struct hf_entry top[] = {
    {"embed.weight", "model.embed_tokens.weight", NULL},
    {"norm.weight", "model.norm.weight", NULL},
    {"head.weight", "lm_head.weight", NULL},
};
static const struct hf_entry norms[] = {
    {"norm1.weight", "input_layernorm.weight", NULL},
    {"norm2.weight", "post_attention_layernorm.weight", NULL},
};
static const struct hf_entries grouped = HF_ENTRIES(attention), feed_forward = HF_ENTRIES(dense);
static const struct hf_entries *const mixers[] = {
    [MIXER_GQA] = &grouped,
    [MIXER_SWA] = &grouped,
    [MIXER_GDN] = &hf_deltanet,
    [MIXER_MLA] = &hf_latent,
};
static const struct hf_entries *const ffns[] = {
    [FFN_MLP] = &feed_forward,
    [FFN_MOE] = &hf_moe,
};

/* Parts that no table knows keep their names; only the family that takes all models (hf_ingot.c) allows it. */
static void add_part(struct hf_list *l, const struct hf_layer *at, const struct hf_entries *e)
{
    static const char prefix[] = "model.layers.";
    for (int k = 0; e && k < e->count; k++) hf_add(l, at, prefix, &e->at[k]);
    if (e && e->more) e->more(l, at, prefix);
}
#define PART(table, kind) ((size_t)(kind) < sizeof(table) / sizeof(table[0]) ? (table)[kind] : NULL)

void hf_map_llama(struct hf_list *l)
{
    static const struct hf_entries ends = HF_ENTRIES(top), both = HF_ENTRIES(norms);
    for (int i = 0; i < ends.count; i++) hf_add(l, NULL, "", &ends.at[i]);
    for (int64_t i = 0; i < l->d->spec.layer_count; i++) {
        const struct block *block = &l->d->blocks[i];
        const struct hf_layer at = {&l->d->spec, block, i, 0};
        add_part(l, &at, &both);
        add_part(l, &at, PART(mixers, block->mixer.kind));
        add_part(l, &at, PART(ffns, block->ffn.kind));
    }
}

status hf_map(const struct decoder *d, struct hf_tensor **list, int *count)
{
    const struct hf_family *family;
    struct hf_list l = {.d = d};
    TRY(hf_family_find(&d->spec, &family));
    family->map(&l);
    int64_t covered = 0;
    for (int i = 0; i < l.count; i++) {
        const struct param *p = &d->params.rows[l.rows[i].param];
        if (p->role != ROLE_BALANCE) covered += l.rows[i].rows * (p->rank == 2 ? p->shape[1] : 1);
    }
    CHECK(covered == d->params.param_count, "%s: the names cover %lld of %lld parameters", family->name,
          (long long)covered, (long long)d->params.param_count);
    *list = l.rows;
    *count = l.count;
    return STATUS_OK;
}
