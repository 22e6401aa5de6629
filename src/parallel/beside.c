#include "parallel/beside.h"

#include <stdlib.h>
#include <string.h>

static status enter(void *ctx, int unit, enum unit_use use)
{
    (void)ctx, (void)unit, (void)use;
    return STATUS_OK;
}

/* The unit's place in the tree of this rank's groups, then that of the ranks. */
static status sum(struct beside *b, int unit)
{
    const struct param_unit *u = &b->params->units[unit];
    const struct sync_part part = {.begin = u->begin, .count = u->count};
    if (b->summed[unit] || !u->here || params_sparse(b->params, unit)) return STATUS_OK;
    b->summed[unit] = true;
    dev_stream s = b->aside->main;
    TRY(sync_fold_part(b->sync, b->group, &part, &(struct sync_sums){.grad = b->sums->grad}, b->ops,
                       b->aside->main));
    TRY(unit > 0 ? aside_enter(b->aside, &s) : aside_join(b->aside));
    return sync_unit(b->sync, b->params, unit, s);
}

static status leave(void *ctx, int unit)
{
    return sum(ctx, unit);
}

status beside_open(struct beside *b, const struct beside_open_args *a)
{
    const struct mesh *mesh = a->sync->mesh;
    *b = (struct beside){.params = a->params, .ops = a->ops, .aside = a->aside};
    if (a->aside->main == NULL || mesh == NULL || mesh->dp == NULL || mesh->tp || mesh->pp ||
        a->params->zero >= 2 || a->segments > 1)
        return STATUS_OK;
    b->summed = calloc((size_t)a->params->unit_count, sizeof *b->summed);
    if (b->summed == NULL) return FAIL(STATUS_FIT, "no memory for the list of units");
    b->hooks = (struct unit_hooks){.ctx = b, .enter = enter, .leave = leave};
    b->outer = a->params->hooks;
    b->sync = a->sync;
    return STATUS_OK;
}

void beside_close(struct beside *b)
{
    free(b->summed);
    *b = (struct beside){0};
}

void beside_begin(struct beside *b, const struct sync_sums *sums)
{
    if (b->sync == NULL) return;
    memset(b->summed, 0, (size_t)b->params->unit_count * sizeof *b->summed);
    b->sums = sums;
    b->group = b->sync->groups - 1;
    b->params->hooks = &b->hooks;
}

status beside_end(struct beside *b, bool *all)
{
    *all = b->sync != NULL;
    if (b->sync == NULL) return STATUS_OK;
    b->params->hooks = b->outer;
    for (int u = 0; u < b->params->unit_count; u++) TRY(sum(b, u));
    return aside_join(b->aside);
}
