/* config.json, old style and new, to and from a model spec. */
#include "base/io.h"
#include "model/hf.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    json_t *root;
    const char *path;
    status st; /* the first failure; later reads return their defaults */
};

static void refuse(struct reader *r, const char *key, const char *why)
{
    if (r->st == STATUS_OK) r->st = FAIL(STATUS_CKPT, "%s: %s %s", r->path, key, why);
}

static json_t *value(struct reader *r, json_t *from, const char *key)
{
    (void)r;
    json_t *v = json_object_get(from, key);
    return json_is_null(v) ? NULL : v;
}

enum need { NEEDED, OPTIONAL };

static int64_t read_int(struct reader *r, const char *key, enum need need, int64_t other)
{
    json_t *v = value(r, r->root, key);
    if (v == NULL && need == NEEDED) refuse(r, key, "is missing");
    if (v == NULL) return other;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > (int64_t)1 << 40) {
        refuse(r, key, "is not a whole number in range");
        return other;
    }
    return json_integer_value(v);
}

/* A key that is absent stands for its family's default in transformers, one that is null for something else. */
static int64_t read_int_or(struct reader *r, const char *key, int64_t absent, int64_t null)
{
    return read_int(r, key, OPTIONAL, json_object_get(r->root, key) ? null : absent);
}

static double read_real(struct reader *r, json_t *from, const char *key, enum need need, double other)
{
    json_t *v = value(r, from, key);
    if (v == NULL && need == NEEDED) refuse(r, key, "is missing");
    if (v == NULL) return other;
    if (!json_is_number(v)) {
        refuse(r, key, "is not a number");
        return other;
    }
    return json_number_value(v);
}

static bool read_bool(struct reader *r, const char *key, bool other)
{
    json_t *v = value(r, r->root, key);
    if (v == NULL) return other;
    if (!json_is_boolean(v)) refuse(r, key, "is not true or false");
    return json_is_true(v);
}

static const char *read_text(struct reader *r, json_t *from, const char *key, const char *other)
{
    json_t *v = value(r, from, key);
    if (v == NULL) return other;
    if (!json_is_string(v)) {
        refuse(r, key, "is not a string");
        return other;
    }
    return json_string_value(v);
}

/* The object that describes rope: rope_scaling of the old style where it says something (transformers prefers it too), else
 * rope_parameters. NULL: neither. */
static json_t *rope_object(struct reader *r)
{
    json_t *p = value(r, r->root, "rope_scaling"), *each;
    const char *name = "rope_scaling", *key;
    if (p == NULL || json_object_size(p) == 0) p = value(r, r->root, name = "rope_parameters");
    if (p && !json_is_object(p)) refuse(r, name, "is not an object");
    json_object_foreach(p, key, each) if (json_is_object(each))
        refuse(r, name, "differs between layer types");
    return p;
}

/* The context length before extension; beside the object it counts more, as in transformers. */
static int64_t read_original(struct reader *r, json_t *p, int64_t context)
{
    double n = read_real(r, p, "original_max_position_embeddings", OPTIONAL, (double)context);
    n = read_real(r, r->root, "original_max_position_embeddings", OPTIONAL, n);
    if (n >= 0 && n <= 1e8 && n == floor(n)) return (int64_t)n;
    refuse(r, "original_max_position_embeddings", "is not a whole number in range");
    return context;
}

