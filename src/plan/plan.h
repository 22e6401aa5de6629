/* The planner: memory by category and FLOPs by part, from the run's own layout code, without allocating memory.
 *
 * The run calls plan_layout() with real arenas and the planner with counting arenas, so they cannot disagree. */
#ifndef INGOT_PLAN_PLAN_H
#define INGOT_PLAN_PLAN_H
#include "model/decoder.h"
#include "model/feed.h"
#include "ops/choose.h"
#include "optim/rank_state.h"
#include "plan/duration.h"

/*  arena   category        contents */
#define MEMORY_LIST(X)                                                                                       \
    X(param, "parameters",                                                                                   \
      "master weights (bf16: split into bf16 + 16-bit residual; offload: a bf16 copy), RoPE tables")         \
    X(grad, "gradients", "fp32, accumulated over the micro-batches")                                         \
    X(optim, "optimizer", "moments")                                                                         \
    X(act, "activations", "kept from forward to backward")                                                   \
    X(scratch, "scratch", "of one block at a time: recomputed tensors, gradients, logits chunk")             \
    X(input, "inputs", "on a GPU: token ids, targets, positions and scalars of one step")
struct memory {
#define X(name, category, text) struct arena name;
    MEMORY_LIST(X)
#undef X
    struct arena host; /* on a GPU: optimizer state in pinned host memory (memory.offload_optimizer) */
    struct comm_memory
        comm; /* communication buffers, which the communicator allocates, including pipeline mailboxes */
    enum dev_kind kind; /* device of the arenas */
};
/* The part of memory.room that is on the arenas' device. */
static inline size_t memory_communication(const struct memory *m)
{
    return m->kind == DEV_CUDA ? m->comm.device : m->comm.host;
}

enum plan_use { PLAN_TRAIN, PLAN_FORWARD }; /* FORWARD: evaluation and generation */

/* Allocates weights, gradients, moments, the rank's state (optim/rank_state.h) and the activations of one micro-batch
 * of `tokens` tokens at positions < `positions`. The arenas of `m` count or are real. */
struct plan_layout_args {
    enum plan_use use;
    dtype dt;
    enum recipe recipe;         /* of training; everything else computes from the weights themselves */
    struct current_linears current; /* RECIPE_CURRENT: precision_current */
    const char *fp8_exclude;    /* fp8.exclude; but with RECIPE_PLAIN */
    enum recompute recompute;
    enum optim optim;
    enum optim_state state;
    bool masterless; /* params.masterless */
    int64_t tokens, positions;
    int64_t docs_max, len_max; /* maximum documents of a micro-batch, and maximum length; 0: `tokens` */
    bool documents;            /* documents of any length: see feed_shape */
    int micro_count;           /* micro-batches in the feed at once; 0 means 1 */
    const struct mesh *mesh;   /* the mesh with this rank's position; NULL: one rank */
    int64_t gradient_groups;   /* train.gradient_groups */
    bool sparse;               /* params.sparse */
    int64_t step_micros;       /* micro-batches of a step over all data-parallel ranks; used with `sparse` */
    int sets, stores;      /* of a pipeline rank (struct layout); sets 0: as its schedule says */
    bool state_alone;      /* no activations: for the differences between ranks that share the state */
    bool overlay;          /* gradients reuse activation memory (grad_overlay.h) if overlay_apart allows it */
    bool z_loss;           /* train.z_loss is not 0 */
    bool offload;          /* memory.offload_optimizer; STATUS_CONFIG on a CPU */
    bool verify;           /* train.verify is not 0 */
    const struct ops *ops; /* the op set that scratch is sized for; NULL: the CPU's */
    enum dev_kind kind;    /* DEV_CUDA: a GPU's memory */
    struct stream *stream; /* of that GPU; NULL: the host, or a plan for a GPU that is not present */
    double bytes_max;      /* for plan_reserve: STATUS_OUT_OF_MEMORY above this; 0: no limit */
};
status plan_layout(struct memory *m, struct decoder *d, struct rank_state *rank, struct activations *a,
                   const struct plan_layout_args *args) WARN_UNUSED;
/* Counts with one plan_layout, reserves every arena with its size, allocates with a second plan_layout and seals the
 * arenas. */
