/* Element types as data: one binary supports all precisions. */
#ifndef INGOT_TENSOR_DTYPE_H
#define INGOT_TENSOR_DTYPE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*  name  bytes  safetensors name */
#define DTYPE_LIST(X) X(F64, 8, "F64") X(F32, 4, "F32") X(BF16, 2, "BF16") X(F16, 2, "F16") X(I64, 8, "I64") \
    X(I32, 4, "I32") X(U16, 2, "U16") X(U8, 1, "U8") X(F8_E4M3, 1, "F8_E4M3") X(F8_E5M2, 1, "F8_E5M2")
typedef enum {
#define X(name, bytes, text) DTYPE_##name,
    DTYPE_LIST(X)
#undef X
    DTYPE_COUNT
} dtype;

size_t dtype_bytes(dtype dt);
const char *dtype_name(dtype dt);               /* "F32", as safetensors spells it */
int dtype_from_name(const char *name);          /* a dtype; -1: unknown name */

/* Type of reductions, statistics (rstd, lse) and parameter gradients for activations of `dt`: F64 for F64 (the oracle
 * and finite differences), else F32. */
static inline dtype dtype_acc(dtype dt) { return dt == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32; }

typedef uint16_t bf16;                          /* the upper half of an f32 */
static inline float bf16_to_f32(bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest even; NaN stays NaN. */
static inline bf16 bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (bf16)(u >> 16 | 0x40);
    return (bf16)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
uint16_t f16_from_f32(float f);                 /* rounds to nearest even; beyond the range: infinity */
float f16_to_f32(uint16_t h);                   /* for files only: no op computes in f16 */

/* Generic element access for oracles and file conversion: any float dtype to and from double. */
double dtype_load(const void *p, int64_t i, dtype dt);
void dtype_store(void *p, int64_t i, dtype dt, double v);
#endif