/* Rope: {rope_type, rope_theta, ...} under rope_parameters, or rope_theta beside rope_scaling {type | rope_type, ...}. */
static void read_rope(struct reader *r, struct model_spec *m)
{
    json_t *p = rope_object(r);
    m->rope_theta = read_real(r, r->root, "rope_theta", OPTIONAL, 10000);
    double fraction = read_real(r, r->root, "partial_rotary_factor", OPTIONAL, 1);
    if (p) fraction = read_real(r, p, "partial_rotary_factor", OPTIONAL, fraction);
    if (fraction != 1) refuse(r, "partial_rotary_factor", "is not 1");
    if (p == NULL || r->st != STATUS_OK) return;
    m->rope_theta = read_real(r, p, "rope_theta", OPTIONAL, m->rope_theta);
    const char *type = read_text(r, p, "rope_type", read_text(r, p, "type", "default"));
    if (strcmp(type, "default") == 0) return;
    m->rope_factor = read_real(r, p, "factor", NEEDED, 1);
    if (strcmp(type, "linear") == 0) {
        m->rope_scaling = SCALING_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        m->rope_scaling = SCALING_LLAMA3;
        m->rope_original = read_original(r, p, m->context_length);
        m->rope_low_freq = read_real(r, p, "low_freq_factor", NEEDED, 1);
        m->rope_high_freq = read_real(r, p, "high_freq_factor", NEEDED, 4);
    } else if (strcmp(type, "yarn") == 0) {
        m->rope_scaling = SCALING_YARN;
        m->rope_original = read_original(r, p, m->context_length);
        m->rope_beta_fast = read_real(r, p, "beta_fast", OPTIONAL, 32);
        m->rope_beta_slow = read_real(r, p, "beta_slow", OPTIONAL, 1);
        m->rope_attention_factor = read_real(r, p, "attention_factor", OPTIONAL, 0);
        m->rope_mscale = read_real(r, p, "mscale", OPTIONAL, 0);
        m->rope_mscale_all_dim = read_real(r, p, "mscale_all_dim", OPTIONAL, 0);
        if (json_is_false(json_object_get(p, "truncate")))
            refuse(r, "rope_parameters.truncate", "= false is not supported");
    } else {
        refuse(r, "rope_type", "is none of default, linear, llama3, yarn");
    }
}

static void read_window_layers(struct reader *r, struct model_spec *m)
{
    json_t *types = value(r, r->root, "layer_types");
    int64_t first = read_int(r, "max_window_layers", OPTIONAL, 28);
    size_t at = 0;
    int64_t windowed = 0;
    m->window_layers[0] = 0;
    for (int64_t i = 0; i < m->layer_count && i < 10000; i++) {
        bool window = i >= first;
        if (json_is_array(types)) {
            const char *type = json_string_value(json_array_get(types, (size_t)i));
            window = type && strcmp(type, "sliding_attention") == 0;
            if (!window && (type == NULL || strcmp(type, "full_attention") != 0))
                refuse(r, "layer_types", "has an entry that is neither full_attention nor sliding_attention");
        }
        if (!window) continue;
        windowed++;
        int n = snprintf(m->window_layers + at, sizeof m->window_layers - at, "%s%lld", at ? "," : "",
                         (long long)i);
        at += (size_t)n;
        if (at >= sizeof m->window_layers) {
            refuse(r, "layer_types", "lists more window layers than a model spec can hold");
            return;
        }
    }
    if (windowed == m->layer_count) snprintf(m->window_layers, sizeof m->window_layers, "all");
    if (windowed == 0) m->window = 0;
    if (m->window == 0) snprintf(m->window_layers, sizeof m->window_layers, "all");
}

