/* Plans for many devices: what each mesh of dp x tp x pp needs in memory, sends and takes per step; and which of those that fit is fastest.
 *
 * Memory is what the run's own layout code asks for at a place of the mesh (plan_lay, block_lay), layer by layer, so that all stages come out
 * of one layout; the state is then divided as ZeRO divides it. One device is exactly plan_lay, and so are activations of every stage. Time is layer_time.h's for the compute, a walk of the
 * pipeline's schedule (parallel/pipeline_schedule.h), and traffic.h's for what is sent, less what hides:
 *     gathers and sums of tp around a GEMM hide behind it in backward, not in forward
 *     sums of gradients (ZeRO 0, 1) hide behind the last micro-batch's backward pass, but for the last layer's; gathers of weights behind
 *     the first forward pass, but for the first layer's; with ZeRO 2 and 3 the same in each micro-batch
 *     messages of a pipeline hide behind another micro-batch's compute but on the way in and out
 * and nothing hides on a host. */
#ifndef INGOT_PLAN_MESH_PLAN_H
#define INGOT_PLAN_MESH_PLAN_H
#include "parallel/mesh.h"
#include "parallel/pipeline_schedule.h"
#include "plan/layer_time.h"
#include "plan/plan.h"
#include "plan/traffic.h"

struct mesh_variant {
    struct mesh_shape mesh;     /* zero 1: optimizer, 2: and gradients, 3: and weights are shared out; schedule where pp > 1 */
    enum recompute recompute;
    int64_t micro_batch;        /* sequences */
};

/* Bytes per parameter of a rank, of `moments` bytes, sharded over `shards`. With bf16 and AdamW in sum: 18, 6 + 12/D, 2 + 16/D, 18/D for ZeRO 0 to 3. */
struct mesh_state {
    double weight, master, grad, moments;
    double host;                /* in host memory: memory.offload_optimizer */
};
struct mesh_state mesh_state_bytes(enum precision precision, double moments, int zero, int shards);
/* The same of a run; bytes: of the device, what passes through it included; second: part of the parameters that have two moments. */
struct mesh_moments { double bytes, second; };
struct mesh_state mesh_state_of(const struct run_spec *r, const struct mesh_moments *m, int zero, int shards);

#define MESH_MEMORY(X)                                                                                       \
    X(weights, "weights") X(grads, "gradients") X(optim, "optimizer") X(act, "activations")                  \
    X(scratch, "scratch") X(buffers, "in transit") X(inputs, "inputs") X(exchange, "comm")
struct mesh_memory {
#define X(name, text) double name;
    MESH_MEMORY(X)
#undef X
};
double mesh_memory_sum(const struct mesh_memory *m);

/* A rank of the pipeline. */
struct mesh_stage {
    int layers;                 /* of all its chunks */
    int slots, stores;          /* sets of activations of a chunk that it holds; of GEMMs that are put off (zb_h1) */
    double count;               /* parameters, before sharding over dp */
    double tables, rows, row_bytes; /* of them, those whose gradients are rows; what a step may read of them, and keeps: rank_share.h */
    double host;                /* bytes of the optimizer's state in host memory */
    struct mesh_memory memory;
    double forward, backward;   /* seconds of a micro-batch, with what is sent and not hidden */
    double ortho, exchange;     /* seconds of Muon's GEMMs per step, and of what ranks exchange for them */
};
/* An axis, on the rank where it takes longest. Per step. */
struct mesh_traffic {
    double bytes;               /* that a rank sends */
    double seconds, exposed;
};
struct mesh_result {
    struct mesh_variant variant;
    int micros;                 /* micro-batches of a rank per step, m */
    struct mesh_stage stages[PIPE_RANKS_MAX];
    int fullest, slowest;       /* stages */
    struct comm_memory room;      /* what exchanges take of each rank's GPU and host */
    bool fits;
    struct layer_time compute;  /* of the slowest stage */
    double optim;               /* seconds of the optimizer */
    double bubble;              /* seconds in which the slowest stage waits for others */
    struct mesh_traffic tp, dp, pp;
    double step;                /* seconds */
    double tokens_per_s, mfu;   /* of all devices; model FLOPs */
};
double mesh_result_bytes(const struct mesh_result *r); /* of its fullest stage */

/* What a search is about, with its caches. The spec is copied; the cluster's machine is a row of machine.def. */
struct mesh_plan;
status mesh_plan_open(struct mesh_plan **out, const struct spec *s, const struct cluster *c) WARN_UNUSED;
void mesh_plan_close(struct mesh_plan *p);
/* STATUS_CONFIG in one line when the model cannot be run so. Else *r, whether it fits or not. */
status mesh_plan_one(struct mesh_plan *p, const struct mesh_variant *v, struct mesh_result *r) WARN_UNUSED;
/* The mesh of the spec's own keys: parallel.*, train.recompute and train.micro_batch (auto: the fastest that fits). */
status mesh_plan_given(struct mesh_plan *p, struct mesh_result *r) WARN_UNUSED;

/* The fastest variant (ZeRO, schedule, chunks, recompute, micro_batch) of each dp x tp x pp, fastest first. */
struct mesh_list {
    int legal, fit;             /* variants that were looked at; of them, those that fit */
    int count, capacity;
    struct mesh_result *best;   /* [count], owned: mesh_list_free */
    struct mesh_result least;   /* of all, what needs the least memory */
};
/* STATUS_CONFIG when no mesh is possible, with the reason of the first. With count == 0 none fits: `least` is the nearest miss. */
status mesh_plan_search(struct mesh_plan *p, struct mesh_list *list) WARN_UNUSED;
void mesh_list_free(struct mesh_list *list);

/* `ingot plan RUN.yaml --machine 64xB200`: the best meshes and what limits the first, or the one that parallel.* gives; STATUS_FIT when none
 * fits, with the nearest miss. */
status mesh_plan_print(const struct spec *s, const char *machine, bool json) WARN_UNUSED;
#endif
