/* A walk over all ranks of a pipeline. Every rank does its actions in order, waits for the messages it needs and for room for those it
 * sends, and never looks whether a message is there: so what it waits for, and whether it waits for ever, does not depend on how long
 * anything takes, and the ranks may be walked in any order, each with a clock of its own. */
#include "parallel/pipeline_schedule.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum way { NEXT, PREV, WAYS };
struct message {
    int micro, stage;  /* of the sender */
    double sent, read; /* times */
};
struct mailbox { /* of a receiver, for one way */
    struct message *messages;
    int sent, read;
};
struct walker {
    int at;        /* action */
    bool computed; /* it is done, but its message waits for room */
    double clock, busy;
};
struct walk {
    const struct pipe_schedule *s;
    const struct pipe_simulate_args *a;
    struct walker ranks[PIPE_RANKS_MAX];
    struct mailbox boxes[PIPE_RANKS_MAX][WAYS];
};

static int stage_of(const struct walk *w, int rank, const struct pipe_action *a)
{
    return a->chunk * w->s->ranks + rank;
}

/* Which stage's message an action takes (`side` -1), or whom its own is for (+1), as seen in its direction; -1: none. */
static int neighbour(const struct walk *w, int rank, const struct pipe_action *a, int side)
{
    const int stages = w->s->ranks * w->s->chunks;
    if (a->what == PIPE_W) return -1;
    const int stage = stage_of(w, rank, a) + (a->what == PIPE_F ? side : -side);
    return stage < stages ? stage : -1;
}

static enum way way_of(const struct pipe_action *a)
{
    return a->what == PIPE_F ? NEXT : PREV;
}

static const char *action_text(char text[64], const struct pipe_action *a)
{
    static const char *const names[] = {"F", "B", "BI", "W"};
    snprintf(text, 64, "%s of micro-batch %d, chunk %d", names[a->what], a->micro, a->chunk);
    return text;
}

static status receive(struct walk *w, int rank, const struct pipe_action *a, bool *there)
{
    struct walker *me = &w->ranks[rank];
    struct mailbox *box = &w->boxes[rank][way_of(a)];
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

static void compute(struct walk *w, int rank, const struct pipe_action *a)
{
    const struct pipe_time *t = &w->a->stages[stage_of(w, rank, a)];
    const double takes[] = {t->forward, t->dgrad + t->wgrad, t->dgrad, t->wgrad};
    w->ranks[rank].clock += takes[a->what];
    w->ranks[rank].busy += takes[a->what];
}

/* False: the mailbox is full. */
static bool deliver(struct walk *w, int rank, const struct pipe_action *a)
{
    struct walker *me = &w->ranks[rank];
    const int to = neighbour(w, rank, a, 1);
    if (to < 0) return true;
    struct mailbox *box = &w->boxes[to % w->s->ranks][way_of(a)];
    if (w->a->depth > 0 && box->sent - box->read >= w->a->depth) return false;
    if (w->a->depth > 0 && box->sent >= w->a->depth) {
        const double room = box->messages[box->sent - w->a->depth].read;
        if (room > me->clock) me->clock = room;
    }
    CHECK(box->sent < w->s->micros * w->s->chunks, "a schedule that pipe_check has not seen");
    box->messages[box->sent++] =
        (struct message){.micro = a->micro, .stage = stage_of(w, rank, a), .sent = me->clock};
    return true;
}

/* As far as this rank comes. */
static status advance(struct walk *w, int rank, bool *moved)
{
    struct walker *me = &w->ranks[rank];
    while (me->at < w->s->rank[rank].count) {
        const struct pipe_action *a = &w->s->rank[rank].actions[me->at];
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
        const struct pipe_action *a = &w->s->rank[r].actions[me->at];
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

/* Most that were sent and not yet read at the moment of a sending. Both times ascend. */
static int unread_of(const struct mailbox *box)
{
    int most = 0;
    for (int k = 0, read = 0; k < box->sent; k++) {
        while (read < k && box->messages[read].read <= box->messages[k].sent) read++;
        if (k + 1 - read > most) most = k + 1 - read;
    }
    return most;
}

static void summarize(const struct walk *w, struct pipe_simulated *out)
{
    double busy = 0;
    *out = (struct pipe_simulated){0};
    for (int r = 0; r < w->s->ranks; r++) {
        if (w->ranks[r].clock > out->makespan) out->makespan = w->ranks[r].clock;
        busy += w->ranks[r].busy;
        for (int way = 0; way < WAYS; way++) {
            const int unread = unread_of(&w->boxes[r][way]);
            if (unread > out->unread) out->unread = unread;
        }
    }
    for (int r = 0; r < w->s->ranks; r++) out->waited[r] = out->makespan - w->ranks[r].busy;
    if (out->makespan > 0) out->bubble = 1 - busy / (w->s->ranks * out->makespan);
}

status pipe_simulate(const struct pipe_schedule *s, const struct pipe_simulate_args *a,
                     struct pipe_simulated *out)
{
    const size_t turns = (size_t)s->micros * (size_t)s->chunks;
    struct walk *w = calloc(1, sizeof *w);
    struct message *messages = calloc(turns * (size_t)s->ranks * WAYS, sizeof *messages);
    status st = w && messages ? STATUS_OK : FAIL(STATUS_FIT, "no memory to walk through a schedule");
    if (st != STATUS_OK) goto out;
    w->s = s, w->a = a;
    for (int r = 0; r < s->ranks; r++)
        for (int way = 0; way < WAYS; way++)
            w->boxes[r][way].messages = messages + (size_t)(r * WAYS + way) * turns;
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

status pipe_depth(const struct pipe_schedule *s, int *depth)
{
    const int stages = s->ranks * s->chunks;
    struct pipe_time *equal = calloc((size_t)stages, sizeof *equal);
    struct pipe_simulated walked;
    if (equal == NULL) return FAIL(STATUS_FIT, "no memory for the times of %d stages", stages);
    for (int i = 0; i < stages; i++) equal[i] = (struct pipe_time){1, 1, 1};
    status st = pipe_simulate(s, &(struct pipe_simulate_args){.stages = equal}, &walked);
    if (st == STATUS_OK) *depth = walked.unread + 1;
    free(equal);
    return st;
}
