/* Plans for many devices: memory, traffic and step time of each mesh dp x cp x tp x pp, with experts sharded over ep
 * ranks of dp, and the fastest mesh that fits.
 *
 * Memory comes from the run's own layout code at a position of the mesh (plan_layout, block_layout), layer by layer:
 * one layout gives all stages. The state is then divided as ZeRO divides it. For one device the result equals
 * plan_layout's exactly, and so do the activations of every stage. Time is layer_time.h's for compute, a simulation of
 * the pipeline schedule (parallel/pipeline_schedule.h), and traffic.h's for communication, minus overlap:
 *     tp: the gathers and reductions around a GEMM overlap it in backward, not in forward
 *     dp, ZeRO 0 and 1: the gradient reductions overlap the last micro-batch's backward, except that of the last layer;
 *         weight gathers overlap the first forward, except that of the first layer
 *     dp, ZeRO 2 and 3: the same in each micro-batch
 *     cp, ep: nothing overlaps what ranks exchange (plan/exchange.h)
 *     pp: messages overlap another micro-batch's compute, except at the start and end of the pipeline
 * On a host nothing overlaps. */
#ifndef INGOT_PLAN_MESH_PLAN_H
#define INGOT_PLAN_MESH_PLAN_H
#include "parallel/mesh.h"
#include "parallel/pipeline_schedule.h"
#include "plan/layer_time.h"
#include "plan/plan.h"
#include "plan/traffic.h"

struct mesh_variant {
    struct mesh_shape mesh;     /* zero: 1 shards the optimizer, 2 also gradients, 3 also weights; schedule: used if
                                   pp > 1 */
    enum recompute recompute;
    int64_t micro_batch;        /* sequences */
};

/* Bytes per parameter of a rank, sharded over `shards`; `moments` is bytes per parameter. With bf16 and AdamW the sum
 * is 18, 6 + 12/D, 2 + 16/D, 18/D for ZeRO 0 to 3. */
struct mesh_state {
    double weight, master, grad, moments;
    double host;                /* in host memory: memory.offload_optimizer */
};
struct mesh_state mesh_state_bytes(enum precision precision, double moments, int zero, int shards);
/* The same for a run. bytes: on the device, including what passes through it; second: fraction of the parameters with
 * two moments. */
struct mesh_moments { double bytes, second; };
struct mesh_state mesh_state_of(const struct run_spec *r, const struct mesh_moments *m, int zero, int shards);

#define MESH_MEMORY(X)                                                                                       \
    X(weights, "weights") X(grads, "gradients") X(optim, "optimizer") X(act, "activations")                  \
    X(scratch, "scratch") X(buffers, "in transit") X(inputs, "inputs") X(communication, "comm")
struct mesh_memory {
#define X(name, text) double name;
    MESH_MEMORY(X)
#undef X
};
double mesh_memory_sum(const struct mesh_memory *m);

/* A rank of the pipeline. */
struct mesh_stage {
    int layers;                 /* sum over its chunks */
    int slots, stores;          /* activation sets of a chunk that it holds; deferred GEMMs (zb_h1) */
    double count, experts;      /* parameters before sharding over dp; of them, experts that ranks shard */
    double tables, rows, row_bytes; /* parameters with sparse gradients; those that a step may read; bytes kept:
                                       rank_share.h */
    double host;                /* bytes of optimizer state in host memory */
    double codes, codes_s;      /* FP8: bytes of the codes of its weights; seconds per step to make them */
    double moved, moved_experts; /* of count - experts, and of experts: parameters that ZeRO 3 all-gathers as codes */
    struct mesh_memory memory;
    double first_bytes;         /* of its first rank, of mesh_plan_layout; the memory is of its fullest */
    double unit_weights;        /* of memory.buffers: whole weights of units (ZeRO 3) */
    double forward, backward;   /* seconds of a micro-batch, including communication that is not overlapped */
    double muon, communication;      /* seconds per step of Muon's GEMMs, and of communication for them */
};
/* One mesh axis, on its slowest rank, per step. */
struct mesh_traffic {
    double bytes;               /* sent by a rank */
    double seconds, exposed;
};
struct mesh_result {
    struct mesh_variant variant;
    int micros;                 /* micro-batches of a rank per step, m */
    struct mesh_stage stages[PIPELINE_RANKS_MAX];
    int fullest, slowest;       /* stage indices */
    struct comm_memory comm_memory; /* communication buffers on each rank's GPU and host */
    bool fits;
    struct layer_time compute;  /* of the slowest stage */
    double optim;               /* seconds of the optimizer */
    double bubble;              /* seconds that the slowest stage waits for others */
    struct mesh_traffic tp, cp, ep, dp, pp;
    double step;                /* seconds */
    double tokens_per_s, mfu;   /* all devices; model FLOPs */
};
double mesh_result_bytes(const struct mesh_result *r); /* of its fullest stage */
/* "dp 8 (ep 4) x cp 2 x tp 1 x pp 1": ep and cp where they are more than one. Returns buf. */
enum { MESH_AXES = 96 };
const char *mesh_axes(char buf[MESH_AXES], const struct mesh_shape *m);

