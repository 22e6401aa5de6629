/* call_list: the collectives and messages of a training step. The first step records them; every later step must make
 * the same calls in the same order, on every communicator. comm/step.c compares the lists of the ranks. */
#ifndef INGOT_COMM_HEALTH_CALL_LIST_H
#define INGOT_COMM_HEALTH_CALL_LIST_H
#include "comm/comm_int.h"

struct call_list {
    struct call_list_entry *list; /* of the first step; owned */
    int count, room, at;
    enum call_list_mode { CALL_LIST_OFF, CALL_LIST_RECORD, CALL_LIST_COMPARE, CALL_LIST_REPLAY } mode, mode_aside;
};
/* Call it before each collective or message. STATUS_COMM if it differs from that of the first step. */
status call_list_check(struct call_list *l, const struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* Call it at the end of a step. STATUS_COMM if calls of the first step are missing. The list is off afterwards. */
status call_list_end(struct call_list *l, const struct comm *world) WARN_UNUSED;
/* Hash over the collectives of one communicator (its plane). Messages are omitted: they differ between ranks. */
uint64_t call_list_hash(const struct call_list *l, int comm_id);
void call_list_free(struct call_list *l);
#endif
