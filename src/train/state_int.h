/* state_int: shared by state.c, state_check.c, state_parts.c and state_raw.c. */
#ifndef INGOT_TRAIN_STATE_INT_H
#define INGOT_TRAIN_STATE_INT_H
#include "train/state.h"

/* Blocks of so many elements, the last perhaps partial. */
int64_t state_blocks(const struct state_array *a, int64_t elements);
/* Whether array k has elements of a row. */
bool state_has_row(const struct state *s, int k, int row);
/* The start of this rank's part of a row in array k. */
char *state_part(const struct state *s, int k, int row, const struct param_local_range *held);
/* The tensor of row `row` in array `k`, without data. */
struct ckpt_item state_item(const struct state *s, int k, int row);
/* Adds the tensors that no row has: map/tokens, and those of FP8. */
void state_list_rest(struct state *s);
/* Which arrays there are: s->list. Bytes of one of them on this rank. */
void state_list(struct state *s);
size_t state_array_bytes(const struct state *s, const struct state_array *a);
size_t state_map_bytes(const struct state *s); /* with model.engram_fold */
/* Host memory for s->map and s->fp8, filled when saving. */
status state_open_map(struct state *s, enum state_use use) WARN_UNUSED;
status state_open_fp8(struct state *s, enum state_use use) WARN_UNUSED;
#endif
