/* state: the tensors of a checkpoint. They are the logical tensors of the whole model; a save gathers them from the
 * ranks that hold parts of them, and a load scatters them.
 *
 * A rank holds some units of the parameter table, perhaps a tensor-parallel slice of a row, and perhaps a ZeRO shard of
 * that. In a save of one host, rank 0 writes tensor by tensor and buffers one tensor at a time; the other ranks send it
 * their parts in pieces. In an asynchronous save, each rank has copied its part to memory that all ranks of the host
 * share, and rank 0 assembles the tensors from there (train/save_ranks.h). Those files do not depend on the mesh. In a
 * save of several hosts each rank writes its parts itself (state_list_parts). In a load, each rank reads the chunks
 * that contain its parts. So any mesh can resume from the checkpoint of any other. */
#ifndef INGOT_TRAIN_STATE_H
#define INGOT_TRAIN_STATE_H
#include "train/trainer.h"

/* Names of tensors: master/NAME, m/NAME, v/NAME; with 8-bit moments m_scale/NAME, v_scale/NAME; with model.engram_fold
 * map/tokens. With FP8, two more per linear, which are equal on all ranks; NAME is that of the linear's weight:
 *   fp8/history/NAME  F32 [2, FP8_HISTORY]  amax of its input and of its output's gradient, step s at s % FP8_HISTORY
 *   fp8/state/NAME    I64 [2]               struct fp8_linear_state */
enum { STATE_ARRAYS = 5, STATE_FP8 = INT32_MAX /* tag of fp8/ tensors, which a checkpoint need not have */ };
struct state_array {
    const char *prefix;
    void *device;   /* NULL: not laid out */
    bool host;      /* in host memory although the run is on a GPU: params.host_state */
    dtype dt;
    int64_t block;  /* elements of a parameter per entry: 1, or PARAM_ALIGN for scales */
    bool second;    /* this is the second moment, which `muon` rows (Muon) do not have */
};
/* The elements [from, from + count) of a row's slice that a rank saves. In a snapshot, at[k] is where they begin in the
 * rank's copy of array k. */
struct state_local_range { int64_t from, count, at[STATE_ARRAYS]; };
struct state {
    struct trainer *t;
    struct state_array list[STATE_ARRAYS];
    struct fp8_linear_state *linears; /* in a snapshot: a copy of it; NULL: that of the run is used */
    bool snapshot;
    bool in_parts;                  /* saving, with ranks on several hosts: state_list_parts lists the tensors */
    void *arrays[STATE_ARRAYS];     /* in host memory: the arrays themselves, or copies of a GPU's */
    int32_t *map;                   /* map/tokens, a copy; NULL: the model has none */
    float *fp8;                     /* [params.fp8.count][2][FP8_HISTORY]; NULL: no FP8 */
    struct state_local_range *local_ranges; /* [ranks][rows]: what each rank saves of each row, when several ranks
                                               save */
    char *sent, *received;
    char *const *copies;            /* [ranks]: each rank's copies, in shared memory; NULL: ranks send their parts */
    struct ckpt_item *items;
    int count;
};
enum state_use { STATE_SAVE, STATE_LOAD };

/* Collective when several ranks save. state_close accepts a zeroed or an opened struct. */
status state_open(struct state *s, struct trainer *t, enum state_use use) WARN_UNUSED;
void state_close(struct state *s);
/* For a save by several hosts (in_parts), before it is written: lists the parts of all ranks, the same on each. On any
 * thread: training need not wait for it. */
status state_list_parts(struct state *s) WARN_UNUSED;
/* For an asynchronous save: state_snapshot prepares copies of the state in `memory`, which has state_bytes. On the CPU
 * state_capture makes them; the optimizer must not change the state before it returns. On a GPU, with pinned memory,
 * state_queue queues them on `side`; the optimizer must not change the state before they have run, and state_join then
 * completes them. With several ranks state_snapshot is collective: copies[r] is where rank r's memory begins, if
 * they share memory; the array must live as long as `s`. */
size_t state_bytes(struct trainer *t);
status state_snapshot(struct state *s, struct trainer *t, struct arena *memory, char *const *copies) WARN_UNUSED;
status state_capture(const struct state *s) WARN_UNUSED; /* on any thread, as the next two */
status state_queue(const struct state *s, struct stream *side) WARN_UNUSED;
status state_join(const struct state *s) WARN_UNUSED;
/* Collective. Returns STATUS_NUMERIC on all ranks if the state is not finite anywhere: no run could resume from it.
 * Its two halves: state_first_bad returns the number of this rank's first tensor that is not finite; state_judge
 * returns the verdict, given the minimum of these numbers over the ranks. */
status state_check(const struct state *s) WARN_UNUSED;
int64_t state_first_bad(const struct state *s);
status state_judge(const struct state *s, int64_t first) WARN_UNUSED;
/* On ranks above 0, while rank 0 saves: sends this rank's parts. */
status state_send_parts(struct state *s) WARN_UNUSED;
/* After a load: uploads everything to the device, and derives the weights that GEMMs read. */
status state_upload(const struct state *s) WARN_UNUSED;
#endif
