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
    const struct grad_reduce_part part = {.begin = u->begin, .count = u->count};
    if (b->reduced[unit] || !u->is_local || params_sparse(b->params, unit)) return STATUS_OK;
    b->reduced[unit] = true;
    dev_stream s = b->side_stream->main;
    TRY(grad_reduce_accumulate_part(b->grad_reduce, b->group, &part,
                                    &(struct grad_reduce_sums){.grad = b->sums->grad}, b->ops,
                                    b->side_stream->main));
    TRY(unit > 0 ? side_stream_fork(b->side_stream, &s) : side_stream_join(b->side_stream));
    return grad_reduce_unit(b->grad_reduce, b->params, unit, s);
}

static status leave(void *ctx, int unit)
{
    return sum(ctx, unit);
}

status grad_overlap_open(struct grad_overlap *b, const struct grad_overlap_args *a)
{
    const struct mesh *mesh = a->grad_reduce->mesh;
    *b = (struct grad_overlap){.params = a->params, .ops = a->ops, .side_stream = a->side_stream};
    if (a->side_stream->main == NULL || mesh == NULL || mesh->dp == NULL || mesh->tp || mesh->cp ||
        mesh->ep || mesh->pp || a->params->zero >= 2 || a->segments > 1)
        return STATUS_OK;
    b->reduced = calloc((size_t)a->params->unit_count, sizeof *b->reduced);
    if (b->reduced == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the list of units");
    b->hooks = (struct unit_hooks){.ctx = b, .unshard = enter, .reshard = leave};
    b->outer = a->params->hooks;
    b->grad_reduce = a->grad_reduce;
    return STATUS_OK;
}

void grad_overlap_close(struct grad_overlap *b)
{
    free(b->reduced);
    *b = (struct grad_overlap){0};
}

void grad_overlap_begin(struct grad_overlap *b, const struct grad_reduce_sums *sums)
{
    if (b->grad_reduce == NULL) return;
    memset(b->reduced, 0, (size_t)b->params->unit_count * sizeof *b->reduced);
    b->sums = sums;
    b->group = b->grad_reduce->groups - 1;
    b->params->hooks = &b->hooks;
}

status grad_overlap_end(struct grad_overlap *b, bool *all)
{
    *all = b->grad_reduce != NULL;
    if (b->grad_reduce == NULL) return STATUS_OK;
    b->params->hooks = b->outer;
    for (int u = 0; u < b->params->unit_count; u++) TRY(sum(b, u));
    return side_stream_join(b->side_stream);
}
