#include "parallel/zero.h"
#include "dev/dev.h"
#include "parallel/derived.h"
#include "parallel/unit_grad.h"

enum { FIRST, END, TABLE, EXPERTS, BLOCKS }; /* BLOCKS: from there on */

/* Of a block: the slot that holds it, else the one that the current unit does not use. */
static struct zero_slot *slot_of(const struct zero *z, struct zero_slots *s, int unit)
{
    if (unit == 0) return &s->slot[FIRST];
    if (unit == z->end) return &s->slot[z->embedding_resident ? END : FIRST];
    if (z->params->units[unit].block_unit) return &s->slot[z->params->units[unit].experts ? EXPERTS : TABLE];
    for (int i = BLOCKS; i < ZERO_SLOTS; i++)
        if (s->slot[i].unit == unit) return &s->slot[i];
    return &s->slot[s->last == BLOCKS ? BLOCKS + 1 : BLOCKS];
}

/* Makes a unit the current one; returns its slot. */
static struct zero_slot *use_slot(const struct zero *z, struct zero_slots *s, int unit)
{
    struct zero_slot *slot = slot_of(z, s, unit);
    if (slot - s->slot >= BLOCKS) s->last = (int)(slot - s->slot);
    return slot;
}

/* The unit of a block's experts, which is used with the block's; 0: none (expert parallelism). */
static int experts_of(const struct params *p, int unit)
{
    for (int u = p->unit_count - 1; u > unit && unit > 0; u--)
        if (p->units[u].experts && p->units[u].block_unit == unit) return u;
    return 0;
}

static void invalidate(struct zero_slots *s)
{
    s->last = BLOCKS;
    for (int i = 0; i < ZERO_SLOTS; i++) s->slot[i].unit = -1, s->slot[i].busy = false;
}

/* Elements of the rows in `kept` of blocks before `unit`. */
static int64_t kept_before(const struct params *p, int unit)
{
    int64_t count = 0;
    for (int u = 1; u < unit; u++)
        for (int i = p->units[u].first; i < p->units[u].last && p->units[u].is_local; i++)
            if (!p->rows[i].linear) count += p->rows[i].count;
    return count;
}

void zero_layout(struct zero *z, struct params *p, const struct zero_layout *l)
{
    int64_t counts[ZERO_SLOTS] = {0};
    *z = (struct zero){
        .mesh = l->mesh, .params = p, .end = l->end, .embedding_resident = l->embedding_resident};
    invalidate(&z->weights);
    invalidate(&z->grads);
    if (p->zero > 0) z->scratch = arena_take(l->param, derived_scratch(p), "scratch of derived weights");
    if (p->zero == 3) zero_codes_layout(&z->codes, p, l->param);
    if (p->zero < 2) return;
    for (int u = 0; u < p->unit_count; u++) {
        int64_t *most = &counts[slot_of(z, &z->grads, u) - z->grads.slot];
        if (p->units[u].is_local && p->units[u].count > *most) *most = p->units[u].count;
    }
    counts[BLOCKS] = counts[BLOCKS + 1]; /* `last` is BLOCKS: all of them were counted there */
    for (int s = 0; s < ZERO_SLOTS; s++) {
        const size_t n = (size_t)counts[s];
        if (n == 0) continue;
        if (p->zero == 3)
            z->weights.slot[s].data = arena_take(l->param, n * dtype_bytes(p->dt), "weights of a unit");
        if (l->train && !(s == TABLE && p->sparse))
            z->grads.slot[s].data = arena_take(l->grad, n * sizeof(float), "gradients of a unit");
    }
    if (l->train && l->stores > 0)
        z->saved_grads =
            arena_take(l->grad, (size_t)(l->stores * kept_before(p, l->end)) * sizeof *z->saved_grads,
                       "gradients of halves");
}

/* No overlap where tensor, context, expert or pipeline parallelism has collectives on the step's stream. */
static bool uses_side_stream(const struct zero *z)
{
    return z->mesh->tp == NULL && z->mesh->pp == NULL && z->mesh->cp == NULL && z->mesh->ep == NULL;
}

static status collective_stream(const struct zero *z, dev_stream *s)
{
    *s = z->side_stream->main;
    return uses_side_stream(z) ? side_stream_fork(z->side_stream, s) : STATUS_OK;
}

