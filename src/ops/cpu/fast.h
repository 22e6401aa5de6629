/* What the fast CPU set is made of beside the SIMD files. */
#ifndef INGOT_OPS_CPU_FAST_H
#define INGOT_OPS_CPU_FAST_H
#include "ops/ops.h"

void amx_gemm(struct ops *o); /* GEMMs in BF16 alone, on AMX */

/* The GEMMs of experts (ops_moe.h) by this set's GEMM. */
status expert_gemm_by(gemm_fn *gemm, const struct expert_gemm_args *a) WARN_UNUSED;

enum { MOE_CHUNK_TOKENS = 512 }; /* of a router: each chunk counts its choices in the scratch of MOE_ROUTE_FWD */

/* FLOP/s that the GEMMs' micro-kernel of this set reaches on data in the first-level cache, on all threads: the roof. */
double cpu_peak(const struct ops *o, dtype dt);
double simd_peak_v3(void);
double simd_peak_v4(void);
double amx_peak(void);
#endif
