#include "train/fp8_run.h"
#include "base/log.h"
#include "base/text.h"
#include "ops/precision.h"
#include "parallel/fp8.h"
#include "parallel/zero_codes.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

static const struct fp8_linears *linears_of(const struct trainer *t)
{
    return &t->decoder.params.fp8;
}

static const char *name_of(const struct trainer *t, int linear)
{
    return t->decoder.params.rows[linears_of(t)->row[linear]].name;
}

static int margin_of(const struct trainer *t)
{
    return (int)t->spec.run.fp8_margin;
}

status fp8_run_open(struct trainer *t)
{
    const size_t n = (size_t)linears_of(t)->count;
    if (n == 0) return STATUS_OK;
    t->fp8 = (struct fp8_run){.linears = calloc(n, sizeof *t->fp8.linears),
                              .warned = calloc(2 * n, sizeof *t->fp8.warned),
                              .scale = calloc(2 * n, sizeof *t->fp8.scale),
                              .history = calloc(2 * n * FP8_HISTORY, sizeof *t->fp8.history)};
    return t->fp8.linears && t->fp8.warned && t->fp8.scale && t->fp8.history
               ? STATUS_OK
               : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the state of %zu FP8 linears", n);
}

void fp8_run_close(struct trainer *t)
{
    free(t->fp8.linears);
    free(t->fp8.warned);
    free(t->fp8.scale);
    free(t->fp8.history);
    t->fp8 = (struct fp8_run){0};
}

/* ---- the switch */

static enum fp8_use use_of(const struct trainer *t, int linear)
{
    const struct run_spec *r = &t->spec.run;
    const int64_t since = t->fp8.linears[linear].since;
    if (since == FP8_NEVER || t->step < since + r->fp8_warmup) return FP8_USE_BF16;
    return r->fp8_wgrad == FP8_WGRAD_BF16 ? FP8_USE_WGRAD_BF16 : FP8_USE_ALL;
}

/* Sets the uses of the next step; true: some are others than before. */
static bool set_uses(struct trainer *t)
{
    const struct fp8_linears *f = linears_of(t);
    bool changed = false;
    for (int i = 0; i < f->count; i++) {
        const enum fp8_use use = use_of(t, i);
        changed |= f->use[i] != use;
        f->use[i] = use;
    }
    return changed;
}

static void log_gathers(const struct params *p)
{
    char a[32], b[32];
    const struct zero_codes_sum sum = zero_codes_sum(p);
    if (p->zero == 3)
        log_info("fp8       ZeRO 3 all-gathers %s of codes and %s of bf16 per pass over the blocks: codes of "
                 "%d of %d "
                 "units",
                 text_bytes(a, (double)sum.codes), text_bytes(b, (double)sum.values), sum.moved, sum.units);
}

void fp8_run_log(const struct trainer *t)
{
    const struct fp8_linears *f = linears_of(t);
    const struct run_spec *r = &t->spec.run;
    int64_t last = FP8_NEVER; /* step of a warm-up, the next that ends */
    int codes = 0;
    if (t->decoder.params.current.count > 0)
        log_info("%-9s GEMMs of %d linears read operands rounded to codes with scales of their own",
                 precision_name((enum precision)r->train_precision), t->decoder.params.current.count);
    for (int i = 0; t->fp8.linears && i < f->count; i++) {
        const int64_t since = t->fp8.linears[i].since;
        codes += f->use[i] != FP8_USE_BF16;
        if (since != FP8_NEVER && since + r->fp8_warmup > t->step && since + r->fp8_warmup < last)
            last = since + r->fp8_warmup;
    }
    if (codes > 0)
        log_info("fp8       from step %lld on GEMMs of %d of %d linears read FP8 codes%s",
                 (long long)t->step + 1, codes, f->count,
                 r->fp8_wgrad == FP8_WGRAD_BF16 ? "; weight gradients in bf16" : "");
    if (last != FP8_NEVER)
        log_info("fp8       up to step %lld GEMMs of %d linears are in bf16 and measure (fp8.warmup)",
                 (long long)last, f->count - codes);
    if (codes > 0) log_gathers(&t->decoder.params);
}

status fp8_run_begin(struct trainer *t)
{
    if (t->fp8.linears == NULL) return STATUS_OK;
    (void)set_uses(t);
    return fp8_begin(&t->exec, &t->mesh, margin_of(t));
}

status fp8_run_restored(struct trainer *t, const struct checkpoint *c)
{
    char name[128];
    for (int i = 0; t->fp8.linears && i < linears_of(t)->count; i++) {
        struct fp8_linear_state *s = &t->fp8.linears[i];
        snprintf(name, sizeof name, "fp8/history/%s", name_of(t, i));
        if (checkpoint_find(c, name) < 0) *s = (struct fp8_linear_state){.since = t->step};
        if (s->since == FP8_NEVER || (s->since >= 0 && s->since <= t->step)) continue;
        return FAIL(STATUS_CKPT, "%s: fp8/state/%s begins at step %lld, after the checkpoint's step %lld",
                    checkpoint_path(c), name_of(t, i), (long long)s->since, (long long)t->step);
    }
    return STATUS_OK;
}

