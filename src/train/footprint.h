/* footprint: memory that a run really takes, beside what its layout planned. */
#ifndef INGOT_TRAIN_FOOTPRINT_H
#define INGOT_TRAIN_FOOTPRINT_H
#include "observe/observe.h"
#include "train/trainer.h"

double footprint_rss(void); /* resident bytes of this process; NaN: not known */
/* Bytes that arenas and communication buffers really got from the system; memory_peak is what the layout planned. */
size_t footprint_reserved(const struct trainer *t);
/* Planned and measured bytes, in all and by category, as facts of the report. */
void footprint_facts(const struct trainer *t, struct observe *o);
#endif