static void read_gpt2(struct reader *r, struct model_spec *m)
{
    m->hidden_size = read_int(r, "n_embd", NEEDED, 0);
    m->layer_count = read_int(r, "n_layer", NEEDED, 0);
    m->head_count = read_int(r, "n_head", NEEDED, 0);
    m->context_length = read_int(r, "n_positions", NEEDED, 0);
    m->ffn_size = read_int(r, "n_inner", OPTIONAL, 4 * m->hidden_size);
    m->norm_eps = read_real(r, r->root, "layer_norm_epsilon", OPTIONAL, 1e-5);
    m->norm = NORM_LAYERNORM;
    m->activation = ACT_GELU;
    m->position = POS_LEARNED;
    m->qkv_bias = m->out_bias = m->mlp_bias = true;
    const char *act = read_text(r, r->root, "activation_function", "gelu_new");
    if (strcmp(act, "gelu_new") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        refuse(r, "activation_function", "is not gelu_new");
    if (!read_bool(r, "scale_attn_weights", true))
        refuse(r, "scale_attn_weights", "= false is not supported");
    if (read_bool(r, "scale_attn_by_inverse_layer_idx", false))
        refuse(r, "scale_attn_by_inverse_layer_idx", "= true is not supported");
    if (read_bool(r, "add_cross_attention", false))
        refuse(r, "add_cross_attention", "= true is not supported");
}

static void read_llama(struct reader *r, struct model_spec *m, const char *type)
{
    bool qwen2 = strcmp(type, "qwen2") == 0, qwen = qwen2 || strcmp(type, "qwen3") == 0,
         mistral = strcmp(type, "mistral") == 0;
    m->hidden_size = read_int(r, "hidden_size", NEEDED, 0);
    m->layer_count = read_int(r, "num_hidden_layers", NEEDED, 0);
    m->head_count = read_int(r, "num_attention_heads", NEEDED, 0);
    m->head_count_kv = read_int_or(r, "num_key_value_heads",
                                   qwen      ? 32
                                   : mistral ? 8
                                             : m->head_count,
                                   m->head_count);
    int64_t even = m->head_count ? m->hidden_size / m->head_count : 0;
    m->head_dim = read_int_or(r, "head_dim", qwen && !qwen2 ? 128 : even, even);
    m->ffn_size = read_int(r, "intermediate_size", NEEDED, 0);
    m->context_length = read_int(r, "max_position_embeddings", NEEDED, 0);
    m->norm_eps = read_real(r, r->root, "rms_norm_eps", OPTIONAL, 1e-6);
    m->qk_norm = strcmp(type, "qwen3") == 0;
    bool bias = !qwen2 && !mistral && read_bool(r, "attention_bias", false);
    m->qkv_bias = qwen2 || bias;
    m->out_bias = bias;
    m->mlp_bias = !qwen && !mistral && read_bool(r, "mlp_bias", false);
    if (strcmp(read_text(r, r->root, "hidden_act", "silu"), "silu") != 0)
        refuse(r, "hidden_act", "is not silu");
    if (mistral || (qwen && read_bool(r, "use_sliding_window", false)))
        m->window = read_int_or(r, "sliding_window", 4096, 0);
    if (m->window > m->context_length) m->window = m->context_length; /* within the context the same */
    read_rope(r, m);
    if (m->window && qwen) read_window_layers(r, m);
}

static void read_all(struct reader *r, struct model_spec *m)
{
    static const char *const types[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
    const char *type = read_text(r, r->root, "model_type", "");
    bool known = false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) known = known || strcmp(type, types[i]) == 0;
    if (!known) {
        r->st =
            FAIL(STATUS_CKPT,
                 "%s: model_type '%.40s' is not supported; ingot reads gpt2, llama, mistral, qwen2 and qwen3",
                 r->path, type);
        return;
    }
    m->vocab_size = read_int(r, "vocab_size", NEEDED, 0);
    m->tied_embeddings = read_bool(r, "tie_word_embeddings", strcmp(type, "gpt2") == 0);
    m->init_std = read_real(r, r->root, "initializer_range", OPTIONAL, 0.02);
    if (strcmp(type, "gpt2") == 0)
        read_gpt2(r, m);
    else
        read_llama(r, m, type);
}

status hf_config_parse(struct model_spec *m, const char *name, const char *text, size_t bytes)
{
    json_error_t e;
    struct reader r = {.path = name, .root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e)};
    if (r.root == NULL) return FAIL(STATUS_CKPT, "%s:%d:%d: %s", name, e.line, e.column, e.text);
    model_spec_default(m);
    if (json_is_object(r.root))
        read_all(&r, m);
    else
        r.st = FAIL(STATUS_CKPT, "%s is not a JSON object", name);
    json_decref(r.root);
    TRY(r.st);
    model_spec_resolve(m);
    status st = model_spec_check(m);
    return st == STATUS_OK ? st : FAIL(STATUS_CKPT, "%s: %s", name, status_message());
}

status hf_config_read(struct model_spec *m, const char *dir)
{
    char path[1024], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/config.json", dir);
    TRY(io_read_file(path, 16 << 20, &text, &bytes));
    status st = hf_config_parse(m, path, text, bytes);
    free(text);
    return st;
}

