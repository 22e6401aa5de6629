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

const char *comm_op_text(enum comm_op op);

/* What a rank says about a call: all must say the same. */
struct comm_header {
    uint64_t sequence, bytes;
    int32_t op;
    char name[COMM_NAME];
};
void comm_header_fill(struct comm_header *h, const struct comm_call *call, uint64_t sequence);
/* STATUS_COMM with both calls when they differ. */
status comm_header_check(const struct comm_header *a, int rank_a, const struct comm_header *b, int rank_b) WARN_UNUSED;

struct local;   /* local.c */
struct mpi;     /* mpi.c */
struct comm {
    int rank, ranks;
    struct local *local;    /* one of the two */
    struct mpi *mpi;
};

status local_open(struct local **out, const struct comm_env *e) WARN_UNUSED;
void local_close(struct local *l, status st);
status local_call(struct local *l, const struct comm_call *call) WARN_UNUSED;

status mpi_open(struct mpi **out, const struct comm_env *e) WARN_UNUSED;
/* Does not return after a failure: it ends the job, having said why. */
void mpi_close(struct mpi *m, status st);
status mpi_call(struct mpi *m, const struct comm_call *call) WARN_UNUSED;
#endif
