/* What gemm.c computes with: the shape of its panels, packing into them, and the micro-kernel. Two kernels share the
 * interface: f32 sums of f32 panels on any SIMD ISA, and f32 sums of bf16 panels by BFMMLA when compiled for ARM with
 * bf16.
 *
 *   elem              of packed panels
 *   MR, NR            lines of a panel of A, of B
 *   K_UNIT            a panel's depth is a multiple of it: behind the end of k are zeros
 *   pack              an operand into panels
 *   micro             c[MR, NR] (+)= panel of A times panel of B */
#ifndef INGOT_OPS_CPU_SIMD_GEMM_KERNEL_H
#define INGOT_OPS_CPU_SIMD_GEMM_KERNEL_H
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include "ops/cpu/simd/gemm_bfmmla.h"
#else
#include "ops/cpu/simd/gemm_f32.h"
#endif
#endif
