/* Loads and stores master weights: p in f32, split master weights in w and low (ops/rounding.h), or w alone. The
 * functions copy bits unchanged; a rounding store would change them. */
#ifndef INGOT_OPS_CPU_SIMD_SPLIT_WEIGHTS_H
#define INGOT_OPS_CPU_SIMD_SPLIT_WEIGHTS_H
#include "ops/cpu/simd/vec.h"

/* Stores the lower 16 bits of each lane to elements [i, i + n). */
VEC_INLINE void halves_store(uint16_t *p, int64_t i, int n, vu x)
{
    const vh h = __builtin_convertvector(x, vh);
    if (__builtin_expect(n == VEC, 1)) {
        memcpy(p + i, &h, sizeof h);
        return;
    }
    vu part = {0};
    memcpy(&part, &h, sizeof h);
    vec_store_part(p + i, part, sizeof *p * (size_t)n);
}

VEC_INLINE vf master_load(const float *p, const bf16 *w, const uint16_t *low, int64_t i, int n)
{
    if (p) return vec_load(p, i, n, DTYPE_F32);
    if (low == NULL) return vec_load(w, i, n, DTYPE_BF16);
    const vu upper = (vu)vec_load(w, i, n, DTYPE_BF16), lower = (vu)vec_load(low, i, n, DTYPE_BF16) >> 16;
    return (vf)((upper - ((lower & 0x8000) << 1)) | lower);
}

/* w may be NULL if low is. */
VEC_INLINE void master_store(float *p, bf16 *w, uint16_t *low, int64_t i, int n, vf x)
{
    const vf quiet = vec_select(x == x, x, (vf)((vu){0} + 0x7fc00000u)); /* as rounding_halves */
    if (low)
        halves_store(low, i, n, (vu)quiet);
    else
        vec_store(p, i, n, DTYPE_F32, x);
    if (w) halves_store(w, i, n, ((vu)quiet + 0x8000u) >> 16);
}
#endif
