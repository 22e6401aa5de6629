/* learn: what variants of one run learnt. Their runs begin with the same weights and read the same order, so losses are
 * compared in pairs, step by step, with those of the first variant: what the batches have in common falls out.
 *
 * Over the last n steps the difference d has the mean m and the standard error sqrt(sum (d - m)^2 / (n - 1) / n). It says
 * how well these runs' difference is known, as if steps were independent; it does not say what other seeds would give.
 * With S seeds the second standard error does: that of the S means. */
#ifndef INGOT_OBSERVE_LEARN_H
#define INGOT_OBSERVE_LEARN_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum { LEARN_VARIANTS = 32, LEARN_SEEDS = 32, LEARN_NAME = 64 };

struct learn_variant {
    char name[LEARN_NAME];
    const char *dirs[LEARN_SEEDS]; /* run directories, one per seed: only metrics.jsonl and exit.json need be there */
    int seeds;                     /* at most those of the first variant */
};
/* Not known: NaN. Nats per token, seconds, joules; means over seeds. */
struct learn_row {
    char state[64];                   /* "finished", "failed (exit 6) at step 12" */
    int64_t steps;                    /* of the run that has the fewest */
    bool same;                        /* not the first, and every loss is equal to the first variant's */
    double loss;                      /* mean of the last steps */
    double minus, error, error_seeds; /* paired mean of (loss - the first's), its two standard errors */
    double held_out, held_out_minus, held_out_error; /* last evaluation; standard error over seeds */
    double tokens_per_s;              /* median */
    double train_s;                   /* sum of the steps' times, without evaluations and checkpoints */
    double joules;                    /* that the GPUs' counters have counted in the whole run */
    /* Tokens, and seconds as in train_s, until the held-out loss was the last one of the first variant, between two
     * evaluations on a straight line. NaN: with one of the seeds it never was, or the first evaluation was below. */
    double reach_tokens, reach_s;
};
/* Reads all runs and fills rows[count]. `last`: steps that are compared, those that end the first variant's run. `page`:
 * writes the table and the curves of the first seed there; NULL: no page. STATUS_DATA when the first variant has less
 * than `last` steps with a loss. */
status learn_compare(const struct learn_variant *v, int count, int64_t last, struct learn_row *rows,
                     const char *page) WARN_UNUSED;
#endif
