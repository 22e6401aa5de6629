/* One training step, callers first:
 *
 *   train_step          host: counts, scalars, upload; the step; download, checks
 *     exec_step         op by op, or as a captured CUDA graph
 *       queue_step      everything that the device does
 *         queue_gradients
 *           offload_prefetch    optimizer state from the host's memory
 *           forward_backward    all micro-batches
 *           verify_state        train.verify: silent data corruption
 *           reduce_gradients    over ranks
 *           save_wait_before_update    the checkpoint that is written still reads the old weights
 *         spike_judge_step      train.on_spike=skip: the host reads the gradients' norm
 *         queue_update
 *           optim_step          norm, clip, update
 *           zero_all_gather_weights    all-gather of the new weights
 *           fp8_end             FP8: scales of the next step, codes of the new weights
 *           verify_updated */
#include "base/log.h"
#include "base/scope.h"
#include "parallel/fp8.h"
#include "train/save.h"
#include "train/spike_act.h"
#include "train/step_stats.h"
#include "train/verify.h"

#include <assert.h>
#include <stddef.h>

static_assert(offsetof(struct step_scalars, hits) ==
                  offsetof(struct step_scalars, loss_sum) + GRAD_REDUCE_LOSSES * sizeof(double),
              "the losses that ranks sum are contiguous");

static enum comm_step comm_step_kind(enum step_mode mode);
static void begin_stage(struct trainer *t, int micro_count);
static status exec_step(struct trainer *t, int micro_count);
static status capture_step(struct trainer *t, int micro_count);
static status queue_step(struct trainer *t, int micro_count);
static status queue_gradients(struct trainer *t, int micro_count);
static status queue_update(struct trainer *t);
static status forward_backward(struct trainer *t, int micro_count, bool *overlapped);
static status reduce_gradients(struct trainer *t, bool overlapped);
static status micro_batches_fwd_bwd(struct trainer *t, int micro_count, bool *overlapped);
static status zero23_fwd_bwd(struct trainer *t, int micro_count);
static status micro_batch_fwd_bwd(struct trainer *t, int micro_count, int i);
static status pause_after(struct trainer *t, int done, int micro_count);
static status dp_all_reduce(struct trainer *t, bool overlapped);
static struct grad_reduce_sums sums_of(const struct trainer *t);

status train_step(struct trainer *t, const struct step_batch *b, struct step_result *out)
{
    SCOPE("train.step", t->step);
    CHECK(b->step == t->step, "data of step %lld at step %lld", (long long)b->step, (long long)t->step);
    TRY(fp8_run_before(t));
    begin_stage(t, b->micro_count);
    const bool timed =
        t->exec.stream == NULL || t->mode != STEP_FIRST; /* a GPU's first step loads libraries */
    struct step_counts counts;

    verify_begin(t);
    comm_step_begin(t->mesh.world, comm_step_kind(t->mode));
    TRY(step_count(t, b, &counts));
    struct step_scalars s = step_scalars_of(t, &counts);
    TRY(feed_put(&t->feed, b->micro, b->micro_count, &s));
    TRY(exec_step(t, b->micro_count));
    TRY(feed_read(&t->feed, &s));
    spike_restore(t, &s);
    TRY(save_account_stall(t));
    TRY(pipeline_times(t, timed));
    TRY(step_gather_loads(t, &s));
    TRY(comm_step_end(t->mesh.world));
    TRY(step_check_finite(t, &s));

    *out = step_result_of(t, &counts, &s);
    TRY(fp8_run_after(t, out));
    spike_end(t, out);
    if (!out->update_skipped) health_step(&t->health, out->loss, out->grad_norm);
    t->step++;
    t->tokens += (int64_t)counts.tokens;
    return STATUS_OK;
}

/* A stage of train.batch_schedule begins as a run does: it has other collectives (comm/health/call_list.h), and on a GPU
 * GEMMs whose algorithm is not chosen yet (the first stage with two micro-batches adds to gradients). */
static void begin_stage(struct trainer *t, int micro_count)
{
    if (t->mode != STEP_FIRST && micro_count != t->stage_micro_count) {
        step_graphs_close(t);
        t->mode = STEP_FIRST;
    }
    t->stage_micro_count = micro_count;
}

