/* The SIMD files. Each .c file here, X for short, is compiled once for x86-64-v3 (AVX2, FMA) and once for x86-64-v4
 * (AVX-512). It exports one function, `void SIMD(simd_X)(struct ops *o)`, which puts its ops into the table;
 * everything else in the file is static. Kernels support F32 and BF16. Code tests __AVX512F__ for vector width and
 * ISA differences. Add a new file to SIMD_FILES. */
#ifndef INGOT_OPS_CPU_SIMD_SIMD_H
#define INGOT_OPS_CPU_SIMD_SIMD_H
#include "ops/ops.h"

#define SIMD_FILES(X) X(gemm) X(embed) X(norm) X(act) X(rope) X(loss) X(optim) X(muon) X(attn) \
    X(attn_decode) X(mla) X(gdn_delta) X(gdn_conv) X(ssm) X(moe_route) X(moe_rows)

#define SIMD_JOIN_(name, isa) name##_##isa
#define SIMD_JOIN(name, isa)  SIMD_JOIN_(name, isa)
#define SIMD(name)            SIMD_JOIN(name, SIMD_ISA) /* simd_embed -> simd_embed_v4; CMake defines SIMD_ISA */

#define X(file)                                                                                              \
    void simd_##file##_v3(struct ops *o);                                                                    \
    void simd_##file##_v4(struct ops *o);
SIMD_FILES(X)
#undef X
/* These files are compiled a third time for processors with AMX. That copy uses tiles for BF16 attention, and the
 * hardware instruction for rounding to BF16. */
#define SIMD_AMX_FILES(X) X(attn) X(act) X(loss) X(norm) X(rope)
#define X(file)           void simd_##file##_amx(struct ops *o);
SIMD_AMX_FILES(X)
#undef X
#endif
