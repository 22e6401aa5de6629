/* The permutation. A Feistel network over `bits` bits, 2^bits >= windows, is a bijection of [0, 2^bits)
 * whatever its round function; here the low and the high half take turns in being XORed with Philox of the
 * other. Walking the cycle of a value until it falls below `windows` (Black and Rogaway, "Ciphers with
 * arbitrary finite domains", 2002) makes it a bijection of [0, windows); 2^bits < 2 windows (from 3 windows
 * on), so a walk has fewer than two turns on average.
 *
 * The ring. DEPTH slots, each with memory for one step, allocated once. `filled` and `taken` count steps;
 * slot = step mod DEPTH. The consumer holds the slot of its last step until it asks for the next one, so the
 * thread runs at most DEPTH - 1 steps ahead. */
#include "data/loader.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/scope.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 3, FEISTEL_ROUNDS = 6 };

struct slot {
    struct step_batch batch; /* first: step_batch_free gets the slot by it */
    struct batch *micro;
    int32_t *memory; /* per micro-batch: tokens, targets, positions [rows], cu_seqlens [rows+1] */
    int32_t *window; /* [T+1] */
};

struct loader {
    const struct shard_set *set;
    struct loader_config config;
    int64_t windows;
    struct slot slots[DEPTH];
    int64_t first_step;
    int64_t wait_ns; /* of the consumer */

    pthread_t thread;
    bool running; /* the thread was started */
    pthread_mutex_t mutex;
    pthread_cond_t can_fill, can_take;
    /* under the mutex */
    int64_t filled, taken;
    bool stop;
    status error; /* of step first_step + filled */
    char message[1024];
};

int64_t loader_window_count(int64_t tokens, int64_t sequence_length, int shuffle)
{
    if (tokens < 2) return 0;
    return shuffle ? (tokens - 1) / sequence_length : (tokens - 2) / sequence_length + 1;
}

static uint64_t feistel(uint64_t seed, int64_t epoch, int bits, uint64_t x)
{
    int low_bits = bits / 2;
    uint64_t low_mask = (1ull << low_bits) - 1, high_mask = (1ull << (bits - low_bits)) - 1;
    uint64_t low = x & low_mask, high = x >> low_bits;
    for (int round = 0; round < FEISTEL_ROUNDS; round++) {
        uint64_t other = round % 2 ? low : high;
        struct rng_block r =
            rng_at(seed, RNG_SHUFFLE, (uint64_t)epoch * FEISTEL_ROUNDS + (uint64_t)round, other);
        uint64_t mix = (uint64_t)r.u[1] << 32 | r.u[0];
        if (round % 2)
            high ^= mix & high_mask;
        else
            low ^= mix & low_mask;
    }
    return high << low_bits | low;
}

struct sample_place loader_place(uint64_t seed, int64_t index, int64_t windows, int shuffle)
{
    CHECK(windows > 0, "a set without windows");
    CHECK(index >= 0, "sample %lld", (long long)index);
    struct sample_place p = {index / windows, index % windows};
    if (!shuffle || windows == 1) return p;
    int bits = 64 - __builtin_clzll((uint64_t)windows - 1);
    if (bits < 2) bits = 2; /* both halves need a bit to be mixed */
    uint64_t x = (uint64_t)p.window;
    do x = feistel(seed, p.epoch, bits, x);
    while (x >= (uint64_t)windows);
    p.window = (int64_t)x;
    return p;
}

static status slot_open(struct slot *s, const struct loader_config *c)
{
    int64_t rows, per_micro, all, bytes;
    CHECK(c->sequence_length > 0 && c->sequences > 0 && c->micro_count > 0,
          "T %lld, B %lld, %lld micro-batches", (long long)c->sequence_length, (long long)c->sequences,
          (long long)c->micro_count);
    if (__builtin_mul_overflow(c->sequence_length, c->sequences, &rows) || rows > INT32_MAX - 1 ||
        c->micro_count > INT32_MAX || __builtin_mul_overflow(rows * 4 + 1, c->micro_count, &per_micro) ||
        __builtin_add_overflow(per_micro, c->sequence_length + 1, &all) ||
        __builtin_mul_overflow(all, 4, &bytes))
        return FAIL(STATUS_CONFIG,
                    "%lld sequences of %lld tokens in %lld micro-batches: more than 2^31 "
                    "tokens in a micro-batch or 2^63 bytes",
                    (long long)c->sequences, (long long)c->sequence_length, (long long)c->micro_count);
    s->micro = calloc((size_t)c->micro_count, sizeof *s->micro);
    s->memory = malloc((size_t)bytes);
    if (!s->micro || !s->memory)
        return FAIL(STATUS_FIT, "the batches of one step need %lld bytes", (long long)bytes);
    s->window = s->memory + per_micro;
    for (int64_t m = 0; m < c->micro_count; m++) {
        int32_t *at = s->memory + m * (rows * 4 + 1);
        s->micro[m] = (struct batch){.rows = rows,
                                     .tokens = at,
                                     .targets = at + rows,
                                     .positions = at + 2 * rows,
                                     .cu_seqlens = at + 3 * rows};
    }
    s->batch.micro = s->micro;
    s->batch.micro_count = (int)c->micro_count;
    return STATUS_OK;
}

