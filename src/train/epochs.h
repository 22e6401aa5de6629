/* epochs: how often a run has read each of its sources, as log lines and as facts of the report. */
#ifndef INGOT_TRAIN_EPOCHS_H
#define INGOT_TRAIN_EPOCHS_H
#include "observe/observe.h"
#include "train/data_sources.h"
#include "train/trainer.h"

struct epochs {
    struct mixture_cursor cursor; /* of the step's samples */
};
/* Logs the sources that start another epoch in the step that is done. */
void epochs_log(struct epochs *e, const struct data_sources *data, const struct trainer *t);
/* Writes the epochs of each source so far; without samples nothing. */
void epochs_facts(struct epochs *e, const struct data_sources *data, const struct trainer *t, struct observe *o);
#endif
