/* nccl_mail: messages (comm_send, comm_recv) to the neighbours whose GPUs are not reached by peer access: those on other hosts, and
 * all with parallel.transport: nccl. ncclSend and ncclRecv block their stream until the other end has come; comm_send must not.
 *
 *   send    wait until the slot's last message has left; copy into the slot; on the direction's own stream: ncclSend
 *   recv    ncclRecv into the receiver's memory, on the stream of the call
 *   settle  the stream of the calls waits for all sends: a captured step ends where it began
 *
 * What holds, and why no rank waits forever:
 *   1. Each pair and direction has a communicator of two ranks. On it one end only sends, on one stream, and the other only
 *      receives, on one stream: in the order of the messages, which is that of a mailbox (the schedule's walk proves it).
 *      So the n-th ncclSend meets the n-th ncclRecv, whatever else the ends do, and whether they run op by op or as a graph.
 *   2. A stream of sends waits for nothing but data that are computed and messages before. The stream of the calls waits for a
 *      message only to arrive (recv), or to leave its slot (send, when `depth` are under way). These are a mailbox's waits: a
 *      schedule that mailboxes of `depth` carry, these messages carry.
 *   3. The host never waits for a message. But while a library loads a kernel or allocates memory, CUDA may wait for all that is
 *      queued, sends included, whose other end may be blocked likewise. Libraries load in the first step (COMM_STEP_FIRST), so
 *      its messages go through the host's mailboxes, with their header checks. Connections are made by nccl_mail_open.
 *   4. A message that waits keeps up to MESSAGE_CTAS multiprocessors, four messages of a rank at most. A kernel that needs all
 *      multiprocessors at once (the update) comes after `settle`. */
#ifndef INGOT_COMM_GPU_CUDA_NCCL_MAIL_H
#define INGOT_COMM_GPU_CUDA_NCCL_MAIL_H
#include "comm/comm_int.h"
#include "comm/gpu/cuda/nccl.h"
#include "dev/dev.h"

/* Slots are those of the mailboxes by peer access: a neighbour that is not reached writes none, and what goes to it lies there. */
struct nccl_mail_args {
    struct nccl *nccl;
    struct comm *c;             /* with c->mail set */
    const struct dev *dev;      /* lives longer than the mail */
    char *slots;                /* [way of what is received][depth][bytes_max] */
    bool by_nccl[2];            /* [way]: to the neighbour there; the other end says the same */
};
struct nccl_mail;

/* Collective over c, if a rank of it has a neighbour by NCCL. Connects; call nccl_mail_close after success and failure. */
status nccl_mail_open(struct nccl_mail **out, const struct nccl_mail_args *a) WARN_UNUSED;
void nccl_mail_close(struct nccl_mail *m);
/* Stops what is in flight; nothing is queued afterwards. */
void nccl_mail_abort(struct nccl_mail *m);
/* Whether the neighbour of the message is one by NCCL. m NULL: none is. */
bool nccl_mail_carries(const struct nccl_mail *m, const struct comm_call *call);
/* Queues a message; sets call->mark when it has left or arrived. */
status nccl_mail_message(struct nccl_mail *m, const struct comm_call *call) WARN_UNUSED;
/* s waits until all messages have left. s NULL: they were captured, and the capture was discarded. */
status nccl_mail_settle(struct nccl_mail *m, struct stream *s) WARN_UNUSED;
#endif
