/* The op set of a device: the one place that knows which sets this build holds. */
#ifndef INGOT_OPS_CHOOSE_H
#define INGOT_OPS_CHOOSE_H
#include "dev/dev.h"
#include "ops/ops.h"

enum choose_attention { CHOOSE_ATTENTION_AUTO, CHOOSE_ATTENTION_CUDNN, CHOOSE_ATTENTION_OWN, CHOOSE_ATTENTION_REFERENCE };
struct choose_ops {
    const char *isa;                    /* CPU: see ops_cpu */
    bool tf32;                          /* GPU: GEMMs of F32 in TF32 */
    enum choose_attention attention;    /* GPU */
    bool attention_atomic;              /* GPU: see ops_cuda */
    const char *gemm_cache;             /* GPU: see ops_cuda */
    int sm;                             /* GPU: see ops_cuda */
};

/* `s` is a stream of the device, or NULL on the CPU. With kind DEV_CUDA and no stream: traits alone, for the planner. STATUS_CONFIG for
 * what the device does not offer. choose_close takes the set off the stream. */
status choose_open(struct ops *o, enum dev_kind kind, struct stream *s, const struct choose_ops *c) WARN_UNUSED;
void choose_close(struct stream *s);
void choose_workspace(struct stream *s, void *workspace, size_t bytes);

/* The algorithms that the GEMMs of this run use, as text (caller frees; NULL: the set chooses none), for its checkpoints; and back,
 * before the first step: another algorithm is another rounding. */
char *choose_algorithms(struct stream *s);
status choose_algorithms_set(struct stream *s, const char *text) WARN_UNUSED;
#endif
