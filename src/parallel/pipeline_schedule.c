#include "parallel/pipeline_schedule.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void add(struct pipeline_rank *r, enum pipeline_pass what, int micro, int chunk)
{
    r->actions[r->count++] = (struct pipeline_action){.what = what, .micro = micro, .chunk = chunk};
}

static void order_gpipe(struct pipeline_schedule *s, struct pipeline_rank *r)
{
    for (int j = 0; j < s->micros; j++) add(r, PIPELINE_F, j, 0);
    for (int j = 0; j < s->micros; j++) add(r, PIPELINE_B, j, 0);
}

static int at_most(int n, int limit)
{
    return n < limit ? n : limit;
}

/* The k-th of a rank's m v passes. A group of N micro-batches runs through all chunks before the next group starts. The
 * remainder is a group of its own. */
static struct pipeline_action nth_pass(const struct pipeline_schedule *s, enum pipeline_pass what, int k)
{
    const int whole = s->group * s->chunks, first = k / whole * s->group, left = s->micros - first,
              group = at_most(s->group, left), u = k % whole;
    const int chunk = u / group;
    return (struct pipeline_action){.what = what,
                                    .micro = first + u % group,
                                    .chunk = what == PIPELINE_F ? chunk : s->chunks - 1 - chunk};
}

/* 1F1B is the interleaved schedule with one chunk. */
static void order_interleaved(struct pipeline_schedule *s, struct pipeline_rank *r, int rank)
{
    const int total = s->micros * s->chunks, late = s->ranks - rank - 1;
    const int warm = at_most(s->chunks > 1 ? 2 * late + (s->chunks - 1) * s->group : late, total);
    for (int k = 0; k < warm; k++) r->actions[r->count++] = nth_pass(s, PIPELINE_F, k);
    for (int k = 0; k < total; k++) {
        if (warm + k < total) r->actions[r->count++] = nth_pass(s, PIPELINE_F, warm + k);
        r->actions[r->count++] = nth_pass(s, PIPELINE_B, k);
    }
}

/* Rank i has p - i micro-batches between F and BI, and i between BI and W. */
static void order_zb_h1(struct pipeline_schedule *s, struct pipeline_rank *r, int rank)
{
    const int warm = at_most(s->ranks - rank - 1, s->micros);
    for (int j = 0; j < warm; j++) add(r, PIPELINE_F, j, 0);
    for (int j = 0; j < s->micros; j++) {
        if (warm + j < s->micros) add(r, PIPELINE_F, warm + j, 0);
        add(r, PIPELINE_BI, j, 0);
        if (j >= rank) add(r, PIPELINE_W, j - rank, 0);
    }
    for (int j = s->micros - at_most(rank, s->micros); j < s->micros; j++) add(r, PIPELINE_W, j, 0);
}

int pipeline_schedule_group(int ranks, int micros)
{
    int n = ranks;
    while (n < micros && micros % n != 0 && micros % n < ranks) n++;
    return n;
}

