/* data_sources: the sources of data.train, opened, cut into samples and mixed. The training loop and `ingot data
 * inspect --step` call the same functions, so inspect shows what a run sees. */
#ifndef INGOT_TRAIN_DATA_SOURCES_H
#define INGOT_TRAIN_DATA_SOURCES_H
#include "data/load/loader.h"
#include "dev/dev.h"
#include "observe/env.h"
#include "parallel/mesh.h"
#include "spec/ramp.h"
#include "spec/sources.h"

struct data_sources {
    struct sources *sources; /* what the user wrote */
    struct shard_set *sets;  /* [sources->count] */
    struct samples *samples;
    struct mixture_point *points; /* [count * SOURCE_POINTS_MAX] */
};
/* Opens the shards of every source. STATUS_CONFIG when data.train is empty; STATUS_DATA as shard_set_open, or when the
 * sources have different tokenizers. */
status data_sources_open(struct data_sources *s, const struct run_spec *r) WARN_UNUSED;
/* Opens data.val likewise; an empty one leaves `val` closed. */
status data_sources_open_val(struct shard_set *val, const struct run_spec *r) WARN_UNUSED;
/* data.verify=start: verifies part `part` of `parts` (a rank's, and the ranks) of the sets' blocks now. */
status data_sources_verify(const struct shard_set *sets, int count, const struct run_spec *r, int part,
                           int parts) WARN_UNUSED;
void data_sources_close(struct data_sources *s); /* zeroed or closed is fine */
/* Refuses, with STATUS_DATA, ids that mean different texts: validation shards (`val` closed: none) of another
 * tokenizer or vocabulary than the sources', or of none where theirs is known. Shards without a manifest do not
 * tell. */
status data_sources_check(const struct data_sources *s, const struct shard_set *val,
                          const struct run_spec *r) WARN_UNUSED;
/* STATUS_DATA when data.tokenizer, or without one the directory that the manifest of `made` names, holds another
 * tokenizer than the one that made these shards; `accept`: a warning. One that is not there is missed where it is
 * used. */
status data_sources_tokenizer(const struct shard_set *made, const struct run_spec *r, bool accept) WARN_UNUSED;
/* STATUS_DATA when a set's vocabulary has more ids than the model's. A closed set, and one that does not tell, fit. */
status data_sources_fit(const struct shard_set *set, int64_t vocab_size) WARN_UNUSED;
/* Vocabulary size that all sources need; 0: no manifest records it. */
int64_t data_sources_vocab_size(const struct data_sources *s);
int64_t data_sources_tokens(const struct data_sources *s);

/* Samples in the order of a run. The spec's length, batch and sequence length must be known. */
status data_sources_mix(struct data_sources *s, const struct spec *spec) WARN_UNUSED;
/* Logs the share of each source; nothing for one pattern without padding. */
void data_sources_log(const struct data_sources *s);
/* The sources as env.json names them; `out` needs an element for each. Valid while `s` is open. */
void data_sources_describe(const struct data_sources *s, struct env_source *out);
/* The loader's configuration on a rank, by its place in the mesh (NULL: one rank). `dev`: batches are in memory pinned
 * for it; NULL: no device. STATUS_CONFIG when the ranks do not divide the micro-batches. */
status data_sources_loader(const struct spec *spec, const struct mesh *place, const struct dev *dev,
                     struct loader_config *c) WARN_UNUSED;
#endif
