/* Mixtures of experts have no kernels for a GPU yet: whoever calls these ops is told so. */
#include "ops/cuda/cuda_set.h"

#define REFUSED(op)                                                                                          \
    static status op(const struct op##_args *a, dev_stream s)                                                \
    {                                                                                                        \
        (void)a, (void)s;                                                                                    \
        return FAIL(STATUS_CONFIG, "moe layers run on the CPU alone (machine.device: cpu): there is no " #op \
                                   " on a GPU yet");                                                         \
    }
#define MOE_OPS(X)                                                                                           \
    X(route_fwd)                                                                                             \
    X(route_bwd) X(expert_gemm) X(expert_act_fwd) X(expert_act_bwd) X(combine) X(combine_gate_bwd) X(balance)
MOE_OPS(REFUSED)

static size_t moe_scratch(const struct moe_shape *shape, enum moe_memory what)
{
    (void)shape, (void)what;
    return 0;
}

void cuda_moe_slots(struct ops *o)
{
#define X(op) o->op = op;
    MOE_OPS(X)
#undef X
    o->moe_scratch = moe_scratch;
    o->expert_align = 128;
}