static void slot_close(struct slot *s)
{
    free(s->micro);
    free(s->memory);
}

/* One sequence of a micro-batch: rows [at, at+T), of which the first `real` have a target in the stream;
 * window holds real + 1 tokens. Returns the number of targets that count. */
static int64_t fill_sequence(const struct shard_set *set, const struct loader_config *c,
                             const int32_t *window, int64_t real, int64_t at, struct batch *b)
{
    int64_t t_count = c->sequence_length, valid = real, start = 0;
    int32_t *tokens = (int32_t *)b->tokens + at, *targets = (int32_t *)b->targets + at,
            *positions = (int32_t *)b->positions + at;
    int32_t *cu = (int32_t *)b->cu_seqlens;
    memcpy(tokens, window, (size_t)real * 4);
    memcpy(targets, window + 1, (size_t)real * 4);
    for (int64_t t = real; t < t_count; t++) tokens[t] = 0, targets[t] = LOADER_IGNORE;
    cu[b->docs++] = (int32_t)at;
    if (c->documents == LOADER_DOCUMENTS) {
        for (int64_t t = 0; t < real; t++) {
            if (!shard_set_document_begins(set, window[t], window[t + 1])) continue;
            targets[t] = LOADER_IGNORE;
            valid--;
            for (int64_t p = start; p <= t; p++) positions[p] = (int32_t)(p - start);
            start = t + 1;
            if (start < t_count) cu[b->docs++] = (int32_t)(at + start);
        }
    }
    for (int64_t p = start; p < t_count; p++) positions[p] = (int32_t)(p - start);
    return valid;
}

static status slot_fill(struct slot *s, const struct shard_set *set, const struct loader_config *c,
                        int64_t windows, int64_t step)
{
    SCOPE("loader.fill", step);
    int64_t t_count = c->sequence_length;
    s->batch.step = step;
    s->batch.valid = 0;
    for (int64_t m = 0; m < c->micro_count; m++) {
        struct batch *b = &s->micro[m];
        b->docs = 0;
        b->len_max = t_count;
        for (int64_t q = 0; q < c->sequences; q++) {
            struct sample_place place =
                loader_place(c->seed, (step * c->micro_count + m) * c->sequences + q, windows, c->shuffle);
            int64_t real = set->tokens - 1 - place.window * t_count;
            if (real > t_count) real = t_count;
            if (!c->shuffle && place.epoch > 0) real = 0;
            if (real > 0)
                TRY(shard_set_read(set, place.window * t_count, real + 1, c->vocab_size, s->window));
            s->batch.valid += fill_sequence(set, c, s->window, real, q * t_count, b);
        }
        ((int32_t *)b->cu_seqlens)[b->docs] = (int32_t)b->rows;
    }
    return STATUS_OK;
}

static int64_t windows_used(const struct shard_set *set, const struct loader_config *c)
{
    int64_t all = loader_window_count(set->tokens, c->sequence_length, c->shuffle);
    return c->windows_max > 0 && c->windows_max < all ? c->windows_max : all;
}

