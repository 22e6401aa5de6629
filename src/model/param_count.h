/* Counts a model's parameters from the parameter table that its blocks declare. No memory for weights is allocated. */
#ifndef INGOT_MODEL_PARAM_COUNT_H
#define INGOT_MODEL_PARAM_COUNT_H
#include "spec/spec.h"

/* Parameters of a checked spec, with `vocab_size` rows in embedding and head (a spec may leave that to the
 * tokenizer); vocab_size 0: without those. */
int64_t model_param_count(const struct model_spec *m, int64_t vocab_size);
/* The parameters that one token uses: without experts that are not chosen, and with only the n-gram rows that it
 * reads. */
int64_t model_active_count(const struct model_spec *m, int64_t vocab_size);
#endif
