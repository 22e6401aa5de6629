/* The calls of a step: the same in every step, in the same order, on every communicator. */
#ifndef INGOT_COMM_HEALTH_CALL_LIST_H
#define INGOT_COMM_HEALTH_CALL_LIST_H
#include "comm/comm_int.h"

struct calls {
    struct calls_entry *list; /* of the first step; owned */
    int count, room, at;
    enum { CALLS_OFF, CALLS_LEARN, CALLS_COMPARE, CALLS_REPLAY } mode;
};
/* Called before each call. STATUS_COMM when a step's call is not that of the first step. */
status calls_note(struct calls *l, const struct comm *c, const struct comm_call *call) WARN_UNUSED;
void calls_free(struct calls *l);
#endif
