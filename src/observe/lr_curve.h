/* lr_curve: what a range test of the learning rate has measured, what follows from it, and its page.
 *
 * The smoothed loss is an exponential moving average, without the bias of its start: a_k = 0.9 a_{k-1} + 0.1 loss_k,
 * smooth_k = a_k / (1 - 0.9^(k+1)).
 *   diverged   the loss is not finite, or the smoothed loss is 1.5 times its lowest or more
 *   lowest     the rate where the smoothed loss is lowest
 *   steepest   the rate, up to there, where it falls fastest per factor of the rate (over LR_CURVE_SPAN steps)
 *   suggested  a tenth of `lowest`: fastai's rule `minimum` */
#ifndef INGOT_OBSERVE_LR_CURVE_H
#define INGOT_OBSERVE_LR_CURVE_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum { LR_CURVE_MOST = 10000, LR_CURVE_LEAST = 10, LR_CURVE_SPAN = 5 };
struct lr_point {
    double lr, loss, smooth, grad_norm;
};
struct lr_curve {
    struct lr_point point[LR_CURVE_MOST];
    int64_t count;
    bool diverged; /* in the last step, whose loss may not be finite and is then not among the points */
    double average, weight; /* of the smoothing: a_k, 1 - 0.9^(k+1) */
};
struct lr_found {
    int64_t lowest, steepest; /* points; -1: the loss never fell */
    double suggested;         /* NaN: none */
    bool rises;               /* behind `lowest` the loss has risen by a tenth of its fall, or diverged: else the test
                                 ended too early to say */
};
/* Adds a step; returns whether the loss has diverged with it. */
bool lr_curve_add(struct lr_curve *c, double lr, double loss, double grad_norm);
struct lr_found lr_curve_find(const struct lr_curve *c);
/* DIR/lr-find.jsonl, a line per step, and DIR/lr-find.html. `run`: whose test it was. */
status lr_curve_write(const struct lr_curve *c, const char *dir, const char *run) WARN_UNUSED;
/* The smoothed loss as a row of at most 60 marks, low to high. Returns buf. */
enum { LR_CURVE_MARKS = 60, LR_CURVE_TEXT = LR_CURVE_MARKS * 3 + 1 };
const char *lr_curve_marks(const struct lr_curve *c, char buf[LR_CURVE_TEXT]);
#endif
