/* forecast: predicted against measured: what `ingot plan --machine` predicts for a run, and the step time and memory it
 * had. */
#ifndef INGOT_TRAIN_FORECAST_H
#define INGOT_TRAIN_FORECAST_H
#include "observe/observe.h"
#include "train/trainer.h"

/* The latest steps of this process, without the first few, which load libraries, capture and page in. */
enum { FORECAST_SKIP = 3, FORECAST_STEPS = 128 };
struct forecast {
    double seconds[FORECAST_STEPS];
    int64_t seen;
};
void forecast_step(struct forecast *f, double seconds);
/* Median of these steps; NaN without any. */
double forecast_measured(const struct forecast *f);
/* Before the first step: seconds that `ingot plan --machine` predicts for one; NaN, with the reason in the log file,
 * without a prediction. On a host it measures the rates first, which takes some milliseconds. On a GPU it warns if
 * another train.micro_batch that fits is predicted to take a tenth less. */
double forecast_predict(const struct trainer *t);
/* Logs both to the log file, appends them to the run's forecast.jsonl (observe/forecasts.h), and records the facts
 * predicted_step_s, measured_step_s, predicted_bytes and measured_bytes. If there is no prediction (a GPU that
 * machine.def does not list, a run of FORECAST_SKIP steps), logs the reason. On a host it measures the rates first. */
void forecast_log(const struct forecast *f, const struct trainer *t, struct observe *o);
#endif
