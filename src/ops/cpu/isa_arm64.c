/* 64-bit ARM: NEON, which every one has, and the bf16 instructions of ARMv8.6 (Neoverse V1 and later, Grace). */
#include "ops/cpu/fast.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd/simd.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

static bool has_neon(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
}

static bool has_bf16(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}

static status gemm_neon(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_neon(&o);
    return o.gemm(g, s);
}

static status gemm_bf16(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_bf16(&o);
    return gemm_fp8(g) || g->a.dt == DTYPE_BF16 ? o.gemm(g, s) : gemm_neon(g, s);
}

EXPERT_GEMM(neon, gemm_neon)
EXPERT_GEMM(bf16, gemm_bf16)

static void overlay_neon(struct ops *o)
{
#define X(file) simd_##file##_neon(o);
    SIMD_FILES(X)
#undef X
    o->expert_gemm = expert_gemm_neon;
}

static void overlay_bf16(struct ops *o)
{
#define X(file) simd_##file##_bf16(o);
    SIMD_BF16_FILES(X)
#undef X
    o->gemm = gemm_bf16;
    o->expert_gemm = expert_gemm_bf16;
}

static double peak_neon(dtype dt)
{
    (void)dt;
    return simd_peak_neon();
}
static double peak_bf16(dtype dt)
{
    return dt == DTYPE_BF16 ? simd_peak_bf16() : simd_peak_neon();
}

const struct cpu_isa cpu_isas[CPU_ISAS_MAX] = {
    {"neon", "cpu-neon", has_neon, overlay_neon, peak_neon},
    {"bf16", "cpu-neon-bf16", has_bf16, overlay_bf16, peak_bf16},
};
const char *const cpu_isa_words = "neon or bf16";
const char *const cpu_isa_lacking = "NEON";
