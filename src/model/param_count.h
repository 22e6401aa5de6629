/* How many parameters a model has: read off the parameter table that its blocks declare. Nothing is allocated for weights. */
#ifndef INGOT_MODEL_PARAM_COUNT_H
#define INGOT_MODEL_PARAM_COUNT_H
#include "spec/spec.h"

/* Of a checked spec, with `vocab_size` rows in embedding and head (a spec may leave that to the tokenizer); 0: without those. */
int64_t model_param_count(const struct model_spec *m, int64_t vocab_size);
/* Of them, those that one token passes: all but experts that are not chosen, and n-gram tables, of which it reads some rows. */
int64_t model_active_count(const struct model_spec *m, int64_t vocab_size);
#endif
