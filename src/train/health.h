/* health: judges whether a run still learns, from the losses and gradient norms of its last steps. A checkpoint records
 * the verdict, because weights can be finite and useless all the same: after a divergence one resumes from before it.
 *
 * Recent is the median of the last HEALTH_RECENT steps; long is the median of the up to HEALTH_STEPS steps before them.
 * A run is unsound if any of these holds:
 *   (1) The recent loss is above the lowest long loss by more than a margin: the largest of 6 standard deviations
 *       (estimated from the median difference between steps), a tenth of the lowest long loss, and 0.25 nats.
 *   (2) The recent loss is above 1.25 times the first loss + 0.5 nats: worse than at the start.
 *   (3) The loss of the last step is above the lowest long loss by 3 margins, or above 2 times the first loss + 1 nat:
 *       the damage that such a step has done is not known yet.
 *   (4) The recent gradient norm (before clipping) is above 10 times the long one.
 * In the first steps only the comparisons with the first loss apply. */
#ifndef INGOT_TRAIN_HEALTH_H
#define INGOT_TRAIN_HEALTH_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { HEALTH_STEPS = 64, HEALTH_RECENT = 4, HEALTH_WHY = 160 };

struct health {
    double losses[HEALTH_STEPS], norms[HEALTH_STEPS]; /* rings: step n is at n % HEALTH_STEPS */
    int64_t steps;                                    /* number of steps added */
    double first, lowest;                             /* the first loss; the lowest long loss, NaN without one */
};
/* Adds a step. A zeroed struct has no steps. */
void health_step(struct health *h, double loss, double grad_norm);
/* Returns false if the run is unsound; `why` then says what is wrong, in a few words. */
bool health_sound(const struct health *h, char why[HEALTH_WHY]);
/* Writes and reads "health" of a checkpoint's metadata. What the metadata lack starts empty. NULL: out of memory. */
json_t *health_json(const struct health *h);
void health_read(struct health *h, const json_t *meta);
/* Whether the checkpoint with these metadata was sound when it was saved. One without a verdict counts as sound. */
bool health_of_meta(const json_t *meta, const char **why);
#endif
