/* Any bytes as a config.json: refused with words, or a model whose spec is sound, and which, where a family can hold it, is written
 * and read back as the same model. Nothing is allocated by what the numbers say. */
#include "model/hf.h"
#include "json_mutator.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* One of each family. */
static const char *const samples[] = {
    "{\"attention_bias\":false,\"head_dim\":8,\"hidden_act\":\"silu\",\"hidden_size\":32,\"initializer_"
    "range\":0.2,"
    "\"intermediate_size\":40,\"max_position_embeddings\":64,\"mlp_bias\":false,\"model_type\":\"llama\","
    "\"num_attention_heads\":4,"
    "\"num_hidden_layers\":2,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":false,"
    "\"vocab_size\":48,"
    "\"rope_theta\":10000.0,\"torch_dtype\":\"float32\",\"rope_scaling\":{\"factor\":8.0,\"high_freq_"
    "factor\":4.0,"
    "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":16,\"rope_type\":\"llama3\"}}",
    "{\"attention_bias\":false,\"dtype\":\"float32\",\"head_dim\":8,\"hidden_act\":\"silu\",\"hidden_size\":"
    "32,"
    "\"initializer_range\":0.2,\"intermediate_size\":40,\"max_position_embeddings\":64,\"mlp_bias\":false,"
    "\"model_type\":\"llama\","
    "\"num_attention_heads\":4,\"num_hidden_layers\":2,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,"
    "\"rope_parameters\":{\"factor\":4.0,\"original_max_position_embeddings\":16,\"rope_theta\":10000.0,"
    "\"rope_type\":\"yarn\"},"
    "\"tie_word_embeddings\":false,\"vocab_size\":48}",
    "{\"attention_bias\":false,\"dtype\":\"float32\",\"head_dim\":8,\"hidden_act\":\"silu\",\"hidden_size\":"
    "32,"
    "\"initializer_range\":0.2,\"intermediate_size\":40,\"max_position_embeddings\":64,\"mlp_bias\":false,"
    "\"model_type\":\"llama\","
    "\"num_attention_heads\":4,\"num_hidden_layers\":2,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,"
    "\"rope_parameters\":{\"factor\":4.0,\"rope_theta\":10000.0,\"rope_type\":\"linear\"},\"tie_word_"
    "embeddings\":false,"
    "\"vocab_size\":48}",
    "{\"dtype\":\"float32\",\"head_dim\":8,\"hidden_act\":\"silu\",\"hidden_size\":32,\"initializer_range\":"
    "0.2,"
    "\"intermediate_size\":40,\"max_position_embeddings\":64,\"model_type\":\"mistral\",\"num_attention_"
    "heads\":4,"
    "\"num_hidden_layers\":2,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"rope_"
    "theta\":10000.0,"
    "\"rope_type\":\"default\"},\"sliding_window\":7,\"tie_word_embeddings\":false,\"vocab_size\":48}",
    "{\"activation_function\":\"gelu_new\",\"add_cross_attention\":false,\"attn_pdrop\":0,\"dtype\":"
    "\"float32\",\"embd_pdrop\":0,"
    "\"initializer_range\":0.2,\"layer_norm_epsilon\":1e-05,\"model_type\":\"gpt2\",\"n_embd\":32,\"n_head\":"
    "4,\"n_inner\":null,"
    "\"n_layer\":2,\"n_positions\":64,\"reorder_and_upcast_attn\":false,\"resid_pdrop\":0,\"scale_attn_by_"
    "inverse_layer_idx\":false,"
    "\"scale_attn_weights\":true,\"summary_activation\":null,\"summary_first_dropout\":0.1,\"summary_proj_to_"
    "labels\":true,"
    "\"summary_type\":\"cls_index\",\"summary_use_proj\":true,\"tie_word_embeddings\":true,\"vocab_size\":"
    "48}",
    "{\"hidden_act\":\"silu\",\"hidden_size\":32,\"initializer_range\":0.2,\"intermediate_size\":40,\"max_"
    "position_embeddings\":64,"
    "\"max_window_layers\":1,\"model_type\":\"qwen2\",\"num_attention_heads\":4,\"num_hidden_layers\":2,"
    "\"num_key_value_heads\":2,"
    "\"rms_norm_eps\":1e-05,\"sliding_window\":7,\"tie_word_embeddings\":true,\"use_sliding_window\":true,"
    "\"vocab_size\":48,"
    "\"rope_theta\":10000.0,\"torch_dtype\":\"float32\",\"rope_scaling\":null}",
    "{\"attention_bias\":false,\"dtype\":\"float32\",\"head_dim\":16,\"hidden_act\":\"silu\",\"hidden_size\":"
    "32,"
    "\"initializer_range\":0.2,\"intermediate_size\":40,\"layer_types\":[\"full_attention\",\"full_"
    "attention\"],"
    "\"max_position_embeddings\":64,\"max_window_layers\":28,\"model_type\":\"qwen3\",\"num_attention_"
    "heads\":4,"
    "\"num_hidden_layers\":2,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,\"rope_parameters\":{\"rope_"
    "theta\":10000.0,"
    "\"rope_type\":\"default\"},\"sliding_window\":null,\"tie_word_embeddings\":false,\"use_sliding_window\":"
    "false,\"vocab_size\":48}",
    "{\"attention_bias\":false,\"decoder_sparse_step\":1,\"dtype\":\"float32\",\"head_dim\":16,\"hidden_"
    "act\":\"silu\","
    "\"hidden_size\":32,\"initializer_range\":0.2,\"intermediate_size\":40,\"max_position_embeddings\":64,"
    "\"mlp_only_layers\":[1],"
    "\"model_type\":\"qwen3_moe\",\"moe_intermediate_size\":20,\"norm_topk_prob\":true,\"num_attention_"
    "heads\":4,"
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":3,\"num_key_value_heads\":2,\"num_local_experts\":6,"
    "\"rms_norm_eps\":1e-05,"
    "\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"},\"router_aux_loss_coef\":0.001,"
    "\"sliding_window\":null,"
    "\"tie_word_embeddings\":false,\"use_sliding_window\":false,\"vocab_size\":48}",
    "{\"attention_bias\":false,\"decoder_sparse_step\":1,\"dtype\":\"float32\",\"head_dim\":16,\"hidden_"
    "act\":\"silu\","
    "\"hidden_size\":32,\"initializer_range\":0.08,\"intermediate_size\":40,\"layer_types\":[\"linear_"
    "attention\","
    "\"full_attention\"],\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":8,\"linear_num_key_heads\":2,"
    "\"linear_num_value_heads\":4,\"linear_value_head_dim\":12,\"max_position_embeddings\":160,\"mlp_only_"
    "layers\":[],"
    "\"model_type\":\"qwen3_next\",\"moe_intermediate_size\":20,\"norm_topk_prob\":true,\"num_attention_"
    "heads\":4,\"num_experts\":6,"
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":2,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-05,"
    "\"rope_parameters\":{\"partial_rotary_factor\":0.25,\"rope_theta\":10000.0,\"rope_type\":\"default\"},"
    "\"router_aux_loss_coef\":0.001,\"shared_expert_intermediate_size\":12,\"tie_word_embeddings\":false,"
    "\"vocab_size\":48}",
    "{\"attention_bias\":false,\"dtype\":\"float32\",\"first_k_dense_replace\":2,\"head_dim\":8,\"hidden_"
    "act\":\"silu\","
    "\"hidden_size\":32,\"initializer_range\":0.2,\"intermediate_size\":40,\"kv_lora_rank\":14,\"max_"
    "position_embeddings\":64,"
    "\"model_type\":\"deepseek_v3\",\"moe_intermediate_size\":2048,\"n_group\":8,\"n_routed_experts\":256,"
    "\"n_shared_experts\":1,"
    "\"norm_topk_prob\":true,\"num_attention_heads\":3,\"num_experts_per_tok\":8,\"num_hidden_layers\":2,"
    "\"num_key_value_heads\":3,"
    "\"num_nextn_predict_layers\":1,\"q_lora_rank\":null,\"qk_head_dim\":18,\"qk_nope_head_dim\":10,\"qk_"
    "rope_head_dim\":8,"
    "\"rms_norm_eps\":1e-05,\"rope_interleave\":true,\"rope_parameters\":{\"factor\":4.0,\"mscale\":0.7,"
    "\"mscale_all_dim\":1.3,"
    "\"original_max_position_embeddings\":16,\"rope_theta\":10000.0,\"rope_type\":\"yarn\"},\"routed_scaling_"
    "factor\":2.5,"
    "\"tie_word_embeddings\":false,\"topk_group\":4,\"v_head_dim\":12,\"vocab_size\":48}",
    "{\"model_type\":\"ingot\",\"vocab_size\":8,\"hidden_size\":8,\"num_hidden_layers\":3,\"num_attention_"
    "heads\":2,"
    "\"intermediate_size\":8,\"max_position_embeddings\":8,\"sliding_window\":4,\"layer_types\":[\"linear_"
    "attention\","
    "\"sliding_attention\",\"full_attention\"],\"ffn_types\":[\"mlp\",\"mlp\",\"mlp\"],\"linear_num_key_"
    "heads\":1,"
    "\"linear_num_value_heads\":2,\"qk_norm\":true,\"activation\":\"gelu\",\"attention_gate\":true,\"partial_"
    "rotary_factor\":0.5}",
    NULL};
