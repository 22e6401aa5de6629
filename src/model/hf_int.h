/* Private to the hf_*.c files: what a family is, and what families are made of.
 *
 * A family is a model_type of config.json: a table of its fields, two functions for what a table cannot say (positions, kinds of layers),
 * and one that names its tensors. A new one is a file with a `const struct hf_family` and a row of HF_FAMILY_LIST.
 * Which families hold a model is not written down anywhere: it is what the family writes about the model and reads back. */
#ifndef INGOT_MODEL_HF_INT_H
#define INGOT_MODEL_HF_INT_H
#include "model/hf.h"
#include "spec/keys.h"
#include <jansson.h>

/* In the order in which an export asks them; `ingot` holds everything. */
#define HF_FAMILY_LIST(X) X(gpt2) X(llama) X(mistral) X(qwen2) X(qwen3) X(qwen3_moe) X(qwen3_next) X(deepseek_v3) X(ingot)

/* ---- config.json */

/* One field of config.json and the key of model.def that it is. Its type is the key's. */
struct hf_field {
    int ours;             /* enum key_at, or HF_NOT_OURS */
    const char *name;     /* NULL: the family has always what `absent` says */
    const char *also;     /* another name that is read and written, too; NULL */
    const char *absent;   /* the value where config.json lacks it, as model.def writes it; NULL: it must be there */
    const char *null;     /* the value that JSON's null stands for, and that is written so; NULL: null is as if absent */
    const char *only;     /* HF_NOT_OURS: the one value, as JSON, that ingot computes */
};
enum { HF_NOT_OURS = -1 };
#define HF_NEEDED(key, field)               {KEY_AT_model_##key, field, NULL, NULL, NULL, NULL}
#define HF_KEY(key, field, other)           {KEY_AT_model_##key, field, NULL, other, NULL, NULL}
#define HF_NULL(key, field, other, if_null) {KEY_AT_model_##key, field, NULL, other, if_null, NULL}
#define HF_ALSO(key, field, second, other)  {KEY_AT_model_##key, field, second, other, NULL, NULL}
#define HF_ALWAYS(key, value)               {KEY_AT_model_##key, NULL, NULL, value, NULL, NULL}
#define HF_ONLY(field, json)                {HF_NOT_OURS, field, NULL, NULL, NULL, json}

/* What all but GPT-2 share. */
#define HF_LLAMA_FIELDS                                                                                                \
    HF_NEEDED(vocab_size, "vocab_size"), HF_NEEDED(hidden_size, "hidden_size"),                                        \
    HF_NEEDED(layer_count, "num_hidden_layers"), HF_NEEDED(head_count, "num_attention_heads"),                         \
    HF_NEEDED(ffn_size, "intermediate_size"), HF_NEEDED(context_length, "max_position_embeddings"),                    \
    HF_KEY(norm_eps, "rms_norm_eps", "1e-6"), HF_KEY(init_std, "initializer_range", "0.02"),                           \
    HF_KEY(tied_embeddings, "tie_word_embeddings", "false"), HF_ONLY("hidden_act", "\"silu\"")
/* Mixtures of experts as transformers names them; what absence means differs. */
#define HF_MOE_FIELDS(experts, top_k, size)                                                                            \
    HF_ALSO(moe_experts, "num_experts", "num_local_experts", experts), HF_KEY(moe_top_k, "num_experts_per_tok", top_k), \
    HF_KEY(moe_size, "moe_intermediate_size", size)
#define HF_ATTENTION_BIAS HF_KEY(qkv_bias, "attention_bias", "false"), HF_KEY(out_bias, "attention_bias", "false")

