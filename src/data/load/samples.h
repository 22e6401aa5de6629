/* Samples, from which the loader makes batches. Sources are divided into rows of T inputs; each sample index (0, 1,
 * ... over the whole run) is one row of one source.
 *
 *   stream     the token stream in rows of T tokens: row i has inputs [iT, iT+T) and the targets shifted by one. The
 *              incomplete last row is skipped
 *   documents  the same rows, but attention and positions restart at each document, and a target in another document
 *              than its input is ignored
 *   best_fit   complete documents packed into rows (data/load/pack.h): only documents longer than T are split; the
 *              rest of a row is padding
 *   pad        one piece of a document per row, the rest is padding: the baseline for the other modes
 *
 * Order: sample index -> source and ordinal (data/load/mixture.h) -> epoch and row, a keyed permutation of (seed,
 * source, epoch). It is a pure function of (seed, index). A resume needs no state except the step, and a step is the
 * same set of samples for any number of ranks.
 *
 * Evaluation (shuffle 0; one source): rows in order, and every token once. The incomplete last row counts too, and
 * samples after it are empty. */
#ifndef INGOT_DATA_LOAD_SAMPLES_H
#define INGOT_DATA_LOAD_SAMPLES_H
#include "data/load/mixture.h"
#include "data/load/pack.h"
#include "data/shard/shard.h"

/* same values as enum packing of spec.h */
enum loader_packing { LOADER_STREAM, LOADER_DOCUMENTS, LOADER_BEST_FIT, LOADER_PAD };

struct samples_source {
    const struct shard_set *set; /* must outlive the samples */
    /* weights over the samples of the run; point_count 0: in proportion to the rows */
    const struct mixture_point *points;
    int point_count;
    double epochs_max; /* 0: no limit */
};
struct samples_config {
    uint64_t seed;
    int64_t sequence_length; /* T */
    int packing;             /* enum loader_packing or enum packing */
    int shuffle;             /* 0: rows in order */
    int64_t rows_max;        /* use only the first rows_max rows of a source; 0: all */
    int64_t samples_total;   /* samples of the run, which the sources must provide; 0: not known */
    enum mixture_curve curve;
};
struct samples;
/* STATUS_DATA when a source has no complete row (evaluation: fewer than two tokens), or the packing needs document
 * boundaries that it does not have. STATUS_CONFIG as mixture_open. */
status samples_open(struct samples **s, const struct samples_source *sources, int count,
                    const struct samples_config *c) WARN_UNUSED;
void samples_close(struct samples *s);

const struct samples_config *samples_config_of(const struct samples *s);
int samples_sources(const struct samples *s);
const struct shard_set *samples_set(const struct samples *s, int source);
int64_t samples_rows(const struct samples *s, int source);   /* per epoch */
double samples_padding(const struct samples *s, int source); /* fraction of padding in its rows */
size_t samples_bytes(const struct samples *s);               /* host memory of document boundaries and packing */
/* Epochs of each source in the first `index` samples; `epochs` needs MIXTURE_SOURCES elements. */
void samples_epochs(const struct samples *s, struct mixture_cursor *c, int64_t index, double *epochs);

struct sample_place {
    int source;
    int64_t epoch, row; /* row -1: an empty sample after the end of an evaluation */
};
status samples_place(const struct samples *s, struct mixture_cursor *c, int64_t index,
                     struct sample_place *place) WARN_UNUSED;
/* Writes the spans of the source's stream that fill a row, in order; `out` needs T elements. With stream and
 * documents packing a span has no document number (-1). Returns the number of spans. */
int64_t samples_pieces(const struct samples *s, const struct sample_place *place, struct pack_piece *out);
/* Document index of a source, if the packing needed it; else NULL. */
const struct document_index *samples_documents(const struct samples *s, int source);
#endif