static status join(const struct zero *z)
{
    return uses_side_stream(z) ? side_stream_join(z->side_stream) : STATUS_OK;
}

static status record(const struct zero *z, struct event *done, bool *busy)
{
    *busy = uses_side_stream(z);
    return *busy ? side_stream_record(z->side_stream, done) : STATUS_OK;
}

static status wait_for(const struct zero *z, const struct event *done, bool *busy)
{
    if (!*busy) return STATUS_OK;
    *busy = false;
    return side_stream_wait(z->side_stream, done);
}

/* The embedding, if no other unit uses its slot: gathered once per step, when the weights are new. */
static bool is_resident(const struct zero *z, int unit)
{
    return unit == 0 && z->embedding_resident && z->params->units[unit].is_local;
}

/* This rank's shard of a unit's weights. */
static const void *own_part(const struct params *p, int unit)
{
    return (const char *)p->weight + (size_t)p->units[unit].shard_offset * dtype_bytes(p->dt);
}

static status gather_on(const struct zero *z, int unit, void *whole, const void *part, dev_stream s)
{
    const struct params *p = z->params;
    const struct param_unit *u = &p->units[unit];
    const size_t bytes = (size_t)(u->count / u->shards) * dtype_bytes(p->dt);
    return comm_all_gather(mesh_data_of(z->mesh, u->experts).inside, "weights", part, whole, bytes, s);
}

static status gather_unit(struct zero *z, int unit, void *whole, const void *part)
{
    dev_stream s;
    TRY(collective_stream(z, &s));
    return gather_on(z, unit, whole, part, s);
}

/* Derived copies of weights: from what this rank holds to whole rows on every rank. */
static status gather_derived(const struct zero *z)
{
    dev_stream s;
    if (!derived_any(z->params)) return STATUS_OK;
    TRY(collective_stream(z, &s));
    return derived_refresh(&(struct derived_refresh){.event = DERIVED_GATHER,
                                                     .params = z->params,
                                                     .ops = z->ops,
                                                     .stream = s,
                                                     .shards = mesh_shards(z->mesh),
                                                     .scratch = z->scratch});
}

/* All-gathers the new weights of a unit that stays unsharded. */
static status gather_own(struct zero *z, int unit)
{
    const struct params *p = z->params;
    const struct param_unit *u = &p->units[unit];
    const size_t part = (size_t)(u->count / u->shards) * dtype_bytes(p->dt);
    if (!u->is_local || (p->zero == 3 && !is_resident(z, unit))) return STATUS_OK;
    if (p->zero < 3) return gather_unit(z, unit, u->weight, (char *)u->weight + (size_t)u->shard * part);
    return gather_unit(z, unit, z->weights.slot[FIRST].data, own_part(p, unit));
}

static status moved(void *ctx, int unit)
{
    struct zero *z = ctx;
    z->gathering = true;
    return gather_own(z, unit);
}

status zero_all_gather_weights(struct zero *z)
{
    zero_invalidate(z);
    if (z->params->zero == 0) return STATUS_OK;
    for (int u = 0, all = z->params->unit_count; u < all && !z->gathering; u++) TRY(gather_own(z, u));
    z->gathering = false;
    TRY(gather_derived(z));
    return join(z);
}

void zero_invalidate(struct zero *z)
{
    for (int s = 0; s < ZERO_SLOTS && z->params->zero == 3; s++)
        if (z->weights.slot[s].unit >= 0) z->params->units[z->weights.slot[s].unit].weight = NULL;
    invalidate(&z->weights);
    invalidate(&z->grads);
    if (z->params->zero == 3 && is_resident(z, 0)) z->weights.slot[FIRST].unit = 0;
    z->losses_busy = false;
}

status zero_end(struct zero *z)
{
    if (z->params->zero < 2) return STATUS_OK;
    for (int s = 0; s < ZERO_SLOTS; s++) z->weights.slot[s].busy = z->grads.slot[s].busy = false;
    z->losses_busy = false;
    return join(z);
}

