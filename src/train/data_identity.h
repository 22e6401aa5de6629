/* data_identity: what the ids of a run stand for, stored in its checkpoints ("data" in their `meta`, docs/FORMATS.md):
 * hashes of the shards of each source and of validation, of the tokenizer, and how samples are ordered. A later
 * process compares what it finds with it, so that no run goes on, and none is judged, with other data unnoticed.
 *
 * `accept` (--accept-data-change) turns a refusal into a warning. */
#ifndef INGOT_TRAIN_DATA_IDENTITY_H
#define INGOT_TRAIN_DATA_IDENTITY_H
#include "train/data_sources.h"
#include "train/trainer.h"

/* The identity of open sources and validation shards (closed: none); the caller owns *out. */
status data_identity_of(const struct data_sources *s, const struct shard_set *val, const struct run_spec *r,
                        json_t **out) WARN_UNUSED;
/* That of a model that only has a tokenizer (NULL: not even that; then NULL is returned). */
json_t *data_identity_of_tokenizer(const struct tokenizer *t);

/* Of a run that resumes: STATUS_DATA when training shards, validation shards under the same name, the tokenizer, or
 * the rule of the order are not those of `old`, the identity in the checkpoint at `path` (NULL: it has none). */
status data_identity_compare(const json_t *old, const json_t *now, const char *path, bool accept) WARN_UNUSED;
/* Hands the lineage of `old` down to `now`; an accepted change becomes its last entry, with the step. */
status data_identity_inherit(const json_t *old, json_t *now, int64_t step) WARN_UNUSED;

/* Of a model that is evaluated: STATUS_DATA when `val`, opened as `pattern`, is of another tokenizer or vocabulary than
 * `known`, or when the run was evaluated on shards of this name that held something else. */
status data_identity_check_val(const json_t *known, const struct shard_set *val, const char *pattern,
                               bool accept) WARN_UNUSED;
/* STATUS_DATA when a loaded tokenizer, found in `dir`, is not that of `known`, or, if that is not recorded, of the hash
 * `made_by` ("": not known, either). */
status data_identity_check_tokenizer(const json_t *known, const char *made_by, const struct tokenizer *t,
                                     const char *dir, bool accept) WARN_UNUSED;
/* The recorded hash of the tokenizer; "" when there is none. */
const char *data_identity_tokenizer(const json_t *known);
#endif
