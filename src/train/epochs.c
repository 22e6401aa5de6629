#include "train/epochs.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>

/* Epochs of each source in the first `steps` steps. */
static void epochs_of(struct epochs *e, const struct data_sources *data, const struct trainer *t,
                      int64_t steps, double out[MIXTURE_SOURCES])
{
    const struct run_spec *r = &t->spec.run;
    const int64_t per_step = r->train_batch_tokens / r->train_sequence_length;
    samples_epochs(data->samples, &e->cursor, skips_batch(&t->lineage.skips, steps) * per_step, out);
}

void epochs_log(struct epochs *e, const struct data_sources *data, const struct trainer *t)
{
    double now[MIXTURE_SOURCES], before[MIXTURE_SOURCES];
    epochs_of(e, data, t, t->step - 1, before);
    epochs_of(e, data, t, t->step, now);
    for (int i = 0; i < samples_sources(data->samples); i++)
        if (floor(now[i]) > floor(before[i]))
            log_info("source    %s: epoch %.0f is over at step %lld", data->sources->list_of[i].name,
                     floor(now[i]), (long long)t->step);
}

void epochs_facts(struct epochs *e, const struct data_sources *data, const struct trainer *t,
                  struct observe *o)
{
    double epochs[MIXTURE_SOURCES];
    char name[SOURCE_NAME + 16];
    if (data->samples == NULL) return;
    epochs_of(e, data, t, t->step, epochs);
    for (int i = 0; i < samples_sources(data->samples); i++) {
        snprintf(name, sizeof name, "epochs.%s", data->sources->list_of[i].name);
        observe_fact(o, name, epochs[i]);
    }
}
