/* mesh_shrink: the mesh on which a job goes on when some of its ranks stay away (`ingot launch --min-ranks`).
 *
 * The data axis shrinks first, then pipeline, then tensor parallelism: of the meshes that keep more of the latter the
 * one with the most ranks. parallel.context and parallel.expert stay. Checkpoints do not depend on the mesh, and
 * train.gradient_groups is set so that sums keep their order where the rules of parallel/grad_reduce.h allow it. */
#ifndef INGOT_PLAN_MESH_SHRINK_H
#define INGOT_PLAN_MESH_SHRINK_H
#include "parallel/mesh.h"

enum { MESH_SHRINK_KEYS = 7 };
struct mesh_shrink {
    int ranks;
    struct mesh_shape shape;
    bool same_bits; /* losses and weights have the bits of all ranks */
    char keys[MESH_SHRINK_KEYS][64]; /* "--parallel.shard=2": what differs from the spec */
    int key_count;
};
/* For the spec of a job of `ranks`, of which at most `most`, and at least `least`, shall run. STATUS_CONFIG when no
 * mesh of so many is possible: the message says why the largest is not. */
status mesh_shrink(const struct spec *s, int ranks, int least, int most, struct mesh_shrink *out) WARN_UNUSED;
#endif
