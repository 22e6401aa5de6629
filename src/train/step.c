/* The step on one screen. */
#include "base/log.h"
#include "base/scope.h"
#include "optim/schedule.h"
#include "train/trainer.h"

#include <math.h>

/* Everything that the device does in a step: it reads the feed, and writes the weights and the feed's scalars. */
static status queue_step(struct trainer *t, int micro_count)
{
    const struct run_spec *spec = &t->spec.run;
    for (int i = 0; i < micro_count; i++) {
        SCOPE("train.micro", i);
        t->run.accum = i == 0 ? ACCUM_STORE : ACCUM_ADD;
        TRY(decoder_fwd_bwd(&t->decoder, &t->acts, &t->feed.micro[i], spec->train_z_loss, &t->run));
    }
    return optim_step(&t->run, spec);
}

/* Records the step as a graph. What cannot be recorded goes on op by op, and says why. */
static status capture_step(struct trainer *t, int micro_count)
{
    SCOPE("train.capture", -1);
    TRY(dev_graph_begin(&t->stream));
    status st = queue_step(t, micro_count), end = dev_graph_end(&t->stream, &t->graph, st == STATUS_OK);
    t->mode = STEP_REPLAY;
    if (st == STATUS_OK && end == STATUS_OK) return STATUS_OK;
    t->mode = STEP_EAGER;
    log_warn("the step cannot be captured as a CUDA graph and runs op by op: %s", status_message());
    return STATUS_OK;
}

static status run_step(struct trainer *t, int micro_count)
{
    if (t->mode == STEP_CAPTURE) TRY(capture_step(t, micro_count));
    if (t->mode == STEP_REPLAY) return dev_graph_launch(&t->stream, &t->graph);
    if (t->mode == STEP_FIRST) t->mode = t->run.stream && t->spec.run.train_graph ? STEP_CAPTURE : STEP_EAGER;
    return queue_step(t, micro_count);
}

static status check_finite(const struct trainer *t, const struct step_scalars *s)
{
    if (!isfinite(s->loss_sum))
        return FAIL(STATUS_NUMERIC,
                    "the loss of step %lld is not finite; the last checkpoint is good: resume from it with a "
                    "lower optim.lr",
                    (long long)t->step);
    if (!isfinite(s->grad_norm)) return optim_blame(&t->run);
    return STATUS_OK;
}

status train_step(struct trainer *t, const struct step_batch *b, struct step_result *out)
{
    SCOPE("train.step", t->step);
    CHECK(b->step == t->step, "data of step %lld at step %lld", (long long)b->step, (long long)t->step);
    if (b->valid == 0)
        return FAIL(STATUS_DATA, "step %lld has no target that counts: every target is masked",
                    (long long)t->step);
    struct step_scalars s = {.grad_scale = 1 / (double)b->valid,
                             .lr = schedule_lr(&t->spec.run, t->step, t->steps_total)};
    optim_scalars(&t->spec.run, t->step, &s);

    TRY(feed_put(&t->feed, b->micro, b->micro_count, &s));
    TRY(run_step(t, b->micro_count));
    TRY(feed_read(&t->feed, &s));
    TRY(check_finite(t, &s));

    *out = (struct step_result){.loss = s.loss_sum / (double)b->valid,
                                .lr = s.lr,
                                .grad_norm = s.grad_norm,
                                .grad_norm_clipped = s.grad_norm * s.clip_factor};
    t->step++;
    for (int i = 0; i < b->micro_count; i++) t->tokens += b->micro[i].rows;
    return STATUS_OK;
}
