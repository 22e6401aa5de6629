#include "model/hf_fp8.h"
#include "base/io.h"
#include "base/parallel.h"
#include "tensor/f8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST 448.0

bool hf_fp8_takes(const struct decoder *d, const struct hf_tensor *h)
{
    const struct param *row = &d->params.rows[h->param];
    return (row->role == ROLE_MATRIX || row->role == ROLE_RESIDUAL) && row->rank == 2 && !row->rowwise &&
           !h->channels;
}

status hf_fp8_check(const struct decoder *d)
{
    struct hf_tensor *list;
    int count, taken = 0;
    status st = STATUS_OK;
    TRY(hf_map(d, &list, &count));
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        if (!hf_fp8_takes(d, &list[i])) continue;
        taken++;
        if (list[i].transposed)
            st = FAIL(STATUS_CONFIG,
                      "--dtype fp8: %s is stored transposed, as gpt2's matrices are, and no reader of FP8 "
                      "takes that; use bf16",
                      list[i].name);
    }
    free(list);
    if (st == STATUS_OK && taken == 0)
        return FAIL(STATUS_CONFIG, "--dtype fp8: the model has no matrix of a block");
    return st;
}

status hf_fp8_kept(const struct decoder *d, json_t **names)
{
    static const char end[] = ".weight";
    struct hf_tensor *list;
    int count;
    TRY(hf_map(d, &list, &count));
    *names = json_array();
    for (int i = 0; i < count; i++) {
        const size_t n = strlen(list[i].name);
        const struct param *row = &d->params.rows[list[i].param];
        const bool linear = row->rank == 2 && row->role != ROLE_EMBED && row->role != ROLE_POSITION &&
                            !list[i].channels && n >= sizeof end &&
                            strcmp(list[i].name + n - (sizeof end - 1), end) == 0;
        if (linear && !hf_fp8_takes(d, &list[i]))
            json_array_append_new(*names, json_stringn(list[i].name, n - (sizeof end - 1)));
    }
    if (d->spec.tied_embeddings) json_array_append_new(*names, json_string("lm_head"));
    free(list);
    return STATUS_OK;
}

static double element(const struct decoder *d, const struct hf_tensor *h, int64_t row, int64_t col)
{
    const int64_t in = d->params.rows[h->param].shape[1];
    return dtype_load(params_master(&d->params, h->param), hf_row(h, row) * in + col,
                      dtype_acc(d->params.dt));
}

/* Of the block with the indices (i, j). A block of zeros has scale 1. */
static float scale_of(const struct decoder *d, const struct hf_tensor *h, int64_t i, int64_t j)
{
    const int64_t in = d->params.rows[h->param].shape[1], r1 = (i + 1) * HF_FP8_BLOCK,
                  c1 = (j + 1) * HF_FP8_BLOCK;
    double amax = 0;
    for (int64_t r = i * HF_FP8_BLOCK; r < r1 && r < h->rows; r++)
        for (int64_t c = j * HF_FP8_BLOCK; c < c1 && c < in; c++)
            amax = fmax(amax, fabs(element(d, h, r, c)));
    return amax > 0 ? (float)(amax / LARGEST) : 1;
}

void hf_fp8_scales(const struct decoder *d, const struct hf_tensor *h, float *scales)
{
    const int64_t wide = hf_fp8_blocks(d->params.rows[h->param].shape[1]);
    PARALLEL_CHUNKS(i, hf_fp8_blocks(h->rows))
    {
        for (int64_t j = 0; j < wide; j++) scales[i * wide + j] = scale_of(d, h, i, j);
    }
}

void hf_fp8_codes(const struct decoder *d, const struct hf_tensor *h, uint8_t *codes)
{
    const int64_t in = d->params.rows[h->param].shape[1], wide = hf_fp8_blocks(in);
    PARALLEL_CHUNKS(i, hf_fp8_blocks(h->rows))
    {
        for (int64_t j = 0; j < wide; j++) {
            const double scale = (double)scale_of(d, h, i, j);
            const int64_t r1 = (i + 1) * HF_FP8_BLOCK, c1 = (j + 1) * HF_FP8_BLOCK;
            for (int64_t r = i * HF_FP8_BLOCK; r < r1 && r < h->rows; r++)
                for (int64_t c = j * HF_FP8_BLOCK; c < c1 && c < in; c++)
                    codes[r * in + c] = f8_encode(f8_e4m3, (float)(element(d, h, r, c) / scale));
        }
    }
}

/* ---- reading */

status hf_fp8_find(const struct safetensors *s, const struct safetensor *t, const char *dir,
                   const struct safetensor **scales)
{
    char name[256];
    snprintf(name, sizeof name, "%.200s" HF_FP8_SCALE, t->name);
    const struct safetensor *found = *scales = safetensors_find(s, name);
    if (found == NULL) return FAIL(STATUS_CKPT, "%s: %s is missing, the scales of FP8 codes", dir, name);
    if (t->rank != 2 || found->rank != 2 || found->shape[0] != hf_fp8_blocks(t->shape[0]) ||
        found->shape[1] != hf_fp8_blocks(t->shape[1]))
        return FAIL(STATUS_CKPT, "%s: %s has another shape than one scale for each %d x %d elements", dir,
                    name, HF_FP8_BLOCK, HF_FP8_BLOCK);
    if (found->dt != DTYPE_F32 && found->dt != DTYPE_BF16)
        return FAIL(STATUS_CKPT, "%s: %s is %s; ingot reads scales in F32 and BF16", dir, name, found->type);
    return STATUS_OK;
}

double hf_fp8_scale(const struct safetensor *scales, int64_t row, int64_t col)
{
    char one[8];
    const size_t size = dtype_bytes((dtype)scales->dt);
    const int64_t at = row / HF_FP8_BLOCK * scales->shape[1] + col / HF_FP8_BLOCK;
    memcpy(one, (const char *)scales->data + (size_t)at * size, size);
    return dtype_load(one, 0, (dtype)scales->dt);
}

void hf_fp8_config_read(struct hf_reader *r)
{
    json_t *q = hf_value(r->root, "quantization_config"), *method = hf_value(q, "quant_method"),
           *block = hf_value(q, "weight_block_size"), *format = hf_value(q, "fmt");
    if (q == NULL) return;
    const char *name = json_is_string(method) ? json_string_value(method) : "unknown";
    if (strcmp(name, "fp8") != 0) {
        hf_refuse(r, "quantization_config",
                  "has method '%.40s'; ingot reads models that are not quantized, and fp8", name);
        return;
    }
    if (format && (!json_is_string(format) || strcmp(json_string_value(format), "e4m3") != 0))
        hf_refuse(r, "quantization_config", "has fmt other than e4m3");
    for (size_t i = 0; i < 2; i++)
        if (json_array_size(block) != 2 || json_integer_value(json_array_get(block, i)) != HF_FP8_BLOCK)
            hf_refuse(r, "quantization_config",
                      "has method fp8 without weight_block_size [%d, %d], the only one that ingot reads",
                      HF_FP8_BLOCK, HF_FP8_BLOCK);
}
