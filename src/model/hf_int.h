/* Private to the hf_*.c files: the definition of a family and its building blocks.
 *
 * A family is a model_type of config.json. It has a table of fields, two functions for what a table cannot express
 * (positions, kinds of layers), and a function that names its tensors. A new family is a file with a `const struct
 * hf_family` and a row in HF_FAMILY_LIST. No list records which family represents which model: a family represents a
 * model if reading back the config.json that it writes gives the same model. */
#ifndef INGOT_MODEL_HF_INT_H
#define INGOT_MODEL_HF_INT_H
#include "model/hf.h"
#include "spec/keys.h"
#include <jansson.h>

/* An export tries the families in this order; `ingot` represents everything. */
#define HF_FAMILY_LIST(X) \
    X(gpt2) X(llama) X(mistral) X(qwen2) X(qwen3) X(qwen3_moe) X(qwen3_next) X(deepseek_v3) X(ingot)

/* ---- config.json */

/* One field of config.json and its key in model.def. The key determines its type. */
struct hf_field {
    int ours;             /* enum key_at, or HF_NOT_OURS */
    const char *name;     /* NULL: config.json has no such field; `absent` is the value */
    const char *also;     /* a second name that is also read and written; NULL: none */
    const char *absent;   /* the value if config.json lacks the field, as model.def writes it; NULL: the field is
                             required */
    const char *null;     /* the value that is read and written as JSON null; NULL: null means absent */
    const char *only;     /* HF_NOT_OURS: the only value, as JSON, that ingot supports */
};
enum { HF_NOT_OURS = -1 };
#define HF_NEEDED(key, field)               {KEY_AT_model_##key, field, NULL, NULL, NULL, NULL}
#define HF_KEY(key, field, other)           {KEY_AT_model_##key, field, NULL, other, NULL, NULL}
#define HF_NULL(key, field, other, if_null) {KEY_AT_model_##key, field, NULL, other, if_null, NULL}
#define HF_ALSO(key, field, second, other)  {KEY_AT_model_##key, field, second, other, NULL, NULL}
#define HF_ALWAYS(key, value)               {KEY_AT_model_##key, NULL, NULL, value, NULL, NULL}
#define HF_ONLY(field, json)                {HF_NOT_OURS, field, NULL, NULL, NULL, json}

/* Fields of all families except GPT-2. */
#define HF_LLAMA_FIELDS                                                                                                \
    HF_NEEDED(vocab_size, "vocab_size"), HF_NEEDED(hidden_size, "hidden_size"),                                        \
    HF_NEEDED(layer_count, "num_hidden_layers"), HF_NEEDED(head_count, "num_attention_heads"),                         \
    HF_NEEDED(ffn_size, "intermediate_size"), HF_NEEDED(context_length, "max_position_embeddings"),                    \
    HF_KEY(norm_eps, "rms_norm_eps", "1e-6"), HF_KEY(init_std, "initializer_range", "0.02"),                           \
    HF_KEY(tied_embeddings, "tie_word_embeddings", "false"), HF_ONLY("hidden_act", "\"silu\"")
/* Mixtures of experts with transformers' names; the defaults differ by family. */
#define HF_MOE_FIELDS(experts, top_k, size)                                                                            \
    HF_ALSO(moe_experts, "num_experts", "num_local_experts", experts), \
    HF_KEY(moe_top_k, "num_experts_per_tok", top_k), HF_KEY(moe_size, "moe_intermediate_size", size)
#define HF_ATTENTION_BIAS HF_KEY(qkv_bias, "attention_bias", "false"), HF_KEY(out_bias, "attention_bias", "false")

