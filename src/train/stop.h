/* stop: signals and train.max_minutes end a run. All ranks get the same answer at the same place: between steps, and
 * between micro-batches or batches of an evaluation where the device allows it (struct trainer_pause).
 *
 * What is not finished is dropped if it takes more than STOP_FINISH_S: nothing of it is in the checkpoint. */
#ifndef INGOT_TRAIN_STOP_H
#define INGOT_TRAIN_STOP_H
#include "comm/comm.h"
#include "observe/observe.h"
#include <stdatomic.h>
#include <stdbool.h>

#define STOP_FINISH_S 10.0
#define STOP_LOOK_S 0.5  /* between two looks of several ranks */
#define STOP_SHORT_S 1.0 /* a step without looks */

struct stop {
    struct comm *comm;
    double start_s, limit_s;   /* of this process; 0: no limit */
    double begin_s;            /* of the current step or evaluation */
    int64_t stride;            /* its parts between two looks */
    int number;                /* the answer: a signal, 0: none */
    bool late;                 /* train.max_minutes are over */
    int64_t done, parts;       /* of what was dropped; parts 0: nothing */
    /* What each rank says of its last step, with the same look: set `mine` before it. */
    struct rank_time mine, all[COMM_RANKS_MAX];
};
/* A step or an evaluation of `parts` begins. part_s: what one takes, as predicted; NaN: not known. Both the same on all
 * ranks. */
void stop_begin(struct stop *s, double part_s, int64_t parts);
/* Collective: sets number and late. */
status stop_look(struct stop *s) WARN_UNUSED;
bool stop_asked(const struct stop *s);
/* A trainer_pause; ctx: the struct stop. STATUS_STOPPED: drop this step, or this evaluation. */
status stop_between(void *ctx, int64_t done, int64_t parts) WARN_UNUSED;
/* One line for the user, on the display's thread: what happens after the signal. `step`: the one in progress. `drops`:
 * a step that lasts is dropped. */
void stop_answer(int number, int64_t step, bool drops);
#endif
