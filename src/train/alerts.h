/* alerts: passes what the loop knows to alert_watch: where the ranks run, the time of each step, how the run ends. */
#ifndef INGOT_TRAIN_ALERTS_H
#define INGOT_TRAIN_ALERTS_H
#include "observe/alert_watch.h"
#include "train/stop.h"
#include "train/trainer.h"

struct alerts {
    struct alert_watch *watch;  /* NULL: not on this rank, or log.alerts=false */
    struct alert_place *places; /* [ranks]: where each rank runs; owned */
    struct alert_step step;     /* the last step, not yet passed to the watch */
    double save_ms;             /* milliseconds that training waited for a checkpoint in this step; NaN: not known */
    double cpu_s;               /* CPU seconds of the process when the step began */
};
/* Collective. If the watch cannot start, the run continues without it, and the log says why. */
status alerts_open(struct alerts *a, const struct trainer *t, const struct stop *s) WARN_UNUSED;
/* Call when a step of this rank begins and ends. alerts_step_end returns the times of the step; alerts_note stores its
 * results. */
void alerts_step_begin(struct alerts *a);
struct rank_time alerts_step_end(const struct alerts *a, double seconds, double wait_s, double data_s);
void alerts_note(struct alerts *a, int64_t step, const struct step_result *s, double seconds);
/* Call after stop_look, which gathers the ranks' step times. Passes the step to the alert thread. */
void alerts_step(struct alerts *a, const struct stop *s);
/* Call when the run ends. saved_step: step of the last checkpoint; -1: there is none. seconds: time that the `steps` of
 * this process took. */
void alerts_close(struct alerts *a, status st, const char *message, const struct trainer *t, int64_t saved_step,
                  double seconds, int64_t steps);
#endif
