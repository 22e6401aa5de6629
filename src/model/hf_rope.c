/* RoPE in config.json: {rope_type, rope_theta, ...} under rope_parameters, or rope_theta and rope_scaling {type |
 * rope_type, ...}. Both are written. */
#include "model/hf_int.h"

#include <math.h>
#include <string.h>

/* The object that describes rope: the older rope_scaling if it is not empty (transformers prefers it, too),
 * else rope_parameters. NULL: neither. */
static json_t *rope_object(struct hf_reader *r)
{
    json_t *p = hf_value(r->root, "rope_scaling"), *each;
    const char *name = "rope_scaling", *key;
    if (p == NULL || json_object_size(p) == 0) p = hf_value(r->root, name = "rope_parameters");
    if (p && !json_is_object(p)) hf_refuse(r, name, "is not an object");
    json_object_foreach(p, key, each) if (json_is_object(each))
        hf_refuse(r, name, "differs between layer types");
    return p;
}

/* The context length before extension. The field beside the object wins over the field inside it, as in
 * transformers. */
static int64_t read_original(struct hf_reader *r, json_t *p, int64_t context)
{
    double n = hf_read_real(r, p, "original_max_position_embeddings", HF_OPTIONAL, (double)context);
    n = hf_read_real(r, r->root, "original_max_position_embeddings", HF_OPTIONAL, n);
    if (n >= 0 && n <= 1e8 && n == floor(n)) return (int64_t)n;
    hf_refuse(r, "original_max_position_embeddings", "is not a whole number in range");
    return context;
}

static void read_scaling(struct hf_reader *r, struct model_spec *m, json_t *p, const char *type)
{
    m->rope_factor = hf_read_real(r, p, "factor", HF_REQUIRED, 1);
    if (strcmp(type, "linear") == 0) {
        m->rope_scaling = SCALING_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        m->rope_scaling = SCALING_LLAMA3;
        m->rope_original = read_original(r, p, m->context_length);
        m->rope_low_freq = hf_read_real(r, p, "low_freq_factor", HF_REQUIRED, 1);
        m->rope_high_freq = hf_read_real(r, p, "high_freq_factor", HF_REQUIRED, 4);
    } else if (strcmp(type, "yarn") == 0) {
        m->rope_scaling = SCALING_YARN;
        m->rope_original = read_original(r, p, m->context_length);
        m->rope_beta_fast = hf_read_real(r, p, "beta_fast", HF_OPTIONAL, 32);
        m->rope_beta_slow = hf_read_real(r, p, "beta_slow", HF_OPTIONAL, 1);
        m->rope_attention_factor = hf_read_real(r, p, "attention_factor", HF_OPTIONAL, 0);
        m->rope_mscale = hf_read_real(r, p, "mscale", HF_OPTIONAL, 0);
        m->rope_mscale_all_dim = hf_read_real(r, p, "mscale_all_dim", HF_OPTIONAL, 0);
        if (json_is_false(json_object_get(p, "truncate")))
            hf_refuse(r, "rope_parameters.truncate", "is false; ingot has true alone");
    } else {
        hf_refuse(r, "rope_type", "is none of default, linear, llama3, yarn");
    }
}

void hf_rope_read(struct hf_reader *r, struct model_spec *m, double fraction)
{
    json_t *p = rope_object(r);
    m->rope_theta = hf_read_real(r, r->root, "rope_theta", HF_OPTIONAL, 10000);
    m->rope_fraction = hf_read_real(r, r->root, "partial_rotary_factor", HF_OPTIONAL, fraction);
    if (p == NULL || r->st != STATUS_OK) return;
    m->rope_theta = hf_read_real(r, p, "rope_theta", HF_OPTIONAL, m->rope_theta);
    m->rope_fraction = hf_read_real(r, p, "partial_rotary_factor", HF_OPTIONAL, m->rope_fraction);
    const char *type = hf_read_text(r, p, "rope_type", hf_read_text(r, p, "type", "default"));
    if (strcmp(type, "default") != 0) read_scaling(r, m, p, type);
}

static json_t *rope_json(const struct model_spec *m)
{
    static const char *const types[] = {[SCALING_NONE] = "default",
                                        [SCALING_LINEAR] = "linear",
                                        [SCALING_LLAMA3] = "llama3",
                                        [SCALING_YARN] = "yarn"};
    json_t *p = json_pack("{s:s}", "rope_type", types[m->rope_scaling]);
    if (m->rope_scaling == SCALING_NONE) return p;
    json_object_set_new(p, "factor", json_real(m->rope_factor));
    if (m->rope_scaling == SCALING_LINEAR) return p;
    hf_set_int(p, "original_max_position_embeddings", m->rope_original);
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

void hf_rope_write(json_t *j, const struct model_spec *m)
{
    json_t *p = rope_json(m);
    json_object_set_new(p, "rope_theta", json_real(m->rope_theta));
    if (m->rope_fraction != 1) {
        json_object_set_new(p, "partial_rotary_factor", json_real(m->rope_fraction));
        json_object_set_new(j, "partial_rotary_factor", json_real(m->rope_fraction));
    }
    json_object_set_new(j, "rope_parameters", p);
    json_object_set_new(j, "rope_theta", json_real(m->rope_theta));
    json_object_set_new(j, "rope_scaling", m->rope_scaling == SCALING_NONE ? json_null() : rope_json(m));
}
