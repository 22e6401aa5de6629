/* rates: learning rates and weight decay by group of weights (optim.lr_scale, optim.decay_scale; spec/factors.h).
 *
 * Each row of the parameter table gets its two factors. The optimizer's chunks then fall into runs, consecutive chunks
 * with the same factors, and the op `update` is called once for each run. Norm and clip factor are those of all
 * gradients, as before. Without the two keys there is one call, and bits are what they were. */
#ifndef INGOT_OPTIM_RATES_H
#define INGOT_OPTIM_RATES_H
#include "parallel/exec.h"
#include "spec/spec.h"

struct update_run {
    int64_t chunk; /* the first chunk; the run ends where the next one begins */
    double lr_scale, decay;
};
/* Sets rate and decay of every row. STATUS_CONFIG when an entry names no weight of the model. */
status rates_set(struct params *p, const struct run_spec *spec) WARN_UNUSED;
/* Call after rates_set: groups the chunks into runs. pieces[row] is the number of the row's chunks on this rank. */
status rates_runs(struct params *p, const int64_t *pieces) WARN_UNUSED;
/* Calls ops->update for a range of the chunk table, once per run if it applies the rule. a->chunks points into
 * params.chunks. */
status rates_update(const struct exec *r, const struct update_args *a) WARN_UNUSED;
#endif
