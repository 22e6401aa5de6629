/* The step on one screen. */
#include "train/trainer.h"
#include "base/scope.h"
#include "optim/schedule.h"

#include <math.h>

status train_step(struct trainer *t, const struct step_batch *b, struct step_result *out)
{
    SCOPE("train.step", t->step);
    CHECK(b->step == t->step, "data of step %lld at step %lld", (long long)b->step, (long long)t->step);
    if (b->valid == 0)
        return FAIL(STATUS_DATA, "step %lld has no target that counts: every target is masked",
                    (long long)t->step);
    const struct run_spec *spec = &t->spec.run;
    double tokens = 0;
    t->scalars = (struct step_scalars){.grad_scale = 1 / (double)b->valid};

    for (int i = 0; i < b->micro_count; i++) {
        SCOPE("train.micro", i);
        t->run.accum = i == 0 ? ACCUM_STORE : ACCUM_ADD;
        TRY(decoder_fwd_bwd(&t->decoder, &t->acts, &b->micro[i], spec->train_z_loss, &t->run));
        tokens += (double)b->micro[i].rows;
    }
    double loss_sum = t->scalars.loss_sum;
    if (!isfinite(loss_sum))
        return FAIL(STATUS_NUMERIC,
                    "the loss of step %lld is not finite; the last checkpoint is good: resume from it with a "
                    "lower optim.lr",
                    (long long)t->step);

    struct optim_result o;
    *out = (struct step_result){.loss = loss_sum / (double)b->valid,
                                .lr = schedule_lr(spec, t->step, t->steps_total)};
    TRY(optim_step(&t->run, spec, t->step, out->lr, &o));
    out->grad_norm = o.grad_norm;
    out->grad_norm_clipped = o.grad_norm_clipped;
    t->step++;
    t->tokens += (int64_t)tokens;
    return STATUS_OK;
}
