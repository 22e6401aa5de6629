/* state_int: shared by state.c and state_check.c. */
#ifndef INGOT_TRAIN_STATE_INT_H
#define INGOT_TRAIN_STATE_INT_H
#include "train/state.h"

/* Blocks of so many elements, the last perhaps partial. */
int64_t state_blocks(const struct state_array *a, int64_t elements);
/* Whether array k has elements of a row. */
bool state_has_row(const struct state *s, int k, int row);
/* The start of this rank's part of a row in array k. */
char *state_part(const struct state *s, int k, int row, const struct param_held *held);
#endif
