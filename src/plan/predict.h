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
/* On a host, after measuring its rates for some milliseconds; on a GPU, by its row of machine.def. Not known for what
 * does not fit, and for a GPU that is not here or not in the table: STATUS_OK. STATUS_FIT: memory was refused. */
status predict_here(const struct spec *s, struct prediction *p) WARN_UNUSED;
#endif
