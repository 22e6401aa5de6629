/* state: the tensors of a checkpoint: logical tensors of the whole model, gathered from, or scattered to, the ranks
 * that hold parts.
 *
 * While training goes on: each rank has copied its part to memory that the ranks of the host share, and rank 0 puts the
 * tensors together from there (train/save_ranks.h).
 *
 * A rank holds some units of the parameter table, perhaps a tensor-parallel slice of a row, and perhaps a ZeRO shard of
 * that. Saving: rank 0 writes tensor by tensor; the others send it their parts in pieces. Rank 0 buffers one tensor at
 * a time. Loading: each rank reads the chunks that contain its parts. So files do not depend on the mesh, and any mesh
 * can resume. */
#ifndef INGOT_TRAIN_STATE_H
#define INGOT_TRAIN_STATE_H
#include "train/trainer.h"

/* master/NAME, m/NAME, v/NAME; with 8-bit moments m_scale/NAME, v_scale/NAME; with model.engram_fold map/tokens.
 * Of FP8, for each linear, by the name of its weight, the same on all ranks: fp8/history/NAME F32 [2, FP8_HISTORY]
 * (amax of its input and of its output's gradient, step s at s % FP8_HISTORY), fp8/state/NAME I64 [2] (struct
 * fp8_linear_state). */
enum { STATE_ARRAYS = 5, STATE_FP8 = INT32_MAX /* tag of fp8/ tensors, which a checkpoint need not have */ };
struct state_array {
    const char *prefix;
    void *device;   /* NULL: not laid out */
    bool host;      /* in host memory although the run is on a GPU: params.host_state */
    dtype dt;
    int64_t block;  /* elements of a parameter per entry: 1, or PARAM_ALIGN for scales */
    bool second;    /* a second moment; `ortho` rows (Muon) have none */
};
/* Elements of a row's slice that a rank saves. at[k]: of a snapshot, where its part of array k begins in its copies. */
struct state_answer { int64_t from, count, at[STATE_ARRAYS]; };
struct state {
    struct trainer *t;
    struct state_array list[STATE_ARRAYS];
    struct fp8_linear_state *linears; /* of a snapshot: a copy; NULL: the run's own */
    bool snapshot;
    void *arrays[STATE_ARRAYS];     /* in host memory: the arrays themselves, or copies of a GPU's */
    int32_t *map;                   /* map/tokens, a copy; NULL: the model has none */
    float *fp8;                     /* [params.fp8.count][2][FP8_HISTORY]; NULL: no FP8 */
    struct state_answer *answers;   /* [ranks][rows], when several ranks save */
    char *sent, *received;
    char *const *copies;            /* [ranks]: the copies of each rank, which all can read; NULL: they are asked */
    struct ckpt_item *items;
    int count;
};
enum state_use { STATE_SAVE, STATE_LOAD };

/* Collective when several ranks save. state_close is fine on a zeroed or opened struct. */
status state_open(struct state *s, struct trainer *t, enum state_use use) WARN_UNUSED;
void state_close(struct state *s);
/* To save while training goes on: copies in `memory`, which has state_bytes. They are made by state_capture, and no
 * optimizer may change the state before it returns. On a GPU, with pinned memory, by state_queue: no optimizer may
 * change the state before it has returned and what it has queued on `side` has run; then state_join completes them.
 * Several ranks: collective; copies[r] is where the memory of rank r begins, and lives as long as `s`. */
size_t state_bytes(struct trainer *t);
status state_snapshot(struct state *s, struct trainer *t, struct arena *memory, char *const *copies) WARN_UNUSED;
status state_capture(const struct state *s) WARN_UNUSED; /* on any thread, as the next two */
status state_queue(const struct state *s, struct stream *side) WARN_UNUSED;
status state_join(const struct state *s) WARN_UNUSED;
/* STATUS_NUMERIC, on all ranks, when the state is not finite: a run could not resume from it. */
status state_check(const struct state *s) WARN_UNUSED;
/* Its two halves: what is the first tensor that is not finite on this rank, and what follows from the first one of all
 * ranks, the least number. */
int64_t state_first_bad(const struct state *s);
status state_judge(const struct state *s, int64_t first) WARN_UNUSED;
/* While rank 0 saves: the other ranks send their parts. */
status state_follow(struct state *s) WARN_UNUSED;
/* After loading: uploads everything, and derives the weights that GEMMs read. */
status state_upload(const struct state *s) WARN_UNUSED;
#endif
