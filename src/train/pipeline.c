#include "train/pipeline.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/scope.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* State of a rank while it runs the schedule of a step. */
struct schedule_run {
    struct trainer *t;
    const struct pipeline_rank *me;
    int per_group;                 /* micro-batches of a group of gradients */
    int dgrads, wgrads;            /* BI and W that have run */
    struct pipeline_action before; /* the last action */
};

static int stage_count(const struct pipeline *p)
{
    return p->schedule.ranks * p->schedule.chunks;
}

/* Up to three time stamps per action; W passes of groups that end early come on top of the schedule. */
static status open_laps(struct trainer *t)
{
    struct pipeline *p = &t->pipeline;
    const int capacity = 1 + 3 * p->schedule.rank[t->mesh.pp_rank].count + p->schedule.micros;
    p->laps = calloc((size_t)capacity, sizeof *p->laps);
    if (p->laps == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the times of %d actions", capacity);
    for (; p->lap_capacity < capacity; p->lap_capacity++)
        TRY(dev_event_open(&t->dev, &p->laps[p->lap_capacity].at));
    return STATUS_OK;
}

status pipeline_open(struct trainer *t)
{
    struct pipeline *p = &t->pipeline;
    const struct mesh_shape *shape = &t->mesh.shape;
    if (t->mesh.pp == NULL) return STATUS_OK;
    int depth;
    TRY(pipeline_schedule_build(&p->schedule, shape->schedule, shape->pp, t->feed.shape.micro_count,
                                shape->chunks));
    TRY(pipeline_schedule_depth(&p->schedule, &depth));
    p->message = (size_t)tensor_count(t->acts.x) * dtype_bytes(t->acts.x.dt);
    if (t->exec.stream) TRY(open_laps(t));
    return comm_mailbox_open(t->mesh.pp, p->message, depth, t->exec.stream);
}

void pipeline_close(struct trainer *t)
{
    struct pipeline *p = &t->pipeline;
    for (int i = 0; i < p->lap_capacity; i++) dev_event_close(&t->dev, &p->laps[i].at);
    free(p->laps);
    pipeline_schedule_free(&p->schedule);
    *p = (struct pipeline){0};
}

/* Attributes the time since the last time stamp to `what`. */
static status lap(struct trainer *t, enum pipeline_spent what)
{
    struct pipeline *p = &t->pipeline;
    if (t->exec.stream) {
        struct pipeline_lap *stamp = &p->laps[p->lap_count++];
        CHECK(p->lap_count <= p->lap_capacity, "%d time stamps in a step of %d", p->lap_count,
              p->lap_capacity);
        stamp->what = what;
        return dev_event_stamp(t->exec.stream, &stamp->at);
    }
    const double now = clock_s();
    p->spent[what] += now - p->last;
    p->last = now;
    return STATUS_OK;
}

/* At the beginning of a step. */
static status lap_begin(struct trainer *t)
{
    struct pipeline *p = &t->pipeline;
    for (int i = 0; i < SPENT_COUNT; i++) p->spent[i] = 0;
    p->lap_count = 0;
    p->last = clock_s();
    return t->exec.stream ? lap(t, SPENT_ELSE) : STATUS_OK;
}

/* The index in the feed of the micro-batch that the schedule runs as number `position`. */
static int micro_number(const struct schedule_run *w, int position)
{
    const struct grad_reduce *grad_reduce = &w->t->rank.grad_reduce;
    return grad_reduce_group(grad_reduce, position / w->per_group) +
           position % w->per_group * grad_reduce->groups;
}

static struct stage_at stage_of(struct trainer *t, const struct pipeline_action *a)
{
    return (struct stage_at){.decoder = &t->decoder, .acts = &t->acts, .chunk = a->chunk, .set = a->slot};
}

static status receive(struct trainer *t, enum comm_way way, struct tensor to)
{
    SCOPE("pipeline.wait", -1);
    return comm_recv(t->mesh.pp, way == COMM_NEXT ? "activations" : "gradients of activations", way, to.data,
                     t->pipeline.message, t->exec.stream);
}

static status send(struct trainer *t, enum comm_way way, struct tensor from)
{
    SCOPE("pipeline.send", -1);
    return comm_send(t->mesh.pp, way == COMM_NEXT ? "activations" : "gradients of activations", way,
                     from.data, t->pipeline.message, t->exec.stream);
}

static status forward(struct schedule_run *w, const struct pipeline_action *a)
{
    struct trainer *t = w->t;
    const struct stage_at s = stage_of(t, a);
    if (!stage_first(&s)) TRY(receive(t, COMM_NEXT, t->acts.x));
    TRY(lap(t, SPENT_WAITED));
    {
        SCOPE("stage.fwd", a->micro);
        TRY(stage_fwd(&s, &t->feed.micro[micro_number(w, a->micro)], &t->exec));
        TRY(lap(t, SPENT_FORWARD));
    }
    return stage_last(&s) ? STATUS_OK : send(t, COMM_NEXT, t->acts.x);
}

static bool unit_of_chunk(const struct decoder *d, int unit, int chunk)
{
    const struct pipeline_part *part = &d->part;
    const int64_t layer = params_block(&d->params, unit) - 1;
    if (!d->params.units[unit].is_local) return false;
    if (unit == 0) return chunk == (part->first ? 0 : part->chunks - 1);
    if (layer >= d->spec.layer_count) return chunk == part->chunks - 1; /* the end, MTP modules */
    return layer >= part->layers[chunk].begin && layer < part->layers[chunk].end;
}

/* Each unit is reduce-scattered after its backward; ranks are the deepest level of the tree. */
static bool is_zero23(const struct trainer *t)
{
    return t->decoder.params.zero >= 2;
}

/* At the end of a group: adds the chunk's gradients to the tree. The losses go with the last chunk. */
static status group_end(struct schedule_run *w, int chunk, int position)
{
    struct trainer *t = w->t;
    const struct params *p = &t->decoder.params;
    const int k = position / w->per_group;
    const struct grad_reduce_sums grads = {.grad = p->grad}, losses = {.losses = &t->feed.scalars->loss_sum};
    if (position % w->per_group != w->per_group - 1) return STATUS_OK;
    for (int u = 0; u < p->unit_count && !is_zero23(t); u++) {
        const struct grad_reduce_part part = {.begin = p->units[u].begin, .count = p->units[u].count};
        if (unit_of_chunk(&t->decoder, u, chunk) && !params_sparse(p, u))
            TRY(grad_reduce_accumulate_part(&t->rank.grad_reduce, k, &part, &grads, &t->ops, t->exec.stream));
    }
    if (chunk < t->decoder.part.chunks - 1) return STATUS_OK;
    if (is_zero23(t)) return zero_reduce_losses(&t->rank.zero, losses.losses);
    return grad_reduce_accumulate_part(&t->rank.grad_reduce, k, &(struct grad_reduce_part){0}, &losses,
                                       &t->ops, t->exec.stream);
}

static void accumulate(struct schedule_run *w, int position)
{
    w->t->exec.accum = position % w->per_group == 0 ? ACCUM_STORE : ACCUM_ADD;
}

static int store_of(const struct schedule_run *w, int micro)
{
    for (int i = 0; i < w->me->count; i++)
        if (w->me->actions[i].what == PIPELINE_BI && w->me->actions[i].micro == micro)
            return w->me->actions[i].store;
    CHECK(false, "no store of micro-batch %d", micro);
    return 0;
}

static status weights(struct schedule_run *w, int micro)
{
    SCOPE("stage.wgrad", micro);
    struct trainer *t = w->t;
    CHECK(micro == w->wgrads && micro < w->dgrads, "W of micro-batch %d after %d, with %d BI", micro,
          w->wgrads, w->dgrads);
    accumulate(w, micro);
    t->rank.zero.group = micro / w->per_group;
    t->rank.zero.half = ZERO_WEIGHTS;
    t->rank.zero.store = store_of(w, micro);
    struct deferred *store = &t->acts.stages->stores[t->rank.zero.store];
    for (int64_t i = t->decoder.part.layers[0].end - 1; i >= t->decoder.part.layers[0].begin; i--) {
        const struct param_unit *unit = &t->decoder.params.units[i + 1];
        TRY(params_unshard(&t->decoder.params, i + 1, UNIT_BACKWARD));
        TRY(deferred_flush(store, unit->first, unit->last, &t->exec));
        TRY(params_reshard(&t->decoder.params, i + 1));
    }
    deferred_empty(store);
    TRY(lap(t, SPENT_WGRAD));
    w->wgrads++;
    return is_zero23(t) ? STATUS_OK : group_end(w, 0, micro);
}

static status backward(struct schedule_run *w, const struct pipeline_action *a)
{
    struct trainer *t = w->t;
    const struct stage_at s = stage_of(t, a);
    const bool split = a->what == PIPELINE_BI;
    /* Groups accumulate in the same buffer: all W of a group must run before the next group starts. */
    while (split && !is_zero23(t) && a->micro % w->per_group == 0 && w->wgrads < w->dgrads)
        TRY(weights(w, w->wgrads));
    if (!stage_last(&s)) TRY(receive(t, COMM_PREV, t->acts.grad));
    TRY(lap(t, SPENT_WAITED));
    {
        SCOPE("stage.bwd", a->micro);
        const struct stage_bwd how = {.z_loss = t->spec.run.train_z_loss,
                                      .fresh = w->before.what == PIPELINE_F && w->before.micro == a->micro &&
                                               w->before.chunk == a->chunk};
        accumulate(w, a->micro);
        t->exec.micro = sparse_grad_micro(&t->mesh, t->pipeline.schedule.micros, micro_number(w, a->micro));
        t->rank.zero.group = a->micro / w->per_group;
        t->rank.zero.half = split ? ZERO_INPUTS : ZERO_WHOLE;
        t->rank.zero.store = a->store;
        t->exec.defer = split ? &t->acts.stages->stores[a->store] : NULL;
        const status st = stage_bwd(&s, &t->feed.micro[micro_number(w, a->micro)], &how, &t->exec);
        t->exec.defer = NULL;
        TRY(st);
        TRY(lap(t, SPENT_DGRAD));
    }
    if (!stage_first(&s)) TRY(send(t, COMM_PREV, t->acts.grad));
    w->dgrads += split;
    return split && !is_zero23(t) ? STATUS_OK : group_end(w, a->chunk, a->micro);
}

status pipeline_fwd_bwd(struct trainer *t, int micro_count)
{
    struct pipeline *p = &t->pipeline;
    struct schedule_run w = {.t = t,
                             .me = &p->schedule.rank[t->mesh.pp_rank],
                             .per_group = micro_count / t->rank.grad_reduce.groups,
                             .before = {.what = PIPELINE_W}};
    CHECK(micro_count == p->schedule.micros, "%d micro-batches in a schedule of %d", micro_count,
          p->schedule.micros);
    TRY(lap_begin(t));
    zero_invalidate(&t->rank.zero);
    for (int i = 0; i < w.me->count; i++) {
        const struct pipeline_action *a = &w.me->actions[i];
        switch (a->what) {
        case PIPELINE_F: TRY(forward(&w, a)); break;
        case PIPELINE_B:
        case PIPELINE_BI: TRY(backward(&w, a)); break;
        case PIPELINE_W:
            if (a->micro >= w.wgrads) TRY(weights(&w, a->micro));
            break;
        }
        w.before = *a;
        TRY(lap(t, SPENT_ELSE)); /* sending, folding a group */
    }
    return zero_end(&t->rank.zero);
}

/* All-reduces an embedding that both ends have between the first and the last rank, which are neighbours on the ring: in chunks each sends
 * its gradient and adds the other's. Under ZeRO only this rank's shard: the buffer has no sums of the other shards, and what
 * the first stage accumulates there must not change. */
static status tied_grad_all_reduce(struct trainer *t)
{
    const struct params *params = &t->decoder.params;
    const struct mesh *mesh = &t->mesh;
    const bool first = mesh_first(mesh);
    if (!stage_shares_table(&t->spec.model) || (!first && !mesh_last(mesh))) return STATUS_OK;
    SCOPE("pipeline.tied", -1);
    const int64_t shards = params->zero ? params->shards : 1, count = params->units[0].count / shards;
    float *own = (float *)params->units[0].grad + (params->zero ? params->shard : 0) * count,
          *grad = params->zero >= 2 ? (float *)params->grad + params->units[0].begin / shards : own,
          *other = t->acts.dy.data;
    const int64_t piece = (int64_t)(t->pipeline.message / sizeof *grad);
    for (int64_t at = 0; at < count; at += piece) {
        const int64_t n = count - at < piece ? count - at : piece;
        const size_t bytes = (size_t)n * sizeof *grad;
        TRY(comm_send(mesh->pp, "tied table", first ? COMM_PREV : COMM_NEXT, grad + at, bytes,
                      t->exec.stream));
        TRY(comm_recv(mesh->pp, "tied table", first ? COMM_NEXT : COMM_PREV, other, bytes, t->exec.stream));
        TRY(t->ops.accumulate_tree(
            &(struct accumulate_tree_args){
                .what = TREE_ADD, .x = grad + at, .kept = other, .count = n, .dt = DTYPE_F32},
            t->exec.stream));
    }
    return STATUS_OK;
}

status pipeline_reduce(struct trainer *t)
{
    if (t->mesh.pp == NULL) return STATUS_OK;
    TRY(tied_grad_all_reduce(t));
    TRY(comm_all_reduce_f64(t->mesh.pp, "losses of stages", &t->feed.scalars->loss_sum, GRAD_REDUCE_LOSSES,
                            t->exec.stream));
    return comm_mailbox_settle(t->mesh.pp, t->exec.stream);
}

/* Reads the time stamps of a GPU's step after it has run. */
static status read_laps(struct trainer *t)
{
    struct pipeline *p = &t->pipeline;
    for (int i = 0; i < SPENT_COUNT; i++) p->spent[i] = 0;
    for (int i = 1; i < p->lap_count; i++) {
        double ms;
        TRY(dev_event_ms(&t->dev, &p->laps[i - 1].at, &p->laps[i].at, &ms));
        p->spent[p->laps[i].what] += ms / 1000;
    }
    return STATUS_OK;
}

status pipeline_times(struct trainer *t, bool counts)
{
    struct pipeline *p = &t->pipeline;
    double all[PIPELINE_RANKS_MAX][SPENT_COUNT], longest = 0, busy = 0;
    if (t->mesh.pp == NULL) return STATUS_OK;
    if (t->exec.stream) TRY(read_laps(t));
    for (int i = SPENT_SPAN + 1; i < SPENT_COUNT; i++) p->spent[SPENT_SPAN] += p->spent[i];
    TRY(comm_all_gather(t->mesh.pp, "times of stages", p->spent, all, sizeof p->spent, NULL));
    for (int r = 0; r < p->schedule.ranks; r++) {
        if (all[r][SPENT_SPAN] > longest) longest = all[r][SPENT_SPAN];
        busy += all[r][SPENT_FORWARD] + all[r][SPENT_DGRAD] + all[r][SPENT_WGRAD];
        for (int i = 0; i < SPENT_COUNT && counts; i++) p->total[r][i] += all[r][i];
    }
    if (counts) p->span += longest;
    p->bubble = 1 - busy / (p->schedule.ranks * longest);
    return STATUS_OK;
}

status pipeline_loss(struct trainer *t)
{
    for (int c = 0; c < t->decoder.part.chunks; c++) {
        const struct stage_at s = stage_of(t, &(struct pipeline_action){.chunk = c});
        if (!stage_first(&s)) TRY(receive(t, COMM_NEXT, t->acts.x));
        TRY(stage_fwd(&s, &t->feed.micro[0], &t->exec));
        TRY(stage_last(&s) ? stage_loss(&s, &t->feed.micro[0], &t->exec) : send(t, COMM_NEXT, t->acts.x));
    }
    return comm_mailbox_settle(t->mesh.pp, t->exec.stream);
}

/* The bubble of the schedule: with equal stages, or with the measured times. */
static double simulated(const struct pipeline *p, bool equal)
{
    struct pipeline_stage_time times[MESH_STAGES_MAX];
    struct pipeline_simulated out;
    const bool split = p->schedule.kind == PIPELINE_ZB_H1;
    for (int i = 0; i < stage_count(p); i++) {
        const double *mine = p->total[i % p->schedule.ranks];
        times[i] = equal ? (struct pipeline_stage_time){1, 1, 1}
                         : (struct pipeline_stage_time){mine[SPENT_FORWARD], mine[SPENT_DGRAD],
                                                        split ? mine[SPENT_WGRAD] : 0};
    }
    if (pipeline_simulate(&p->schedule, &(struct pipeline_simulate_args){.stages = times}, &out) != STATUS_OK)
        return NAN;
    return out.bubble;
}

void pipeline_log(const struct pipeline *p)
{
    static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb_h1"};
    char waits[PIPELINE_RANKS_MAX * 8] = "";
    double busy = 0;
    size_t at = 0;
    if (p->span <= 0) return;
    for (int r = 0; r < p->schedule.ranks; r++) {
        const double *mine = p->total[r];
        busy += mine[SPENT_FORWARD] + mine[SPENT_DGRAD] + mine[SPENT_WGRAD];
        at += (size_t)snprintf(waits + at, sizeof waits - at, "%s%.1f", r ? " " : "",
                               100 * mine[SPENT_WAITED] / p->span);
    }
    log_info("pipeline  %s, %d stages, %d micro-batches: bubble %.1f %% (formula %.1f, with the stages' own "
             "times %.1f); waits for messages, %% of a step, by rank: %s",
             names[p->schedule.kind], stage_count(p), p->schedule.micros,
             100 * (1 - busy / (p->schedule.ranks * p->span)), 100 * simulated(p, true),
             100 * simulated(p, false), waits);
}
