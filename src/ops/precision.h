/* The meaning of each train.precision, for all modules: switches without a default, so a new precision must be handled
 * here. Its word comes from spec/words.def. spec/ has a switch of its own (precision_keys), plan/machine.c its rates.
 */
#ifndef INGOT_OPS_PRECISION_H
#define INGOT_OPS_PRECISION_H
#include "spec/keys.h"
#include "tensor/current_linears.h"
#include "tensor/operand.h"

#include <stdio.h>

struct precision_types {
    dtype act;              /* activations, and the weights that GEMMs read */
    dtype master, grad;     /* what the optimizer updates; what it reads */
    bool split;             /* split master weights: bf16 and a 16-bit residual (ops/rounding.h) */
    bool tf32;              /* F32 GEMMs round their operands to TF32 (GPU) */
    enum recipe recipe;     /* how GEMM operands are made from tensors (nn/linear.h) */
};

static inline struct precision_types precision_of(enum precision precision)
{
    struct precision_types t = {DTYPE_F32, DTYPE_F32, DTYPE_F32, false, false, RECIPE_PLAIN};
    switch (precision) {
    case PRECISION_FP32: break;
    case PRECISION_TF32: t.tf32 = true; break;
    case PRECISION_BF16: t.act = DTYPE_BF16, t.split = true; break;
    case PRECISION_FP8: t.act = DTYPE_BF16, t.split = true, t.recipe = RECIPE_FP8; break;
    case PRECISION_MXFP8:
    case PRECISION_NVFP4: t.act = DTYPE_BF16, t.split = true, t.recipe = RECIPE_CURRENT; break;
    }
    return t;
}
/* The recipe of a run, which depends on fp8.recipe, too. */
static inline enum recipe precision_recipe(const struct run_spec *r)
{
    const enum recipe recipe = precision_of((enum precision)r->train_precision).recipe;
    return recipe == RECIPE_FP8 && r->fp8_recipe != FP8_RECIPE_BOUND ? RECIPE_CURRENT : recipe;
}
/* How operands of RECIPE_CURRENT are made. block: DeepSeek-V3 (arXiv:2412.19437); mxfp8: arXiv:2506.08027; nvfp4:
 * arXiv:2509.25149. */
static inline struct current_linears precision_current(const struct run_spec *r)
{
    struct current_linears c = {.x = BLOCKS_E4M3, .w = BLOCKS_E4M3, .dy = BLOCKS_E5M2, .seed = (uint64_t)r->run_seed};
    c.wgrad_bf16 = r->fp8_wgrad == FP8_WGRAD_BF16;
    switch ((enum precision)r->train_precision) {
    case PRECISION_FP32:
    case PRECISION_TF32:
    case PRECISION_BF16: break; /* no codes */
    case PRECISION_FP8:
        if (r->fp8_recipe == FP8_RECIPE_BLOCK) c.x = c.w = c.dy = BLOCKS_B128, c.square = true;
        break;
    case PRECISION_MXFP8: c.x = c.w = c.dy = BLOCKS_MX; break;
    case PRECISION_NVFP4:
        c.x = c.w = c.dy = BLOCKS_NV;
        c.square = true;
        c.hadamard = r->nvfp4_hadamard;
        c.stochastic = r->nvfp4_stochastic;
        c.keep = r->nvfp4_keep_bf16;
        break;
    }
    return c;
}
/* The key that says which codes a run has, and its word: "fp8.recipe block", "train.precision nvfp4". */
static inline const char *precision_codes_name(const struct run_spec *r, char buf[64])
{
    enum key_at at = KEY_AT_train_precision;
    int64_t word = r->train_precision;
    switch ((enum precision)r->train_precision) {
    case PRECISION_FP32:
    case PRECISION_TF32:
    case PRECISION_BF16:
    case PRECISION_MXFP8:
    case PRECISION_NVFP4: break;
    case PRECISION_FP8: at = KEY_AT_fp8_recipe, word = r->fp8_recipe; break;
    }
    const struct key *k = key_row(at);
    snprintf(buf, 64, "%s.%s %s", k->section, k->name, k->words[word]);
    return buf;
}
/* True: a GPU or machine without FP8 tensor cores cannot run it. The others are emulated there. */
static inline bool precision_needs_fp8(enum precision precision)
{
    switch (precision) {
    case PRECISION_FP32:
    case PRECISION_TF32:
    case PRECISION_BF16:
    case PRECISION_MXFP8:
    case PRECISION_NVFP4: break;
    case PRECISION_FP8: return true;
    }
    return false;
}
/* True: train.verify compares its results. */
static inline bool precision_verifies(enum precision precision)
{
    switch (precision) {
    case PRECISION_FP32:
    case PRECISION_BF16: return true;
    case PRECISION_TF32:
    case PRECISION_FP8:
    case PRECISION_MXFP8:
    case PRECISION_NVFP4: break;
    }
    return false;
}
/* The word that configurations use: "bf16". */
static inline const char *precision_name(enum precision precision)
{
    return key_row(KEY_AT_train_precision)->words[precision];
}
/* The precision of a run that continues from weights of a file in this dtype. */
static inline enum precision precision_of_weights(dtype dt)
{
    switch (dt) {
    case DTYPE_BF16:
    case DTYPE_F16:
    case DTYPE_F8_E4M3: return PRECISION_BF16;
    case DTYPE_F64:
    case DTYPE_F32:
    case DTYPE_I64: /* no weights: what reads the file refuses them */
    case DTYPE_I32:
    case DTYPE_U16:
    case DTYPE_U8:
    case DTYPE_F8_E5M2:
    case DTYPE_COUNT: break;
    }
    return PRECISION_FP32;
}
#endif
