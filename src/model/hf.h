/* Hugging Face model directories: config.json and safetensors, read and written. A family (hf_int.h) is a model_type: gpt2, llama, ...,
 * and `ingot` for the models that transformers lacks.
 *
 * Tensors are rows of our parameters: q, k, v of the fused qkv matrix, gate and up of mlp.up, in groups of heads where the other side
 * interleaves them. config.json is read in the old style (rope_theta, rope_scaling, torch_dtype) and the new one (rope_parameters,
 * dtype); both are written. What a family cannot express is refused by name, never approximated. */
#ifndef INGOT_MODEL_HF_H
#define INGOT_MODEL_HF_H
#include "model/decoder.h"

/* The model spec that DIR/config.json describes. STATUS_CKPT names the key that ingot cannot do. */
status hf_config_read(struct model_spec *m, const char *dir) WARN_UNUSED;
/* The same from text in memory; `name` stands for the path in messages. */
status hf_config_parse(struct model_spec *m, const char *name, const char *text, size_t bytes) WARN_UNUSED;
/* The families by number, model_type of config.json; NULL behind the last. */
const char *hf_family_name(int i);
/* The first family that holds this model exactly ("llama", ...; "ingot" where transformers has none). */
status hf_family(const struct model_spec *m, const char **family) WARN_UNUSED;
/* For people: which family of transformers is nearest to a model that none of them holds, and a key in which it differs. */
void hf_nearest(const struct model_spec *m, char text[128]);
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

/* One tensor of the other side: rows of parameter `param` (elements of a vector), in `groups` groups that each take the next `rows` of
 * every part: HF's q_proj with a gate is, head by head, [hd rows of q | hd rows of gate]. */
enum { HF_PARTS_MAX = 4 };
struct hf_tensor {
    char name[128];
    int param, part_count;
    int64_t rows, groups;
    struct { int64_t begin, rows; } parts[HF_PARTS_MAX];
    bool transposed;    /* stored [in, out] */
    bool channels;      /* stored [out, 1, in]: a depthwise convolution */
};
/* The row of the parameter that is row `row` of the tensor. */
int64_t hf_row(const struct hf_tensor *t, int64_t row);
/* The tensors of a decoder in its family's names; malloc'd, caller frees. */
status hf_map(const struct decoder *d, struct hf_tensor **list, int *count) WARN_UNUSED;
#endif
