/* The pipeline of a mesh, simulated: how long a step of it takes, and what its ranks hold. */
#include "plan/mesh_plan_int.h"

#include <stdlib.h>
#include <string.h>

void mesh_walk_forget(struct mesh_walk *w)
{
    if (w->schedule.ranks > 0) pipeline_schedule_free(&w->schedule);
    pipeline_order_free(&w->few);
    pipeline_order_free(&w->more);
    free(w->times);
    *w = (struct mesh_walk){0};
}

/* Once a pipeline is full, each group of micro-batches takes as long as the last one. So of very many, FIRST per rank are
 * simulated, and then MORE: the same groups with the same remainder. Returns `micros` if all are needed. */
enum { WALK_FIRST = 4, WALK_MORE = 2, WALK_MOST = 8 };
static int walked_micros(const struct mesh_shape *m, int micros, int least)
{
    const int group = m->chunks > 1 ? pipeline_schedule_group(m->pp, micros) : 1;
    if (micros <= WALK_MOST * m->pp || group > WALK_FIRST * m->pp || m->schedule == PIPELINE_GPIPE)
        return micros;
    int few = micros % group + group * ((least + group - 1) / group);
    while (few < micros && m->chunks > 1 && pipeline_schedule_group(m->pp, few) != group) few += group;
    return few < micros ? few : micros;
}

static status order_longer(struct mesh_walk *w, const struct mesh_shape *m, int micros)
{
    struct pipeline_schedule longer;
    status st = pipeline_schedule_build(&longer, m->schedule, m->pp, micros, m->chunks);
    if (st == STATUS_OK) st = pipeline_order_make(&w->more, &longer);
    w->more_micros = micros;
    pipeline_schedule_free(&longer);
    return st;
}

static status build_schedule(struct mesh_walk *w, const struct mesh_result *r)
{
    const struct mesh_shape *m = &r->variant.mesh;
    const struct pipeline_schedule *s = &w->schedule;
    if (s->ranks == m->pp && w->micros == r->micros && s->chunks == m->chunks && s->kind == m->schedule)
        return STATUS_OK;
    mesh_walk_forget(w);
    w->micros = r->micros;
    const int few = walked_micros(m, r->micros, WALK_FIRST * m->pp),
              more = walked_micros(m, r->micros, few + WALK_MORE * m->pp);
    status st =
        pipeline_schedule_build(&w->schedule, m->schedule, m->pp, more > few ? few : r->micros, m->chunks);
    if (st == STATUS_OK) st = pipeline_order_make(&w->few, &w->schedule);
    if (st == STATUS_OK && more > few) st = order_longer(w, m, more);
    if (st != STATUS_OK) mesh_walk_forget(w);
    return st;
}

static void simulate(struct mesh_walk *w)
{
    const double messages[2] = {w->message, 0};
    double few[2], more[2];
    pipeline_makespans(&w->few, w->times, messages, few);
    w->with = few[0], w->without = few[1];
    if (w->more_micros == 0) return;
    pipeline_makespans(&w->more, w->times, messages, more);
    const int rest = w->micros - w->schedule.micros, between = w->more_micros - w->schedule.micros;
    w->with += (more[0] - few[0]) * rest / between;
    w->without += (more[1] - few[1]) * rest / between;
}

/* Takes ownership of `times`. */
static void walk_schedule(struct mesh_walk *w, struct pipeline_stage_time *times, size_t count,
                          double message)
{
    if (w->times && w->message == message && memcmp(w->times, times, count * sizeof *times) == 0) {
        free(times);
        return;
    }
    free(w->times);
    w->times = times, w->message = message;
    simulate(w);
}

/* Takes ownership of `times`. */
status mesh_walk_pipeline(struct mesh_plan *p, struct mesh_result *r, const struct rank_share *s,
                          struct pipeline_stage_time *times, double message, double *makespan)
{
    const struct mesh_shape *m = &r->variant.mesh;
    struct mesh_walk *w = &p->walk;
    status st = build_schedule(w, r);
    if (st != STATUS_OK) free(times);
    TRY(st);
    walk_schedule(w, times, (size_t)m->pp * (size_t)m->chunks, message);
    for (int i = 0; i < m->pp; i++) {
        r->stages[i].slots = w->schedule.rank[i].slots;
        r->stages[i].stores = w->schedule.rank[i].stores;
    }
    const double sends = 2.0 * r->micros * m->chunks;
    r->pp = (struct mesh_traffic){.bytes = sends * traffic_stage_bytes(s->stream_bytes, m->tp),
                                  .seconds = sends * message,
                                  .exposed = w->with - w->without};
    r->bubble = w->without;
    *makespan = w->with;
    return STATUS_OK;
}
