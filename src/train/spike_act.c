/* What a run does about a spike: train.on_spike. */
#include "train/spike_act.h"
#include "base/log.h"
#include "train/step_stats.h"

#include <math.h>
#include <stdio.h>

/* ---- the update that is left out */

/* The loss as the result has it, but for the last bit. */
static bool leaves_out(void *ctx, const struct step_scalars *s)
{
    struct trainer *t = ctx;
    struct spike *k = &t->spike;
    k->kind =
        spike_judge(k, &t->spec.run, t->step + 1, s->loss_sum * s->grad_scale, sqrt(s->grad_squares), k->why);
    k->leaves_out = k->kind != SPIKE_NONE;
    return k->leaves_out;
}

void spike_begin(struct trainer *t)
{
    const bool asks = t->spec.run.train_on_spike == ON_SPIKE_SKIP;
    t->spike.leaves_out = false;
    t->exec.leaves_out = asks ? leaves_out : NULL;
    t->exec.leaves_out_ctx = t;
}

void spike_end(struct trainer *t, struct step_result *s)
{
    struct spike *k = &t->spike;
    if (t->exec.leaves_out == NULL)
        k->kind = spike_judge(k, &t->spec.run, t->step + 1, s->loss, s->grad_norm, k->why);
    s->spike = k->kind;
    s->left_out = k->leaves_out;
    snprintf(s->spike_why, sizeof s->spike_why, "%s", k->why);
    spike_add(k, &t->spec.run, s->spike, s->left_out, s->loss, s->grad_norm);
}

status spike_check(const struct trainer *t, bool gpu)
{
    const struct run_spec *r = &t->spec.run;
    if (r->train_on_spike != ON_SPIKE_SKIP) return STATUS_OK;
    const char *with = gpu                            ? "a GPU (its step is one graph)"
                       : spec_tables_sparse(&t->spec) ? "sparse gradients (optim.table_gradients)"
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
    if (s->left_out) log_warn("spike     %s; its update is left out", s->spike_why);
    if (s->spike != SPIKE_BEGINS || s->left_out) return STATUS_OK;
    log_warn("spike     %s", s->spike_why);
    if (what == ON_SPIKE_STOP) return FAIL(STATUS_NUMERIC, "%s: a spike (train.on_spike=stop)", s->spike_why);
    return what == ON_SPIKE_REWIND ? go_back(t, s, again) : STATUS_OK;
}
