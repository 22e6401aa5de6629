/* Calls between cards, by NCCL, which is loaded when ranks have cards.
 *
 * Every communicator of ours is one of NCCL's. Data to be added up are exchanged as they are, so that the order of sums is ours, not that of
 * NCCL's ring; all-gathers are NCCL's own.
 *
 * Messages of a way have communicators of two ranks, a stream and mailboxes of their own at either end: a send waits for nobody but for
 * room, so ways cannot wait for each other. The mailboxes' events order them with the caller's stream. */
#include "comm/cuda_card.h"
#include "comm/cuda_nccl.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAIL_CTAS = 4 }; /* of the card's multiprocessors that a message may take */
/* One end of one way to or from a neighbour. */
struct channel {
    ncclComm_t comm;
    int peer; /* in comm */
    struct stream stream;
    char *slots;           /* [depth][bytes], in the card's memory */
    struct event *passed;  /* [depth] the message has left, or has come */
    struct event *ready;   /* [depth] it lies in its slot; it was taken out of it */
    unsigned char *in_use; /* [depth] since the last settling */
};
struct card {
    const struct nccl *nccl;
    struct nccl *loaded; /* of the world: owned */
    struct stream *stream;
    ncclComm_t comm;
    double *scalars;
    unsigned char *marks;          /* of the world */
    struct channel channels[2][2]; /* [send, receive][way] */
    unsigned depth;
};

#define TRY_CUDA(call)                                                                                       \
    do {                                                                                                     \
        cudaError_t try_err_ = (call);                                                                       \
        if (try_err_ != cudaSuccess)                                                                         \
            return FAIL(STATUS_DEVICE, "%s: %s (%s)", #call, cudaGetErrorString(try_err_),                   \
                        cudaGetErrorName(try_err_));                                                         \
    } while (0)

/* ---- the library */

static status card_start(struct comm *world, struct stream *s)
{
    struct card *card = world->card = calloc(1, sizeof *card);
    struct nccl *n = calloc(1, sizeof *n);
    if (card == NULL || n == NULL) {
        free(n);
        return FAIL(STATUS_FIT, "no memory for the description of a rank's card");
    }
    card->loaded = n;
    card->nccl = n;
    card->stream = s;
    TRY(nccl_load(n));
    TRY_CUDA(cudaHostAlloc((void **)&card->marks, CARD_MARKS, cudaHostAllocMapped | cudaHostAllocPortable));
    memset(card->marks, 0, CARD_MARKS);
    world->cards.done = card->marks;
    return STATUS_OK;
}

static void card_stop(struct comm *world)
{
    struct card *card = world->card;
    if (card == NULL) return;
    if (card->marks) (void)cudaFreeHost(card->marks);
    if (card->loaded) nccl_unload(card->loaded);
    free(card->loaded);
    free(card);
    world->card = NULL;
}

/* ---- communicators */

static status make_id(struct comm *world, unsigned char id[128])
{
    return nccl_make_id(world->card->nccl, id);
}

static status card_open(struct comm *c, const unsigned char id[128])
{
    const struct card *first = c->world->card;
    if (c != c->world) {
        c->card = calloc(1, sizeof *c->card);
        if (c->card == NULL) return FAIL(STATUS_FIT, "no memory for the description of group '%s'", c->name);
        c->card->nccl = first->nccl;
        c->card->stream = first->stream;
    }
    struct card *card = c->card;
    TRY_CUDA(cudaMalloc((void **)&card->scalars, (size_t)c->ranks * COMM_SCALARS * sizeof *card->scalars));
    return nccl_init(card->nccl, &card->comm, id, c->ranks, c->rank, NULL);
}

static void end(const struct nccl *n, ncclComm_t comm, bool broken)
{
    if (comm == NULL) return;
    if (broken)
        (void)n->ncclCommAbort_(comm);
    else
        (void)n->ncclCommDestroy_(comm);
}

static void channel_close(const struct nccl *n, struct channel *ch, unsigned depth, bool broken)
{
    const struct dev *d = ch->stream.dev;
    if (d == NULL) return;
    end(n, ch->comm, broken);
    for (unsigned i = 0; i < depth; i++) {
        if (ch->passed) dev_event_close(d, &ch->passed[i]);
        if (ch->ready) dev_event_close(d, &ch->ready[i]);
    }
    if (ch->slots) (void)cudaFree(ch->slots);
    dev_stream_close(&ch->stream);
    free(ch->passed);
    free(ch->ready);
    free(ch->in_use);
    *ch = (struct channel){0};
}

