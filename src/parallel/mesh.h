/* mesh: the ranks of a run as pipeline x data x context x tensor parallelism (pp x dp x cp x tp).
 *
 *   tp ranks hold slices of the same layers and work on the same micro-batches, each on its part of the tokens between
 *   the GEMMs; cp ranks hold the same slices and work on the same micro-batches, each on its part of every sequence
 *   (parallel/context.h); dp ranks hold the same slices and work on their own micro-batches; their gradients are all-reduced; pp
 *   ranks hold consecutive layers; they send activations forward and gradients back
 *
 * Rank = ((pp_rank dp + r) cp + cp_rank) tp + tp_rank. Ranks that communicate most, those of one tp group, are
 * neighbours, then those of one cp group. dp x cp ranks hold the same slices of weights: they sum gradients and shard
 * the state. Without cp: next come the ranks that shard one copy of the state (parallel.shard): copy c is r = c shard ... c shard + shard - 1, which can
 * be the ranks of one host.
 *
 * dp_rank = part * copies + copy is the index of a rank in data and in sums. A sum inside a copy, then across copies,
 * is then the tree of comm_sum over dp, for any number of copies. With one copy dp_rank = r.
 *
 * With cp, dp_rank = r, and dp_cp_rank orders the dp x cp ranks by the rule above, with r cp + cp_rank for r.
 *
 * With expert parallelism (ep > 1, parallel.expert) ep neighbours r = q ep ... q ep + ep - 1 of the dp x cp ranks hold
 * disjoint experts and send each other the rows of tokens; with cp, r is r cp + cp_rank. Everything else is data parallel
 * over dp x cp as before; experts are data parallel over the edp = dp cp / ep ranks of equal r mod ep. edp_rank is to q, with shard / ep, what dp_rank is to r.
 *
 * A run on one rank is the mesh 1 x 1 x 1 x 1. Its communicators are all NULL. */
#ifndef INGOT_PARALLEL_MESH_H
#define INGOT_PARALLEL_MESH_H
#include "comm/comm.h"
#include "spec/spec.h"

enum { MESH_STAGES_MAX = 1024 };
struct mesh_shape {
    int pp, dp, tp;
    int chunks;         /* of the model, on a pipeline rank: stage s is chunk s / pp of rank s mod pp */
    enum pipeline_kind schedule;
    int layers[MESH_STAGES_MAX]; /* of each stage; layers[0] == 0: evenly */
    int zero, shard;    /* ZeRO stage; dp x cp ranks that shard one copy */
    int cp;             /* 0: 1 */
    int ep;             /* ranks that share out the experts; 0: 1 */
    enum context_kind context_kind;
};
struct mesh {
    struct mesh_shape shape;
    int pp_rank, dp_rank, cp_rank, tp_rank;
    int dp_cp_rank, ep_rank, edp_rank;
    struct comm *world, *pp, *dp, *cp, *tp;
    struct comm *dp_cp; /* of gradients and state; is dp or cp where the other has one rank */
    struct comm *ep, *edp, *edp_inside, *edp_across; /* the ranks that share out the experts; of experts, as dp, inside,
                                                        across */
    struct comm *inside, *across; /* hybrid sharding (HSDP): the ranks of one copy; those with the same shard of it */
};

/* The shape that a spec asks for on so many ranks. STATUS_CONFIG, in one line, if it is not possible. */
status mesh_shape(const struct spec *s, int ranks, struct mesh_shape *out) WARN_UNUSED;
/* Whether a model supports the shape; the one check for runs and plans. STATUS_CONFIG in one line. */
status mesh_check(const struct spec *s, const struct mesh_shape *shape) WARN_UNUSED;
/* What of it GPUs lack so far, but for a ring (train/trainer.c). STATUS_CONFIG in one line. */
status mesh_check_gpu(const struct spec *s, const struct mesh_shape *shape) WARN_UNUSED;
/* Layers of a stage: as parallel.stages gives them; else evenly, where the first stages get one more. */
int64_t mesh_stage_layers(const struct mesh_shape *shape, int64_t layers, int stage);
/* The mesh as a rank sees it, without communicators: for plans. */
struct mesh mesh_place(const struct mesh_shape *shape, int rank);
/* Collective over `world`. Closing `world` closes every communicator of the mesh. */
status mesh_open(struct mesh *m, const struct mesh_shape *shape, struct comm *world) WARN_UNUSED;
static inline int mesh_cp(const struct mesh_shape *m) { return m->cp > 1 ? m->cp : 1; }
static inline int mesh_dp_cp(const struct mesh_shape *m) { return m->dp * mesh_cp(m); }
static inline int mesh_ranks(const struct mesh_shape *m) { return m->pp * mesh_dp_cp(m) * m->tp; }
/* Which copy of the dp x cp group's state a rank belongs to, and which shard it holds. Copy 0 contributes to
 * norms and files. */
static inline int mesh_copies(const struct mesh *m) { return m->shape.zero > 0 ? mesh_dp_cp(&m->shape) / m->shape.shard : mesh_dp_cp(&m->shape); }
static inline int mesh_replica(const struct mesh *m) { return m->dp_cp_rank % mesh_copies(m); }
/* Communicators of a rank, including the one of all ranks. */
int mesh_groups(const struct mesh_shape *m);
static inline int mesh_part(const struct mesh *m) { return m->dp_cp_rank / mesh_copies(m); }
static inline struct comm *mesh_shards(const struct mesh *m) { return m->inside ? m->inside : m->dp_cp; }
/* The data axis of a unit of parameters, which may be experts: its ranks, those of one copy, and those with one shard;
 * how many copies there are, and which one this rank has. */
struct mesh_data { struct comm *all, *inside, *across; int copies, replica; };
struct mesh_data mesh_data_of(const struct mesh *m, bool experts);
static inline int mesh_ep(const struct mesh_shape *m) { return m->ep > 1 ? m->ep : 1; }
static inline int mesh_edp(const struct mesh_shape *m) { return mesh_dp_cp(m) / mesh_ep(m); }
static inline bool mesh_first(const struct mesh *m) { return m->pp_rank == 0; }
static inline bool mesh_last(const struct mesh *m) { return m->pp_rank == m->shape.pp - 1; }
#endif
