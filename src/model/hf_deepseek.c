/* DeepSeek-V3: multi-head latent attention. Of its feed-forward parts the dense ones. */
#include "model/hf_int.h"

#include <stdlib.h>

/* ---- Latent attention. Ours: in = [q_a, or q without a rank | c | k_rope], kv = [k_nope of all heads | v of all heads]; HF's kv_b_proj:
 * [k_nope | v] head by head. Rotated pairs are neighbours on both sides. */

static const struct mla *mla_of(const struct hf_layer *l)
{
    return &l->block->mixer.mla;
}
static int64_t query_width(const struct mla *m)
{
    return m->heads * (m->nope + m->rope);
}

static bool rows_q_a(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    if (m->q_rank) hf_rows(t, 0, m->q_rank);
    return m->q_rank > 0;
}
static bool rows_q(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    if (m->q_rank == 0) hf_rows(t, 0, query_width(m));
    return m->q_rank == 0;
}
static bool rows_kv_a(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    hf_rows(t, m->q_rank ? m->q_rank : query_width(m), m->rank + m->rope);
    return true;
}
static bool rows_kv_b(const struct hf_layer *l, struct hf_tensor *t)
{
    const struct mla *m = mla_of(l);
    t->groups = m->heads;
    hf_rows(t, 0, m->nope);
    hf_rows(t, m->heads * m->nope, m->value);
    return true;
}
static const struct hf_entry latent[] = {
    {"mla.in.weight", "self_attn.q_a_proj.weight", rows_q_a},
    {"mla.in.weight", "self_attn.q_proj.weight", rows_q},
    {"mla.in.weight", "self_attn.kv_a_proj_with_mqa.weight", rows_kv_a},
    {"mla.q_norm.weight", "self_attn.q_a_layernorm.weight", NULL},
    {"mla.q.weight", "self_attn.q_b_proj.weight", NULL},
    {"mla.kv_norm.weight", "self_attn.kv_a_layernorm.weight", NULL},
    {"mla.kv.weight", "self_attn.kv_b_proj.weight", rows_kv_b},
    {"mla.out.weight", "self_attn.o_proj.weight", NULL},
};
const struct hf_entries hf_latent = HF_ENTRIES(latent);

/* ---- config.json */

static void read_v3(struct hf_reader *r, struct model_spec *m)
{
    const int64_t heads = hf_read_int(r, "num_key_value_heads", m->head_count),
                  dense = hf_read_int(r, "first_k_dense_replace", 3);
    if (heads != m->head_count)
        hf_refuse(r, "num_key_value_heads", "is %lld; ingot has %lld alone, all heads", (long long)heads,
                  (long long)m->head_count);
    if (dense < m->layer_count)
        hf_refuse(r, "first_k_dense_replace", "is %lld of %lld layers; ingot has no mixture of experts yet",
                  (long long)dense, (long long)m->layer_count);
    struct layer_spec *layers = hf_layers_begin(m);
    for (int64_t i = 0; layers && i < m->layer_count; i++) layers[i].mixer = MIXER_MLA;
    hf_layers_store(r, m, layers);
    hf_rope_read(r, m, 1);
    if (m->rope_fraction != 1)
        hf_refuse(r, "partial_rotary_factor", "is %g; ingot has 1 alone in this family", m->rope_fraction);
}

static void write_v3(json_t *j, const struct model_spec *m)
{
    hf_set_int(j, "num_key_value_heads", m->head_count);
    hf_set_int(j, "head_dim", m->mla_rope_dim); /* what transformers derives rope from */
    hf_set_int(j, "qk_head_dim", m->mla_nope_dim + m->mla_rope_dim);
    hf_set_int(j, "first_k_dense_replace", m->layer_count);
    hf_set_int(j, "num_nextn_predict_layers", 0);
    hf_rope_write(j, m);
}

static const struct hf_field v3[] = {
    HF_LLAMA_FIELDS,
    HF_ALWAYS(mla_heads, "0"),
    HF_NULL(mla_q_rank, "q_lora_rank", "1536", "0"),
    HF_KEY(mla_kv_rank, "kv_lora_rank", "512"),
    HF_KEY(mla_nope_dim, "qk_nope_head_dim", "128"),
    HF_KEY(mla_rope_dim, "qk_rope_head_dim", "64"),
    HF_KEY(mla_value_dim, "v_head_dim", "128"),
    HF_ONLY("rope_interleave", "true"),
    HF_ONLY("attention_bias", "false"),
};
/* The weights of multi-token prediction of DeepSeek-V3 itself are a layer behind the last. */
const struct hf_family hf_deepseek_v3 = {.name = "deepseek_v3",
                                         .architecture = "DeepseekV3ForCausalLM",
                                         HF_FIELDS(v3),
                                         .read = read_v3,
                                         .write = write_v3,
                                         .map = hf_map_llama,
                                         .left_out = "model.layers.61."};
