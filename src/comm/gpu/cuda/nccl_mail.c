#include "comm/gpu/cuda/nccl_mail.h"
#include "base/log.h"
#include "comm/call.h"
#include "comm/gpu/cuda/device_comm_cuda.h"
#include "comm/gpu/mail_edges.h"
#include "comm/health/call_list.h"
#include "comm/transport.h"
#include "dev/cuda/cuda_int.h"

#include <stdlib.h>

/* Multiprocessors of a message: two carry what a NIC does. NCCL_MAX_CTAS overrides it. */
enum { MESSAGE_CTAS = 2, FIRST_BYTES = 64 };

struct nccl_mail {
    struct nccl_mail_args with;
    ncclComm_t out[2], in[2];     /* [way] of what is sent, and of what is received; NULL: by peer access */
    struct stream sends[2];       /* [way] */
    struct event ready[2];        /* [way] the message lies in its slot */
    struct event *left;           /* [2][depth], owned: the last message of a slot has left it */
    unsigned sent[2];             /* [way] since the last settle */
    char *host;                   /* [bytes_max], owned: a message on its way through the host */
    uint64_t host_sequence[2][2]; /* [send, receive][way] */
};

/* The slots of the neighbour that a message goes to, or comes from: those of what is received from it. */
static char *slots_of(const struct nccl_mail *m, enum comm_way way, bool sends)
{
    const struct mailbox *mailbox = &m->with.c->mailbox;
    const bool prev = (way == COMM_PREV) != sends;
    return m->with.slots + (prev ? mailbox->depth * mailbox->bytes_max : 0);
}

/* The other end's rank in the communicator of an edge: the upper end is rank 1. */
static int peer_of(enum comm_way way, bool sends)
{
    return (way == COMM_NEXT) == sends ? 1 : 0;
}

/* ---- connections */

/* Of an edge: the communicators of its two ways. */
struct edge_ids {
    unsigned char id[2][128];
};

/* Makes NCCL connect the two ends: both wait for each other. */
static status send_first(struct nccl_mail *m, enum comm_way way, bool sends)
{
    const struct nccl *n = m->with.nccl;
    const size_t most = m->with.c->mailbox.bytes_max, bytes = most < FIRST_BYTES ? most : FIRST_BYTES;
    const cudaStream_t q = cuda_queue(&m->sends[way]);
    char *slot = slots_of(m, way, sends);
    TRY_NCCL(n, "first message",
             sends ? n->ncclSend_(slot, bytes, ncclUint8, peer_of(way, true), m->out[way], q)
                   : n->ncclRecv_(slot, bytes, ncclUint8, peer_of(way, false), m->in[way], q));
    return dev_sync(&m->sends[way]);
}

/* Both ends take the two ways in the same order. */
static status connect_edge(struct nccl_mail *m, const struct edge_ids *ids, bool lower)
{
    for (int k = 0; k < 2; k++) {
        const enum comm_way way = k == 0 ? COMM_NEXT : COMM_PREV;
        const bool sends = lower == (way == COMM_NEXT);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.maxCTAs = MESSAGE_CTAS;
        TRY(nccl_init(m->with.nccl, sends ? &m->out[way] : &m->in[way], ids->id[way], 2, lower ? 0 : 1,
                      &config));
        TRY(send_first(m, way, sends));
    }
    return STATUS_OK;
}

static status connect_all(struct nccl_mail *m)
{
    struct comm *c = m->with.c;
    struct edge_ids mine = {0}, *all = calloc((size_t)c->ranks, sizeof *all);
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the edges of %d ranks", c->ranks);
    int edges[2];
    mail_edges(c->rank, c->ranks, edges);
    status st = STATUS_OK;
    for (int way = 0; way < 2 && m->with.by_nccl[COMM_NEXT] && st == STATUS_OK; way++)
        st = nccl_make_id(m->with.nccl, mine.id[way]);
    if (st == STATUS_OK) st = transport_all_gather(c, "meeting of stages", &mine, all, sizeof mine);
    for (int k = 0; k < 2 && st == STATUS_OK; k++) {
        const bool lower = edges[k] == c->rank;
        if (m->with.by_nccl[lower ? COMM_NEXT : COMM_PREV]) st = connect_edge(m, &all[edges[k]], lower);
    }
    free(all);
    return st;
}

static void disconnect(struct nccl_mail *m, ncclComm_t *comm)
{
    if (*comm) (void)m->with.nccl->ncclCommDestroy_(*comm);
    *comm = NULL;
}

/* NCCL may let an end wait until the other one disconnects, too: all do so in the order in which they connected. */
static void disconnect_all(struct nccl_mail *m)
{
    int edges[2];
    mail_edges(m->with.c->rank, m->with.c->ranks, edges);
    for (int k = 0; k < 2; k++) {
        const bool lower = edges[k] == m->with.c->rank;
        disconnect(m, lower ? &m->out[COMM_NEXT] : &m->in[COMM_NEXT]);
        disconnect(m, lower ? &m->in[COMM_PREV] : &m->out[COMM_PREV]);
    }
}

/* ---- life */

static status open_sends(struct nccl_mail *m, enum comm_way way)
{
    struct stream *s = &m->sends[way];
    TRY(dev_stream_open_side(m->with.dev, s));
    s->look = device_comm_poll_peers;
    s->look_at = m->with.c->world;
    return dev_fence_open(m->with.dev, &m->ready[way]);
}

