/* offload: the optimizer's state in host memory (memory.offload_optimizer), for models beyond the GPU.
 *
 * Master weights, moments and their scales lie in one pinned arena of the host; the weights that GEMMs read and the gradients stay on
 * the GPU. A step first forms the norm of all gradients (UPDATE_NORM), which needs no state, then walks the arrays in pieces:
 *
 *     up      | 0 | 1 | 2 | 3 | 4 | ...          a stream of copies to the GPU
 *     step                 |0| |1| |2| ...       the step's own stream: UPDATE_RULE
 *     down                   | 0 | 1 | ...       a stream of copies back
 *
 * through OFFLOAD_SLOTS places on the GPU; events order the three, so that a captured step holds them, too. The first pieces go up when
 * the step begins, behind its forward and backward passes (offload_begin). A piece is a run of the optimizer's chunks: each element sees
 * the operations that it sees without, so the bits are the same.
 *
 * Of Muon's matrices momentum alone travels then, in pieces of their own: what it makes of the gradient stays on the GPU, in the gradient's
 * place. Behind these pieces come their master weights, which the steps move: in the order of muon_step, cut where they are longer than a
 * slot. They are on their way while GEMMs make the steps.
 *
 * In fp32 and tf32 master weights are the weights: moments alone travel. What is read in fp32 beside a bf16 copy (params: derived) is
 * copied out of each piece on its way. On the host, where a stream is NULL, all of it happens at once: for tests. */
#ifndef INGOT_OPTIM_OFFLOAD_H
#define INGOT_OPTIM_OFFLOAD_H
#include "dev/dev.h"
#include "parallel/exec.h"

enum { OFFLOAD_SLOTS = 3, OFFLOAD_ARRAYS = 5 };
/* Elements of a piece, at most: 32 MiB of an fp32 array. Small models have smaller ones, so that they have several. */
enum { OFFLOAD_PIECE = 1 << 23, OFFLOAD_PIECES = 16 };
enum offload_what { OFFLOAD_MASTER, OFFLOAD_FIRST, OFFLOAD_SECOND }; /* master weights, moments; scales are their moment's */
struct offload_array {
    enum offload_what what;
    char *host, *slots;         /* slots: [OFFLOAD_SLOTS][slot_bytes] on the device */
    size_t slot_bytes, bytes;   /* bytes: of an entry */
    int64_t block;              /* elements of a parameter that share an entry: 1, or PARAM_ALIGN */
};
enum offload_use { OFFLOAD_RULE, OFFLOAD_MOMENTUM, OFFLOAD_STEP }; /* all arrays; the first moment; master weights */
struct offload_piece {
    enum offload_use use;
    int64_t chunk, chunk_count; /* of params.chunks; of a STEP none */
    int64_t begin, end;         /* elements of the flat arrays; of arrays of parts with ZeRO, */
    int64_t no_v;               /* in second moments so many further in front, */
    int unit;                   /* and with ZeRO of one unit, as arrays that are whole lie elsewhere for each */
};
struct offload {
    bool on;
    int64_t room;               /* elements of a slot */
    int array_count;
    struct offload_array arrays[OFFLOAD_ARRAYS];
    struct offload_piece *pieces; /* [piece_count], owned; those of use STEP come last */
    int64_t piece_count, step_first;
    int64_t step;               /* the one that offload_take gives next */
    struct stream up, down;     /* of a GPU */
    struct event begun, there[OFFLOAD_SLOTS], moved[OFFLOAD_SLOTS], back[OFFLOAD_SLOTS];
};

/* Takes the slots, counting or real, after params_lay: nothing without host_state. */
void offload_lay(struct offload *o, const struct params *p, struct arena *a);
/* Cuts the pieces out of a host copy of params.chunks, which lie in ascending order, and after muon_claim out of its matrices. */
status offload_cut(struct offload *o, const struct params *p, const struct update_chunk *table) WARN_UNUSED;
/* Streams and events beside a step's stream, NULL on the host. */
status offload_open(struct offload *o, struct stream *s) WARN_UNUSED;
void offload_close(struct offload *o);

/* Queues the first pieces' way up: at the beginning of a step. */
status offload_begin(struct offload *o, const struct exec *r) WARN_UNUSED;
/* Queues UPDATE_RULE over all pieces, as `all` says it of the flat arrays; the run's stream goes on when everything is back, STEP's, too. */
status offload_update(struct offload *o, const struct exec *r, const struct update_args *all) WARN_UNUSED;
/* Then for each STEP in turn: where the GPU has the master weights that begin at *master of the host, and how many of *count; and, when what
 * moves them is queued, their way back. */
status offload_take(struct offload *o, const struct exec *r, float **master, int64_t *count) WARN_UNUSED;
status offload_give(struct offload *o, const struct exec *r) WARN_UNUSED;
/* Bytes per step, each way. */
double offload_bytes(const struct offload *o);
#endif
