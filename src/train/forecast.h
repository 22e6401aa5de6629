/* Predicted beside measured: what `ingot plan --machine` would have said of a run, against how long its steps took and what it reserved. */
#ifndef INGOT_TRAIN_FORECAST_H
#define INGOT_TRAIN_FORECAST_H
#include "observe/observe.h"
#include "train/trainer.h"

/* The latest steps of this process but the first few, which load libraries, capture and page in. */
enum { FORECAST_SKIP = 3, FORECAST_STEPS = 128 };
struct forecast {
    double seconds[FORECAST_STEPS];
    int64_t seen;
};
void forecast_step(struct forecast *f, double seconds);
/* Median of the steps kept; NaN before there is one. */
double forecast_measured(const struct forecast *f);
/* Logs both, and records them as the facts predicted_step_s, measured_step_s, predicted_bytes and measured_bytes; or logs in one line why
 * nothing is predicted: a GPU that machine.def does not know, a run of FORECAST_SKIP steps. On a host its rates are measured first. */
void forecast_tell(const struct forecast *f, const struct trainer *t, struct observe *o);
#endif