struct hf_reader {
    json_t *root;
    const char *path;
    status st;            /* the first failure; later reads return their defaults */
};
void hf_refuse(struct hf_reader *r, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A value that exists and is not null; else NULL. */
json_t *hf_value(json_t *from, const char *key);
enum hf_need { HF_REQUIRED, HF_OPTIONAL };
int64_t hf_read_int(struct hf_reader *r, const char *key, int64_t absent);
double hf_read_real(struct hf_reader *r, json_t *from, const char *key, enum hf_need need, double absent);
bool hf_read_bool(struct hf_reader *r, const char *key, bool absent);
const char *hf_read_text(struct hf_reader *r, json_t *from, const char *key, const char *absent);
void hf_set_int(json_t *j, const char *key, int64_t v);

void hf_fields_read(struct hf_reader *r, struct model_spec *m, const struct hf_field *fields, int count);
void hf_fields_write(json_t *j, const struct model_spec *m, const struct hf_field *fields, int count);

/* RoPE fields, old and new style (hf_rope.c). `fraction`: the default of partial_rotary_factor. */
void hf_rope_read(struct hf_reader *r, struct model_spec *m, double fraction);
void hf_rope_write(json_t *j, const struct model_spec *m);
/* RoPE over whole heads, and a window of at most the context: for families without more options (hf_llama.c). */
void hf_llama_read(struct hf_reader *r, struct model_spec *m);

/* Converts between model.layers and one entry per layer (hf_layers.c). hf_layers_begin returns all gqa/mlp; NULL if
 * the number of layers is out of range, which the spec check rejects. Free the result with hf_layers_store or
 * free(). */
struct layer_spec *hf_layers_begin(const struct model_spec *m);
void hf_layers_store(struct hf_reader *r, struct model_spec *m, struct layer_spec *layers);
/* A field with one word per layer, such as layer_types. A layer kind without a word here is written with its word of
 * model.layers. */
enum hf_layer_part { HF_MIXER, HF_FFN };
struct hf_word { int value; const char *word; };    /* enum mixer or enum ffn */
struct hf_layer_field { const char *name; enum hf_layer_part part; const struct hf_word *words; int count; };
#define HF_WORDS(array) .words = array, .count = (int)(sizeof(array) / sizeof(array[0]))
/* If the field is absent, the layers do not change. */
void hf_layer_field_read(struct hf_reader *r, const struct hf_layer_field *f, struct layer_spec *layers,
                         int64_t layer_count);
void hf_layer_field_write(json_t *j, const struct model_spec *m, const struct hf_layer_field *f);

/* ---- tensors */

struct hf_list {
    const struct decoder *d;
    struct hf_tensor *rows;
    int count, capacity;
};
/* The decoder layer whose tensors are being named. */
struct hf_layer {
    const struct model_spec *spec;
    const struct block *block;
    int64_t index;
    int64_t expert;       /* the expert of the tensor, in a mixture of experts */
};
/* Sets the parameter rows of a tensor with hf_rows; without a call, all rows. False: this model has no such tensor. */
typedef bool hf_rows_fn(const struct hf_layer *l, struct hf_tensor *t);
struct hf_entry {
    const char *ours;     /* parameter name, without "layers.N." in a layer; skipped if the model has no such
                             parameter */
    const char *hf;       /* name after the prefix, and in a layer after the layer's index */
    hf_rows_fn *rows;     /* NULL: all rows */
};
struct hf_entries {
    const struct hf_entry *at;
    int count;
    void (*more)(struct hf_list *l, const struct hf_layer *layer, const char *prefix);    /* for what a table cannot
                                                                                             list; NULL: none */
};
#define HF_ENTRIES(array) {array, (int)(sizeof(array) / sizeof(array[0])), NULL}
void hf_add(struct hf_list *l, const struct hf_layer *layer, const char *prefix, const struct hf_entry *e);
/* Appends `rows` rows to the tensor: [begin, begin + rows) for the first group, the next rows for the second, and so
 * on. */
void hf_rows(struct hf_tensor *t, int64_t begin, int64_t rows);
/* The names of Llama and its successors, by kind of layer; hf_map.c lists the tables. */
void hf_map_llama(struct hf_list *l);
extern const struct hf_entries hf_deltanet, hf_latent, hf_moe;

struct hf_family {
    const char *name, *architecture;    /* model_type; class in transformers */
    const struct hf_field *fields;
    int field_count;
    void (*read)(struct hf_reader *r, struct model_spec *m);
    void (*write)(json_t *j, const struct model_spec *m);
    void (*map)(struct hf_list *l);
    const char *left_out;               /* prefix of tensor names that ingot does not use and transformers drops too;
                                           NULL: none */
};
#define HF_FIELDS(array) .fields = array, .field_count = (int)(sizeof(array) / sizeof(array[0]))
#define X(family) extern const struct hf_family hf_##family;
HF_FAMILY_LIST(X)
#undef X
/* The family that represents this model. */
status hf_family_find(const struct model_spec *m, const struct hf_family **family) WARN_UNUSED;
#endif
