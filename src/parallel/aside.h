/* aside: what ranks exchange while something is computed, on a stream of a card beside that of the step.
 *
 * All exchanges of a rank that are under way beside its computing are queued here, in the same order on all ranks: two that ranks see in
 * different order, on streams of their own, could wait for each other. For the same reason an exchange on the step's stream comes after
 * aside_wait of all that was queued here. Exchanges here leave the card's multiprocessors to what is computed: copy engines move all but what is
 * little (comm/cuda_near.c).
 * Ops may be queued here that need no workspace, which is the step's.
 *
 * On the host there is nothing beside: all is done in the order of the calls. */
#ifndef INGOT_PARALLEL_ASIDE_H
#define INGOT_PARALLEL_ASIDE_H
#include "dev/dev.h"
#include "ops/ops.h"

struct aside {
    dev_stream main;        /* of the step, not owned; NULL: the host */
    struct stream queue;
    struct event behind, all;
};
status aside_open(struct aside *a, dev_stream main) WARN_UNUSED;
void aside_close(struct aside *a);
/* What is queued on *s from now on comes after all that is queued on the step's stream. */
status aside_enter(struct aside *a, dev_stream *s) WARN_UNUSED;
/* The step's stream goes on behind all that was queued aside: something, while a graph is captured. */
status aside_join(struct aside *a) WARN_UNUSED;
/* A mark behind all that was queued aside, and the step's stream goes on behind a mark. Marks are the caller's: aside_mark_open, _close. */
status aside_mark(struct aside *a, struct event *mark) WARN_UNUSED;
status aside_wait(struct aside *a, const struct event *mark) WARN_UNUSED;
status aside_mark_open(const struct aside *a, struct event *mark) WARN_UNUSED;
void aside_mark_close(const struct aside *a, struct event *mark);
#endif
