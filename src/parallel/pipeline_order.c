/* A checked schedule's actions in an order in which each comes after those that it waits for. Waits do not depend on times (pipeline_simulate.c), so
 * one order serves all times: a makespan is one pass over it. */
#include "parallel/pipeline_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where actions are found while the order is made: of F and of B or BI, by stage and micro-batch. */
struct making {
    const struct pipeline_schedule *s;
    struct pipeline_order *o;
    int *at[2]; /* [stages * micros], owned */
};

static int *place(const struct making *m, bool forward, int stage, int micro)
{
    return &m->at[forward][stage * m->s->micros + micro];
}

/* Called for each action as it starts. */
static double put_in_order(void *ctx, int rank, const struct pipeline_action *a, double start, double seconds)
{
    (void)start;
    struct making *m = ctx;
    struct pipeline_order *o = m->o;
    const int stages = m->s->ranks * m->s->chunks, stage = a->chunk * m->s->ranks + rank;
    const bool forward = a->what == PIPELINE_F;
    const int from = a->what == PIPELINE_W ? -1 : stage + (forward ? -1 : 1);
    o->actions[o->count] = (struct pipeline_ordered){
        .rank = rank,
        .takes = stage * PIPELINE_PASSES + (int)a->what,
        .from = from < 0 || from == stages ? o->most : *place(m, forward, from, a->micro)};
    if (a->what != PIPELINE_W) *place(m, forward, stage, a->micro) = o->count;
    o->count++;
    return seconds;
}

status pipeline_order_make(struct pipeline_order *o, const struct pipeline_schedule *s)
{
    const size_t stages = (size_t)s->ranks * (size_t)s->chunks, passes = stages * (size_t)s->micros;
    struct pipeline_stage_time *equal = calloc(stages, sizeof *equal);
    struct making m = {s, o, {calloc(passes, sizeof(int)), calloc(passes, sizeof(int))}};
    *o = (struct pipeline_order){.ranks = s->ranks, .stages = (int)stages};
    for (int r = 0; r < s->ranks; r++) o->most += s->rank[r].count;
    o->actions = malloc((size_t)o->most * sizeof *o->actions);
    o->ended = malloc(((size_t)o->most + 1) * sizeof *o->ended);
    o->seconds = malloc(stages * PIPELINE_PASSES * sizeof *o->seconds);
    status st = STATUS_OK;
    if (!equal || !m.at[0] || !m.at[1] || !o->actions || !o->ended || !o->seconds)
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the order of %d actions of a pipeline", o->most);
    if (st != STATUS_OK) goto out;
    for (size_t i = 0; i < stages; i++) equal[i] = (struct pipeline_stage_time){1, 1, 1};
    struct pipeline_simulated walked;
    TRY_OUT(pipeline_simulate(
        s, &(struct pipeline_simulate_args){.stages = equal, .takes = put_in_order, .ctx = &m}, &walked));
    o->depth = walked.unread + 1;
out:
    free(equal);
    free(m.at[0]);
    free(m.at[1]);
    return st;
}

void pipeline_order_free(struct pipeline_order *o)
{
    free(o->actions);
    free(o->ended);
    free(o->seconds);
    *o = (struct pipeline_order){0};
}

void pipeline_makespans(struct pipeline_order *o, const struct pipeline_stage_time *stages,
                        const double message[2], double makespan[2])
{
    struct pipeline_pair clock[PIPELINE_RANKS_MAX] = {0};
    for (int i = 0; i < o->stages; i++) {
        const struct pipeline_stage_time *t = &stages[i];
        const double planned[PIPELINE_PASSES] = {t->forward, t->dgrad + t->wgrad, t->dgrad, t->wgrad};
        memcpy(o->seconds + i * PIPELINE_PASSES, planned, sizeof planned);
    }
    o->ended[o->most] = (struct pipeline_pair){{-INFINITY, -INFINITY}}; /* what nothing waits for */
    for (int i = 0; i < o->count; i++) {
        const struct pipeline_ordered a = o->actions[i];
        const struct pipeline_pair from = o->ended[a.from];
        for (int k = 0; k < 2; k++) {
            const double arrival = from.at[k] + message[k], ready = clock[a.rank].at[k];
            clock[a.rank].at[k] = (arrival > ready ? arrival : ready) + o->seconds[a.takes];
        }
        o->ended[i] = clock[a.rank];
    }
    for (int k = 0; k < 2; k++) {
        makespan[k] = 0;
        for (int r = 0; r < o->ranks; r++)
            if (clock[r].at[k] > makespan[k]) makespan[k] = clock[r].at[k];
    }
}