status hf_family(const struct model_spec *m, const char **family)
{
    bool no_bias = !m->qkv_bias && !m->out_bias && !m->mlp_bias;
    if (model_mixer_count(m, MIXER_GDN) > 0)
        return FAIL(STATUS_CONFIG, "model.layers '%.64s': layers of gdn have no HF form here yet", m->layers);
    if (m->norm == NORM_LAYERNORM && m->activation == ACT_GELU && m->position == POS_LEARNED) {
        if (!m->qkv_bias || !m->out_bias || !m->mlp_bias)
            return FAIL(STATUS_CONFIG, "no HF family: gpt2 has all biases (qkv_bias, out_bias, mlp_bias)");
        if (m->qk_norm) return FAIL(STATUS_CONFIG, "no HF family: gpt2 has no qk_norm");
        if (m->window) return FAIL(STATUS_CONFIG, "no HF family: gpt2 has no window");
        if ((m->head_count_kv && m->head_count_kv != m->head_count) ||
            (m->head_dim && m->head_dim * m->head_count != m->hidden_size))
            return FAIL(
                STATUS_CONFIG,
                "no HF family: gpt2 has head_count_kv = head_count and head_dim = hidden_size / head_count");
        *family = "gpt2";
        return STATUS_OK;
    }
    if (m->norm != NORM_RMSNORM || m->activation != ACT_SWIGLU || m->position != POS_ROPE)
        return FAIL(STATUS_CONFIG, "no HF family mixes these values of norm, activation and position");
    if (m->rope_fraction != 1)
        return FAIL(STATUS_CONFIG, "no HF family: rope_fraction is 1 in llama, mistral, qwen2 and qwen3");
    bool some_windows = false;
    for (int64_t i = 0; i < m->layer_count && m->window; i++) some_windows |= !model_layer_window(m, i);
    if (m->qk_norm && m->qkv_bias == m->out_bias && !m->mlp_bias)
        *family = "qwen3";
    else if (m->qkv_bias && !m->out_bias && !m->mlp_bias && !m->qk_norm)
        *family = "qwen2";
    else if (no_bias && m->window && !some_windows)
        *family = "mistral";
    else if (m->qkv_bias == m->out_bias && !m->window && !m->qk_norm)
        *family = "llama";
    else
        return FAIL(STATUS_CONFIG, "no HF family has this combination of qk_norm, biases and window");
    return STATUS_OK;
}

static json_t *rope_json(const struct model_spec *m, bool with_theta)
{
    static const char *const types[] = {[SCALING_NONE] = "default",
                                        [SCALING_LINEAR] = "linear",
                                        [SCALING_LLAMA3] = "llama3",
                                        [SCALING_YARN] = "yarn"};
    json_t *p = json_pack("{s:s}", "rope_type", types[m->rope_scaling]);
    if (with_theta) json_object_set_new(p, "rope_theta", json_real(m->rope_theta));
    if (m->rope_scaling == SCALING_NONE) return p;
    json_object_set_new(p, "factor", json_real(m->rope_factor));
    if (m->rope_scaling == SCALING_LINEAR) return p;
    json_object_set_new(p, "original_max_position_embeddings", json_integer(m->rope_original));
    if (m->rope_scaling == SCALING_LLAMA3) {
        json_object_set_new(p, "low_freq_factor", json_real(m->rope_low_freq));
        json_object_set_new(p, "high_freq_factor", json_real(m->rope_high_freq));
        return p;
    }
    json_object_set_new(p, "beta_fast", json_real(m->rope_beta_fast));
    json_object_set_new(p, "beta_slow", json_real(m->rope_beta_slow));
    if (m->rope_attention_factor != 0)
        json_object_set_new(p, "attention_factor", json_real(m->rope_attention_factor));
    if (m->rope_mscale != 0) json_object_set_new(p, "mscale", json_real(m->rope_mscale));
    if (m->rope_mscale_all_dim != 0)
        json_object_set_new(p, "mscale_all_dim", json_real(m->rope_mscale_all_dim));
    return p;
}

static void set_int(json_t *j, const char *key, int64_t v)
{
    json_object_set_new(j, key, json_integer(v));
}

static json_t *gpt2_json(const struct model_spec *m)
{
    json_t *j = json_pack("{s:[s], s:s, s:f, s:b}", "architectures", "GPT2LMHeadModel", "activation_function",
                          "gelu_new", "layer_norm_epsilon", m->norm_eps, "scale_attn_weights", 1);
    set_int(j, "n_embd", m->hidden_size);
    set_int(j, "n_layer", m->layer_count);
    set_int(j, "n_head", m->head_count);
    set_int(j, "n_positions", m->context_length);
    set_int(j, "n_ctx", m->context_length);
    set_int(j, "n_inner", m->ffn_size);
    return j;
}

