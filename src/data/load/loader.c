/* The ring of `depth` slots, each with memory for one step, allocated once. Work is distributed micro-batch
 * by micro-batch in the order of steps: a ticket is the next micro-batch of the next step; slot = step mod depth. A slot counts its completed micro-batches. `filled` is the number of leading
 * complete steps, `taken` the number of steps that the consumer has taken. The consumer holds the slot of
 * its last step until it requests the next one; threads therefore work at most depth - 1 steps ahead. */
#include "data/load/loader_int.h"

#include "base/clock.h"
#include "base/scope.h"
#include "base/text.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ring_slot {
    struct slot slot;
    /* under the mutex */
    int64_t done;        /* micro-batches */
    int64_t error_micro; /* the first that failed */
    status error;
    char message[1024];
};
struct loader {
    struct loader_config config;
    const struct samples *samples;
    int64_t first_step, depth;
    struct ring_slot *slots;
    int64_t wait_ns;  /* of the consumer */
    int64_t delay_ms; /* of each micro-batch, for tests: INGOT_LOAD_DELAY_MS; 0: none */

    pthread_t threads[LOADER_THREADS_MAX];
    struct worker {
        struct loader *loader;
        struct filler filler;
    } workers[LOADER_THREADS_MAX];
    int running;
    pthread_mutex_t mutex;
    pthread_cond_t can_fill, can_take;
    /* under the mutex */
    int64_t next_step, next_micro; /* the ticket */
    int64_t filled, taken;
    bool stop;
};

static int64_t ranks_of(const struct loader_config *c)
{
    return c->ranks > 0 ? c->ranks : 1;
}

int64_t loader_micros(const struct loader_config *c, int64_t step)
{
    if (c->batch.count == 0) return c->micro_count;
    return ramp_size(&c->batch, step) / (c->sequences * ranks_of(c));
}

int64_t loader_sample(const struct loader_config *c, int64_t step, int64_t m, int64_t q)
{
    const int64_t ranks = ranks_of(c), micros = loader_micros(c, step);
    step = skips_batch(c->skips, step);
    const int64_t first =
        c->batch.count ? ramp_tokens(&c->batch, step) : step * ranks * micros * c->sequences;
    return first + (c->blocks ? c->rank * micros + m : m * ranks + c->rank) * c->sequences + q;
}

/* Counts a finished micro-batch, and advances `filled` past all steps that are complete. */
static void finish(struct loader *l, int64_t step, int64_t m, status st, const struct fill_count *count)
{
    struct ring_slot *r = &l->slots[step % l->depth];
    if (st != STATUS_OK && (r->error == STATUS_OK || m < r->error_micro)) {
        r->error = st;
        r->error_micro = m;
        snprintf(r->message, sizeof r->message, "%s", status_message()); /* the record is this thread's */
    }
    r->slot.batch.valid += count->valid;
    r->slot.batch.padding += count->padding;
    r->done++;
    const struct ring_slot *next;
    while (next = &l->slots[l->filled % l->depth],
           next->slot.batch.step == l->first_step + l->filled && next->done == next->slot.batch.micro_count) {
        l->filled++;
        if (next->error != STATUS_OK) l->stop = true; /* nothing behind it will be used */
    }
    pthread_cond_signal(&l->can_take);
}

