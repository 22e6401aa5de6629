#include "train/alerts.h"
#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static double process_cpu_s(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return NAN;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int awaited(void *ctx)
{
    return comm_straggler(ctx);
}

static status places_gather(struct alerts *a, const struct trainer *t, struct comm *world, int ranks)
{
    struct alert_place mine = {.pid = (int32_t)getpid(), .gpu = -1};
    a->places = calloc((size_t)ranks, sizeof *a->places);
    if (a->places == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the places of %d ranks", ranks);
    gethostname(mine.host, sizeof mine.host - 1);
    if (dev_address(&t->dev, mine.pci) != STATUS_OK) mine.pci[0] = 0;
    return comm_all_gather(world, "places", &mine, a->places, sizeof mine, NULL);
}

status alerts_open(struct alerts *a, const struct trainer *t, const struct stop *s)
{
    const struct run_spec *r = &t->spec.run;
    const int ranks = s->comm ? comm_ranks(s->comm) : 1;
    const char *name = strrchr(r->run_dir, '/');
    TRY(places_gather(a, t, s->comm, ranks));
    if (!r->log_alerts || comm_rank(s->comm) != 0) return STATUS_OK;
    const struct alert_options o = {
        .run_dir = r->run_dir,
        .run_name = name ? name + 1 : r->run_dir,
        .exec = r->log_alert_exec,
        .step = t->step,
        .rules = {.ranks = ranks,
                  .places = a->places,
                  .waits = t->dev.kind == DEV_CPU,
                  .start_s = clock_wall_s(),
                  .warmup = r->optim_warmup_steps,
                  .checkpoint_bytes =
                      12 * (double)t->decoder.params.param_count, /* fp32: weights and two moments */
                  .awaited = s->comm ? awaited : NULL,
                  .awaited_ctx = s->comm}};
    if (alert_watch_open(&a->watch, &o) != STATUS_OK) log_warn("no alerts: %s", status_message());
    return STATUS_OK;
}

void alerts_step_begin(struct alerts *a)
{
    a->cpu_s = process_cpu_s();
    alert_watch_loads(a->watch, true);
}

struct rank_time alerts_step_end(const struct alerts *a, double seconds, double wait_s, double data_s)
{
    return (struct rank_time){seconds - wait_s, wait_s, data_s, process_cpu_s() - a->cpu_s};
}

void alerts_note(struct alerts *a, int64_t step, const struct step_result *s, double seconds)
{
    a->step =
        (struct alert_step){.step = step, .loss = s->loss, .grad_norm = s->grad_norm, .step_s = seconds};
    a->save_ms = NAN;
}

void alerts_step(struct alerts *a, const struct stop *s)
{
    a->step.time = clock_wall_s();
    a->step.save_s = a->save_ms / 1000;
    a->step.rank = s->all;
    alert_watch_step(a->watch, &a->step);
}

void alerts_close(struct alerts *a, status st, const char *message, const struct trainer *t,
                  int64_t saved_step, double seconds, int64_t steps)
{
    const int64_t lost = t->step - (saved_step > 0 ? saved_step : 0);
    alert_watch_close(a->watch, st, message, lost,
                      steps > 0 ? (double)lost * seconds / (double)steps : (double)NAN);
    a->watch = NULL;
    free(a->places);
    a->places = NULL;
}
