/* The fast CPU set: the oracle, overridden by the fast kernels of this processor. */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/simd.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum cpu_isa { CPU_NONE, CPU_AVX2, CPU_AVX512, CPU_AMX }; /* each includes those before it */

static const char *const isa_names[] = {
    [CPU_NONE] = "none", [CPU_AVX2] = "avx2", [CPU_AVX512] = "avx512", [CPU_AMX] = "amx"};

static bool has_avx2(void)
{
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

/* The best ISA for this process: the processor's flags, what the kernel saves on a context switch, and, for
 * AMX, the kernel's permission, which is requested here. CPU_NONE below x86-64-v3. */
static enum cpu_isa detect(void)
{
    __builtin_cpu_init();
    if (!has_avx2()) return CPU_NONE;
    if (!has_avx512()) return CPU_AVX2;
    return has_amx() ? CPU_AMX : CPU_AVX512;
}

static status isa_cap(const char *isa_max, enum cpu_isa *isa)
{
    for (enum cpu_isa i = CPU_AVX2; i <= CPU_AMX; i++) {
        if (strcmp(isa_max, isa_names[i]) != 0) continue;
        if (i > *isa)
            return FAIL(STATUS_CONFIG, "isa '%s' was asked for, but this machine offers only '%s'", isa_max,
                        isa_names[*isa]);
        *isa = i;
        return STATUS_OK;
    }
    return FAIL(STATUS_CONFIG, "unknown isa '%s': use avx2, avx512 or amx", isa_max);
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
    return g->a.dt == DTYPE_BF16 ? o.gemm(g, s) : gemm_avx512(g, s);
}

/* Grouped GEMMs of a set use the GEMM of that set. */
#define EXPERT_GEMM(isa, gemm)                                                                               \
    static status expert_gemm_##isa(const struct expert_gemm_args *a, dev_stream s)                          \
    {                                                                                                        \
        (void)s;                                                                                             \
        return expert_gemm_by(gemm, a);                                                                      \
    }
static status gemm_avx2(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_v3(&o);
    return o.gemm(g, s);
}
EXPERT_GEMM(avx2, gemm_avx2)
EXPERT_GEMM(avx512, gemm_avx512)
EXPERT_GEMM(amx, gemm_amx)

status ops_cpu(struct ops *o, const char *isa_max)
{
    static const char *const set_names[] = {
        [CPU_AVX2] = "cpu-avx2", [CPU_AVX512] = "cpu-avx512", [CPU_AMX] = "cpu-avx512-amx"};
    enum cpu_isa isa = detect();
    if (isa == CPU_NONE)
        return FAIL(STATUS_DEVICE, "this processor lacks AVX2, FMA or BMI2; ingot needs x86-64-v3");
    if (isa_max) TRY(isa_cap(isa_max, &isa));
    ops_oracle(o);
    if (isa >= CPU_AVX512) {
#define X(file) simd_##file##_v4(o);
        SIMD_FILES(X)
#undef X
    } else {
#define X(file) simd_##file##_v3(o);
        SIMD_FILES(X)
#undef X
    }
    o->expert_gemm = expert_gemm_avx2;
    if (isa >= CPU_AVX512) o->gemm = gemm_avx512, o->expert_gemm = expert_gemm_avx512;
    if (isa >= CPU_AMX) {
        o->gemm = gemm_amx;
        o->expert_gemm = expert_gemm_amx;
#define X(file) simd_##file##_amx(o);
        SIMD_AMX_FILES(X)
#undef X
    }
    o->name = set_names[isa];
    return STATUS_OK;
}

double cpu_peak(const struct ops *o, dtype dt)
{
    if (strcmp(o->name, "cpu-avx2") == 0) return simd_peak_v3();
    if (strcmp(o->name, "cpu-avx512-amx") == 0 && dt == DTYPE_BF16) return amx_peak();
    return simd_peak_v4();
}
