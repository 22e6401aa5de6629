/* mesh_shrink: the mesh for restarting a job with fewer ranks (`ingot launch --min-ranks`).
 *
 * The data axis shrinks first, then pipeline, then tensor parallelism; with equal tensor and pipeline parallelism the
 * mesh with the most ranks wins. parallel.context and parallel.expert do not change. Checkpoints do not depend on the
 * mesh, and train.gradient_groups is set so that sums keep their order where the rules of parallel/grad_reduce.h allow
 * it. */
#ifndef INGOT_PLAN_MESH_SHRINK_H
#define INGOT_PLAN_MESH_SHRINK_H
#include "parallel/mesh.h"

enum { MESH_SHRINK_KEYS = 7 };
struct mesh_shrink {
    int ranks;
    struct mesh_shape shape;
    bool same_bits; /* losses and weights keep the bits that the full job has */
    char keys[MESH_SHRINK_KEYS][64]; /* "--parallel.shard=2": what differs from the spec */
    int key_count;
};
/* `ranks`: number of ranks that the spec was started with; the result has `least` to `most` ranks. STATUS_CONFIG if no
 * such mesh is possible: the message says why the largest is not. */
status mesh_shrink(const struct spec *s, int ranks, int least, int most, struct mesh_shrink *out) WARN_UNUSED;
#endif
