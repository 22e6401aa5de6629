/* alerts: what the loop tells alert_watch: where the ranks run, what each step took, how the run ends. */
#ifndef INGOT_TRAIN_ALERTS_H
#define INGOT_TRAIN_ALERTS_H
#include "observe/alert_watch.h"
#include "train/stop.h"
#include "train/trainer.h"

struct alerts {
    struct alert_watch *watch;  /* NULL: not on this rank, or log.alerts=false */
    struct alert_place *places; /* [ranks], owned */
    struct alert_step step;     /* the last, not yet handed over */
    double save_ms;             /* in it, training waited for a checkpoint; NaN: not known */
    double cpu_s;               /* of the process at its begin */
};
/* Collective. Without the watch the run goes on; the log says why there is none. */
status alerts_open(struct alerts *a, const struct trainer *t, const struct stop *s) WARN_UNUSED;
/* A step of this rank begins, and is done: what it took. */
void alerts_step_begin(struct alerts *a);
struct rank_time alerts_step_end(const struct alerts *a, double seconds, double wait_s, double data_s);
void alerts_note(struct alerts *a, int64_t step, const struct step_result *s, double seconds);
/* After the look at signals, which gathers the ranks' times: hands the step over. */
void alerts_step(struct alerts *a, const struct stop *s);
/* The run ends. saved_step: of the last checkpoint; -1: none. seconds: of the `steps` of this process. */
void alerts_close(struct alerts *a, status st, const char *message, const struct trainer *t, int64_t saved_step,
                  double seconds, int64_t steps);
#endif
