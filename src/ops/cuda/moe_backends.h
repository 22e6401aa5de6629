/* Kernels behind the slots of ops/cuda/moe.c. */
#ifndef INGOT_OPS_CUDA_MOE_BACKENDS_H
#define INGOT_OPS_CUDA_MOE_BACKENDS_H
#include "ops/cuda/set.h"

enum { MOE_ALIGN = 128 };           /* rows of a tile of Hopper's GEMMs; the plain ones divide it */
enum { MOE_ROUTE_TOKENS = 64 };     /* of a block: their slots are counted and placed together */

/* BF16, n and k multiples of 64, operands on 16-byte boundaries, fewer than 2^27 slots (moe_gemm_sm90.cu). */
expert_gemm_fn cuda_hopper_expert_gemm;
/* Any size, BF16 and F32, any GPU (moe_gemm_plain.cu). */
expert_gemm_fn cuda_plain_expert_gemm;

route_fwd_fn cuda_route_fwd;        /* moe_route.cu */
route_bwd_fn cuda_route_bwd;
balance_fn cuda_balance;
expert_act_fwd_fn cuda_expert_act_fwd; /* moe_rows.cu */
expert_act_bwd_fn cuda_expert_act_bwd;
combine_fn cuda_combine;
combine_gate_bwd_fn cuda_combine_gate_bwd;
#endif
