/* What a run draws its steps from: the sources of data.train, opened, cut into samples and put in order. The training loop and
 * `ingot data inspect --step` ask the same functions, so what inspect shows is what a run sees. */
#ifndef INGOT_TRAIN_DATA_SOURCES_H
#define INGOT_TRAIN_DATA_SOURCES_H
#include "data/load/loader.h"
#include "dev/dev.h"
#include "parallel/mesh.h"
#include "spec/sources.h"

struct data_sources {
    struct sources *sources; /* what the user wrote */
    struct shard_set *sets;  /* [sources->count] */
    struct samples *samples;
    struct mixture_point *points; /* [count * SOURCE_POINTS_MAX] */
};
/* The shards of every source. STATUS_CONFIG when data.train is empty; STATUS_DATA as shard_set_open, or when the sources were made
 * with different tokenizers. */
status data_sources_open(struct data_sources *s, const struct run_spec *r) WARN_UNUSED;
void data_sources_close(struct data_sources *s); /* a zeroed or closed supply is fine */
/* Ids that a model needs for all sources; 0: no manifest says it. */
int64_t data_sources_vocab_size(const struct data_sources *s);
int64_t data_sources_tokens(const struct data_sources *s);

/* Samples in the order of a run; the spec's length, batch and sequence length are known. */
status data_sources_mix(struct data_sources *s, const struct spec *spec) WARN_UNUSED;
/* Logs what each source gives to the run; nothing for one pattern without padding. */
void data_sources_log(const struct data_sources *s);
/* The loader of a rank of such a run, by its place in the mesh (NULL: one rank). `dev` is where the batches go (memory pinned for it),
 * or NULL. STATUS_CONFIG when the micro-batches cannot be divided by the ranks. */
status data_sources_loader(const struct spec *spec, const struct mesh *place, const struct dev *dev,
                     struct loader_config *c) WARN_UNUSED;
#endif
