/* The rates of this host, for a prediction of a run on it: what machine.def says of hosts is one processor's. */
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
/* *out = the host's row with its peaks scaled to a GEMM of the model (width x ffn_size, timed on this process's threads), attention
 * with them, and the bytes per second of one of its memory-bound ops. Takes some milliseconds. */
status calibrate_host(const struct calibrate_args *a, struct machine *out) WARN_UNUSED;
#endif
