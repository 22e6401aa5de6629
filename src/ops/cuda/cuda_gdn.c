/* Gated DeltaNet has no kernels for a GPU yet: plan_lay refuses such models before a device is touched, and these slots whoever calls the ops themselves. */
#include "ops/cuda/cuda_set.h"

#define REFUSED(op)                                                                                          \
    static status op(const struct op##_args *a, dev_stream s)                                                \
    {                                                                                                        \
        (void)a, (void)s;                                                                                    \
        return FAIL(STATUS_CONFIG, "gdn layers run on the CPU alone (machine.device: cpu): there is no " #op \
                                   " on a GPU yet");                                                         \
    }
#define GDN_OPS(X)                                                                                           \
    X(conv_fwd)                                                                                              \
    X(conv_bwd) X(gates_fwd) X(gates_bwd) X(delta_fwd) X(delta_bwd) X(gated_norm_fwd) X(gated_norm_bwd)
GDN_OPS(REFUSED)

static size_t delta_bytes(const struct delta_shape *shape, enum delta_memory what)
{
    (void)shape, (void)what;
    return 0;
}

void cuda_gdn_slots(struct ops *o)
{
#define X(op) o->op = op;
    GDN_OPS(X)
#undef X
    o->delta_bytes = delta_bytes;
}
