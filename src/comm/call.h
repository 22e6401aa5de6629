/* call: the description of one collective or message: what is moved, its name and number, and its text in errors. Used by every file of
 * comm/; calls none of them. */
#ifndef INGOT_COMM_CALL_H
#define INGOT_COMM_CALL_H
#include "comm/comm_int.h"

#include <assert.h>

const char *comm_op_text(enum comm_op op);
/* "rank 5" or "rank 5 (rank 1 of 'tensor')". */
const char *comm_rank_text(const struct comm *c, int rank, char text[COMM_TEXT]);
/* "collective 7, all-gather 'weights'" or "collective 7 of 'tensor', all-gather 'weights'"; "message 7 ...". */
const char *comm_call_text(const struct comm *c, const struct comm_call *call, char text[COMM_TEXT]);
/* The rank of c that a message goes to, or comes from. */
int comm_neighbour(const struct comm *c, const struct comm_call *call);
/* The rank of c that a shift takes from. */
static inline int comm_shift_source(const struct comm *c, const struct comm_call *call) { return (c->rank + c->ranks - call->by) % c->ranks; }
/* What ranks send and receive in a call. */
enum comm_pattern {
    COMM_PATTERN_NONE,          /* no collective moves data: a barrier, messages */
    COMM_PATTERN_ONE,           /* each rank receives the data of one rank */
    COMM_PATTERN_ALL,           /* of each rank for all: ranks that receive have room for [ranks][bytes] */
    COMM_PATTERN_SPLIT,         /* of each rank for each: send is [ranks][bytes], too */
    COMM_PATTERN_SUM            /* SPLIT, and what is received is added up */
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
    case COMM_WORK:
    case COMM_OP_COUNT: break;
    }
    return COMM_PATTERN_NONE;
}
static inline bool comm_op_one(enum comm_op op) { return comm_op_pattern(op) == COMM_PATTERN_ONE; }
static inline bool comm_op_sums(enum comm_op op) { return comm_op_pattern(op) == COMM_PATTERN_SUM; }
static inline bool comm_op_splits(enum comm_op op) { return comm_op_pattern(op) >= COMM_PATTERN_SPLIT; }

/* What a rank says about a call: all must say the same. */
struct comm_header {
    uint64_t sequence, bytes;
    uint64_t counts;            /* hash of comm_call.counts; 0: none */
    int32_t op;
    char name[COMM_NAME];
};
enum { COMM_LINE = 64 };    /* a message's data begin behind its header, on a line of their own */
static_assert(sizeof(struct comm_header) <= COMM_LINE, "a header is at most a line");
void comm_header_fill(struct comm_header *h, const struct comm *c, const struct comm_call *call);
/* Of an all-to-all with counts: rows that rank i has for the ranks before j, or, of rows to j, those of ranks before i. */
int64_t comm_rows_sent_before(const struct comm *c, const struct comm_call *call, int i, int j);
int64_t comm_rows_received_before(const struct comm *c, const struct comm_call *call, int i, int j);
/* STATUS_COMM with both calls when they differ. */
status comm_header_check(const struct comm *c, const struct comm_header *a, int rank_a, const struct comm_header *b, int rank_b) WARN_UNUSED;
/* STATUS_COMM when a message is not what was asked for. */
status comm_message_check(const struct comm *c, const struct comm_header *sent, const struct comm_call *call) WARN_UNUSED;
#endif