static const char *const words[] = {"5.23.0",
                                    "DeepseekV3ForCausalLM",
                                    "GPT2LMHeadModel",
                                    "LlamaForCausalLM",
                                    "MistralForCausalLM",
                                    "Qwen2ForCausalLM",
                                    "Qwen3ForCausalLM",
                                    "Qwen3MoeForCausalLM",
                                    "Qwen3NextForCausalLM",
                                    "activation",
                                    "activation_function",
                                    "add_cross_attention",
                                    "architectures",
                                    "attention_bias",
                                    "attention_dropout",
                                    "attention_gate",
                                    "attn_pdrop",
                                    "bos_token_id",
                                    "cls_index",
                                    "decoder_sparse_step",
                                    "deepseek_v3",
                                    "default",
                                    "dtype",
                                    "embd_pdrop",
                                    "eos_token_id",
                                    "factor",
                                    "ffn_types",
                                    "first_k_dense_replace",
                                    "float32",
                                    "full_attention",
                                    "gelu",
                                    "gelu_new",
                                    "gpt2",
                                    "head_dim",
                                    "hidden_act",
                                    "hidden_size",
                                    "high_freq_factor",
                                    "ingot",
                                    "initializer_range",
                                    "intermediate_size",
                                    "kv_lora_rank",
                                    "layer_norm_epsilon",
                                    "layer_types",
                                    "linear",
                                    "linear_attention",
                                    "linear_conv_kernel_dim",
                                    "linear_key_head_dim",
                                    "linear_num_key_heads",
                                    "linear_num_value_heads",
                                    "linear_value_head_dim",
                                    "llama",
                                    "llama3",
                                    "low_freq_factor",
                                    "max_position_embeddings",
                                    "max_window_layers",
                                    "mistral",
                                    "mlp",
                                    "mlp_bias",
                                    "mlp_only_layers",
                                    "model_type",
                                    "moe_intermediate_size",
                                    "mscale",
                                    "mscale_all_dim",
                                    "n_embd",
                                    "n_group",
                                    "n_head",
                                    "n_inner",
                                    "n_layer",
                                    "n_positions",
                                    "n_routed_experts",
                                    "n_shared_experts",
                                    "norm_topk_prob",
                                    "num_attention_heads",
                                    "num_experts",
                                    "num_experts_per_tok",
                                    "num_hidden_layers",
                                    "num_key_value_heads",
                                    "num_local_experts",
                                    "num_nextn_predict_layers",
                                    "original_max_position_embeddings",
                                    "output_router_logits",
                                    "pad_token_id",
                                    "partial_rotary_factor",
                                    "pretraining_tp",
                                    "q_lora_rank",
                                    "qk_head_dim",
                                    "qk_nope_head_dim",
                                    "qk_norm",
                                    "qk_rope_head_dim",
                                    "quant_method",
                                    "quantization_config",
                                    "qwen2",
                                    "qwen3",
                                    "qwen3_moe",
                                    "qwen3_next",
                                    "reorder_and_upcast_attn",
                                    "resid_pdrop",
                                    "rms_norm_eps",
                                    "rope_interleave",
                                    "rope_parameters",
                                    "rope_scaling",
                                    "rope_theta",
                                    "rope_type",
                                    "routed_scaling_factor",
                                    "router_aux_loss_coef",
                                    "scale_attn_by_inverse_layer_idx",
                                    "scale_attn_weights",
                                    "shared_expert_intermediate_size",
                                    "silu",
                                    "sliding_attention",
                                    "sliding_window",
                                    "summary_activation",
                                    "summary_first_dropout",
                                    "summary_proj_to_labels",
                                    "summary_type",
                                    "summary_use_proj",
                                    "tie_word_embeddings",
                                    "topk_group",
                                    "torch_dtype",
                                    "transformers_version",
                                    "unknown",
                                    "use_cache",
                                    "use_sliding_window",
                                    "v_head_dim",
                                    "vocab_size",
                                    "yarn",
                                    NULL};

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct json_mutator m = {.samples = samples, .words = words, .state = seed};
    if (mutator_below(&m, 8) == 0) return LLVMFuzzerMutate(data, size, max_size);
    json_t *root = mutator_tree(&m, (const char *)data, size);
    size_t n = json_dumpb(root, (char *)data, max_size, JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(root);
    return n > 0 && n <= max_size ? n : LLVMFuzzerMutate(data, size, max_size);
}

static void there_and_back(const struct model_spec *m)
{
    struct spec was = {.model = *m}, is = {0};
    const char *family;
    char *text;
    if (hf_family(m, &family) != STATUS_OK) return;
    status st = hf_config_format(&text, m, DTYPE_F32, -1, -1);
    CHECK(st == STATUS_OK, "not written: %s", status_message());
    st = hf_config_parse(&is.model, "again.json", text, strlen(text));
    CHECK(st == STATUS_OK, "what was written is refused: %s", status_message());
    CHECK(spec_diff(&was, &is, stderr) == 0, "%s reads as another model", family);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct model_spec m;
    if (hf_config_parse(&m, "config.json", (const char *)data, bytes) != STATUS_OK) {
        CHECK(status_message()[0] != 0, "a refusal without words");
        return 0;
    }
    CHECK(model_spec_check(&m) == STATUS_OK, "%s", status_message());
    there_and_back(&m);
    return 0;
}
