#include "parallel/zero.h"
#include "dev/dev.h"

static int slot_of(const struct zero *z, int unit)
{
    if (unit == 0) return 0;
    if (unit != z->end) return 1;
    return z->stays ? 2 : 0;
}

/* Elements of the rows that are kept of the blocks before `unit`. */
static int64_t kept_before(const struct params *p, int unit)
{
    int64_t count = 0;
    for (int u = 1; u < unit; u++)
        for (int i = p->units[u].first; i < p->units[u].last && p->units[u].here; i++)
            if (!p->rows[i].linear) count += p->rows[i].count;
    return count;
}

void zero_lay(struct zero *z, struct params *p, const struct zero_lay *l)
{
    int64_t counts[ZERO_SLOTS] = {0};
    *z = (struct zero){.mesh = l->mesh, .params = p, .end = l->end, .stays = l->stays};
    for (int s = 0; s < ZERO_SLOTS; s++) z->slots[s].unit = -1;
    if (p->zero > 0)
        z->scratch = arena_take(l->param, comm_sum_scratch(p->shards, p->exact_count, DTYPE_F32),
                                "weights in fp32, on their way");
    if (p->zero < 2) return;
    for (int u = 0; u < p->unit_count; u++) {
        int64_t *most = &counts[slot_of(z, u)];
        if (p->units[u].here && p->units[u].count > *most) *most = p->units[u].count;
    }
    for (int s = 0; s < ZERO_SLOTS; s++) {
        const size_t n = (size_t)counts[s];
        if (n == 0) continue;
        if (p->zero == 3)
            z->slots[s].weight = arena_take(l->param, n * dtype_bytes(p->dt), "weights of a unit");
        if (l->train) z->slots[s].grad = arena_take(l->grad, n * sizeof(float), "gradients of a unit");
    }
    if (l->train && l->stores > 0)
        z->kept = arena_take(l->grad, (size_t)(l->stores * kept_before(p, l->end)) * sizeof *z->kept,
                             "gradients of halves");
}

/* This rank's part of a unit's whole array, and its bytes. */
static char *own_part(const struct params *p, const struct param_unit *u, void *whole, dtype dt,
                      size_t *bytes)
{
    *bytes = (size_t)(u->count / p->shards) * dtype_bytes(dt);
    return (char *)whole + (size_t)p->shard * *bytes;
}

static status gather_unit(struct zero *z, int unit, void *whole, const void *part)
{
    const struct params *p = z->params;
    const size_t bytes = (size_t)(p->units[unit].count / p->shards) * dtype_bytes(p->dt);
    return comm_all_gather(mesh_shards(z->mesh), "weights", part, whole, bytes, z->stream);
}

/* Each rank brings the part that it holds, and zeros. */
static status gather_exact(struct zero *z)
{
    const struct params *p = z->params;
    if (p->zero == 0 || p->exact_count == 0) return STATUS_OK;
    TRY(dev_zero(z->stream, p->exact, (size_t)p->exact_count * sizeof *p->exact));
    for (int i = 0; i < p->count; i++) {
        const struct param_held h = params_held(p, i);
        if (p->rows[i].exact && h.to > h.from)
            TRY(dev_copy(z->stream, p->exact + p->rows[i].exact_at + h.from,
                         (const float *)p->master + h.master, (size_t)(h.to - h.from) * sizeof *p->exact));
    }
    return comm_sum(mesh_shards(z->mesh), "weights in fp32", p->exact, p->exact_count, DTYPE_F32, z->scratch,
                    z->stream);
}

status zero_gather(struct zero *z)
{
    struct params *p = z->params;
    zero_begin(z);
    TRY(gather_exact(z));
    if (p->zero == 0 || p->zero == 3) return STATUS_OK;
    for (int u = 0; u < p->unit_count; u++) {
        size_t bytes;
        if (!p->units[u].here) continue;
        TRY(gather_unit(z, u, p->units[u].weight,
                        own_part(p, &p->units[u], p->units[u].weight, p->dt, &bytes)));
    }
    return STATUS_OK;
}

void zero_begin(struct zero *z)
{
    for (int s = 0; s < ZERO_SLOTS && z->params->zero == 3; s++) {
        if (z->slots[s].unit >= 0) z->params->units[z->slots[s].unit].weight = NULL;
        z->slots[s].unit = -1;
    }
}

/* The weights of a unit into its slot, unless they are there. */
static status load(struct zero *z, int unit)
{
    struct params *p = z->params;
    struct zero_slot *s = &z->slots[slot_of(z, unit)];
    if (s->unit == unit) return STATUS_OK;
    if (s->unit >= 0) p->units[s->unit].weight = NULL;
    const size_t at = (size_t)(p->units[unit].begin / p->shards) * dtype_bytes(p->dt);
    TRY(gather_unit(z, unit, s->weight, (const char *)p->weight + at));
    s->unit = unit;
    p->units[unit].weight = s->weight;
    return STATUS_OK;
}

/* Products store; what is formed by adding alone begins at zero, as does the padding that is summed with the rest. */
static status open_gradient(struct zero *z, int unit)
{
    struct params *p = z->params;
    struct param_unit *u = &p->units[unit];
    u->grad = z->slots[slot_of(z, unit)].grad;
    return dev_zero(z->stream, u->grad, (size_t)u->count * sizeof(float));
}

enum way { KEEP, BRING };
static status move_kept(const struct zero *z, int unit, enum way way)
{
    const struct params *p = z->params;
    float *kept = z->kept + z->store * kept_before(p, z->end) + kept_before(p, unit);
    for (int i = p->units[unit].first; i < p->units[unit].last; i++) {
        const size_t bytes = (size_t)p->rows[i].count * sizeof *kept;
        float *grad = params_grad(p, i);
        if (p->rows[i].linear) continue;
        TRY(dev_copy(z->stream, way == KEEP ? kept : grad, way == KEEP ? grad : kept, bytes));
        kept += p->rows[i].count;
    }
    return STATUS_OK;
}

static status enter(void *ctx, int unit, enum unit_use use)
{
    struct zero *z = ctx;
    const bool again = use == UNIT_BACKWARD && z->half == ZERO_WEIGHTS; /* its products read no weights */
    /* backward of the embedding does not read its table */
    if (z->params->zero == 3 && !again && (use == UNIT_FORWARD || unit > 0)) TRY(load(z, unit));
    if (use == UNIT_BACKWARD) TRY(open_gradient(z, unit));
    return again ? move_kept(z, unit, BRING) : STATUS_OK;
}

static status leave(void *ctx, int unit)
{
    struct zero *z = ctx;
    struct params *p = z->params;
    struct param_unit *u = &p->units[unit];
    if (z->half == ZERO_INPUTS && unit > 0 && unit < z->end) {
        TRY(move_kept(z, unit, KEEP));
        u->grad = NULL;
        return STATUS_OK;
    }
    TRY(sync_unit(z->sync, p, unit, z->stream));
    u->grad = NULL;
    const struct sync_part part = {.begin = u->begin / p->shards, .count = u->count / p->shards};
    return sync_fold_part(z->sync, z->group, &part, &(struct sync_sums){.grad = p->grad}, z->ops, z->stream);
}

void zero_open(struct zero *z, const struct sync *sync, const struct ops *ops, dev_stream stream)
{
    z->stream = stream;
    z->sync = sync;
    z->ops = ops;
    if (z->params->zero < 2) return;
    z->hooks = (struct unit_hooks){.ctx = z, .enter = enter, .leave = leave};
    z->params->hooks = &z->hooks;
}
