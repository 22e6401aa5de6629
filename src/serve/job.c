#include "serve/job.h"
#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct job {
    struct queue *queue;
    struct completion request;
    struct job *next; /* that waits behind it */
    bool done, dropped, working;
    unsigned http; /* 0: nothing was put */
    char *out;     /* malloc'd: what was not yet taken */
    size_t bytes;
};
struct queue {
    pthread_mutex_t lock; /* of what follows, and of all jobs' fields but the request */
    pthread_cond_t changed;
    bool stop;
    struct job *first;
    int waiting;
};

struct queue *queue_open(void)
{
    pthread_condattr_t how;
    struct queue *q = calloc(1, sizeof *q);
    MEMORY_CHECK(q, "no memory for a queue");
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&q->changed, &how);
    pthread_condattr_destroy(&how);
    return q;
}

void queue_stop(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

void queue_close(struct queue *q)
{
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void job_free(struct job *j)
{
    completion_free(&j->request);
    free(j->out);
    free(j);
}

/* ---- who answers */

struct job *queue_next(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->first == NULL && !q->stop) pthread_cond_wait(&q->changed, &q->lock);
    struct job *j = q->first;
    if (j) {
        q->first = j->next;
        q->waiting--;
        j->working = true;
    }
    pthread_mutex_unlock(&q->lock);
    return j;
}

void queue_finish(struct queue *q, struct job *j)
{
    pthread_mutex_lock(&q->lock);
    j->working = false;
    j->done = true;
    const bool dropped = j->dropped;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (dropped) job_free(j);
}

struct completion *job_request(struct job *j)
{
    return &j->request;
}

bool job_put(struct job *j, char *text, unsigned http, bool done)
{
    struct queue *q = j->queue;
    const size_t n = strlen(text);
    pthread_mutex_lock(&q->lock);
    j->out = realloc(j->out, j->bytes + n + 1);
    MEMORY_CHECK(j->out, "no memory for %zu bytes of an answer", j->bytes + n);
    memcpy(j->out + j->bytes, text, n + 1);
    j->bytes += n;
    j->http = http;
    j->done = done;
    const bool wanted = !j->dropped && !q->stop;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    free(text);
    return wanted;
}

bool job_wanted(struct job *j)
{
    pthread_mutex_lock(&j->queue->lock);
    const bool wanted = !j->dropped && !j->queue->stop;
    pthread_mutex_unlock(&j->queue->lock);
    return wanted;
}

bool job_begun(struct job *j)
{
    pthread_mutex_lock(&j->queue->lock);
    const bool begun = j->http != 0;
    pthread_mutex_unlock(&j->queue->lock);
    return begun;
}

/* ---- who asks */

struct job *queue_submit(struct queue *q, struct completion *c, struct completion_error *why)
{
    struct job *j = calloc(1, sizeof *j), **end;
    MEMORY_CHECK(j, "no memory for a request");
    *j = (struct job){.queue = q, .request = *c};
    pthread_mutex_lock(&q->lock);
    const bool stop = q->stop, full = q->waiting >= QUEUE_MAX;
    if (!stop && !full) {
        for (end = &q->first; *end; end = &(*end)->next) {}
        *end = j;
        q->waiting++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    if (!stop && !full) return j;
    free(j);
    if (stop)
        completion_fail(why, 503, "stopping", "", "the server is stopping");
    else
        completion_fail(why, 429, "queue_full", "", "%d requests wait already: try again later",
                        (int)QUEUE_MAX);
    return NULL;
}

bool job_wait(struct job *j, double seconds)
{
    struct queue *q = j->queue;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += (time_t)seconds + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&q->lock);
    while (!j->done && (j->bytes == 0 || !j->request.stream) &&
           pthread_cond_timedwait(&q->changed, &q->lock, &until) != ETIMEDOUT) {}
    const bool news = j->done || (j->bytes && j->request.stream);
    pthread_mutex_unlock(&q->lock);
    return news;
}

char *job_take(struct job *j, unsigned *http, bool *done)
{
    pthread_mutex_lock(&j->queue->lock);
    char *out = j->out;
    j->out = NULL;
    j->bytes = 0;
    *http = j->http;
    *done = j->done;
    pthread_mutex_unlock(&j->queue->lock);
    return out;
}

void job_drop(struct job *j)
{
    struct queue *q = j->queue;
    struct job **at;
    pthread_mutex_lock(&q->lock);
    for (at = &q->first; *at && *at != j; at = &(*at)->next) {}
    if (*at) {
        *at = j->next;
        q->waiting--;
    }
    j->dropped = true;
    const bool mine = !j->working;
    pthread_mutex_unlock(&q->lock);
    if (mine) job_free(j);
}
