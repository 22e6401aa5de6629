/* GPT-2: LayerNorm, learned positions, all biases, matrices stored [in, out]. */
#include "model/hf_int.h"

#include <string.h>

static const struct hf_field fields[] = {
    HF_NEEDED(vocab_size, "vocab_size"),
    HF_NEEDED(hidden_size, "n_embd"),
    HF_NEEDED(layer_count, "n_layer"),
    HF_NEEDED(head_count, "n_head"),
    HF_ALSO(context_length, "n_positions", "n_ctx", NULL),
    HF_KEY(ffn_size, "n_inner", "0"), /* null means 4 n_embd */
    HF_KEY(norm_eps, "layer_norm_epsilon", "1e-5"),
    HF_KEY(init_std, "initializer_range", "0.02"),
    HF_KEY(tied_embeddings, "tie_word_embeddings", "true"),
    HF_ALWAYS(norm, "layernorm"),
    HF_ALWAYS(activation, "gelu"),
    HF_ALWAYS(position, "learned"),
    HF_ALWAYS(qkv_bias, "true"),
    HF_ALWAYS(out_bias, "true"),
    HF_ALWAYS(mlp_bias, "true"),
    HF_ONLY("scale_attn_weights", "true"),
    HF_ONLY("scale_attn_by_inverse_layer_idx", "false"),
    HF_ONLY("add_cross_attention", "false"),
};

static void read(struct hf_reader *r, struct model_spec *m)
{
    if (m->ffn_size == 0) m->ffn_size = 4 * m->hidden_size;
    const char *act = hf_read_text(r, r->root, "activation_function", "gelu_new");
    if (strcmp(act, "gelu_new") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        hf_refuse(r, "activation_function",
                  "is %.40s; ingot has gelu_new and gelu_pytorch_tanh, which are one", act);
}

static void write(json_t *j, const struct model_spec *m)
{
    (void)m;
    json_object_set_new(j, "activation_function", json_string("gelu_new"));
}

static bool transposed(const struct hf_layer *l, struct hf_tensor *t)
{
    (void)l;
    return t->transposed = true;
}

static void map(struct hf_list *l)
{
    static const struct hf_entry top[] = {
        {"embed.weight", "wte.weight", NULL},
        {"positions.weight", "wpe.weight", NULL},
        {"norm.weight", "ln_f.weight", NULL},
        {"norm.bias", "ln_f.bias", NULL},
    };
    static const struct hf_entry head = {"head.weight", "lm_head.weight", NULL};
    static const struct hf_entry layer[] = {
        {"norm1.weight", "ln_1.weight", NULL},
        {"norm1.bias", "ln_1.bias", NULL},
        {"attn.qkv.weight", "attn.c_attn.weight", transposed},
        {"attn.qkv.bias", "attn.c_attn.bias", NULL},
        {"attn.out.weight", "attn.c_proj.weight", transposed},
        {"attn.out.bias", "attn.c_proj.bias", NULL},
        {"norm2.weight", "ln_2.weight", NULL},
        {"norm2.bias", "ln_2.bias", NULL},
        {"mlp.up.weight", "mlp.c_fc.weight", transposed},
        {"mlp.up.bias", "mlp.c_fc.bias", NULL},
        {"mlp.down.weight", "mlp.c_proj.weight", transposed},
        {"mlp.down.bias", "mlp.c_proj.bias", NULL},
    };
    for (size_t i = 0; i < sizeof top / sizeof top[0]; i++) hf_add(l, NULL, "transformer.", &top[i]);
    hf_add(l, NULL, "", &head);
    for (int64_t i = 0; i < l->d->spec.layer_count; i++) {
        const struct hf_layer at = {&l->d->spec, &l->d->blocks[i], i, 0};
        for (size_t k = 0; k < sizeof layer / sizeof layer[0]; k++)
            hf_add(l, &at, "transformer.h.", &layer[k]);
    }
}

const struct hf_family hf_gpt2 = {.name = "gpt2",
                                  .architecture = "GPT2LMHeadModel",
                                  HF_FIELDS(fields),
                                  .read = read,
                                  .write = write,
                                  .map = map};
