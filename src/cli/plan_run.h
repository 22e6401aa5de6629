/* plan_run: what `ingot plan` says about whole runs: the options of plan_run.def. */
#ifndef INGOT_CLI_PLAN_RUN_H
#define INGOT_CLI_PLAN_RUN_H
#include "base/flags.h"
#include "plan/simulate_plan.h"

struct plan_run {
    bool simulate;
    double jitter, mtbf, detect, restart, stall, storage, interval;
    int64_t seed;
    const char *stragglers, *timeline, *tokens;
    struct outlook_args outlook;   /* of plan_run_check */
    struct simulate_spread spread; /* the same */
};
#define PLAN_RUN_FLAGS(o)                                                                                              \
    FLAG("simulate", &(o)->simulate), FLAG("jitter", &(o)->jitter), FLAG("stragglers", &(o)->stragglers),              \
        FLAG("seed", &(o)->seed), FLAG("timeline", &(o)->timeline), FLAG("mtbf", &(o)->mtbf),                          \
        FLAG("detect", &(o)->detect), FLAG("restart", &(o)->restart), FLAG("stall", &(o)->stall),                      \
        FLAG("storage", &(o)->storage), FLAG("interval", &(o)->interval), FLAG("tokens", &(o)->tokens)
struct plan_run plan_run_default(void);
/* Reads the values. STATUS_CONFIG: one is no number, out of range, or without the option that it belongs to. */
status plan_run_check(struct plan_run *o, const char *machine) WARN_UNUSED;
/* True: an option asks for something that plan_run_print answers. */
bool plan_run_asked(const struct plan_run *o);
/* assume: NULL: nothing. */
status plan_run_print(const struct plan_run *o, const struct spec *s, const char *machine,
                      const struct assume *assume, bool json) WARN_UNUSED;
#endif
