#include "train/forecast.h"
#include "base/log.h"
#include "base/text.h"
#include "plan/assume.h"
#include "plan/calibrate.h"
#include "observe/forecasts.h"
#include "ops/precision.h"
#include "plan/mesh_plan.h"
#include "train/footprint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void forecast_step(struct forecast *f, double seconds)
{
    if (f->seen >= FORECAST_SKIP) f->seconds[(f->seen - FORECAST_SKIP) % FORECAST_STEPS] = seconds;
    f->seen++;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double forecast_measured(const struct forecast *f)
{
    double sorted[FORECAST_STEPS];
    const int64_t kept = f->seen - FORECAST_SKIP;
    const size_t n = (size_t)(kept < FORECAST_STEPS ? kept : FORECAST_STEPS);
    if (kept <= 0) return NAN;
    memcpy(sorted, f->seconds, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The machine of the run: a GPU's row, or this host's measured rates, with its memory divided among its ranks. */
static status machine_of_run(const struct trainer *t, struct machine *m)
{
    const int here = comm_job(t->mesh.world).here;
    if (t->dev.kind == DEV_CPU) {
        TRY(calibrate_host(&(struct calibrate_args){.ops = &t->ops,
                                                    .model = &t->spec.model,
                                                    .precision = (enum precision)t->spec.run.train_precision,
                                                    .tokens = t->acts.layout.n},
                           m));
        m->node = here;
        m->memory_bytes = plan_bytes(&t->spec, &t->dev, &t->mesh);
        return STATUS_OK;
    }
    const struct machine *row = machine_of_gpu(t->dev.name);
    if (row == NULL) return FAIL(STATUS_CONFIG, "there are no rates of a %s (spec/machine.def)", t->dev.name);
    *m = *row;
    if (here < m->node) m->node = here;
    return STATUS_OK;
}

/* The run's mesh with micro-batches of train.micro_batch or, with `best`, of the size that is predicted to be fastest.
 * *memory: of this rank. */
static status predict(const struct trainer *t, bool best, struct mesh_result *r, struct mesh_memory *memory)
{
    struct machine m;
    struct mesh_plan *p;
    struct spec s = t->spec;
    const struct mesh_shape *shape = &t->mesh.shape;
    TRY(machine_of_run(t, &m));
    if (best) s.run.train_micro_batch = 0;
    struct assume a = assume_default();
    a.mpi = t->mesh.world != NULL && !comm_job(t->mesh.world).shares_memory;
    const struct cluster c = {.machine = &m, .devices = mesh_ranks(shape), .node = m.node, .assume = &a};
    TRY(mesh_plan_open(&p, &s, &c));
    const struct mesh_variant v = {.mesh = *shape,
                                   .recompute = (enum recompute)s.run.train_recompute,
                                   .micro_batch = s.run.train_micro_batch};
    status st = best ? mesh_plan_given(p, r) : mesh_plan_one(p, &v, r);
    if (st == STATUS_OK) st = mesh_plan_layout_rank(p, r, comm_rank(t->mesh.world), memory);
    mesh_plan_close(p);
    return st;
}

/* On a GPU: the default, a micro-batch of one sequence, can cost half the rate. */
static void advise(const struct trainer *t, const struct mesh_result *now)
{
    struct mesh_result best;
    struct mesh_memory memory;
    if (t->dev.kind == DEV_CPU || now->micros < 2 || predict(t, true, &best, &memory) != STATUS_OK) return;
    if (!best.fits || best.step > 0.9 * now->step) return;
    log_warn("train.micro_batch %lld: %.0f ms per step; %lld would take %.0f ms (predicted): "
             "--train.micro_batch=auto takes what fits",
             (long long)t->spec.run.train_micro_batch, 1e3 * now->step, (long long)best.variant.micro_batch,
             1e3 * best.step);
}

double forecast_predict(const struct trainer *t)
{
    struct mesh_result r;
    struct mesh_memory memory;
    if (predict(t, false, &r, &memory) == STATUS_OK) {
        advise(t, &r);
        return r.step;
    }
    log_detail("forecast  none: %s", status_message());
    return NAN;
}

/* To the run's forecast.jsonl, from which later plans tell their error. */
static void append(const struct trainer *t, const struct mesh_result *r, const struct mesh_memory *memory,
                   double measured)
{
    char axes[MESH_AXES];
    const struct run_spec *run = &t->spec.run;
    const bool cpu = t->dev.kind == DEV_CPU;
    forecasts_append(run->run_dir, &(struct forecast_line){
                                       .machine = cpu ? "cpu" : machine_of_gpu(t->dev.name)->name,
                                       .row = !cpu,
                                       .precision = precision_name((enum precision)run->train_precision),
                                       .axes = mesh_axes(axes, &t->mesh.shape),
                                       .ranks = mesh_ranks(&t->mesh.shape),
                                       .parameters = (double)t->decoder.params.param_count,
                                       .tokens = (double)run->train_batch_tokens,
                                       .predicted_s = r->step,
                                       .measured_s = measured,
                                       .predicted_bytes = mesh_memory_sum(memory),
                                       .measured_bytes = (double)footprint_reserved(t)});
}

void forecast_log(const struct forecast *f, const struct trainer *t, struct observe *o)
{
    struct mesh_result r;
    struct mesh_memory memory;
    char a[32], b[32];
    const double measured = forecast_measured(f);
    if (isnan(measured)) {
        log_detail("forecast  none: a step is measured from the %dth of a process on", FORECAST_SKIP + 1);
        return;
    }
    if (predict(t, false, &r, &memory) != STATUS_OK) {
        log_detail("forecast  none: %s", status_message());
        return;
    }
    log_detail("forecast  step %.4g s predicted, %.4g s measured (%+.0f %%); %s predicted, %s planned%s",
               r.step, measured, 100 * (measured / r.step - 1), text_bytes(a, mesh_memory_sum(&memory)),
               text_bytes(b, (double)memory_peak(&t->memory)),
               t->dev.kind == DEV_CPU ? "; from rates measured on this host" : "");
    append(t, &r, &memory, measured);
    observe_fact(o, "predicted_step_s", r.step);
    observe_fact(o, "measured_step_s", measured);
    observe_fact(o, "predicted_bytes", mesh_memory_sum(&memory));
}
