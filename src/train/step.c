/* The step on one screen. */
#include "base/log.h"
#include "base/scope.h"
#include "optim/schedule.h"
#include "train/trainer.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

static_assert(offsetof(struct step_scalars, halt_sum) ==
                  offsetof(struct step_scalars, loss_sum) + (SYNC_LOSSES - 1) * sizeof(double),
              "the losses that ranks sum lie one behind the other");

/* Gradients and losses of all ranks, or of the gradients a part. */
static status sum_ranks(struct trainer *t, const struct sync_sums *sums, bool losses_alone)
{
    SCOPE("train.sync", -1);
    for (int u = 0; u < t->decoder.params.unit_count && !losses_alone; u++)
        TRY(sync_unit(&t->rank.sync, &t->decoder.params, u, t->exec.stream));
    return sync_losses(&t->rank.sync, sums->losses, t->exec.stream);
}

/* The micro-batches of a step, one after the other: gradients and losses of this rank. */
static status whole_model(struct trainer *t, int micro_count, const struct sync_sums *sums)
{
    for (int k = 0; k < t->rank.sync.groups; k++) {
        const int first = sync_group(&t->rank.sync, k);
        for (int i = first; i < micro_count; i += t->rank.sync.groups) {
            SCOPE("train.micro", i);
            t->exec.accum = i == first ? ACCUM_STORE : ACCUM_ADD;
            t->exec.micro = sparse_grad_micro(&t->mesh, micro_count, i);
            if (k == t->rank.sync.groups - 1 && i + t->rank.sync.groups >= micro_count)
                grad_overlap_begin(&t->grad_overlap, sums);
            TRY(decoder_fwd_bwd(&t->decoder, &t->acts, &t->feed.micro[i], t->spec.run.train_z_loss,
                                &t->exec));
        }
        if (k < t->rank.sync.groups - 1) TRY(sync_fold(&t->rank.sync, k, sums, &t->ops, t->exec.stream));
    }
    const struct sync_part losses = {.count = 0}, gradients = {.count = t->rank.sync.total};
    bool all;
    TRY(grad_overlap_end(&t->grad_overlap, &all));
    TRY(sync_fold_part(&t->rank.sync, t->rank.sync.groups - 1, all ? &losses : &gradients, sums, &t->ops,
                       t->exec.stream));
    return t->mesh.dp ? sum_ranks(t, sums, all) : STATUS_OK;
}

/* Under ZeRO 2 and 3 the gradients of a unit are summed over the ranks when its backward is done, and ranks are the deepest level of
 * the tree: also for the losses. */
static status unit_by_unit(struct trainer *t, int micro_count, const struct sync_sums *sums)
{
    CHECK(t->rank.sync.groups == micro_count, "%d micro-batches in %d groups", micro_count,
          t->rank.sync.groups);
    zero_begin(&t->rank.zero);
    t->exec.accum = ACCUM_STORE;
    for (int k = 0; k < t->rank.sync.groups; k++) {
        const int i = sync_group(&t->rank.sync, k);
        SCOPE("train.micro", i);
        t->rank.zero.group = k;
        t->exec.micro = sparse_grad_micro(&t->mesh, micro_count, i);
        TRY(decoder_fwd_bwd(&t->decoder, &t->acts, &t->feed.micro[i], t->spec.run.train_z_loss, &t->exec));
        TRY(zero_losses(&t->rank.zero, sums->losses));
    }
    return zero_end(&t->rank.zero);
}

/* Everything that the device does in a step: it reads the feed, and writes the weights and the feed's scalars. */
static status queue_step(struct trainer *t, int micro_count)
{
    const struct sync_sums sums = {.grad = t->decoder.params.grad, .losses = &t->feed.scalars->loss_sum};
    const bool whole = t->decoder.params.zero < 2;
    TRY(offload_begin(&t->rank.offload, &t->exec));
    if (t->mesh.pp)
        TRY(pipeline_run(t, micro_count));
    else
        TRY(whole ? whole_model(t, micro_count, &sums) : unit_by_unit(t, micro_count, &sums));
    if (t->mesh.pp && t->mesh.dp && whole) TRY(sum_ranks(t, &sums, false));
    if (t->mesh.pp) TRY(pipeline_sums(t));
    if (t->mesh.tp) {
        SCOPE("train.share", -1);
        TRY(tp_grad_all_reduce(&t->rank.tp_grad, &t->decoder.params, t->exec.stream));
    }
    TRY(sparse_grad_reduce(&t->rank.sparse_grad, &t->decoder.params, &t->ops, t->exec.stream));
    TRY(optim_step(&t->exec, &t->spec.run, &t->rank.grad_norm, &t->rank.offload,
                   t->spec.model.moe_balance_rate));
    return zero_gather(&t->rank.zero);
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
    sp_overlap_reset(&t->sp_overlap);
    log_warn("the step cannot be captured as a CUDA graph and runs op by op: %s", status_message());
    return STATUS_OK;
}