/* A GPU runs its first step op by op (libraries load, algorithms are chosen), captures the second and replays it from then on. */
static status exec_step(struct trainer *t, int micro_count)
{
    if (t->mode == STEP_CAPTURE) TRY(capture_step(t, micro_count));
    if (t->mode == STEP_REPLAY) {
        TRY(save_wait_copies_queued(t));
        TRY(dev_graph_launch(&t->stream, &t->graph));
        TRY(spike_judge_step(t));
        if (spike_host_judges(t)) TRY(dev_graph_launch(&t->stream, &t->graph_update));
        zero_invalidate(&t->rank.zero); /* slots may hold units of an evaluation: invalidate them */
        return STATUS_OK;
    }
    if (t->mode == STEP_FIRST)
        t->mode = t->exec.stream && t->spec.run.train_graph ? STEP_CAPTURE : STEP_EAGER;
    return queue_step(t, micro_count);
}

/* Queues everything that the device does in a step. It reads the feed, and writes the weights and the feed's
 * scalars. */
static status queue_step(struct trainer *t, int micro_count)
{
    TRY(queue_gradients(t, micro_count));
    TRY(spike_judge_step(t));
    return queue_update(t);
}

/* Forward, backward and gradient reduction. With train.on_spike=skip also the norm, which the host checks before the
 * update. */
static status queue_gradients(struct trainer *t, int micro_count)
{
    bool overlapped = false;
    TRY(offload_prefetch(&t->rank.offload, &t->exec));
    TRY(forward_backward(t, micro_count, &overlapped));
    TRY(verify_state(t));
    TRY(reduce_gradients(t, overlapped));
    if (spike_host_judges(t)) TRY(optim_norm(&t->exec, &t->spec.run, &t->rank.grad_norm));
    return save_wait_before_update(t);
}

static status queue_update(struct trainer *t)
{
    const struct run_spec *run = &t->spec.run;
    const double balance_rate = t->spec.model.moe_balance_rate;
    const struct grad_norm *norm = &t->rank.grad_norm;
    const bool update_skipped = t->spike.skips_update && t->exec.stream == NULL;
    if (!spike_host_judges(t))
        TRY(optim_step(&t->exec, run, norm, &t->rank.offload, balance_rate));
    else if (!update_skipped)
        TRY(optim_update(&t->exec, run, norm, &t->rank.offload, &(struct optim_rest){balance_rate, true}));
    TRY(zero_all_gather_weights(&t->rank.zero));
    TRY(fp8_end(&t->exec, &t->mesh, (int)run->fp8_margin));
    verify_updated(t);
    return STATUS_OK;
}

/* Computes gradients and losses of this rank's micro-batches. *overlapped: the gradients were already all-reduced over
 * the data-parallel ranks. */
static status forward_backward(struct trainer *t, int micro_count, bool *overlapped)
{
    if (t->mesh.pp) return pipeline_fwd_bwd(t, micro_count);
    if (t->decoder.params.zero >= 2) return zero23_fwd_bwd(t, micro_count);
    return micro_batches_fwd_bwd(t, micro_count, overlapped);
}

/* Do not reorder these reductions: the order affects the result bits. */
static status reduce_gradients(struct trainer *t, bool overlapped)
{
    const struct params *p = &t->decoder.params;
    TRY(dp_all_reduce(t, overlapped));
    TRY(pipeline_reduce(t)); /* tied embedding, losses */
    TRY(tp_grad_all_reduce(&t->rank.tp_grad, p, t->exec.stream));
    return sparse_grad_reduce(&t->rank.sparse_grad, p, &t->ops, t->exec.stream); /* n-gram rows */
}

/* Gradient accumulation, group by group (parallel/grad_reduce.h). In the last micro-batch the all-reduce overlaps the
 * backward. */
static status micro_batches_fwd_bwd(struct trainer *t, int micro_count, bool *overlapped)
{
    const struct grad_reduce *grad_reduce = &t->rank.grad_reduce;
    const struct grad_reduce_sums sums = sums_of(t);
    int done = 0;
    for (int k = 0; k < grad_reduce->groups; k++) {
        const int first = grad_reduce_group(grad_reduce, k);
        const bool last_group = k == grad_reduce->groups - 1;
        for (int i = first; i < micro_count; i += grad_reduce->groups) {
            t->exec.accum = i == first ? ACCUM_STORE : ACCUM_ADD;
            if (last_group && i + grad_reduce->groups >= micro_count)
                grad_overlap_begin(&t->grad_overlap, &sums);
            TRY(micro_batch_fwd_bwd(t, micro_count, i));
            if (done == 0) TRY(verify_first(t, &t->feed.micro[i]));
            TRY(pause_after(t, ++done, micro_count));
        }
        if (!last_group) TRY(grad_reduce_accumulate(grad_reduce, k, &sums, &t->ops, t->exec.stream));
    }
    const struct grad_reduce_part losses = {.count = 0}, gradients = {.count = grad_reduce->total};
    TRY(grad_overlap_end(&t->grad_overlap, overlapped));
    return grad_reduce_accumulate_part(grad_reduce, grad_reduce->groups - 1,
                                       *overlapped ? &losses : &gradients, &sums, &t->ops, t->exec.stream);
}