status pipeline_schedule_build(struct pipeline_schedule *s, enum pipeline_kind kind, int ranks, int micros,
                               int chunks)
{
    *s = (struct pipeline_schedule){.kind = kind, .ranks = ranks, .micros = micros, .chunks = chunks};
    CHECK(ranks > 0 && micros > 0 && chunks > 0, "a pipeline of %d ranks, %d micro-batches, %d chunks", ranks,
          micros, chunks);
    if (ranks > PIPELINE_RANKS_MAX)
        return FAIL(STATUS_CONFIG, "a pipeline of %d ranks: at most %d are possible", ranks,
                    PIPELINE_RANKS_MAX);
    if (chunks > 1 && kind != PIPELINE_INTERLEAVED)
        return FAIL(STATUS_CONFIG,
                    "%d chunks on a rank of a pipeline: only the interleaved schedule has more than one",
                    chunks);
    if (chunks > 1 && ranks == 1) return FAIL(STATUS_CONFIG, "chunks need a pipeline of several ranks");
    if (chunks > 1 && micros < ranks)
        return FAIL(STATUS_CONFIG,
                    "%d micro-batches for an interleaved pipeline of %d ranks: it needs at least as many "
                    "micro-batches as ranks; raise train.batch_tokens, or take the schedule 1f1b",
                    micros, ranks);
    s->group = chunks > 1 ? pipeline_schedule_group(ranks, micros) : micros;
    for (int i = 0; i < ranks; i++) {
        struct pipeline_rank *r = &s->rank[i];
        r->actions = calloc((size_t)micros * (size_t)chunks * 3, sizeof *r->actions);
        if (r->actions == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the schedule of %d micro-batches", micros);
        switch (kind) {
        case PIPELINE_GPIPE: order_gpipe(s, r); break;
        case PIPELINE_1F1B:
        case PIPELINE_INTERLEAVED: order_interleaved(s, r, i); break;
        case PIPELINE_ZB_H1: order_zb_h1(s, r, i); break;
        }
    }
    return pipeline_schedule_check(s);
}

void pipeline_schedule_free(struct pipeline_schedule *s)
{
    for (int i = 0; i < s->ranks && i < PIPELINE_RANKS_MAX; i++) free(s->rank[i].actions);
    *s = (struct pipeline_schedule){0};
}

/* Progress of a chunk: the next micro-batch of each pass. */
struct progress {
    int forward, back, dgrad, wgrad; /* back: B and BI; dgrad: BI alone; wgrad: W */
};
/* Allocates numbers from 0, the lowest free one first. */
struct pool {
    int *of;    /* [chunks][micros]: the number of each micro-batch */
    bool *used; /* [chunks * micros] */
    int most;   /* in use at once */
};

static int pool_acquire(struct pool *pool, int who)
{
    int k = 0;
    while (pool->used[k]) k++;
    pool->used[k] = true;
    if (k + 1 > pool->most) pool->most = k + 1;
    return pool->of[who] = k;
}

static int pool_release(struct pool *pool, int who)
{
    pool->used[pool->of[who]] = false;
    return pool->of[who];
}

static void pool_clear(struct pool *pool, size_t count)
{
    memset(pool->used, 0, count * sizeof *pool->used);
    pool->most = 0;
}

/* Assigns a set of activations and a store to a valid action. */
static void assign(struct pipeline_action *a, int who, struct pool *slots, struct pool *stores)
{
    if (a->what == PIPELINE_F) a->slot = pool_acquire(slots, who);
    if (a->what == PIPELINE_B || a->what == PIPELINE_BI) a->slot = pool_release(slots, who);
    if (a->what == PIPELINE_BI) a->store = pool_acquire(stores, who);
    if (a->what == PIPELINE_W) a->store = pool_release(stores, who);
}

static const char *check_action(struct progress *p, const struct pipeline_action *a)
{
    int *next = a->what == PIPELINE_F ? &p->forward : a->what == PIPELINE_W ? &p->wgrad : &p->back;
    if (a->micro != *next) return a->micro < *next ? "is done a second time" : "comes too early";
    if ((a->what == PIPELINE_B || a->what == PIPELINE_BI) && a->micro >= p->forward)
        return "comes before its F";
    if (a->what == PIPELINE_W && a->micro >= p->dgrad) return "comes before its BI";
    if (a->what == PIPELINE_BI && p->dgrad != p->back) return "follows a B";
    if (a->what == PIPELINE_B && p->dgrad > 0) return "follows a BI";
    (*next)++;
    if (a->what == PIPELINE_BI) p->dgrad++;
    return NULL;
}

static status check_rank(struct pipeline_schedule *s, int rank, struct progress *p, struct pool pools[2])
{
    static const char *const names[] = {"F", "B", "BI", "W"};
    struct pipeline_rank *r = &s->rank[rank];
    for (int i = 0; i < r->count; i++) {
        struct pipeline_action *a = &r->actions[i];
        const bool known = a->chunk >= 0 && a->chunk < s->chunks && a->micro >= 0 && a->micro < s->micros;
        const char *wrong = known ? check_action(&p[a->chunk], a) : "is of no chunk or micro-batch";
        if (wrong)
            return FAIL(STATUS_CONFIG, "schedule of rank %d: %s of micro-batch %d, chunk %d, %s", rank,
                        names[a->what], a->micro, a->chunk, wrong);
        assign(a, a->chunk * s->micros + a->micro, &pools[0], &pools[1]);
    }
    r->slots = pools[0].most, r->stores = pools[1].most;
    for (int c = 0; c < s->chunks; c++)
        if (p[c].forward < s->micros || p[c].back < s->micros || p[c].wgrad < p[c].dgrad)
            return FAIL(STATUS_CONFIG,
                        "schedule of rank %d: chunk %d ends with %d F, %d B or BI, %d W of %d micro-batches",
                        rank, c, p[c].forward, p[c].back, p[c].wgrad, s->micros);
    return STATUS_OK;
}

status pipeline_schedule_check(struct pipeline_schedule *s)
{
    const size_t passes = (size_t)s->micros * (size_t)s->chunks;
    struct progress *p = malloc((size_t)s->chunks * sizeof *p);
    struct pool pools[2] = {0};
    status st = STATUS_OK;
    for (int k = 0; k < 2; k++) {
        pools[k].of = malloc(passes * sizeof *pools[k].of);
        pools[k].used = malloc(passes * sizeof *pools[k].used);
        if (!p || !pools[k].of || !pools[k].used)
            st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the schedule of %d micro-batches", s->micros);
    }
    for (int i = 0; i < s->ranks && st == STATUS_OK; i++) {
        memset(p, 0, (size_t)s->chunks * sizeof *p);
        for (int k = 0; k < 2; k++) pool_clear(&pools[k], passes);
        st = check_rank(s, i, p, pools);
    }
    for (int k = 0; k < 2; k++) {
        free(pools[k].of);
        free(pools[k].used);
    }
    free(p);
    return st;
}
