#include "train/lr_find.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "observe/progress.h"
#include "train/data_identity.h"
#include "train/data_sources.h"
#include "train/loop.h"
#include "train/restore.h"

#include <math.h>
#include <stdlib.h>

struct finder {
    struct spec spec;
    struct data_sources data;
    struct shard_set val; /* only to tell whether the data are the checkpoint's */
    struct trainer t;
    struct loader *loader;
};

/* What a step of the run would skip or report is no part of the test: its losses are to be seen. */
static void make_plain(struct spec *s)
{
    s->run.train_on_spike = ON_SPIKE_WARN;
    s->run.ckpt_memory_every = 0;
}

static status open_data(struct finder *f, bool accept)
{
    const struct run_spec *r = &f->spec.run;
    TRY(data_sources_open(&f->data, r));
    TRY(data_sources_open_val(&f->val, r));
    TRY(data_sources_tokenizer(&f->data.sets[0], r, accept));
    TRY(loop_resolve_vocab(&f->spec, &f->data));
    return data_sources_mix(&f->data, &f->spec);
}

static status begin(struct finder *f, const struct lr_find_options *o)
{
    bool found = false;
    char path[SPEC_TEXT + 64];
    const char *dir = f->spec.run.run_dir;
    if (!o->resume) {
        TRY(trainer_init_weights(&f->t));
        return restore_fold(&f->t);
    }
    snprintf(path, sizeof path, "%s", dir);
    if (o->resume_step >= 0) TRY(checkpoint_at(dir, o->resume_step, path, sizeof path));
    TRY(trainer_restore(&f->t, path, &found));
    return found ? STATUS_OK
                 : FAIL(STATUS_CONFIG,
                        "%s has no checkpoint: without --resume the test begins with fresh "
                        "weights",
                        dir);
}

static status open_all(struct finder *f, const struct lr_find_options *o)
{
    struct loader_config loader;
    struct trainer *t = &f->t;
    TRY(open_data(f, o->accept_data));
    TRY(trainer_open_rank(t, &f->spec, o->isa, o->comm));
    TRY(data_identity_of(&f->data, &f->val, &f->spec.run, &t->data));
    t->accept_data = o->accept_data;
    TRY(begin(f, o));
    TRY(data_sources_loader(&t->spec, &t->mesh, &t->dev, &loader));
    loader.skips = &t->lineage.skips;
    TRY(loader_open(&f->loader, f->data.samples, &loader, t->step));
    t->rise = (struct lr_rise){o->low, o->high, t->step, o->steps};
    return STATUS_OK;
}

/* One line for each tenth of the test. */
static void say(const struct lr_find_options *o, const struct lr_curve *c, const struct step_result *s,
                double seconds)
{
    const int64_t every = (o->steps + 9) / 10;
    char left[32];
    if (comm_rank(o->comm) != 0 || c->count == 0 || (c->count % every && c->count != o->steps)) return;
    log_info("lr-find=%lld/%lld lr=%.3e loss=%.4f smooth=%.4f eta=%s", (long long)c->count,
             (long long)o->steps, s->lr, s->loss, c->point[c->count - 1].smooth,
             text_duration(left, seconds / (double)c->count * (double)(o->steps - c->count)));
}

/* A step that is not finite ends the test; it is no error of it. */
static status rise(struct finder *f, const struct lr_find_options *o, struct lr_curve *out)
{
    const double from = clock_s();
    for (int64_t k = 0; k < o->steps; k++) {
        const struct step_batch *b;
        struct step_result s;
        TRY(loader_next(f->loader, &b));
        status st = train_step(&f->t, b, &s);
        out->diverged = st == STATUS_NUMERIC;
        if (out->diverged) return STATUS_OK;
        TRY(st);
        const bool ends = lr_curve_add(out, s.lr, s.loss, s.grad_norm);
        say(o, out, &s, clock_s() - from);
        if (ends) return STATUS_OK;
    }
    return STATUS_OK;
}

status lr_find(const struct spec *spec, const struct lr_find_options *o, struct lr_curve *out)
{
    struct finder *f = calloc(1, sizeof *f);
    if (f == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the test's description");
    f->spec = *spec;
    make_plain(&f->spec);
    *out = (struct lr_curve){0};
    parallel_threads_set((int)spec->run.machine_threads);
    status st = open_all(f, o);
    if (st == STATUS_OK) st = rise(f, o, out);
    loader_close(f->loader);
    trainer_close(&f->t);
    data_sources_close(&f->data);
    shard_set_close(&f->val);
    free(f);
    return st;
}
