/* Hugging Face model directories: config.json and safetensors, read and written, for gpt2, llama, mistral, qwen2 and qwen3.
 *
 * Names and shapes map by one table per family (hf_map.c): q, k, v are rows of our fused qkv matrix, gate and up rows of mlp.up, and
 * GPT-2's Conv1D matrices are stored [in, out]. config.json is read in the old style (rope_theta, rope_scaling, torch_dtype) and the
 * new one (rope_parameters, dtype); both are written. What a family cannot express is refused by name, never approximated. */
#ifndef INGOT_MODEL_HF_H
#define INGOT_MODEL_HF_H
#include "model/decoder.h"

/* The model spec that DIR/config.json describes. STATUS_CKPT names the key that ingot cannot do. */
status hf_config_read(struct model_spec *m, const char *dir) WARN_UNUSED;
/* The same from text in memory; `name` stands for the path in messages. */
status hf_config_parse(struct model_spec *m, const char *name, const char *text, size_t bytes) WARN_UNUSED;
/* The family that can hold this model ("llama", ...): STATUS_CONFIG names the key that none has. */
status hf_family(const struct model_spec *m, const char **family) WARN_UNUSED;
/* bos, eos: ids for these fields, -1: none. `dt` F32 or BF16: the type of the weights beside it. */
status hf_config_write(const struct model_spec *m, const char *dir, dtype dt, int32_t bos,
                       int32_t eos) WARN_UNUSED;
/* Its text alone; malloc'd, caller frees. */
status hf_config_format(char **text, const struct model_spec *m, dtype dt, int32_t bos,
                        int32_t eos) WARN_UNUSED;

/* Reads all weights of DIR into the master arrays (F32 or F64) of a laid-out decoder. Missing, misshapen or unknown tensors are STATUS_CKPT. */
status hf_weights_read(struct decoder *d, const char *dir) WARN_UNUSED;
/* Writes the master weights as `dt`, in files of at most shard_bytes_max of data. config.json is separate. */
status hf_weights_write(const struct decoder *d, const char *dir, dtype dt,
                        int64_t shard_bytes_max) WARN_UNUSED;

/* One tensor of the other side: rows [begin, begin + rows) of parameter `param` (all of it for vectors, in elements). */
struct hf_tensor {
    char name[128];
    int param;
    int64_t begin, rows;
    bool transposed; /* stored [in, out] */
};
/* The tensors of a decoder in its family's names; malloc'd, caller frees. */
status hf_map(const struct decoder *d, struct hf_tensor **list, int *count) WARN_UNUSED;
#endif
