/* The slots of mixtures of experts: choice of the GEMM kernel, and the scratch of the ops. */
#include "ops/cuda/moe_backends.h"

#include <stdbool.h>
#include <stdint.h>

static bool aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

static bool hopper_serves(const struct expert_gemm_args *a, dev_stream s)
{
    const struct cuda_set *set = cuda_set(s);
    const int64_t slots_max = (int64_t)1 << 27, width = a->n > a->k ? a->n : a->k;
    return set->sm / 10 == 9 && set->tensor_map_encode && a->dt == DTYPE_BF16 && a->n % 64 == 0 &&
           a->k % 64 == 0 && aligned(a->a.data) && aligned(a->b.data) && aligned(a->c) &&
           a->rows * a->top_k < slots_max && a->rows * width / 8 < INT32_MAX && a->experts * a->n < INT32_MAX;
}

static bool hopper_serves_fp8(const struct expert_gemm_args *a, dev_stream s)
{
    const bool wgrad = a->pass == EXPERT_WGRAD, e5m2 = a->a.dt == DTYPE_F8_E5M2;
    return hopper_serves(a, s) && a->n % 128 == 0 && a->k % 128 == 0 && a->b.dt == DTYPE_F8_E4M3 &&
           e5m2 == (a->pass != EXPERT_FWD) && (!wgrad || a->ld == MOE_PANEL);
}

static status expert_gemm(const struct expert_gemm_args *a, dev_stream s)
{
    const bool fp8 = expert_gemm_fp8(a);
    CHECK((fp8 ? a->dt : expert_gemm_dt(a)) == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s",
          dtype_name(a->dt));
    CHECK(a->pass == EXPERT_WGRAD || a->accum == ACCUM_STORE, "rows of experts are not added to");
    CHECK(a->pass == EXPERT_WGRAD || a->gather != EXPERT_GATHER_B, "the experts' matrices have no tokens");
    CHECK(a->align % MOE_ALIGN == 0, "experts begin at multiples of %lld rows", (long long)a->align);
    if (fp8)
        return hopper_serves_fp8(a, s) ? cuda_hopper_expert_gemm_fp8(a, s) : cuda_plain_expert_gemm(a, s);
    return hopper_serves(a, s) ? cuda_hopper_expert_gemm(a, s) : cuda_plain_expert_gemm(a, s);
}

static size_t moe_scratch(const struct moe_shape *shape, enum moe_memory what)
{
    const int64_t blocks = (shape->rows + MOE_ROUTE_TOKENS - 1) / MOE_ROUTE_TOKENS,
                  ranks = shape->ranks > 1 ? shape->ranks : 1;
    switch (what) {
    case MOE_ROUTE_FWD: return (size_t)(blocks * shape->experts) * sizeof(int32_t);
    case MOE_ROUTE_BWD: return (size_t)(shape->docs * ranks * shape->experts) * sizeof(int32_t);
    case MOE_GEMM: break;
    }
    return 0;
}

void cuda_moe_slots(struct ops *o)
{
    o->route_fwd = cuda_route_fwd;
    o->route_bwd = cuda_route_bwd;
    o->expert_gemm = expert_gemm;
    o->expert_codes = cuda_expert_codes;
    o->expert_act_fwd = cuda_expert_act_fwd;
    o->expert_act_bwd = cuda_expert_act_bwd;
    o->combine = cuda_combine;
    o->combine_gate_bwd = cuda_combine_gate_bwd;
    o->dispatch_sort = cuda_dispatch_sort;
    o->balance = cuda_balance;
    o->moe_scratch = moe_scratch;
    o->expert_align = MOE_ALIGN;
}
