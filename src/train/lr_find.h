/* lr_find: a range test of the learning rate (Smith, arXiv:1506.01186). The run's model takes some steps on the run's
 * data, from fresh weights or from a checkpoint, while the rate rises by the same factor each step:
 *   lr_k = low (high / low)^(k / (steps - 1))        without the run's warm-up and schedule
 * Nothing is saved: neither weights nor a record that a resume would read. */
#ifndef INGOT_TRAIN_LR_FIND_H
#define INGOT_TRAIN_LR_FIND_H
#include "comm/comm.h"
#include "observe/lr_curve.h"
#include "spec/spec.h"

struct lr_find_options {
    double low, high; /* the rate of the first and of the last step */
    int64_t steps;
    bool resume;      /* begin with the weights and moments of the run's checkpoint, and the data behind it: */
    int64_t resume_step; /* of this step; -1: the newest */
    bool accept_data; /* although the data are not those of the checkpoint */
    const char *isa;
    struct comm *comm; /* NULL: one rank */
};
/* Steps until the loss has diverged (lr_curve.h) or all are done. Fills `out`, the same on all ranks. STATUS_CONFIG
 * when `resume` finds no checkpoint. */
status lr_find(const struct spec *spec, const struct lr_find_options *o, struct lr_curve *out) WARN_UNUSED;
#endif
