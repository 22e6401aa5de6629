/* The planner: memory by category and FLOPs by part, from the run's own layout code, without allocating anything.
 *
 * plan_lay() is what the run calls with real arenas and the planner with counting ones: they cannot disagree. */
#ifndef INGOT_PLAN_PLAN_H
#define INGOT_PLAN_PLAN_H
#include "model/decoder.h"
#include "model/feed.h"
#include "ops/choose.h"
#include "optim/rank_state.h"

/*  arena   category        contents */
#define MEMORY_LIST(X)                                                                                       \
    X(param, "parameters", "master weights, in bf16 as two halves; where they are offloaded, a bf16 copy; rope tables")                                    \
    X(grad, "gradients", "fp32, accumulated over the micro-batches")                                         \
    X(optim, "optimizer", "moments")                                                                         \
    X(act, "activations", "kept from forward to backward")                                                   \
    X(scratch, "scratch", "of one block at a time: recomputed tensors, gradients, logits chunk")             \
    X(input, "inputs", "on a GPU: token ids, targets, positions and scalars of one step")
struct memory {
#define X(name, category, text) struct arena name;
    MEMORY_LIST(X)
#undef X
    struct arena host; /* of a GPU run: optimizer state in pinned host memory (memory.offload_optimizer) */
    struct comm_memory room; /* communication buffers, which the communicator allocates, with the mailboxes of a pipeline */
    enum dev_kind kind;    /* the device of the arenas */
};
/* The part of memory.room on the device of the arenas. */
static inline size_t memory_exchange(const struct memory *m) { return m->kind == DEV_CUDA ? m->room.card : m->room.host; }

enum plan_use { PLAN_TRAIN, PLAN_FORWARD }; /* FORWARD: evaluation and generation of a finished model */

/* Lays out weights, gradients, moments, the rank's state (optim/rank_state.h) and the activations of one micro-batch of
 * `tokens` tokens at positions < `positions`. The arenas of `m` may only count, or be real. */
struct plan_lay_args {
    enum plan_use use;
    dtype dt;
    enum recipe recipe;
    enum recompute recompute;
    enum optim optim;
    enum optim_state state;
    bool masterless;           /* params.masterless */
    int64_t tokens, positions;
    int64_t docs_max, len_max; /* documents of a micro-batch and the length of the longest; 0: `tokens` */
    bool documents;            /* of any length: see feed_shape */
    int micro_count;           /* micro-batches in the feed at once; 0: 1 */
    const struct mesh *mesh;   /* as the rank sees it; NULL: one rank */
    int64_t gradient_groups;   /* train.gradient_groups */
    bool sparse;               /* params.sparse */
    int64_t step_micros;       /* micro-batches of a step, over all data-parallel ranks; used with `sparse` */
    bool overlay;              /* gradients reuse the memory of activations (grad_overlay.h), if overlay_apart allows it */
    bool offload;              /* memory.offload_optimizer; on a CPU STATUS_CONFIG */
    const struct ops *ops;     /* the op set that scratch is for; NULL: the CPU's */
    enum dev_kind kind;        /* DEV_CUDA: a GPU's memory */
    struct stream *stream;     /* of that GPU; NULL: the host, or a plan for a GPU that is not present */
    double bytes_max; /* plan_reserve: STATUS_FIT above it; 0: no limit */
};
status plan_lay(struct memory *m, struct decoder *d, struct rank_state *rank, struct activations *a,
                const struct plan_lay_args *args) WARN_UNUSED;
/* Counts with a first plan_lay, reserves every arena with that size, lays out for real and seals the arenas. */
status plan_reserve(struct memory *m, struct decoder *d, struct rank_state *rank, struct activations *a,
                    const struct plan_lay_args *args) WARN_UNUSED;
void memory_free(struct memory *m);
size_t memory_peak(const struct memory *m); /* bytes: all arenas of the device and its communication buffers */
/* Communication buffers of a rank of the mesh. `depth`: messages of `message` bytes that a pipeline mailbox holds. */
struct comm_memory plan_comm_memory(const struct mesh_shape *shape, const struct comm_job *job, enum dev_kind kind,
                                    size_t message, int depth);

/* Arguments of plan_lay for a rank of a resolved training spec; ops, dev and bytes_max are left to the caller. */
struct plan_lay_args plan_args(const struct spec *s, const struct mesh *mesh);
struct feed_shape plan_feed(const struct plan_lay_args *args);
/* Bytes that a rank may use: machine.memory_gib, or what the device has free, less what CUDA and its libraries take; on the host the
 * smaller of physical memory and the cgroup's limit, divided among the ranks that are there. 0: not known. `mesh` NULL: one rank. */
double plan_bytes(const struct spec *s, const struct dev *dev, const struct mesh *mesh);
/* train.micro_batch=auto: the largest number of sequences that divides the step's and fits in bytes_max, on all ranks of the mesh.
 * STATUS_FIT when one sequence does not fit. Leaves a given number alone. */
status plan_micro_batch(struct spec *s, const struct ops *ops, const struct dev *dev,
                        const struct mesh *mesh) WARN_UNUSED;
/* The device and the op set that a spec asks for. */
enum dev_kind plan_device(const struct spec *s);
struct choose_ops plan_ops(const struct spec *s, const char *isa);
int64_t plan_micro_count(const struct spec *s); /* micro-batches per step, of all ranks */

/*  FLOPs of the forward pass per token, by part; backward costs twice as much (attention: 2.5 times in hardware, 2 in the model convention) */
#define FLOP_LIST(X)                                                                                         \
    X(qkv, "mixer projections")                                                                              \
    X(scores, "scores and values, states")                                                                      \
    X(out, "mixer output") X(mlp, "feed-forward") X(head, "output head") X(mtp, "input of extra predictions") X(engram, "n-gram memory")
struct flops {
#define X(name, text) double name;
    FLOP_LIST(X)
#undef X
};
/* Of one layer; of the model. */
struct flops plan_layer_flops(const struct model_spec *m, int64_t layer, int64_t sequence_length);
struct flops plan_flops(const struct model_spec *m, int64_t sequence_length);
/* The same of training: 3 times forward; with model.hrm_cycles every visit of a block forward, and one per segment backward, which is twice
 * that. And how many times forward's a layer's are in it. */
struct flops plan_training_flops(const struct model_spec *m, int64_t sequence_length);
double plan_training_times(const struct model_spec *m, int64_t layer);
/* Model FLOPs per trained token: the sum, nothing counted for recompute (PaLM, arXiv:2204.02311, appendix B, with the causal
 * half of attention counted once). */
double plan_model_flops(const struct model_spec *m, int64_t sequence_length);

/* Prints the plan to stdout; STATUS_FIT when it does not fit. */
status plan_print(const struct spec *s, int json) WARN_UNUSED;
#endif