/* All-gathers a unit's weights into its slot: their values, or codes. */
static status gather_into(struct zero *z, int unit, struct zero_slot *s, dev_stream stream)
{
    const struct zero_codes_at at = {z->params, z->ops, unit, s->data, stream};
    switch (zero_codes_form(z->params, unit)) {
    case ZERO_VALUES: return gather_on(z, unit, s->data, own_part(z->params, unit), stream);
    case ZERO_CODES_MADE:
        TRY(gather_on(z, unit, s->data, own_part(z->params, unit), stream));
        return zero_codes_make(&z->codes, &at);
    case ZERO_CODES_MOVED:
        return zero_codes_gather(&z->codes, &at,
                                 mesh_data_of(z->mesh, z->params->units[unit].experts).inside);
    }
    return STATUS_OK;
}

/* Starts the all-gather of a unit's weights into its slot, unless it holds them. Of codes, backward also reads the
 * transposes. */
static status prefetch(struct zero *z, int unit, enum unit_use use)
{
    struct params *p = z->params;
    struct zero_slot *s = slot_of(z, &z->weights, unit);
    const bool holds = s->unit == unit, transpose = use == UNIT_BACKWARD &&
                                                    zero_codes_form(p, unit) == ZERO_CODES_MOVED &&
                                                    !(holds && s->transposed);
    dev_stream stream;
    if (holds && !transpose) return STATUS_OK;
    TRY(collective_stream(z, &stream));
    if (!holds) {
        if (s->unit >= 0) p->units[s->unit].weight = NULL;
        TRY(gather_into(z, unit, s, stream));
    }
    if (transpose)
        TRY(zero_codes_transpose(&z->codes, &(struct zero_codes_at){p, z->ops, unit, s->data, stream}));
    s->unit = unit;
    s->transposed = transpose;
    return record(z, &s->done, &s->busy);
}

static status load_unit(struct zero *z, int unit, enum unit_use use)
{
    TRY(prefetch(z, unit, use));
    struct zero_slot *s = use_slot(z, &z->weights, unit);
    z->params->units[unit].weight = s->data;
    return wait_for(z, &s->done, &s->busy);
}

/* The unit to prefetch after this one, or -1: none, or not known here. A block that its slot still holds costs nothing.
 * N-gram tables run in the middle of their block. */
static int next_unit(const struct zero *z, int unit, enum unit_use use)
{
    const bool forward = use == UNIT_FORWARD;
    int next = forward ? unit + 1 : unit - 1;
    if (z->params->units[unit].block_unit || (forward && unit == z->end))
        return -1;                          /* MTP modules follow, but only in training */
    if (!forward && next == z->end) next--; /* the end ran before the MTP modules */
    if (!forward && next == 0 && z->group == z->grad_reduce->groups - 1)
        return -1; /* no micro-batch follows */
    const bool is = next >= 0 && next < z->params->unit_count && z->params->units[next].block_unit == 0;
    return is && z->params->units[next].is_local ? next : -1;
}

static status begin_gradient(struct zero *z, int unit)
{
    struct param_unit *u = &z->params->units[unit];
    struct zero_slot *s = use_slot(z, &z->grads, unit);
    TRY(wait_for(z, &s->done, &s->busy));
    TRY(wait_for(z, &z->losses_done, &z->losses_busy)); /* a backward adds to them */
    s->unit = unit;
    u->grad = s->data;
    return unit_grad_clear(z->params, u->first, u->last, z->side_stream->main);
}

enum move { SAVE, RESTORE };
static status move_kept(const struct zero *z, int unit, enum move what)
{
    const struct params *p = z->params;
    float *kept = z->saved_grads + z->store * kept_before(p, z->end) + kept_before(p, unit);
    for (int i = p->units[unit].first; i < p->units[unit].last; i++) {
        const size_t bytes = (size_t)p->rows[i].count * sizeof *kept;
        float *grad = params_grad(p, i);
        if (p->rows[i].linear) continue;
        TRY(dev_copy(z->side_stream->main, what == SAVE ? kept : grad, what == SAVE ? grad : kept, bytes));
        kept += p->rows[i].count;
    }
    return STATUS_OK;
}

static status enter_unit(struct zero *z, int unit, enum unit_use use)
{
    const struct param_unit *u = &z->params->units[unit];
    const bool weights_only =
        use == UNIT_BACKWARD && z->half == ZERO_WEIGHTS; /* weight-gradient GEMMs read no weights */
    if (z->params->zero == 3 && !weights_only) {
        const int next = next_unit(z, unit, use);
        /* the backward of embeddings and n-gram tables reads no weights */
        if (use == UNIT_FORWARD || (unit > 0 && (u->block_unit == 0 || u->experts)))
            TRY(load_unit(z, unit, use));
        if (next >= 0) TRY(prefetch(z, next, use));
    }
    if (use == UNIT_BACKWARD) TRY(begin_gradient(z, unit));
    return weights_only ? move_kept(z, unit, RESTORE) : STATUS_OK;
}

