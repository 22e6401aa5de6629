/* simulate_plan: a simulation of a planned mesh, printed as text or JSON. */
#ifndef INGOT_PLAN_SIMULATE_PLAN_H
#define INGOT_PLAN_SIMULATE_PLAN_H
#include "plan/duration.h"
#include "plan/outlook.h"
#include "plan/simulate.h"

/* The simulator's view of a planned mesh. simulate_plan_close frees what it owns. */
struct simulate_plan {
    struct simulate_step_args args;
    struct pipeline_schedule schedule;  /* owned */
    struct pipeline_stage_time *stages; /* owned */
};
/* `r`: of this plan. STATUS_CONFIG, STATUS_OUT_OF_MEMORY as of mesh_plan_one. Call simulate_plan_close after
 * success. */
status simulate_plan_open(struct simulate_plan *s, struct mesh_plan *p, const struct mesh_result *r) WARN_UNUSED;
void simulate_plan_close(struct simulate_plan *s);

struct simulate_print_args {
    const char *machine;
    struct plan_command command;
    struct outlook_args outlook;
    struct simulate_spread spread;
    const char *timeline;       /* a file to write; NULL: none */
    bool json;
};
/* `ingot plan RUN.yaml --machine NAME --simulate`: the mesh of parallel.*, or the fastest that fits. Without a length
 * the run takes 30 days. */
status simulate_print(const struct spec *s, const struct simulate_print_args *a) WARN_UNUSED;
#endif