status nccl_mail_open(struct nccl_mail **out, const struct nccl_mail_args *a)
{
    struct nccl_mail *m = *out = calloc(1, sizeof *m); /* nccl_mail_close frees what has been allocated */
    struct comm *c = a->c;
    const unsigned slots = 2 * c->mailbox.depth;
    if (m == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of messages");
    m->with = *a;
    m->host = malloc(c->mailbox.bytes_max);
    m->left = calloc(slots, sizeof *m->left);
    if (m->host == NULL || m->left == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a message of %zu bytes", c->mailbox.bytes_max);
    c->world->memory.host += c->mailbox.bytes_max;
    TRY(open_sends(m, COMM_NEXT));
    TRY(open_sends(m, COMM_PREV));
    for (unsigned i = 0; i < slots; i++) TRY(dev_fence_open(a->dev, &m->left[i]));
    TRY(connect_all(m));
    if (c->world->rank == 0)
        log_info("messages  of '%s' go by NCCL where GPUs do not reach each other's memory", c->name);
    return c->transport->mailbox_open(c);
}

void nccl_mail_close(struct nccl_mail *m)
{
    if (m == NULL) return;
    disconnect_all(m);
    for (int way = 0; way < 2; way++) {
        dev_stream_close(&m->sends[way]);
        dev_event_close(m->with.dev, &m->ready[way]);
    }
    for (unsigned i = 0; m->left && i < 2 * m->with.c->mailbox.depth; i++)
        dev_event_close(m->with.dev, &m->left[i]);
    free(m->left);
    free(m->host);
    free(m);
}

void nccl_mail_abort(struct nccl_mail *m)
{
    for (int way = 0; m && way < 2; way++) {
        nccl_abort(m->with.nccl, &m->out[way]);
        nccl_abort(m->with.nccl, &m->in[way]);
    }
}

/* ---- messages */

bool nccl_mail_carries(const struct nccl_mail *m, const struct comm_call *call)
{
    if (m == NULL) return false;
    const bool next = (call->way == COMM_NEXT) == (call->op == COMM_SEND); /* where the neighbour is */
    return m->with.by_nccl[next ? COMM_NEXT : COMM_PREV];
}

static status send(struct nccl_mail *m, const struct comm_call *call)
{
    const struct nccl *n = m->with.nccl;
    const struct mailbox *mailbox = &m->with.c->mailbox;
    const enum comm_way way = call->way;
    struct stream *s = call->stream, *sends = &m->sends[way];
    const unsigned at = m->sent[way] % mailbox->depth;
    struct event *left = &m->left[way * mailbox->depth + at];
    char *slot = slots_of(m, way, true) + at * mailbox->bytes_max;
    if (m->sent[way]++ >= mailbox->depth) TRY(dev_stream_wait(s, left));
    TRY(dev_copy(s, slot, call->send, call->bytes));
    TRY(dev_event_record(s, &m->ready[way]));
    TRY(dev_stream_wait(sends, &m->ready[way]));
    TRY_NCCL(n, call->name,
             n->ncclSend_(slot, call->bytes, ncclUint8, peer_of(way, true), m->out[way], cuda_queue(sends)));
    if (call->done_flag) TRY(device_set_flag(call->done_flag, sends));
    return dev_event_record(sends, left);
}

static status receive(const struct nccl_mail *m, const struct comm_call *call)
{
    const struct nccl *n = m->with.nccl;
    TRY_NCCL(n, call->name,
             n->ncclRecv_(call->recv, call->bytes, ncclUint8, peer_of(call->way, false), m->in[call->way],
                          cuda_queue(call->stream)));
    return call->done_flag ? device_set_flag(call->done_flag, call->stream) : STATUS_OK;
}

/* In a first step: rule 3 of the header. The host's mailboxes number their messages without those that NCCL carried. */
static status by_host(struct nccl_mail *m, const struct comm_call *call)
{
    struct comm *c = m->with.c;
    const bool sends = call->op == COMM_SEND;
    struct comm_call through = *call;
    through.stream = NULL;
    through.done_flag = NULL;
    through.sequence = ++m->host_sequence[sends ? 0 : 1][call->way];
    if (sends) {
        through.send = m->host;
        TRY(dev_download(call->stream, m->host, call->send, call->bytes));
        TRY(dev_sync(call->stream));
        TRY(c->transport->message(c, &through));
    } else {
        through.recv = m->host;
        TRY(c->transport->message(c, &through));
        TRY(dev_upload(call->stream, call->recv, m->host, call->bytes)); /* pageable: has been read */
    }
    if (call->done_flag) *call->done_flag = 1;
    return STATUS_OK;
}

status nccl_mail_message(struct nccl_mail *m, const struct comm_call *call)
{
    if (m->with.c->world->calls->mode == CALL_LIST_RECORD) return by_host(m, call);
    return call->op == COMM_SEND ? send(m, call) : receive(m, call);
}

status nccl_mail_settle(struct nccl_mail *m, struct stream *s)
{
    const unsigned depth = m->with.c->mailbox.depth;
    for (unsigned way = 0; way < 2; way++) {
        const unsigned sent = m->sent[way];
        m->sent[way] = 0;
        if (s && sent > 0) TRY(dev_stream_wait(s, &m->left[way * depth + (sent - 1) % depth]));
    }
    return STATUS_OK;
}