/* The world's description stays until the driver stops. */
static void card_close(struct comm *c, bool broken)
{
    struct card *card = c->card;
    end(card->nccl, card->comm, broken);
    card->comm = NULL;
    for (int i = 0; i < 4; i++) channel_close(card->nccl, &card->channels[i / 2][i % 2], card->depth, broken);
    if (card->scalars) (void)cudaFree(card->scalars);
    card->scalars = NULL;
    if (c == c->world) return;
    free(card);
    c->card = NULL;
}

/* ---- collectives */

/* What each rank has for each. An exchange leaves out what is this rank's already. */
static status exchange(struct comm *c, const struct comm_call *call, cudaStream_t q)
{
    const struct nccl *n = c->card->nccl;
    const bool sums = call->op == COMM_REDUCE_SCATTER;
    const size_t own = (size_t)c->rank * call->bytes;
    if (!sums)
        TRY(dev_copy(call->stream, (char *)call->recv + own, (const char *)call->send + own, call->bytes));
    TRY_NCCL(n, call->name, n->ncclGroupStart_());
    for (int k = 1; k < c->ranks; k++) {
        const int to = (c->rank + k) % c->ranks, from = (c->rank + c->ranks - k) % c->ranks;
        TRY_NCCL(n, call->name,
                 n->ncclSend_((const char *)call->send + (size_t)to * call->bytes, call->bytes, ncclUint8, to,
                              c->card->comm, q));
        TRY_NCCL(n, call->name,
                 n->ncclRecv_((char *)call->recv + (size_t)from * call->bytes, call->bytes, ncclUint8, from,
                              c->card->comm, q));
    }
    TRY_NCCL(n, call->name, n->ncclGroupEnd_());
    return STATUS_OK;
}

static status card_collective(struct comm *c, const struct comm_call *call)
{
    const struct nccl *n = c->card->nccl;
    const cudaStream_t q = call->stream->queue;
    if (call->bytes == 0) return STATUS_OK;
    if (comm_op_splits(call->op)) return exchange(c, call, q);
    if (call->op == COMM_BROADCAST) {
        TRY_NCCL(n, call->name,
                 n->ncclBroadcast_(call->send, call->recv, call->bytes, ncclUint8, 0, c->card->comm, q));
        return STATUS_OK;
    }
    CHECK(call->op == COMM_ALL_GATHER, "%s '%s' between cards", comm_op_text(call->op), call->name);
    TRY_NCCL(n, call->name,
             n->ncclAllGather_(call->send, call->recv, call->bytes, ncclUint8, c->card->comm, q));
    return STATUS_OK;
}

static status card_sum(struct comm *c, const struct card_sum *sum, struct stream *s)
{
    (void)c;
    return card_add_up(sum, s);
}

static double *card_scalars(struct comm *c)
{
    return c->card->scalars;
}

static status card_mark(struct comm *world, int number, struct stream *s)
{
    return card_leave_mark(world->card->marks + number, s);
}

/* ---- messages */

static status channel_open(struct comm *c, struct channel *ch, const unsigned char id[128], int end_of_it)
{
    const struct dev *d = c->card->stream->dev;
    const unsigned depth = c->mail.depth;
    ch->peer = !end_of_it;
    ch->passed = calloc(depth, sizeof *ch->passed);
    ch->ready = calloc(depth, sizeof *ch->ready);
    ch->in_use = calloc(depth, 1);
    if (!ch->passed || !ch->ready || !ch->in_use)
        return FAIL(STATUS_FIT, "no memory for %u mailboxes", depth);
    TRY(dev_stream_open(d, &ch->stream));
    for (unsigned i = 0; i < depth; i++) {
        TRY(dev_fence_open(d, &ch->passed[i]));
        TRY(dev_fence_open(d, &ch->ready[i]));
    }
    TRY_CUDA(cudaMalloc((void **)&ch->slots, depth * c->mail.bytes_max));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = MAIL_CTAS;
    return nccl_init(c->card->nccl, &ch->comm, id, 2, end_of_it, &config);
}

