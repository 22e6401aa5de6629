/* verify_sums: checksums of a rank's gradients, weights and moments, piece by piece (XXH3, 64 bits). */
#ifndef INGOT_TRAIN_VERIFY_SUMS_H
#define INGOT_TRAIN_VERIFY_SUMS_H
#include "train/trainer.h"

/* Consecutive bytes of one row of the parameter table in one array. */
struct verify_piece {
    const char *data;
    int64_t bytes;
    int row;
    const char *what; /* "weights", "first moments", ...; a literal */
};
struct verify_pieces {
    struct verify_piece *list; /* owned */
    int64_t count, room;
    int64_t common; /* the first ones: every replica has the same; known after verify_pieces_state */
};
status verify_pieces_gradients(struct verify_pieces *p, const struct trainer *t) WARN_UNUSED;
/* Weights and fp32 copies first, which all data-parallel ranks hold. Then, under ZeRO, this rank's shard of the state,
 * and routers' biases. */
status verify_pieces_state(struct verify_pieces *p, struct trainer *t) WARN_UNUSED;
void verify_pieces_free(struct verify_pieces *p);
/* sums [count] = checksums. */
void verify_pieces_sum(const struct verify_pieces *p, uint64_t *sums);
/* The first of `count` that differ; -1: none does. */
int64_t verify_differ(const uint64_t *a, const uint64_t *b, int64_t count);

/* For tests: INGOT_FLIP=RANK:STEP:WHAT:BIT flips a bit, whose number is taken modulo those there are, on one rank and
 * in the step with this number (from 0). WHAT: weight, moment (before the step), gradient (after the first
 * micro-batch), unit (the same, each time that this rank computes one, from the step on), update (of a weight, by the
 * update). */
enum verify_flip { FLIP_NONE, FLIP_WEIGHT, FLIP_MOMENT, FLIP_GRADIENT, FLIP_UNIT, FLIP_UPDATE };
struct verify_fault {
    enum verify_flip what;
    int64_t step, bit;
};
/* STATUS_CONFIG when the variable is not of that form. */
status verify_fault_read(struct verify_fault *f, int rank) WARN_UNUSED;
void verify_fault_flip(const struct verify_fault *f, const struct verify_pieces *p);
#endif
