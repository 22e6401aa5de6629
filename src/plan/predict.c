#include "plan/predict.h"
#include "plan/calibrate.h"
#include "plan/mesh_plan.h"

#include <math.h>
#include <stdio.h>

/* One device of a machine: its variant is the spec's own. */
static status step_of(const struct spec *s, const struct machine *m, struct mesh_result *r)
{
    struct mesh_plan *p;
    const struct cluster c = {.machine = m, .devices = 1, .node = 1};
    TRY(mesh_plan_open(&p, s, &c));
    status st = mesh_plan_given(p, r);
    mesh_plan_close(p);
    if (st == STATUS_OK && !r->fits) st = FAIL(STATUS_CONFIG, "it does not fit");
    return st;
}

static status on_host(struct spec *s, const struct dev *dev, struct mesh_result *r)
{
    struct ops ops;
    struct machine m;
    struct cluster host;
    const struct choose_ops choice = plan_ops(s, NULL);
    TRY(cluster_parse("cpu", &host));
    m = *host.machine;
    m.memory_bytes = plan_bytes(s, dev, NULL);
    TRY(step_of(s, &m, r)); /* what does not fit is not measured */
    TRY(choose_open(&ops, dev->kind, NULL, &choice));
    TRY(calibrate_host(
        &(struct calibrate_args){.ops = &ops,
                                 .model = &s->model,
                                 .precision = (enum precision)s->run.train_precision,
                                 .tokens = r->variant.micro_batch * s->run.train_sequence_length},
        &m));
    m.memory_bytes = plan_bytes(s, dev, NULL);
    return step_of(s, &m, r);
}

static status on_gpu(const struct spec *s, const struct dev *dev, struct mesh_result *r)
{
    const struct machine *row = machine_of_gpu(dev->name);
    if (row == NULL) return FAIL(STATUS_CONFIG, "there are no rates of a %s", dev->name);
    struct machine m = *row;
    m.memory_bytes = plan_bytes(s, dev, NULL);
    return step_of(s, &m, r);
}

status predict_here(const struct spec *s, struct prediction *p)
{
    struct spec own = *s;
    struct dev dev;
    struct mesh_result r;
    *p = (struct prediction){.step = NAN, .from = "", .machine = ""};
    status st = dev_open(&dev, plan_device(s));
    if (st == STATUS_OK) {
        st = dev.kind == DEV_CPU ? on_host(&own, &dev, &r) : on_gpu(&own, &dev, &r);
        if (st == STATUS_OK) {
            p->step = r.step;
            p->machine = dev.kind == DEV_CPU ? "cpu" : machine_of_gpu(dev.name)->name;
            p->from = dev.kind == DEV_CPU ? "rates measured on this host" : "its row of machine.def";
        }
        dev_close(&dev);
    }
    if (st == STATUS_OUT_OF_MEMORY) return st; /* memory was refused: nothing is known of the plan, either */
    if (st != STATUS_OK) snprintf(p->why, sizeof p->why, "%s", status_message());
    return STATUS_OK;
}
