/* The source of each sample: exact proportions, without a list in memory.
 *
 * Sample indices are divided into blocks of MIXTURE_BLOCK. A block has a whole number of samples of each source: its
 * weight times the block size, plus the deficit from earlier blocks, rounded to fill the block (largest remainder).
 * After every block each source is therefore within 2 samples of its exact share, for any length of the run. Inside a
 * block the order is a keyed permutation of (seed, block). The n-th sample of a source is its ordinal n: sources are
 * read in their own order, no sample is skipped, and ordinal / samples is the source's epoch.
 *
 * Weights may change over the run: points (at, weight), at in samples, constant before the first and after the last;
 * a block uses the weights at its middle. A source that has given epochs_max times its samples is exhausted, and the
 * others take over its share in proportion to their weights.
 *
 * The counts before a block follow from the earlier blocks. A pass over the run at start (about 10 ns per block and
 * source: 1e9 samples of 10 sources take 0.1 s) stores the state at regular intervals, at most MIXTURE_MARKS times (1
 * KiB each); a cursor rolls forward from there. The position of any sample is therefore a function of (seed, index)
 * and the sources. */
#ifndef INGOT_DATA_LOAD_MIXTURE_H
#define INGOT_DATA_LOAD_MIXTURE_H
#include "base/status.h"
#include <stdint.h>

enum { MIXTURE_BLOCK = 1024, MIXTURE_SOURCES = 64, MIXTURE_MARKS = 1024 };

/* same values as enum weight_curve of spec.h; STEP: a weight holds until the next point */
enum mixture_curve { MIXTURE_LINEAR, MIXTURE_STEP };
struct mixture_point {
    double at, weight; /* valid from sample `at` on */
};
struct mixture_source {
    int64_t samples;                    /* per epoch */
    double epochs_max;                  /* 0: no limit */
    const struct mixture_point *points; /* ascending; must outlive the mixture */
    int point_count;                    /* 0: the weight is `samples`, as if the sources were concatenated */
};
struct mixture;
/* A position in the mixture, for one thread. Zeroed: no position yet. */
struct mixture_cursor {
    int64_t block;  /* block of `count`, plus 1; 0: none */
    int64_t before[MIXTURE_SOURCES]; /* samples given before the block */
    double owed[MIXTURE_SOURCES];    /* deficit to the exact share at that point */
    int count[MIXTURE_SOURCES];      /* samples in the block */
    int total;                       /* samples of the block: fewer than MIXTURE_BLOCK when the sources end in it */
};
/* samples_total is the length of the run, which is checked (0: not known, no check). STATUS_CONFIG when all sources
 * are exhausted or have weight 0 before its end. */
status mixture_open(struct mixture **m, const struct mixture_source *sources, int count, enum mixture_curve curve,
                    uint64_t seed, int64_t samples_total) WARN_UNUSED;
void mixture_close(struct mixture *m);
/* Returns the source of sample `index`, and its ordinal in that source. STATUS_CONFIG past the end of the sources. */
status mixture_at(const struct mixture *m, struct mixture_cursor *c, int64_t index, int *source,
                  int64_t *ordinal) WARN_UNUSED;
/* Samples that each source has given at `index`: all blocks before that of `index`, and this block in proportion. For
 * progress reports. */
void mixture_given(const struct mixture *m, struct mixture_cursor *c, int64_t index, double *given);
#endif
