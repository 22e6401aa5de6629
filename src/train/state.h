/* state: what a checkpoint holds of a trainer, as logical tensors of the whole model, wherever their parts lie.
 *
 * A rank holds some units of the parameter table, of a row perhaps a slice, and of that perhaps a shard. While rank 0 writes a checkpoint,
 * tensor by tensor, the others send it what they hold, in pieces; it never has more than one tensor beyond its own share. Reading, each
 * rank takes what it holds out of the chunks in which that lies. So the files do not tell which ranks wrote them, and any can go on. */
#ifndef INGOT_TRAIN_STATE_H
#define INGOT_TRAIN_STATE_H
#include "train/trainer.h"

/* master/NAME, m/NAME, v/NAME, and m_scale/NAME, v_scale/NAME of moments in 8 bits. Beside them map/tokens, of model.engram_fold. */
enum { STATE_ARRAYS = 5 };
struct state_array {
    const char *prefix;
    void *device;   /* NULL: not laid out */
    bool host;      /* memory of the host all the same: params.host_state */
    dtype dt;
    int64_t block;  /* elements of a parameter that share one of these: 1, or PARAM_ALIGN for scales */
    bool second;    /* of the second moment, which `ortho` rows have none of */
};
struct state_answer { int64_t from, count; }; /* elements of the slice of a row that a rank sends */
struct state {
    struct trainer *t;
    struct state_array list[STATE_ARRAYS];
    void *arrays[STATE_ARRAYS];     /* the same in host memory: themselves where they are there, copies of what a GPU holds */
    int32_t *map;                   /* map/tokens, a copy; NULL: the model has none */
    struct state_answer *answers;   /* [ranks][rows], of several ranks that save */
    char *sent, *received;
    struct ckpt_item *items;
    int count;
};
enum state_use { STATE_SAVE, STATE_LOAD };

/* Collective where several ranks save. Zeroed or opened, state_close is fine. */
status state_open(struct state *s, struct trainer *t, enum state_use use) WARN_UNUSED;
void state_close(struct state *s);
/* STATUS_NUMERIC, on all ranks, for what cannot be gone on from. */
status state_check(const struct state *s) WARN_UNUSED;
/* What all ranks but the first do while that one saves. */
status state_follow(struct state *s) WARN_UNUSED;
/* Back to the device, with the weights that GEMMs read. */
status state_upload(const struct state *s) WARN_UNUSED;
#endif
