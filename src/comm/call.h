/* call: describes one collective or message: what it moves, its name and number, and its text in errors. Every file of
 * comm/ uses it; it calls none of them. */
#ifndef INGOT_COMM_CALL_H
#define INGOT_COMM_CALL_H
#include "comm/comm_int.h"

#include <assert.h>

const char *comm_op_text(enum comm_op op);
/* "rank 5" or "rank 5 (rank 1 of 'tensor')". */
const char *comm_rank_text(const struct comm *c, int rank, char text[COMM_TEXT]);
/* "collective 7, all-gather 'weights'" or "collective 7 of 'tensor', all-gather 'weights'"; "message 7 ...". */
const char *comm_call_text(const struct comm *c, const struct comm_call *call, char text[COMM_TEXT]);
/* The rank of c to which a message goes, or from which it comes. */
int comm_neighbour(const struct comm *c, const struct comm_call *call);
/* The rank of c from which a shift receives. */
static inline int comm_ring_shift_source(const struct comm *c, const struct comm_call *call) { return (c->rank + c->ranks - call->by) % c->ranks; }
/* What ranks send and receive in a call. */
enum comm_pattern {
    COMM_PATTERN_NONE,          /* not a collective that moves data: a barrier, a message */
    COMM_PATTERN_ONE,           /* each rank receives the data of one rank */
    COMM_PATTERN_ALL,           /* each rank sends the same data to all: receivers have room for [ranks][bytes] */
    COMM_PATTERN_SPLIT,         /* each rank sends different data to each: send is [ranks][bytes], too */
    COMM_PATTERN_SUM            /* as SPLIT, and the received data are added up */
};
/* A switch without a default: a new op does not compile before its pattern is here. */
static inline enum comm_pattern comm_op_pattern(enum comm_op op)
{
    switch (op) {
    case COMM_BROADCAST:
    case COMM_SHIFT: return COMM_PATTERN_ONE;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
    case COMM_SPLIT: return COMM_PATTERN_ALL;
    case COMM_ALL_TO_ALL: return COMM_PATTERN_SPLIT;
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_REDUCE: return COMM_PATTERN_SUM;
    case COMM_BARRIER:
    case COMM_SEND:
    case COMM_RECV:
    case COMM_IDLE:
    case COMM_OP_COUNT: break;
    }
    return COMM_PATTERN_NONE;
}
static inline bool comm_op_one(enum comm_op op) { return comm_op_pattern(op) == COMM_PATTERN_ONE; }
static inline bool comm_op_sums(enum comm_op op) { return comm_op_pattern(op) == COMM_PATTERN_SUM; }
static inline bool comm_op_splits(enum comm_op op) { return comm_op_pattern(op) >= COMM_PATTERN_SPLIT; }

/* A rank's description of a call. All ranks must give the same one. */
struct comm_header {
    uint64_t sequence, bytes;
    uint64_t counts;            /* hash of comm_call.counts; 0: none */
    int32_t op;
    char name[COMM_NAME];
};
enum { COMM_LINE = 64 };    /* cache line: a message's data begin on the line after its header */
static_assert(sizeof(struct comm_header) <= COMM_LINE, "a header is at most a line");
void comm_header_fill(struct comm_header *h, const struct comm *c, const struct comm_call *call);
/* For an all-to-all with counts: number of rows that rank i sends to the ranks before j; number of rows that rank j
 * receives from the ranks before i. */
int64_t comm_rows_sent_before(const struct comm *c, const struct comm_call *call, int i, int j);
int64_t comm_rows_received_before(const struct comm *c, const struct comm_call *call, int i, int j);
/* Returns STATUS_COMM, whose message names both calls, if they differ. */
status comm_header_check(const struct comm *c, const struct comm_header *a, int rank_a, const struct comm_header *b, int rank_b) WARN_UNUSED;
/* Returns STATUS_COMM if a message is not the expected one. */
status comm_message_check(const struct comm *c, const struct comm_header *sent, const struct comm_call *call) WARN_UNUSED;
#endif
