#include "model/hrm.h"

#include <stdlib.h>

status hrm_init(struct decoder *d)
{
    if (d->spec.hrm_cycles == 0) return STATUS_OK;
    d->hrm = calloc(1, sizeof *d->hrm);
    if (d->hrm == NULL) return FAIL(STATUS_FIT, "no memory for the description of hierarchical reasoning");
    stream_norm_init(&d->hrm->input, &d->params, "hrm.input_norm", &d->spec);
    stream_norm_init(&d->hrm->low, &d->params, "hrm.low_norm", &d->spec);
    return STATUS_OK;
}

status hrm_lay(struct activations *a, const struct decoder *d, const struct lay *l)
{
    const int64_t width = d->spec.hidden_size;
    struct lay kept = *l;
    kept.recompute = RECOMPUTE_NONE; /* the norms' outputs are kept, and so are their statistics */
    if (d->hrm == NULL) return STATUS_OK;
    a->hrm = calloc(1, sizeof *a->hrm);
    if (a->hrm == NULL) return FAIL(STATUS_FIT, "no memory for the states of hierarchical reasoning");
    a->hrm->x = tensor_take(l->act, "normed embedding", l->dt, 2, l->n, width);
    a->hrm->in = tensor_take(l->act, "embedding and high-level state", l->dt, 2, l->n, width);
    a->hrm->sum = tensor_take(l->act, "low-level sum", l->dt, 2, l->n, width);
    a->hrm->low = tensor_take(l->act, "low-level state", l->dt, 2, l->n, width);
    norm_lay(&d->hrm->input, &a->hrm->input_norm, &kept);
    norm_lay(&d->hrm->low, &a->hrm->low_norm, &kept);
    return STATUS_OK;
}

void hrm_rows(struct activations *a, int64_t rows)
{
    struct hrm_saved *s = a->hrm;
    if (s == NULL) return;
    struct tensor *all[] = {&s->x,
                            &s->in,
                            &s->sum,
                            &s->low,
                            &s->input_norm.mean,
                            &s->input_norm.rstd,
                            &s->low_norm.mean,
                            &s->low_norm.rstd};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_rows(all[i], rows);
}

status hrm_begin(const struct decoder *d, struct activations *a, const struct run *r)
{
    const struct tensor none = {0};
    if (d->hrm == NULL) return STATUS_OK;
    return norm_fwd(&d->hrm->input, &a->hrm->input_norm, a->x, none, none, a->hrm->x, r);
}

/* x + z_H, of which a norm forms the sum on its way: what it gives beside that is not wanted. */
static status inject(const struct decoder *d, struct activations *a, const struct run *r)
{
    struct norm_saved unused = {0};
    return norm_fwd(&d->hrm->input, &unused, a->hrm->x, a->y, a->hrm->in, a->branch, r);
}

status hrm_enter(const struct decoder *d, struct activations *a, int64_t k, struct block_io *io,
                 const struct run *r)
{
    const int64_t steps = d->spec.hrm_steps, in_cycle = k % (steps + 1);
    *io = (struct block_io){.x = a->x, .out = a->branch};
    if (d->hrm == NULL) return STATUS_OK;
    struct hrm_saved *s = a->hrm;
    if (in_cycle == 0 && k > 0) TRY(inject(d, a, r));
    if (in_cycle < steps) { /* L; in the first cycle z_H is 0, in its first pass z_L too */
        io->x = k < steps ? s->x : s->in;
        if (k > 0) io->branch = s->low;
    } else { /* H */
        io->x = s->low;
        if (k > steps) io->branch = a->y;
    }
    return STATUS_OK;
}

status hrm_low_fwd(const struct decoder *d, struct activations *a, const struct block_io *io,
                   const struct run *r)
{
    struct hrm_saved *s = a->hrm;
    return norm_fwd(&d->hrm->low, &s->low_norm, io->x, io->branch, s->sum, s->low, r);
}

status hrm_low_bwd(const struct decoder *d, struct activations *a, const struct run *r)
{
    const struct tensor none = {0};
    return norm_bwd(&d->hrm->low, &a->hrm->low_norm, a->hrm->sum, a->grad, none, a->grad, r);
}

status hrm_begin_bwd(const struct decoder *d, struct activations *a, const struct run *r)
{
    const struct tensor none = {0};
    if (d->hrm == NULL) return STATUS_OK;
    return norm_bwd(&d->hrm->input, &a->hrm->input_norm, a->x, a->grad, none, a->grad, r);
}
