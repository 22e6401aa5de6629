/* state_raw: this rank's part of the state as plain bytes in host memory, for a copy that only ranks with the same
 * layout read (train/memory_copy.h). */
#ifndef INGOT_TRAIN_STATE_RAW_H
#define INGOT_TRAIN_STATE_RAW_H
#include "train/trainer.h"

size_t state_raw_bytes(struct trainer *t);
/* Of two ranks with the same key each can load what the other has saved: they hold the same parts of the same
 * parameters, in the same dtypes. */
uint64_t state_raw_key(struct trainer *t);
/* Between two steps, on the CPU; `to` has state_raw_bytes and is aligned to 64. */
status state_raw_save(struct trainer *t, char *to) WARN_UNUSED;
/* The same from a GPU, beside the next step: state_raw_begin between the two; the others on any thread, with the rules
 * of state_queue and state_join. */
status state_raw_begin(struct trainer *t, char *to) WARN_UNUSED;
status state_raw_queue(struct trainer *t, struct stream *side, char *to) WARN_UNUSED;
status state_raw_join(struct trainer *t, char *to) WARN_UNUSED;
/* Collective: derives the weights that GEMMs read, as after a checkpoint. */
status state_raw_load(struct trainer *t, const char *from) WARN_UNUSED;
#endif
