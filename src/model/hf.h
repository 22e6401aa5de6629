/* Reads and writes Hugging Face model directories: config.json and safetensors. A family (hf_int.h) is a model_type:
 * gpt2, llama, ..., and `ingot` for models that transformers lacks.
 *
 * Each tensor is a range of rows of our parameters: q, k, v of the fused qkv matrix, gate and up of mlp.up, in groups
 * of heads if HF interleaves them. config.json is read in the old style (rope_theta, rope_scaling, torch_dtype) and
 * the new one (rope_parameters, dtype); both are written. If a family cannot express something, the error names it;
 * nothing is approximated. */
#ifndef INGOT_MODEL_HF_H
#define INGOT_MODEL_HF_H
#include "model/decoder.h"

/* Reads the model spec from DIR/config.json. STATUS_CKPT names the key that ingot does not support. */
status hf_config_read(struct model_spec *m, const char *dir) WARN_UNUSED;
/* The same from text in memory; `name` replaces the path in messages. */
status hf_config_parse(struct model_spec *m, const char *name, const char *text, size_t bytes) WARN_UNUSED;
/* Names of the families (model_type in config.json), by index; NULL after the last. */
const char *hf_family_name(int i);
/* The first family that represents this model exactly ("llama", ...; "ingot" if transformers has none). */
status hf_family(const struct model_spec *m, const char **family) WARN_UNUSED;
/* For messages: the nearest family of transformers for a model that none represents, and one key that differs. */
void hf_nearest(const struct model_spec *m, char text[128]);
/* bos, eos: ids for these fields; -1: none. `dt`: F32 or BF16, the type of the exported weights. */
status hf_config_write(const struct model_spec *m, const char *dir, dtype dt, int32_t bos,
                       int32_t eos) WARN_UNUSED;
/* The same for weights in FP8 (hf_fp8.h), with quantization_config. */
status hf_config_write_fp8(const struct decoder *d, const char *dir, int32_t bos, int32_t eos) WARN_UNUSED;
/* Only the text of config.json; malloc'd, the caller frees. */
status hf_config_format(char **text, const struct model_spec *m, dtype dt, int32_t bos,
                        int32_t eos) WARN_UNUSED;

/* Reads all weights of DIR into the master arrays (F32 or F64) of an allocated decoder. STATUS_CKPT: a tensor is
 * missing, unknown or has a wrong shape. */
status hf_weights_read(struct decoder *d, const char *dir) WARN_UNUSED;
/* The same for a model whose vocabulary is longer than the files', which have `stored` rows: rows [known, end) of
 * embedding and head become the mean of their rows [0, known), in float64. */
struct hf_vocab { int64_t stored, known, end; };
status hf_weights_read_extended(struct decoder *d, const char *dir, const struct hf_vocab *v) WARN_UNUSED;
/* Writes the master weights as `dt`, in files with at most shard_bytes_max of data. F8_E4M3: matrices of blocks as
 * codes with scales, the rest in bf16 (hf_fp8.h). Does not write config.json. */
status hf_weights_write(const struct decoder *d, const char *dir, dtype dt,
                        int64_t shard_bytes_max) WARN_UNUSED;

/* One HF tensor: rows of parameter `param` (elements, for a vector). It has `groups` groups; each takes the next
 * `rows` rows of every part. For example, HF's q_proj with a gate is, per head, [hd rows of q | hd rows of gate]. */
enum { HF_PARTS_MAX = 4 };
struct hf_tensor {
    char name[128];
    int param, part_count;
    int64_t rows, groups;
    struct { int64_t begin, rows; } parts[HF_PARTS_MAX];
    bool transposed;    /* stored [in, out] */
    bool channels;      /* stored [out, 1, in]: a depthwise convolution */
};
/* The parameter row for row `row` of the tensor. */
int64_t hf_row(const struct hf_tensor *t, int64_t row);
/* The tensors of a decoder with the names of its family; malloc'd, the caller frees. */
status hf_map(const struct decoder *d, struct hf_tensor **list, int *count) WARN_UNUSED;
#endif