static status run_step(struct trainer *t, int micro_count)
{
    if (t->mode == STEP_CAPTURE) TRY(capture_step(t, micro_count));
    if (t->mode == STEP_REPLAY) {
        TRY(dev_graph_launch(&t->stream, &t->graph));
        zero_begin(
            &t->rank.zero); /* what slots held before, an evaluation's units, they do not hold any more */
        return STATUS_OK;
    }
    if (t->mode == STEP_FIRST)
        t->mode = t->exec.stream && t->spec.run.train_graph ? STEP_CAPTURE : STEP_EAGER;
    return queue_step(t, micro_count);
}

/* Loads of experts whose routers other ranks answer for. */
static status share_loads(struct comm *c, struct step_scalars *s)
{
    const double mine[] = {s->load_max, s->load_min};
    double all[COMM_RANKS_MAX][2];
    TRY(comm_all_gather(c, "loads of experts", mine, all, sizeof mine, NULL));
    s->load_max = s->load_min = 0;
    for (int r = 0; r < comm_ranks(c); r++) {
        if (all[r][0] == 0) continue; /* has none */
        s->load_min = s->load_max > 0 ? fmin(s->load_min, all[r][1]) : all[r][1];
        s->load_max = fmax(s->load_max, all[r][0]);
    }
    return STATUS_OK;
}

static status check_finite(const struct trainer *t, const struct step_scalars *s)
{
    if (!isfinite(s->loss_sum + s->mtp_loss_sum + s->halt_sum))
        return FAIL(STATUS_NUMERIC,
                    "the loss of step %lld is not finite; the last checkpoint is good: resume from it with a "
                    "lower optim.lr",
                    (long long)t->step);
    if (!isfinite(s->grad_norm)) return optim_blame(&t->exec, t->mesh.world);
    return STATUS_OK;
}

status train_step(struct trainer *t, const struct step_batch *b, struct step_result *out)
{
    SCOPE("train.step", t->step);
    CHECK(b->step == t->step, "data of step %lld at step %lld", (long long)b->step, (long long)t->step);
    double counts[] = {(double)b->valid, (double)b->padding, 0, 0};
    for (int i = 0; i < b->micro_count; i++)
        counts[2] += (double)b->micro[i].rows, counts[3] += (double)b->micro[i].docs;
    comm_step_begin(t->mesh.world, t->mode == STEP_FIRST    ? COMM_STEP_FIRST
                                   : t->mode == STEP_REPLAY ? COMM_STEP_REPLAY
                                                            : COMM_STEP_REPEAT);
    TRY(comm_sum_f64(t->mesh.dp, "targets", counts, 4, NULL));
    if (counts[0] == 0)
        return FAIL(STATUS_DATA, "step %lld has no target that counts: every target is masked",
                    (long long)t->step);
    const struct model_spec *m = &t->spec.model;
    const double losses = counts[0] * (double)model_segments(m);
    struct step_scalars s = {.grad_scale = 1 / losses,
                             .lr = schedule_lr(&t->spec.run, t->step, t->steps_total)};
    if (m->mtp_depth > 0) s.mtp_scale = s.grad_scale * m->mtp_weight / (double)m->mtp_depth;
    const double heads = counts[3] * (double)model_segments(m);
    if (m->hrm_halt) s.halt_scale = 1 / heads;
    optim_scalars(&t->spec.run, t->step, &s);

    const bool timed =
        t->exec.stream == NULL || t->mode != STEP_FIRST; /* a GPU's first step loads libraries */
    TRY(feed_put(&t->feed, b->micro, b->micro_count, &s));
    TRY(run_step(t, b->micro_count));
    TRY(feed_read(&t->feed, &s));
    TRY(pipeline_times(t, timed));
    if (t->mesh.shape.zero) TRY(share_loads(t->mesh.dp, &s));
    TRY(share_loads(t->mesh.pp, &s));
    TRY(comm_step_end(t->mesh.world));
    TRY(check_finite(t, &s));

    *out = (struct step_result){
        .loss = s.loss_sum / losses,
        .mtp_loss = m->mtp_depth > 0 ? s.mtp_loss_sum / counts[0] / (double)m->mtp_depth : NAN,
        .halt_loss = m->hrm_halt ? s.halt_sum / heads : NAN,
        .lr = s.lr,
        .grad_norm = s.grad_norm,
        .grad_norm_clipped = s.grad_norm * s.clip_factor,
        .targets = (int64_t)counts[0],
        .padding = (int64_t)counts[1],
        .aux_loss = s.aux_sum / losses,
        .load_max = s.load_max,
        .load_min = s.load_min,
        .bubble = t->mesh.pp ? t->pipeline.bubble : NAN};
    t->step++;
    t->tokens += (int64_t)counts[2];
    return STATUS_OK;
}
