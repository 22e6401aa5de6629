/* Weights in FP8 as DeepSeek-V3 and Qwen3-FP8 publish them ("quant_method": "fp8"):
 *
 *   NAME.weight             F8_E4M3 [out, in]
 *   NAME.weight_scale_inv   F32 [ceil(out / 128), ceil(in / 128)]      BF16 is read, too
 *   weight[r, c] = code[r, c] x weight_scale_inv[r / 128, c / 128]
 *
 * Matrices of blocks are in codes; embedding, head, norms, routers and gates are bf16. A scale is amax / 448, so that
 * the largest element of a block has the largest code. */
#ifndef INGOT_MODEL_HF_FP8_H
#define INGOT_MODEL_HF_FP8_H
#include "model/hf_int.h"
#include "model/safetensors.h"

enum { HF_FP8_BLOCK = 128 };
#define HF_FP8_SCALE "_scale_inv"

/* STATUS_CONFIG when the family has no such form: its matrices are stored transposed (gpt2). */
status hf_fp8_check(const struct decoder *d) WARN_UNUSED;
bool hf_fp8_takes(const struct decoder *d, const struct hf_tensor *h);
static inline int64_t hf_fp8_blocks(int64_t n) { return (n + HF_FP8_BLOCK - 1) / HF_FP8_BLOCK; }
/* Names of the other linears, "lm_head" and routers, an array, the caller's. */
status hf_fp8_kept(const struct decoder *d, json_t **names) WARN_UNUSED;
/* Codes [rows, cols], or scales, of the tensor's master weights. */
void hf_fp8_codes(const struct decoder *d, const struct hf_tensor *h, uint8_t *codes);
void hf_fp8_scales(const struct decoder *d, const struct hf_tensor *h, float *scales);

/* The scales of `t`, a tensor of codes. STATUS_CKPT when they are not there or of another shape. */
status hf_fp8_find(const struct safetensors *s, const struct safetensor *t, const char *dir,
                   const struct safetensor **scales) WARN_UNUSED;
/* An element of the scales, which may lie anywhere in a file. */
double hf_fp8_scale(const struct safetensor *scales, int64_t row, int64_t col);

/* quantization_config of such a model; refuses all others. */
void hf_fp8_config_read(struct hf_reader *r);
#endif
