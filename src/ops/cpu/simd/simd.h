/* The SIMD files. Each .c file here, X for short, is compiled once per instruction set of the architecture: x86-64-v3
 * (AVX2, FMA) and x86-64-v4 (AVX-512), or NEON. It exports one function, `void SIMD(simd_X)(struct ops *o)`, which
 * puts its ops into the table; everything else in the file is static. Kernels support F32 and BF16. vec.h, vecmath.h,
 * transpose.h, gemm_kernel.h and engine.h hold what differs between instruction sets; other files test __AVX512F__ or
 * __aarch64__ where they must. Add a new file to SIMD_FILES. */
#ifndef INGOT_OPS_CPU_SIMD_SIMD_H
#define INGOT_OPS_CPU_SIMD_SIMD_H
#include "ops/ops.h"

#define SIMD_FILES(X) X(gemm) X(fp8) X(embed) X(norm) X(act) X(rope) X(loss) X(optim) X(muon) X(attn) \
    X(attn_decode) X(mla) X(gdn_delta) X(gdn_conv) X(ssm) X(moe_route) X(moe_rows)

#define SIMD_JOIN_(name, isa) name##_##isa
#define SIMD_JOIN(name, isa)  SIMD_JOIN_(name, isa)
#define SIMD(name)            SIMD_JOIN(name, SIMD_ISA) /* simd_embed -> simd_embed_v4; CMake defines SIMD_ISA */

/* Some files are compiled once more for processors that have more: on x86-64 AMX (tiles for BF16 attention, the
 * hardware instruction for rounding to BF16), on ARM the bf16 instructions (matmuls of BF16, rounding). */
#define SIMD_AMX_FILES(X)  X(attn) X(fp8) X(act) X(loss) X(norm) X(rope)
#define SIMD_BF16_FILES(X) X(gemm) X(fp8) X(act) X(loss) X(norm) X(rope)

#ifdef __aarch64__
#define X(file) void simd_##file##_neon(struct ops *o);
SIMD_FILES(X)
#undef X
#define X(file) void simd_##file##_bf16(struct ops *o);
SIMD_BF16_FILES(X)
#undef X
double simd_peak_neon(void);
double simd_peak_bf16(void);
#else
#define X(file)                                                                                              \
    void simd_##file##_v3(struct ops *o);                                                                    \
    void simd_##file##_v4(struct ops *o);
SIMD_FILES(X)
#undef X
#define X(file) void simd_##file##_amx(struct ops *o);
SIMD_AMX_FILES(X)
#undef X
double simd_peak_v3(void);
double simd_peak_v4(void);
#endif

#ifdef SIMD_ISA
/* The op `quantize` on an op's stored output x [rows, n]; nothing where q asks for nothing. */
static inline status simd_quantized(const struct quantized *q, const void *x, int64_t rows, int64_t n, dtype dt)
{
    struct ops o;
    if (!quantized_asked(q)) return STATUS_OK;
    SIMD(simd_fp8)(&o);
    const struct quantize_args a = {.x = x, .q = *q, .rows = rows, .n = n, .dt = dt};
    return o.quantize(&a, NULL);
}
#endif
#endif
