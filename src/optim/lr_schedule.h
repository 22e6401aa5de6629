/* lr_schedule: the learning rate, a pure function of the keys of the run and the step: there is no state. A new one is
 * a word of SCHEDULE_WORDS (spec/words.def), and where the compiler stops.
 *
 * With s = 0 for the first step, W warmup steps, N steps in all, f = min_ratio, x = (s - W) / (N - W):
 *   warmup    (s + 1) / W        for s < W (the first step already moves)
 *   cosine    f + (1 - f)(1 + cos(pi x)) / 2
 *   linear    1 - (1 - f) x
 *   wsd       1 until N (1 - decay_fraction), then linear to f
 *   constant  1
 *
 * With train.batch_schedule s and N count tokens, in units of train.batch_tokens, and (s + 1) is s after the step. */
#ifndef INGOT_OPTIM_LR_SCHEDULE_H
#define INGOT_OPTIM_LR_SCHEDULE_H
#include "spec/spec.h"
double schedule_lr(const struct run_spec *r, int64_t step, int64_t steps_total);
#endif
