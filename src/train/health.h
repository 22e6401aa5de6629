/* health: whether a run learns, judged by the losses and gradient norms of its last steps. A checkpoint records the
 * verdict, because weights may be finite and lost all the same: after a divergence one goes back to before it.
 *
 * Not sound is, with the median of the last HEALTH_RECENT steps against the up to HEALTH_STEPS before them:
 *   a loss above the lowest long median by more than a margin: 6 standard deviations (of differences between steps,
 *   by their median), a tenth of it, and 0.25 nats; or above 1.25 times the first loss and 0.5 nats: worse than at the
 *   start
 *   a gradient norm (before clipping) above 10 times the long median
 * and a last step whose loss is above by 3 margins, or above 2 times the first and 1: nobody knows yet what it has
 * done. In the first steps, where little is known, only the comparison with the start counts. */
#ifndef INGOT_TRAIN_HEALTH_H
#define INGOT_TRAIN_HEALTH_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { HEALTH_STEPS = 64, HEALTH_RECENT = 4, HEALTH_WHY = 160 };

struct health {
    double losses[HEALTH_STEPS], norms[HEALTH_STEPS]; /* rings, of step n at n % HEALTH_STEPS */
    int64_t steps;                                    /* that were seen */
    double first, lowest;                             /* the first loss; the lowest long median: NaN without one */
};
/* Adds a step; zeroed: the first. */
void health_step(struct health *h, double loss, double grad_norm);
/* False: `why` gets what is wrong, in a few words. */
bool health_sound(const struct health *h, char why[HEALTH_WHY]);
/* As a checkpoint stores it ("health" in its meta; NULL: no memory), and back; what is not there begins anew. */
json_t *health_json(const struct health *h);
void health_read(struct health *h, const json_t *meta);
/* Whether a checkpoint with this meta was saved by a run that learned. One that does not say it counts as such. */
bool health_of_meta(const json_t *meta, const char **why);
#endif
