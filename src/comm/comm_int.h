/* What the files of comm/ share. */
#ifndef INGOT_COMM_COMM_INT_H
#define INGOT_COMM_COMM_INT_H
#include "comm/comm.h"

#define COMM_OPS(X) X(ALL_TO_ALL, "all-to-all") X(ALL_GATHER, "all-gather") X(BARRIER, "barrier")
enum comm_op {
#define X(name, text) COMM_##name,
    COMM_OPS(X)
#undef X
    COMM_OP_COUNT
};

struct comm_call {
    enum comm_op op;
    const char *name;
    const void *send;
    void *recv;
    size_t bytes;
};

struct local;   /* local.c */
struct comm {
    int rank, ranks;
    struct local *local;
};

status local_open(struct local **out, const struct comm_env *e) WARN_UNUSED;
void local_close(struct local *l, status st);
status local_call(struct local *l, const struct comm_call *call) WARN_UNUSED;
#endif