static void *prefetch(void *arg)
{
    struct worker *w = arg;
    struct loader *l = w->loader;
    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        const int64_t step = l->next_step, m = l->next_micro;
        if (step - l->taken >= l->depth - 1) {
            pthread_cond_wait(&l->can_fill, &l->mutex);
            continue;
        }
        struct ring_slot *r = &l->slots[step % l->depth];
        if (m == 0) {
            r->done = 0;
            r->slot.batch.step = l->first_step + step;
            r->slot.batch.micro_count = (int)loader_micros(&l->config, l->first_step + step);
            r->slot.batch.valid = r->slot.batch.padding = 0;
        }
        if (++l->next_micro == r->slot.batch.micro_count) l->next_step++, l->next_micro = 0;
        pthread_mutex_unlock(&l->mutex);
        struct fill_count count;
        SCOPE("loader.fill", l->first_step + step);
        if (l->delay_ms > 0) usleep((useconds_t)l->delay_ms * 1000);
        status st = filler_run(&w->filler, &r->slot, l->first_step + step, m, &count);
        pthread_mutex_lock(&l->mutex);
        finish(l, step, m, st, &count);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* For tests: a disk that is slow. */
static int64_t delay_of_environment(void)
{
    const char *ms = getenv("INGOT_LOAD_DELAY_MS");
    int64_t n;
    return ms && text_to_int(ms, &n) && n > 0 && n < 10000 ? n : 0;
}

/* Workers block signals: a handler in a worker could not stop the loop in order. */
static status start_threads(struct loader *l, int threads)
{
    sigset_t all, before;
    status st = STATUS_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < threads && st == STATUS_OK; i++) {
        l->workers[i].loader = l;
        st = filler_open(&l->workers[i].filler, l->samples, &l->config);
        if (st != STATUS_OK) break;
        int rc = pthread_create(&l->threads[i], NULL, prefetch, &l->workers[i]);
        if (rc != 0) {
            filler_close(&l->workers[i].filler);
            st = FAIL(STATUS_OUT_OF_MEMORY, "cannot start a loader thread: %s", strerror(rc));
            break;
        }
        l->running++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

status loader_open(struct loader **out, const struct samples *samples, const struct loader_config *c,
                   int64_t first_step)
{
    *out = NULL;
    const int threads = c->threads > 0 ? c->threads : 1;
    CHECK(first_step >= 0, "first step %lld", (long long)first_step);
    CHECK(threads <= LOADER_THREADS_MAX, "%d loader threads", threads);
    CHECK(c->rank >= 0 && (c->rank < c->ranks || c->rank == 0), "rank %d of %d", c->rank, c->ranks);
    struct loader *l = calloc(1, sizeof *l);
    if (!l) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a loader");
    l->config = *c;
    l->samples = samples;
    l->first_step = first_step;
    l->delay_ms = delay_of_environment();
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->can_fill, NULL);
    pthread_cond_init(&l->can_take, NULL);
    status st = STATUS_OK;
    int64_t depth = 2 + (threads + c->micro_count - 1) / c->micro_count;
    l->slots = calloc((size_t)depth, sizeof *l->slots);
    if (!l->slots) {
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for a loader");
        goto out;
    }
    for (; l->depth < depth; l->depth++) {
        struct slot *s = &l->slots[l->depth].slot;
        st = slot_open(s, samples_config_of(samples)->sequence_length, c);
        if (st != STATUS_OK) {
            slot_close(s);
            goto out;
        }
        s->batch.step = -1;
    }
    st = start_threads(l, threads);
out:
    if (st != STATUS_OK)
        loader_close(l);
    else
        *out = l;
    return st;
}

void loader_close(struct loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_broadcast(&l->can_fill);
    pthread_mutex_unlock(&l->mutex);
    for (int i = 0; i < l->running; i++) {
        pthread_join(l->threads[i], NULL);
        filler_close(&l->workers[i].filler);
    }
    for (int64_t i = 0; i < l->depth; i++) slot_close(&l->slots[i].slot);
    free(l->slots);
    pthread_cond_destroy(&l->can_fill);
    pthread_cond_destroy(&l->can_take);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

status loader_next(struct loader *l, const struct step_batch **out)
{
    SCOPE("loader.wait", -1);
    int64_t begin = clock_ns();
    *out = NULL;
    pthread_mutex_lock(&l->mutex);
    while (l->filled == l->taken) pthread_cond_wait(&l->can_take, &l->mutex);
    const struct ring_slot *r = &l->slots[l->taken % l->depth];
    if (r->error == STATUS_OK) {
        *out = &r->slot.batch;
        l->taken++;
        pthread_cond_broadcast(&l->can_fill);
    }
    pthread_mutex_unlock(&l->mutex);
    l->wait_ns += clock_ns() - begin;
    return *out ? STATUS_OK : FAIL(r->error, "%s", r->message); /* no thread writes to it */
}

double loader_wait_s(const struct loader *l)
{
    return (double)l->wait_ns * 1e-9;
}

status loader_step_at(const struct samples *samples, const struct loader_config *c, int64_t step,
                      struct step_batch **out)
{
    *out = NULL;
    CHECK(step >= 0, "step %lld", (long long)step);
    struct filler f;
    TRY(filler_open(&f, samples, c));
    struct slot *s = calloc(1, sizeof *s);
    status st = s ? slot_open(s, samples_config_of(samples)->sequence_length, c)
                  : FAIL(STATUS_OUT_OF_MEMORY, "no memory for a step");
    if (st == STATUS_OK) s->batch.micro_count = (int)loader_micros(c, step);
    for (int64_t m = 0; st == STATUS_OK && m < s->batch.micro_count; m++) {
        struct fill_count count;
        st = filler_run(&f, s, step, m, &count);
        s->batch.valid += count.valid;
        s->batch.padding += count.padding;
    }
    filler_close(&f);
    if (st != STATUS_OK) {
        if (s) step_batch_free(&s->batch);
        return st;
    }
    s->batch.step = step;
    *out = &s->batch;
    return STATUS_OK;
}

void step_batch_free(struct step_batch *b)
{
    if (!b) return;
    struct slot *s = (struct slot *)b;
    slot_close(s);
    free(s);
}
