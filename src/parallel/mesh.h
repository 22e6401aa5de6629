/* mesh: the ranks of a run by what they share: pp x dp x tp.
 *
 * Rank = (pp_rank dp + r) tp + tp_rank: ranks that exchange most, those of one tensor-parallel group, are neighbours; then, counted by r,
 * those that share out one copy of the state (parallel.shard): copy c has r = c shard ... c shard + shard - 1, which can be the ranks of
 * one machine. dp_rank is the place of a rank in data and sums, part * copies + copy: so the sum inside a copy, then across copies, is the
 * tree of comm_sum over dp, whatever their number. With one copy it is r. The ranks of
 *   tp  hold slices of the same layers and work on the same micro-batches (each on its part of the tokens, between the GEMMs)
 *   dp  hold the same slices and work on micro-batches of their own; their gradients are summed
 *   pp  hold consecutive layers and pass activations and gradients on
 * A run on one rank is the mesh 1 x 1 x 1, whose communicators are all NULL. */
#ifndef INGOT_PARALLEL_MESH_H
#define INGOT_PARALLEL_MESH_H
#include "comm/comm.h"
#include "spec/spec.h"

enum { MESH_STAGES_MAX = 256 };
struct mesh_shape {
    int pp, dp, tp;
    int chunks;         /* pieces of the model on a rank of the pipeline: stage s is piece s / pp of rank s mod pp */
    enum pipe schedule;
    int layers[MESH_STAGES_MAX]; /* of each stage; layers[0] == 0: evenly */
    int zero, shard;    /* ZeRO stage; ranks of dp over which one copy is shared out */
};
struct mesh {
    struct mesh_shape shape;
    int pp_rank, dp_rank, tp_rank;
    struct comm *world, *pp, *dp, *tp;
    struct comm *inside, *across; /* ZeRO over fewer than all of dp: who shares a copy out; who holds the same part of others */
};

/* The shape that a spec asks for on so many ranks. STATUS_CONFIG, in one line, for what cannot be. */
status mesh_shape(const struct spec *s, int ranks, struct mesh_shape *out) WARN_UNUSED;
/* Whether a model can be divided so: the one place that knows, for a run and for a plan. STATUS_CONFIG in one line. */
status mesh_check(const struct spec *s, const struct mesh_shape *shape) WARN_UNUSED;
/* How many of a model's layers a stage has: as the run says, or as evenly as they go: the first stages get one more. */
int64_t mesh_stage_layers(const struct mesh_shape *shape, int64_t layers, int stage);
/* The place of a rank, without communicators: what a plan needs. */
struct mesh mesh_place(const struct mesh_shape *shape, int rank);
/* Collective over `world`, whose closing closes all of it. */
status mesh_open(struct mesh *m, const struct mesh_shape *shape, struct comm *world) WARN_UNUSED;
/* Which copy of a data-parallel group's state a rank holds a part of, and which part: copy 0 answers for it. */
static inline int mesh_copies(const struct mesh *m) { return m->shape.zero > 0 ? m->shape.dp / m->shape.shard : m->shape.dp; }
static inline int mesh_replica(const struct mesh *m) { return m->dp_rank % mesh_copies(m); }
/* Communicators that a rank is in, that of all among them. */
static inline int mesh_groups(const struct mesh_shape *m) { return 1 + (m->tp > 1) + (m->dp > 1) + (m->pp > 1) + (m->zero > 0 && m->dp > m->shard ? 2 : 0); }
static inline int mesh_part(const struct mesh *m) { return m->dp_rank / mesh_copies(m); }
static inline struct comm *mesh_shards(const struct mesh *m) { return m->inside ? m->inside : m->dp; }
static inline bool mesh_first(const struct mesh *m) { return m->pp_rank == 0; }
static inline bool mesh_last(const struct mesh *m) { return m->pp_rank == m->shape.pp - 1; }
#endif
