/* Simulates all ranks of a pipeline. A rank runs its actions in order. It waits for each message that it needs, and for
 * mailbox space for each message that it sends; it never polls. So waits and deadlocks do not depend on times, and the
 * ranks can be simulated in any order, each with its own clock. */
#include "parallel/pipeline_schedule.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum direction { NEXT, PREV, DIRECTIONS };
struct message {
    int micro, stage;  /* of the sender */
    double sent, read; /* times */
};
struct mailbox { /* of a receiver, for one direction */
    struct message *messages;
    int sent, read;
};
struct walker {
    int at;        /* action */
    bool computed; /* the action has run, but its message waits for mailbox space */
    double clock, busy;
};
struct walk {
    const struct pipeline_schedule *s;
    const struct pipeline_simulate_args *a;
    struct walker ranks[PIPELINE_RANKS_MAX];
    struct mailbox boxes[PIPELINE_RANKS_MAX][DIRECTIONS];
};

static int stage_of(const struct walk *w, int rank, const struct pipeline_action *a)
{
    return a->chunk * w->s->ranks + rank;
}

/* The stage that an action receives from (`side` -1) or sends to (+1), in its own direction; -1: none. */
static int neighbour(const struct walk *w, int rank, const struct pipeline_action *a, int side)
{
    const int stages = w->s->ranks * w->s->chunks;
    if (a->what == PIPELINE_W) return -1;
    const int stage = stage_of(w, rank, a) + (a->what == PIPELINE_F ? side : -side);
    return stage < stages ? stage : -1;
}

static enum direction direction_of(const struct pipeline_action *a)
{
    return a->what == PIPELINE_F ? NEXT : PREV;
}

static const char *action_text(char text[64], const struct pipeline_action *a)
{
    static const char *const names[] = {"F", "B", "BI", "W"};
    snprintf(text, 64, "%s of micro-batch %d, chunk %d", names[a->what], a->micro, a->chunk);
    return text;
}

static status receive(struct walk *w, int rank, const struct pipeline_action *a, bool *there)
{
    struct walker *me = &w->ranks[rank];
    struct mailbox *box = &w->boxes[rank][direction_of(a)];
    const int from = neighbour(w, rank, a, -1);
    *there = from < 0 || box->read < box->sent;
    if (from < 0 || !*there) return STATUS_OK;
    struct message *m = &box->messages[box->read];
    if (m->micro != a->micro || m->stage != from) {
        char text[64];
        return FAIL(STATUS_CONFIG,
                    "schedule: rank %d, %s, waits for stage %d and finds the message of micro-batch %d from "
                    "stage %d",
                    rank, action_text(text, a), from, m->micro, m->stage);
    }
    const double arrival = m->sent + w->a->message;
    if (arrival > me->clock) me->clock = arrival;
    m->read = me->clock;
    box->read++;
    return STATUS_OK;
}

static void compute(struct walk *w, int rank, const struct pipeline_action *a)
{
    const struct pipeline_stage_time *t = &w->a->stages[stage_of(w, rank, a)];
    const double planned[] = {t->forward, t->dgrad + t->wgrad, t->dgrad, t->wgrad};
    struct walker *me = &w->ranks[rank];
    const double takes =
        w->a->takes ? w->a->takes(w->a->ctx, rank, a, me->clock, planned[a->what]) : planned[a->what];
    me->clock += takes;
    me->busy += takes;
}

/* False: the mailbox is full. */
static bool deliver(struct walk *w, int rank, const struct pipeline_action *a)
{
    struct walker *me = &w->ranks[rank];
    const int to = neighbour(w, rank, a, 1);
    if (to < 0) return true;
    struct mailbox *box = &w->boxes[to % w->s->ranks][direction_of(a)];
    if (w->a->depth > 0 && box->sent - box->read >= w->a->depth) return false;
    if (w->a->depth > 0 && box->sent >= w->a->depth) {
        const double room = box->messages[box->sent - w->a->depth].read;
        if (room > me->clock) me->clock = room;
    }
    CHECK(box->sent < w->s->micros * w->s->chunks, "a schedule that pipeline_schedule_check has not seen");
    box->messages[box->sent++] =
        (struct message){.micro = a->micro, .stage = stage_of(w, rank, a), .sent = me->clock};
    return true;
}