struct hf_reader {
    json_t *root;
    const char *path;
    status st;            /* the first failure; later reads return their defaults */
};
void hf_refuse(struct hf_reader *r, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A value that is there and not null; NULL otherwise. */
json_t *hf_value(json_t *from, const char *key);
enum hf_need { HF_REQUIRED, HF_OPTIONAL };
int64_t hf_read_int(struct hf_reader *r, const char *key, int64_t absent);
double hf_read_real(struct hf_reader *r, json_t *from, const char *key, enum hf_need need, double absent);
bool hf_read_bool(struct hf_reader *r, const char *key, bool absent);
const char *hf_read_text(struct hf_reader *r, json_t *from, const char *key, const char *absent);
void hf_set_int(json_t *j, const char *key, int64_t v);

void hf_fields_read(struct hf_reader *r, struct model_spec *m, const struct hf_field *fields, int count);
void hf_fields_write(json_t *j, const struct model_spec *m, const struct hf_field *fields, int count);

/* Rope, old style and new (hf_rope.c); `fraction`: partial_rotary_factor where it is absent. */
void hf_rope_read(struct hf_reader *r, struct model_spec *m, double fraction);
void hf_rope_write(json_t *j, const struct model_spec *m);
/* Rope of all of a head, and a window of at most the context: families that go no further (hf_llama.c). */
void hf_llama_read(struct hf_reader *r, struct model_spec *m);

/* model.layers from one entry per layer, and back (hf_layers.c). begin: all gqa/mlp; NULL when the number of layers is out of range, which
 * the check of the spec refuses. Both free with hf_layers_store or free(). */
struct layer_spec *hf_layers_begin(const struct model_spec *m);
void hf_layers_store(struct hf_reader *r, struct model_spec *m, struct layer_spec *layers);
/* A field with one word per layer, such as layer_types. A layer whose kind has none here is written with the word of model.layers. */
enum hf_layer_part { HF_MIXER, HF_FFN };
struct hf_word { int value; const char *word; };    /* enum mixer or enum ffn */
struct hf_layer_field { const char *name; enum hf_layer_part part; const struct hf_word *words; int count; };
#define HF_WORDS(array) .words = array, .count = (int)(sizeof(array) / sizeof(array[0]))
/* Where the field is absent the layers stay as they are. */
void hf_layer_field_read(struct hf_reader *r, const struct hf_layer_field *f, struct layer_spec *layers,
                         int64_t layer_count);
void hf_layer_field_write(json_t *j, const struct model_spec *m, const struct hf_layer_field *f);

/* ---- tensors */

struct hf_list {
    const struct decoder *d;
    struct hf_tensor *rows;
    int count, capacity;
};
/* A layer of the decoder, while its tensors are named. */
struct hf_layer {
    const struct model_spec *spec;
    const struct block *block;
    int64_t index;
    int64_t expert;       /* whose tensor it is, in a mixture of experts */
};
/* Says which rows of the parameter a tensor is, by hf_rows; all where it says nothing. False: this model has no such tensor. */
typedef bool hf_rows_fn(const struct hf_layer *l, struct hf_tensor *t);
struct hf_entry {
    const char *ours;     /* parameter, without "layers.N." inside a layer; skipped when the model has none of this name */
    const char *hf;       /* behind the prefix, and behind the layer's index inside a layer */
    hf_rows_fn *rows;     /* NULL: all */
};
struct hf_entries {
    const struct hf_entry *at;
    int count;
    void (*more)(struct hf_list *l, const struct hf_layer *layer, const char *prefix);    /* what a table cannot list; NULL */
};
#define HF_ENTRIES(array) {array, (int)(sizeof(array) / sizeof(array[0])), NULL}
void hf_add(struct hf_list *l, const struct hf_layer *layer, const char *prefix, const struct hf_entry *e);
/* The tensor goes on with `rows` rows, [begin, begin + rows) of the first group, the next ones of the second, and so on. */
void hf_rows(struct hf_tensor *t, int64_t begin, int64_t rows);
/* The names of Llama and of all that followed it: by the kinds of layers, whose tables hf_map.c lists. */
void hf_map_llama(struct hf_list *l);
extern const struct hf_entries hf_deltanet, hf_latent, hf_moe;

struct hf_family {
    const char *name, *architecture;    /* model_type; class of transformers */
    const struct hf_field *fields;
    int field_count;
    void (*read)(struct hf_reader *r, struct model_spec *m);
    void (*write)(json_t *j, const struct model_spec *m);
    void (*map)(struct hf_list *l);
    const char *left_out;               /* beginning of tensors' names that ingot has no use for and transformers drops, too; NULL */
};
#define HF_FIELDS(array) .fields = array, .field_count = (int)(sizeof(array) / sizeof(array[0]))
#define X(family) extern const struct hf_family hf_##family;
HF_FAMILY_LIST(X)
#undef X
/* The family that holds this model. */
status hf_family_find(const struct model_spec *m, const struct hf_family **family) WARN_UNUSED;
#endif
