/* plan_run: what `ingot plan` says about whole runs: the options of plan_run.def. */
#ifndef INGOT_CLI_PLAN_RUN_H
#define INGOT_CLI_PLAN_RUN_H
#include "base/flags.h"
#include "plan/guide.h"
#include "plan/mesh_why.h"
#include "plan/purchase.h"
#include "plan/simulate_plan.h"

struct plan_run {
    bool simulate, capacity, predicted;
    double jitter, mtbf, detect, restart, stall, storage, interval, pue;
    int64_t seed;
    const char *stragglers, *timeline, *tokens, *deadline, *compare, *price, *why, *html, *table;
    /* of plan_run_check */
    struct purchase_args purchase;  /* with the outlook's */
    struct simulate_spread spread;
};
#define PLAN_RUN_FLAGS(o)                                                                                    \
    FLAG("simulate", &(o)->simulate), FLAG("jitter", &(o)->jitter), FLAG("stragglers", &(o)->stragglers),    \
        FLAG("seed", &(o)->seed), FLAG("timeline", &(o)->timeline), FLAG("mtbf", &(o)->mtbf),                \
        FLAG("detect", &(o)->detect), FLAG("restart", &(o)->restart), FLAG("stall", &(o)->stall),            \
        FLAG("storage", &(o)->storage), FLAG("interval", &(o)->interval), FLAG("tokens", &(o)->tokens),      \
        FLAG("deadline", &(o)->deadline), FLAG("compare", &(o)->compare), FLAG("price", &(o)->price),        \
        FLAG("pue", &(o)->pue), FLAG("why", &(o)->why), FLAG("html", &(o)->html),          \
        FLAG("table", &(o)->table), FLAG("capacity", &(o)->capacity), FLAG("predicted", &(o)->predicted)
struct plan_run plan_run_default(void);
/* Reads the values. STATUS_CONFIG: one is no number, out of range, or without the option that it belongs to. */
status plan_run_check(struct plan_run *o, const char *machine) WARN_UNUSED;
/* True: an option asks for something that plan_run_print answers. */
bool plan_run_asked(const struct plan_run *o);
status plan_run_print(struct plan_run *o, const struct spec *s, const char *machine, const struct plan_command *command,
                      bool json) WARN_UNUSED;
#endif
