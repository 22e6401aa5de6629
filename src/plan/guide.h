/* guide: computes the tables that training guides print: batch per model size, memory per size and precision, speed on
 * 8 to 16,384 devices, power per kind of device; and which models fit a machine. */
#ifndef INGOT_PLAN_GUIDE_H
#define INGOT_PLAN_GUIDE_H
#include "plan/duration.h"
#include "plan/outlook.h"

struct guide_args {
    const char *machine;        /* as cluster_parse reads it */
    const char *compare;        /* for power: kinds of devices, "h100,b200"; NULL: all whose power is known */
    struct plan_command command;
    struct outlook_args outlook;
    bool json;
};
/* which: "batch", "memory", "speed" or "power"; STATUS_CONFIG lists them. Sizes are the dense presets', with the
 * settings of the run; speed and power are of its model. */
status guide_print(const struct spec *s, const char *which, const struct guide_args *a) WARN_UNUSED;
/* Each preset and the run's own model: whether it fits the machine, its fastest mesh; and the largest model of the
 * 70B's proportions. STATUS_OUT_OF_MEMORY: none fits. */
status capacity_print(const struct spec *s, const struct guide_args *a) WARN_UNUSED;
#endif
