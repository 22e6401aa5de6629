/* What `ingot demo` trains, and how long: chosen from the device, the text and measured times. Pure functions.
 * docs/perf-log/2026-11-checks.md has the measurements behind the numbers. */
#ifndef INGOT_CLI_DEMO_SETTINGS_H
#define INGOT_CLI_DEMO_SETTINGS_H
#include "dev/dev.h"
#include <stddef.h>
#include <stdint.h>

struct demo_settings {
    int64_t layers, hidden, ffn, heads;
    int64_t batch_tokens, micro_batch; /* sequences; 0: as many as fit */
    double lr, minutes;   /* minutes: of the training, unless the user says how many */
    int64_t epochs_max;   /* more only learn the text by heart */
};
enum { DEMO_SEQUENCE = 256, DEMO_EVAL_TOKENS = 8192, DEMO_TEXT_MIN = 16384, DEMO_VOCAB_MAX = 8192 };
struct demo_settings demo_settings_of(enum dev_kind kind);
/* Tokens of the tokenizer for a text of so many bytes: fewer for a small one. */
int32_t demo_vocab_size(size_t text_bytes);

/* Seconds of the parts of the training, measured. */
struct demo_times {
    double step;
    double eval, sample;          /* on the way */
    double last_eval, last_sample; /* after the last step */
    double save;
};
struct demo_length {
    int64_t steps, warmup_steps, eval_every, ckpt_every, log_every;
    bool by_epochs; /* the text ends it, not the time */
};
/* As many steps as fit into `minutes` with evaluations, samples and saves; `train_tokens`: of the text. */
struct demo_length demo_length_of(const struct demo_settings *s, const struct demo_times *t, double minutes,
                                  int64_t train_tokens);
#endif
