/* x86-64: AVX2 (x86-64-v3), AVX-512 (x86-64-v4), AMX. */
#include "ops/cpu/fast.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd/simd.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd");
}

/* AMX needs four things: bf16 tiles and AVX-512 bf16 conversions in the processor (CPUID 7), tile state
 * enabled by the kernel (XCR0 bits 17 and 18), and permission for this process, because its signal frames
 * grow by 8 KiB. */
static bool has_amx(void)
{
    enum { REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, avx512_bf16 = 1u << 5, osxsave = 1u << 27;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & amx_bf16) || !(d & amx_tile)) return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & avx512_bf16)) return false;
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    if ((lo >> 17 & 3u) != 3u) return false;
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static status gemm_avx2(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_v3(&o);
    return o.gemm(g, s);
}

static status gemm_avx512(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_v4(&o);
    return o.gemm(g, s);
}

static status gemm_amx(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    amx_gemm(&o);
    return gemm_fp8(g) || g->a.dt == DTYPE_BF16 ? o.gemm(g, s) : gemm_avx512(g, s);
}

EXPERT_GEMM(avx2, gemm_avx2)
EXPERT_GEMM(avx512, gemm_avx512)
EXPERT_GEMM(amx, gemm_amx)

static void overlay_avx2(struct ops *o)
{
#define X(file) simd_##file##_v3(o);
    SIMD_FILES(X)
#undef X
    o->expert_gemm = expert_gemm_avx2;
}

static void overlay_avx512(struct ops *o)
{
#define X(file) simd_##file##_v4(o);
    SIMD_FILES(X)
#undef X
    o->gemm = gemm_avx512;
    o->expert_gemm = expert_gemm_avx512;
}

static void overlay_amx(struct ops *o)
{
    o->gemm = gemm_amx;
    o->expert_gemm = expert_gemm_amx;
#define X(file) simd_##file##_amx(o);
    SIMD_AMX_FILES(X)
#undef X
}

static double peak_avx2(dtype dt)
{
    (void)dt;
    return simd_peak_v3();
}
static double peak_avx512(dtype dt)
{
    (void)dt;
    return simd_peak_v4();
}
static double peak_amx(dtype dt)
{
    return dt == DTYPE_BF16 ? amx_peak() : simd_peak_v4();
}

const struct cpu_isa cpu_isas[CPU_ISAS_MAX] = {
    {"avx2", "cpu-avx2", has_avx2, overlay_avx2, peak_avx2},
    {"avx512", "cpu-avx512", has_avx512, overlay_avx512, peak_avx512},
    {"amx", "cpu-avx512-amx", has_amx, overlay_amx, peak_amx},
};
const char *const cpu_isa_words = "avx2, avx512 or amx";
const char *const cpu_isa_lacking = "AVX2, FMA or BMI2; ingot needs x86-64-v3";
