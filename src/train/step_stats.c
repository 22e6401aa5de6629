#include "train/step_stats.h"
#include "optim/lr_schedule.h"

#include <math.h>

status step_count(const struct trainer *t, const struct step_batch *b, struct step_counts *out)
{
    double counts[] = {(double)b->valid, (double)b->padding, 0, 0};
    for (int i = 0; i < b->micro_count; i++)
        counts[2] += (double)b->micro[i].rows, counts[3] += (double)b->micro[i].docs;
    TRY(comm_all_reduce_f64(t->mesh.dp, "targets", counts, 4, NULL));
    if (counts[0] == 0)
        return FAIL(STATUS_DATA, "step %lld has no target that counts: every target is masked",
                    (long long)t->step);
    *out = (struct step_counts){counts[0], counts[1], counts[2], counts[3]};
    return STATUS_OK;
}

/* Terms in the mean of the loss: each target, once per segment. */
static double loss_count(const struct trainer *t, const struct step_counts *c)
{
    return c->targets * (double)model_segments(&t->spec.model);
}

/* Terms in the mean of the halting loss: each document, once per segment. */
static double halt_count(const struct trainer *t, const struct step_counts *c)
{
    return c->docs * (double)model_segments(&t->spec.model);
}

static double rate_of(const struct trainer *t)
{
    const struct lr_rise *r = &t->rise;
    if (r->steps == 0) return schedule_lr(&t->spec.run, t->step, t->steps_total);
    return r->low * pow(r->high / r->low, (double)(t->step - r->first) / (double)(r->steps - 1));
}

struct step_scalars step_scalars_of(const struct trainer *t, const struct step_counts *c)
{
    const struct model_spec *m = &t->spec.model;
    struct step_scalars s = {.grad_scale = 1 / loss_count(t, c), .lr = rate_of(t)};
    if (m->mtp_depth > 0) s.mtp_scale = s.grad_scale * m->mtp_weight / (double)m->mtp_depth;
    if (m->hrm_halt) s.halt_scale = 1 / halt_count(t, c);
    optim_scalars(&t->spec.run, t->step, &s);
    return s;
}

static status gather_loads(struct comm *c, struct step_scalars *s)
{
    const double mine[] = {s->load_max, s->load_min};
    double all[COMM_RANKS_MAX][2];
    TRY(comm_all_gather(c, "loads of experts", mine, all, sizeof mine, NULL));
    s->load_max = s->load_min = 0;
    for (int r = 0; r < comm_ranks(c); r++) {
        if (all[r][0] == 0) continue; /* a rank without routers */
        s->load_min = s->load_max > 0 ? fmin(s->load_min, all[r][1]) : all[r][1];
        s->load_max = fmax(s->load_max, all[r][0]);
    }
    return STATUS_OK;
}

status step_gather_loads(const struct trainer *t, struct step_scalars *s)
{
    if (t->mesh.shape.zero) TRY(gather_loads(t->mesh.dp_cp, s));
    return gather_loads(t->mesh.pp, s);
}

status step_check_finite(const struct trainer *t, const struct step_scalars *s)
{
    if (!isfinite(s->loss_sum + s->mtp_loss_sum + s->halt_sum + s->z_sum))
        return FAIL(STATUS_NUMERIC, "the loss of step %lld is not finite", (long long)t->step);
    if (!isfinite(s->grad_norm)) return optim_find_nonfinite_grad(&t->exec, t->mesh.world);
    if (s->fp8_overflow > 0)
        return FAIL(
            STATUS_NUMERIC,
            "an input or a gradient of a GEMM is not finite in step %lld, which FP8 codes hide from the "
            "loss",
            (long long)t->step);
    return STATUS_OK;
}

struct step_result step_result_of(const struct trainer *t, const struct step_counts *c,
                                  const struct step_scalars *s)
{
    const struct model_spec *m = &t->spec.model;
    return (struct step_result){
        .loss = s->loss_sum / loss_count(t, c),
        .mtp_loss = m->mtp_depth > 0 ? s->mtp_loss_sum / c->targets / (double)m->mtp_depth : NAN,
        .halt_loss = m->hrm_halt ? s->halt_sum / halt_count(t, c) : NAN,
        .z_loss = t->spec.run.train_z_loss > 0 ? s->z_sum / loss_count(t, c) : NAN,
        .lr = s->lr,
        .grad_norm = s->grad_norm,
        .grad_norm_clipped = s->grad_norm * s->clip_factor,
        .tokens = (int64_t)c->tokens,
        .targets = (int64_t)c->targets,
        .padding = (int64_t)c->padding,
        .aux_loss = s->aux_sum / loss_count(t, c),
        .load_max = s->load_max,
        .load_min = s->load_min,
        .moe_dropped = s->dropped_sum[1] > 0 ? s->dropped_sum[0] / s->dropped_sum[1] : NAN,
        .bubble = t->mesh.pp ? t->pipeline.bubble : NAN};
}