static void set_windows(json_t *j, const struct model_spec *m)
{
    json_t *types = json_array();
    int64_t first = m->layer_count;
    for (int64_t i = m->layer_count - 1; i >= 0 && m->window && model_layer_window(m, i); i--) first = i;
    for (int64_t i = 0; i < m->layer_count; i++)
        json_array_append_new(types, json_string(m->window && model_layer_window(m, i) ? "sliding_attention"
                                                                                       : "full_attention"));
    json_object_set_new(j, "layer_types", types);
    json_object_set_new(j, "use_sliding_window", json_boolean(m->window > 0));
    json_object_set_new(j, "sliding_window", m->window ? json_integer(m->window) : json_null());
    set_int(j, "max_window_layers", first);
}

static json_t *llama_json(const struct model_spec *m, const char *family)
{
    static const struct {
        const char *family, *architecture;
    } names[] = {{"llama", "LlamaForCausalLM"},
                 {"mistral", "MistralForCausalLM"},
                 {"qwen2", "Qwen2ForCausalLM"},
                 {"qwen3", "Qwen3ForCausalLM"}};
    const char *architecture = "";
    for (size_t i = 0; i < 4; i++)
        if (strcmp(names[i].family, family) == 0) architecture = names[i].architecture;
    json_t *j = json_pack("{s:[s], s:s, s:f, s:f}", "architectures", architecture, "hidden_act", "silu",
                          "rms_norm_eps", m->norm_eps, "rope_theta", m->rope_theta);
    set_int(j, "hidden_size", m->hidden_size);
    set_int(j, "num_hidden_layers", m->layer_count);
    set_int(j, "num_attention_heads", m->head_count);
    set_int(j, "num_key_value_heads", m->head_count_kv ? m->head_count_kv : m->head_count);
    set_int(j, "head_dim", m->head_dim ? m->head_dim : m->hidden_size / m->head_count);
    set_int(j, "intermediate_size", m->ffn_size);
    set_int(j, "max_position_embeddings", m->context_length);
    json_object_set_new(j, "rope_parameters", rope_json(m, true));
    json_object_set_new(j, "rope_scaling",
                        m->rope_scaling == SCALING_NONE ? json_null() : rope_json(m, false));
    bool qwen = family[0] == 'q';
    if (strcmp(family, "qwen2") != 0) json_object_set_new(j, "attention_bias", json_boolean(m->qkv_bias));
    if (strcmp(family, "llama") == 0) json_object_set_new(j, "mlp_bias", json_boolean(m->mlp_bias));
    if (strcmp(family, "mistral") == 0) set_int(j, "sliding_window", m->window);
    if (qwen) set_windows(j, m);
    return j;
}

status hf_config_format(char **text, const struct model_spec *m, dtype dt, int32_t bos, int32_t eos)
{
    const char *family, *type = dt == DTYPE_BF16 ? "bfloat16" : "float32";
    TRY(hf_family(m, &family));
    json_t *j = strcmp(family, "gpt2") == 0 ? gpt2_json(m) : llama_json(m, family);
    json_object_set_new(j, "model_type", json_string(family));
    set_int(j, "vocab_size", m->vocab_size);
    json_object_set_new(j, "tie_word_embeddings", json_boolean(m->tied_embeddings));
    json_object_set_new(j, "initializer_range", json_real(m->init_std));
    json_object_set_new(j, "use_cache", json_true());
    json_object_set_new(j, "dtype", json_string(type));
    json_object_set_new(j, "torch_dtype", json_string(type));
    json_object_set_new(j, "bos_token_id", bos >= 0 ? json_integer(bos) : json_null());
    json_object_set_new(j, "eos_token_id", eos >= 0 ? json_integer(eos) : json_null());
    *text = json_dumps(j, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(j);
    return *text ? STATUS_OK : FAIL(STATUS_FIT, "no memory for config.json");
}

status hf_config_write(const struct model_spec *m, const char *dir, dtype dt, int32_t bos, int32_t eos)
{
    char path[1024], *text;
    TRY(hf_config_format(&text, m, dt, bos, eos));
    snprintf(path, sizeof path, "%s/config.json", dir);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}