/* ZeRO 2 and 3: each unit's gradient is reduce-scattered when its backward ends (parallel/zero.h). So ranks are the
 * deepest level of the summation tree, for the losses too. */
static status zero23_fwd_bwd(struct trainer *t, int micro_count)
{
    struct zero *zero = &t->rank.zero;
    const struct grad_reduce *grad_reduce = &t->rank.grad_reduce;
    CHECK(grad_reduce->groups == micro_count, "%d micro-batches in %d groups", micro_count,
          grad_reduce->groups);
    zero_invalidate(zero);
    t->exec.accum = ACCUM_STORE;
    for (int k = 0; k < grad_reduce->groups; k++) {
        zero->group = k;
        TRY(micro_batch_fwd_bwd(t, micro_count, grad_reduce_group(grad_reduce, k)));
        TRY(zero_reduce_losses(zero, sums_of(t).losses));
        TRY(pause_after(t, k + 1, micro_count));
    }
    return zero_end(zero);
}

static status micro_batch_fwd_bwd(struct trainer *t, int micro_count, int i)
{
    SCOPE("train.micro", i);
    t->exec.micro = sparse_grad_micro(&t->mesh, micro_count, i);
    return decoder_fwd_bwd(&t->decoder, &t->acts, &t->feed.micro[i], t->spec.run.train_z_loss, &t->exec);
}

bool trainer_pauses(const struct trainer *t)
{
    return t->pause.fn && t->exec.stream == NULL && t->mesh.pp == NULL;
}

static status pause_after(struct trainer *t, int done, int micro_count)
{
    if (!trainer_pauses(t)) return STATUS_OK;
    status st = t->pause.fn(t->pause.ctx, done, micro_count);
    if (st == STATUS_STOPPED) comm_step_drop(t->mesh.world);
    return st;
}

/* All-reduces gradients and losses over dp x cp ranks. Under ZeRO 2 and 3 the passes have done that, unit by unit. */
static status dp_all_reduce(struct trainer *t, bool overlapped)
{
    const struct params *p = &t->decoder.params;
    if (t->mesh.dp_cp == NULL || p->zero >= 2) return STATUS_OK;
    SCOPE("train.sync", -1);
    for (int u = 0; u < p->unit_count && !overlapped; u++)
        TRY(grad_reduce_unit(&t->rank.grad_reduce, p, u, t->exec.stream));
    return grad_reduce_losses(&t->rank.grad_reduce, sums_of(t).losses, t->exec.stream);
}

/* The arrays in which this rank sums its gradients and losses. */
static struct grad_reduce_sums sums_of(const struct trainer *t)
{
    return (struct grad_reduce_sums){.grad = t->decoder.params.grad, .losses = &t->feed.scalars->loss_sum};
}

/* Captures one graph; with train.on_spike=skip two, between which the host checks the gradient norm. */
static status capture_graphs(struct trainer *t, int micro_count)
{
    const bool asks = spike_host_judges(t);
    t->spike.skips_update = false; /* capture the graphs of a normal (not skipped) step */
    TRY(dev_graph_begin(&t->stream));
    status st = queue_gradients(t, micro_count);
    if (st == STATUS_OK && !asks) st = queue_update(t);
    const status end = dev_graph_end(&t->stream, &t->graph, st == STATUS_OK);
    if (st != STATUS_OK || end != STATUS_OK || !asks) return st != STATUS_OK ? st : end;
    TRY(dev_graph_begin(&t->stream));
    st = queue_update(t);
    const status last = dev_graph_end(&t->stream, &t->graph_update, st == STATUS_OK);
    return st != STATUS_OK ? st : last;
}

/* Captures the step as a CUDA graph. A step that cannot be captured runs op by op; the log gives the reason. */
static status capture_step(struct trainer *t, int micro_count)
{
    SCOPE("train.capture", -1);
    t->mode = STEP_REPLAY;
    if (capture_graphs(t, micro_count) == STATUS_OK) return STATUS_OK;
    t->mode = STEP_EAGER;
    step_graphs_close(t);
    sp_overlap_reset(&t->sp_overlap);
    log_warn("the step cannot be captured as a CUDA graph and runs op by op: %s", status_message());
    return comm_mailbox_settle(t->mesh.pp, NULL);
}

static enum comm_step comm_step_kind(enum step_mode mode)
{
    if (mode == STEP_FIRST) return COMM_STEP_FIRST;
    return mode == STEP_REPLAY ? COMM_STEP_REPLAY : COMM_STEP_REPEAT;
}
