#include "cli/demo_settings.h"

#include <math.h>

enum { EVALS_MAX = 3, STEPS_MIN = 10, VOCAB_MIN = 320, BYTES_PER_ENTRY = 100, LOG_LINES = 200 };
#define EVALS_SHARE  0.08 /* of the time: evaluations on the way, with their samples */
#define SAVE_EVERY_S 60.0
#define MARGIN       0.97 /* steps are not all alike */

struct demo_settings demo_settings_of(enum dev_kind kind)
{
    if (kind == DEV_CUDA)
        return (struct demo_settings){.layers = 12,
                                      .hidden = 768,
                                      .ffn = 2048,
                                      .heads = 12,
                                      .batch_tokens = 16384,
                                      .lr = 6e-3,
                                      .minutes = 0.6,
                                      .epochs_max = 3};
    return (struct demo_settings){.layers = 2,
                                  .hidden = 256,
                                  .ffn = 704,
                                  .heads = 4,
                                  .batch_tokens = 2048,
                                  .micro_batch = 8,
                                  .lr = 1e-2,
                                  .minutes = 2,
                                  .epochs_max = 10};
}

int32_t demo_vocab_size(size_t text_bytes)
{
    const size_t entries = text_bytes / BYTES_PER_ENTRY / 64 * 64;
    return entries < VOCAB_MIN ? VOCAB_MIN : entries > DEMO_VOCAB_MAX ? DEMO_VOCAB_MAX : (int32_t)entries;
}

struct demo_length demo_length_of(const struct demo_settings *s, const struct demo_times *t, double minutes,
                                  int64_t train_tokens)
{
    const double whole = minutes * 60 * MARGIN, eval = t->eval + t->sample;
    const double evals = fmin(EVALS_MAX, floor(whole * EVALS_SHARE / fmax(eval, 1e-9)));
    const double saves =
        1 + floor(whole / SAVE_EVERY_S / 1.5); /* the last minute and a half has the last one alone */
    const double left = whole - evals * eval - saves * t->save - t->last_eval - t->last_sample;
    const double by_time = fmax(STEPS_MIN, floor(left / t->step));
    const double by_epochs =
        fmax(STEPS_MIN, floor((double)(s->epochs_max * train_tokens) / (double)s->batch_tokens));
    struct demo_length l = {.steps = (int64_t)fmin(by_time, by_epochs), .by_epochs = by_epochs < by_time};
    l.warmup_steps = l.steps / 12 + 1;
    l.eval_every = evals > 0 ? (int64_t)ceil((double)l.steps / (evals + 1)) : 0;
    l.ckpt_every = saves > 1 ? (int64_t)ceil((double)l.steps / saves) : 0;
    l.log_every = l.steps / LOG_LINES + 1;
    return l;
}
