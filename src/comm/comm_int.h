/* What the files of comm/ share. */
#ifndef INGOT_COMM_COMM_INT_H
#define INGOT_COMM_COMM_INT_H
#include "comm/comm.h"

#define COMM_OPS(X)                                                                                                    \
    X(ALL_TO_ALL, "all-to-all") X(ALL_GATHER, "all-gather") X(GATHER, "gather") X(BROADCAST, "broadcast") X(REDUCE_SCATTER, "reduce-scatter") X(ALL_REDUCE, "all-reduce") X(SHIFT, "shift") X(BARRIER, "barrier")  \
    X(SPLIT, "split") X(SEND, "send") X(RECV, "receive") X(WORK, "between calls")
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
    void *recv;         /* of sums: what is to be added up, [ranks][bytes] */
    size_t bytes;       /* of an all-reduce, which GPUs alone have: of a rank's slice */
    void *out;          /* of sums on GPUs: a reduce-scatter's [bytes]; an all-reduce's [ranks][bytes], which is `send` */
    dtype dt;           /* of what is added up on GPUs */
    enum comm_way way;  /* of a message */
    int by;             /* of a shift */
    struct stream *stream; /* data are on GPUs; NULL: the host's */
    volatile unsigned char *mark; /* of a queued call: 1 when it is over; NULL: it leaves none */
    uint64_t sequence;  /* number among the collectives of its communicator, or the messages of its way; from 1 */
};

/* Calls since the GPUs were last known to be idle, or of the step that is replayed. Of the world. */
struct card_calls {
    struct card_entry *list;    /* owned */
    int count, room;
    int step;                   /* the first so many are the step's, which may be replayed */
    volatile unsigned char *done; /* [CARD_MARKS] in the host's memory that GPUs write; the driver's */
};
enum { CARD_MARKS = 1 << 15 };  /* what comes later leaves none */

enum { CARD_PAGE = 2 << 20 };   /* GPUs map whole pages of each other */
static inline size_t card_pages(size_t bytes) { return (bytes + CARD_PAGE - 1) / CARD_PAGE * CARD_PAGE; }

struct card_driver; /* device_comm.h */
struct card;    /* device_comm_cuda.c */
struct local;   /* shm.c */
struct mpi;     /* mpi.c */
struct mail {
    size_t bytes_max, room;     /* of a message; with its header, in whole cache lines */
    unsigned depth;
    bool on_card;               /* kept by the GPUs' driver */
    uint64_t sent[2], taken[2]; /* messages by way, so far */
    char *memory;               /* shm.c: the channels; mpi.c: copies of what is on its way, [2][depth][room], and one of what comes */
    size_t memory_bytes;
    void **requests;            /* mpi.c: [2][depth] */
};
struct mail mail_of(size_t bytes_max, int depth);
struct comm {
    char name[COMM_NAME];       /* "": all ranks */
    int rank, ranks;
    int *members;               /* [ranks] their numbers among all; owned */
    struct comm *world;         /* of all ranks: itself, there */
    struct comm *groups[COMM_GROUPS];   /* of the world: owned */
    int group_count;
    uint32_t planes;            /* of the world: bit p: this rank's communicator number p is in use */
    int plane;
    uint64_t sequence;          /* collectives so far */
    unsigned barriers;          /* shm.c: so far */
    void *handle;               /* mpi.c: its MPI_Comm */
    struct mail mail;           /* room is 0 before comm_mail_open */
    struct local *local;        /* one of the two, the same in all groups */
    struct mpi *mpi;
    struct watch *watch;        /* of the world: its place at the board (heartbeat.h) */
    struct flight *flight;      /* of the world: in the board's memory */
    struct calls *calls;        /* of the world: owned */
    int local_rank, local_ranks; /* of the world */
    struct comm_room room;      /* of the world: taken so far */
    const struct card_driver *driver; /* of the world: NULL without GPUs */
    struct card_calls cards;    /* of the world */
    struct card *card;          /* the driver's, of this communicator; NULL before it needs one */
};

