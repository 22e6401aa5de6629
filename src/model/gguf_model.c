/* What a model is in GGUF: its architecture, the keys that describe it, the names of its tensors. */
#include "model/gguf_int.h"
#include "nn/rope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct arch {
    const char *family, *name;
} archs[] = {
    {"llama", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}, {"qwen3_moe", "qwen3moe"}, {"gpt2", "gpt2"}};
enum { ARCHS = sizeof archs / sizeof archs[0] };
#define NO_COUNTERPART "has no counterpart in GGUF's llama, qwen2, qwen3, qwen3moe and gpt2"

/* The first layer that is no full attention with a feed-forward part. */
static status check_layers(const struct model_spec *m)
{
    for (int64_t i = 0; i < m->layer_count; i++) {
        const struct layer_spec l = model_layer(m, i);
        if (l.mixer != MIXER_GQA)
            return FAIL(STATUS_CONFIG, "layer %lld (%s) " NO_COUNTERPART, (long long)i, mixer_word(l.mixer));
        if (model_layer_window(m, i))
            return FAIL(STATUS_CONFIG, "layer %lld (a window of %lld tokens) " NO_COUNTERPART, (long long)i,
                        (long long)m->window);
    }
    return STATUS_OK;
}

static status check_moe(const struct model_spec *m)
{
    for (int64_t i = 0; i < m->layer_count; i++)
        if (model_layer(m, i).ffn != FFN_MOE)
            return FAIL(
                STATUS_CONFIG,
                "layer %lld (mlp) has no counterpart in GGUF's qwen3moe: all of its layers are mixtures",
                (long long)i);
    if (!m->moe_normalize)
        return FAIL(STATUS_CONFIG, "model.moe_normalize: false has no counterpart in GGUF's qwen3moe");
    return STATUS_OK;
}

static status check_keys(const struct model_spec *m, const char *arch)
{
    if (strcmp(arch, "qwen3moe") == 0) TRY(check_moe(m));
    if ((m->qkv_bias || m->out_bias) && strncmp(arch, "qwen3", 5) == 0)
        return FAIL(STATUS_CONFIG, "biases of attention have no counterpart in GGUF's %s", arch);
    if (m->rope_scaling == SCALING_LLAMA3 && strcmp(arch, "llama") != 0)
        return FAIL(STATUS_CONFIG, "model.rope_scaling: llama3 is not exported to GGUF's %s", arch);
    if (m->rope_scaling == SCALING_YARN && (m->rope_beta_fast != 32 || m->rope_beta_slow != 1))
        return FAIL(
            STATUS_CONFIG,
            "model.rope_beta_fast: %g and rope_beta_slow: %g are not exported to GGUF: programs that read it "
            "take yarn's 32 and 1",
            m->rope_beta_fast, m->rope_beta_slow);
    return STATUS_OK;
}

status gguf_architecture(const struct decoder *d, const char **arch)
{
    const struct model_spec *m = &d->spec;
    const char *family;
    char nearest[128];
    TRY(check_layers(m));
    TRY(hf_family(m, &family));
    for (int i = 0; i < ARCHS; i++) {
        *arch = archs[i].name;
        if (strcmp(family, archs[i].family) == 0) return check_keys(m, *arch);
    }
    hf_nearest(m, nearest);
    return FAIL(STATUS_CONFIG, "this model (%s) " NO_COUNTERPART, nearest);
}

/* ---- keys */

static void key_of(struct gguf_head *h, const char *arch, const char *name, int64_t v)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gguf_key_u32(h, key, (uint32_t)v);
}

static void real_of(struct gguf_head *h, const char *arch, const char *name, double v)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gguf_key_f32(h, key, v);
}

/* GGUF's factor on cos and sin is attn_factor (0.1 ln factor + 1), and attn_factor is 1 where no key says it. */
static void put_yarn(struct gguf_head *h, const struct model_spec *m, const char *arch, int64_t head_dim)
{
    double *inv = malloc((size_t)head_dim / 2 * sizeof *inv);
    MEMORY_CHECK(inv != NULL, "no memory for %lld frequencies", (long long)head_dim / 2);
    const double ours = rope_frequencies(m, inv, head_dim / 2), theirs = 0.1 * log(m->rope_factor) + 1;
    free(inv);
    key_of(h, arch, "rope.scaling.original_context_length", m->rope_original);
    if (ours != theirs) real_of(h, arch, "rope.scaling.attn_factor", ours / theirs);
}

