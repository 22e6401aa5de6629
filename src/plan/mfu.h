/* Model FLOPs utilisation: the rate of useful FLOPs over what the GPU can do, in two conventions (docs/NOTATION.md has the formulas).
 *
 *     mfu      = tokens/s * plan_model_flops     / peak     attention's causal half counted: what must be computed
 *     mfu_full = tokens/s * mfu_flops_full       / peak     attention's full square counted: PaLM, nanoGPT, most reports */
#ifndef INGOT_PLAN_MFU_H
#define INGOT_PLAN_MFU_H
#include "plan/plan.h"

/* 6 N + 12 L (H hd) T FLOPs per trained token: N the weights that multiply (the head counted, also when tied; embedding, norms and
 * biases not), and every query against all T keys, whatever mask and window hide (arXiv:2204.02311, appendix B). */
double mfu_flops_full(const struct model_spec *m, int64_t sequence_length);
/* Dense FLOP/s that the maker states for a GPU, by its name as the driver gives it ("NVIDIA H200") and the precision's word ("bf16",
 * "tf32", "fp32"). 0 when the GPU is not in the table: there is no MFU then. */
double mfu_peak(const char *device, const char *precision);
/* Rate over peak; NaN without a peak. */
double mfu_of(double flops_per_s, double peak);
#endif
