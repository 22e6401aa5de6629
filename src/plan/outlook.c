#include "plan/outlook.h"
#include "plan/mesh_plan_int.h"

#include <math.h>
#include <string.h>

struct outlook_args outlook_default(void)
{
    return (struct outlook_args){.pue = 1,
                                 .mtbf = GOODPUT_MTBF_HOURS,
                                 .detect = OUTLOOK_DETECT,
                                 .restart = OUTLOOK_RESTART,
                                 .stall = -1};
}

static void set_power(const char *machine, struct outlook *o)
{
    static const struct {
        const char *machine;
        double device, system;
    } rows[] = {
#define POWER(name, device, system) {#name, device, system},
#include "plan/power.def"
#undef POWER
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].machine, machine) != 0) continue;
        o->device_watts = rows[i].device, o->system_watts = rows[i].system;
        o->system = rows[i].system > 0;
        o->watts = o->system ? rows[i].system : rows[i].device;
    }
}

/* How long training stands still for a save with ckpt.async: for the copy of the state. GPUs copy beside
 * the next step until its optimizer begins (train/snapshot.h). */
static double copy_stall(const struct mesh_plan *p, const struct outlook *o)
{
    const double passes = 0.9; /* of a step: forward and backward, an assumption */
    const double copy = o->checkpoint_bytes / o->job.devices / p->cluster.machine->host_rate;
    return p->cluster.machine->kind == DEV_CUDA ? fmax(0, copy - passes * o->step) : copy;
}

/* Those whose host does not hold the copies wait until a checkpoint is written. What the writing beside training takes
 * from it, on links of several hosts and storage that training uses, has not been measured and is not counted. */
static status set_saves(const struct mesh_plan *p, const struct mesh_result *r, const struct outlook_args *a,
                        struct outlook *o)
{
    const double took = o->checkpoint_bytes / o->storage;
    double copies;
    TRY(mesh_save_copies(p, r, &copies));
    const bool beside = p->spec.run.ckpt_async && mesh_save_misses(p, r, copies) == 0;
    o->job.stall = a->stall >= 0 ? a->stall : beside ? copy_stall(p, o) : took;
    o->job.write = a->stall >= 0 || beside ? took : 0;
    o->job.restart = a->restart + took;
    return STATUS_OK;
}

/* Saves and lost work at this interval, as a share of the time. */
static double loss_at(const struct goodput_job *j, double interval)
{
    const struct goodput g = goodput_of(j, interval);
    return g.stalls + g.repeats;
}

/* The best interval. Where it costs less than OUTLOOK_LOSS, the longest that costs no more: saves that nearly never help
 * only keep the storage busy. In whole steps, of `steps` at most: one checkpoint at the end. */
static double interval_of(const struct goodput_job *j, double step, double steps)
{
    enum { HALVINGS = 60 };
    double low = goodput_interval(j), high = low;
    if (isinf(low)) return low;
    if (loss_at(j, low) < OUTLOOK_LOSS) {
        while (high < 1e15 && loss_at(j, high) < OUTLOOK_LOSS) low = high, high *= 2;
        for (int i = 0; i < HALVINGS; i++) {
            const double middle = (low + high) / 2;
            *(loss_at(j, middle) < OUTLOOK_LOSS ? &low : &high) = middle;
        }
    }
    return step * fmin(fmax(1, ceil(low / step - 1e-9)), fmax(1, ceil(steps)));
}

status outlook_of(const struct mesh_plan *p, const struct mesh_result *r, double step,
                  const struct outlook_args *a, struct outlook *out)
{
    const struct run_spec *run = &p->spec.run;
    const struct mesh_shape *m = &r->variant.mesh;
    const double devices = mesh_ranks(m), batch = (double)run->train_batch_tokens;
    if (a->tokens == 0 && run->train_steps == SPEC_ENDLESS)
        return FAIL(STATUS_CONFIG, "the run has no length: give --tokens, train.tokens or train.steps");
    struct outlook o = {.step = step};
    o.steps = a->tokens > 0 ? ceil(a->tokens / batch) : (double)spec_step_count(&p->spec);
    o.tokens = a->tokens > 0 ? o.steps * batch : spec_token_count(&p->spec);
    const double whole = o.tokens / batch; /* steps, in those of the largest batch */
    o.checkpoint_bytes = mesh_checkpoint_bytes(p);
    o.storage = a->storage > 0 ? a->storage : devices * OUTLOOK_STORAGE;
    o.job =
        (struct goodput_job){.devices = devices, .mtbf = a->mtbf * 3600, .detect = a->detect, .least = step};
    TRY(set_saves(p, r, a, &o));
    o.goodput = goodput_of(&o.job, a->interval > 0 ? a->interval : interval_of(&o.job, step, whole));
    o.seconds = o.goodput.trains > 0 ? whole * step / o.goodput.trains : INFINITY;
    o.device_hours = o.seconds * devices / 3600;
    o.money = a->price * o.device_hours;
    set_power(p->cluster.machine->name, &o);
    o.joules = o.watts * a->pue * o.device_hours * 3600;
    o.failures = o.goodput.failures * o.seconds;
    o.checkpoints = fmax(0, ceil(whole * step / o.goodput.interval - 1e-9) - 1);
    /* Young: stalls and lost work cost sqrt(2 stall rate) of the time. */
    const double one = 0.01, rate = devices / o.job.mtbf;
    o.storage_one = o.checkpoint_bytes * 2 * rate / (one * one);
    o.kept_bytes = o.checkpoint_bytes * (double)(run->ckpt_keep + 1);
    *out = o;
    return STATUS_OK;
}