status plan_reserve(struct memory *m, struct decoder *d, struct rank_state *rank, struct activations *a,
                    const struct plan_layout_args *args) WARN_UNUSED;
void memory_free(struct memory *m);
size_t
memory_peak(const struct memory *m); /* bytes: all arenas of the device and its communication buffers */
/* Communication buffers of a rank of the mesh. `depth`: messages of `message` bytes in a pipeline mailbox. */
struct comm_memory plan_comm_memory(const struct mesh_shape *shape, const struct comm_job *job,
                                    enum dev_kind kind, size_t message, int depth);

/* Arguments of plan_layout for a rank of a resolved training spec; the caller sets ops, dev and bytes_max. */
struct plan_layout_args plan_args(const struct spec *s, const struct mesh *mesh);
struct feed_shape plan_feed(const struct plan_layout_args *args);
/* Bytes that a rank may use: machine.memory_gib, or the device's free memory minus that of CUDA and its libraries. On
 * the host: the smaller of physical memory and the cgroup limit, divided by the ranks of the host. 0: unknown. `mesh`
 * NULL: one rank. */
double plan_bytes(const struct spec *s, const struct dev *dev, const struct mesh *mesh);
/* Memory of this host: the smaller of physical memory and the cgroup's limit. */
double plan_host_bytes(void);
/* train.micro_batch=auto: sets the largest number of sequences that divides the step's number and fits in bytes_max
 * on all ranks of the mesh. STATUS_OUT_OF_MEMORY: one sequence does not fit. Does not change a given number. */
status plan_micro_batch(struct spec *s, const struct ops *ops, const struct dev *dev,
                        const struct mesh *mesh) WARN_UNUSED;
/* STATUS_DEVICE: a GPU without what the spec's precision needs. A GPU that is not here has sm 0, and passes. */
status plan_check_gpu(const struct spec *s, const struct dev *dev) WARN_UNUSED;
/* The device and the op set of a spec. */
enum dev_kind plan_device(const struct spec *s);
struct choose_ops plan_ops(const struct spec *s, const char *isa);
int64_t plan_micro_count(const struct spec *s); /* micro-batches per step, of all ranks */

/* FLOPs per token of the forward pass, by part. Backward costs twice as much (attention: 2.5 times in hardware, 2
 * times in the model convention). */
#define FLOP_LIST(X)                                                                                         \
    X(qkv, "mixer projections")                                                                              \
    X(scores, "scores and values, states")                                                                   \
    X(out, "mixer output")                                                                                   \
    X(mlp, "feed-forward") X(head, "output head") X(mtp, "input of MTP modules") X(engram, "n-gram memory")
struct flops {
#define X(name, text) double name;
    FLOP_LIST(X)
#undef X
};
/* FLOPs of one layer; of the model. */
struct flops plan_layer_flops(const struct model_spec *m, int64_t layer, int64_t sequence_length);
struct flops plan_flops(const struct model_spec *m, int64_t sequence_length);
/* The same for training: 3 times forward. With model.hrm_cycles every block visit counts forward, and one per segment
 * backward, which is twice forward. plan_training_times: training over forward FLOPs of a layer. */
struct flops plan_training_flops(const struct model_spec *m, int64_t sequence_length);
double plan_training_times(const struct model_spec *m, int64_t layer);
/* Model FLOPs per trained token: the sum, without recompute (PaLM, arXiv:2204.02311, appendix B, with the causal half
 * of attention). */
double plan_model_flops(const struct model_spec *m, int64_t sequence_length);

/* What else a plan says: the time of a step, and how it was asked (plan/duration.h). */
struct plan_outlook {
    double step;                /* seconds; NaN: not known */
    const char *from, *why;     /* what it was predicted from; why it is not known */
    const char *machine;        /* row of machine.def; "" when not known */
    struct plan_command command;
};
/* What a run of one rank takes on its device here, and what there is for it. Errors as plan_print's; `need` is filled
 * in where it does not fit. */
struct plan_need {
    double bytes, have;         /* have 0: not known */
    enum dev_kind kind;
};
status plan_need_of(const struct spec *s, struct plan_need *need) WARN_UNUSED;
/* Prints the plan to stdout; STATUS_OUT_OF_MEMORY if it does not fit. */
status plan_print(const struct spec *s, const struct plan_outlook *outlook, int json) WARN_UNUSED;
#endif