const char *comm_op_text(enum comm_op op);
/* "rank 5" or "rank 5 (rank 1 of 'tensor')". */
const char *comm_rank_text(const struct comm *c, int rank, char text[COMM_TEXT]);
/* "collective 7, all-gather 'weights'" or "collective 7 of 'tensor', all-gather 'weights'"; "message 7 ...". */
const char *comm_call_text(const struct comm *c, const struct comm_call *call, char text[COMM_TEXT]);
/* The rank of c that a message goes to, or comes from. */
int comm_neighbour(const struct comm *c, const struct comm_call *call);
/* The rank of c that a shift takes from. */
static inline int comm_behind(const struct comm *c, const struct comm_call *call) { return (c->rank + c->ranks - call->by) % c->ranks; }
/* A collective; its number is set here. A reduce-scatter of the host's is an exchange, whose data the caller adds up. */
status comm_carry(struct comm *c, struct comm_call call) WARN_UNUSED;
/* An all-gather of the host's that belongs to no step's list. */
status comm_say(struct comm *c, const char *name, const void *mine, void *all, size_t bytes) WARN_UNUSED;
/* Each rank gets the data of one. */
static inline bool comm_op_one(enum comm_op op) { return op == COMM_BROADCAST || op == COMM_SHIFT; }
static inline bool comm_op_sums(enum comm_op op) { return op == COMM_REDUCE_SCATTER || op == COMM_ALL_REDUCE; }
/* Data of each rank for each, not of each for all. */
static inline bool comm_op_splits(enum comm_op op) { return op == COMM_ALL_TO_ALL || comm_op_sums(op); }

/* What a rank says about a call: all must say the same. */
struct comm_header {
    uint64_t sequence, bytes;
    int32_t op;
    char name[COMM_NAME];
};
enum { COMM_LINE = 64 };    /* a message's data begin behind its header, on a line of their own */
void comm_header_fill(struct comm_header *h, const struct comm_call *call);
/* STATUS_COMM with both calls when they differ. */
status comm_header_check(const struct comm *c, const struct comm_header *a, int rank_a, const struct comm_header *b, int rank_b) WARN_UNUSED;
/* STATUS_COMM when a message is not what was asked for. */
status comm_message_check(const struct comm *c, const struct comm_header *sent, const struct comm_call *call) WARN_UNUSED;

status local_open(struct comm *world, const struct comm_env *e) WARN_UNUSED;
void local_close(struct comm *world, status st);
status local_call(struct comm *c, const struct comm_call *call) WARN_UNUSED;
status local_mail_open(struct comm *c) WARN_UNUSED;
void local_mail_close(struct comm *c);
/* For comm_room, as the functions below of the same names: a rank's part; the memory of a communicator's mail. */
size_t local_room(int ranks, int groups);
size_t local_mail_bytes(const struct mail *m, int ranks);
status local_message(struct comm *c, const struct comm_call *call) WARN_UNUSED;

status mpi_open(struct comm *world, const struct comm_env *e) WARN_UNUSED;
/* Does not return after a failure: it ends the job, having said why. */
void mpi_close(struct comm *world, status st);
status mpi_call(struct comm *c, const struct comm_call *call) WARN_UNUSED;
/* Collective over parent; `c`: what is known of this rank's group, NULL: it is in none. */
status mpi_split(struct comm *parent, struct comm *c, int key) WARN_UNUSED;
status mpi_mail_open(struct comm *c) WARN_UNUSED;
size_t mpi_room(int ranks, int here);
size_t mpi_mail_bytes(const struct mail *m); /* of a rank */
void mpi_mail_close(struct comm *c);  /* after mpi_close: messages may be on their way until then */
status mpi_message(struct comm *c, const struct comm_call *call) WARN_UNUSED;
#endif
