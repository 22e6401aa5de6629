/* predict: the time of a step on this machine's device. */
#ifndef INGOT_PLAN_PREDICT_H
#define INGOT_PLAN_PREDICT_H
#include "spec/spec.h"

struct prediction {
    double step;      /* seconds; NaN: not known */
    const char *from; /* "rates measured on this host"; "" when not known */
    const char *machine; /* the row of machine.def; "" when not known */
    char why[256];    /* why it is not known */
};
/* On a host: measures its rates for some milliseconds. On a GPU: uses its row of machine.def. If the run does not fit,
 * or the GPU is absent or not in the table, the step is not known, and the result STATUS_OK. STATUS_OUT_OF_MEMORY:
 * memory was refused. */
status predict_here(const struct spec *s, struct prediction *p) WARN_UNUSED;
#endif
