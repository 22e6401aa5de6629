/* Parts of the fast CPU set outside the SIMD files. */
#ifndef INGOT_OPS_CPU_FAST_H
#define INGOT_OPS_CPU_FAST_H
#include "ops/ops.h"

void amx_gemm(struct ops *o); /* BF16 GEMMs on AMX */

/* Runs the expert GEMMs (ops_moe.h) with the GEMM of this set. */
status expert_gemm_by(gemm_fn *gemm, const struct expert_gemm_args *a) WARN_UNUSED;
/* Defines expert_gemm_ISA: grouped GEMMs of a set use the GEMM of that set. */
#define EXPERT_GEMM(isa, gemm)                                                                               \
    static status expert_gemm_##isa(const struct expert_gemm_args *a, dev_stream s)                          \
    {                                                                                                        \
        (void)s;                                                                                             \
        return expert_gemm_by(gemm, a);                                                                      \
    }

/* The FP8 forms of what the activations of experts have stored. */
status cpu_expert_act_fwd_codes(const struct expert_act_fwd_args *a) WARN_UNUSED;
status cpu_expert_act_bwd_codes(const struct expert_act_bwd_args *a) WARN_UNUSED;

/* Of route_fwd: PLACE with `whole`. Of route_bwd: [experts] slots of tokens [from, to) of the micro-batch. */
void route_place_part(const struct route_fwd_args *a);
void route_count(const struct route_whole *w, int64_t top_k, int64_t from, int64_t to, int64_t experts,
                 int32_t *demand);

enum { MOE_CHUNK_TOKENS = 512 }; /* tokens per router chunk; each chunk counts its choices in the scratch of
                                    MOE_ROUTE_FWD */

/* Peak FLOP/s of this set's GEMM micro-kernel on all threads, with its data in the L1 cache. This is the roof of the
 * CPU's roofline. */
double cpu_peak(const struct ops *o, dtype dt);
double amx_peak(void);
#endif
