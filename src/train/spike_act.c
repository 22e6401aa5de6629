/* What a run does about a spike: train.on_spike. */
#include "train/spike_act.h"
#include "base/log.h"
#include "optim/optim.h"
#include "parallel/fp8.h"
#include "train/step_stats.h"

#include <math.h>
#include <stdio.h>

/* ---- the update that is left out */

bool spike_host_judges(const struct trainer *t)
{
    return t->spec.run.train_on_spike == ON_SPIKE_SKIP;
}

/* On a GPU the update is in a graph, with collectives that all steps make: it finds a norm that is not finite, and
 * changes nothing. */
static status leave_out(struct trainer *t, struct step_scalars *s)
{
    TRY(optim_zero_grad(&t->exec));
    TRY(fp8_forget(&t->exec)); /* the next step's scales do not know this one */
    if (t->exec.stream == NULL) return STATUS_OK;
    s->grad_squares = NAN;
    return feed_scalars(&t->feed, s);
}

/* The loss as the result has it, but for the last bit. */
status spike_judge_step(struct trainer *t)
{
    struct spike *k = &t->spike;
    struct step_scalars s;
    k->skips_update = false;
    if (!spike_host_judges(t)) return STATUS_OK;
    TRY(feed_read(&t->feed, &s));
    k->kind =
        spike_judge(k, &t->spec.run, t->step + 1, s.loss_sum * s.grad_scale, sqrt(s.grad_squares), k->why);
    k->skips_update = k->kind != SPIKE_NONE;
    k->grad_squares = s.grad_squares;
    return k->skips_update ? leave_out(t, &s) : STATUS_OK;
}

void spike_restore(const struct trainer *t, struct step_scalars *s)
{
    const struct spike *k = &t->spike;
    if (!k->skips_update) return;
    s->grad_squares = k->grad_squares;
    s->grad_norm = sqrt(k->grad_squares);
    s->clip_factor = 0;
}

void spike_end(struct trainer *t, struct step_result *s)
{
    struct spike *k = &t->spike;
    if (!spike_host_judges(t))
        k->kind = spike_judge(k, &t->spec.run, t->step + 1, s->loss, s->grad_norm, k->why);
    s->spike = k->kind;
    s->update_skipped = k->skips_update;
    snprintf(s->spike_why, sizeof s->spike_why, "%s", k->why);
    spike_add(k, &t->spec.run, s->spike, s->update_skipped, s->loss, s->grad_norm);
}

status spike_check(const struct trainer *t, bool gpu)
{
    const struct run_spec *r = &t->spec.run;
    if (r->train_on_spike != ON_SPIKE_SKIP) return STATUS_OK;
    const char *with = spec_tables_sparse(&t->spec) ? "sparse gradients (optim.table_gradients)"
                       : gpu && r->memory_offload_optimizer
                           ? "memory.offload_optimizer on a GPU, whose copies cross "
                             "the step,"
                           : NULL;
    if (with == NULL) return STATUS_OK;
    return FAIL(STATUS_CONFIG, "train.on_spike=skip does not work with %s; take warn, rewind or stop", with);
}

/* ---- after the step */

/* The checkpoint to go back to, the same on all ranks; -1: none. */
static status find_from(const struct trainer *t, int64_t *from)
{
    const int64_t last = t->step - t->spec.run.train_spike_back;
    *from = -1;
    if (comm_rank(t->mesh.world) == 0 && last >= 0)
        TRY(checkpoint_newest_sound_until(t->spec.run.run_dir, last, from));
    return comm_broadcast(t->mesh.world, "checkpoint before the spike", from, sizeof *from, NULL);
}

static status go_back(struct trainer *t, const struct step_result *s, struct spike_again *again)
{
    int64_t from;
    TRY(find_from(t, &from));
    if (from < 0)
        return FAIL(STATUS_NUMERIC,
                    "%s: a spike, and no sound checkpoint is %lld steps older (train.on_spike=rewind, "
                    "train.spike_back)",
                    s->spike_why, (long long)t->spec.run.train_spike_back);
    if (spike_rewinds(&t->lineage, from) >= SPIKE_REWINDS)
        return FAIL(STATUS_NUMERIC, "%s: a spike, after %d rewinds to step %lld (train.on_spike=rewind)",
                    s->spike_why, SPIKE_REWINDS, (long long)from);
    snprintf(again->why, sizeof again->why, "train.on_spike=rewind: %s", s->spike_why);
    again->order = spike_order(&t->spec.run, t->step, from, again->why);
    log_warn("spike     back to step %lld, without the data of steps %lld to %lld", (long long)from,
             (long long)again->order.skip_from, (long long)again->order.skip_to);
    return STATUS_OK;
}

status spike_act(struct trainer *t, const struct step_result *s, struct spike_again *again)
{
    const int what = (int)t->spec.run.train_on_spike;
    *again = (struct spike_again){0};
    if (s->update_skipped) log_warn("spike     %s; its update is left out", s->spike_why);
    if (s->spike != SPIKE_BEGINS || s->update_skipped) return STATUS_OK;
    log_warn("spike     %s", s->spike_why);
    if (what == ON_SPIKE_STOP) return FAIL(STATUS_NUMERIC, "%s: a spike (train.on_spike=stop)", s->spike_why);
    return what == ON_SPIKE_REWIND ? go_back(t, s, again) : STATUS_OK;
}
