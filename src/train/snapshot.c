#include "train/snapshot.h"
#include "dev/copy_thread.h"

#include <pthread.h>
#include <stdlib.h>

struct snapshot {
    struct stream side;
    struct event copied; /* the last copies that are queued */
    struct event held;   /* the optimizer would begin, were it not for them */
    bool beside;         /* the next step runs beside copies */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int queueing; /* threads that still queue */
};

status snapshot_open(struct trainer *t)
{
    if (t->snapshot || t->dev.kind != DEV_CUDA) return STATUS_OK;
    struct snapshot *s = calloc(1, sizeof *s);
    if (s == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the description of a snapshot");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    t->snapshot = s;
    TRY(dev_stream_open(&t->dev, &s->side));
    TRY(dev_event_open(&t->dev, &s->copied));
    TRY(dev_event_open(&t->dev, &s->held));
    return dev_event_record(&s->side, &s->copied); /* the graph waits for it in every step */
}

void snapshot_close(struct trainer *t)
{
    struct snapshot *s = t->snapshot;
    if (s == NULL) return;
    dev_event_close(&t->dev, &s->copied);
    dev_event_close(&t->dev, &s->held);
    dev_stream_close(&s->side);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    t->snapshot = NULL;
}

void snapshot_begin(struct trainer *t)
{
    struct snapshot *s = t->snapshot;
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->queueing++;
    pthread_mutex_unlock(&s->lock);
    s->beside = true;
}

struct stream *snapshot_stream(const struct trainer *t)
{
    return &t->snapshot->side;
}

status snapshot_queued(struct trainer *t, status st)
{
    struct snapshot *s = t->snapshot;
    if (s == NULL) return st;
    pthread_mutex_lock(&s->lock);
    if (st == STATUS_OK) st = dev_event_record(&s->side, &s->copied);
    s->queueing--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return st;
}

bool snapshot_ready(struct trainer *t)
{
    struct snapshot *s = t->snapshot;
    if (s == NULL) return false;
    pthread_mutex_lock(&s->lock);
    const bool waits = s->queueing > 0;
    while (s->queueing > 0) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return waits;
}

status snapshot_hold(struct trainer *t)
{
    struct snapshot *s = t->snapshot;
    if (s == NULL) return STATUS_OK;
    TRY(dev_event_stamp(t->exec.stream, &s->held));
    return dev_stream_wait_outside(t->exec.stream, &s->copied);
}

status snapshot_stall(struct trainer *t, bool *waits, double *seconds)
{
    struct snapshot *s = t->snapshot;
    double ms;
    *waits = s && s->beside;
    if (!*waits) return STATUS_OK;
    s->beside = false;
    TRY(dev_event_ms(&t->dev, &s->held, &s->copied, &ms));
    *seconds = ms > 0 ? ms / 1000 : 0;
    return STATUS_OK;
}
