/* Model FLOPs utilisation: the rate of useful FLOPs over the device peak, in two conventions (formulas:
 * docs/NOTATION.md).
 *
 *     mfu      = tokens/s * plan_model_flops     / peak     counts attention's causal half: what must be computed
 *     mfu_full = tokens/s * mfu_flops_full       / peak     counts attention's full square: PaLM, nanoGPT, most
 * reports */
#ifndef INGOT_PLAN_MFU_H
#define INGOT_PLAN_MFU_H
#include "plan/plan.h"

/* 6 N + 12 L (H hd) T FLOPs per trained token. N: weights used in GEMMs (the head counts, also when tied; embedding,
 * norms and biases do not). Every query counts against all T keys, regardless of mask and window (arXiv:2204.02311,
 * appendix B). */
double mfu_flops_full(const struct model_spec *m, int64_t sequence_length);
/* Dense FLOP/s in the vendor's data sheet of a GPU, by the driver's device name ("NVIDIA H200"). 0: the GPU is not in
 * the table, and MFU is unknown.
 *
 * For FP8 it is bf16's peak: attention and head compute in bf16 there, so neither peak bounds the step, and MFU may
 * pass 1. So the MFU of a run in FP8 and of one in bf16 compare as their tokens/s do. torchtitan reports no MFU with
 * FP8, for that reason (its Llama 3 benchmarks of December 2024); Megatron-Bridge reports model TFLOP/s without a peak
 * (its performance summary). */
double mfu_peak(const char *device, enum precision precision);
/* Rate over peak; NaN if the peak is 0. */
double mfu_of(double flops_per_s, double peak);
#endif
