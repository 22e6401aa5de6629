/* waiting: warns when steps wait for data for more than 1 % of their time. */
#ifndef INGOT_TRAIN_WAITING_H
#define INGOT_TRAIN_WAITING_H
#include "spec/spec.h"

enum { WAITING_AFTER = 3 }; /* steps before prefetch has started */
struct waiting {
    double seconds, waited; /* since the last warning */
    int64_t steps;
    int warnings;
};
/* A step took `seconds`, and `waited` of them for its batch. The interval between warnings doubles after each. */
void waiting_step(struct waiting *w, double seconds, double waited, const struct run_spec *r);
#endif