/* The ways from each rank, one after the other: both ends of each come to it in the same order. */
static status card_mail_open(struct comm *c)
{
    unsigned char mine[2][128], all[COMM_RANKS_MAX][2][128];
    for (int way = 0; way < 2; way++) TRY(make_id(c->world, mine[way]));
    TRY(comm_all_gather(c, "meeting of neighbours", mine, all, sizeof mine, NULL));
    c->card->depth = c->mail.depth;
    for (int from = 0; from < c->ranks; from++)
        for (int way = 0; way < 2; way++) {
            const int to = (from + (way == COMM_NEXT ? 1 : c->ranks - 1)) % c->ranks;
            if (from == c->rank) TRY(channel_open(c, &c->card->channels[0][way], all[from][way], 0));
            if (to == c->rank) TRY(channel_open(c, &c->card->channels[1][way], all[from][way], 1));
        }
    return STATUS_OK;
}

/* s waits for what may still be under way in a slot: of this step, so that both are in one graph. */
static status wait_slot(const struct channel *ch, unsigned slot, struct stream *s, const struct event *until)
{
    return ch->in_use[slot] ? dev_stream_wait(s, until) : STATUS_OK;
}

static status send(struct comm *c, struct channel *ch, unsigned slot, const struct comm_call *call)
{
    const struct nccl *n = c->card->nccl;
    char *at = ch->slots + slot * c->mail.bytes_max;
    TRY(wait_slot(ch, slot, call->stream, &ch->passed[slot]));
    TRY(dev_copy(call->stream, at, call->send, call->bytes));
    TRY(dev_event_record(call->stream, &ch->ready[slot]));
    TRY(dev_stream_wait(&ch->stream, &ch->ready[slot]));
    TRY_NCCL(n, call->name, n->ncclSend_(at, call->bytes, ncclUint8, ch->peer, ch->comm, ch->stream.queue));
    return dev_event_record(&ch->stream, &ch->passed[slot]);
}

static status receive(struct comm *c, struct channel *ch, unsigned slot, const struct comm_call *call)
{
    const struct nccl *n = c->card->nccl;
    char *at = ch->slots + slot * c->mail.bytes_max;
    if (!ch->in_use[slot]) { /* the way's stream joins the caller's, and its graph */
        TRY(dev_event_record(call->stream, &ch->ready[slot]));
    }
    TRY(dev_stream_wait(&ch->stream, &ch->ready[slot]));
    TRY_NCCL(n, call->name, n->ncclRecv_(at, call->bytes, ncclUint8, ch->peer, ch->comm, ch->stream.queue));
    TRY(dev_event_record(&ch->stream, &ch->passed[slot]));
    TRY(dev_stream_wait(call->stream, &ch->passed[slot]));
    TRY(dev_copy(call->stream, call->recv, at, call->bytes));
    return dev_event_record(call->stream, &ch->ready[slot]);
}

static status card_message(struct comm *c, const struct comm_call *call)
{
    const bool sends = call->op == COMM_SEND;
    struct channel *ch = &c->card->channels[sends ? 0 : 1][call->way];
    const unsigned slot = (unsigned)((call->sequence - 1) % c->mail.depth);
    TRY((sends ? send : receive)(c, ch, slot, call));
    ch->in_use[slot] = 1;
    return STATUS_OK;
}

static status card_mail_settle(struct comm *c, struct stream *s)
{
    for (int i = 0; i < 4; i++) {
        struct channel *ch = &c->card->channels[i / 2][i % 2];
        for (unsigned k = 0; k < c->mail.depth; k++) {
            TRY(wait_slot(ch, k, s, &ch->passed[k]));
            ch->in_use[k] = 0;
        }
    }
    return STATUS_OK;
}

const struct card_driver *cuda_card_driver(void)
{
    static const struct card_driver driver = {
        .make_id = make_id,
        .open = card_open,
        .close = card_close,
        .call = card_collective,
        .sum = card_sum,
        .scalars = card_scalars,
        .mark = card_mark,
        .mail_open = card_mail_open,
        .message = card_message,
        .mail_settle = card_mail_settle,
        .start = card_start,
        .stop = card_stop,
    };
    return &driver;
}