static status config_check(const struct shard_set *set, const struct loader_config *c)
{
    const char *path = set->shards[0].path;
    if (loader_window_count(set->tokens, c->sequence_length, c->shuffle) == 0)
        return FAIL(STATUS_DATA,
                    "%s%s: %lld tokens, fewer than the %lld that one sequence and its last target need", path,
                    set->count > 1 ? " and the others" : "", (long long)set->tokens,
                    c->shuffle ? (long long)c->sequence_length + 1 : 2LL);
    if (c->documents != LOADER_DOCUMENTS) return STATUS_OK;
    if (set->eod == EOD_NONE || set->eot < 0)
        return FAIL(
            STATUS_DATA,
            "%s: document packing needs end-of-text tokens, and these shards were built with --eod none; "
            "use data.packing: stream, or build them again",
            path);
    return STATUS_OK;
}

static void *prefetch(void *arg)
{
    struct loader *l = arg;
    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        if (l->filled - l->taken >= DEPTH - 1) {
            pthread_cond_wait(&l->can_fill, &l->mutex);
            continue;
        }
        int64_t n = l->filled;
        pthread_mutex_unlock(&l->mutex);
        status st = slot_fill(&l->slots[n % DEPTH], l->set, &l->config, l->windows, l->first_step + n);
        pthread_mutex_lock(&l->mutex);
        if (st != STATUS_OK) {
            l->error = st;
            snprintf(l->message, sizeof l->message, "%s", status_message()); /* the record is this thread's */
            l->stop = true;
        } else {
            l->filled++;
        }
        pthread_cond_signal(&l->can_take);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

status loader_open(struct loader **out, const struct shard_set *set, const struct loader_config *c,
                   int64_t first_step)
{
    *out = NULL;
    CHECK(first_step >= 0, "first step %lld", (long long)first_step);
    TRY(config_check(set, c));
    if (c->documents == LOADER_DOCUMENTS && !set->manifest)
        log_warn("%s has no manifest: documents are taken to begin at token %d, as llm.c writes them",
                 set->shards[0].path, set->eot);
    if (set->mixed)
        log_warn(
            "%s and the others: shards of training and of validation are read as one set; a pattern such as "
            "PREFIX_train_*.bin takes one of them",
            set->shards[0].path);
    struct loader *l = calloc(1, sizeof *l);
    if (!l) return FAIL(STATUS_FIT, "no memory for a loader");
    l->set = set;
    l->config = *c;
    l->first_step = first_step;
    l->windows = windows_used(set, c);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->can_fill, NULL);
    pthread_cond_init(&l->can_take, NULL);
    status st = STATUS_OK;
    for (int i = 0; i < DEPTH; i++) TRY_OUT(slot_open(&l->slots[i], c));
    /* Signals are the main thread's business: a handler that runs here could not stop the loop in order. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&l->thread, NULL, prefetch, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->running = rc == 0;
    if (rc != 0) st = FAIL(STATUS_FIT, "cannot start the thread that reads ahead: %s", strerror(rc));
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
    if (l->running) {
        pthread_mutex_lock(&l->mutex);
        l->stop = true;
        pthread_cond_signal(&l->can_fill);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
    }
    for (int i = 0; i < DEPTH; i++) slot_close(&l->slots[i]);
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
    while (l->filled == l->taken && l->error == STATUS_OK) pthread_cond_wait(&l->can_take, &l->mutex);
    if (l->filled > l->taken) {
        *out = &l->slots[l->taken % DEPTH].batch;
        l->taken++;
        pthread_cond_signal(&l->can_fill);
    }
    pthread_mutex_unlock(&l->mutex);
    l->wait_ns += clock_ns() - begin;
    return *out ? STATUS_OK : FAIL(l->error, "%s", l->message);
}

double loader_wait_s(const struct loader *l)
{
    return (double)l->wait_ns * 1e-9;
}
int64_t loader_windows(const struct loader *l)
{
    return l->windows;
}

status loader_step_at(const struct shard_set *set, const struct loader_config *c, int64_t step,
                      struct step_batch **out)
{
    *out = NULL;
    CHECK(step >= 0, "step %lld", (long long)step);
    TRY(config_check(set, c));
    struct slot *s = calloc(1, sizeof *s);
    if (!s) return FAIL(STATUS_FIT, "no memory for a step");
    status st = slot_open(s, c);
    if (st == STATUS_OK) st = slot_fill(s, set, c, windows_used(set, c), step);
    if (st == STATUS_OK)
        *out = &s->batch;
    else
        step_batch_free(&s->batch);
    return st;
}

void step_batch_free(struct step_batch *b)
{
    if (!b) return;
    struct slot *s = (struct slot *)b;
    slot_close(s);
    free(s);
}
