#include "optim/lr_schedule.h"
#include "spec/ramp.h"
#include <math.h>

double schedule_lr(const struct run_spec *r, int64_t step, int64_t steps_total)
{
    double s = (double)step, after = s + 1, warmup = (double)r->optim_warmup_steps, n = (double)steps_total,
           f = r->optim_min_ratio;
    if (r->train_batch_schedule[0]) {
        const struct ramp batch = ramp_batch(r);
        const double whole = (double)r->train_batch_tokens;
        s = (double)ramp_tokens(&batch, step) / whole;
        after = (double)ramp_tokens(&batch, step + 1) / whole;
        n = (double)ramp_tokens(&batch, steps_total) / whole;
    }
    if (s < warmup) return r->optim_lr * fmin(after, warmup) / warmup;
    double x = n > warmup ? fmin((s - warmup) / (n - warmup), 1) : 1, part = 1;
    switch ((enum schedule)r->optim_schedule) {
    case SCHEDULE_COSINE: part = f + (1 - f) * (1 + cos(3.14159265358979323846 * x)) / 2; break;
    case SCHEDULE_LINEAR: part = 1 - (1 - f) * x; break;
    case SCHEDULE_WSD: {
        double length = n * r->optim_decay_fraction, begin = n - length;
        if (s > begin && length > 0) part = 1 - (1 - f) * fmin((s - begin) / length, 1);
        break;
    }
    case SCHEDULE_CONSTANT: break;
    }
    return r->optim_lr * part;
}