/* The gradients of experts are complete with INPUTS. */
static bool with_experts(const struct zero *z, int experts)
{
    return experts > 0 && z->half != ZERO_WEIGHTS;
}

static status enter(void *ctx, int unit, enum unit_use use)
{
    struct zero *z = ctx;
    const int experts = experts_of(z->params, unit);
    if (z->params->zero < 2) return STATUS_OK;
    TRY(enter_unit(z, unit, use));
    if (experts == 0 || (use == UNIT_BACKWARD && z->half == ZERO_WEIGHTS)) return STATUS_OK;
    return enter_unit(z, experts, use);
}

/* Reduce-scatters a unit's gradient and adds it to the tree. In the last micro-batch the embedding has nothing to overlap
 * with, and uses the step's stream. */
static status reduce_unit(struct zero *z, int unit, struct zero_slot *slot)
{
    const struct params *p = z->params;
    const struct param_unit *u = &p->units[unit];
    const struct grad_reduce_part part = {.begin = u->shard_offset, .count = u->count / u->shards};
    const bool last = unit == 0 && z->group == z->grad_reduce->groups - 1;
    dev_stream s = z->side_stream->main;
    TRY(last ? join(z) : collective_stream(z, &s));
    TRY(grad_reduce_unit(z->grad_reduce, p, unit, s));
    TRY(grad_reduce_accumulate_part(z->grad_reduce, z->group, &part,
                                    &(struct grad_reduce_sums){.grad = p->grad}, z->ops, s));
    return record(z, &slot->done, &slot->busy);
}

static status leave_unit(struct zero *z, int unit)
{
    struct param_unit *u = &z->params->units[unit];
    struct zero_slot *slot = slot_of(z, &z->grads, unit);
    if (z->half == ZERO_INPUTS && unit > 0 && unit < z->end)
        TRY(move_kept(z, unit, SAVE));
    else
        TRY(reduce_unit(z, unit, slot));
    u->grad = NULL;
    slot->unit = -1;
    return STATUS_OK;
}

static status leave(void *ctx, int unit)
{
    struct zero *z = ctx;
    const int experts = experts_of(z->params, unit);
    if (z->params->zero < 2) return STATUS_OK;
    if (with_experts(z, experts)) TRY(leave_unit(z, experts));
    return leave_unit(z, unit);
}

status zero_reduce_losses(struct zero *z, double *losses)
{
    const struct grad_reduce_part none = {0};
    dev_stream s;
    TRY(collective_stream(z, &s));
    TRY(grad_reduce_losses(z->grad_reduce, losses, s));
    TRY(grad_reduce_accumulate_part(z->grad_reduce, z->group, &none,
                                    &(struct grad_reduce_sums){.losses = losses}, z->ops, s));
    return record(z, &z->losses_done, &z->losses_busy);
}

status zero_open(struct zero *z, const struct zero_open *a)
{
    z->side_stream = a->side_stream;
    z->grad_reduce = a->grad_reduce;
    z->ops = a->ops;
    if (z->params->zero == 0) return STATUS_OK;
    z->hooks = (struct unit_hooks){.ctx = z, .unshard = enter, .reshard = leave, .after_update = moved};
    z->params->hooks = &z->hooks;
    if (z->params->zero == 3) TRY(zero_codes_open(&z->codes, z->params, z->side_stream->main));
    TRY(side_stream_event_open(z->side_stream, &z->losses_done));
    for (int s = 0; s < ZERO_SLOTS; s++) {
        TRY(side_stream_event_open(z->side_stream, &z->weights.slot[s].done));
        TRY(side_stream_event_open(z->side_stream, &z->grads.slot[s].done));
    }
    return STATUS_OK;
}

void zero_close(struct zero *z)
{
    if (z->side_stream == NULL) return;
    side_stream_event_close(z->side_stream, &z->losses_done);
    for (int s = 0; s < ZERO_SLOTS; s++) {
        side_stream_event_close(z->side_stream, &z->weights.slot[s].done);
        side_stream_event_close(z->side_stream, &z->grads.slot[s].done);
    }
}
