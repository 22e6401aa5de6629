/* mesh: the ranks of a run as pipeline x data x context x tensor parallelism (pp x dp x cp x tp).
 *
 *   tp   ranks hold slices of the same layers and work on the same micro-batches; between the GEMMs each has a part of
 *        the tokens
 *   cp   ranks hold the same slices and work on the same micro-batches, each on its part of every sequence
 *        (parallel/context.h)
 *   dp   ranks hold the same slices and work on their own micro-batches; their gradients are all-reduced
 *   pp   ranks hold consecutive layers; they send activations forward and gradients back
 *
 * Rank = ((pp_rank dp + r) cp + cp_rank) tp + tp_rank. So the ranks of one tp group, which communicate most, are
 * neighbours; next come those of one cp group. The dp x cp ranks hold the same slices of weights: they sum gradients
 * and shard the state. Without cp, the ranks that shard one copy of the state (parallel.shard) are neighbours too: copy
 * c is r = c shard ... c shard + shard - 1, which can be the ranks of one host.
 *
 * dp_rank = part * copies + copy is a rank's index in data and in sums, with copy = r / shard, part = r % shard. A sum
 * inside a copy, then across copies, is then the tree of comm_all_reduce over dp, for any number of copies. With one
 * copy dp_rank = r. With cp, dp_rank = r, and dp_cp_rank orders the dp x cp ranks by this rule, with r cp + cp_rank for
 * r.
 *
 * With expert parallelism (ep > 1, parallel.expert) let r be the index above among the dp x cp ranks (with cp: r cp +
 * cp_rank). The ep ranks with the same q = r / ep hold disjoint experts, and send each other the rows of tokens;
 * ep_rank = r % ep. Everything else stays data parallel over dp x cp. Experts are data parallel over the edp =
 * dp cp / ep ranks with the same ep_rank. edp_rank = q without sharded state; with it, edp_rank = part * copies + copy
 * with copy = r / shard, part = r % shard / ep.
 *
 * A run on one rank is the mesh 1 x 1 x 1 x 1. Its communicators are all NULL. */
#ifndef INGOT_PARALLEL_MESH_H
#define INGOT_PARALLEL_MESH_H
#include "comm/comm.h"
#include "spec/spec.h"

enum { MESH_STAGES_MAX = 1024 };
struct mesh_shape {
    int pp, dp, tp;
    int chunks;         /* pipeline stages per rank: stage s is chunk s / pp of rank s mod pp */
    enum pipeline_kind schedule;
    int layers[MESH_STAGES_MAX]; /* number of layers of each stage; layers[0] == 0: divided evenly */
    int zero, shard;    /* ZeRO stage; number of dp x cp ranks that shard one copy */
    int cp;             /* 0 means 1 */
    int ep;             /* number of expert-parallel ranks; 0 means 1 */
    enum context_kind context_kind;
};
struct mesh {
    struct mesh_shape shape;
    int pp_rank, dp_rank, cp_rank, tp_rank;
    int dp_cp_rank, ep_rank, edp_rank;
    struct comm *world, *pp, *dp, *cp, *tp;
    struct comm *dp_cp; /* the ranks that sum gradients and shard the state; is dp or cp if the other has one rank */
    struct comm *ep, *edp, *edp_inside, *edp_across; /* the expert-parallel ranks; for experts, what dp_cp, inside and
                                                        across are for other parameters */
    struct comm *inside, *across; /* hybrid sharding (HSDP): the ranks of one copy; those with the same shard of it */
};

/* The shape that a spec asks for on so many ranks. STATUS_CONFIG, in one line, if it is not possible. */
status mesh_shape(const struct spec *s, int ranks, struct mesh_shape *out) WARN_UNUSED;
/* Checks that the model supports the shape; the one check for runs and plans. STATUS_CONFIG in one line. */
status mesh_check(const struct spec *s, const struct mesh_shape *shape) WARN_UNUSED;
/* Rejects mesh features that are not implemented on GPUs. Ring attention is checked in train/trainer.c. STATUS_CONFIG
 * in one line. */
status mesh_check_gpu(const struct spec *s, const struct mesh_shape *shape) WARN_UNUSED;
/* Rejects mesh features that are not implemented between GPUs of several hosts, `host` GPUs each: the ranks
 * of parallel.expert must reach each other's memory (comm/gpu/cuda/device_comm_cuda.c). Ranks fill a host before the
 * next. STATUS_CONFIG in one line. */
status mesh_check_hosts(const struct mesh_shape *shape, int host) WARN_UNUSED;
/* Number of layers of a stage: as parallel.stages says; else divided evenly, and the first stages get one more. */
int64_t mesh_stage_layers(const struct mesh_shape *shape, int64_t layers, int stage);
/* The mesh as a rank sees it, but without communicators: for plans. */
struct mesh mesh_place(const struct mesh_shape *shape, int rank);
/* Collective over `world`. Closing `world` closes every communicator of the mesh. */
status mesh_open(struct mesh *m, const struct mesh_shape *shape, struct comm *world) WARN_UNUSED;
static inline int mesh_cp(const struct mesh_shape *m) { return m->cp > 1 ? m->cp : 1; }
static inline int mesh_dp_cp(const struct mesh_shape *m) { return m->dp * mesh_cp(m); }
static inline int mesh_ranks(const struct mesh_shape *m) { return m->pp * mesh_dp_cp(m) * m->tp; }
/* Number of communicators of a rank, including the world. */
int mesh_groups(const struct mesh_shape *m);
/* mesh_copies: number of copies of the state in the dp x cp group. mesh_replica: the copy that this rank belongs to;
 * copy 0 contributes to norms and files. mesh_shard_rank: the shard of the copy that it holds. mesh_shards: the ranks
 * that hold the shards of its copy. */
static inline int mesh_copies(const struct mesh *m) { return m->shape.zero > 0 ? mesh_dp_cp(&m->shape) / m->shape.shard : mesh_dp_cp(&m->shape); }
static inline int mesh_replica(const struct mesh *m) { return m->dp_cp_rank % mesh_copies(m); }
static inline int mesh_shard_rank(const struct mesh *m) { return m->dp_cp_rank / mesh_copies(m); }
static inline struct comm *mesh_shards(const struct mesh *m) { return m->inside ? m->inside : m->dp_cp; }
/* The data-parallel ranks of a unit of parameters, which may be experts: all of them, those of one copy, and those with
 * the same shard; the number of copies, and the one that this rank has. */
struct mesh_data { struct comm *all, *inside, *across; int copies, replica; };
struct mesh_data mesh_data_of(const struct mesh *m, bool experts);
static inline int mesh_ep(const struct mesh_shape *m) { return m->ep > 1 ? m->ep : 1; }
static inline int mesh_edp(const struct mesh_shape *m) { return mesh_dp_cp(m) / mesh_ep(m); }
static inline bool mesh_first(const struct mesh *m) { return m->pp_rank == 0; }
static inline bool mesh_last(const struct mesh *m) { return m->pp_rank == m->shape.pp - 1; }
#endif
