/* Which of several sources each sample comes from: exact proportions, without a list in memory.
 *
 * Sample indices are cut into blocks of MIXTURE_BLOCK. A block has a whole number of samples of each source: its weights times
 * the block, plus what the source is owed from the blocks before, rounded so that the block is full (largest remainder). So
 * after every block each source is within 2 samples of its exact share, however long the run. Inside a block the order is a
 * keyed permutation of (seed, block). The n-th sample of a source is its ordinal n: sources are read in their own order, no
 * sample is left out, and ordinal / samples is the source's epoch.
 *
 * Weights may change over the run: points (at, weight), at in samples, constant before the first and after the last; a block has
 * the weights of its middle. A source that has given epochs_max times its samples is over, and the others take its share in
 * proportion to their weights.
 *
 * What sources gave before a block follows from the blocks before it. A pass over the run at start (about 10 ns per block and
 * source: 1e9 samples of 10 sources take 0.1 s) keeps every so many-th state, at most MIXTURE_MARKS of them (1 KiB each); from
 * there a cursor rolls forward. So any sample's place follows from (seed, index) and the sources alone. */
#ifndef INGOT_DATA_LOAD_MIXTURE_H
#define INGOT_DATA_LOAD_MIXTURE_H
#include "base/status.h"
#include <stdint.h>

enum { MIXTURE_BLOCK = 1024, MIXTURE_SOURCES = 64, MIXTURE_MARKS = 1024 };

enum mixture_curve { MIXTURE_LINEAR, MIXTURE_STEP }; /* as enum weight_curve of spec.h; STEP: a weight holds until the next point */
struct mixture_point {
    double at, weight; /* from sample `at` on */
};
struct mixture_source {
    int64_t samples;                    /* per epoch */
    double epochs_max;                  /* 0: no limit */
    const struct mixture_point *points; /* ascending; kept by the caller while the mixture is open */
    int point_count;                    /* 0: weight is `samples`, as if the sources were one */
};
struct mixture;
/* A place in the mixture, for one thread. Zeroed: nowhere yet. */
struct mixture_cursor {
    int64_t block;  /* that `count` is of, plus 1; 0: nowhere */
    int64_t before[MIXTURE_SOURCES]; /* samples given before the block */
    double owed[MIXTURE_SOURCES];    /* and how much less than its share that was */
    int count[MIXTURE_SOURCES];      /* in the block */
    int total;                       /* samples of the block: fewer than MIXTURE_BLOCK when the sources end in it */
};
/* samples_total: of the run, which is looked through (0: not known, nothing is). STATUS_CONFIG when the sources end before it: all
 * are over, or have weight 0. */
status mixture_open(struct mixture **m, const struct mixture_source *sources, int count, enum mixture_curve curve,
                    uint64_t seed, int64_t samples_total) WARN_UNUSED;
void mixture_close(struct mixture *m);
/* Source of sample `index`, and which sample of that source. STATUS_CONFIG past the end of the sources. */
status mixture_at(const struct mixture *m, struct mixture_cursor *c, int64_t index, int *source,
                  int64_t *ordinal) WARN_UNUSED;
/* Samples that each source gives to the samples before the block of `index`, and of this block in proportion: what a run that
 * stands at `index` shows. */
void mixture_given(const struct mixture *m, struct mixture_cursor *c, int64_t index, double *given);
#endif
