/* Selects the op set of a device. Only this file knows which sets the build contains. */
#ifndef INGOT_OPS_CHOOSE_H
#define INGOT_OPS_CHOOSE_H
#include "dev/dev.h"
#include "ops/ops.h"

enum choose_attention {
    CHOOSE_ATTENTION_AUTO,
    CHOOSE_ATTENTION_CUDNN,
    CHOOSE_ATTENTION_OWN,
    CHOOSE_ATTENTION_REFERENCE
};
struct choose_ops {
    const char *isa;                    /* CPU: see ops_cpu */
    bool tf32;                          /* GPU: GEMMs of F32 in TF32 */
    enum choose_attention attention;    /* GPU: attention.backend */
    bool attention_atomic;              /* GPU: see ops_cuda */
    const char *gemm_cache;             /* GPU: see ops_cuda */
    int sm;                             /* GPU: see ops_cuda */
};

/* Fills `o` with the op set of a device. `s` is a stream of that device, NULL on the CPU. The planner passes DEV_CUDA
 * without a stream and gets the traits only. STATUS_CONFIG: the device does not support what `c` asks for.
 * choose_close detaches the set from the stream. */
status choose_open(struct ops *o, enum dev_kind kind, struct stream *s, const struct choose_ops *c) WARN_UNUSED;
void choose_close(struct stream *s);
void choose_workspace(struct stream *s, void *workspace, size_t bytes);

/* The GEMM algorithms that this run has chosen, as text for its checkpoints. The caller frees it. NULL: the set
 * chooses no algorithms. choose_algorithms_set restores them and must be called before the first step, because a
 * different algorithm rounds differently. */
char *choose_algorithms(struct stream *s);
status choose_algorithms_set(struct stream *s, const char *text) WARN_UNUSED;
#endif
