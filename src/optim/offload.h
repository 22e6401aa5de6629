/* offload: the optimizer's state in pinned host memory (memory.offload_optimizer), for models larger than GPU memory.
 * Copies overlap compute.
 *
 * Master weights, moments and their scales are in one pinned arena of the host. The weights that GEMMs read, and the
 * gradients, stay on the GPU. A step first computes the gradient norm (UPDATE_GLOBAL_NORM), which needs no state, then
 * processes the arrays in pieces:
 *
 *     up      | 0 | 1 | 2 | 3 | 4 | ...          stream of host-to-device copies
 *     step                 |0| |1| |2| ...       the step's stream: UPDATE_APPLY
 *     down                   | 0 | 1 | ...       stream of device-to-host copies
 *
 * OFFLOAD_SLOTS device buffers hold the pieces in flight. Events order the three streams, so a captured graph contains
 * them. The first pieces are prefetched when the step begins, during its forward and backward passes
 * (offload_prefetch). A piece is a run of the optimizer's chunks. Each element sees the same operations as without
 * offload, so the bits are the same.
 *
 * Muon: of its matrices only the momentum is copied, in pieces of their own; the update direction stays on the GPU, in
 * the gradient's buffer. After these pieces come the master weights of the matrices, in the order of muon_step, cut
 * where they exceed a slot. They are copied while the GEMMs of the step run.
 *
 * In fp32 and tf32 the master weights are the weights: only moments are copied. What is read in fp32 in addition to a
 * bf16 copy (params: derived) is copied out of each piece while it is on the GPU. On the host (stream NULL) every call
 * runs at once: for tests. */
#ifndef INGOT_OPTIM_OFFLOAD_H
#define INGOT_OPTIM_OFFLOAD_H
#include "dev/dev.h"
#include "parallel/exec.h"

enum { OFFLOAD_SLOTS = 3, OFFLOAD_ARRAYS = 5 };
/* Elements of a piece, at most: 32 MiB of an fp32 array. Small models use smaller pieces, to have several. */
enum { OFFLOAD_PIECE = 1 << 23, OFFLOAD_PIECES = 16 };
enum offload_what { OFFLOAD_MASTER, OFFLOAD_FIRST, OFFLOAD_SECOND }; /* scales have the kind of their moment */
struct offload_array {
    enum offload_what what;
    char *host, *slots;         /* slots: [OFFLOAD_SLOTS][slot_bytes] on the device */
    size_t slot_bytes, bytes;   /* bytes: size of one entry */
    int64_t block;              /* number of parameter elements per entry: 1, or PARAM_ALIGN for scales */
};
/* Which arrays a piece copies: all; the first moment; master weights. */
enum offload_use { OFFLOAD_RULE, OFFLOAD_MOMENTUM, OFFLOAD_STEP };
struct offload_piece {
    enum offload_use use;
    int64_t chunk, chunk_count; /* range of params.chunks; empty for a STEP piece */
    int64_t begin, end;         /* elements of the flat arrays; under ZeRO of the sharded arrays */
    int64_t v_offset;           /* second moments begin this many elements earlier */
    int unit;                   /* under ZeRO: the one unit that the piece belongs to (optim_shift) */
};
struct offload {
    bool on;
    int64_t capacity;           /* number of elements of a slot */
    int array_count;
    struct offload_array arrays[OFFLOAD_ARRAYS];
    struct offload_piece *pieces; /* [piece_count], owned; those of use STEP come last */
    int64_t piece_count, step_first;
    int64_t step;               /* the piece that offload_acquire returns next */
    struct stream up, down;     /* copy streams of a GPU: host to device, device to host */
    struct event step_begun, uploaded[OFFLOAD_SLOTS], updated[OFFLOAD_SLOTS], downloaded[OFFLOAD_SLOTS];
};

/* Allocates the slots, from counting or real arenas, after params_layout. Does nothing without host_state. */
void offload_layout(struct offload *o, const struct params *p, struct arena *a);
/* Cuts params.chunks (a host copy, in ascending order) and Muon's matrices (after muon_claim) into pieces. */
status offload_cut(struct offload *o, const struct params *p, const struct update_chunk *table) WARN_UNUSED;
/* Opens the copy streams and events for a step's stream; NULL on the host. */
status offload_open(struct offload *o, struct stream *s) WARN_UNUSED;
void offload_close(struct offload *o);

/* Call at the beginning of a step: queues the copies of the first pieces to the GPU. */
status offload_prefetch(struct offload *o, const struct exec *r) WARN_UNUSED;
/* Queues UPDATE_APPLY for all pieces; `all` describes the flat arrays. The step's stream waits for the last copy back,
 * including STEP's. */
status offload_update(struct offload *o, const struct exec *r, const struct update_args *all) WARN_UNUSED;
/* Call both for each STEP piece in order, after offload_update. acquire: changes *master from a host address to the
 * device address of the same weights, and sets *count to their number. release: queues the copy back; call it once the
 * update of the weights is queued. */
status offload_acquire(struct offload *o, const struct exec *r, float **master, int64_t *count) WARN_UNUSED;
status offload_release(struct offload *o, const struct exec *r) WARN_UNUSED;
/* Bytes copied per step in each direction. */
double offload_bytes(const struct offload *o);
#endif
