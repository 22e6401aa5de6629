/* Kernels for the slots of ops/cuda/moe.c. */
#ifndef INGOT_OPS_CUDA_MOE_BACKENDS_H
#define INGOT_OPS_CUDA_MOE_BACKENDS_H
#include "ops/cuda/set.h"

enum { MOE_ALIGN = 128 };           /* tile rows of the Hopper GEMMs; a multiple of the plain GEMMs' tile rows */
enum { MOE_ROUTE_TOKENS = 64 };     /* tokens per block; a block counts and places their slots together */

/* BF16; n and k multiples of 64; 16-byte aligned operands; fewer than 2^27 slots (moe_gemm_sm90.cu). */
expert_gemm_fn cuda_hopper_expert_gemm;
/* The same for codes, with n and k multiples of 128. */
expert_gemm_fn cuda_hopper_expert_gemm_fp8;
/* Any size, BF16, F32 and codes, any GPU (moe_gemm_plain.cu). */
expert_gemm_fn cuda_plain_expert_gemm;

route_fwd_fn cuda_route_fwd;        /* moe_route.cu */
route_bwd_fn cuda_route_bwd;
balance_fn cuda_balance;
expert_codes_fn cuda_expert_codes;  /* moe_codes.cu */
expert_act_fwd_fn cuda_expert_act_fwd; /* moe_rows.cu */
expert_act_bwd_fn cuda_expert_act_bwd;
combine_fn cuda_combine;
combine_gate_bwd_fn cuda_combine_gate_bwd;
dispatch_sort_fn cuda_dispatch_sort; /* moe_dispatch.cu */
#endif
