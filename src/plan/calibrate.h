/* Measures the rates of this host to predict a run on it. machine.def only has the rates of one processor. */
#ifndef INGOT_PLAN_CALIBRATE_H
#define INGOT_PLAN_CALIBRATE_H
#include "ops/ops.h"
#include "plan/machine.h"

struct calibrate_args {
    const struct ops *ops;          /* of the host */
    const struct model_spec *model;
    enum precision precision;
    int64_t tokens;                 /* of a micro-batch */
};
/* *out = the host's row of machine.def. Its peaks are scaled by a timed GEMM of the model (width x ffn_size, on this
 * process's threads), attention rates by the same factor, and the memory rate is that of one timed memory-bound op.
 * Takes some milliseconds. */
status calibrate_host(const struct calibrate_args *a, struct machine *out) WARN_UNUSED;
#endif