status fp8_run_forget(struct trainer *t)
{
    return t->fp8.linears ? fp8_forget(&t->exec) : STATUS_OK;
}

/* ---- the monitor */

static bool measures(const struct trainer *t)
{
    const int64_t every = t->spec.run.fp8_monitor;
    return every > 0 && (t->step + 1) % every == 0;
}

status fp8_run_before(struct trainer *t)
{
    const struct fp8_linears *f = linears_of(t);
    if (t->fp8.linears == NULL) return STATUS_OK;
    if (set_uses(t)) {
        fp8_run_log(t);
        step_graphs_close(t);
        t->mode = STEP_FIRST;
        TRY(fp8_begin(&t->exec, &t->mesh, margin_of(t)));
    }
    if (!measures(t)) return STATUS_OK;
    return dev_download(t->exec.stream, t->fp8.scale, f->scale, 2 * (size_t)f->count * sizeof(float));
}

/* log2 of the largest code over the largest element in units of codes, of X or DY; NaN: not measured, or it has a bound
 * that no element passes. */
static double headroom_of(const struct trainer *t, enum fp8_tensor kind, int linear)
{
    const struct fp8_linears *f = linears_of(t);
    const int64_t at = fp8_at(f, kind, linear);
    const double amax = (double)t->fp8.history[at * FP8_HISTORY + t->step % FP8_HISTORY];
    const bool bounded = kind == FP8_X && t->decoder.params.rows[f->row[linear]].norm.w >= 0;
    if (f->use[linear] == FP8_USE_BF16 || bounded || amax == 0) return NAN;
    return log2(fp8_max(kind == FP8_DY ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3) / (amax * (double)t->fp8.scale[at]));
}

struct kind_health {
    double least; /* headroom; NaN: nothing was measured */
    int worst, saturated;
};
static struct kind_health check_kind(struct trainer *t, enum fp8_tensor kind, bool *saturates)
{
    const struct fp8_linears *f = linears_of(t);
    const char *what = kind == FP8_DY ? "the output's gradient" : "the input";
    struct kind_health h = {.least = NAN};
    for (int i = 0; i < f->count; i++) {
        const double room = headroom_of(t, kind, i);
        if (isnan(room)) continue;
        if (!(h.least <= room)) h.least = room, h.worst = i;
        if (room >= 0) continue;
        h.saturated++;
        saturates[i] = true;
        bool *warned = &t->fp8.warned[fp8_at(f, kind, i)];
        if (!*warned)
            log_warn(
                "fp8: step %lld: %s of %s saturates: its largest element is 2^%.1f codes above the largest "
                "code; raise fp8.margin, or name the weight in fp8.exclude",
                (long long)t->step + 1, what, name_of(t, i), -room);
        *warned = true;
    }
    return h;
}

/* Linears that saturate again and again compute in bf16 from the next step on. */
static void count_strikes(struct trainer *t, const bool *saturates)
{
    for (int i = 0; i < linears_of(t)->count; i++) {
        struct fp8_linear_state *s = &t->fp8.linears[i];
        s->strikes = saturates[i] ? s->strikes + 1 : 0;
        if (s->strikes < FP8_STRIKES) continue;
        *s = (struct fp8_linear_state){.since = FP8_NEVER};
        log_warn("fp8: %s has saturated in %d checks in a row: its GEMMs are in bf16 from step %lld on",
                 name_of(t, i), FP8_STRIKES, (long long)t->step + 1);
    }
}

static const char *room_text(char buf[160], const struct trainer *t, const struct kind_health *h)
{
    if (isnan(h->least)) return "none measured";
    snprintf(buf, 160, "%.2f (%s)", h->least, name_of(t, h->worst));
    return buf;
}

status fp8_run_after(struct trainer *t, struct step_result *out)
{
    const struct fp8_linears *f = linears_of(t);
    out->fp8_saturated = out->fp8_headroom_x = out->fp8_headroom_dy = NAN;
    if (t->fp8.linears == NULL || !measures(t)) return STATUS_OK;
    TRY(dev_download(t->exec.stream, t->fp8.history, f->history,
                     2 * (size_t)f->count * FP8_HISTORY * sizeof(float)));
    if (t->exec.stream) TRY(dev_sync(t->exec.stream));
    bool *saturates = calloc((size_t)f->count, sizeof *saturates);
    if (saturates == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory to check %d FP8 linears", f->count);
    const struct kind_health x = check_kind(t, FP8_X, saturates), dy = check_kind(t, FP8_DY, saturates);
    count_strikes(t, saturates);
    free(saturates);
    if (isnan(x.least) && isnan(dy.least)) return STATUS_OK; /* all in bf16 */
    char a[160], b[160];
    out->fp8_saturated = x.saturated + dy.saturated;
    out->fp8_headroom_x = x.least;
    out->fp8_headroom_dy = dy.least;
    log_detail("fp8       step %lld: %d tensors saturate; least headroom in binades: inputs %s, gradients %s",
               (long long)t->step + 1, x.saturated + dy.saturated, room_text(a, t, &x), room_text(b, t, &dy));
    return STATUS_OK;
}
