/* Goal: messages by NCCL arrive as they were sent, and no rank waits forever: for every schedule, with neighbours by NCCL, by peer access and
 * both, with mailboxes as small as the schedule allows, in a first step with a host that waits for all that is queued after each action.
 * Method: no GPU; ranks are threads, streams are threads that work off a queue with random pauses, and the stand-in's ncclSend ends when the
 * other end has received, as NCCL's may. Its ncclCommAbort waits for graphs: the thread that closes them must not wait for it. */
#include "comm/gpu/cuda/nccl_mail.h"
#include "base/log.h"
#include "base/rng.h"
#include "comm/call.h"
#include "comm/health/call_list.h"
#include "comm/transport.h"
#include "dev/driver_int.h"
#include "parallel/pipeline_schedule.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 4, BYTES = 500, JOBS = 4096, DEPTH_MAX = 16, PAIRS = 4 * RANKS, TIED = 5, LIMIT_S = 300 };

/* One lock for all: whoever changes something wakes everybody. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static atomic_int wrong;

/* ---- mailboxes: of the host, and of peer access */

struct box {
    char *data; /* [depth][BYTES] */
    size_t bytes[DEPTH_MAX];
    unsigned sent, taken, depth;
};

static void box_put(struct box *b, const void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    while (b->sent - b->taken == b->depth) pthread_cond_wait(&changed, &lock);
    memcpy(b->data + b->sent % b->depth * BYTES, data, bytes);
    b->bytes[b->sent++ % b->depth] = bytes;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void box_take(struct box *b, void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    while (b->sent == b->taken) pthread_cond_wait(&changed, &lock);
    wrong += b->bytes[b->taken % b->depth] != bytes;
    memcpy(data, b->data + b->taken++ % b->depth * BYTES, bytes);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- NCCL */

/* A communicator of two ranks. */
struct pair {
    bool here[2], gone[2], called[2], sends[2], receives[2];
    const void *data;
    size_t bytes;
    unsigned sent, wanted, taken;
};
struct ncclComm {
    struct pair *pair;
    int rank;
};
static struct pair pairs[PAIRS];
static struct ncclComm ends[PAIRS][2];
static int pair_count;

static ncclResult_t make_id(ncclUniqueId *id)
{
    pthread_mutex_lock(&lock);
    memset(id, 0, sizeof *id);
    id->internal[0] = (char)pair_count++;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static ncclResult_t init(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    const int number = id.internal[0];
    struct pair *p = &pairs[number];
    (void)config;
    pthread_mutex_lock(&lock);
    wrong += ranks != 2 || number >= pair_count || p->here[rank];
    p->here[rank] = true;
    pthread_cond_broadcast(&changed);
    while (!p->here[1 - rank]) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    ends[number][rank] = (struct ncclComm){p, rank};
    *out = &ends[number][rank];
    return ncclSuccess;
}

/* Waits for the other end, as NCCL may. */
static ncclResult_t destroy(ncclComm_t c)
{
    struct pair *p = c->pair;
    pthread_mutex_lock(&lock);
    wrong += p->gone[c->rank];
    p->gone[c->rank] = true;
    pthread_cond_broadcast(&changed);
    while (!p->gone[1 - c->rank]) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static void pair_send(struct pair *p, const void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const unsigned mine = ++p->sent;
    p->data = data;
    p->bytes = bytes;
    pthread_cond_broadcast(&changed);
    while (p->taken < mine) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void pair_receive(struct pair *p, void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const unsigned mine = ++p->wanted;
    while (p->sent < mine) pthread_cond_wait(&changed, &lock);
    wrong += p->bytes != bytes;
    memcpy(data, p->data, bytes);
    p->taken = mine;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- streams */

enum what { COPY, RECORD, WAIT, SEND, RECEIVE, PUT, TAKE, FILL, CHECK_FILLED, END };
struct mark {
    unsigned asked, done;
};
struct job_of_stream {
    enum what what;
    void *to;
    const void *from;
    size_t bytes;
    struct mark *mark;
    unsigned number; /* of the mark, or what memory is filled with */
    struct pair *pair;
    struct box *box;
};
struct queue {
    pthread_t thread;
    struct job_of_stream jobs[JOBS];
    unsigned put, done;
    uint64_t seed;
};

static void filled(const struct job_of_stream *j)
{
    const unsigned char *p = j->from;
    int differ = 0;
    for (size_t i = 0; i < j->bytes; i++) differ += p[i] != (unsigned char)(j->number * 131 + i * 7);
    pthread_mutex_lock(&lock);
    wrong += differ;
    pthread_mutex_unlock(&lock);
}

static void work(const struct job_of_stream *j)
{
    switch (j->what) {
    case COPY: memcpy(j->to, j->from, j->bytes); break;
    case RECORD:
    case WAIT:
        pthread_mutex_lock(&lock);
        if (j->what == RECORD) j->mark->done = j->number;
        if (j->what == RECORD) pthread_cond_broadcast(&changed);
        while (j->mark->done < j->number) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        break;
    case SEND: pair_send(j->pair, j->from, j->bytes); break;
    case RECEIVE: pair_receive(j->pair, j->to, j->bytes); break;
    case PUT: box_put(j->box, j->from, j->bytes); break;
    case TAKE: box_take(j->box, j->to, j->bytes); break;
    case FILL:
        for (size_t i = 0; i < j->bytes; i++)
            ((unsigned char *)j->to)[i] = (unsigned char)(j->number * 131 + i * 7);
        break;
    case CHECK_FILLED: filled(j); break;
    case END: break;
    }
}

static void *work_off(void *arg)
{
    struct queue *q = arg;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (q->done == q->put) pthread_cond_wait(&changed, &lock);
        const struct job_of_stream j = q->jobs[q->done % JOBS];
        pthread_mutex_unlock(&lock);
        const double pause = rng_uniform(q->seed, RNG_TEST, 0, q->done);
        if (pause < 0.1) usleep((useconds_t)(pause * 3000));
        work(&j);
        pthread_mutex_lock(&lock);
        q->done++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        if (j.what == END) return NULL;
    }
}

static void put(struct queue *q, struct job_of_stream j)
{
    pthread_mutex_lock(&lock);
    assert_true(q->put - q->done < JOBS);
    q->jobs[q->put++ % JOBS] = j;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void queue_idle(struct queue *q)
{
    pthread_mutex_lock(&lock);
    while (q->done != q->put) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

enum { STREAMS = 3 }; /* of a rank: its own, and those of sends */
static _Thread_local struct queue *streams[STREAMS];
static _Thread_local int stream_count;

static status stream_open(struct stream *s)
{
    struct queue *q = calloc(1, sizeof *q);
    assert_true(q != NULL && stream_count < STREAMS);
    q->seed = (uint64_t)(uintptr_t)q;
    streams[stream_count++] = q;
    s->queue = q;
    assert_int_equal(pthread_create(&q->thread, NULL, work_off, q), 0);
    return STATUS_OK;
}

static void stream_close(struct stream *s)
{
    struct queue *q = s->queue;
    put(q, (struct job_of_stream){.what = END});
    pthread_join(q->thread, NULL);
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] == q) streams[i] = NULL;
    free(q);
}

static status copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    put(s->queue, (struct job_of_stream){.what = COPY, .to = to, .from = from, .bytes = bytes});
    return STATUS_OK;
}

/* The host waits for copies from and to its own memory with all that is before them. */
static status sync_stream(struct stream *s)
{
    queue_idle(s->queue);
    return STATUS_OK;
}

static status stream_done(struct stream *s, bool *done)
{
    *done = true;
    return sync_stream(s);
}

static status event_open(struct event *e, bool timed)
{
    assert_false(timed);
    e->mark = calloc(1, sizeof(struct mark));
    return STATUS_OK;
}

static void event_close(struct event *e)
{
    free(e->mark);
}

static status event_record(struct stream *s, struct event *e)
{
    struct mark *m = e->mark;
    put(s->queue, (struct job_of_stream){.what = RECORD, .mark = m, .number = ++m->asked});
    return STATUS_OK;
}

static status stream_wait(struct stream *s, const struct event *e)
{
    struct mark *m = e->mark;
    put(s->queue, (struct job_of_stream){.what = WAIT, .mark = m, .number = m->asked});
    return STATUS_OK;
}

static const struct dev_driver driver = {.stream_open = stream_open,
                                         .stream_close = stream_close,
                                         .copy = copy,
                                         .sync = sync_stream,
                                         .done = stream_done,
                                         .event_open = event_open,
                                         .event_close = event_close,
                                         .event_record = event_record,
                                         .stream_wait = stream_wait};

/* The first call of each end connects: the host waits for the other. */
static void called(struct ncclComm *c, bool sends)
{
    struct pair *p = c->pair;
    pthread_mutex_lock(&lock);
    p->called[c->rank] = true;
    *(sends ? &p->sends[c->rank] : &p->receives[c->rank]) = true;
    wrong += p->sends[c->rank] && p->receives[c->rank];
    pthread_cond_broadcast(&changed);
    while (!p->called[1 - c->rank]) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static ncclResult_t nccl_send(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                              cudaStream_t s)
{
    wrong += type != ncclUint8 || peer != 1 - c->rank;
    called(c, true);
    put((struct queue *)(void *)s,
        (struct job_of_stream){.what = SEND, .from = data, .bytes = count, .pair = c->pair});
    return ncclSuccess;
}

static ncclResult_t nccl_receive(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                                 cudaStream_t s)
{
    wrong += type != ncclUint8 || peer != 1 - c->rank;
    called(c, false);
    put((struct queue *)(void *)s,
        (struct job_of_stream){.what = RECEIVE, .to = data, .bytes = count, .pair = c->pair});
    return ncclSuccess;
}

static struct nccl nccl = {.ncclGetUniqueId_ = make_id,
                           .ncclCommInitRankConfig_ = init,
                           .ncclCommDestroy_ = destroy,
                           .ncclCommAbort_ = destroy,
                           .ncclSend_ = nccl_send,
                           .ncclRecv_ = nccl_receive};

/* ---- ranks */

static pthread_barrier_t together;
static const void *board[RANKS];
static char host_memory[2][RANKS][DEPTH_MAX * BYTES];
static struct box through_host[2][RANKS],
    by_peer[2][RANKS]; /* those of peer access lie in the receiver's slots */

static status gather(struct comm *c, const struct comm_call *call)
{
    assert_int_equal(call->op, COMM_ALL_GATHER);
    board[c->rank] = call->send;
    (void)pthread_barrier_wait(&together);
    for (int r = 0; r < c->ranks; r++)
        memcpy((char *)call->recv + (size_t)r * call->bytes, board[r], call->bytes);
    (void)pthread_barrier_wait(&together);
    return STATUS_OK;
}

static status host_message(struct comm *c, const struct comm_call *call)
{
    const bool sends = call->op == COMM_SEND;
    struct box *b = &through_host[call->way][sends ? comm_neighbour(c, call) : c->rank];
    assert_true(call->stream == NULL);
    if (sends)
        box_put(b, call->send, call->bytes);
    else
        box_take(b, call->recv, call->bytes);
    return STATUS_OK;
}

static status host_mail(struct comm *c)
{
    (void)c;
    return STATUS_OK;
}

static const struct host_transport transport = {
    .collective = gather, .message = host_message, .mailbox_open = host_mail};

struct rank {
    const struct pipeline_schedule *schedule;
    int depth;
    unsigned edges; /* bit e: edge e by NCCL */
    struct comm c;
    struct call_list calls;
    struct dev dev;
    struct stream s;
    struct nccl_mail *mailbox;
    char *slots, *x;
    unsigned sent[2], taken[2];
};

static size_t bytes_of(unsigned n)
{
    return n % 3 == 0 ? BYTES : BYTES - n % 7;
}

static unsigned content(int rank, int way, unsigned n)
{
    return (unsigned)(rank * 64 + way * 32) + n * 3;
}

static void message(struct rank *k, enum comm_op op, enum comm_way way)
{
    const bool sends = op == COMM_SEND;
    const unsigned n = sends ? k->sent[way]++ : k->taken[way]++;
    struct comm_call call = {.op = op,
                             .name = "message",
                             .way = way,
                             .send = k->x,
                             .recv = k->x,
                             .bytes = bytes_of(n),
                             .stream = &k->s,
                             .sequence = n + 1};
    const int other = comm_neighbour(&k->c, &call);
    struct job_of_stream j = {.to = k->x, .from = k->x, .bytes = call.bytes};
    j.what = FILL, j.number = content(k->c.rank, way, n);
    if (sends) put(k->s.queue, j);
    if (nccl_mail_carries(k->mailbox, &call))
        assert_int_equal(nccl_mail_message(k->mailbox, &call), STATUS_OK);
    else {
        j.what = sends ? PUT : TAKE;
        j.box = &by_peer[way][sends ? other : k->c.rank];
        put(k->s.queue, j);
    }
    j.what = CHECK_FILLED, j.number = content(other, way, n);
    if (!sends) put(k->s.queue, j);
}

/* As train/pipeline.c does it; then an embedding's gradient goes between the ends in pieces. */
static void step(struct rank *k, bool first)
{
    const int last = k->c.ranks * k->schedule->chunks - 1;
    k->calls.mode = first ? CALL_LIST_RECORD : CALL_LIST_COMPARE;
    for (int i = 0; i < k->schedule->rank[k->c.rank].count; i++) {
        const struct pipeline_action *a = &k->schedule->rank[k->c.rank].actions[i];
        const int stage = a->chunk * k->c.ranks + k->c.rank;
        const bool forward = a->what == PIPELINE_F;
        if (a->what == PIPELINE_W) continue;
        if (stage != (forward ? 0 : last)) message(k, COMM_RECV, forward ? COMM_NEXT : COMM_PREV);
        if (stage != (forward ? last : 0)) message(k, COMM_SEND, forward ? COMM_NEXT : COMM_PREV);
        for (int s = 0; first && s < stream_count; s++) queue_idle(streams[s]); /* a library loads */
    }
    for (int i = 0; i < TIED; i++) {
        if (k->c.rank == 0) message(k, COMM_SEND, COMM_PREV), message(k, COMM_RECV, COMM_NEXT);
        if (k->c.rank == k->c.ranks - 1) message(k, COMM_SEND, COMM_NEXT), message(k, COMM_RECV, COMM_PREV);
    }
    assert_int_equal(nccl_mail_settle(k->mailbox, &k->s), STATUS_OK);
    queue_idle(k->s.queue);
    for (int s = 0; s < stream_count; s++) assert_true(streams[s]->put - streams[s]->done <= 1);
}

static void *run_rank(void *arg)
{
    struct rank *k = arg;
    struct comm *c = &k->c;
    stream_count = 0;
    k->dev = (struct dev){.kind = DEV_CUDA, .driver = &driver};
    c->world = c;
    c->calls = &k->calls;
    c->transport = &transport;
    c->mailbox = mailbox_of(BYTES, k->depth);
    k->slots = malloc(2 * (size_t)k->depth * BYTES);
    k->x = malloc(BYTES);
    for (int way = 0; way < 2; way++)
        by_peer[way][c->rank].data = k->slots + (size_t)way * (size_t)k->depth * BYTES;
    assert_int_equal(dev_stream_open(&k->dev, &k->s), STATUS_OK);
    const struct nccl_mail_args a = {
        .nccl = &nccl,
        .c = c,
        .dev = &k->dev,
        .slots = k->slots,
        .by_nccl = {[COMM_NEXT] = k->edges >> c->rank & 1,
                    [COMM_PREV] = k->edges >> (c->rank + c->ranks - 1) % c->ranks & 1}};
    assert_int_equal(nccl_mail_open(&k->mailbox, &a), STATUS_OK);
    assert_int_equal(c->memory.host, BYTES);
    for (int i = 0; i < 5; i++)
        step(k, i == 1 || i == 3); /* an evaluation may come first; FP8 records again */
    nccl_mail_close(k->mailbox);
    dev_stream_close(&k->s);
    free(k->slots);
    free(k->x);
    return NULL;
}

static void run_all(const struct pipeline_schedule *schedule, unsigned edges)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    int depth;
    assert_int_equal(pipeline_schedule_depth(schedule, &depth), STATUS_OK);
    assert_true(depth <= DEPTH_MAX);
    memset(pairs, 0, sizeof pairs);
    pair_count = 0;
    for (int w = 0; w < 2; w++)
        for (int r = 0; r < RANKS; r++) {
            through_host[w][r] = (struct box){.data = host_memory[w][r], .depth = (unsigned)depth};
            by_peer[w][r] = (struct box){.depth = (unsigned)depth};
        }
    assert_int_equal(pthread_barrier_init(&together, NULL, (unsigned)schedule->ranks), 0);
    for (int r = 0; r < schedule->ranks; r++) {
        ranks[r] = (struct rank){.schedule = schedule, .depth = depth, .edges = edges};
        ranks[r].c.rank = r;
        ranks[r].c.ranks = schedule->ranks;
        snprintf(ranks[r].c.name, sizeof ranks[r].c.name, "pp");
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < schedule->ranks; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&together);
    assert_int_equal(wrong, 0);
}

static void schedules_end(void **state)
{
    static const enum pipeline_kind kinds[] = {PIPELINE_GPIPE, PIPELINE_1F1B, PIPELINE_INTERLEAVED,
                                               PIPELINE_ZB_H1};
    (void)state;
    alarm(LIMIT_S);
    for (int p = 2; p <= RANKS; p++)
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            for (int micros = p; micros <= 2 * p + 1; micros += p + 1) {
                struct pipeline_schedule s;
                const unsigned all = (1U << p) - 1;
                const int chunks = kinds[i] == PIPELINE_INTERLEAVED ? 2 : 1;
                assert_int_equal(pipeline_schedule_build(&s, kinds[i], p, micros, chunks), STATUS_OK);
                run_all(&s, all);
                run_all(&s, 0x5 & all);
                run_all(&s, 1U << (p - 1));
                pipeline_schedule_free(&s);
            }
    alarm(0);
}

static bool graph_closed;

static ncclResult_t abort_after_graphs(ncclComm_t c)
{
    (void)c;
    pthread_mutex_lock(&lock);
    while (!graph_closed) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* NCCL waits in ncclCommAbort for graphs that this thread has yet to close. */
static void abort_does_not_wait_for_graphs(void **state)
{
    struct nccl n = {.ncclCommAbort_ = abort_after_graphs};
    ncclComm_t two[2] = {&ends[0][0], &ends[0][1]};
    (void)state;
    alarm(LIMIT_S);
    for (int i = 0; i < 2; i++) nccl_abort(&n, &two[i]);
    nccl_abort(&n, &two[0]);
    assert_true(two[0] == NULL && two[1] == NULL && n.abort_count == 2);
    assert_false(nccl_unload(&n));
    pthread_mutex_lock(&lock);
    graph_closed = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    assert_true(nccl_unload(&n));
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules_end),
                                       cmocka_unit_test(abort_does_not_wait_for_graphs)};
    log_level_set(LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