/* Runs this rank until it must wait. */
static status advance(struct walk *w, int rank, bool *moved)
{
    struct walker *me = &w->ranks[rank];
    while (me->at < w->s->rank[rank].count) {
        const struct pipeline_action *a = &w->s->rank[rank].actions[me->at];
        if (!me->computed) {
            bool there;
            TRY(receive(w, rank, a, &there));
            if (!there) return STATUS_OK;
            compute(w, rank, a);
            me->computed = *moved = true;
        }
        if (!deliver(w, rank, a)) return STATUS_OK;
        me->computed = false;
        me->at++;
        *moved = true;
    }
    return STATUS_OK;
}

static status stuck(const struct walk *w)
{
    for (int r = 0; r < w->s->ranks; r++) {
        const struct walker *me = &w->ranks[r];
        char text[64];
        if (me->at == w->s->rank[r].count) continue;
        const struct pipeline_action *a = &w->s->rank[r].actions[me->at];
        if (me->computed)
            return FAIL(STATUS_CONFIG,
                        "schedule: all wait for each other: rank %d, %s, has its message for stage %d, whose "
                        "mailbox holds %d",
                        r, action_text(text, a), neighbour(w, r, a, 1), w->a->depth);
        return FAIL(STATUS_CONFIG,
                    "schedule: all wait for each other: rank %d waits for stage %d's message before %s", r,
                    neighbour(w, r, a, -1), action_text(text, a));
    }
    return STATUS_OK;
}

/* Most messages that were sent and not yet read when another was sent. Both times ascend. */
static int unread_of(const struct mailbox *box)
{
    int most = 0;
    for (int k = 0, read = 0; k < box->sent; k++) {
        while (read < k && box->messages[read].read <= box->messages[k].sent) read++;
        if (k + 1 - read > most) most = k + 1 - read;
    }
    return most;
}

static void summarize(const struct walk *w, struct pipeline_simulated *out)
{
    double busy = 0;
    *out = (struct pipeline_simulated){0};
    for (int r = 0; r < w->s->ranks; r++) {
        if (w->ranks[r].clock > out->makespan) out->makespan = w->ranks[r].clock;
        busy += w->ranks[r].busy;
        for (int to = 0; to < DIRECTIONS; to++) {
            const int unread = unread_of(&w->boxes[r][to]);
            if (unread > out->unread) out->unread = unread;
        }
    }
    for (int r = 0; r < w->s->ranks; r++) out->waited[r] = out->makespan - w->ranks[r].busy;
    if (out->makespan > 0) out->bubble = 1 - busy / (w->s->ranks * out->makespan);
}

status pipeline_simulate(const struct pipeline_schedule *s, const struct pipeline_simulate_args *a,
                         struct pipeline_simulated *out)
{
    const size_t per_mailbox = (size_t)s->micros * (size_t)s->chunks;
    struct walk *w = calloc(1, sizeof *w);
    struct message *messages = calloc(per_mailbox * (size_t)s->ranks * DIRECTIONS, sizeof *messages);
    status st =
        w && messages ? STATUS_OK : FAIL(STATUS_OUT_OF_MEMORY, "no memory to walk through a schedule");
    if (st != STATUS_OK) goto out;
    w->s = s, w->a = a;
    for (int r = 0; r < s->ranks; r++)
        for (int to = 0; to < DIRECTIONS; to++)
            w->boxes[r][to].messages = messages + (size_t)(r * DIRECTIONS + to) * per_mailbox;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->ranks; r++) TRY_OUT(advance(w, r, &moved));
    }
    TRY_OUT(stuck(w));
    summarize(w, out);
out:
    free(messages);
    free(w);
    return st;
}

status pipeline_schedule_depth(const struct pipeline_schedule *s, int *depth)
{
    const int stages = s->ranks * s->chunks;
    struct pipeline_stage_time *equal = calloc((size_t)stages, sizeof *equal);
    struct pipeline_simulated walked;
    if (equal == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the times of %d stages", stages);
    for (int i = 0; i < stages; i++) equal[i] = (struct pipeline_stage_time){1, 1, 1};
    status st = pipeline_simulate(s, &(struct pipeline_simulate_args){.stages = equal}, &walked);
    if (st == STATUS_OK) *depth = walked.unread + 1;
    free(equal);
    return st;
}