/* A search with its caches. Spec, machine and assumptions are copied. */
struct mesh_plan;
status mesh_plan_open(struct mesh_plan **out, const struct spec *s, const struct cluster *c) WARN_UNUSED;
void mesh_plan_close(struct mesh_plan *p);
/* Plans one variant. STATUS_CONFIG, in one line: the model cannot run this way. Else *r, whether it fits or not. */
status mesh_plan_one(struct mesh_plan *p, const struct mesh_variant *v, struct mesh_result *r) WARN_UNUSED;
/* Replaces the memory of r's stages by what the run's own layout code takes for the fullest rank of each stage, byte
 * for byte; the search's numbers come from one layout of the whole model, and are near it. */
status mesh_plan_layout(const struct mesh_plan *p, struct mesh_result *r) WARN_UNUSED;
/* The same for the fullest stage alone: whether the variant fits. */
status mesh_plan_layout_fullest(const struct mesh_plan *p, struct mesh_result *r) WARN_UNUSED;
/* The same for one rank of the mesh. */
status mesh_plan_layout_rank(const struct mesh_plan *p, const struct mesh_result *r, int rank,
                             struct mesh_memory *out) WARN_UNUSED;
/* Plans the mesh that the spec's keys set: parallel.*, train.recompute and train.micro_batch (auto: the fastest that
 * fits). */
status mesh_plan_given(struct mesh_plan *p, struct mesh_result *r) WARN_UNUSED;

/* The fastest variant (dp and its ep, cp, ZeRO, schedule, chunks, recompute, micro_batch) of each tp x pp, fastest
 * first. Context ranks are looked at where fewer of them leave little to do or no room (mesh_search.c). */
struct mesh_list {
    int legal, fit;             /* examined variants; those that fit */
    int count, capacity;
    struct mesh_result *best;   /* [count], owned: mesh_list_free */
    int start_count, start_capacity;
    struct mesh_result *starts; /* [start_count], owned: the same, of variants that a command starts (mesh_lacks) */
    struct mesh_result least;   /* the variant with the least memory of all */
};
/* STATUS_CONFIG, with the reason of the first, if no mesh is possible. With count == 0 none fits: `least` is the
 * closest. */
status mesh_plan_search(struct mesh_plan *p, struct mesh_list *list) WARN_UNUSED;
/* The same for one tp x pp, which multiply to a divisor of the devices: count is 1 or, when it does not fit, 0. cp, ep
 * 0: any. */
struct mesh_asked { int tp, pp, cp, ep; };
status mesh_plan_search_one(struct mesh_plan *p, const struct mesh_asked *asked,
                            struct mesh_list *list) WARN_UNUSED;
void mesh_list_free(struct mesh_list *list);

/* `ingot plan RUN.yaml --machine 64xB200`: prints the best meshes and what limits the first, or the mesh of
 * parallel.*. STATUS_OUT_OF_MEMORY if none fits, with the closest. */
status mesh_plan_print(const struct spec *s, const char *machine, const struct plan_command *command,
                       bool json) WARN_UNUSED;
#endif
