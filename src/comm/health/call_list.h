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
/* At the end of a step: STATUS_COMM when calls of the first step did not come. The list is off afterwards. */
status calls_end(struct calls *l, const struct comm *world) WARN_UNUSED;
/* Of the collectives of one communicator (its plane). Messages are left out: they differ from rank to rank. */
uint64_t calls_hash(const struct calls *l, int plane);
void calls_free(struct calls *l);
#endif