static void put_rope(struct gguf_head *h, const struct model_spec *m, const char *arch, int64_t head_dim)
{
    char key[96];
    key_of(h, arch, "rope.dimension_count", head_dim);
    real_of(h, arch, "rope.freq_base", m->rope_theta);
    if (m->rope_scaling != SCALING_LINEAR && m->rope_scaling != SCALING_YARN)
        return; /* llama3: rope_freqs.weight */
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    gguf_key_text(h, key, m->rope_scaling == SCALING_YARN ? "yarn" : "linear");
    real_of(h, arch, "rope.scaling.factor", m->rope_factor);
    if (m->rope_scaling == SCALING_YARN) put_yarn(h, m, arch, head_dim);
}

void gguf_put_model(struct gguf_head *h, const struct gguf_source *s, const char *arch)
{
    /* general.file_type: the type of most tensors */
    const uint32_t file_type = s->type == GGUF_F32    ? 0
                               : s->type == GGUF_F16  ? 1
                               : s->type == GGUF_Q8_0 ? 7
                                                      : 32;
    const struct model_spec *m = &s->d->spec;
    const struct attn *a = &s->d->blocks[0].mixer.attn;
    const bool gpt2 = strcmp(arch, "gpt2") == 0, moe = strcmp(arch, "qwen3moe") == 0;
    gguf_key_text(h, "general.architecture", arch);
    gguf_key_text(h, "general.type", "model");
    gguf_key_text(h, "general.name", s->name);
    gguf_key_u32(h, "general.file_type", file_type);
    if (s->type == GGUF_Q8_0) gguf_key_u32(h, "general.quantization_version", 2);
    key_of(h, arch, "vocab_size", m->vocab_size);
    key_of(h, arch, "context_length", m->context_length);
    key_of(h, arch, "embedding_length", m->hidden_size);
    key_of(h, arch, "block_count", m->layer_count);
    key_of(h, arch, "feed_forward_length", moe ? m->moe_size : m->ffn_size);
    key_of(h, arch, "attention.head_count", a->heads);
    key_of(h, arch, "attention.head_count_kv", a->heads_kv);
    real_of(h, arch, gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", m->norm_eps);
    if (gpt2) return;
    key_of(h, arch, "attention.key_length", a->head_dim);
    key_of(h, arch, "attention.value_length", a->head_dim);
    put_rope(h, m, arch, a->head_dim);
    if (!moe) return;
    key_of(h, arch, "expert_count", m->moe_experts);
    key_of(h, arch, "expert_used_count", m->moe_top_k);
    key_of(h, arch, "expert_feed_forward_length", m->moe_size);
}

/* ---- tensors */

/* Hugging Face's name without ".weight" or ".bias", behind the prefix of the layer; then GGUF's. */
struct name_row {
    const char *theirs, *ours;
};
static const struct name_row tops[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"},
};
static const struct name_row layers[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.0.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.0.up_proj", "ffn_up_exps"},
    {"mlp.experts.0.down_proj", "ffn_down_exps"},
    {"ln_1", "attn_norm"},
    {"ln_2", "ffn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};
#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* Writes the name; false: a tensor that has none, as those of the experts behind the first. */
static bool name_of(const char *hf, char out[64])
{
    static const char *const prefixes[] = {"model.layers.", "transformer.h."};
    const char *rest = hf;
    long long layer = -1;
    for (int i = 0; i < COUNT(prefixes) && layer < 0; i++) {
        const size_t n = strlen(prefixes[i]);
        if (strncmp(hf, prefixes[i], n) != 0) continue;
        char *end;
        layer = strtoll(hf + n, &end, 10);
        rest = end + 1;
    }
    const char *dot = strrchr(rest, '.');
    const size_t stem = dot ? (size_t)(dot - rest) : 0;
    const struct name_row *rows = layer < 0 ? tops : layers;
    for (int i = 0; i < (layer < 0 ? COUNT(tops) : COUNT(layers)); i++) {
        if (strlen(rows[i].theirs) != stem || strncmp(rows[i].theirs, rest, stem) != 0) continue;
        if (layer < 0)
            snprintf(out, 64, "%s%s", rows[i].ours, dot);
        else
            snprintf(out, 64, "blk.%lld.%s%s", layer, rows[i].ours, dot);
        return true;
    }
    return false;
}

/* Interleaved pairs are what the llama architecture rotates; the others rotate halves, as ingot does. */
static int64_t rotated_head(const struct decoder *d, const struct gguf_tensor *t, const char *arch)
{
    const bool q_or_k = strstr(t->name, ".attn_q.") || strstr(t->name, ".attn_k.");
    return q_or_k && strcmp(arch, "llama") == 0 ? d->blocks[0].mixer.attn.head_dim : 0;
}

static enum gguf_type type_of(const struct gguf_tensor *t, enum gguf_type wanted)
{
    if (t->rank == 1 || strstr(t->name, "ffn_gate_inp") || strstr(t->name, "position_embd")) return GGUF_F32;
    return wanted == GGUF_Q8_0 && t->shape[t->rank - 1] % 32 != 0 ? GGUF_F16 : wanted;
}

static void add(struct gguf_tensors *out, const struct gguf_source *s, const struct hf_tensor *h,
                const char *arch)
{
    enum { MATRICES = 3 }; /* of an expert, in the order of the list */
    struct gguf_tensor t = {.first = h, .pieces = 1, .stride = 0};
    if (!name_of(h->name, t.name)) return;
    const struct param *p = &s->d->params.rows[h->param];
    if (strstr(t.name, "_exps.")) {
        t.pieces = s->d->spec.moe_experts;
        t.stride = MATRICES;
        t.shape[t.rank++] = t.pieces;
    }
    t.shape[t.rank++] = h->rows;
    if (p->rank == 2) t.shape[t.rank++] = p->shape[1];
    t.type = type_of(&t, s->type);
    t.head = rotated_head(s->d, &t, arch);
    out->list[out->count++] = t;
}

/* llama3: what each frequency is divided by. */
static void add_rope(struct gguf_tensors *out, const struct decoder *d)
{
    const int64_t half = d->blocks[0].mixer.attn.head_dim / 2;
    struct model_spec plain = d->spec;
    plain.rope_scaling = SCALING_NONE;
    double *scaled = malloc((size_t)half * sizeof *scaled);
    out->rope = malloc((size_t)half * sizeof *out->rope);
    CHECK(scaled && out->rope, "no memory for %lld frequencies", (long long)half);
    (void)rope_frequencies(&plain, out->rope, half);
    (void)rope_frequencies(&d->spec, scaled, half);
    for (int64_t i = 0; i < half; i++) out->rope[i] /= scaled[i];
    free(scaled);
    out->list[out->count++] = (struct gguf_tensor){
        .name = "rope_freqs.weight", .type = GGUF_F32, .rank = 1, .shape = {half}, .values = out->rope};
}

status gguf_tensors_list(struct gguf_tensors *out, const struct gguf_source *s, const char *arch)
{
    int count;
    TRY(hf_map(s->d, &out->from, &count));
    out->list = calloc((size_t)count + 1, sizeof *out->list);
    if (!out->list) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %d tensor descriptions", count);
    int64_t covered = 0;
    for (int i = 0; i < count; i++) add(out, s, &out->from[i], arch);
    for (int i = 0; i < out->count; i++) covered += out->list[i].pieces;
    CHECK(covered == count, "%s: %lld of %d tensors have names", arch, (long long)covered, count);
    if (s->d->spec.rope_scaling == SCALING_LLAMA3) add_rope(out, s->d);
    return STATUS_OK;
}

void gguf_tensors_free(struct gguf_tensors *t)
{
    free(t->from);
    free(t->list);
    free(t->rope);
    *t = (struct gguf_tensors){0};
}
