/* Samples: what the loader draws from. Sources are cut into rows of T inputs, and each sample index (0, 1, ... over the whole
 * run) is one row of one source.
 *
 *   stream     the token stream cut every T tokens: row i has inputs [iT, iT+T) and the targets one behind. The incomplete row at
 *              the end is left out
 *   documents  the same rows, but attention and positions restart where a document begins, and a target that lies in another
 *              document than its input is ignored
 *   best_fit   whole documents side by side (data/load/pack.h): nothing is cut but what is longer than T; the rest of a row is padding
 *   pad        one piece of a document per row, the rest is padding: what the others are compared with
 *
 * Order: sample index -> source and ordinal (data/load/mixture.h) -> epoch and row, a keyed permutation of (seed, source, epoch). A
 * pure function of (seed, index), so a resume needs no state but the step, and a step is the same set of samples for any
 * number of ranks.
 *
 * Evaluation (shuffle 0; one source): rows in order, and every token once: the incomplete row at the end counts too, and samples
 * behind it are empty. */
#ifndef INGOT_DATA_LOAD_SAMPLES_H
#define INGOT_DATA_LOAD_SAMPLES_H
#include "data/load/mixture.h"
#include "data/load/pack.h"
#include "data/shard/shard.h"

enum loader_packing { LOADER_STREAM, LOADER_DOCUMENTS, LOADER_BEST_FIT, LOADER_PAD }; /* as enum packing of spec.h */

struct samples_source {
    const struct shard_set *set; /* outlives the samples */
    const struct mixture_point *points; /* weights over the run's samples; point_count 0: in proportion to the rows */
    int point_count;
    double epochs_max; /* 0: no limit */
};
struct samples_config {
    uint64_t seed;
    int64_t sequence_length; /* T */
    int packing;             /* enum loader_packing or enum packing */
    int shuffle;             /* 0: rows in order */
    int64_t rows_max;        /* use the first so many rows of a source; 0: all */
    int64_t samples_total;   /* of the run: the sources must last so long; 0: not known */
    enum mixture_curve curve;
};
struct samples;
/* STATUS_DATA when a source has not one row (evaluation: not two tokens), or has no document boundaries and the packing needs
 * them. STATUS_CONFIG as mixture_open. */
status samples_open(struct samples **s, const struct samples_source *sources, int count,
                    const struct samples_config *c) WARN_UNUSED;
void samples_close(struct samples *s);

const struct samples_config *samples_config_of(const struct samples *s);
int samples_sources(const struct samples *s);
const struct shard_set *samples_set(const struct samples *s, int source);
int64_t samples_rows(const struct samples *s, int source);   /* per epoch */
double samples_padding(const struct samples *s, int source); /* part of its rows that is padding */
size_t samples_bytes(const struct samples *s);               /* host memory of document boundaries and packing */
/* Epochs of each source in the first `index` samples; `epochs` has room for MIXTURE_SOURCES. */
void samples_epochs(const struct samples *s, struct mixture_cursor *c, int64_t index, double *epochs);

struct sample_place {
    int source;
    int64_t epoch, row; /* row -1: an empty sample behind the end of an evaluation */
};
status samples_place(const struct samples *s, struct mixture_cursor *c, int64_t index,
                     struct sample_place *place) WARN_UNUSED;
/* The stretches of the source's stream that fill a row, in order: `out` has room for T. A stretch of stream and documents packing
 * belongs to no one document (-1). Returns their number. */
int64_t samples_pieces(const struct samples *s, const struct sample_place *place, struct pack_piece *out);
/* Where documents of a source begin, when the packing had to know. NULL: it had not. */
const struct document_index *samples_documents(const struct samples *s, int source);
#endif
