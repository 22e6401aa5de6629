#include "parallel/grad_overlap.h"

#include <stdlib.h>
#include <string.h>

static status enter(void *ctx, int unit, enum unit_use use)
{
    (void)ctx, (void)unit, (void)use;
    return STATUS_OK;
}

/* Adds the unit to the tree of this rank's groups, then starts its all-reduce over ranks. */
static status sum(struct grad_overlap *b, int unit)
{
    const struct param_unit *u = &b->params->units[unit];
    const struct sync_part part = {.begin = u->begin, .count = u->count};
    if (b->summed[unit] || !u->here || params_sparse(b->params, unit)) return STATUS_OK;
    b->summed[unit] = true;
    dev_stream s = b->side_stream->main;
    TRY(sync_fold_part(b->sync, b->group, &part, &(struct sync_sums){.grad = b->sums->grad}, b->ops,
                       b->side_stream->main));
    TRY(unit > 0 ? side_stream_fork(b->side_stream, &s) : side_stream_join(b->side_stream));
    return sync_reduce_unit(b->sync, b->params, unit, s);
}

static status leave(void *ctx, int unit)
{
    return sum(ctx, unit);
}

status grad_overlap_open(struct grad_overlap *b, const struct grad_overlap_args *a)
{
    const struct mesh *mesh = a->sync->mesh;
    *b = (struct grad_overlap){.params = a->params, .ops = a->ops, .side_stream = a->side_stream};
    if (a->side_stream->main == NULL || mesh == NULL || mesh->dp == NULL || mesh->tp || mesh->cp ||
        mesh->ep || mesh->pp || a->params->zero >= 2 || a->segments > 1)
        return STATUS_OK;
    b->summed = calloc((size_t)a->params->unit_count, sizeof *b->summed);
    if (b->summed == NULL) return FAIL(STATUS_FIT, "no memory for the list of units");
    b->hooks = (struct unit_hooks){.ctx = b, .enter = enter, .leave = leave};
    b->outer = a->params->hooks;
    b->sync = a->sync;
    return STATUS_OK;
}

void grad_overlap_close(struct grad_overlap *b)
{
    free(b->summed);
    *b = (struct grad_overlap){0};
}

void grad_overlap_begin(struct grad_overlap *b, const struct sync_sums *sums)
{
    if (b->sync == NULL) return;
    memset(b->summed, 0, (size_t)b->params->unit_count * sizeof *b->summed);
    b->sums = sums;
    b->group = b->sync->groups - 1;
    b->params->hooks = &b->hooks;
}

status grad_overlap_end(struct grad_overlap *b, bool *all)
{
    *all = b->sync != NULL;
    if (b->sync == NULL) return STATUS_OK;
    b->params->hooks = b->outer;
    for (int u = 0; u < b->params->unit_count; u++) TRY(sum(b, u));
    return side_stream_join(b->side_stream);
}
