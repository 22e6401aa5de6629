/* state_raw: this rank's part of the state as plain bytes in host memory, for a copy that only ranks with the same
 * layout read (train/memory_copy.h). */
#ifndef INGOT_TRAIN_STATE_RAW_H
#define INGOT_TRAIN_STATE_RAW_H
#include "train/trainer.h"

size_t state_raw_bytes(struct trainer *t);
/* Of two ranks with the same key each can load what the other has saved: they hold the same parts of the same
 * parameters, in the same dtypes. */
uint64_t state_raw_key(struct trainer *t);
/* Between two steps; `to` has state_raw_bytes and is aligned to 64. */
status state_raw_save(struct trainer *t, char *to) WARN_UNUSED;
/* Collective: derives the weights that GEMMs read, as after a checkpoint. */
status state_raw_load(struct trainer *t, const char *from) WARN_UNUSED;
#endif
